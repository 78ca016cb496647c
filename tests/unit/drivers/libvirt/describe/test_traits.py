from dataclasses import replace

import os_traits
import pytest
from kits.libvirt_node import DATA

from agent.driver import Cell, HostSettings
from drivers.libvirt.describe.host import (
    CPU_FLAGS,
    HostFacts,
    describe_host,
    guest_traits,
    host_traits,
    reportable_guest_traits,
    reportable_host_traits,
    reportable_traits,
)
from drivers.libvirt.xml import (
    parse_capabilities,
    parse_domain_capabilities,
)

RECORDED = parse_capabilities((DATA / "host" / "capabilities.xml").read_text())


KVM = parse_domain_capabilities((DATA / "host" / "domcapabilities-kvm.xml").read_text())


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
    assert reportable_host_traits() | reportable_guest_traits() <= known
    assert everything <= reportable_host_traits()
    assert guest_traits(KVM, "x86_64") | guest_traits(secure, "x86_64") <= reportable_guest_traits()


def test_traits_of_guests_are_left_alone_where_libvirt_did_not_tell_what_guests_can_have() -> None:
    """A read-only connection is refused that question; then a trait of another program may be right."""
    assert "COMPUTE_FIRMWARE_UEFI" in reportable_traits(FACTS)
    unknown = reportable_traits(replace(FACTS, guests=None))
    assert "COMPUTE_FIRMWARE_UEFI" not in unknown and "HW_CPU_X86_AVX2" in unknown


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
        "COMPUTE_VIOMMU_MODEL_AUTO",
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


PACKED = {"NET_VIRTIO_PACKED"}
STATELESS = PACKED | {"SECURITY_STATELESS_FIRMWARE"}
ADDRESSES = STATELESS | {"ADDRESS_SPACE_PASSTHROUGH", "ADDRESS_SPACE_EMULATED"}


@pytest.mark.parametrize(
    ("libvirt", "qemu", "more"),
    [
        ((0, 0, 0), (0, 0, 0), set()),
        ((8, 5, 9), (6, 2, 0), PACKED | {"VIOMMU_MODEL_VIRTIO"}),
        ((8, 6, 0), (6, 2, 0), STATELESS | {"VIOMMU_MODEL_VIRTIO"}),
        ((9, 0, 0), (7, 2, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO"}),
        ((9, 3, 0), (8, 0, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB"}),
        (
            (10, 4, 0),
            (8, 2, 0),
            ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB", "SOUND_MODEL_VIRTIO"},
        ),
        ((10, 4, 0), (8, 1, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB"}),
    ],
)
def test_what_libvirt_does_not_describe_follows_from_the_versions_as_in_nova(
    libvirt: tuple[int, int, int], qemu: tuple[int, int, int], more: set[str]
) -> None:
    silent = replace(KVM, described=KVM.described - {"sound", "iommu"}, libvirt=libvirt, qemu=qemu)
    old = replace(silent, libvirt=(0, 0, 0), qemu=(0, 0, 0))
    added = guest_traits(silent, "x86_64") - guest_traits(old, "x86_64")
    always = {f"SOUND_MODEL_{model}" for model in ("SB16", "ES1370", "PCSPK", "AC97", "ICH6", "ICH9", "USB")}
    always |= {"VIOMMU_MODEL_AUTO", "VIOMMU_MODEL_INTEL"}
    assert added == {f"COMPUTE_{trait}" for trait in (more | always if any(libvirt) else more)}
    assert added <= reportable_guest_traits()


def test_a_kind_of_device_that_libvirt_describes_is_not_guessed() -> None:
    new = parse_domain_capabilities(SECURE.format(version=""))
    traits = guest_traits(replace(new, libvirt=(12, 0, 0), qemu=(10, 0, 0)), "x86_64")
    assert not any(trait.startswith("COMPUTE_SOUND_MODEL_") for trait in traits)
    assert "COMPUTE_VIOMMU_MODEL_SMMUV3" not in traits
