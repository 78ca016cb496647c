"""A card that guests divide among them: which shapes fit beside those that it has, and where. Pure.

A card has an *axis* of slots (GiB of frame buffer, memory slices) and *counters* (compute slices, engines,
virtual functions). A *shape* is one size in which the card can be given: it takes a run of slots from one of
its allowed starts, and some of each counter. Shapes of different modes exclude each other. What a card can
still give depends on where its shapes are, not only on how much is free: with two shapes of 12 GiB at 12 and
at 24, a card of 48 GiB has 24 GiB free and no place for a shape of 24.

Sources: NVIDIA, "Multi-Instance GPU User Guide", Supported MIG Profiles; NVIDIA, "Virtual GPU Software User
Guide", Valid Time-Sliced Virtual GPU Configurations on a Single GPU.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

STEPS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Shape:
    """One size in which a card can be given.

    It takes `size` slots from one of `starts`, which ascend, and `counters` {counter: amount}. A shape of
    size 0 has no place on the axis. Shapes of different `mode` are never on a card together.
    """

    name: str
    size: int = 0
    starts: tuple[int, ...] = (0,)
    counters: Mapping[str, int] = field(default_factory=dict)
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A shape that a card has: its name, and the slot in which it starts."""

    shape: str
    start: int = 0


@dataclass(frozen=True)
class CardModel:
    """How a card can be divided: its number of slots, its counters {name: total}, its shapes by name."""

    slots: int
    counters: Mapping[str, int]
    shapes: Mapping[str, Shape]

    def divided(self, parts: Iterable[Part] = ()) -> "Division":
        """The card with these parts.

        Raises KeyError for a shape that the model does not have. Parts that overlap, or that are where their
        shape may not be, are taken as they are: they are what the card has.
        """
        division = Division(self, open_places=(1 << len(self.places)) - 1)
        for part in parts:
            division = division.with_part(part)
        return division

    @cached_property
    def places(self) -> tuple[Part, ...]:
        """Each shape at each of its starts. Sets of places are sets of bits, in this order."""
        return tuple(Part(shape.name, start) for shape in self.shapes.values() for start in shape.starts)

    @cached_property
    def places_of(self) -> Mapping[str, int]:
        """{shape: its places, as a set of bits}"""
        return {
            name: sum(1 << index for index, place in enumerate(self.places) if place.shape == name)
            for name in self.shapes
        }

    @cached_property
    def closed_by_place(self) -> Mapping[Part, int]:
        """{place: the places that a part at this place closes, as a set of bits}"""
        return {place: self.closed_by(place) for place in self.places}

    def closed_by(self, part: Part) -> int:
        """The places that overlap with a part, as a set of bits."""
        end = part.start + self.shapes[part.shape].size
        return sum(
            1 << index
            for index, place in enumerate(self.places)
            if max(place.start, part.start) < min(place.start + self.shapes[place.shape].size, end)
        )

    @cached_property
    def worth_of_place(self) -> Mapping[str, float]:
        """{shape: what one of its places is worth}: all places of a shape are worth as much as its size."""
        return {shape.name: shape.size / len(shape.starts) for shape in self.shapes.values()}

    @cached_property
    def largest_first(self) -> tuple[Shape, ...]:
        """The shapes in the order in which several are placed: those that have the fewest places first."""
        return tuple(
            sorted(self.shapes.values(), key=lambda shape: (-shape.size, len(shape.starts), shape.name))
        )


