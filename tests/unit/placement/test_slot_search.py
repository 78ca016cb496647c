"""The search for providers that serve a request together: against all choices of a provider for each slot."""

import itertools
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from kits.examples import examples

from agent.errors import UsageError
from agent.placement.slot_search import Slot, SlotRules, SlotSearch, Steps
from agent.shapes import by_class
from agent.tree import Inventory, Provider

CLASSES = ("VCPU", "VGPU")
TRAITS = ("CUSTOM_A", "CUSTOM_B")
Chosen = tuple[Provider, ...]


def hardware(random: Random) -> list[Provider]:
    """A tree below `p0`, and maybe a shared provider beside it."""
    shared = [None] if random.random() < 0.3 else []
    parents = [None, *(f"p{random.randrange(number)}" for number in range(1, random.randint(2, 4))), *shared]
    return [
        Provider(
            f"p{number}",
            f"p{number}",
            parent,
            {name: Inventory(random.randint(1, 4), max_unit=random.randint(1, 4)) for name in CLASSES},
            frozenset(name for name in TRAITS if random.random() < 0.4),
        )
        for number, parent in enumerate(parents)
    ]


def free(provider: Provider, name: str) -> int:
    """The whole of it."""
    return provider.inventories[name].total


def room(provider: Provider, name: str) -> int:
    """What one guest can have."""
    return min(free(provider, name), provider.inventories[name].max_unit)


def uuids(way: Chosen) -> tuple[str, ...]:
    """Those of the providers."""
    return tuple(provider.uuid for provider in way)


def is_way(rules: SlotRules, cells: set[str], chosen: Chosen, parents: dict[str, str | None]) -> bool:
    """Whether the providers may serve the slots together, by the words of Placement's documentation."""

    def is_below(uuid: str | None, top: str) -> bool:
        return uuid is not None and (uuid == top or is_below(parents[uuid], top))

    filled = [(suffix, provider) for (suffix, _), provider in zip(rules.slots, chosen, strict=True)]
    isolated = [provider.uuid for suffix, provider in filled if suffix]
    of_cells = [provider.uuid for suffix, provider in filled if suffix in cells and provider.uuid != "p0"]
    traits = {name for suffix, provider in filled if not suffix for name in provider.traits}
    given = Counter[tuple[str, str]]()
    for (_, resources), provider in zip(rules.slots, chosen, strict=True):
        given.update({(provider.uuid, name): amount for name, amount in resources.items()})
    by_uuid = {provider.uuid: provider for provider in chosen}
    return (
        (not rules.isolate or len(set(isolated)) == len(isolated))
        and len(set(of_cells)) == len(of_cells)
        and all(any_of & traits for any_of in rules.required)
        and all(
            any(all(is_below(each.uuid, top.uuid) for each in within) for top in within)
            for suffixes in rules.subtrees
            for within in ([provider for suffix, provider in filled if suffix in suffixes],)
        )
        and all(amount <= room(by_uuid[uuid], name) for (uuid, name), amount in given.items())
    )


def test_the_ways_are_those_of_all_choices_that_keep_every_rule() -> None:
    for seed in range(examples(5000)):
        random = Random(seed)
        providers = hardware(random)
        parents = {provider.uuid: provider.parent for provider in providers}
        both = ["", ""] * random.randint(0, 1)
        suffixes = [*both, *map(str, range(random.randint(1, 2 if both else 4)))]
        random.shuffle(suffixes)
        slots = [(suffix, {random.choice(CLASSES): random.randint(1, 3)}) for suffix in suffixes]
        cells = {suffix for suffix in suffixes if suffix and random.random() < 0.5}
        named = sorted({*suffixes} - {""})
        rules = SlotRules(
            slots,
            required=[frozenset({random.choice(TRAITS)})] if "" in suffixes and random.random() < 0.5 else (),
            isolate=random.random() < 0.3,
            cells=cells,
            subtrees=[frozenset(random.sample(named, 2))] if len(named) > 1 and random.random() < 0.5 else (),
        )
        options = [
            [each for each in providers if all(n <= room(each, name) for name, n in asked.items())]
            for _, asked in slots
        ]
        choices = list(itertools.product(*options))
        expected = [way for way in choices if is_way(rules, cells, way, parents)]
        found = SlotSearch(rules, options, "p0", free, parents.get).fill()
        assert sorted(map(uuids, found)) == sorted(map(uuids, expected)), seed
        assert not rules.is_simple or expected == choices, seed
        assert not expected or rules.may_be_filled(options, free), seed
        for way in expected[:1]:
            amounts = rules.allocations(way)
            assert by_class(amounts.values()) == by_class(resources for _, resources in slots), seed
            assert amounts.keys() == set(uuids(way)), seed


