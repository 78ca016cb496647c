"""Taking a claim out of placement, and only what is the claim's."""

from dataclasses import replace

from agent.backoff import pause
from agent.claims.claim import Claim, ClaimState
from agent.errors import PlacementConflict, PlacementUnavailable
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tracker.claim_attempt import is_of
from agent.tracker.register import Register

ATTEMPTS_MAX = 4


def withdraw(register: Register, client: PlacementClient, claim: Claim) -> bool:
    """Make placement hold nothing of the claim any more; guarded by the consumer's generation, idempotent.

    True: there was nothing of it to take, and the consumer holds something elsewhere: it has moved.

    An intent (CLAIMING) is only taken back where placement holds exactly what it would have written: anything
    else is somebody else's. Raises PlacementError; PlacementUnavailable: not done, or not known.
    """
    for attempt in range(ATTEMPTS_MAX):
        held = client.allocations_of(claim.consumer)
        rest = _what_stays(register, claim, held)
        if rest == held.allocations:
            return bool(rest)
        try:
            client.write_allocations(replace(held, allocations=rest))
        except PlacementConflict:
            pause(attempt)  # somebody wrote in between
        else:
            return False
    raise PlacementConflict(
        f"The release of {claim.consumer} was overtaken by other writers {ATTEMPTS_MAX} times; "
        "it stays journaled and is tried again."
    )


def _what_stays(register: Register, claim: Claim, held: ConsumerAllocations) -> Allocations:
    if claim.state is ClaimState.CLAIMING:
        return {} if is_of(held, claim) else held.allocations
    elsewhere = held.allocations.keys() - claim.allocations.keys()
    if not elsewhere:
        return {}
    # The consumer has moved, or is moving: shared providers (a storage pool) go with it.
    with register.lock:
        host = register.ledger.host
        if host.root is None:
            raise PlacementUnavailable(
                f"What of all that {claim.consumer} holds is this host's is not known before its first "
                "inventory."
            )
        own = {uuid for uuid in claim.allocations if host.is_own(uuid)}
    return {uuid: amounts for uuid, amounts in held.allocations.items() if uuid not in own}