@dataclass(frozen=True)
class Division:
    """A card and its parts.

    `open_places` are the places that no part overlaps, as a set of bits. `used` are {counter: amount}.
    """

    model: CardModel
    parts: tuple[Part, ...] = ()
    open_places: int = 0
    used: Mapping[str, int] = field(default_factory=dict)

    def with_part(self, part: Part) -> "Division":
        """The card with one part more. Raises KeyError for a shape that the model does not have."""
        shape = self.model.shapes[part.shape]
        used = {**self.used}
        for counter, amount in shape.counters.items():
            used[counter] = used.get(counter, 0) + amount
        closed = self.model.closed_by_place.get(part)
        if closed is None:
            closed = self.model.closed_by(part)
        return Division(self.model, (*self.parts, part), self.open_places & ~closed, used)

    def without(self, part: Part) -> "Division":
        """The card with one part less. Raises ValueError where the card does not have the part."""
        parts = list(self.parts)
        parts.remove(part)
        return self.model.divided(parts)

    def starts(self, name: str) -> tuple[int, ...]:
        """The slots in which a part of this shape can start now, in ascending order."""
        return self._open_starts(name) if self._counted(self.model.shapes[name]) else ()

    def left(self, name: str) -> int:
        """How many parts of this one shape the card can still be given, if it is given no other."""
        return len(self.most_places(name))

    def most_places(self, name: str) -> tuple[Part, ...]:
        """The places of as many parts of this one shape as the card can still be given together.

        All are equally long, so taking the first place that is free each time gives the most.
        """
        shape = self.model.shapes[name]
        most = self._counted(shape)
        if not most or not shape.size:
            return (Part(name, shape.starts[0]),) * most
        places, end = list[Part](), 0
        for start in self._open_starts(name):
            if start >= end:
                places.append(Part(name, start))
                end = start + shape.size
        return tuple(places[:most])

    def best_start(self, name: str) -> int | None:
        """The start that leaves the most possible for others, or None where the shape does not fit.

        That is the start that closes the least worth of places. The last of equally good starts is taken,
        because the first slots of a card are where the largest shapes may be.
        """
        starts = self.starts(name)
        if len(starts) < 2:
            return starts[0] if starts else None
        return max(starts, key=lambda start: (self._worth_with(Part(name, start)), start))

    def place(self, wanted: Mapping[str, int]) -> tuple[Part, ...] | None:
        """Places for these numbers of parts {shape: number} together, or None where there are none.

        The largest are placed first, each at its best start. Where the rest does not fit then, other starts
        are tried, up to STEPS_MAX. Raises KeyError for a shape that the model does not have.
        """
        if any(self.left(name) < number for name, number in wanted.items()):
            return None
        names = tuple(
            shape.name for shape in self.model.largest_first for _ in range(wanted.get(shape.name, 0))
        )
        return _PartSearch(names).run(self)

    def _open_starts(self, name: str) -> tuple[int, ...]:
        places = self.open_places & self.model.places_of[name]
        starts = []
        while places:
            lowest = places & -places
            starts.append(self.model.places[lowest.bit_length() - 1].start)
            places ^= lowest
        return tuple(starts)

    def _worth_with(self, part: Part) -> float:
        open_places = self.open_places & ~self.model.closed_by_place[part]
        worth = self.model.worth_of_place
        return sum(
            (open_places & places).bit_count() * worth[name] for name, places in self.model.places_of.items()
        )

    def _counted(self, shape: Shape) -> int:
        """How many parts of the shape the counters and the mode of the card allow."""
        if any(self.model.shapes[part.shape].mode != shape.mode for part in self.parts):
            return 0
        limits = [
            (self.model.counters.get(counter, 0) - self.used.get(counter, 0)) // amount
            for counter, amount in shape.counters.items()
            if amount
        ]
        return max(0, min(limits, default=len(shape.starts)))


class _PartSearch:
    """Looks for places of several parts, without trying twice what was seen to fail."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._failed: set[tuple[int, int]] = set()
        self._steps = 0

    def run(self, division: Division, index: int = 0) -> tuple[Part, ...] | None:
        """The parts from `index` on, in the order of the names, or None."""
        if index == len(self._names):
            return ()
        state = (index, division.open_places)
        if state in self._failed or self._steps >= STEPS_MAX:
            return None
        for part in self._choices(division, self._names[index]):
            self._steps += 1
            rest = self.run(division.with_part(part), index + 1)
            if rest is not None:
                return (part, *rest)
        self._failed.add(state)
        return None

    @staticmethod
    def _choices(division: Division, name: str) -> Iterator[Part]:
        best = division.best_start(name)
        if best is None:
            return
        yield Part(name, best)
        for start in reversed(division.starts(name)):
            if start != best:
                yield Part(name, start)
