"""Cards that are divided in several sizes: what each size may take, what still fits, and which units that
gives. Pure.

A card has an *axis* of slots (GiB of frame buffer, memory slices) and *counters* (compute slices, engines,
virtual functions). A *shape* is one size in which the card can be given: it takes a run of slots from one
of its allowed starts, and some of each counter. Shapes of different modes exclude each other. What a card
can still give depends on where its shapes are, not only on how much is free: with two shapes of 12 GiB at
12 and at 24, a card of 48 GiB has 24 GiB free and no place for a shape of 24.

How the cards that are known can be divided is data. Mixed sizes of vGPUs (Ampere and later): the unit of
the axis is a GiB of frame buffer; the starts are those that the driver computes:
NVIDIA/open-gpu-kernel-modules 595.45.04, src/nvidia/src/kernel/virtualization/kernel_vgpu_mgr.c,
_kvgpumgrSetHeterogeneousResources. MIG: the unit is a memory slice; the starts are those of `nvidia-smi mig
-lgipp`.

Each place that a size may have on the card is an exact unit, so a claim's unit says where its part is.
Where a virtual function is needed for it, each place on each function is a unit. A consumer that holds an
amount in Placement without a unit has no place yet: the best places are counted as its own, and where there
is none, the card gives nothing more.

Sources: NVIDIA, "Multi-Instance GPU User Guide", Supported MIG Profiles; NVIDIA, "Virtual GPU Software User
Guide", Valid Time-Sliced Virtual GPU Configurations on a Single GPU.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from agent.device_names import VRAM_PREFIX, vgpu_in_place
from agent.driver import CardLayout, CardShape
from agent.shapes import Usages
from agent.tree import ProviderTree

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
        return self.overlapping(part.start, self.shapes[part.shape].size)

    def overlapping(self, start: int, size: int) -> int:
        """The places that overlap with so many slots, as a set of bits."""
        return sum(
            1 << index
            for index, place in enumerate(self.places)
            if max(place.start, start) < min(place.start + self.shapes[place.shape].size, start + size)
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
            return tuple(Part(name, start) for start in shape.starts[:1]) * most
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
        name = self._names[index]
        best = division.best_start(name)
        for start in sorted(division.starts(name), key=lambda start: (start != best, -start)):
            part = Part(name, start)
            self._steps += 1
            rest = self.run(division.with_part(part), index + 1)
            if rest is not None:
                return (part, *rest)
        self._failed.add(state)
        return None


VFS = "virtual functions"
VRAM = "MiB of VRAM"
COMPUTE = "compute slices"
MEDIA = "media engines"


@dataclass(frozen=True, slots=True)
class MixedSizes:
    """A card in mixed-size mode: the GiB of its axis, and {GiB of a vGPU: the starts that it may have}.

    A card whose functions have amounts of VRAM has no axis: `vram` are the MiB that they may have together,
    and `starts` is {MiB of a function: (0,)}.
    """

    slots: int
    starts: Mapping[int, tuple[int, ...]]
    vram: int = 0

    def model(self, sizes: Mapping[str, int], vfs: int) -> CardModel:
        """The card for these shapes {name: GiB} and a number of virtual functions. Each part takes one.

        Raises KeyError for a size that the card does not have in this mode.
        """
        shapes = {name: Shape(name, gib, self.starts[gib], {VFS: 1}) for name, gib in sizes.items()}
        return CardModel(self.slots, {VFS: vfs}, shapes)


def _every(step: int, end: int) -> tuple[int, ...]:
    return tuple(range(0, end, step))


_A100_80 = {
    4: tuple(sorted([*range(0, 80, 10), *range(6, 80, 10)])),
    8: (0, 12, 20, 32, 40, 52, 60, 72),
    10: _every(10, 80),
    16: (0, 24, 40, 64),
    20: _every(20, 80),
    40: (0, 40),
    80: (0,),
}

_A40 = {
    2: (0, 4, 6, 10, 12, 16, 18, 22, 24, 28, 30, 34, 36, 40, 42, 46),
    3: _every(3, 48),
    4: (0, 8, 12, 20, 24, 32, 36, 44),
    6: _every(6, 48),
    8: (0, 16, 24, 40),
    12: _every(12, 48),
    16: (0, 32),
    24: (0, 24),
    48: (0,),
}

MIXED_SIZES: Mapping[str, MixedSizes] = {
    "A16": MixedSizes(16, {1: _every(1, 16), 2: _every(2, 16), 4: _every(4, 16), 8: _every(8, 16), 16: (0,)}),
    "A40": MixedSizes(
        48,
        {
            1: (
                *(0, 2, 3, 5, 6, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23, 24),
                *(26, 27, 29, 30, 33, 35, 36, 38, 39, 41, 42, 44, 45, 47),
            ),
            **_A40,
        },
    ),
    "L40": MixedSizes(48, {1: (0, 5, 6, 11, 12, 17, 18, 23, 24, 29, 30, 35, 36, 41, 42, 47), **_A40}),
    "L40S": MixedSizes(48, {1: (0, 5, 6, 11, 12, 17, 18, 23, 24, 29, 30, 35, 36, 41, 42, 47), **_A40}),
    "L4": MixedSizes(
        24,
        {
            1: (0, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23),
            2: (0, 4, 6, 10, 12, 16, 18, 22),
            3: _every(3, 24),
            4: (0, 8, 12, 20),
            6: _every(6, 24),
            8: (0, 16),
            12: (0, 12),
            24: (0,),
        },
    ),
    "A100 40 GB": MixedSizes(
        40,
        {
            4: (0, 6, 10, 16, 20, 26, 30, 36),
            5: _every(5, 40),
            8: (0, 12, 20, 32),
            10: _every(10, 40),
            20: (0, 20),
            40: (0,),
        },
    ),
    "A100 80 GB": MixedSizes(80, _A100_80),
    "H100 80 GB": MixedSizes(80, {**_A100_80, 5: _every(5, 80)}),
}
"""{card: how it is divided in mixed-size mode}, one GPU of the card"""


def _mig(name: str, size: int, starts: tuple[int, ...], compute: int, media: int = 0) -> Shape:
    return Shape(name, size, starts, {COMPUTE: compute, **({MEDIA: media} if media else {})}, "MIG")


def _mig_card(slots: int, compute: int, *shapes: Shape) -> CardModel:
    return CardModel(slots, {COMPUTE: compute, MEDIA: 1}, {shape.name: shape for shape in shapes})


def _seven_slices(gib: int) -> CardModel:
    """A card of 7 compute and 8 memory slices of `gib` GiB."""
    return _mig_card(
        8,
        7,
        _mig(f"1g.{gib}gb", 1, _every(1, 7), 1),
        _mig(f"1g.{gib}gb+me", 1, _every(1, 7), 1, media=1),
        _mig(f"1g.{2 * gib}gb", 2, (0, 2, 4, 6), 1),
        _mig(f"2g.{2 * gib}gb", 2, (0, 2, 4), 2),
        _mig(f"3g.{4 * gib}gb", 4, (0, 4), 3),
        _mig(f"4g.{4 * gib}gb", 4, (0,), 4),
        _mig(f"7g.{8 * gib}gb", 8, (0,), 7, media=1),
    )


MIG: Mapping[str, CardModel] = {
    "A100 40 GB": _seven_slices(5),
    "A100 80 GB": _seven_slices(10),
    "H100 80 GB": _seven_slices(10),
    "A30": _mig_card(
        4,
        4,
        _mig("1g.6gb", 1, _every(1, 4), 1),
        _mig("1g.6gb+me", 1, _every(1, 4), 1, media=1),
        _mig("2g.12gb", 2, (0, 2), 2),
        _mig("2g.12gb+me", 2, (0, 2), 2, media=1),
        _mig("4g.24gb", 4, (0,), 4, media=1),
    ),
}
"""{card: how MIG divides it}"""


Unit = tuple[str, str]
"""(resource class, exact unit)"""


def layout_of(
    model: CardModel, classes: Mapping[str, str], unit_at: Callable[[str, int], str]
) -> tuple[CardLayout, Mapping[str, int]]:
    """How a driver describes the card, and {resource class: how many of it the empty card can give}.

    `classes` are {resource class: shape}, each of one class; `unit_at(class, start)` names the exact unit.
    Raises KeyError for a shape that the model does not have.
    """
    empty = model.divided()
    shapes = {name: model.shapes[shape] for name, shape in classes.items()}
    layout = {
        name: CardShape(
            shape.size, {unit_at(name, start): start for start in shape.starts}, shape.counters, shape.mode
        )
        for name, shape in shapes.items()
    }
    return CardLayout(model.slots, model.counters, layout), {
        name: empty.left(shape) for name, shape in classes.items()
    }


@dataclass(frozen=True)
class Card:
    """A card whose shapes are resource classes: the start of each unit, and the units at each place.

    `function_of` {unit: the virtual function that it takes}, empty for a card whose parts take none. `sizes`
    are those of `CardLayout`.
    """

    model: CardModel
    part_of: Mapping[Unit, Part]
    units_at: Mapping[Part, tuple[str, ...]]
    function_of: Mapping[Unit, str]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The virtual functions that parts can take."""
        return tuple(dict.fromkeys(self.function_of.values()))

    @cached_property
    def units(self) -> frozenset[str]:
        """The exact units of all classes."""
        return frozenset(unit for _, unit in self.part_of)

    @classmethod
    def of(cls, layout: CardLayout) -> "Card":
        """The card that a driver describes."""
        shapes = tuple(
            (
                name,
                shape.size,
                tuple(sorted({*shape.units.values()})),
                tuple(sorted(shape.counters.items())),
                shape.mode,
            )
            for name, shape in layout.shapes.items()
        )
        parts = {
            (name, unit): Part(name, start)
            for name, shape in layout.shapes.items()
            for unit, start in shape.units.items()
        }
        units_at: dict[Part, list[str]] = {}
        for (_, unit), part in parts.items():
            units_at.setdefault(part, []).append(unit)
        return cls(
            _model(layout.slots, tuple(sorted(layout.counters.items())), shapes),
            parts,
            {part: tuple(units) for part, units in units_at.items()},
            {
                (name, unit): function
                for name, shape in layout.shapes.items()
                for unit, function in shape.functions.items()
            },
            layout.sizes,
        )

    def stock(
        self,
        taken: Collection[Unit],
        used: Mapping[str, int],
        withheld: Collection[Unit] = (),
        removed: Iterable[str] = (),
    ) -> "CardStock":
        """What is left beside the `taken` units, where {class: amount} is `used`, units or not.

        A function with a `withheld` unit gives nothing, and neither does a card that has no functions.
        `removed` are units of sizes that the card does not have any more: the unit says function, type and
        place. One whose function or size is not known leaves nothing.
        """
        parts = [self.part_of[unit] for unit in taken if unit in self.part_of]
        division = self.model.divided(parts)
        missing = any(unit in self.part_of for unit in withheld)
        full = missing and not self.function_of
        busy = {self.function_of[unit] for unit in (*taken, *withheld) if unit in self.function_of}
        is_vram = VRAM in self.model.counters
        for unit in removed:
            function, type_id, place = vgpu_in_place(unit) or (unit, "", 0)
            mib = type_id.removeprefix(VRAM_PREFIX)
            size = self.sizes.get(type_id.rpartition("-")[2])
            if is_vram:
                size = int(mib) if mib.isdecimal() else None
            if size is None or function not in self.functions:
                full = True
                continue
            busy.add(function)
            counted = {**division.used, VFS: division.used.get(VFS, 0) + 1}
            places = division.open_places
            if is_vram:
                counted[VRAM] = counted.get(VRAM, 0) + size
            else:
                places &= ~self.model.overlapping(place, size)
            division = replace(division, open_places=places, used=counted)
        homeless = 0
        for shape in self.model.largest_first:
            without_unit = used.get(shape.name, 0) - sum(part.shape == shape.name for part in parts)
            for _ in range(without_unit):
                start = division.best_start(shape.name)
                if start is None:
                    full = True
                    break
                division = division.with_part(Part(shape.name, start))
                homeless += 1
        free = tuple(function for function in self.functions if function not in busy)
        return CardStock(self, division, full, free, max(0, len(free) - homeless), missing)


