"""Each row on what a host reports is true: a host that fulfils its condition has the name in its tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import os_resource_classes
import os_traits
import pytest
from kits.libvirt_model import DEVICES, FACTS, HOST
from kits.paths import CHECKOUT
from nova_rows import RESOURCE_CLASSES, TRAITS, HostRow, Reported, row_of

from agent.driver import Cell, Description, HostSettings, ReservedPages
from agent.providers.owner import OWNER_TRAIT, with_owner
from agent.providers.resolve import OwnedProviders, resolve
from agent.tree import Provider, ProviderTree
from drivers.host.sysfs import MEMORY_KINDS, MemoryCell, PmemNamespace
from drivers.libvirt.describe.bandwidth import parse_ovs
from drivers.libvirt.describe.cards import Card, parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.host import ModelSettings, build_model
from drivers.libvirt.describe.memory import parse_pmem_namespaces
from drivers.libvirt.describe.options import device_settings
from drivers.libvirt.xml import DomainCapabilities

ROOT = "c0ffee00-0000-4000-8000-000000000001"
ROWS = (*RESOURCE_CLASSES, *TRAITS)
STANDARD = frozenset(os_traits.get_traits())
NIC, GPU, WHOLE = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
NET, PCI = "node1_net_enp65s0", f"node1_pci_{WHOLE}"
CARD = '{"vendor_id": "10de", "product_id": "1eb8"%s}'
NICS = '{"vendor_id": "8086", "product_id": "10ca"}'
KVM = DomainCapabilities("kvm")


@dataclass(frozen=True)
class Made:
    """How a host differs from a plain one, and what its operator configures; keys are fields' names.

    `kernel` is what the kernel says of devices. `specs` are those of [pci] device_spec; `card` changes
    each card.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    guests: Mapping[str, Any] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, Any] = field(default_factory=dict)
    kernel: Mapping[str, Any] = field(default_factory=dict)
    specs: tuple[str, ...] = ()
    card: Callable[[Card], Card] = field(default=lambda card: card)


PLAIN = Made()


@dataclass(frozen=True)
class Example:
    """A host, what it has {provider: traits, or {class: total}}, and one that has nothing of the row.

    `but` None: each host has it.
    """

    made: Made
    has: Mapping[str, frozenset[str] | Mapping[str, int]]
    but: Made | None = PLAIN


def described(made: Made) -> Description:
    facts = FACTS["vfs"]
    devices = DeviceSettings(parse_device_specs(made.specs))
    guests = replace(KVM, **made.guests)
    return build_model(
        replace(
            HOST, guests=guests, capabilities=replace(HOST.capabilities, **made.capabilities), **made.facts
        ),
        replace(facts, cards=tuple(map(made.card, facts.cards)), **made.kernel),
        (),
        {},
        "boot",
        ModelSettings("node1", HostSettings(**made.host), replace(devices, **made.devices), **made.settings),
    ).description


def tree(made: Made, current: ProviderTree = ProviderTree(), owned: OwnedProviders | None = None) -> Any:  # noqa: B008
    """What the agent writes to Placement, with what others have there."""
    description = with_owner(described(made), OWNER_TRAIT)
    return resolve(description, current, owned or OwnedProviders(), ROOT)


def names_of(provider: Provider) -> frozenset[str]:
    return provider.traits | provider.inventories.keys()


def traits(name: str, *of_provider: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(of_provider)}


def root(*names: str) -> dict[str, frozenset[str]]:
    return traits("node1", *names)


def enum(name: str, *values: str) -> Made:
    """A host whose libvirt reports these values for a kind of device."""
    return Made(guests={"enums": {name: frozenset(values)}})


def since(libvirt: tuple[int, int, int], qemu: tuple[int, int, int], *names: str) -> Iterator[Example]:
    """The traits come with the version of libvirt, and not with the one before, and the same of QEMU."""
    here = Made(facts={"libvirt": libvirt}, guests={"qemu": qemu})
    for (major, minor, _), is_libvirt in ((libvirt, True), (qemu, False)):
        before = (major, minor - 1, 9) if minor else (major - 1, 9, 9)
        older = (
            replace(here, facts={"libvirt": before}) if is_libvirt else replace(here, guests={"qemu": before})
        )
        if major:
            yield Example(here, root(*names), older)


