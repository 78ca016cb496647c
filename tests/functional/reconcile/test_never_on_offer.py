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
from agent.placement.client import ConsumerAllocations
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
