"""More DISK_GB offered than the file system has free."""

import pytest

from agent.driver import Guest, GuestState
from agent.providers.limits import disk_in_use, disk_warning
from agent.tree import Inventory


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
