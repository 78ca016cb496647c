"""Caps of resource classes: what is offered on the whole host, and where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import SettingsError
from agent.providers.limits import odd_caps, parse_caps, with_caps
from agent.tree import Inventory, Provider, ProviderTree

ROOT, A, B = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")


def tree(cards: int = 4, ratio: float = 1.0) -> ProviderTree:
    return ProviderTree(
        [
            Provider(ROOT, "host", inventories={"VCPU": Inventory(16, allocation_ratio=ratio)}),
            Provider(A, "host_a", ROOT, {"VGPU": Inventory(cards)}),
            Provider(B, "host_b", ROOT, {"VGPU": Inventory(cards, reserved=1)}),
        ]
    )


def capacity(of: ProviderTree, name: str) -> int:
    return sum(each.inventories[name].capacity for each in of if name in each.inventories)


def test_a_cap_leaves_so_much_on_the_first_providers() -> None:
    capped = with_caps(tree(), {"VGPU": 5})
    assert [capped[uuid].inventories["VGPU"].capacity for uuid in (A, B)] == [4, 1]
    assert capped[B].inventories["VGPU"] == Inventory(4, reserved=3)
    assert capped[ROOT] == tree()[ROOT]


def test_a_cap_counts_what_guests_may_have_not_the_host_s_units() -> None:
    assert capacity(with_caps(tree(ratio=4.0), {"VCPU": 16}), "VCPU") == 16
    assert capacity(with_caps(tree(ratio=4.0), {"VCPU": 0}), "VCPU") == 0


def test_a_cap_below_one_unit_of_the_host_is_told() -> None:
    offered = [("VCPU", 4.0), ("VGPU", 1.0)]
    assert tuple(odd_caps({"VCPU": 4, "VGPU": 0}, offered)) == ()
    assert capacity(with_caps(tree(ratio=4.0), {"VCPU": 3}), "VCPU") == 0
    (said,) = odd_caps({"VCPU": 3}, offered)
    assert "cap = VCPU=3 leaves no VCPU" in said and "one unit is 4 VCPU" in said
    (unknown,) = odd_caps({"FPGA": 3}, offered)
    assert "no provider of this host has FPGA" in unknown


@given(st.integers(0, 12), st.integers(1, 8), st.sampled_from((0.5, 1.0, 1.5, 4.0)))
def test_no_more_than_the_cap_is_offered_and_totals_stay(cap: int, cards: int, ratio: float) -> None:
    before = tree(cards, ratio)
    after = with_caps(before, {"VGPU": cap, "VCPU": cap})
    for name in ("VGPU", "VCPU"):
        assert capacity(after, name) <= min(cap, capacity(before, name))
        if ratio <= 1.0:
            assert capacity(after, "VGPU") == min(cap, capacity(before, "VGPU"))
    assert [each.inventories[name].total for each in after for name in each.inventories] == [
        each.inventories[name].total for each in before for name in each.inventories
    ]
    assert with_caps(after, {"VGPU": cap, "VCPU": cap}) == after


@pytest.mark.parametrize("text", ["VGPU", "VGPU=", "VGPU=-1", "vgpu=1", "VGPU=1G", "VGPU=99999999999"])
def test_what_is_no_cap_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not CLASS=N"):
        parse_caps([text])


def test_caps_are_read_and_none_may_be_twice() -> None:
    assert parse_caps(["", "VGPU=4", " ", " MEMORY_MB = 65536 "]) == {"VGPU": 4, "MEMORY_MB": 65536}
    with pytest.raises(SettingsError, match="VGPU twice"):
        parse_caps(["VGPU=4", "VGPU=5"])
