"""Why a reshape was not done, in an operator's words."""

from agent.errors import PlacementError, ReshapeRefused


def put_off(why: str) -> ReshapeRefused:
    return ReshapeRefused(
        f"The reshape could not be done yet, {why.rstrip('.')}; nothing of it was, and it is tried again.",
        reasons=[why],
    )


def refused(error: PlacementError) -> ReshapeRefused:
    return ReshapeRefused(
        f"Placement refused the reshape, so nothing of it was done: {error.message}", reasons=[error.message]
    )
