"""Cards that are divided into several sizes: what can be made is offered, what stands in the way is named."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent import World, request, told, world_of
from kits.placements import Embedded, Placement
from kits.restarted import Restarting

from agent.claims.claim import Claim
from agent.errors import DoesNotFit, PlimsollError
from agent.moves.states import MoveKind
from agent.providers.divided_cards import CardModel
from agent.state.operators import Cordon
from drivers.fake.host import CARD_TABLES, DividedGpu, Gpu, cell

CARD = "0000:84:00.0"
SIZES = {
    "mixed A100 40 GB": {"CUSTOM_VGPU_4": "4", "CUSTOM_VGPU_8": "8", "CUSTOM_VGPU_20": "20"},
    "MIG A100 40 GB": {
        "CUSTOM_MIG_1": "1g.5gb",
        "CUSTOM_MIG_2": "2g.10gb",
        "CUSTOM_MIG_3": "3g.20gb",
        "CUSTOM_MIG_4": "4g.20gb",
        "CUSTOM_MIG_7": "7g.40gb",
    },
}
STEPS = 24


class Host(Restarting):
    """An agent on a host with one divided card, and what its claims have there."""

    def __init__(self, placement: Placement, directory: Path, table: str) -> None:
        self.table, self.sizes = table, SIZES[table]
        self.model: CardModel = CARD_TABLES[table]
        self.settings = told(directory, placement)
        self.claims: dict[str, Claim] = {}
        self._open()

    def _open(self) -> None:
        self.world = world_of(
            self.settings,
            cells=(cell(0, frozenset(range(8)), 16384),),
            gpus=(),
            nics=(),
            divided_gpus=(DividedGpu(CARD, self.table, self.sizes),),
            flat_devices=False,
        )

    def close(self) -> None:
        self.world.close()

    def claim(self, **amounts: int) -> Claim:
        claim = self.world.operations.claim(request(**amounts))
        self.claims[claim.consumer] = claim
        return claim

    def release(self, consumer: str) -> None:
        self.world.operations.release(consumer)
        del self.claims[consumer]

    def parts(self, gone: Collection[str] = ()) -> list[tuple[str, int]]:
        """(class, start) of every part that a claim has, by its units; some are gone."""
        claims = self.world.agent.host_status.overview().claims  # a migration's are among them
        units = [
            unit for claim in claims.values() if claim.consumer not in gone for _, _, unit in claim.exact
        ]
        return [
            (name, int(start)) for name, _, start in (unit.split("/")[1].rpartition("@") for unit in units)
        ]

    def slots(self, name: str, start: int) -> frozenset[int]:
        return frozenset(range(start, start + self.model.shapes[self.sizes[name]].size))

    def most(self, name: str, gone: Collection[str] = ()) -> int:
        """How many more of the class there is room for beside the parts, by trying all sets of places."""
        taken = frozenset[int]().union(*(self.slots(*part) for part in self.parts(gone)))
        shape = self.model.shapes[self.sizes[name]]
        places = [start for start in shape.starts if not self.slots(name, start) & taken]
        counters = [
            (
                total
                - sum(
                    self.model.shapes[self.sizes[each]].counters.get(counter, 0)
                    for each, _ in self.parts(gone)
                )
            )
            // shape.counters[counter]
            for counter, total in self.model.counters.items()
            if shape.counters.get(counter)
        ]
        for number in range(len(places), 0, -1):
            for chosen in combinations(places, number):
                slots = [slot for start in chosen for slot in self.slots(name, start)]
                if len(slots) == len(set(slots)):
                    return min([number, *counters])
        return 0

    def check(self) -> None:
        """No part overlaps another, and Placement offers of each class exactly what there is room for."""
        self.world.agent.reconcile("a test")
        taken = [slot for part in self.parts() for slot in self.slots(*part)]
        assert len(taken) == len(set(taken)), self.parts()
        for name in self.sizes:
            most = self.most(name)
            offered = [self.world.has_candidate(**{name: number}) for number in (most, most + 1)]
            assert offered == [most > 0, False], name


@pytest.fixture(params=sorted(SIZES))
def host(request: pytest.FixtureRequest, placement: Placement, tmp_path: Path) -> Iterator[Host]:
    host = Host(placement, tmp_path, request.param)
    yield host
    host.close()


@pytest.mark.parametrize("seed", range(2))
def test_after_each_claim_release_and_start_placement_offers_what_can_be_made(host: Host, seed: int) -> None:
    dice = random.Random(seed)
    host.check()
    for step in range(STEPS):
        if host.claims and dice.random() < 0.4:
            host.release(dice.choice(sorted(host.claims)))
        else:
            name = dice.choice(sorted(host.sizes))
            most = host.most(name)
            if most:
                host.claim(**{name: dice.randint(1, min(2, most))})
            else:
                with pytest.raises(DoesNotFit):
                    host.claim(**{name: 1})
        host.check()
        if step == STEPS // 2:
            host.restart()
            host.check()
    assert host.world.operations.audit(heal=False).findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_what_stands_in_the_way_of_a_part_is_named_as_trying_all_guests_finds_it(
    host: Host, seed: int
) -> None:
    """The fewest guests without whom there is room, and the guests each of whom alone strands a part."""
    dice = random.Random(seed)
    for _ in range(STEPS // 4):
        fitting = [name for name in sorted(host.sizes) if host.most(name)]
        if fitting:
            host.claim(**{dice.choice(fitting): 1})
        if host.claims and dice.random() < 0.3:
            host.release(dice.choice(sorted(host.claims)))
            host.check()  # a pass
        for name in sorted(host.sizes):
            fewest = next(
                number
                for number in range(len(host.claims) + 1)
                if any(host.most(name, gone) for gone in combinations(host.claims, number))
            )
            found = host.world.operations.defrag(request(**{name: 1}))
            assert found.fit is not None and len(found.moves) == fewest, (name, host.parts())
            said = host.world.operations.capacity(request(**{name: 1}))
            assert said.guests == host.most(name)
            if said.guests == 0:
                alone = {gone for gone in host.claims if host.most(name, [gone])}
                others = {gone for gone in alone if name not in host.claims[gone].request.resources}
                named = {holder for part in said.stranded for holder in part.holders}
                assert named == others, (name, host.parts())


@pytest.fixture
def mig(placement: Placement, tmp_path: Path) -> Iterator[Host]:
    host = Host(placement, tmp_path, "MIG A100 40 GB")
    yield host
    host.close()


def allocate(host: Host, **amounts: int) -> str:
    """An allocation that a scheduler wrote."""
    consumer, (card,) = (
        str(uuid4()),
        (each.uuid for each in host.world.operations.tree()[0] if each.name.endswith(CARD)),
    )
    body = {
        "allocations": {card: {"resources": amounts}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
    }
    reply = host.world.wire.inner.request("PUT", f"/allocations/{consumer}", body, microversion="1.36")
    assert reply.status == 204, reply.body
    return consumer


def test_two_sizes_for_one_guest_have_places_beside_each_other_or_are_refused(mig: Host) -> None:
    mig.claim(CUSTOM_MIG_3=1, CUSTOM_MIG_4=1)
    assert sorted(mig.parts()) == [("CUSTOM_MIG_3", 4), ("CUSTOM_MIG_4", 0)]
    mig.release(next(iter(mig.claims)))
    mig.check()
    mig.claim(CUSTOM_MIG_2=1)
    mig.check()
    assert mig.world.has_candidate(CUSTOM_MIG_3=1, CUSTOM_MIG_4=1), (
        "each alone fits, so placement offers both"
    )
    with pytest.raises(DoesNotFit):
        mig.claim(CUSTOM_MIG_3=1, CUSTOM_MIG_4=1)
    mig.claim(CUSTOM_MIG_3=1)
    mig.check()


def test_a_schedulers_allocation_gets_a_place_when_it_is_claimed(mig: Host) -> None:
    mig.claim(CUSTOM_MIG_1=1)
    mig.check()
    consumer = allocate(mig, CUSTOM_MIG_3=1)
    mig.world.agent.verify()
    assert not mig.world.has_candidate(CUSTOM_MIG_4=1) or not mig.world.has_candidate(CUSTOM_MIG_3=2)
    asked = replace(request(CUSTOM_MIG_3=1), consumer=consumer)
    mig.claims[consumer] = mig.world.operations.claim(asked)
    assert mig.claims[consumer].adopted
    mig.check()


def test_a_scheduler_that_was_faster_than_the_pass_meets_a_refusal_in_words(mig: Host) -> None:
    mig.check()
    mig.claim(CUSTOM_MIG_4=1)  # no pass follows: placement still offers the whole card
    late = allocate(mig, CUSTOM_MIG_3=2)
    mig.world.agent.verify()
    with pytest.raises(PlimsollError, match="beside what is on the card, it has room for 1 of it"):
        mig.world.operations.claim(replace(request(CUSTOM_MIG_3=2), consumer=late))
    assert not any(mig.world.has_candidate(**{name: 1}) for name in mig.sizes), (
        "nothing more is offered of a full card"
    )


def test_a_card_is_named_where_its_room_is_what_lacks_and_the_amount_where_that_does(mig: Host) -> None:
    mig.claim(CUSTOM_MIG_3=1)
    with pytest.raises(PlimsollError, match="only 1 of 2 is free"):
        mig.claim(CUSTOM_MIG_3=2)
    mig.claim(CUSTOM_MIG_4=1)
    with pytest.raises(PlimsollError, match="beside what is on the card, it has room for 0 of it"):
        mig.claim(CUSTOM_MIG_3=1)


def test_a_resize_on_the_host_has_another_place_than_the_one_it_leaves(mig: Host) -> None:
    claim = mig.claim(CUSTOM_MIG_3=1)
    mig.check()
    move = mig.world.operations.begin_move(
        MoveKind.SAME_HOST_RESIZE, str(uuid4()), replace(request(CUSTOM_MIG_3=1), consumer=claim.consumer)
    )
    assert move.old is not None and move.new is not None
    units = {unit for each in (move.old, move.new) for _, _, unit in each.exact}
    assert len(units) == 2
    mig.world.agent.reconcile("a move")
    assert not mig.world.has_candidate(CUSTOM_MIG_3=1), "both places are taken until the move ends"


@pytest.mark.parametrize("seed", [6, 7])
def test_no_place_is_given_twice_while_guests_are_resized_confirmed_and_reverted(
    mig: Host, seed: int
) -> None:
    dice, operations = random.Random(seed), mig.world.operations
    moving: dict[str, str] = {}
    for _ in range(STEPS):
        still = sorted(mig.claims.keys() - moving.keys())
        step = dice.choice(("claim", "claim", "resize", "resize", "end", "release"))
        amounts = {dice.choice(sorted(mig.sizes)): dice.randint(1, 2)}
        try:
            if step == "claim":
                mig.claim(**amounts)
            elif step == "resize" and still:
                consumer, migration = dice.choice(still), str(uuid4())
                asked = replace(request(**amounts), consumer=consumer)
                operations.begin_move(MoveKind.SAME_HOST_RESIZE, migration, asked)
                moving[consumer] = migration
            elif step == "end" and moving:
                consumer = dice.choice(sorted(moving))
                end = dice.choice((operations.confirm_move, operations.revert_move))
                end(moving.pop(consumer), None)
            elif step == "release" and still:
                mig.release(dice.choice(still))
        except DoesNotFit:
            pass
        mig.check()
    assert moving or mig.claims


def test_a_cordoned_card_gives_nothing_and_its_guest_keeps_its_part(mig: Host) -> None:
    claim = mig.claim(CUSTOM_MIG_2=1)
    mig.world.operations.cordon(Cordon(CARD, "", 0, 1.0))
    mig.world.agent.reconcile("a cordon")
    assert not any(mig.world.has_candidate(**{name: 1}) for name in mig.sizes)
    with pytest.raises(DoesNotFit, match=r"cordoned or unhealthy \(.*\), it has room for 0 of it"):
        mig.claim(CUSTOM_MIG_1=1)
    assert mig.world.operations.audit(heal=False).findings == ()
    assert mig.world.operations.claim(claim.request).units == claim.units
    mig.world.operations.clear_cordon(CARD)
    mig.check()


Part = tuple[str, int]
"""(class, start); the start is -1 on a card whose classes exclude each other"""


TABLE = "MIG A100 40 GB"
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
    devices: dict[str, Any] = {"gpus": (), "nics": (), "flat_devices": False} | CARDS[card][0]
    settings = told(tmp_path, Embedded(tmp_path))
    with world_of(settings, cells=(cell(0, frozenset(range(8)), 16384),), **devices) as world:
        yield world


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
