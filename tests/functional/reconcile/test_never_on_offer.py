"""Whatever another client does to an allocation: what is claimed or used is on offer to no scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.reshape import ROOT, World

from agent.claims.claim import Claim
from agent.claims.parse_request import ClaimRequest, RequestGroup
from agent.driver import DescribedInventory, DescribedProvider, Guest, GuestState, UsedUnit
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tree import Inventory, Provider

CPU_RATIO = 4.0
HOST = DescribedProvider(
    "node1",
    None,
    {
        "VCPU": DescribedInventory(16, initial_allocation_ratio=CPU_RATIO),
        "MEMORY_MB": DescribedInventory(32768, reserved=512),
    },
)
CARDS = tuple(
    DescribedProvider(
        f"gpu{n}",
        "node1",
        {"PGPU": DescribedInventory(1)},
        device=f"pci:gpu{n}",
        units={"PGPU": (f"0000:8{n}:00.0",)},
    )
    for n in range(3)
)
CAPACITY = {
    ("node1", "VCPU"): 64,
    ("node1", "MEMORY_MB"): 32256,
    **{(f"gpu{n}", "PGPU"): 1 for n in range(3)},
}
ELSEWHERE = str(uuid4())


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        world.see(HOST, *CARDS)
        world.raw.create_provider(Provider(ELSEWHERE, "node2", None))
        world.raw.put_inventories(
            ELSEWHERE, 0, {"VCPU": Inventory(64), "MEMORY_MB": Inventory(64000), "PGPU": Inventory(4)}
        )
        yield world


def claim(world: World, **resources: int) -> Claim:
    return world.tracker.claim(ClaimRequest(str(uuid4()), (RequestGroup("", resources),))).claim


Slots = dict[tuple[str, str], int]
"""{(provider uuid, class): amount}"""


def capacity(world: World) -> Slots:
    return {(world.uuid(on), name): amount for (on, name), amount in CAPACITY.items()}


def offered(world: World, slots: Iterable[tuple[str, str]]) -> Slots:
    """What a scheduler can still be given, by Placement alone."""
    found = {}
    for uuid in dict.fromkeys(uuid for uuid, _ in slots):
        _, inventories = world.raw.provider_inventories(uuid)
        used = world.raw.provider_usages(uuid)
        found |= {(uuid, name): max(0, each.capacity - used[name]) for name, each in inventories.items()}
    return found


def free(world: World, slots: Slots, *claims: Claim) -> Slots:
    """The capacity without what these claims or Placement has for each consumer."""
    left = dict(slots)
    for each in claims:
        held = world.raw.allocations_of(each.consumer).allocations
        for uuid, name in slots:
            left[uuid, name] -= max(
                held.get(uuid, {}).get(name, 0), each.allocations.get(uuid, {}).get(name, 0)
            )
    return left


def rewrite(world: World, has: Claim, allocations: Allocations) -> None:
    world.raw.write_allocations(replace(world.raw.allocations_of(has.consumer), allocations=allocations))


def card_of(has: Claim) -> str:
    return next(uuid for uuid in has.allocations if uuid != ROOT)


def lowers_memory(world: World, has: Claim) -> None:
    rewrite(world, has, {**has.allocations, ROOT: {"VCPU": 3, "MEMORY_MB": 1000}})


def drops_the_card(world: World, has: Claim) -> None:
    rewrite(world, has, {ROOT: has.allocations[ROOT]})


def drops_the_root(world: World, has: Claim) -> None:
    rewrite(world, has, {card_of(has): {"PGPU": 1}})


def takes_another_card(world: World, has: Claim) -> None:
    other = next(world.uuid(f"gpu{n}") for n in (2, 1, 0) if world.uuid(f"gpu{n}") not in has.allocations)
    rewrite(world, has, {ROOT: has.allocations[ROOT], other: {"PGPU": 1}})


def deletes(world: World, has: Claim) -> None:
    world.raw.delete_allocations(has.consumer)


def empties(world: World, has: Claim) -> None:
    rewrite(world, has, {})


def moves_it_away(world: World, has: Claim) -> None:
    rewrite(world, has, {ELSEWHERE: {"VCPU": 8, "MEMORY_MB": 30000, "PGPU": 1}})


def writes_it_anew_without_the_card(world: World, has: Claim) -> None:
    deletes(world, has)
    world.raw.write_allocations(ConsumerAllocations(has.consumer, {ROOT: has.allocations[ROOT]}))


WAYS = (
    deletes,
    empties,
    lowers_memory,
    drops_the_card,
    drops_the_root,
    takes_another_card,
    writes_it_anew_without_the_card,
    moves_it_away,
)


def check(world: World, slots: Slots, *claims: Claim) -> None:
    """All that is free is offered, but for the rounding of an overcommitted class, and nothing else is."""
    offers = offered(world, slots)
    for slot, left in free(world, slots, *claims).items():
        ratio = CPU_RATIO if slot[1] == "VCPU" else 1
        assert left - ratio < offers[slot] <= left, slot


def test_a_verification_has_the_rest_of_a_claim_reserved(world: World) -> None:
    """Whatever another client did: a DELETE raises no generation, and some PUTs not that of the card."""
    slots, beside = capacity(world), claim(world, VCPU=1, MEMORY_MB=64, PGPU=1)
    for takes in WAYS:
        has = claim(world, VCPU=8, MEMORY_MB=20000, PGPU=1)
        (unit,) = has.units[card_of(has)]["PGPU"]
        used = {"VCPU": 8, "MEMORY_MB": 20000, "PGPU": 1}
        runs = Guest(has.consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", unit, "pci:"),))
        world.driver.domains = (runs,)
        world.again()
        takes(world, has)
        assert world.again().error is None
        check(world, slots, has, beside)
        world.raw.delete_allocations(has.consumer)
        world.driver.domains = ()
        world.tracker.release(has.consumer)
        world.again()
        assert offered(world, slots) == free(world, slots, beside)


CELLS = tuple(
    DescribedProvider(
        f"cell{n}",
        "node1",
        {"VCPU": DescribedInventory(16), "MEMORY_MB": DescribedInventory(16384)},
        device=f"numa:{n}",
    )
    for n in range(2)
)


@pytest.mark.parametrize("typed", [True, False], ids=["MIGRATION", "no types"])
@pytest.mark.parametrize("claimed", [False, True], ids=["unclaimed", "claimed"])
def test_the_place_of_a_guest_that_a_control_plane_moves_is_held_once(
    world: World, typed: bool, claimed: bool
) -> None:
    """Of two cells, where nothing but the migration's allocation says in which the guest is.

    With it nothing is reserved a second time, in either cell; without it, all that the guest uses.
    """
    world.see(DescribedProvider("node1", None, {}), *CELLS, *CARDS)
    client = world.raw if typed else PlacementClient(world.tap.inner, microversion="1.36")
    slots = [(world.uuid(cell), name) for cell in ("cell0", "cell1") for name in ("VCPU", "MEMORY_MB")]
    place = {world.uuid("cell1"): {"VCPU": 2, "MEMORY_MB": 4096}, world.uuid("gpu0"): {"PGPU": 1}}
    used = {"VCPU": 2, "MEMORY_MB": 4096, "PGPU": 1}
    consumer, migration = str(uuid4()), str(uuid4())
    client.write_allocations(ConsumerAllocations(consumer, place))
    if claimed:
        assert world.tracker.claim(ClaimRequest(consumer, (RequestGroup("", used),))).claim.adopted
    world.driver.domains = (
        Guest(consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", "0000:80:00.0", "pci:"),)),
    )
    assert world.again().problems == ()
    base = offered(world, [*slots, (world.uuid("gpu0"), "PGPU")])
    held = client.allocations_of(consumer)
    client.write_allocations(
        ConsumerAllocations(migration, place, consumer_type="MIGRATION"),
        replace(held, allocations={ELSEWHERE: used}),
    )
    for _ in range(2):
        world.again()
        assert offered(world, base) == base
    world.raw.delete_allocations(migration)
    world.again()
    after = offered(world, base)
    for name in ("VCPU", "MEMORY_MB"):
        assert sum(after[slot] for slot in slots if slot[1] == name) == sum(
            base[slot] for slot in slots if slot[1] == name
        )
    assert after[world.uuid("gpu0"), "PGPU"] == 0


@pytest.mark.parametrize("runs", [True, False], ids=["running", "no guest"])
def test_a_part_of_a_claim_that_a_migration_does_not_hold_is_reserved(world: World, runs: bool) -> None:
    """Another client takes the card out of the allocation; then a control plane moves what is left."""
    slots, has = capacity(world), claim(world, VCPU=1, MEMORY_MB=1000, PGPU=1)
    used = {"VCPU": 1, "MEMORY_MB": 1000, "PGPU": 1}
    (unit,) = has.units[card_of(has)]["PGPU"]
    guest = Guest(has.consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", unit, "pci:"),))
    world.driver.domains = (guest,) if runs else ()
    drops_the_card(world, has)
    world.again()
    check(world, slots, has)
    held = world.raw.allocations_of(has.consumer)
    world.raw.write_allocations(
        ConsumerAllocations(str(uuid4()), held.allocations, consumer_type="MIGRATION"),
        replace(held, allocations={ELSEWHERE: used}),
    )
    for _ in range(2):
        world.again()
        offers = offered(world, slots)
        assert offers[card_of(has), "PGPU"] == 0
        assert offers[ROOT, "MEMORY_MB"] == slots[ROOT, "MEMORY_MB"] - 1000
