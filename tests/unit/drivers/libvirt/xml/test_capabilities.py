from dataclasses import replace

import os_traits
import pytest
from kits.libvirt_node import DATA

from agent.driver import Cell, HostSettings
from agent.errors import DriverDataError
from drivers.libvirt.describe.host import HostFacts, describe_host, describe_topology
from drivers.libvirt.describe.traits import CPU_FLAGS, guest_traits, host_traits
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

FACTS = HostFacts(
    capabilities=RECORDED,
    guests=KVM,
    cpu_flags=frozenset({"avx2", "svm"}),
    online=frozenset(range(4)),
    memory_mb=2916,
    disk_gb=20,
)

SECURE = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch>
<os supported='yes'><enum name='firmware'><value>bios</value><value>efi</value></enum>
  <loader supported='yes'><enum name='secure'><value>yes</value><value>no</value></enum></loader></os>
<devices>
  <tpm supported='yes'><enum name='model'><value>tpm-tis</value><value>tpm-crb</value></enum>
    <enum name='backendModel'><value>passthrough</value><value>emulator</value></enum>{version}</tpm>
  <sound supported='no'><enum name='model'><value>ich9</value></enum></sound>
  <iommu supported='yes'><enum
  name='model'><value>intel</value><value>virtio</value><value>future</value></enum></iommu>
</devices>
<features><sev supported='yes'><maxGuests>59</maxGuests><maxESGuests>450</maxESGuests></sev><sgx
supported='no'/>
  <launchSecurity supported='yes'><enum
  name='sectype'><value>sev</value><value>sev-snp</value></enum></launchSecurity>
</features></domainCapabilities>"""


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


def test_every_trait_there_can_be_is_a_standard_one() -> None:
    known = set(os_traits.get_traits())
    everything = host_traits(
        replace(RECORDED, guests=dict.fromkeys(("aarch64", "riscv64", "ppc64le"))),
        frozenset(range(4)),
        frozenset(CPU_FLAGS),
    )
    secure = parse_domain_capabilities(SECURE.format(version=""))
    assert everything | guest_traits(KVM, "x86_64") | guest_traits(secure, "x86_64") <= known
    assert len(everything) > len(CPU_FLAGS)


def test_the_recorded_hosts_traits() -> None:
    (root,) = describe_host(FACTS, HostSettings(), "node1")
    assert root.traits >= {
        "COMPUTE_NODE",
        "HW_ARCH_X86_64",
        "COMPUTE_ARCH_X86_64",
        "HW_CPU_X86_AVX2",
        "HW_CPU_X86_SVM",
        "HW_CPU_X86_AMD_SVM",
        "COMPUTE_STORAGE_BUS_VIRTIO",
        "COMPUTE_GRAPHICS_MODEL_BOCHS",
        "COMPUTE_NET_VIF_MODEL_VIRTIO",
        "COMPUTE_FIRMWARE_BIOS",
        "COMPUTE_SOCKET_PCI_NUMA_AFFINITY",
    }
    assert not {"HW_CPU_HYPERTHREADING", "COMPUTE_STORAGE_BUS_IDE", "COMPUTE_SECURITY_TPM_2_0"} & root.traits


def test_hyperthreading_is_two_threads_of_one_core_online() -> None:
    cells = (Cell(0, frozenset({0, 1}), 1, (frozenset({0, 1}),)),)
    capabilities = replace(RECORDED, cells=cells)
    assert "HW_CPU_HYPERTHREADING" in host_traits(capabilities, frozenset({0, 1}), frozenset())
    assert "HW_CPU_HYPERTHREADING" not in host_traits(capabilities, frozenset({0}), frozenset())


def test_security_traits_come_from_what_libvirt_says() -> None:
    version = "<enum name='backendVersion'><value>1.2</value><value>2.0</value></enum>"
    assert guest_traits(parse_domain_capabilities(SECURE.format(version=version)), "aarch64") == {
        "COMPUTE_FIRMWARE_BIOS",
        "COMPUTE_FIRMWARE_UEFI",
        "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
        "COMPUTE_SECURITY_TPM_1_2",
        "COMPUTE_SECURITY_TPM_2_0",
        "COMPUTE_SECURITY_TPM_CRB",
        "COMPUTE_SECURITY_TPM_TIS",
        "COMPUTE_VIOMMU_MODEL_INTEL",
        "COMPUTE_VIOMMU_MODEL_VIRTIO",
        "HW_CPU_AMD_SEV",
        "HW_CPU_X86_AMD_SEV",
        "HW_CPU_X86_AMD_SEV_ES",
        "HW_CPU_X86_AMD_SEV_SNP",
    }
    silent = guest_traits(parse_domain_capabilities(SECURE.format(version="")), "aarch64")
    assert "COMPUTE_SECURITY_TPM_2_0" in silent
    assert "COMPUTE_SECURITY_TPM_1_2" not in silent


def test_machine_types_are_merged() -> None:
    assert merge([]) is None
    merged = merge([KVM, replace(QEMU, enums={"disk.bus": frozenset({"ide"})}, features=frozenset({"sev"}))])
    assert merged is not None
    assert merged.enums["disk.bus"] == KVM.enums["disk.bus"] | {"ide"}
    assert merged.enums["video.modelType"] == KVM.enums["video.modelType"]
    assert "sev" in merged.features
    assert merged.cpu == KVM.cpu


def test_the_hosts_inventories() -> None:
    settings = HostSettings(
        reserved_host_cpus=1,
        reserved_host_disk_mb=1500,
        cpu_shared_set=frozenset({0, 1}),
        cpu_dedicated_set=frozenset({3, 2}),
    )
    (root,) = describe_host(FACTS, settings, "node1")
    assert {name: (each.total, each.reserved) for name, each in root.inventories.items()} == {
        "VCPU": (2, 1),
        "PCPU": (2, 0),
        "MEMORY_MB": (2916, 512),
        "DISK_GB": (20, 2),
    }
    assert root.units == {"PCPU": ("2", "3")}
    assert (root.name, root.parent, root.device) == ("node1", None, "host")


def test_only_online_cpus_count() -> None:
    facts = replace(FACTS, online=frozenset({0, 1, 2}))
    topology = describe_topology(facts, HostSettings())
    assert [cell.cpus for cell in topology.cells] == [{0, 1}, {2}]
    assert topology.cells[1].siblings == (frozenset({2}),)
    assert topology.shared_cpus == {0, 1, 2}
    with pytest.raises(DriverDataError, match="cpu_dedicated_set names CPU 3"):
        describe_host(facts, HostSettings(cpu_dedicated_set=frozenset({3})), "node1")


def test_a_host_without_cells_is_one_cell() -> None:
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=()))
    topology = describe_topology(facts, HostSettings())
    assert [(cell.id, cell.cpus, cell.memory_mb) for cell in topology.cells] == [(0, {0, 1, 2, 3}, 2916)]


def test_memory_that_is_in_no_cell_is_in_all() -> None:
    cells = tuple(replace(cell, memory_mb=0) for cell in RECORDED.cells)
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells), memory_mb=4097)
    assert [cell.memory_mb for cell in describe_topology(facts, HostSettings()).cells] == [2049, 2048]
    (root,) = describe_host(facts, HostSettings(), "node1")
    assert root.inventories["MEMORY_MB"].total == 4097


def test_a_cpu_in_two_cells_makes_no_sense() -> None:
    cells = (RECORDED.cells[0], replace(RECORDED.cells[0], id=1))
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells))
    with pytest.raises(DriverDataError, match="a CPU is in two NUMA cells"):
        describe_topology(facts, HostSettings())


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
