"""The most guests that fit at once, where each takes one of several ways to lie in the same room. Pure.

A *way* is what one guest takes of each provider; in each way it takes as much of a class altogether. How
often is each way taken, so that there are the most guests? First each guest takes the way that leaves the
most where it is scarcest. If that is not as much as an upper bound allows, all choices are tried depth first,
as far as the bound leaves a chance, in half of the steps. In the other half guests take ways by chance,
again and again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd
from random import Random
from typing import NamedTuple

Amounts = Mapping[str, Mapping[str, int]]
"""{provider: {class: amount}}"""

WAYS_TRIED_MAX = 400
"""Choices among more ways are not all tried."""
DRAWN_MAX = 20
"""So many ways are drawn for each guest, of which it takes one."""


class Packed(NamedTuple):
    """How often each way is taken; `most`: no more guests than that fit. So many `steps` were tried."""

    times: Sequence[int]
    most: int
    steps: int = 0


def pack(ways: Sequence[Amounts], free: Amounts, need: int, steps: int) -> Packed:
    """Places for as many guests as fit, at most `need`, after at most so many steps."""
    if not ways:
        return Packed((), 0)
    aside = steps // 2
    search = _Packing(ways, free, steps - aside)
    search.need = need = search.bound(0, need)
    search.place_in_turn()
    if sum(search.best) < need and len(ways) <= WAYS_TRIED_MAX and search.fill(0, 0, [0] * len(ways)):
        need = sum(search.best)
    spare, search.steps = max(0, search.steps), aside
    while sum(search.best) < need and search.steps > 0:
        search.place_by_chance()
    return Packed(search.best, need, steps - spare - max(0, search.steps))


_Spot = tuple[str, str]
"""A provider and a class."""


class _Packing:
    def __init__(self, ways: Sequence[Amounts], free: Amounts, steps: int) -> None:
        self._ways = [
            [((uuid, name), amount) for uuid, amounts in way.items() for name, amount in amounts.items()]
            for way in ways
        ]
        self._free = {(uuid, name): free[uuid][name] for way in self._ways for (uuid, name), _ in way}
        self._asked = Counter[str]()
        for amounts in ways[0].values():
            self._asked.update(amounts)
        self._rows: dict[int, list[tuple[int, list[tuple[_Spot, int, int]]]]] = {}
        self._seen: dict[tuple[int, tuple[int, ...]], int] = {}
        self.best: Sequence[int] = ()
        self._random = Random(0)  # noqa: S311 - the same choices each time
        self.need = 0
        self.steps = steps

    def place_in_turn(self) -> None:
        """Each guest in the way that leaves the most where it is scarcest; sets `best`."""
        before, times = dict(self._free), [0] * len(self._ways)

        def ease(number: int) -> tuple[int, int]:
            frees = [(self._free[spot], amount) for spot, amount in self._ways[number]]
            return min(free // amount for free, amount in frees), sum(free for free, _ in frees)

        while sum(times) < self.need:
            number = max(range(len(times)), key=ease)
            if not ease(number)[0]:
                break
            times[number] += 1
            self._take(number, 1)
        self._free, self.best = before, times

    def place_by_chance(self) -> None:
        """Each guest in that of some drawn ways which uses up the most providers; may set `best`."""
        before, times = dict(self._free), [0] * len(self._ways)
        fitting = list(range(len(times)))
        while sum(times) < self.need:
            self.steps -= 1 + len(fitting) // DRAWN_MAX
            fitting = [
                number
                for number in fitting
                if all(self._free[spot] >= amount for spot, amount in self._ways[number])
            ]
            if not fitting:
                break
            drawn = self._random.sample(fitting, min(len(fitting), DRAWN_MAX))
            number = max(
                drawn,
                key=lambda number: sum(self._free[spot] == amount for spot, amount in self._ways[number]),
            )
            times[number] += 1
            self._take(number, 1)
        self._free = before
        if sum(times) > sum(self.best):
            self.best = times

    def _take(self, number: int, times: int) -> None:
        for spot, amount in self._ways[number]:
            self._free[spot] -= times * amount

    def bound(self, first: int, most: int) -> int:
        """No more guests fit in the ways from there on, nor than `most`: each class is looked at alone.

        Of a provider a guest takes no more than any way does, and all guests a multiple of what ways have in
        common.
        """
        if first not in self._rows:
            takes: dict[str, dict[_Spot, list[int]]] = {name: {} for name in self._asked}
            for way in self._ways[first:]:
                for spot, amount in way:
                    takes[spot[1]].setdefault(spot, []).append(amount)
            self._rows[first] = [
                (self._asked[name], [(spot, gcd(*amounts), max(amounts)) for spot, amounts in spots.items()])
                for name, spots in takes.items()
            ]
        for asked, spots in self._rows[first]:
            usable = [(self._free[spot] // unit * unit, at_once) for spot, unit, at_once in spots]
            while (fit := sum(min(each, most * at_once) for each, at_once in usable) // asked) < most:
                most = fit
        return most

    def fill(self, number: int, guests: int, times: list[int]) -> bool:
        """Try the ways from there on beside the guests that are placed; sets `best`. False: not all tried."""
        if guests > sum(self.best):
            self.best = times[:]
        state = number, tuple(self._free.values())
        if number == len(self._ways) or self._seen.get(state, -1) >= guests:
            return True
        self._seen[state] = guests
        fitting = min(self._free[spot] // amount for spot, amount in self._ways[number])
        for more in range(min(fitting, self.need - guests), -1, -1):
            self.steps -= 1
            if self.steps < 0:
                return False
            self._take(number, more)
            times[number] = more
            left = self.need - guests - more
            done = guests + more + self.bound(number + 1, left) <= sum(self.best) or self.fill(
                number + 1, guests + more, times
            )
            times[number] = 0
            self._take(number, -more)
            if not done:
                return False
        return True
