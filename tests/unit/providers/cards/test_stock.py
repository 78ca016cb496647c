"""What a card gives beside what is on it, as exact units, against trying all sets of places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, product

import pytest

from agent.driver import CardLayout, CardShape
from agent.providers.cards.division import CardModel
from agent.providers.cards.stock import Card, layout_of, reserve_places
from agent.providers.cards.tables import MIG, MIXED_SIZES
from agent.tree import Inventory, Provider, ProviderTree

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


def test_an_amount_without_a_unit_takes_a_function_as_well() -> None:
    card = card_of_functions(MODELS["A100 mixed"], ("vf1", "vf2"))
    assert card.stock([], {"4": 1}).left["4"] == 1
    assert card.stock([], {"4": 1}).together({"4": 2}) is None


def test_a_unit_that_the_consumer_has_keeps_its_function() -> None:
    stock = card_of_functions(MODELS["A100 mixed"]).stock([], {})
    found = stock.together({"20": 1, "4": 1}, [("20", "vf3/20@0")])
    assert found is not None and found["20"] == ("vf3/20@0",) and function(found["4"][0]) != "vf3"
