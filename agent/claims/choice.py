"""Which of several places that fit a claim takes: where the least becomes impossible for others. Pure.

A guest that asks for no device goes to the cells that have the fewest idle devices. Among equal places the
strategy decides: *pack* takes the place that has the least left, so that whole cells, cores and cards stay
together; *spread* takes the one that has the most.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

FreeOf = Callable[[str, str], int]
"""(provider uuid, resource class) -> the amount that is free there"""


class Order(StrEnum):
    """What is taken first: the place that has the least left, or the one that has the most."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Strategy:
    """The order for resource classes: `by_class` for those named there, `default` for all others."""

    default: Order = Order.PACK
    by_class: Mapping[str, Order] = field(default_factory=dict)

    @classmethod
    def parse(cls, words: Iterable[str]) -> "Strategy":
        """The strategy of words such as "pack" and "VGPU:spread".

        Raises ValueError with a clause where a word is neither, or says a second time what was said.
        """
        default: Order | None = None
        by_class: dict[str, Order] = {}
        for word in words:
            name, _, order = word.rpartition(":")
            if order not in list(Order):
                raise ValueError(f"{word!r} is neither pack nor spread, nor CLASS:pack nor CLASS:spread")
            if name in by_class or (not name and default is not None):
                raise ValueError(f"{name or 'the default'} is given twice")
            if name:
                by_class[name] = Order(order)
            else:
                default = Order(order)
        return cls(default or Order.PACK, by_class)

    def rank(self, name: str, free: int) -> int:
        """The rank of a place where this much of the class is free; the lowest is taken first."""
        return free if self.by_class.get(name, self.default) is Order.PACK else -free


@dataclass(frozen=True, slots=True)
class Choice:
    """How places are compared.

    `devices` are {cell id: ((provider uuid, resource class), ...)} of what is attached to each NUMA cell, and
    `cell_of` is {uuid: cell id} of the providers that have a cell's CPUs and memory.
    """

    strategy: Strategy = field(default_factory=Strategy)
    devices: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    cell_of: Mapping[str, int] = field(default_factory=dict)

    def idle(self, asked: Collection[str], free: FreeOf) -> dict[int, float]:
        """{cell id: how much of the host's idle devices it has}, without the classes that are asked for.

        Each class counts as one, shared out among the cells by what is free there: a cell that has the only
        idle GPU counts as much as one that has all idle virtual functions. A card that can be given in
        several classes counts once.
        """
        idle = {
            cell: [
                (uuid, name, amount)
                for uuid, name in devices
                if name not in asked and (amount := free(uuid, name)) > 0
            ]
            for cell, devices in self.devices.items()
        }
        on_host: dict[str, int] = {}
        for devices in idle.values():
            for _, name, amount in devices:
                on_host[name] = on_host.get(name, 0) + amount
        shares: dict[int, dict[str, float]] = {}
        for cell, devices in idle.items():
            for uuid, name, amount in devices:
                cards = shares.setdefault(cell, {})
                cards[uuid] = max(cards.get(uuid, 0.0), amount / on_host[name])
        return {cell: round(sum(cards.values()), 6) for cell, cards in shares.items()}
