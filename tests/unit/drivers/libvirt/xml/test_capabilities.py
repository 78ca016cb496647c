from dataclasses import replace

import pytest
from kits.libvirt_node import DATA

from agent.driver import Cell
from agent.errors import DriverDataError
from drivers.libvirt.describe.traits import guest_traits
from drivers.libvirt.xml.capabilities import (
    DomainCapabilities,
    merge,
    parse_capabilities,
    parse_cpu_features,
    parse_domain_capabilities,
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
