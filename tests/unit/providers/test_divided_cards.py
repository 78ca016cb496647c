"""A card's division against a packer that tries every way."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product

import pytest

from agent.driver import CardLayout, CardShape
from agent.providers.divided_cards import (
    MIG,
    MIXED_SIZES,
    VFS,
    VRAM,
    Card,
    CardModel,
    Division,
    Part,
    Shape,
    layout_of,
    reserve_places,
)
from agent.tree import Inventory, Provider, ProviderTree


def same_size(frame_buffer: int, sizes: Mapping[str, int], most: Mapping[str, int]) -> CardModel:
    """A card in same-size mode: vGPUs of one size exclude those of every other.

    `frame_buffer` is the card's GiB, `sizes` {shape: GiB}, `most` {shape: how many the driver allows}.
    """
    shapes = {name: Shape(name, counters={f"{gib} GiB": 1}, mode=f"{gib} GiB") for name, gib in sizes.items()}
    counters = {
        f"{gib} GiB": min(most.get(name, frame_buffer // gib), frame_buffer // gib)
        for name, gib in sizes.items()
    }
    return CardModel(frame_buffer, counters, shapes)


def mixed(card: str, vfs: int = 16) -> CardModel:
    table = MIXED_SIZES[card]
    return table.model({f"{gib}Q": gib for gib in table.starts}, vfs)


ARRIVALS = {
    "MIG A100": 14_000,
    "MIG H100": 14_000,
    "MIG A30": 12_000,
    "A100 mixed": 7_000,
    "H100 mixed": 1_000,
    "A40 mixed": 1_000,
    "L4 mixed": 1_000,
}
"""{card: guests that come and go}: 100 000 claims and releases, fewer where trying every way takes long"""

CARDS: Mapping[str, CardModel] = {
    "MIG A100": MIG["A100 40 GB"],
    "MIG H100": MIG["H100 80 GB"],
    "MIG A30": MIG["A30"],
    "A100 mixed": mixed("A100 40 GB"),
    "H100 mixed": mixed("H100 80 GB"),
    "A40 mixed": mixed("A40", 32),
    "L4 mixed": mixed("L4", 32),
}


def slots_of(model: CardModel, parts: Sequence[Part]) -> list[int]:
    return [part.start + slot for part in parts for slot in range(model.shapes[part.shape].size)]


def within_counters(model: CardModel, names: Sequence[str]) -> bool:
    used: Counter[str] = Counter()
    for name in names:
        used.update(model.shapes[name].counters)
    return all(amount <= model.counters[counter] for counter, amount in used.items())


class Packer:
    """Whether a card can hold shapes at all, by trying each start of each, or only beside what it has."""

    def __init__(self, model: CardModel) -> None:
        self._model = model
        self._search = cache(self._can_pack)

    def can_pack(self, names: Sequence[str], taken: int = 0) -> bool:
        model = self._model
        if sum(model.shapes[name].size for name in names) > model.slots - taken.bit_count():
            return False
        order = sorted(
            names, key=lambda name: (-model.shapes[name].size, len(model.shapes[name].starts), name)
        )
        return self._search(tuple(order), taken, 0)

    def _can_pack(self, names: tuple[str, ...], taken: int, first: int) -> bool:
        if not names:
            return True
        shape = self._model.shapes[names[0]]
        for start in shape.starts:
            slots = ((1 << shape.size) - 1) << start
            alike = len(names) > 1 and names[1] == names[0]
            free = start >= first and not slots & taken
            if free and self._search(names[1:], taken | slots, start if alike else 0):
                return True
        return False


def most_of(model: CardModel, name: str, parts: Sequence[Part]) -> int:
    """How many of one shape fit beside the parts: for each slot, begin one there or do not."""
    shape = model.shapes[name]
    taken = set(slots_of(model, parts))
    most = [0] * (model.slots + 1)
    for slot in reversed(range(model.slots)):
        most[slot] = most[slot + 1]
        if slot in shape.starts and not taken & set(range(slot, slot + shape.size)):
            most[slot] = max(most[slot], 1 + most[slot + shape.size])
    there = [part.shape for part in parts]
    return max(n for n in range(most[0] + 1) if n == 0 or within_counters(model, [*there, *[name] * n]))


def arrivals(model: CardModel, number: int, seed: int, load: float) -> Iterator[tuple[float, float, str]]:
    """(when a guest comes, when it leaves, its shape): small shapes are asked for more often."""
    draw = random.Random(seed)
    names = sorted(model.shapes)
    weights = [model.shapes[name].size ** -0.7 for name in names]
    now = 0.0
    for _ in range(number):
        now += draw.expovariate(1)
        yield now, now + draw.expovariate(1 / load), draw.choices(names, weights)[0]


@pytest.mark.parametrize("card", sorted(CARDS))
def test_random_claims_and_releases_against_a_packer_that_tries_all(card: str) -> None:
    """Nothing impossible is offered, nothing is given twice, and 95 % of what can be fitted is.

    The optimal packer may place all guests anew at each arrival, which a card with running guests cannot.
    """
    model = CARDS[card]
    packer = Packer(model)
    can_hold = cache(lambda names: within_counters(model, names) and packer.can_pack(names))
    division = model.divided()
    leaving: list[tuple[float, str, int]] = []
    leaving_optimal: list[tuple[float, str]] = []
    fitted = optimal = 0
    compared = card != "A40 mixed"  # 1 GiB has 30 starts there: trying every way does not end
    checked = random.Random(5)
    for now, end, name in arrivals(model, ARRIVALS[card], seed=17, load=6):
        while leaving and leaving[0][0] <= now:
            _, gone, start = heapq.heappop(leaving)
            parts = list(division.parts)
            parts.remove(Part(gone, start))
            division = model.divided(parts)
        while leaving_optimal and leaving_optimal[0][0] <= now:
            heapq.heappop(leaving_optimal)
        start_now = division.best_start(name)
        assert (start_now is not None) == (division.left(name) > 0)
        if checked.random() < 0.05:
            for each in model.shapes:
                assert division.left(each) == most_of(model, each, division.parts)
        if start_now is not None:
            assert start_now in model.shapes[name].starts
            division = division.with_part(Part(name, start_now))
            slots = slots_of(model, division.parts)
            assert len(slots) == len(set(slots))
            assert max(slots) < model.slots
            assert within_counters(model, [part.shape for part in division.parts])
            heapq.heappush(leaving, (end, name, start_now))
            fitted += 1
        if compared and can_hold(tuple(sorted([*(held for _, held in leaving_optimal), name]))):
            heapq.heappush(leaving_optimal, (end, name))
            optimal += 1
    assert fitted >= 0.95 * optimal
    assert fitted < ARRIVALS[card]


@pytest.mark.parametrize("card", sorted(CARDS))
def test_several_shapes_for_one_guest_are_placed_together_or_not_at_all(card: str) -> None:
    model = CARDS[card]
    packer = Packer(model)
    draw = random.Random(3)
    refused = 0
    for _ in range(150):
        division = model.divided()
        for name in draw.choices(sorted(model.shapes), k=draw.randint(0, 3)):
            starts = division.starts(name)
            if starts:
                division = division.with_part(Part(name, draw.choice(starts)))
        wanted = Counter(draw.choices(sorted(model.shapes), k=draw.randint(1, 4)))
        placed = division.place(wanted)
        taken = sum(1 << slot for slot in slots_of(model, division.parts))
        names = [part.shape for part in division.parts]
        possible = within_counters(model, [*names, *wanted.elements()]) and packer.can_pack(
            list(wanted.elements()), taken
        )
        assert (placed is not None) == possible
        refused += not possible
        if placed is not None:
            assert Counter(part.shape for part in placed) == wanted
            slots = slots_of(model, [*division.parts, *placed])
            assert len(slots) == len(set(slots))
    assert 0 < refused < 150


def with_parts(model: CardModel, *parts: tuple[str, int]) -> Division:
    return model.divided(Part(name, start) for name, start in parts)


def test_an_a40_has_no_third_place_for_16_gib() -> None:
    a40 = mixed("A40", 32)
    assert a40.divided().left("16Q") == 2
    assert with_parts(a40, ("16Q", 0), ("16Q", 32)).left("16Q") == 0


def test_24_gib_that_are_free_are_no_place_for_24_gib() -> None:
    assert with_parts(mixed("A40", 32), ("12Q", 12), ("12Q", 24)).left("24Q") == 0


def test_an_a100_with_8_gib_at_12_has_one_place_for_20() -> None:
    a100 = mixed("A100 40 GB")
    assert with_parts(a100, ("8Q", 12)).starts("20Q") == (20,)
    assert with_parts(a100, ("8Q", 12), ("8Q", 32)).left("20Q") == 0


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ((("1g.5gb", 0), ("1g.5gb", 4)), {"3g.20gb": 0, "4g.20gb": 0}),
        ((("2g.10gb", 0), ("2g.10gb", 4)), {"3g.20gb": 0}),
        ((("3g.20gb", 0),), {"3g.20gb": 1, "4g.20gb": 0}),
        ((("3g.20gb", 4),), {"3g.20gb": 1, "4g.20gb": 1}),
        ((("1g.5gb", 6),), {"7g.40gb": 0, "4g.20gb": 1, "3g.20gb": 1, "2g.10gb": 3}),
        ((("3g.20gb", 0), ("3g.20gb", 4)), {"1g.5gb": 0}),
        ((("1g.5gb+me", 3),), {"1g.5gb+me": 0, "7g.40gb": 0}),
    ],
)
def test_what_mig_still_gives(parts: tuple[tuple[str, int], ...], left: Mapping[str, int]) -> None:
    division = with_parts(MIG["A100 40 GB"], *parts)
    assert {name: division.left(name) for name in left} == left


def test_the_request_that_the_driver_fails_when_it_chooses_the_places() -> None:
    """NVIDIA's guide: `-cgi 19,19,14,9` fails on an empty A100, the same shapes in another order succeed."""
    wanted = {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert MIG["A100 40 GB"].divided().place(wanted) is not None


def test_a_small_slice_leaves_the_half_that_large_ones_need() -> None:
    division = MIG["A100 40 GB"].divided()
    start = division.best_start("1g.5gb")
    assert start is not None
    after = division.with_part(Part("1g.5gb", start))
    assert after.left("4g.20gb") == 1
    assert after.left("2g.10gb") == 3


def test_sizes_exclude_each_other_where_a_card_has_one_size() -> None:
    m60 = same_size(8, {"1Q": 1, "1B": 1, "2Q": 2, "8Q": 8}, {"1B": 8})
    empty = m60.divided()
    assert {name: empty.left(name) for name in m60.shapes} == {"1Q": 8, "1B": 8, "2Q": 4, "8Q": 1}
    one = empty.with_part(Part("1Q"))
    assert {name: one.left(name) for name in m60.shapes} == {"1Q": 7, "1B": 7, "2Q": 0, "8Q": 0}


def test_a_part_that_is_where_it_may_not_be_takes_its_slots() -> None:
    division = with_parts(mixed("A100 40 GB"), ("20Q", 10))
    assert division.left("20Q") == 0
    assert division.starts("10Q") == (0, 30)


def test_a_shape_that_the_model_does_not_have_is_an_error() -> None:
    model = CardModel(4, {}, {"a": Shape("a", 2, (0, 2))})
    with pytest.raises(KeyError):
        model.divided([Part("b")])
    with pytest.raises(KeyError):
        model.divided().left("b")


MODELS = {
    "A100 mixed": MIXED_SIZES["A100 40 GB"].model({"4": 4, "8": 8, "10": 10, "20": 20}, 16),
    "A30 MIG": MIG["A30"],
    "A100 MIG": MIG["A100 40 GB"],
}


def card_of(model: CardModel) -> Card:
    layout, _ = layout_of(model, {name: name for name in model.shapes}, lambda name, at: f"{name}@{at}")
    return Card.of(layout)


def fits(model: CardModel, parts: Sequence[tuple[str, int]]) -> bool:
    """Whether these (shape, start) can be on the card together."""
    slots = [start + slot for name, start in parts for slot in range(model.shapes[name].size)]
    counted = {
        counter: sum(model.shapes[name].counters.get(counter, 0) for name, _ in parts)
        for counter in model.counters
    }
    return len(slots) == len(set(slots)) and all(counted[each] <= model.counters[each] for each in counted)


def part(unit: str) -> tuple[str, int]:
    name, _, start = unit.rpartition("@")
    return name, int(start)


def random_parts(model: CardModel, dice: random.Random) -> list[tuple[str, int]]:
    parts: list[tuple[str, int]] = []
    for _ in range(dice.randint(0, 5)):
        name = dice.choice(sorted(model.shapes))
        new = (name, dice.choice(model.shapes[name].starts))
        if fits(model, [*parts, new]):
            parts.append(new)
    return parts


def most(model: CardModel, name: str, parts: Sequence[tuple[str, int]]) -> int:
    places = [(name, start) for start in model.shapes[name].starts if fits(model, [*parts, (name, start)])]
    return max(
        number
        for number in range(min(len(places), 10) + 1)
        if any(fits(model, [*parts, *chosen]) for chosen in combinations(places, number))
    )


@pytest.mark.parametrize("name", sorted(MODELS))
def test_units_are_as_many_as_there_is_room_for_and_can_be_had_together(name: str) -> None:
    model, dice = MODELS[name], random.Random(name)
    card = card_of(model)
    for _ in range(60):
        parts = random_parts(model, dice)
        taken = [(shape, f"{shape}@{start}") for shape, start in parts]
        used = {shape: sum(each == shape for each, _ in parts) for shape in model.shapes}
        stock = card.stock(taken, used)
        for shape in model.shapes:
            units = [part(unit) for unit in stock.units(shape)]
            assert len(units) == stock.left[shape] == most(model, shape, parts)
            assert fits(model, [*parts, *units]) and {each for each, _ in units} <= {shape}


@pytest.mark.parametrize("name", ["A30 MIG", "A100 MIG"])
def test_sizes_are_given_together_if_there_is_any_way(name: str) -> None:
    model, dice = MODELS[name], random.Random(name)
    card = card_of(model)
    for _ in range(60):
        parts = random_parts(model, dice)
        stock = card.stock([(shape, f"{shape}@{start}") for shape, start in parts], {})
        one, two = dice.sample(sorted(model.shapes), 2)
        found = stock.together({one: 1, two: 1})
        starts = product(model.shapes[one].starts, model.shapes[two].starts)
        possible = any(fits(model, [*parts, (one, first), (two, second)]) for first, second in starts)
        assert (found is not None) is possible
        if found is not None:
            chosen = [part(unit) for units in found.values() for unit in units]
            assert sorted(each for each, _ in chosen) == sorted([one, two]) and fits(model, [*parts, *chosen])


def test_an_amount_without_a_unit_takes_the_best_place_and_an_impossible_one_the_whole_card() -> None:
    card = card_of(MIG["A30"])
    assert card.stock([], {"2g.12gb": 1}).left == card.stock([("2g.12gb", "2g.12gb@2")], {"2g.12gb": 1}).left
    over = card.stock([], {"4g.24gb": 1, "1g.6gb": 1})
    assert set(over.left.values()) == {0} and over.units("1g.6gb") == ()
    assert over.together({"1g.6gb": 1}) is None and over.together({"1g.6gb": 0}) == {}


def test_units_that_the_consumer_has_are_given_again() -> None:
    stock = card_of(MIG["A30"]).stock([], {})
    assert stock.together({"1g.6gb": 2}, [("1g.6gb", "1g.6gb@0"), ("2g.12gb", "2g.12gb@2")]) == {
        "1g.6gb": ("1g.6gb@0", "1g.6gb@1")
    }


def test_a_withheld_unit_withholds_the_card() -> None:
    card = card_of(MIG["A30"])
    assert card.stock([], {}, [("1g.6gb", "1g.6gb@0")]).full
    assert not card.stock([], {}, [("PGPU", "0000:84:00.0")]).full


def test_so_much_is_reserved_that_no_more_is_offered_than_is_left() -> None:
    uuid = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00"
    inventories = {"A": Inventory(4), "B": Inventory(2), "DISK": Inventory(9, reserved=1)}
    tree = ProviderTree([Provider(uuid, "card", None, inventories)])
    reserved = reserve_places(tree, {uuid: {"A": 1, "B": 0}, "gone": {"A": 1}}, {uuid: {"A": 2}})
    assert reserved[uuid].inventories == {
        "A": Inventory(4, reserved=1),
        "B": Inventory(2, reserved=2),
        "DISK": Inventory(9, reserved=1),
    }


@pytest.mark.parametrize("name", sorted(MODELS))
def test_one_guest_is_offered_each_amount_that_the_card_can_give_and_keeps_what_it_has(name: str) -> None:
    """By Placement's rule: at most max_unit, and beside the others at most the total less the reserved."""
    model, dice = MODELS[name], random.Random(f"amounts {name}")
    card, uuid = card_of(model), "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00"
    totals = {shape: model.divided().left(shape) for shape in model.shapes}
    inventories = {shape: Inventory(total, max_unit=total) for shape, total in totals.items()}
    tree = ProviderTree([Provider(uuid, "card", None, inventories)])
    for _ in range(40):
        parts = random_parts(model, dice)
        used = {shape: sum(each == shape for each, _ in parts) for shape in model.shapes}
        stock = card.stock([(shape, f"{shape}@{start}") for shape, start in parts], used)
        reserved = reserve_places(tree, {uuid: stock.left}, {uuid: used})[uuid]
        for shape, inventory in reserved.inventories.items():
            room = min(inventory.max_unit, inventory.total - inventory.reserved - used[shape])
            assert max(0, room) == most(model, shape, parts), "what one more guest can have"
            # Placement checks an allocation anew when it is written again, as in each move.
            assert used[shape] <= inventory.max_unit
            assert used[shape] <= inventory.total - inventory.reserved


def test_a_shape_that_the_card_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        layout_of(MIG["A30"], {"CUSTOM": "9g"}, lambda name, at: f"{name}@{at}")


FUNCTIONS = ("vf1", "vf2", "vf3")


def card_of_functions(model: CardModel, functions: Sequence[str] = FUNCTIONS) -> Card:
    """The card with a unit for each place on each function."""
    shapes = {
        name: CardShape(
            shape.size,
            {f"{function}/{name}@{start}": start for function in functions for start in shape.starts},
            functions={f"{each}/{name}@{start}": each for each in functions for start in shape.starts},
        )
        for name, shape in model.shapes.items()
    }
    return Card.of(CardLayout(model.slots, {}, shapes))


def function(unit: str) -> str:
    return unit.partition("/")[0]


@pytest.mark.parametrize("seed", range(3))
def test_each_unit_has_a_function_of_its_own(seed: int) -> None:
    model, dice = MODELS["A100 mixed"], random.Random(seed)
    card = card_of_functions(model)
    for _ in range(40):
        parts = random_parts(model, dice)[: len(FUNCTIONS)]
        on = dice.sample(FUNCTIONS, len(parts))
        taken = [(name, f"{vf}/{name}@{start}") for vf, (name, start) in zip(on, parts, strict=True)]
        free = set(FUNCTIONS) - set(on)
        stock = card.stock(taken, {name: sum(each == name for each, _ in parts) for name in model.shapes})
        for name in model.shapes:
            units = stock.units(name)
            assert len(units) == stock.left[name] == min(most(model, name, parts), len(free))
            assert len({function(unit) for unit in units}) == len(units) and {*map(function, units)} <= free
        one, two = dice.sample(sorted(model.shapes), 2)
        found = stock.together({one: 1, two: 1})
        starts = product(model.shapes[one].starts, model.shapes[two].starts)
        possible = any(fits(model, [*parts, (one, first), (two, second)]) for first, second in starts)
        assert (found is not None) is (possible and len(free) >= 2)
        if found is not None:
            assert len({function(unit) for units in found.values() for unit in units}) == 2


def test_a_withheld_function_gives_nothing_and_its_card_the_rest() -> None:
    card = card_of_functions(MODELS["A100 mixed"])
    withheld = [unit for unit, vf in card.function_of.items() if vf == "vf2"]
    stock = card.stock([("20", "vf1/20@0")], {"20": 1}, withheld)
    assert stock.left == {"4": 1, "8": 1, "10": 1, "20": 1}
    assert function(stock.units("20")[0]) == "vf3"
    assert not any(card.stock([], {}, card.function_of).left.values())


@pytest.mark.parametrize("seed", range(3))
def test_vram_of_a_size_that_was_removed_takes_its_function_and_its_amount(seed: int) -> None:
    dice, functions = random.Random(seed), [f"0000:03:00.{number}" for number in range(1, 8)]
    for _ in range(60):
        here, sizes = dice.sample(functions, dice.randint(2, 7)), dice.sample((1, 2, 3, 5, 8), 3)
        budget, kept = dice.randint(8, 20), sizes[: dice.randint(1, 2)]
        layout = {
            f"{size}": CardShape(
                0, units, {VFS: 1, VRAM: size}, functions={unit: unit[:12] for unit in units}
            )
            for size in kept
            for units in ({f"{each}/vram-{size}@0": 0 for each in here},)
        }
        card = Card.of(CardLayout(0, {VFS: len(here), VRAM: budget}, layout))
        held: list[tuple[str, int]] = []
        for each in dice.sample(here, dice.randint(0, len(here))):
            size = dice.choice(sizes)
            if sum(mib for _, mib in held) + size <= budget:
                held.append((each, size))
        taken = [(f"{mib}", f"{each}/vram-{mib}@0") for each, mib in held if mib in kept]
        used = Counter(name for name, _ in taken)
        removed = [f"{each}/vram-{mib}@0" for each, mib in held if mib not in kept]
        stock = card.stock(taken, used, (), removed)
        free, rest = {*here} - {each for each, _ in held}, budget - sum(mib for _, mib in held)
        for size in kept:
            units = stock.units(f"{size}")
            assert len(units) == stock.left[f"{size}"] == min(len(free), rest // size)
            assert {unit[:12] for unit in units} <= free and len({unit[:12] for unit in units}) == len(units)
        found = stock.together({f"{size}": 1 for size in kept})
        assert (found is not None) is (len(free) >= len(kept) and rest >= sum(kept))
        # Whose function is not of the card, or that is no amount: how much it takes is not known.
        for unit in (
            "0000:04:00.1/vram-1@0",
            f"{here[0]}/nvidia-471@0",
            "5e0b9f3c-8c1e-4a5b-9d0f-0c2d9c3f7a11",
        ):
            assert not any(card.stock(taken, used, (), [*removed, unit]).left.values())


@pytest.mark.parametrize("name", sorted(MIXED_SIZES))
def test_a_size_that_was_removed_leaves_as_much_as_one_that_the_card_has(name: str) -> None:
    dice, functions = random.Random(name), [f"0000:84:00.{number}" for number in range(1, 8)]
    model, gibs = mixed(name, len(functions)), {str(gib): gib for gib in MIXED_SIZES[name].starts}

    def card(sizes: Sequence[int], known: Mapping[str, int]) -> Card:
        shapes = {
            f"{gib}Q": CardShape(
                gib,
                {
                    f"{each}/nvidia-{gib}@{at}": at
                    for each in functions
                    for at in model.shapes[f"{gib}Q"].starts
                },
                {VFS: 1},
                functions={
                    f"{each}/nvidia-{gib}@{at}": each
                    for each in functions
                    for at in model.shapes[f"{gib}Q"].starts
                },
            )
            for gib in sizes
        }
        return Card.of(CardLayout(model.slots, model.counters, shapes, known))

    whole = card([*gibs.values()], {})
    for _ in range(12):
        parts = random_parts(model, dice)[: len(functions)]
        on = dice.sample(functions, len(parts))
        held = [(shape, f"{vf}/nvidia-{shape[:-1]}@{at}") for vf, (shape, at) in zip(on, parts, strict=True)]
        kept = dice.sample([*gibs.values()], dice.randint(1, len(gibs) - 1))
        now = card(kept, gibs)
        taken = [unit for unit in held if unit in now.part_of]
        removed = [unit for key, unit in held if (key, unit) not in now.part_of]
        stock, before = now.stock(taken, Counter(key for key, _ in taken), (), removed), whole.stock(held, {})
        assert stock.left == {f"{gib}Q": before.left[f"{gib}Q"] for gib in kept}
        assert set(stock.functions) == {*functions} - {*on}
        if removed:
            assert not any(card(kept, {}).stock(taken, {}, (), removed).left.values()), "of unknown size"


def test_an_amount_without_a_unit_takes_a_function_as_well() -> None:
    card = card_of_functions(MODELS["A100 mixed"], ("vf1", "vf2"))
    assert card.stock([], {"4": 1}).left["4"] == 1
    assert card.stock([], {"4": 1}).together({"4": 2}) is None


def test_a_unit_that_the_consumer_has_keeps_its_function() -> None:
    stock = card_of_functions(MODELS["A100 mixed"]).stock([], {})
    found = stock.together({"20": 1, "4": 1}, [("20", "vf3/20@0")])
    assert found is not None and found["20"] == ("vf3/20@0",) and function(found["4"][0]) != "vf3"


def starts_by_rule(region: int, size: int, most: int) -> set[int]:
    """The starts of one size, by _kvgpumgrSetHeterogeneousResources: the region is halved again and again."""
    starts = set()
    for halvings in range(5):
        partitions = 1 << halvings
        length = region // partitions
        if region % partitions:
            continue
        for number in range(partitions):
            begin = number * length
            if most == 2 * partitions:
                starts |= {begin, begin + length - size}
            elif most == partitions:
                starts.add(begin)
            elif most & (most - 1) and partitions == 1 << (most.bit_length() - 1):
                starts.add(begin if number % 2 == 0 else begin + length - size)
    return {start for start in starts if start >= 0}


@pytest.mark.parametrize("card", sorted(MIXED_SIZES))
def test_each_start_has_its_slots_on_the_card(card: str) -> None:
    table = MIXED_SIZES[card]
    assert table.starts[table.slots] == (0,), "the largest part is the whole card"
    for size, starts in table.starts.items():
        assert list(starts) == sorted(set(starts))
        assert starts[0] == 0
        assert starts[-1] + size <= table.slots


def test_a_size_that_the_card_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        MIXED_SIZES["A16"].model({"3Q": 3}, 16)


@pytest.mark.parametrize("card", sorted(MIG))
def test_every_slice_of_mig_fits_an_empty_card(card: str) -> None:
    model = MIG[card]
    assert all(model.divided().left(name) for name in model.shapes)


@pytest.mark.parametrize(
    ("card", "most"),
    [
        ("A100 40 GB", {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1}),
        ("H100 80 GB", {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}),
        ("A30", {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}),
    ],
)
def test_the_numbers_of_mig_are_those_of_the_guide(card: str, most: dict[str, int]) -> None:
    empty = MIG[card].divided()
    assert {name: empty.left(name) for name in most} == most


@pytest.mark.parametrize(
    ("card", "size"),
    [
        (card, size)
        for card in sorted(MIXED_SIZES)
        for size in MIXED_SIZES[card].starts
        if size > 1 or card == "A16"
    ],
)
def test_the_starts_are_those_of_the_driver(card: str, size: int) -> None:
    table = MIXED_SIZES[card]
    assert set(table.starts[size]) == starts_by_rule(table.slots, size, table.slots // size)
