"""Each row on what a host reports is true of the driver: what it names is reported, or never."""

from __future__ import annotations

from fnmatch import fnmatchcase

import os_resource_classes
import os_traits
import pytest

from agent.providers.owner import OWNER_TRAIT
from drivers.host.file_backed_memory import MEMORY_FILES
from drivers.libvirt.describe.model import REMOTE_MANAGED_PORTS
from drivers.libvirt.describe.nova_rows import RESOURCE_CLASSES, TRAITS, HostRow, Reported, row_of
from drivers.libvirt.describe.traits import reportable_guest_traits, reportable_host_traits

STANDARD = frozenset(os_traits.get_traits())
OF_ROOT = reportable_host_traits() | reportable_guest_traits()
OF_OTHERS = frozenset(
    {
        REMOTE_MANAGED_PORTS,
        MEMORY_FILES,
        "COMPUTE_STATUS_DISABLED",
        "HW_NUMA_ROOT",
        "HW_PCI_LIVE_MIGRATABLE",
        "HW_PCI_ONE_TIME_USE",
    }
)
"""Traits of a paused host, and of providers below the root."""


def named(row: HostRow) -> frozenset[str]:
    return frozenset(name for name in STANDARD if any(fnmatchcase(name, one) for one in row.names))


@pytest.mark.parametrize("row", TRAITS, ids=lambda row: row.names[0])
def test_a_trait_is_reported_as_its_row_says(row: HostRow) -> None:
    if row.names == (OWNER_TRAIT,):
        return  # not the driver's: the agent adds it
    assert named(row)
    if row.reported is Reported.YES:
        assert named(row) & (OF_ROOT | OF_OTHERS)
    else:
        assert not named(row) & (OF_ROOT | OF_OTHERS)


def test_each_standard_name_has_one_row() -> None:
    for name in (*STANDARD, *os_resource_classes.STANDARDS):
        rows = [
            row for row in (*RESOURCE_CLASSES, *TRAITS) if any(fnmatchcase(name, one) for one in row.names)
        ]
        assert rows == [row_of(name)], name


def test_an_unknown_name_has_no_row() -> None:
    assert row_of("COMPUTE_MAGIC") is None
