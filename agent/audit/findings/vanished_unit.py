"""A claimed unit that this host does not have any more."""

from collections.abc import Iterator

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.used import gone_units


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
        gone: dict[str, list[tuple[str, str]]] = {}
        for _, name, unit, consumer in gone_units(case.place, [case.row]):
            gone.setdefault(consumer, []).append((name, unit))
        for consumer, units in sorted(gone.items()):
            names = ", ".join(f"{name} {unit}" for name, unit in units)
            only_cpus = all(name == "PCPU" for name, _ in units)
            back = "Bring the CPU online" if only_cpus else "Bring the device back"
            yield Finding(
                self.name,
                consumer,
                f"{consumer} has claimed what this host does not have any more: {names}. {back}, or release "
                "the claim.",
                {**case.evidence, "units": [unit for _, unit in units]},
            )
