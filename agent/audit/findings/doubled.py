"""One consumer with allocations on two hosts: control planes up to OpenStack Pike write that for a move."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import WriteAllocations
from agent.moves.ownership import reduce_allocations


class Doubled(FindingKind):
    """A consumer that is charged here and on another host."""

    name = "doubled"
    rows = (
        TableRow(
            "One consumer has allocations on this host and on another one.",
            "The allocations are reduced to the host where the guest is.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """An allocation here and one elsewhere; shared providers do not count."""
        if not case.parts.doubled:
            return None
        runs_here = case.guest is not None
        resources = case.claim.request.resources if case.claim else None
        write = replace(
            case.placed, allocations=reduce_allocations(case.parts, runs_here=runs_here, resources=resources)
        )
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has allocations on this host and on another one; its guest is "
            f"{'on this host' if runs_here else 'not on this host'}.",
            case.evidence,
            repair=(WriteAllocations(write),),
        )