CELLS = HOST.capabilities.cells
FAR = {"cells": (*CELLS, Cell(2, frozenset(), 700))}
THREADS = tuple(replace(cell, siblings=(cell.cpus,)) for cell in CELLS)
FEATURES = {
    kind: Made(guests={"features": frozenset({kind}), "slots": {kind: 5}})
    for kind in ("sev", "sev-es", "tdx")
}
SNP = Made(guests={"features": frozenset({"sev-es", "sev-snp"}), "slots": {"sev-es": 5}})
TPM = {"tpm.backendModel": frozenset({"emulator"}), "tpm.model": frozenset({"tpm-tis", "tpm-crb"})}
TPMS = {**TPM, "tpm.backendVersion": frozenset({"1.2", "2.0"})}
NAMESPACE = PmemNamespace("ns0", "/dev/dax0.0", 2**30, 2**21)
PMEM = {"facts": {"pmem": (NAMESPACE,)}, "settings": {"pmem": parse_pmem_namespaces(["6GB:ns0|ns1"])}}
A100 = "0000:84:00.0"
VFS = tuple(f"0000:41:10.{number}" for number in (0, 2, 4, 6))
VRAM = device_settings({"devices": {"vram_cards": [f"{A100}=40960/4096"]}})
OVS = {
    "bridge_mappings": ["physnet0:br0"],
    "resource_provider_bandwidths": ["br0:1000:2000"],
    "resource_provider_packet_processing_without_direction": [":500"],
}


def with_serial(card: Card) -> Card:
    return replace(
        card,
        device=replace(card.device, serial="MT1"),
        vfs=tuple(replace(vf, serial="MT1") for vf in card.vfs),
    )


def under_vfio(card: Card) -> Card:
    return replace(card, vfs=tuple(replace(vf, driver="vfio-pci") for vf in card.vfs))


def with_vdpa(card: Card) -> Card:
    return (
        replace(card, vdpa={card.vfs[0].address: "/dev/vhost-vdpa-0"}) if card.device.address == NIC else card
    )


