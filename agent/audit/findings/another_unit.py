"""A guest that uses other exact units than those of its claim."""

from collections.abc import Iterator

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.older_records import follow_together, held_of, is_older
from agent.audit.repair import FollowGuests
from agent.claims.claim import Claim

CPUS = "PCPU"


class AnotherUnit(FindingKind):
    """As many units as claimed, but others; or a claim whose CPUs are not those of its NUMA cells."""

    name = "another unit"
    rows = (
        TableRow(
            "A guest uses another exact unit (a device, a virtual function, a dedicated CPU) than its claim "
            "has, while it runs.",
            "The claim gets the units that the guest uses, together with the claims whose units these are, "
            "if their guests use others as well. Else none: give the guest the units of its claim.",
            "no",
        ),
        TableRow(
            "The dedicated CPUs of a claim are not those of its NUMA cells.",
            "None: release the claim, and claim for the instance again.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The guest against its claim, and each claim against itself."""
        use = case.use
        if use is not None and use.swapped:
            clauses = [
                f"the {name} {', '.join(used)} instead of {', '.join(claimed)}"
                for name, (claimed, used) in sorted(use.swapped.items())
            ]
            repair = _follows(case)
            yield Finding(
                self.name,
                case.instance,
                f"The guest {case.instance} uses other units than its claim has: {'; '.join(clauses)}. "
                + ("The claim may follow the guest." if repair else "Give it those of its claim."),
                {
                    **case.evidence,
                    "units": {
                        name: {"claimed": list(claimed), "used": list(used)}
                        for name, (claimed, used) in sorted(use.swapped.items())
                    },
                },
                repair=repair,
            )
        for claim in case.row.claimed.values():
            cpus, pinned = _cpus(claim)
            if cpus and pinned and not pinned <= cpus:
                yield Finding(
                    self.name,
                    claim.consumer,
                    f"The claim of {claim.consumer} has the CPUs {_text(cpus)}, but its NUMA cells pin the "
                    f"guest to {_text(pinned)}. Release it, and claim again.",
                    {**case.evidence, "units": sorted(cpus), "cells": sorted(pinned)},
                )


def _follows(case: RowCase) -> tuple[FollowGuests, ...]:
    """The claim follows its guest where Placement has the same as before, and not while units are made."""
    claim, observation = case.row.claimed.get(case.instance), case.observation
    if claim is None or claim.makings or case.is_moving:
        return ()
    held = held_of(observation, claim)
    if held != claim.allocations or not is_older(observation, claim, held):
        return ()
    return follow_together(observation, claim, held)


def _cpus(claim: Claim) -> tuple[frozenset[int], frozenset[int]]:
    """The dedicated CPUs of the claim, by its units and by its cells."""
    units = frozenset(int(unit) for _, name, unit in claim.exact if name == CPUS and unit.isdecimal())
    return units, frozenset(cpu for cell in claim.cells for cpu in cell.pinning.values())


def _text(cpus: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))
