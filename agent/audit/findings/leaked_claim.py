"""A claim whose instance is gone: it was deleted while the agent was down."""

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import DropClaim


class LeakedClaim(FindingKind):
    """A claim without guest and without allocation."""

    name = "leaked claim"
    rows = (
        TableRow(
            "A claim whose guest and whose allocation are both gone.", "The agent releases the claim.", "yes"
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim of a consumer that neither the driver nor Placement has."""
        if case.claim is None or case.guest is not None or case.placed.allocations:
            return None
        if case.consumer in case.observation.lost:
            return None  # Placement lost it; no client released it
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has a claim, but neither a guest on this host nor an allocation in Placement.",
            case.evidence,
            own=True,
            repair=(DropClaim(case.consumer),),
        )