SHOWN: Mapping[str, tuple[Example, ...]] = {
    "VCPU": (
        Example(
            Made(host={"cpu_shared_set": frozenset({0, 1}), "reserved_host_cpus": 1}),
            {"node1": {"VCPU": 2}},
            Made(host={"cpu_dedicated_set": frozenset({0, 1})}),
        ),
    ),
    "PCPU": (
        Example(
            Made(
                facts={"online": frozenset({0, 1})},
                host={"cpu_dedicated_set": frozenset({1, 2}), "cpu_power_management": True},
            ),
            {"node1": {"PCPU": 2}},
        ),
    ),
    "MEMORY_MB": (
        Example(PLAIN, {"node1": {"MEMORY_MB": 1472 + 1444}}, None),
        Example(
            Made(settings={"file_backed_mb": 5000}, host={"reserved_host_memory_mb": 0}),
            {"node1": {"MEMORY_MB": 5000}},
            None,
        ),
        Example(
            Made(host={"reserved_huge_pages": (ReservedPages(0, 2048, 16),)}),
            {"node1": {"MEMORY_MB": 1472 + 1444 - 32}},
            None,
        ),
    ),
    "DISK_GB": (Example(PLAIN, {"node1": {"DISK_GB": 40}}, None),),
    "VGPU": (Example(Made(devices={"mdevs": DEVICES.mdevs}), {f"node1_pci_{GPU}": {"VGPU": 16}}),),
    "PGPU": tuple(
        Example(
            Made(specs=(CARD % f', "resource_class": "{name}"',)),
            {PCI: {name: 1}},
            Made(specs=(CARD % "",)),
        )
        for name in ("PGPU", "FPGA", "PCI_DEVICE")
    ),
    "SRIOV_NET_VF": (Example(Made(specs=(NICS,)), {NET: {"SRIOV_NET_VF": 4}}),),
    "CUSTOM_VDPA": (
        Example(
            Made(specs=(NICS,), card=with_vdpa),
            {NET: {"CUSTOM_VDPA": 1}},
            Made(specs=(NICS,)),
        ),
    ),
    "CUSTOM_PCI_*": (Example(Made(specs=(CARD % "",)), {PCI: {"CUSTOM_PCI_10DE_1EB8": 1}}),),
    "NET_BW_EGR_KILOBIT_PER_SEC": (
        Example(
            Made(specs=(NICS,), devices={"bandwidth": {"enp65s0": (1000, 2000)}}),
            {NET: {"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000}},
        ),
        Example(
            Made(settings={"ovs": parse_ovs(OVS, "node1")}),
            {"node1_ovs_br0": {"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000}},
        ),
    ),
    "CUSTOM_HUGEPAGES_*": (
        Example(
            PLAIN,
            {"node1_numa0_pages_2048": {"CUSTOM_HUGEPAGES_2048KIB": 32}},
            Made(capabilities={"cells": tuple(replace(cell, pages={4: 1000}) for cell in CELLS)}),
        ),
    ),
    "MEM_ENCRYPTION_CONTEXT": (
        Example(FEATURES["sev"], {"node1_amd_sev": {"MEM_ENCRYPTION_CONTEXT": 5}}),
        Example(FEATURES["sev-es"], {"node1_amd_sev_es": {"MEM_ENCRYPTION_CONTEXT": 5}}),
        Example(SNP, {"node1_amd_sev_snp": {"MEM_ENCRYPTION_CONTEXT": 5}}),
        Example(FEATURES["tdx"], {"node1_intel_tdx": {"MEM_ENCRYPTION_CONTEXT": 5}}),
    ),
    "CUSTOM_SGX_EPC_MB": (
        Example(
            Made(guests={"epc": {0: 2**30, 1: 2**29}}, settings={"report_numa": True}),
            {
                "node1_numa0_sgx_epc": {"CUSTOM_SGX_EPC_MB": 1024},
                "node1_numa1_sgx_epc": {"CUSTOM_SGX_EPC_MB": 512},
            },
        ),
    ),
    "CUSTOM_CPULESS_MEMORY_MB": (
        Example(
            Made(capabilities=FAR),
            {"node1": {"MEMORY_MB": 1472 + 1444}, "node1_numa2_memory": {"CUSTOM_CPULESS_MEMORY_MB": 700}},
            None,
        ),
    ),
    "CUSTOM_PMEM_NAMESPACE_*": (
        Example(Made(**PMEM), {"node1": {"CUSTOM_PMEM_NAMESPACE_6GB": 1}}, Made(facts=PMEM["facts"])),
    ),
    "CUSTOM_VRAM_*": (
        Example(
            Made(devices={"mdevs": VRAM.mdevs, "mixed": VRAM.mixed}),
            {f"node1_pci_{A100}": {"CUSTOM_VRAM_4096MB": 4}},
        ),
    ),
    "NET_PACKET_RATE_*": (
        Example(
            Made(settings={"ovs": parse_ovs(OVS, "node1")}),
            {"node1_ovs": {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 500}},
        ),
    ),
    "COMPUTE_NODE": (Example(PLAIN, root("COMPUTE_NODE"), None),),
    "COMPUTE_SOCKET_PCI_NUMA_AFFINITY": (
        Example(
            PLAIN,
            root("COMPUTE_SOCKET_PCI_NUMA_AFFINITY"),
            Made(capabilities={"cells": tuple(replace(cell, socket=None) for cell in CELLS)}),
        ),
    ),
    "HW_CPU_HYPERTHREADING": (
        Example(Made(capabilities={"cells": THREADS}), root("HW_CPU_HYPERTHREADING")),
        Example(
            Made(capabilities={"cells": THREADS}),
            root("HW_CPU_HYPERTHREADING"),
            Made(capabilities={"cells": THREADS}, facts={"online": frozenset({0, 2})}),
        ),
    ),
    "HW_CPU_X86_*": (
        Example(
            Made(facts={"cpu_flags": frozenset({"avx2", "vmx"})}), root("HW_CPU_X86_AVX2", "HW_CPU_X86_VMX")
        ),
        Example(FEATURES["sev"], root("HW_CPU_AMD_SEV") | traits("node1_amd_sev", "HW_CPU_X86_AMD_SEV")),
        Example(SNP, traits("node1_amd_sev_snp", "HW_CPU_X86_AMD_SEV_SNP")),
        Example(FEATURES["tdx"], traits("node1_intel_tdx", "HW_CPU_X86_INTEL_TDX")),
        Example(Made(guests={"features": frozenset({"sgx"})}), root("HW_CPU_X86_SGX")),
    ),
    "HW_ARCH_*": (
        Example(PLAIN, root("HW_ARCH_X86_64"), Made(capabilities={"arch": "sparc"})),
        Example(Made(capabilities={"arch": "aarch64"}), root("HW_ARCH_AARCH64"), None),
    ),
    "COMPUTE_ARCH_*": (
        Example(
            Made(capabilities={"guests": {"riscv64": frozenset({"qemu"})}}),
            root("COMPUTE_ARCH_RISCV64"),
            Made(capabilities={"guests": {}}),
        ),
    ),
    "COMPUTE_STORAGE_BUS_*": (
        Example(
            enum("disk.bus", "sata", "virtio"), root("COMPUTE_STORAGE_BUS_SATA", "COMPUTE_STORAGE_BUS_VIRTIO")
        ),
    ),
    "COMPUTE_GRAPHICS_MODEL_*": (
        Example(enum("video.modelType", "qxl"), root("COMPUTE_GRAPHICS_MODEL_QXL")),
    ),
    "COMPUTE_NET_VIF_MODEL_*": (
        Example(PLAIN, root("COMPUTE_NET_VIF_MODEL_E1000E"), Made(capabilities={"arch": "aarch64"})),
        *(replace(each, but=None) for each in since((9, 3, 0), (8, 0, 0), "COMPUTE_NET_VIF_MODEL_IGB")),
    ),
    "COMPUTE_SOUND_MODEL_*": (
        Example(enum("sound.model", "ich9"), root("COMPUTE_SOUND_MODEL_ICH9")),
        Example(
            Made(facts={"libvirt": (10, 4, 0)}, guests={"qemu": (8, 2, 0)}),
            root("COMPUTE_SOUND_MODEL_AC97", "COMPUTE_SOUND_MODEL_VIRTIO"),
            Made(
                facts={"libvirt": (10, 4, 0)}, guests={"qemu": (8, 2, 0), "described": frozenset({"sound"})}
            ),
        ),
    ),
    "COMPUTE_VIOMMU_MODEL_*": (
        Example(
            enum("iommu.model", "smmuv3"), root("COMPUTE_VIOMMU_MODEL_SMMUV3", "COMPUTE_VIOMMU_MODEL_AUTO")
        ),
        Example(
            Made(facts={"libvirt": (8, 3, 0)}, guests={"qemu": (6, 2, 0)}),
            root("COMPUTE_VIOMMU_MODEL_INTEL", "COMPUTE_VIOMMU_MODEL_VIRTIO", "COMPUTE_VIOMMU_MODEL_AUTO"),
            Made(facts={"libvirt": (8, 3, 0)}, guests={"qemu": (6, 2, 0), "described": frozenset({"iommu"})}),
        ),
    ),
    "COMPUTE_NET_VIRTIO_PACKED": tuple(since((6, 3, 0), (4, 2, 0), "COMPUTE_NET_VIRTIO_PACKED")),
    "COMPUTE_SECURITY_TPM_TIS": (
        Example(
            Made(guests={"enums": TPMS}),
            root(*(f"COMPUTE_SECURITY_TPM_{end}" for end in ("TIS", "CRB", "1_2", "2_0"))),
            Made(guests={"enums": {**TPMS, "tpm.backendModel": frozenset({"passthrough"})}}),
        ),
    ),
    "COMPUTE_SECURITY_TPM_SECRET_SECURITY_*": (
        Example(
            Made(guests={"enums": TPMS}, settings={"tpm_secrets": frozenset({"user"})}),
            root("COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER"),
            Made(guests={"enums": TPMS}),
        ),
    ),
    "COMPUTE_SECURITY_UEFI_SECURE_BOOT": (
        Example(
            enum("loader.secure", "yes", "no"),
            root("COMPUTE_SECURITY_UEFI_SECURE_BOOT"),
            enum("loader.secure", "no"),
        ),
    ),
    "COMPUTE_SECURITY_STATELESS_FIRMWARE": tuple(
        since((8, 6, 0), (0, 0, 0), "COMPUTE_SECURITY_STATELESS_FIRMWARE")
    ),
    "COMPUTE_ADDRESS_SPACE_*": tuple(
        since((8, 7, 0), (0, 0, 0), "COMPUTE_ADDRESS_SPACE_PASSTHROUGH", "COMPUTE_ADDRESS_SPACE_EMULATED")
    ),
    "COMPUTE_STORAGE_VIRTIO_FS": (
        Example(
            enum("filesystem.driverType", "virtiofs"),
            root("COMPUTE_STORAGE_VIRTIO_FS"),
            enum("filesystem.driverType", "path"),
        ),
    ),
    "COMPUTE_FIRMWARE_*": (
        Example(enum("os.firmware", "efi", "bios"), root("COMPUTE_FIRMWARE_UEFI", "COMPUTE_FIRMWARE_BIOS")),
    ),
    "COMPUTE_MEM_BACKING_FILE": (
        Example(
            Made(settings={"file_backed_mb": 5000}, host={"reserved_host_memory_mb": 0}),
            root("COMPUTE_MEM_BACKING_FILE"),
        ),
    ),
    "COMPUTE_REMOTE_MANAGED_PORTS": (
        Example(
            Made(specs=(NICS.replace("}", ', "remote_managed": "true"}'),), card=with_serial),
            root("COMPUTE_REMOTE_MANAGED_PORTS"),
            Made(specs=(NICS,), card=with_serial),
        ),
    ),
    "CUSTOM_OWNER_PLIMSOLL": (Example(PLAIN, root(OWNER_TRAIT), None),),
    "HW_NUMA_ROOT": (Example(Made(settings={"report_numa": True}), traits("node1_numa1", "HW_NUMA_ROOT")),),
    "HW_PCI_LIVE_MIGRATABLE": (
        Example(
            Made(specs=(CARD % ', "live_migratable": "yes", "one_time_use": "true"',)),
            traits(PCI, "HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE"),
            Made(specs=(CARD % "",)),
        ),
    ),
    "CUSTOM_VFIO_DRIVER_*": (
        Example(
            Made(specs=(NICS,), kernel={"migration_drivers": dict.fromkeys(VFS, "mlx5_vfio_pci")}),
            traits(NET, "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI", "HW_PCI_LIVE_MIGRATABLE"),
            Made(specs=(NICS,)),
        ),
        Example(
            Made(specs=(NICS,), card=under_vfio),
            traits(NET, "CUSTOM_VFIO_DRIVER_VFIO_PCI"),
            Made(specs=(NICS,)),
        ),
    ),
    "CUSTOM_VGPU_DRIVER_NVIDIA_*": (
        Example(
            Made(devices={"mdevs": DEVICES.mdevs}, kernel={"vgpu_branch": "550"}),
            traits(f"node1_pci_{GPU}", "CUSTOM_VGPU_DRIVER_NVIDIA_550"),
            Made(devices={"mdevs": DEVICES.mdevs}),
        ),
    ),
    "CUSTOM_MEMORY_CXL": tuple(
        Example(
            Made(capabilities=FAR, kernel={"memory_cells": {2: MemoryCell(kind, 0, 14)}}),
            traits("node1_numa2_memory", f"CUSTOM_MEMORY_{kind.upper()}", "CUSTOM_MEMORY_DISTANCE_14"),
        )
        for kind in MEMORY_KINDS
    ),
    "CUSTOM_CC": tuple(
        Example(
            replace(FEATURES["tdx"], specs=(CARD % f', "cc_mode": "{mode}"',)),
            traits(PCI, *names),
            replace(FEATURES["tdx"], specs=(CARD % "",)),
        )
        for mode, names in (
            ("on", ("CUSTOM_CC", "CUSTOM_CC_ON")),
            ("devtools", ("CUSTOM_CC", "CUSTOM_CC_DEVTOOLS")),
            ("off", ("CUSTOM_CC_OFF",)),
        )
    ),
    "HW_GPU_*": (
        Example(
            Made(specs=(CARD % ', "traits": "HW_GPU_API_VULKAN,HW_NIC_SRIOV,STORAGE_DISK_SSD"',)),
            traits(PCI, "HW_GPU_API_VULKAN", "HW_NIC_SRIOV", "STORAGE_DISK_SSD"),
            Made(specs=(CARD % "",)),
        ),
    ),
}
"""{first name of a row: examples of it}"""

ELSEWHERE = {
    "COMPUTE_STATUS_DISABLED": "tests/functional/cli/test_pause.py",
    "CUSTOM_PCIE_SWITCH": "tests/functional/tracker/test_libvirt_classes.py",
}
"""{first name of a row that is not about the driver, or whose tests need claims: the file that names it}"""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=f"{name}-{number}")
        for name, each in SHOWN.items()
        for number, example in enumerate(each)
    ],
)
def test_the_tree_of_a_host_has_what_the_row_says_under_its_condition_and_not_without(
    example: Example,
) -> None:
    by_name = {provider.name: provider for provider in tree(example.made).tree}
    for name, wanted in example.has.items():
        found = by_name[name]
        if isinstance(wanted, frozenset):
            assert wanted <= found.traits
        else:
            assert {each: found.inventories[each].total for each in wanted} == wanted
    if example.but is not None:
        without = frozenset().union(*map(names_of, tree(example.but).tree))
        assert not without & frozenset().union(*example.has.values())


def test_reserved_amounts_are_those_of_the_settings() -> None:
    made = Made(
        facts={"image_cache_mb": 2048},
        host={"reserved_host_disk_mb": 1024, "reserved_host_memory_mb": 300, "reserved_host_cpus": 1},
    )
    inventories = tree(made).tree[ROOT].inventories
    assert {name: inventories[name].reserved for name in inventories} == {
        "DISK_GB": 3,
        "MEMORY_MB": 300,
        "VCPU": 1,
    }


def test_an_offline_dedicated_cpu_without_power_management_is_not_offered() -> None:
    made = Made(facts={"online": frozenset({0, 1})}, host={"cpu_dedicated_set": frozenset({1, 2})})
    (units,) = tree(made).units.values()
    assert units == {"PCPU": ("1",)}


EVERYTHING = Made(
    facts={**PMEM["facts"], "cpu_flags": frozenset({"avx2"}), "libvirt": (12, 0, 0)},
    guests={
        "enums": TPMS,
        "features": frozenset({"sev", "sgx"}),
        "slots": {"sev": 5},
        "qemu": (11, 0, 0),
    },
    host={"cpu_shared_set": frozenset({0, 1}), "cpu_dedicated_set": frozenset({2, 3})},
    settings={"pmem": PMEM["settings"]["pmem"], "ovs": parse_ovs(OVS, "node1"), "report_numa": True},
    devices={"mdevs": DEVICES.mdevs},
    specs=(CARD % "", NICS),
)


@cache
def everything() -> Any:
    return tree(EVERYTHING)


def all_names(row: HostRow) -> frozenset[str]:
    """The standard names of the row, and those that it gives itself."""
    known = {*STANDARD, *os_resource_classes.STANDARDS, *(name for name in row.names if "*" not in name)}
    return frozenset(name for name in known if any(fnmatchcase(name, pattern) for pattern in row.names))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.reported is not Reported.YES], ids=lambda row: row.names[0]
)
def test_what_the_agent_does_not_report_by_itself_is_in_no_tree(row: HostRow) -> None:
    assert all_names(row)
    found = frozenset().union(*map(names_of, everything().tree))
    assert not all_names(row) & (found | described(EVERYTHING).reportable)


