"""An allocation whose amounts are not those of the claim."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import WriteAllocations
from agent.claims.claim import Claim
from agent.placement.client import ConsumerAllocations


def outdated_record(kind: str, case: ConsumerCase) -> Finding:
    """The finding of this kind where the claim is older than Placement and the guest: it follows them."""
    follows = case.follows
    return Finding(
        kind,
        case.consumer,
        f"The guest {case.consumer} uses what Placement has for it, and its claim has something else: the "
        "claim's record is older, as in a state directory that was restored from a copy."
        + ("" if follows else " Release it (`plimsoll release --force`), and claim for the instance again."),
        case.evidence,
        repair=follows,
    )


def undecided(kind: str, case: ConsumerCase) -> Finding:
    """The finding of this kind where nothing tells which is newer, the claim or Placement."""
    return Finding(
        kind,
        case.consumer,
        f"Placement has what {case.consumer} claimed on other providers of this host, and neither its guest, "
        "an exact unit nor a move instruction of the driver says which of the two is newer: the agent moves "
        "nothing on a guess. Write to Placement what the claim has, or release it (`plimsoll release "
        "--force` where its guest runs), and claim for the instance again.",
        case.evidence,
    )


def contradicted(kind: str, case: ConsumerCase) -> Finding:
    """The finding of this kind where guests of others use units of the claim: Placement is newer."""
    used = ", ".join(f"{unit} by {instance}" for unit, instance in case.used_by_others)
    return Finding(
        kind,
        case.consumer,
        f"Placement has something else for {case.consumer} than its claim, of which other guests use units "
        f"({used}): the claim's record is older, as in a state directory that was restored from a copy. "
        "Release it, and claim for the instance again.",
        case.evidence,
    )


class AmountsDiffer(FindingKind):
    """The claimed providers, with other amounts; or no allocation while the guest is here."""

    name = "amounts differ"
    judges_moves = True
    rows = (
        TableRow(
            "Placement has other amounts than the claim, on a shared provider for example; or no allocation "
            "while the guest is here, or since Placement's database was restored from a copy or replaced.",
            "The amounts of the claim are written again.",
            "no",
        ),
        TableRow(
            "The same, or other providers, and the guest runs with just what Placement has: the claim's "
            "record is older, as in a state directory that was restored from a copy.",
            "The claim gets what the guest uses, together with those whose units it gets. None for a claim "
            "with NUMA cells: release it, and claim again.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """Other amounts on the same providers, or none at all."""
        if case.claim is None:
            return None
        if not case.placed.allocations:
            is_wanted = case.guest is not None or case.consumer in case.observation.lost
            return self._without_allocation(case, case.claim) if is_wanted else None
        allocations = case.claimed_otherwise
        if allocations is None or case.is_on_other_providers or case.reshaped:
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
            f"The allocation of {case.consumer} in Placement has other amounts than its claim.",
            case.evidence,
            repair=(WriteAllocations(replace(case.placed, allocations=allocations)),),
        )

    def _without_allocation(self, case: ConsumerCase, claim: Claim) -> Finding:
        request = claim.request
        write = ConsumerAllocations(
            case.consumer,
            claim.allocations,
            None,
            request.project_id,
            request.user_id,
            request.consumer_type,
        )
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has {'a guest and ' if case.guest else ''}a claim on this host, but no "
            f"allocation in Placement{'' if case.guest else ', whose database was restored or replaced'}.",
            case.evidence,
            repair=(WriteAllocations(write),),
        )