ONE, OTHER = (Provider(name, name, "p0", {"VGPU": Inventory(2)}) for name in ("one", "other"))


@pytest.mark.parametrize(
    ("slots", "isolate", "options", "may"),
    [
        ([("1", {"VGPU": 1}), ("2", {"VGPU": 1})], False, [[ONE], [ONE]], True),
        ([("1", {"VGPU": 1}), ("2", {"VGPU": 2})], False, [[ONE], [ONE]], False),
        ([("1", {"VGPU": 1}), ("2", {"VGPU": 2})], False, [[ONE], [ONE, OTHER]], True),
        ([("1", {"VGPU": 1}), ("2", {"VGPU": 1})], True, [[ONE], [ONE]], False),
        ([("1", {"VGPU": 1}), ("2", {"VGPU": 1})], True, [[ONE], [ONE, OTHER]], True),
        ([("", {"VGPU": 1}), ("2", {"VGPU": 1})], True, [[ONE], [ONE]], True),
    ],
)
def test_a_search_that_providers_or_sums_rule_out_is_needless(
    slots: list[Slot], isolate: bool, options: list[list[Provider]], may: bool
) -> None:
    assert SlotRules(slots, isolate=isolate).may_be_filled(options, free) is may


def test_slots_without_a_rule_in_common_need_no_search() -> None:
    assert SlotRules([("", {"VGPU": 1}), ("1", {"VCPU": 1})], isolate=True).is_simple
    assert not SlotRules([("", {"VGPU": 1}), ("1", {"VGPU": 1})]).is_simple
    assert not SlotRules([("1", {"VGPU": 1}), ("2", {"VCPU": 1})], isolate=True).is_simple
    assert not SlotRules([("", {"VGPU": 1})], required=[frozenset({"CUSTOM_A"})]).is_simple
    assert not SlotRules([("1", {"VGPU": 1})], subtrees=[frozenset({"1"})]).is_simple


def test_alike_slots_are_filled_in_the_order_of_the_providers_alone() -> None:
    cards = [Provider(f"gpu{number}", f"gpu{number}", "p0", {"VGPU": Inventory(2)}) for number in range(3)]
    rules = SlotRules([("1", {"VGPU": 1}), ("2", {"VGPU": 1})], alike={1})
    search = SlotSearch(rules, [cards, cards], "p0", lambda *_: 2, lambda _: None)
    assert list(search.fill()) == list(itertools.combinations_with_replacement(cards, 2))


def is_found(slots: int, cards: int, steps: Steps) -> bool:
    """Whether so many isolated groups find a place on so many cards."""
    rules = SlotRules([(str(number), {"VGPU": 1}) for number in range(slots)], isolate=True)
    options = [[replace(ONE, uuid=f"gpu{number}") for number in range(cards)]] * slots
    return next(SlotSearch(rules, options, "p0", free, lambda _: None, steps).fill(), None) is not None


def test_after_so_many_steps_the_request_is_refused() -> None:
    steps = Steps(500)
    with pytest.raises(UsageError, match="500 tries did not settle"):
        is_found(10, 9, steps)
    assert steps.taken == 501
    enough = Steps(45)
    assert is_found(9, 9, enough) and enough.taken == 45


def test_a_state_that_failed_is_not_tried_again() -> None:
    steps = Steps(5 * 2**5)  # each set of the five cards once, not in each order
    assert not is_found(6, 5, steps)