@pytest.mark.parametrize(
    "row", [row for row in TRAITS if row.reported is Reported.LEFT], ids=lambda row: row.names[0]
)
def test_a_trait_that_is_left_to_others_is_kept_where_another_set_it(row: HostRow) -> None:
    before = everything()
    theirs = all_names(row)
    current = before.tree
    for provider in before.tree:
        current = current.with_provider(replace(provider, traits=provider.traits | theirs))
    after = tree(EVERYTHING, current, before.owned).tree
    assert all(theirs <= provider.traits for provider in after)


def test_each_row_is_shown() -> None:
    """A row of the page without a test fails here."""
    shown = {name for row in ROWS if row.reported is Reported.YES for name in row.names[:1]}
    assert shown <= SHOWN.keys() | ELSEWHERE.keys()
    assert SHOWN.keys() | ELSEWHERE.keys() <= {row.names[0] for row in ROWS}
    for name, examples in SHOWN.items():
        row = next(row for row in ROWS if row.names[0] == name)
        names = frozenset().union(*(wanted for example in examples for wanted in example.has.values()))
        for pattern in row.names:
            assert any(fnmatchcase(each, pattern) for each in names), pattern


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_row_that_is_not_the_drivers_is_named_by_the_tests_of_its_file(name: str) -> None:
    assert name in (CHECKOUT / ELSEWHERE[name]).read_text("utf-8")


def test_each_standard_name_has_one_row() -> None:
    for name in (*STANDARD, *os_resource_classes.STANDARDS):
        rows = [row for row in ROWS if any(fnmatchcase(name, one) for one in row.names)]
        assert rows == [row_of(name)], name


def test_an_unknown_name_has_no_row() -> None:
    assert row_of("COMPUTE_MAGIC") is None
