"""An allocation on other providers than the claim or the guest."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import WriteAllocations


class WrongProvider(FindingKind):
    """Other providers of this host than those of the claim; or another host than that of the guest."""

    name = "wrong provider"
    rows = (
        TableRow(
            "Placement has the allocation on other providers than the claim.",
            "The allocation of the claim is written again.",
            "no",
        ),
        TableRow(
            "The guest has no claim and is on this host, but its allocation is on another host.",
            "None: move the guest, or its allocation.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """Judged against the claim, or, without one, against the guest."""
        if case.claim is None:
            return self._elsewhere(case)
        allocations = case.claimed_otherwise
        if allocations is None or not case.is_on_other_providers:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"The allocation of {case.consumer} in Placement is on other providers than its claim.",
            case.evidence,
            repair=(WriteAllocations(replace(case.placed, allocations=allocations)),),
        )

    def _elsewhere(self, case: ConsumerCase) -> Finding | None:
        if case.guest is None or not case.placed.allocations or case.parts.here:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"The guest {case.consumer} is on this host, but its allocation is elsewhere: move the guest, or "
            "its allocation.",
            case.evidence,
        )
