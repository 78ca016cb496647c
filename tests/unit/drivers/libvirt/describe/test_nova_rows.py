"""Each row on what a host reports is true of the driver: what it names is reported, or never."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import os_resource_classes
import os_traits
import pytest
from kits.libvirt_model import DEVICES, FACTS, HOST

from agent.driver import HostSettings
from agent.providers.owner import OWNER_TRAIT
from drivers.host.file_backed_memory import MEMORY_FILES
from drivers.libvirt.describe.device_spec import parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.model import REMOTE_MANAGED_PORTS, ModelSettings, build_model
from drivers.libvirt.describe.nova_rows import RESOURCE_CLASSES, TRAITS, HostRow, Reported, row_of
from drivers.libvirt.describe.ovs import parse_ovs
from drivers.libvirt.describe.pmem import PmemNamespace, parse_pmem_namespaces
from drivers.libvirt.describe.traits import reportable_guest_traits, reportable_host_traits
from drivers.libvirt.xml.capabilities import DomainCapabilities

CARD = '{"vendor_id": "10de", "product_id": "1eb8"%s}'
NICS = '{"vendor_id": "8086", "product_id": "10ca"}'
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


def classes_of(*specs: str) -> frozenset[str]:
    """The resource classes of a host that has some of everything; `specs` are those of [pci] device_spec."""
    cells = tuple(replace(cell, pages={4: 1000, 2048: 4}) for cell in HOST.capabilities.cells)
    guests = DomainCapabilities("kvm", features=frozenset({"sev"}), slots={"sev": 5}, epc={0: 2**30})
    pmem = (PmemNamespace("ns0", "/dev/dax0.0", 2**30, 2**21),)
    host = replace(HOST, capabilities=replace(HOST.capabilities, cells=cells), guests=guests, pmem=pmem)
    cards = [
        replace(card, vdpa={card.vfs[0].address: "x"} if card.is_network and card.vfs else {})
        for card in FACTS["domains"].cards
    ]
    devices = DeviceSettings(parse_device_specs((*specs, NICS)), DEVICES.mdevs, {"enp65s0": (1000, 1000)})
    ovs = {"resource_provider_packet_processing_without_direction": [":1"]}
    settings = ModelSettings(
        "node1",
        HostSettings(cpu_shared_set=frozenset({0, 1}), cpu_dedicated_set=frozenset({2, 3})),
        devices,
        pmem=parse_pmem_namespaces(["A:ns0"]),
        ovs=parse_ovs(ovs, "node1"),
    )
    facts = replace(FACTS["domains"], cards=tuple(cards))
    described = build_model(host, facts, (), {}, "boot", settings).description.providers
    return frozenset(name for provider in described for name in provider.inventories)


@pytest.mark.parametrize("row", RESOURCE_CLASSES, ids=lambda row: row.names[0])
def test_a_resource_class_is_reported_as_its_row_says(row: HostRow) -> None:
    """Each name of the row, on a host that has some of everything; never what the row leaves out."""
    only_by_spec = row.nova.startswith("only as resource_class")
    for pattern in row.names:
        specs = (CARD % f', "resource_class": "{pattern}"',) if only_by_spec else (CARD % "",)
        if pattern == "VGPU":
            specs = ()  # a card that is divided is not offered as a whole
        found = [name for name in classes_of(*specs) if fnmatchcase(name, pattern)]
        assert bool(found) == (row.reported is Reported.YES), pattern
    if only_by_spec:
        assert not classes_of(CARD % "") & {*row.names}


def test_each_standard_name_has_one_row() -> None:
    for name in (*STANDARD, *os_resource_classes.STANDARDS):
        rows = [
            row for row in (*RESOURCE_CLASSES, *TRAITS) if any(fnmatchcase(name, one) for one in row.names)
        ]
        assert rows == [row_of(name)], name


def test_an_unknown_name_has_no_row() -> None:
    assert row_of("COMPUTE_MAGIC") is None