_Items = tuple[tuple[str, int], ...]
_ShapeKey = tuple[str, int, tuple[int, ...], _Items, str]


@lru_cache(maxsize=64)
def _model(slots: int, counters: _Items, shapes: tuple[_ShapeKey, ...]) -> CardModel:
    """The model, the same object for equal cards: what it works out once takes milliseconds."""
    return CardModel(
        slots,
        dict(counters),
        {name: Shape(name, size, starts, dict(used), mode) for name, size, starts, used, mode in shapes},
    )


@dataclass(frozen=True)
class CardStock:
    """A card beside all that is on it; a `full` one gives nothing more.

    `functions` are the virtual functions that no unit takes, `spare` how many of them parts can still have.
    `missing`: some of the card, or all of it, is withheld from guests.
    """

    card: Card
    division: Division
    full: bool = False
    functions: tuple[str, ...] = ()
    spare: int = 0
    missing: bool = False

    @property
    def classes(self) -> Set[str]:
        """The resource classes of the card."""
        return self.card.model.shapes.keys()

    @cached_property
    def left(self) -> Mapping[str, int]:
        """{class: how many more the card can give, if it gives no more of any other}"""
        return {name: len(self._places(name)) for name in self.classes}

    def _places(self, name: str) -> tuple[Part, ...]:
        """The places of as many parts of the class as the card can still give together."""
        places = () if self.full else self.division.most_places(name)
        return places[: self._fewer(len(places))]

    def _fewer(self, number: int) -> int:
        return min(number, self.spare) if self.card.function_of else number

    def units(self, name: str) -> tuple[str, ...]:
        """As many free units of the class as are `left`, which a consumer can have together."""
        return tuple(self._units(self._places(name)))

    def together(
        self, wanted: Mapping[str, int], preferred: Iterable[Unit] = ()
    ) -> Mapping[str, tuple[str, ...]] | None:
        """Units for these amounts {class: amount} of the card's classes together; None where there are none.

        Those `preferred` are taken as far as they are free and asked for.
        """
        number = sum(wanted.values())
        if number and (self.full or self._fewer(number) < number):
            return None
        division, given = self.division, dict[str, Part]()
        functions = set(self.functions)
        for unit in preferred:
            part, function = self.card.part_of.get(unit), self.card.function_of.get(unit)
            asked = 0 if part is None else wanted.get(part.shape, 0) - _count(given.values(), part.shape)
            is_free = function is None or function in functions
            if part is not None and asked > 0 and is_free and part.start in division.starts(part.shape):
                given[unit[1]] = part
                division = division.with_part(part)
                functions.discard(function or "")
        rest = {name: amount - _count(given.values(), name) for name, amount in wanted.items()}
        placed = division.place(rest)
        if placed is None:
            return self.together(wanted) if given else None
        parts = (*given.values(), *placed)
        units = (*given, *self._units(placed, functions))
        return {
            name: tuple(unit for unit, part in zip(units, parts, strict=True) if part.shape == name)
            for name, amount in wanted.items()
            if amount
        }

    def _units(self, parts: Iterable[Part], functions: Collection[str] | None = None) -> Iterator[str]:
        """A unit for each part, each on a function of its own where the parts take functions."""
        free = set(self.functions if functions is None else functions)
        for part in parts:
            units = self.card.units_at[part]
            function_of = self.card.function_of
            unit = next((unit for unit in units if function_of.get((part.shape, unit)) in free), units[0])
            free.discard(function_of.get((part.shape, unit), ""))
            yield unit


def _count(parts: Iterable[Part], name: str) -> int:
    return sum(part.shape == name for part in parts)


def reserve_places(tree: ProviderTree, left: Usages, used: Usages) -> ProviderTree:
    """The tree with so much reserved that of each class of a card no more is offered than it can still give.

    `left` {provider uuid: {class: number}} are cards, `used` of the same form what consumers have. So one
    guest is offered each amount up to what is left; `max_unit` stays as it is, because Placement checks it
    also where a guest that has more is written again.
    """
    for uuid, left_here in left.items():
        provider = tree.get(uuid)
        if provider is not None:
            in_use = used.get(uuid, {})
            inventories = {
                name: replace(
                    inventory,
                    reserved=max(inventory.reserved, inventory.total - in_use.get(name, 0) - left_here[name]),
                )
                if name in left_here
                else inventory
                for name, inventory in provider.inventories.items()
            }
            tree = tree.with_provider(replace(provider, inventories=inventories))
    return tree
