"""What stands in the way on a divided card is named: `defrag` and the capacity, against trying everything.

The room of a card is computed here from its sizes alone: parts share no slot and no more of a counter than
there is; and of classes that exclude each other only one is on the card.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Embedded

from agent.errors import DoesNotFit
from drivers.fake import DividedGpu, Gpu, cell
from drivers.fake.host import CARD_TABLES

Part = tuple[str, int]
"""(class, start); the start is -1 on a card whose classes exclude each other"""

CARD, TABLE = "0000:84:00.0", "MIG A100 40 GB"
MIG = {
    "CUSTOM_MIG_1G": "1g.5gb",
    "CUSTOM_MIG_2G": "2g.10gb",
    "CUSTOM_MIG_3G": "3g.20gb",
    "CUSTOM_MIG_7G": "7g.40gb",
}
TYPES = {"CUSTOM_A": 4, "CUSTOM_B": 2, "CUSTOM_C": 1}


def fits_beside_sizes(parts: Collection[Part], name: str) -> bool:
    model = CARD_TABLES[TABLE]
    taken = {at for each, start in parts for at in range(start, start + model.shapes[MIG[each]].size)}
    names = [*(each for each, _ in parts), name]
    shape = model.shapes[MIG[name]]
    return any(taken.isdisjoint(range(start, start + shape.size)) for start in shape.starts) and all(
        sum(model.shapes[MIG[each]].counters.get(counter, 0) for each in names) <= total
        for counter, total in model.counters.items()
    )


def fits_beside_types(parts: Collection[Part], name: str) -> bool:
    return {each for each, _ in parts} <= {name} and len(parts) < TYPES[name]


CARDS: dict[str, tuple[dict[str, Any], tuple[str, ...], Callable[[Collection[Part], str], bool]]] = {
    "sizes": ({"divided_gpus": (DividedGpu(CARD, TABLE, MIG),)}, (*MIG,), fits_beside_sizes),
    "types": ({"gpus": (Gpu(CARD, types=TYPES),)}, (*TYPES,), fits_beside_types),
}


@pytest.fixture(params=sorted(CARDS))
def card(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(card: str, tmp_path: Path) -> Iterator[World]:
    world = opened(told(tmp_path, Embedded(tmp_path)))
    devices: dict[str, Any] = {"gpus": (), "nics": (), "flat_devices": False} | CARDS[card][0]
    world.driver.change(cells=(cell(0, frozenset(range(8)), 16384),), **devices)
    world.agent.reconcile("the start")
    yield world
    world.close()


def parts_of(world: World, card: str) -> dict[str, Part]:
    """{consumer: the part that it has}"""
    held: dict[str, Part] = {}
    for consumer, claim in world.agent.host_status.overview().claims.items():
        ((name, _),) = claim.request.resources.items()
        (unit,) = (unit for _, _, unit in claim.exact) if card == "sizes" else ("@-1",)
        held[consumer] = (name, int(unit.rpartition("@")[2]))
    return held


@pytest.mark.parametrize("seed", range(3))
def test_who_is_in_the_way_is_named_as_by_trying_everything(world: World, card: str, seed: int) -> None:
    _, names, fits = CARDS[card]
    dice = random.Random(seed)
    for _ in range(8):
        held = parts_of(world, card)
        if held and dice.random() < 0.4:
            world.operations.release(dice.choice(sorted(held)))
        else:
            with contextlib.suppress(DoesNotFit):
                world.operations.claim(request(**{dice.choice(names): 1}))
        world.agent.reconcile("a test")
        held = parts_of(world, card)
        for name in names:
            check(world, held, name, fits)


def check(
    world: World, held: dict[str, Part], name: str, fits: Callable[[Collection[Part], str], bool]
) -> None:
    def beside(gone: Collection[str]) -> bool:
        return fits([part for consumer, part in held.items() if consumer not in gone], name)

    least = next(
        size for size in range(len(held) + 1) if any(beside(gone) for gone in combinations(held, size))
    )
    found = world.operations.defrag(request(**{name: 1}))
    gone = {move.claim.consumer for move in found.moves}
    assert found.fit is not None and found.fewest, (held, name)
    assert len(gone) == least and beside(gone), (held, name)
    if least == 1:
        alone = {consumer for consumer in held if beside({consumer})}
        capacity = world.operations.capacity(request(**{name: 1}))
        assert capacity.guests == 0
        named = {holder for row in capacity.stranded if row.resource_class == name for holder in row.holders}
        of_others = {consumer for consumer in alone if held[consumer][0] != name}
        assert of_others <= named <= alone, (held, name)
