"""A claim whose instance has moved away: the agent cannot tell which migration has its place."""

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.claim import ClaimState
from agent.moves.states import MIGRATION_TYPE


class UnlinkedMove(FindingKind):
    """A move from this host whose migration the agent cannot name, also not at its next look."""

    name = "unlinked move"
    rows = (
        TableRow(
            "A claim's instance is on another host, and several migrations may hold its place here: two "
            "moves look alike. The agent keeps the place.",
            "None: confirm or revert one of the moves with `--instance`, or on its other host.",
            "no",
        ),
        TableRow(
            "A claim's instance is on another host, and a consumer has as much here as the claim, on other "
            "providers, and no reshape of this host explains that. The agent keeps the place.",
            "None: confirm or revert the move on its other host.",
            "no",
        ),
        TableRow(
            "As the two above, and Placement does not say that the consumer is a migration: it has no type.",
            "None, and no advice: the consumer may be an instance of its own.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim of an instance that has left, with consumers here that may have its place."""
        claim, holders = case.claim, case.possible_holders
        if claim is None or claim.state is not ClaimState.CLAIMED or not holders:
            return None
        if case.parts.here or not case.parts.elsewhere or case.place_is_evident:
            return None
        untyped = [who for who in holders if case.observation.types.get(who) != MIGRATION_TYPE]
        if untyped:
            remedy = (
                f"{', '.join(untyped)} may be an instance of its own. Wait until it has a claim or a guest "
                "on this host, or holds nothing on it any more."
            )
        elif len(holders) == 1 and case.leaves_alone:
            remedy = "Confirm or revert the move on its other host."
        else:
            command = f"plimsoll move confirm MIGRATION --instance {case.consumer}"
            remedy = f"Name its migration: `{command}`, or `revert`."
        return Finding(
            self.name,
            case.consumer,
            f"By Placement {case.consumer} is on another host, and the agent cannot tell whether "
            f"{', '.join(holders)} has its place on this one. The agent keeps the place. {remedy}",
            case.evidence,
        )
