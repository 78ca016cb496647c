"""Which of several places that fit a claim takes: where the least becomes impossible for others. Pure.

Cells without idle devices that the guest does not ask for come first; then those on which the guest makes the
fewest of the host's idle devices useless, because it takes the CPUs and the memory that a guest has beside
such a device. Among equal places the strategy decides: *pack* takes the place that has the least left beyond
what its devices need, so that whole cells, cores and cards stay together; *spread* takes the one that has the
most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

FreeOf = Callable[[str, str], int]
"""(provider uuid, resource class) -> the amount that is free there"""
MOST = 1e12
"""More than is free of any class."""


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
    def parse(cls, words: Iterable[str]) -> Strategy:
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

    def rank(self, name: str, free: float) -> float:
        """The rank of a place where this much of the class is free; the lowest is taken first.

        `free` is negative where less is free than the devices of the place need.
        """
        if self.by_class.get(name, self.default) is Order.SPREAD:
            return -free
        return free if free >= 0 else MOST - free


@dataclass(frozen=True, slots=True)
class CellCost:
    """What a guest on a cell keeps from other guests; the least is chosen, in the order of the fields.

    `has_idle`: the cell has idle devices that the guest does not ask for. `lost` is the share of the host's
    usable devices that become useless. `needed` {resource class: amount} is what guests with the devices that
    are left on the cell would need there.
    """

    has_idle: bool = False
    lost: float = 0.0
    needed: Mapping[str, float] = field(default_factory=dict)


NO_COST = CellCost()


@dataclass(frozen=True, slots=True)
class Choice:
    """How places are compared.

    `devices` are {cell id: ((provider uuid, resource class), ...)} of what is attached to each NUMA cell, and
    `cell_of` is {uuid: cell id} of the providers that have a cell's CPUs and memory. `beside` {class of a
    device: {class of CPUs or memory: amount}} is what guests have beside each of their devices; a class that
    is not in it is one of which nothing is known.
    """

    strategy: Strategy = field(default_factory=Strategy)
    devices: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    cell_of: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def costs(
        self, asked: Mapping[str, int], room: Mapping[int, Mapping[str, int]], free: FreeOf
    ) -> dict[int, CellCost]:
        """{cell id: what a guest on it would cost}; cells without devices are left out.

        `asked` {class: amount} is what the guest asks for on one cell, with its devices, and `room`
        {cell id: {class: amount}} what is free of CPUs and memory. Each class of devices counts as one,
        shared out among the cells by what can be used there: a cell that has the only usable GPU counts as
        much as one that has all virtual functions. Of devices of which nothing is known, a guest beside them
        makes all useless. A card that can be given in several classes counts once.
        """
        idle = {cell: _idle_on(devices, free) for cell, devices in self.devices.items()}
        usable = {
            cell: {kind.name: self._usable(kind, room.get(cell, {})) for kind in kinds}
            for cell, kinds in idle.items()
        }
        on_host: dict[str, float] = {}
        for amounts in usable.values():
            for name, amount in amounts.items():
                on_host[name] = on_host.get(name, 0.0) + amount
        return {
            cell: self._cost(asked, kinds, room.get(cell, {}), usable[cell], on_host)
            for cell, kinds in idle.items()
            if kinds
        }

    def _cost(
        self,
        asked: Mapping[str, int],
        kinds: Iterable[_Idle],
        room: Mapping[str, int],
        usable: Mapping[str, float],
        on_host: Mapping[str, float],
    ) -> CellCost:
        left = {name: amount - asked.get(name, 0) for name, amount in room.items()}
        lost: dict[str, float] = {}
        needed: dict[str, dict[str, float]] = {}
        for kind in kinds:
            rest = _Idle(kind.name, kind.card, max(0, kind.amount - asked.get(kind.name, 0)))
            before = min(usable[kind.name], rest.amount)
            after = self._usable(rest, left) if kind.name in self.beside or kind.name in asked else 0
            if before > after:
                share = (before - after) / on_host[kind.name]
                lost[kind.card] = max(lost.get(kind.card, 0.0), share)
            for name, amount in self.beside.get(kind.name, {}).items():
                of_card = needed.setdefault(name, {})
                of_card[kind.card] = max(of_card.get(kind.card, 0.0), rest.amount * amount)
        return CellCost(
            any(kind.name not in asked for kind in kinds),
            round(sum(lost.values()), 6),
            {name: sum(of_card.values()) for name, of_card in needed.items()},
        )

    def _usable(self, kind: _Idle, room: Mapping[str, int]) -> float:
        """For how many of these devices the room suffices."""
        beside = self.beside.get(kind.name, {})
        served = (max(0.0, room.get(each, 0) // amount) for each, amount in beside.items())
        return min((kind.amount, *served))


@dataclass(frozen=True, slots=True)
class _Idle:
    """The idle devices of a class on a cell; `card` is the uuid of the first one that gives them."""

    name: str
    card: str
    amount: int


def _idle_on(devices: Iterable[tuple[str, str]], free: FreeOf) -> list[_Idle]:
    kinds: dict[str, _Idle] = {}
    for uuid, name in devices:
        amount = free(uuid, name)
        if amount > 0:
            first = kinds.get(name, _Idle(name, uuid, 0))
            kinds[name] = _Idle(name, first.card, first.amount + amount)
    return list(kinds.values())
