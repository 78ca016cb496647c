"""A claimed unit that this host does not have any more."""

from collections.abc import Iterator

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.used import gone_units
from agent.providers.retained import way_back, with_name


class VanishedUnit(FindingKind):
    """A device that was taken out, a virtual function that was not created again, a CPU that went offline."""

    name = "vanished unit"
    rows = (
        TableRow(
            "A claim has an exact unit that is nowhere on this host any more.",
            "None: bring the device back (virtual functions must be created again after each boot, a CPU "
            "must be online), or release the claim.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """One finding for all such units of a claim."""
        gone: dict[str, list[tuple[str, str, str]]] = {}
        for uuid, name, unit, consumer in gone_units(case.place, [case.row]):
            gone.setdefault(consumer, []).append((uuid, name, unit))
        tree = case.observation.host.tree
        for consumer, units in sorted(gone.items()):
            ways = dict.fromkeys(way_back(tree.get(uuid), name) for uuid, name, _ in units)
            missing = ", ".join(f"{name} {unit}" for _, name, unit in units)
            name = case.row.guest.name if case.row.guest else case.row.claimed[consumer].request.name
            who = with_name(consumer, {consumer: name})
            yield Finding(
                self.name,
                consumer,
                f"{who} has claimed what this host does not have any more: "
                f"{missing}. {'. '.join(ways)}, or release the claim.",
                {**case.evidence, "units": [unit for _, _, unit in units]},
            )
