"""`shrunk inventory`: more is allocated than there is."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, observe
from kits.tracker import HOST, POOL, uuid_of

from agent.audit.findings.shrunk_inventory import ShrunkInventory
from agent.audit.observation import Observation
from agent.claims.fit import ProviderIndex
from agent.tree import Inventory, ProviderTree

NIC = uuid_of("nic0")
PLACED = {CONSUMER: {NIC: {"SRIOV_NET_VF": 2}}}


def with_inventory(inventory: Inventory) -> Observation:
    nic = next(provider for provider in HOST if provider.uuid == NIC)
    smaller = replace(nic, inventories={"SRIOV_NET_VF": inventory})
    tree = ProviderTree([*(provider for provider in HOST if provider.uuid != NIC), smaller, POOL])
    return replace(observe(placed=PLACED), host=ProviderIndex.of(tree, uuid_of("host")))


def test_the_consumers_of_what_is_too_small_are_named() -> None:
    (finding,) = ShrunkInventory().judge_host(with_inventory(Inventory(1)))
    assert finding.subject == NIC and finding.repair == () and CONSUMER in finding.reason
    assert finding.evidence == {
        "class": "SRIOV_NET_VF",
        "capacity": 1,
        "used": 2,
        "consumers": {CONSUMER: 2},
    }


def test_what_is_large_enough_or_fully_reserved_is_not_reported() -> None:
    for inventory in (Inventory(2), Inventory(1, reserved=1)):
        assert [*ShrunkInventory().judge_host(with_inventory(inventory))] == []


def test_what_is_reserved_for_the_unclaimed_use_of_guests_makes_no_inventory_smaller() -> None:
    reserved = with_inventory(Inventory(3, reserved=2))
    assert [*ShrunkInventory().judge_host(reserved)] != []
    unreserved = with_inventory(Inventory(3)).host
    assert [*ShrunkInventory().judge_host(replace(reserved, unreserved=unreserved))] == []
