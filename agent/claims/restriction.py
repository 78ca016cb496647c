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
    the `units` each group gets. `pins` {guest CPU: host CPU} and `cells` {guest cell: host cell} say where
    its CPUs and cells must be.
    """

    units: Units = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    bound: Mapping[str, str] = field(default_factory=dict)
    dealt: GroupUnits = field(default_factory=dict)
    pins: Mapping[int, int] = field(default_factory=dict)
    cells: Mapping[int, int] = field(default_factory=dict)

    def pin(self, fit: Fit) -> Fit:
        """The fit with each guest CPU on its host CPU, where its cell has that one for another guest CPU."""
        if not self.pins:
            return fit
        cells = []
        for cell in fit.cells:
            wanted = {cpu: self.pins.get(cpu, pin) for cpu, pin in cell.pinning.items()}
            is_same = set(wanted.values()) == set(cell.pinning.values())
            cells.append(replace(cell, pinning=wanted) if is_same else cell)
        return replace(fit, cells=tuple(cells))


UNRESTRICTED = Restriction()
