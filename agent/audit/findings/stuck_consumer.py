"""An operation that began and did not end, and that no thread of the agent works on."""

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import Deliver
from agent.claims.claim import ClaimState


class StuckConsumer(FindingKind):
    """A claim or a release in doubt."""

    name = "stuck consumer"
    rows = (
        TableRow("A claim or a release did not come to its end.", "The agent finishes or undoes it.", "yes"),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim in a state that is not final."""
        if case.claim is None or case.claim.state is ClaimState.CLAIMED:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"The claim of {case.consumer} is {case.claim.state}, and no operation works on it.",
            case.evidence,
            own=True,
            repair=(Deliver(case.consumer),),
        )
