"""Caps of resource classes: what is offered, and where; and the space that the disk has for DISK_GB."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import Guest, GuestState
from agent.errors import SettingsError
from agent.providers.limits import disk_in_use, disk_warning, odd_caps, parse_caps, with_caps
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


# More DISK_GB offered than the file system has free


@pytest.mark.parametrize(
    ("reserved", "used", "free", "warns"),
    [(0, 0, 100, False), (0, 0, 99, True), (1, 0, 99, False), (0, 60, 40, False), (0, 60, 39, True)],
)
def test_it_warns_where_more_can_be_claimed_than_is_free(
    reserved: int, used: int, free: int, warns: bool
) -> None:
    warning = disk_warning(Inventory(100, reserved=reserved), used, free)
    assert (warning is not None) is warns


def test_the_reservation_that_it_proposes_ends_it() -> None:
    warning = disk_warning(Inventory(100, reserved=10), 20, 30)
    assert warning is not None and warning.endswith(f"reserved_host_disk_mb = {50 * 1024}.")
    assert disk_warning(Inventory(100, reserved=50), 20, 30) is None


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert disk_warning(None, 0, 0) is None
    assert disk_warning(Inventory(100), 0, None) is None


def test_the_disks_of_guests_that_are_off_are_there_too() -> None:
    guests = [Guest("a", "a", GuestState.SHUTOFF, {"DISK_GB": 5}), Guest("b", "b", GuestState.RUNNING, {})]
    assert disk_in_use(guests) == 5
