"""A guest that uses more than it has claimed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import RecordUse
from agent.claims.claim import Claim
from agent.claims.refusal import amounts_text, provider_label
from agent.claims.use_difference import UseDifference
from agent.moves.states import request_for_allocations
from agent.shapes import Allocations, Units, total


class UsesMore(FindingKind):
    """A guest that runs with more than its claim, or, without a claim, its allocation has."""

    name = "uses more"
    rows = (
        TableRow(
            "A guest runs with more than it has: CPUs, memory, a virtual function, a GPU. The agent offers "
            "nothing of that to others.",
            "With a claim, and in no move: the claim gets what the guest uses, and Placement is written "
            "accordingly. Otherwise none: take it from the guest, or resize the instance.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The amounts by provider, and the units where they are known."""
        use = case.use
        if use is None or not use.more:
            return
        clauses = [
            f"{amounts_text(amounts, _extra_of(uuid, case, use))} on "
            f"{provider_label(uuid, case.observation.host.tree)}"
            for uuid, amounts in sorted(use.more.items())
        ]
        source = "its claim" if use.claim else "its allocation"
        grown = _grown(case, use)
        yield Finding(
            self.name,
            case.instance,
            f"The guest {case.instance} uses more than {source} has: {'; '.join(clauses)}.",
            {**case.evidence, "more": {uuid: dict(amounts) for uuid, amounts in use.more.items()}},
            repair=(RecordUse(use.claim, grown),) if use.claim and grown else (),
        )


def _extra_of(provider: str, case: RowCase, use: UseDifference) -> dict[str, list[str]]:
    """{class: the units of the provider that the guest uses beyond what it has}"""
    return {
        name: [unit for unit in units if unit in use.extra.get(name, ())]
        for name, units in case.row.used.units.get(provider, {}).items()
    }


def _grown(case: RowCase, use: UseDifference) -> Claim | None:
    """The claim with what the guest uses beyond it; None where it has a place of its own to come from.

    A claim with NUMA cells, and one that is moving, do not grow: their places were chosen together.
    """
    claim = use.claim
    if claim is None or case.is_moving or claim.cells or use.swapped:
        return None
    allocations: Allocations = total((claim.allocations, use.more))
    units = _with_units(claim.units, case.row.used.units, use.extra)
    request = claim.request
    grown = request_for_allocations(
        claim.consumer,
        allocations,
        name=request.name,
        project_id=request.project_id,
        user_id=request.user_id,
        consumer_type=request.consumer_type,
    )
    return replace(claim, request=grown, allocations=allocations, units=units)


def _with_units(claimed: Units, used: Units, extra: Mapping[str, tuple[str, ...]]) -> Units:
    units = {uuid: dict(classes) for uuid, classes in claimed.items()}
    for uuid, classes in used.items():
        for name, names in classes.items():
            more = tuple(unit for unit in names if unit in extra.get(name, ()))
            if more:
                here = units.setdefault(uuid, {})
                here[name] = (*here.get(name, ()), *more)
    return units
