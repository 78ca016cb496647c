"""An allocation on other providers than the claim."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.findings.amounts_differ import contradicted, outdated_record, undecided
from agent.audit.repair import FollowReshape, WriteAllocations


class WrongProvider(FindingKind):
    """Other providers of this host than those of the claim."""

    name = "wrong provider"
    judges_moves = True
    rows = (
        TableRow(
            "Placement has the allocation on other providers than the claim.",
            "The allocation of the claim is written again.",
            "no",
        ),
        TableRow(
            "The same, and the claim's record is from before a reshape, as in a state directory that was "
            "restored from a copy: Placement has the same amounts where the reshape moved them.",
            "The claim gets the providers that Placement has, and keeps its exact units.",
            "yes",
        ),
        TableRow(
            "The same amounts, and neither the guest, an exact unit nor a move instruction of the driver "
            "says which is newer, the claim or Placement. Also where both name the same providers.",
            "None: write to Placement what the claim has, or release it and claim again.",
            "no",
        ),
        TableRow(
            "Other providers or amounts, and guests of other instances use units of the claim: its record is "
            "older.",
            "None: release it, and claim again.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """The allocation here against the claim, of a moving instance or its migration as well."""
        allocations = case.claimed_otherwise
        if allocations is None:
            return None
        relocations = case.reshaped
        if relocations:
            return Finding(
                self.name,
                case.consumer,
                f"The claim of {case.consumer} is from before a reshape, which moved its allocation in "
                "Placement.",
                case.evidence,
                own=True,
                repair=(FollowReshape(case.consumer, relocations),),
            )
        if not case.is_on_other_providers:
            return None
        if case.is_outdated:
            return outdated_record(self.name, case)
        if case.is_undecided:
            return undecided(self.name, case)
        if case.used_by_others:
            return contradicted(self.name, case)
        return Finding(
            self.name,
            case.consumer,
            f"The allocation of {case.consumer} in Placement is on other providers than its claim.",
            case.evidence,
            repair=(WriteAllocations(replace(case.placed, allocations=allocations)),),
        )
