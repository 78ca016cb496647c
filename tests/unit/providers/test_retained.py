"""Allocations of a class that the host no longer has: they stay, and the rest is reserved."""

import pytest

from agent.errors import ApplyError
from agent.providers.plan import plan
from agent.providers.retained import removed_classes, retain_held
from agent.tree import Inventory, Provider, ProviderTree

ROOT, CELL, NIC = (f"00000000-0000-4000-8000-00000000000{n}" for n in range(3))
HOST = Provider(ROOT, "host", None, {"VCPU": Inventory(8)})
FUNCTIONS = {"SRIOV_NET_VF": Inventory(4), "CUSTOM_X": Inventory(1, allocation_ratio=4.0)}
BEFORE = ProviderTree([HOST, Provider(CELL, "cell", ROOT), Provider(NIC, "nic", CELL, FUNCTIONS)])


def kept(wanted: ProviderTree, held: dict[str, dict[str, int]]) -> tuple[ProviderTree, tuple[str, ...]]:
    gone = removed_classes(plan(BEFORE, wanted))
    found = retain_held(BEFORE, wanted, gone, dict.fromkeys(gone, held), {"b": "web1"})
    return found.tree, found.sentences


def test_what_nobody_holds_goes() -> None:
    wanted = ProviderTree([HOST])
    assert kept(wanted, {}) == (wanted, ())


def test_what_is_held_stays_with_what_it_hangs_under() -> None:
    tree, told = kept(ProviderTree([HOST]), {"b": {"SRIOV_NET_VF": 1}, "a": {"SRIOV_NET_VF": 2}})
    assert [(each.name, each.parent) for each in tree] == [("host", None), ("cell", ROOT), ("nic", CELL)]
    assert set(tree[NIC].inventories) == {"SRIOV_NET_VF"}, "the other class has no allocations"
    inventory = tree[NIC].inventories["SRIOV_NET_VF"]
    assert (inventory.total, inventory.capacity) == (4, 3)
    assert (
        len(told) == 1 and "no SRIOV_NET_VF on provider nic any more, but a, web1 (b) still hold" in told[0]
    )
    assert kept(tree, {"a": {"SRIOV_NET_VF": 2}}) == (tree, ()), "what is kept is not gone"


def test_a_ratio_leaves_nothing_free() -> None:
    tree, _ = kept(ProviderTree([HOST]), {"a": {"CUSTOM_X": 3}})
    assert tree[NIC].inventories["CUSTOM_X"].capacity == 3


@pytest.mark.parametrize("where", [ROOT, CELL])
def test_what_turns_up_above_without_an_instruction_is_not_offered_twice(where: str) -> None:
    bare = ProviderTree([HOST, Provider(CELL, "cell", ROOT)])
    moved = Provider(where, bare[where].name, bare[where].parent, {"SRIOV_NET_VF": Inventory(4)})
    with pytest.raises(ApplyError, match=r"says that it moved there\. a still holds"):
        kept(bare.with_provider(moved), {"a": {"SRIOV_NET_VF": 1}})
