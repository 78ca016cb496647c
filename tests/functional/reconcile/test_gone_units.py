"""Claimed units that exist no more: the rest can be given, and status names who has what is gone."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from kits.reshape import World

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import DescribedInventory, DescribedProvider
from agent.errors import DoesNotFit

VF = "SRIOV_NET_VF"
VFS = ("0000:41:02.0", "0000:41:02.1", "0000:41:02.2", "0000:41:02.3")
HOST = DescribedProvider("node1", None, {"VCPU": DescribedInventory(16)})
NIC = DescribedProvider("nic0", "node1", {VF: DescribedInventory(4)}, device="pci:nic0", units={VF: VFS})


def left(*units: str) -> DescribedProvider:
    return replace(NIC, inventories={VF: DescribedInventory(len(units))}, units={VF: units})


def claim(world: World, amount: int) -> Claim:
    return world.tracker.claim(ClaimRequest(str(uuid4()), (RequestGroup("", {VF: amount}),))).claim


def offered(world: World) -> int:
    """What a scheduler can still be given, by Placement alone."""
    uuid = world.uuid("nic0")
    return int(world.tree()[uuid].inventories[VF].capacity) - world.raw.provider_usages(uuid)[VF]


def test_two_of_four_vanish_while_claimed_and_the_two_that_are_there_can_be_given(world: World) -> None:
    world.see(HOST, NIC)
    claimed = claim(world, 2)
    gone = claimed.units[world.uuid("nic0")][VF]
    there = tuple(unit for unit in VFS if unit not in gone)
    (problem,) = world.see(HOST, left(*there)).problems
    assert claimed.consumer in problem and "nic0" in problem
    assert all(unit in problem for unit in gone) and not any(unit in problem for unit in there)
    assert offered(world) == 2
    assert sorted(claim(world, 2).units[world.uuid("nic0")][VF]) == sorted(there)
    with pytest.raises(DoesNotFit):
        claim(world, 1)
    world.check()


def test_what_is_gone_is_counted_for_its_holder_alone(world: World) -> None:
    """Once its holder has released it, the agent offers it to no consumer, and the sentence ends."""
    world.see(HOST, NIC)
    first, second = claim(world, 1), claim(world, 1)
    there = [unit for unit in VFS if unit not in first.units[world.uuid("nic0")][VF]]
    world.see(HOST, left(*there))
    assert (world.totals()["nic0"], offered(world)) == ({VF: 4}, 2)
    assert world.tracker.release(first.consumer)
    assert world.reconciler.needs_pass
    assert world.reconciler.reconcile("a release").problems == ()
    assert (world.totals()["nic0"], offered(world)) == ({VF: 3}, 2)
    assert not world.reconciler.needs_pass
    assert world.tracker.release(second.consumer)
    assert not world.reconciler.needs_pass, "what it had is there"


def test_what_comes_back_is_its_holders(world: World) -> None:
    world.see(HOST, NIC)
    claimed = claim(world, 2)
    there = [unit for unit in VFS if unit not in claimed.units[world.uuid("nic0")][VF]]
    world.see(HOST, left(*there))
    assert world.see(HOST, NIC).problems == ()
    assert (world.totals()["nic0"], offered(world)) == ({VF: 4}, 2)
    assert world.tracker.claim_of(claimed.consumer) == claimed
