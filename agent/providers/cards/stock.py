"""What a card can still give beside the parts that consumers have, as amounts and as exact units. Pure.

Each place that a size may have on the card is an exact unit, so a claim's unit says where its part is. Where
a virtual function is needed for it, each place on each function is a unit. A consumer that holds an amount in
Placement without a unit has no place yet: the best places are counted as its own, and where there is none,
the card gives nothing more.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from agent.driver import CardLayout, CardShape
from agent.providers.cards.division import CardModel, Division, Part, Shape
from agent.shapes import Usages
from agent.tree import Provider, ProviderTree

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

    `function_of` {unit: the virtual function that it takes}, empty for a card whose parts take none.
    """

    model: CardModel
    part_of: Mapping[Unit, Part]
    units_at: Mapping[Part, tuple[str, ...]]
    function_of: Mapping[Unit, str]

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The virtual functions that parts can take."""
        return tuple(dict.fromkeys(self.function_of.values()))

    @classmethod
    def of(cls, layout: CardLayout) -> "Card":
        """The card that a driver describes."""
        shapes = tuple(
            (name, shape.size, tuple(sorted({*shape.units.values()})), _items(shape.counters), shape.mode)
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
            _model(layout.slots, _items(layout.counters), shapes),
            parts,
            {part: tuple(units) for part, units in units_at.items()},
            {
                (name, unit): function
                for name, shape in layout.shapes.items()
                for unit, function in shape.functions.items()
            },
        )

    def stock(
        self, taken: Collection[Unit], used: Mapping[str, int], withheld: Collection[Unit] = ()
    ) -> "CardStock":
        """What is left beside the `taken` units, where {class: amount} is `used`, units or not.

        A function with a `withheld` unit gives nothing, and neither does a card that has no functions.
        """
        parts = [self.part_of[unit] for unit in taken if unit in self.part_of]
        division = self.model.divided(parts)
        missing = any(unit in self.part_of for unit in withheld)
        full = missing and not self.function_of
        busy = {self.function_of[unit] for unit in (*taken, *withheld) if unit in self.function_of}
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


def _items(counters: Mapping[str, int]) -> _Items:
    return tuple(sorted(counters.items()))


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
            unit = next((unit for unit in units if self._function(part, unit) in free), units[0])
            free.discard(self._function(part, unit) or "")
            yield unit

    def _function(self, part: Part, unit: str) -> str | None:
        return self.card.function_of.get((part.shape, unit))


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
            tree = tree.with_provider(_reserved(provider, left_here, used.get(uuid, {})))
    return tree


def _reserved(provider: Provider, left: Mapping[str, int], used: Mapping[str, int]) -> Provider:
    inventories = {
        name: replace(
            inventory,
            reserved=max(inventory.reserved, inventory.total - used.get(name, 0) - left[name]),
        )
        if name in left
        else inventory
        for name, inventory in provider.inventories.items()
    }
    return replace(provider, inventories=inventories)
