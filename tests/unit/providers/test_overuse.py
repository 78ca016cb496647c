"""Usage beyond capacity, and inventories that are reserved only to keep new consumers out."""

import pytest

from agent.providers.retained import find_overuse
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "11111111-1111-4111-8111-111111111111"
GUEST = "22222222-2222-4222-8222-222222222222"


@pytest.mark.parametrize(
    ("total", "reserved", "used", "reported"),
    [
        (16, 0, 16, False),
        (16, 0, 17, True),
        (16, 15, 2, True),
        (16, 16, 2, False),
        (16, 16, 17, True),
    ],
)
def test_what_is_reserved_whole_may_be_in_use(total: int, reserved: int, used: int, reported: bool) -> None:
    inventory = Inventory(total=total, reserved=reserved, max_unit=total)
    tree = ProviderTree((Provider(ROOT, "node1", inventories={"VGPU": inventory}),))
    overuse = find_overuse(tree, {ROOT: {GUEST: {"VGPU": used}}})
    assert bool(overuse) is reported


@pytest.mark.parametrize(("cap", "reported"), [(0, True), (1, True), (2, False)])
def test_what_a_cap_reserves_whole_is_too_small_for_what_is_in_use(cap: int, reported: bool) -> None:
    """By the cap of the host: a card behind those that give what the cap allows offers nothing."""
    tree = ProviderTree((Provider(ROOT, "node1", inventories={"VGPU": Inventory(16, reserved=16)}),))
    sentences = find_overuse(tree, {ROOT: {GUEST: {"VGPU": 2}}}, {"VGPU": cap, "PGPU": 0}).get(ROOT, ())
    assert [f"raise [DEFAULT] cap = VGPU={cap}." in sentence for sentence in sentences] == [True] * reported
