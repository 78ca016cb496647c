"""A claim with its allocation, and no guest for a long time."""

from collections.abc import Iterator

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.claim import ClaimState

ABSENT_S = 3600.0
"""A claim is made before its guest; a guest that is not there after so many seconds will not come."""


class AbsentGuest(FindingKind):
    """A row without a guest: the program that claimed stopped before it started the guest, or forgot it."""

    name = "absent guest"
    rows = (
        TableRow(
            "A claim that is older than an hour has its allocation, but no guest on this host.",
            "None: release the claim if its instance was deleted or did not start.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """A claim that no move and no guest explains."""
        claim = case.row.claimed.get(case.instance)
        if claim is None or case.is_moving or case.row.guest is not None:
            return
        if claim.state is not ClaimState.CLAIMED or not case.row.held:
            return
        if case.observation.ages.get(case.instance, 0.0) <= ABSENT_S:
            return
        yield Finding(
            self.name,
            case.instance,
            f"{case.instance} has a claim and an allocation, but no guest on this host. If the instance was "
            "deleted or did not start, release the claim.",
            case.evidence,
        )
