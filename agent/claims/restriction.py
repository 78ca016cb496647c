"""What a consumer must get in a fit, because the domain of its guest names it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.claims.claim import Fit
from agent.claims.mappings import GroupUnits
from agent.shapes import Units


@dataclass(frozen=True, slots=True)
class Restriction:
    """What the consumer's later fits must give it.

    `units` are exact units that it must get; of their classes it gets no others, but of those in `others`.
    `bound` {group suffix: provider uuid} restricts its groups to one provider each, and `dealt` says which of
    the `units` each group gets. `pins` {guest CPU: host CPU}, `emulator` (a host CPU) and `cells`
    {guest cell: host cell} say where its CPUs, its emulator's threads and its cells must be.
    """

    units: Units = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    bound: Mapping[str, str] = field(default_factory=dict)
    dealt: GroupUnits = field(default_factory=dict)
    pins: Mapping[int, int] = field(default_factory=dict)
    cells: Mapping[int, int] = field(default_factory=dict)
    emulator: int | None = None

    def pin(self, fit: Fit) -> Fit:
        """The fit with each guest CPU, and the emulator, on its host CPU, where its cell has that one."""
        if not self.pins and self.emulator is None:
            return fit
        cells = []
        for cell in fit.cells:
            pinning, emulator = cell.pinning, cell.emulator
            if emulator and self.emulator is not None and self.emulator in pinning.values():
                (other,) = emulator
                pinning = {cpu: other if pin == self.emulator else pin for cpu, pin in pinning.items()}
                emulator = frozenset({self.emulator})
            wanted = {cpu: self.pins.get(cpu, pin) for cpu, pin in pinning.items()}
            is_same = set(wanted.values()) == set(pinning.values())
            cells.append(replace(cell, pinning=wanted if is_same else pinning, emulator=emulator))
        return replace(fit, cells=tuple(cells))


UNRESTRICTED = Restriction()
