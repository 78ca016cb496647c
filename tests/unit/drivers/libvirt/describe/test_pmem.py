"""Persistent memory: the option in nova's form, units by name, what guests use, and the guest's device."""

from __future__ import annotations

import pytest
from kits.libvirt_node import domain

from agent.driver import DescribedInventory, DescribedProvider, DeviceKind, Guest, GuestState, UsedUnit
from agent.errors import SettingsError
from drivers.host.domain_xml import Domain, guest_of, parse_domain
from drivers.host.sysfs import PmemNamespace
from drivers.host.xml_parser import parse_xml
from drivers.libvirt.describe.memory import (
    needed_namespaces,
    parse_pmem_namespaces,
    unmatched_namespaces,
    with_namespaces,
    with_used_namespaces,
    write_namespaces,
)

GIB = 2**30
FOUND = tuple(PmemNamespace(f"ns{n}", f"/dev/dax{n}.0", 6 * GIB, 2 * 2**20) for n in range(3))
LABELS = parse_pmem_namespaces(["6GB:ns0|ns1", "big:ns2|ns9"])
SMALL, BIG = "CUSTOM_PMEM_NAMESPACE_6GB", "CUSTOM_PMEM_NAMESPACE_BIG"
NVDIMM = (
    "<memory model='nvdimm' access='shared'><source><path>{}</path><pmem/></source><target>"
    "<size unit='GiB'>6</size><node>0</node></target></memory>"
)


def test_each_label_is_a_class_and_each_name_a_unit_of_the_host() -> None:
    root, cell = DescribedProvider("h", units={"PCPU": ("2",)}), DescribedProvider("c", "h")
    described, other = with_namespaces((root, cell), FOUND, LABELS)
    assert described.units == {"PCPU": ("2",), SMALL: ("ns0", "ns1"), BIG: ("ns2",)}
    assert described.inventories == {
        SMALL: DescribedInventory(2, allocation_ratio=1.0),
        BIG: DescribedInventory(1, allocation_ratio=1.0),
    }
    assert other is cell
    assert with_namespaces((root,), (), LABELS) == (root,)
    (sentence,) = unmatched_namespaces(FOUND, LABELS)
    assert "ns9" in sentence and "devdax" in sentence


@pytest.mark.parametrize(
    "words",
    [["6GB"], ["6 GB:ns0"], [":ns0"], ["a:"], ["a:ns0||ns1"], ["a:ns0|ns0"], ["a:ns0", "b:ns0"], ["a:12"]],
)
def test_what_is_no_label_or_no_name_is_refused(words: list[str]) -> None:
    with pytest.raises(SettingsError, match="pmem_namespaces"):
        parse_pmem_namespaces(words)


def running(read: Domain) -> Guest:
    return guest_of(read, GuestState.RUNNING, 0, frozenset())


def test_a_guest_uses_the_namespaces_that_its_domain_names() -> None:
    devices = "".join(NVDIMM.format(path) for path in ("/dev/dax1.0", "/var/lib/file", "/dev/dax2.0"))
    read = parse_domain(domain(1, devices=devices, memory_mb=18 * 1024 + 512))
    assert read.memory_mb == 512, "libvirt adds these devices to <memory>; they take none of the host's"
    guest = with_used_namespaces(running(read), read, FOUND, LABELS)
    assert guest.units == (UsedUnit(SMALL, "ns1", "host"), UsedUnit(BIG, "ns2", "host"))
    assert guest.resources == {"VCPU": 1, "MEMORY_MB": 512, SMALL: 1, BIG: 1}
    assert with_used_namespaces(running(read), read, FOUND, {}) == running(read)


def test_a_memory_without_them_stays_whole() -> None:
    numa = "<cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/></numa></cpu>"
    read = parse_domain(domain(1, inside=numa, devices=NVDIMM.format("/dev/dax0.0")))
    assert read.memory_mb == 512, "as an operator writes it, before libvirt adds the sizes"


def test_a_domain_gets_a_memory_device_for_each_namespace_once() -> None:
    given = write_namespaces(domain(1), FOUND[:2])
    read = parse_domain(given)
    assert read.memory_files == ("/dev/dax0.0", "/dev/dax1.0")
    assert '<maxMemory slots="2" unit="KiB">13107200</maxMemory>' in given.replace("'", '"')
    assert "<alignsize unit='KiB'>2048</alignsize>" in given and "<node>0</node>" in given
    assert write_namespaces(given, FOUND[:2]) == given
    more = write_namespaces(given, FOUND)
    assert '<maxMemory slots="3" unit="KiB">19398656</maxMemory>' in more.replace("'", '"')


def test_a_domain_needs_the_configured_namespaces_that_it_names() -> None:
    text = domain(1, devices=NVDIMM.format("/dev/dax2.0") + NVDIMM.format("/var/lib/file"))
    (needed,) = needed_namespaces(parse_xml(text, "x", "domain"), FOUND, LABELS)
    assert (needed.kind, needed.unit) == (DeviceKind.MEMORY, "ns2")
    assert not list(needed_namespaces(parse_xml(text, "x", "domain"), FOUND, {}))
