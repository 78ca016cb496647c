from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_node import DATA
from kits.recorded_cards import A100, M60, NIC0, cards

from agent.driver import Cell
from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import cards_of
from drivers.libvirt.describe.host import guest_traits
from drivers.libvirt.xml import (
    DomainCapabilities,
    MdevType,
    MediatedDevice,
    merge,
    parse_capabilities,
    parse_cpu_features,
    parse_domain_capabilities,
    parse_node_device,
)

RECORDED = parse_capabilities((DATA / "host" / "capabilities.xml").read_text())
KVM = parse_domain_capabilities((DATA / "host" / "domcapabilities-kvm.xml").read_text())
QEMU = parse_domain_capabilities((DATA / "host" / "domcapabilities-qemu.xml").read_text())


def test_a_recorded_hosts_cells() -> None:
    assert RECORDED.arch == "x86_64"
    assert RECORDED.cells == (
        Cell(
            id=0,
            cpus=frozenset({0, 1}),
            memory_mb=1508128 // 1024,
            siblings=(frozenset({0}), frozenset({1})),
            pages={4: 360648, 2048: 32, 1048576: 0},
            socket=0,
        ),
        Cell(
            id=1,
            cpus=frozenset({2, 3}),
            memory_mb=1479016 // 1024,
            siblings=(frozenset({2}), frozenset({3})),
            pages={4: 353370, 2048: 32, 1048576: 0},
            socket=1,
        ),
    )
    assert RECORDED.guests == {"i686": {"qemu", "kvm"}, "x86_64": {"qemu", "kvm"}}
    assert {"avx2", "svme-addr-chk"} <= RECORDED.features


def test_recorded_domain_capabilities() -> None:
    assert (KVM.domain_type, QEMU.domain_type) == ("kvm", "qemu")
    assert KVM.enums["disk.bus"] == {"fdc", "scsi", "virtio", "usb", "sata"}
    assert "vmcoreinfo" in KVM.features
    assert not {"sev", "sgx"} & KVM.features
    features = parse_cpu_features(KVM.cpu)
    assert "clwb" in features
    assert "xsavec" not in features, "the host model takes this flag out of its base model"
    assert KVM.cpu.startswith("<cpu><arch>x86_64</arch><model")


def test_machine_types_are_merged() -> None:
    assert merge([]) is None
    merged = merge([KVM, replace(QEMU, enums={"disk.bus": frozenset({"ide"})}, features=frozenset({"sev"}))])
    assert merged is not None
    assert merged.enums["disk.bus"] == KVM.enums["disk.bus"] | {"ide"}
    assert merged.enums["video.modelType"] == KVM.enums["video.modelType"]
    assert "sev" in merged.features
    assert merged.cpu == KVM.cpu


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<capabilities/>", "<host/cpu/arch> is missing or empty"),
        (
            "<capabilities><host><cpu><arch>x86_64</arch></cpu><topology><cells><cell "
            "id='x'/></cells></topology>"
            "</host></capabilities>",
            "NUMA cell: 'x' is not a number",
        ),
        (
            "<capabilities><host><cpu><arch>x86_64</arch></cpu><topology><cells><cell id='0'><cpus>"
            "<cpu id='0' siblings='zero'/></cpus></cell></cells></topology></host></capabilities>",
            "NUMA cell 0: siblings of CPU 0: 'zero' is neither",
        ),
    ],
)
def test_capabilities_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=message):
        parse_capabilities(text)


def test_a_host_that_says_little_of_its_guests() -> None:
    text = "<domainCapabilities><domain>test</domain><arch>i686</arch></domainCapabilities>"
    assert parse_domain_capabilities(text) == DomainCapabilities("test")
    assert guest_traits(DomainCapabilities("test"), "i686") == frozenset()


MOMENTS = ("boot", "vfs", "mdevs", "domains", "vendor-vfio", "migrated-in")


def test_a_pci_device_as_recorded() -> None:
    device = cards("vfs")[A100].vfs[0]
    assert (device.address, device.vendor_id, device.product_id, device.class_id) == (
        "0000:84:00.1",
        "10de",
        "20f1",
        0x030200,
    )
    assert (device.driver, device.numa, device.physical_function) == ("nvidia", 1, A100)
    assert device.iommu_devices == ("0000:84:00.1",)
    assert device.mdev_types["nvidia-471"] == MdevType("nvidia-471", "GRID A100-10C", 1)


MDEV = "<device><name>{name}</name><parent>p</parent><capability type='mdev'>{inside}</capability></device>"


def test_an_old_libvirt_has_the_uuid_in_the_name_only() -> None:
    name = "mdev_11111111_1111_4111_8111_111111111111"
    device = parse_node_device(MDEV.format(name=name, inside="<type id='nvidia-11'/>"))
    assert device == MediatedDevice(name, "11111111-1111-4111-8111-111111111111", "p", "nvidia-11")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<device/>", "d: <name> is missing or empty"),
        (MDEV.format(name="x", inside="<type id='t'/>"), "d: '' is not a uuid"),
        (MDEV.format(name="x", inside=""), "d: the mediated device has no type"),
        ("<device><name>x</name><capability type='pci'/></device>", "d: PCI domain: '' is not a number"),
        ("<device><name>x</name><capability type='net'/></device>", "d: <interface> is missing or empty"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=message):
        parse_node_device(text, "d")


def test_kinds_that_are_of_no_interest() -> None:
    assert parse_node_device("<device><name>x</name><capability type='storage'/></device>") is None


@pytest.mark.parametrize("moment", MOMENTS)
def test_everything_recorded_is_understood(moment: str) -> None:
    found = cards(moment)
    assert {M60, A100, NIC0} <= found.keys() or moment == "migrated-in"
    assert all(card.numa in (0, 1) for address, card in found.items() if address[5:7] != "00")


@given(st.data())
def test_recorded_devices_with_bytes_damaged(data: st.DataObject) -> None:
    root = ElementTree.parse(DATA / "devices" / "mdevs.xml").getroot()
    text = ElementTree.tostring(data.draw(st.sampled_from(root.findall(".//device"))), encoding="unicode")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 9)) :]
    try:
        device = parse_node_device(text)
    except DriverDataError as error:
        assert error.message.startswith("a node device: ")
    else:
        assert device is None or cards_of([device]) is not None
