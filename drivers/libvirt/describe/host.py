"""The host as libvirt reports it, and the answers of `Driver` from all that was read of it. Pure.

What libvirt reports of the host's CPU and of its guests becomes standard traits. A trait that libvirt does
not report is left out; NETWORK_CARDS is the one exception. Then come the host's cells and its provider, and
with devices and domains the model of the whole host.

Sources: libvirt's src/cpu_map (the names of flags), https://libvirt.org/formatdomaincaps.html, the comments
of os-traits, nova 34, nova/virt/libvirt/driver.py (_get_cpu_feature_traits), and
https://libvirt.org/formatdomain.html#cpu-model-and-topology
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from xml.etree import ElementTree

from agent.device_names import EPC_CLASS
from agent.driver import Cell, DescribedProvider, Description, DomainNeeds, Guest, HostSettings, Topology
from agent.errors import DriverDataError, SettingsError
from agent.shapes import shares
from drivers.host.domain_xml import Domain, DomainXml
from drivers.host.providers import (
    MEMORY_FILES,
    REPORTABLE,
    UnitLocation,
    cell_provider_name,
    host_providers,
    locate_units,
    page_providers,
    split_cpus,
    with_file_backed_memory,
    without_reserved_pages,
)
from drivers.host.sysfs import PmemNamespace
from drivers.libvirt.describe import memory, mixed_sizes
from drivers.libvirt.describe.bandwidth import OvsSettings, ovs_providers
from drivers.libvirt.describe.cards import DeviceHistory, UnitRecord, has_remote_managed_ports
from drivers.libvirt.describe.devices import (
    DeviceFacts,
    DeviceSettings,
    GuestDomain,
    card_contexts,
    describe_cards,
    needed_vdpa,
    unusable_modes,
    usable,
    vdpa_functions,
    with_peers,
    with_vdpa,
)
from drivers.libvirt.describe.history import (
    missing_records,
    moves_of,
    record_cells,
    record_classes,
    record_interfaces,
    record_slots,
    restore_interfaces,
    unit_locations,
    update_records,
)
from drivers.libvirt.xml import Capabilities, DomainCapabilities, Version

# The CPU that guests get, as [libvirt] cpu_mode and cpu_models say: its flags become traits

MODES = (
    ("host-model", "the host's CPU model, as libvirt knows it"),
    ("host-passthrough", "the host's CPU itself"),
    ("custom", "cpu_models"),
    ("none", "QEMU's default model"),
)
_DEFAULT_MODELS = {"x86_64": "qemu64", "i686": "qemu32", "ppc64": "POWER8", "ppc64le": "POWER8"}


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The options. `mode` None is host-model, or the host's CPU where libvirt has no model of it.

    `extra_flags` are libvirt's names of flags that guests have beside those of the model, with a minus of
    those that they do not have.
    """

    mode: str | None = None
    models: tuple[str, ...] = ()
    extra_flags: tuple[str, ...] = ()

    @classmethod
    def of(cls, mode: str | None, models: Collection[str], extra_flags: Collection[str]) -> "CpuModel":
        """The options of [libvirt]. Raises SettingsError where one contradicts another."""
        if mode == "custom" and not models:
            raise SettingsError("[libvirt] cpu_mode = custom needs cpu_models", option="cpu_models")
        if models and mode != "custom":
            raise SettingsError("[libvirt] cpu_models needs cpu_mode = custom", option="cpu_models")
        if extra_flags and mode == "none":
            raise SettingsError(
                "[libvirt] cpu_model_extra_flags needs another cpu_mode than none",
                option="cpu_model_extra_flags",
            )
        return cls(mode, tuple(models), tuple(flag.strip().lower() for flag in extra_flags))

    def elements(self, arch: str, host: str, host_model: str) -> tuple[str, ...]:
        """The <cpu> elements whose flags guests have, each as text.

        `host` and `host_model` are those of the host and of libvirt's model of it, "" if there is none.
        """
        if self.mode == "custom":
            return tuple(_cpu_element(arch, model) for model in self.models)
        if self.mode == "none":
            return (_cpu_element(arch, _DEFAULT_MODELS[arch]),) if arch in _DEFAULT_MODELS else ()
        chosen = host if self.mode == "host-passthrough" else host_model or host
        return (chosen,) if chosen else ()

    def flags(self, of_models: frozenset[str]) -> frozenset[str]:
        """The flags that guests have, from those of their models."""
        added = {flag.removeprefix("+") for flag in self.extra_flags if not flag.startswith("-")}
        return (of_models | added) - {flag[1:] for flag in self.extra_flags if flag.startswith("-")}


def _cpu_element(arch: str, model: str) -> str:
    cpu = ElementTree.Element("cpu")
    ElementTree.SubElement(cpu, "arch").text = arch
    ElementTree.SubElement(cpu, "model").text = model
    return ElementTree.tostring(cpu, encoding="unicode")


# Traits

CPU_FLAGS: dict[str, tuple[str, ...]] = {
    "3dnow": ("3DNOW",),
    "abm": ("ABM",),
    "aes": ("AESNI",),
    "amd-no-ssb": ("AMD_NO_SSB",),
    "amd-ssbd": ("AMD_SSBD",),
    "amx-bf16": ("AMXBF16",),
    "amx-int8": ("AMXINT8",),
    "amx-tile": ("AMXTILE",),
    "avx": ("AVX",),
    "avx2": ("AVX2",),
    "avx512-vpopcntdq": ("AVX512VPOPCNTDQ",),
    "avx512bitalg": ("AVX512BITALG",),
    "avx512bw": ("AVX512BW",),
    "avx512cd": ("AVX512CD",),
    "avx512dq": ("AVX512DQ",),
    "avx512er": ("AVX512ER",),
    "avx512f": ("AVX512F",),
    "avx512ifma": ("AVX512IFMA",),
    "avx512pf": ("AVX512PF",),
    "avx512vbmi": ("AVX512VBMI",),
    "avx512vbmi2": ("AVX512VBMI2",),
    "avx512vl": ("AVX512VL",),
    "avx512vnni": ("AVX512VNNI",),
    "bmi1": ("BMI",),
    "bmi2": ("BMI2",),
    "f16c": ("F16C",),
    "fma": ("FMA3",),
    "fma4": ("FMA4",),
    "gfni": ("AVX512GFNI",),
    "ibpb": ("AMD_IBPB",),
    "md-clear": ("INTEL_MD_CLEAR",),
    "mmx": ("MMX",),
    "mpx": ("MPX",),
    "pcid": ("INTEL_PCID",),
    "pclmuldq": ("CLMUL",),
    "pclmulqdq": ("CLMUL",),
    "pdpe1gb": ("PDPE1GB",),
    "pni": ("SSE3",),
    "rtm": ("TSX",),
    "sha-ni": ("SHA",),
    "spec-ctrl": ("INTEL_SPEC_CTRL",),
    "ssbd": ("INTEL_SSBD",),
    "sse": ("SSE",),
    "sse2": ("SSE2",),
    "sse4.1": ("SSE41",),
    "sse4.2": ("SSE42",),
    "sse4a": ("SSE4A",),
    "ssse3": ("SSSE3",),
    "stibp": ("STIBP",),
    "svm": ("SVM", "AMD_SVM"),
    "tbm": ("TBM",),
    "vaes": ("AVX512VAES",),
    "virt-ssbd": ("AMD_VIRT_SSBD",),
    "vmx": ("VMX", "INTEL_VMX"),
    "vpclmulqdq": ("AVX512VPCLMULQDQ",),
    "xop": ("XOP",),
}
"""{libvirt's name of an x86 flag: the ends of its HW_CPU_X86_ traits}"""

_ARCHITECTURES = {
    "aarch64": "AARCH64",
    "i686": "I686",
    "mipsel": "MIPSEL",
    "ppc64": "PPC64",
    "ppc64le": "PPC64LE",
    "s390x": "S390X",
    "x86_64": "X86_64",
}
_GUEST_ARCHITECTURES = {"aarch64", "mipsel", "ppc64le", "riscv64", "s390x", "x86_64"}

_ENUMS: dict[str, tuple[str, frozenset[str]]] = {
    "disk.bus": (
        "COMPUTE_STORAGE_BUS_",
        frozenset({"fdc", "ide", "sata", "scsi", "usb", "virtio", "uml", "xen"}),
    ),
    "video.modelType": (
        "COMPUTE_GRAPHICS_MODEL_",
        frozenset({"bochs", "cirrus", "gop", "none", "qxl", "vga", "virtio", "vmvga", "xen"}),
    ),
    "sound.model": (
        "COMPUTE_SOUND_MODEL_",
        frozenset({"sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb", "virtio"}),
    ),
    "iommu.model": ("COMPUTE_VIOMMU_MODEL_", frozenset({"intel", "smmuv3", "virtio"})),
}
"""{enumeration of the domain capabilities: (start of the trait, values for which os-traits has one)}"""

_SINGLE = {
    ("os.firmware", "bios"): "COMPUTE_FIRMWARE_BIOS",
    ("os.firmware", "efi"): "COMPUTE_FIRMWARE_UEFI",
    ("loader.type", "rom"): "COMPUTE_FIRMWARE_BIOS",
    ("filesystem.driverType", "virtiofs"): "COMPUTE_STORAGE_VIRTIO_FS",
}

_FEATURES = {
    "sev": ("HW_CPU_X86_AMD_SEV", "HW_CPU_AMD_SEV"),
    "sev-es": ("HW_CPU_X86_AMD_SEV_ES",),
    "sev-snp": ("HW_CPU_X86_AMD_SEV_SNP",),
    "tdx": ("HW_CPU_X86_INTEL_TDX",),
    "sgx": ("HW_CPU_X86_SGX",),
}

_VERSIONED: Mapping[str, tuple[Version, Version]] = {
    "COMPUTE_SECURITY_STATELESS_FIRMWARE": ((8, 6, 0), (0, 0, 0)),
    "COMPUTE_ADDRESS_SPACE_PASSTHROUGH": ((8, 7, 0), (0, 0, 0)),
    "COMPUTE_ADDRESS_SPACE_EMULATED": ((8, 7, 0), (0, 0, 0)),
    "COMPUTE_NET_VIRTIO_PACKED": ((6, 3, 0), (4, 2, 0)),
}
_CARDS_X86: Mapping[str, tuple[Version, Version]] = {"IGB": ((9, 3, 0), (8, 0, 0))}
_UNDESCRIBED: Mapping[str, Mapping[str, tuple[Version, Version]]] = {
    "sound": {
        **{
            f"COMPUTE_SOUND_MODEL_{model}": ((0, 0, 1), (0, 0, 1))
            for model in ("SB16", "ES1370", "PCSPK", "AC97", "ICH6", "ICH9", "USB")
        },
        "COMPUTE_SOUND_MODEL_VIRTIO": ((10, 4, 0), (8, 2, 0)),
    },
    "iommu": {
        "COMPUTE_VIOMMU_MODEL_INTEL": ((0, 0, 1), (0, 0, 1)),
        "COMPUTE_VIOMMU_MODEL_VIRTIO": ((8, 3, 0), (0, 0, 1)),
    },
}
"""Traits by the least versions of libvirt and QEMU, as nova has them. Those of _UNDESCRIBED count for x86
guests, and only where libvirt does not describe this kind of device."""

_VIOMMU_AUTO = "COMPUTE_VIOMMU_MODEL_AUTO"
_SECURE_BOOT = "COMPUTE_SECURITY_UEFI_SECURE_BOOT"
_TPM_MODELS = frozenset({"tpm-tis", "tpm-crb"})
_TPM_VERSIONS = frozenset({"1.2", "2.0"})

NETWORK_CARDS = ("E1000", "E1000E", "NE2K_PCI", "PCNET", "RTL8139", "VIRTIO", "VMXNET3")
"""libvirt does not report network cards; every QEMU for x86 has these, and nova reports them too."""


def host_traits(
    capabilities: Capabilities, online: frozenset[int], cpu_flags: frozenset[str]
) -> frozenset[str]:
    """The traits of the host: COMPUTE_NODE, HW_ARCH_, COMPUTE_ARCH_, HW_CPU_, and the one for known sockets.

    `cpu_flags` are libvirt's names of the flags that guests can have.
    """
    traits = {"COMPUTE_NODE"}
    if capabilities.arch in _ARCHITECTURES:
        traits.add(f"HW_ARCH_{_ARCHITECTURES[capabilities.arch]}")
    traits.update(
        f"COMPUTE_ARCH_{arch.upper()}" for arch in _GUEST_ARCHITECTURES & capabilities.guests.keys()
    )
    if capabilities.arch in ("x86_64", "i686"):
        traits.update(f"HW_CPU_X86_{name}" for flag in cpu_flags for name in CPU_FLAGS.get(flag, ()))
    if any(len(core & online) > 1 for cell in capabilities.cells for core in cell.siblings):
        traits.add("HW_CPU_HYPERTHREADING")
    if any(cell.socket is not None for cell in capabilities.cells):
        traits.add("COMPUTE_SOCKET_PCI_NUMA_AFFINITY")
    return frozenset(traits)


def guest_traits(capabilities: DomainCapabilities, arch: str, libvirt: Version = (0, 0, 0)) -> frozenset[str]:
    """The traits of what guests can have: COMPUTE_STORAGE_, COMPUTE_GRAPHICS_, COMPUTE_FIRMWARE_ and more."""
    traits: set[str] = set()
    for enum, (start, known) in _ENUMS.items():
        traits.update(start + value.upper() for value in capabilities.enums.get(enum, frozenset()) & known)
    for (enum, value), trait in _SINGLE.items():
        if value in capabilities.enums.get(enum, ()):
            traits.add(trait)
    for feature, names in _FEATURES.items():
        if feature in capabilities.features:
            traits.update(names)
    if "yes" in capabilities.enums.get("loader.secure", ()):
        traits.add(_SECURE_BOOT)
    if capabilities.domain_type in ("kvm", "qemu"):
        traits |= _versioned_traits(capabilities, arch in ("x86_64", "i686"), libvirt)
    if any(trait.startswith("COMPUTE_VIOMMU_MODEL_") for trait in traits):
        traits.add(_VIOMMU_AUTO)
    # Of TPMs only emulated ones: the host's own TPM is for one guest only.
    if "emulator" in capabilities.enums.get("tpm.backendModel", ()):
        models = capabilities.enums.get("tpm.model", frozenset()) & _TPM_MODELS
        # libvirt before 8.6 does not report the versions; every swtpm has 2.0
        versions = capabilities.enums.get("tpm.backendVersion", frozenset({"2.0"})) & _TPM_VERSIONS
        traits |= {*map(_tpm_model_trait, models), *map(_tpm_version_trait, versions)}
    return frozenset(traits)


def _versioned_traits(capabilities: DomainCapabilities, x86: bool, libvirt: Version) -> set[str]:
    """The traits of what libvirt does not describe, and QEMU has from a version on."""

    def has(least: tuple[Version, Version]) -> bool:
        return libvirt >= least[0] and capabilities.qemu >= least[1]

    traits = {trait for trait, least in _VERSIONED.items() if has(least)}
    if x86:
        traits |= _network_card_traits()
        traits |= {f"COMPUTE_NET_VIF_MODEL_{card}" for card, least in _CARDS_X86.items() if has(least)}
        for kind, models in _UNDESCRIBED.items():
            if kind not in capabilities.described:
                traits |= {trait for trait, least in models.items() if has(least)}
    return traits


def reportable_host_traits() -> frozenset[str]:
    """All traits that `host_traits` could return, for any host."""
    return frozenset(
        {
            "COMPUTE_NODE",
            "HW_CPU_HYPERTHREADING",
            "COMPUTE_SOCKET_PCI_NUMA_AFFINITY",
            *(f"HW_ARCH_{name}" for name in _ARCHITECTURES.values()),
            *(f"COMPUTE_ARCH_{arch.upper()}" for arch in _GUEST_ARCHITECTURES),
            *(f"HW_CPU_X86_{name}" for names in CPU_FLAGS.values() for name in names),
        }
    )


def reportable_guest_traits() -> frozenset[str]:
    """All traits that `guest_traits` could return, for any domain capabilities."""
    return frozenset(
        {
            _SECURE_BOOT,
            _VIOMMU_AUTO,
            *_VERSIONED,
            *(f"COMPUTE_NET_VIF_MODEL_{card}" for card in _CARDS_X86),
            *(start + value.upper() for start, values in _ENUMS.values() for value in values),
            *_SINGLE.values(),
            *(name for names in _FEATURES.values() for name in names),
            *_network_card_traits(),
            *map(_tpm_model_trait, _TPM_MODELS),
            *map(_tpm_version_trait, _TPM_VERSIONS),
        }
    )


def _network_card_traits() -> frozenset[str]:
    return frozenset(f"COMPUTE_NET_VIF_MODEL_{model}" for model in NETWORK_CARDS)


def _tpm_model_trait(model: str) -> str:
    return f"COMPUTE_SECURITY_TPM_{model.removeprefix('tpm-').upper()}"


def _tpm_version_trait(version: str) -> str:
    return f"COMPUTE_SECURITY_TPM_{version.replace('.', '_')}"


# How the secrets of emulated TPMs are kept: traits that an operator lists, as nova's option does

WAYS = ("user", "host", "deployment")

_VERSIONS = frozenset({"COMPUTE_SECURITY_TPM_1_2", "COMPUTE_SECURITY_TPM_2_0"})


def tpm_secret_traits(ways: Collection[str]) -> frozenset[str]:
    """The traits of these ways; of none of them, if no way is listed: another service may set them."""
    return frozenset(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{way.upper()}" for way in (WAYS if ways else ()))


def with_tpm_secrets(
    described: Sequence[DescribedProvider], ways: Collection[str]
) -> tuple[DescribedProvider, ...]:
    """The description, whose host has the traits of these ways if guests can have a TPM."""
    host, *others = described
    if not _VERSIONS & host.traits:
        return tuple(described)
    traits = frozenset(f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{way.upper()}" for way in ways)
    return (replace(host, traits=host.traits | traits), *others)


# The host and its cells


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All that was read of the host.

    `online` are the ids of the online CPUs, `offline` the cells {CPU: cell} of the others by sysfs, None
    where it does not tell. `cpu_flags` are libvirt's names of the CPU flags that guests can have. `guests` is
    None where libvirt does not tell what guests can have. `libvirt` is its version, zeros where unknown.
    """

    capabilities: Capabilities
    guests: DomainCapabilities | None
    cpu_flags: frozenset[str]
    online: frozenset[int]
    memory_mb: int
    disk_gb: int
    pmem: tuple[PmemNamespace, ...] = ()
    image_cache_mb: int = 0
    offline: Mapping[int, int | None] = field(default_factory=dict)
    libvirt: Version = (0, 0, 0)

    @property
    def cells_without_cpus(self) -> tuple[Cell, ...]:
        """The cells that have memory and not even offline CPUs; none of a host whose cells have no CPUs."""
        cells, offline = self.capabilities.cells, set(self.offline.values())
        alone = tuple(cell for cell in cells if not cell.cpus and cell.id not in offline)
        return alone if len(alone) < len(cells) else ()

    def with_cells(self, cells: tuple[Cell, ...]) -> "HostFacts":
        """The facts with these cells."""
        return replace(self, capabilities=replace(self.capabilities, cells=cells))


def describe_host(
    facts: HostFacts, settings: HostSettings, name: str, *, report_numa: bool = False
) -> tuple[DescribedProvider, ...]:
    """The provider of the host, called `name`, and those of its cells, if they are reported."""
    capabilities = facts.capabilities
    traits = host_traits(capabilities, facts.online, facts.cpu_flags)
    if facts.guests is not None:
        of_guests = guest_traits(facts.guests, capabilities.arch, facts.libvirt)
        traits |= of_guests - memory.moved_traits(facts.guests)
    return host_providers(name, host_cells(facts), facts.disk_gb, traits, settings, report_numa=report_numa)


def with_managed_cpus(facts: HostFacts, settings: HostSettings) -> HostFacts:
    """The facts, with dedicated CPUs that a power manager may have taken offline as if they were online."""
    if not settings.cpu_power_management or settings.cpu_power_management_strategy != "cpu_state":
        return facts
    cells = facts.capabilities.cells
    dedicated = settings.cpu_dedicated_set or frozenset()
    left_out = dedicated - frozenset[int]().union(*(cell.cpus for cell in cells))
    only = cells[0].id if len(cells) == 1 else None
    on = {cpu: only if cell is None else cell for cpu, cell in facts.offline.items() if cpu in left_out}
    with_cores = []
    for cell in cells:  # libvirt leaves CPUs out that are offline; each is a core alone
        own = frozenset(cpu for cpu in on if on[cpu] == cell.id)
        siblings = sorted((*cell.siblings, *(frozenset({cpu}) for cpu in own)), key=min)
        with_cores.append(replace(cell, cpus=cell.cpus | own, siblings=tuple(siblings)))
    cells = tuple(with_cores)
    present = frozenset[int]().union(*(cell.cpus for cell in cells))
    return replace(facts.with_cells(cells), online=facts.online | (dedicated & present))


def offered_facts(facts: HostFacts, settings: HostSettings, file_backed_mb: int = 0) -> HostFacts:
    """The facts of what guests can have.

    That is: the CPUs of `with_managed_cpus`; without the large pages that are kept for the host, and without
    cells that have no CPUs; and with `file_backed_mb` an equal share of memory in files in each cell.
    """
    with_cpus = [cell for cell in facts.capabilities.cells if cell not in facts.cells_without_cpus]
    cells = with_file_backed_memory(with_cpus, file_backed_mb)
    facts = replace(facts.with_cells(cells), memory_mb=file_backed_mb or facts.memory_mb)
    facts = with_managed_cpus(facts, settings)
    return facts.with_cells(without_reserved_pages(facts.capabilities.cells, settings.reserved_huge_pages))


def reportable_traits(facts: HostFacts) -> frozenset[str]:
    """The standard traits that the driver could report of this host (`Description.reportable`).

    Without those of guests where libvirt did not tell what guests can have.
    """
    of_guests = reportable_guest_traits() if facts.guests is not None else frozenset[str]()
    return reportable_host_traits() | of_guests | {REMOTE_MANAGED_PORTS, MEMORY_FILES} | REPORTABLE


def describe_topology(facts: HostFacts, settings: HostSettings) -> Topology:
    """The cells and the CPU sets. Raises DriverDataError where a CPU is in two cells."""
    cells = host_cells(facts)
    return Topology(cells, *split_cpus(frozenset().union(*(cell.cpus for cell in cells)), settings))


def host_cells(facts: HostFacts) -> tuple[Cell, ...]:
    """The cells with their online CPUs.

    If libvirt reports no cells, the host is one cell; if it reports cells without memory, they share the
    host's memory evenly. Raises DriverDataError where a CPU is in two cells.
    """
    online = facts.online
    cells = tuple(
        replace(
            cell,
            cpus=cell.cpus & online,
            siblings=tuple(core & online for core in cell.siblings if core & online),
        )
        for cell in facts.capabilities.cells
    )
    if not any(cell.cpus for cell in cells):
        return (
            Cell(0, facts.online, facts.memory_mb, tuple(frozenset({cpu}) for cpu in sorted(facts.online))),
        )
    if len(frozenset().union(*(cell.cpus for cell in cells))) != sum(len(cell.cpus) for cell in cells):
        raise DriverDataError("the host's capabilities: a CPU is in two NUMA cells")
    if not any(cell.memory_mb for cell in cells):
        memory_mb = shares(facts.memory_mb, len(cells))
        cells = tuple(replace(cell, memory_mb=mb) for cell, mb in zip(cells, memory_mb, strict=True))
    return cells


# The model of the host: the answers of the driver

REMOTE_MANAGED_PORTS = "COMPUTE_REMOTE_MANAGED_PORTS"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`name` is the host's; with `report_numa` each cell has a provider with its CPUs, memory and devices.

    `tpm_secrets` are the ways of keeping the secrets of emulated TPMs that this host's control plane has,
    `pmem` the classes of configured namespaces of persistent memory. With `file_backed_mb` the memory
    of guests is in files of that size together. `cpuless` are the kinds of memory that guests can have of
    cells without CPUs.
    """

    name: str
    host: HostSettings
    devices: DeviceSettings
    report_numa: bool = False
    tpm_secrets: frozenset[str] = frozenset()
    pmem: memory.PmemLabels = field(default_factory=dict)
    ovs: OvsSettings = field(default_factory=OvsSettings)
    file_backed_mb: int = 0
    cpuless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostModel:
    """The answers of `Driver`, and what the driver needs for the next model.

    `units` {unit: record} and `history` are to be remembered. `missing` are the records of units that domains
    name and that do not exist now. `locations` {unit: location} has all described units. `encryption` are the
    traits of `memory.counted_encryption`, `pmem` the namespaces of persistent memory.
    """

    description: Description
    topology: Topology
    guests: tuple[Guest, ...]
    units: Mapping[str, UnitRecord]
    missing: tuple[UnitRecord, ...]
    devices: DeviceFacts
    locations: Mapping[str, UnitLocation]
    history: DeviceHistory
    encryption: frozenset[str] = frozenset()
    pmem: tuple[PmemNamespace, ...] = ()


def build_model(
    host: HostFacts,
    devices: DeviceFacts,
    domains: Sequence[GuestDomain],
    known: Mapping[str, UnitRecord],
    boot: str,
    settings: ModelSettings,
    history: DeviceHistory | None = None,
) -> HostModel:
    """The model of a host. The guests of `domains` have their devices as the XML names them.

    `known` are the records and `history` the history of the model before; `boot` is the id of the host's
    current boot. Raises DriverDataError where device specs contradict.
    """
    # The disk of cached images is among what guests do not get.
    reserved_mb = settings.host.reserved_host_disk_mb + host.image_cache_mb
    settings = replace(settings, host=replace(settings.host, reserved_host_disk_mb=reserved_mb))
    alone, guests = host.cells_without_cpus, [pair.guest for pair in domains]
    unusable = [*memory.unusable_cells(devices.memory_cells, host.capabilities.cells)]
    near = {cell.id: devices.near_cell(cell.id) for cell in alone}
    host = offered_facts(host, settings.host, settings.file_backed_mb)
    devices = usable(devices, host.guests, host.libvirt)
    history = record_slots(record_interfaces(history or {}, devices.cards), devices.cards, known)
    devices = replace(devices, cards=restore_interfaces(devices.cards, history))
    history = mixed_sizes.record_sizes(history, devices, settings.devices)
    devices = mixed_sizes.restore_sizes(devices, history, settings.devices)
    domains = with_vdpa(domains, devices.cards)
    domains = mixed_sizes.with_vgpus(domains, mixed_sizes.vgpu_units(devices, settings.devices, known))
    named = frozenset(
        unit
        for domain in (pair.domain for pair in domains if pair.domain is not None)
        for unit in (*domain.pci_devices, *domain.interfaces, *domain.mdevs)
    )
    missing = missing_records(named, devices, settings.devices, known)
    host_and_cells = _host_and_cells(host, devices, settings)
    cells = host_cells(host)
    parent_of = _parent_names(host_and_cells, settings)
    contexts = card_contexts(devices, settings.devices, named, missing)
    cards = (
        *describe_cards(filterfalse(mixed_sizes.offers_sizes, contexts), settings.name, parent_of),
        *mixed_sizes.describe_mixed(filter(mixed_sizes.offers_sizes, contexts), settings.name, parent_of),
    )
    pages = page_providers(settings.name, cells, report_numa=settings.report_numa)
    keys = memory.encryption_providers(settings.name, host.guests)
    encryption = memory.counted_encryption(host.guests)
    enclaves = memory.epc_providers(settings.name, host.guests, report_numa=settings.report_numa)
    switch = ovs_providers(settings.name, settings.ovs)
    cpuless = memory.cpuless_providers(alone, devices.memory_cells, settings.cpuless, guests, parent_of)
    cards = with_peers(cards, devices, settings.devices.peers, settings.name)
    providers = (*host_and_cells, *keys, *enclaves, *pages, *cpuless, *cards, *switch)
    unusable += unusable_modes(providers, host.guests)
    locations = unit_locations(providers, devices, settings.devices, missing)
    located = [
        GuestDomain(with_devices_of_domain(guest, domain, encryption, host.pmem, settings, near), domain)
        for guest, domain in (
            (locate_units(pair.guest, locations, devices.with_facts), pair.domain) for pair in domains
        )
    ]
    with_mdevs = {card.key for card in devices.cards if card.mdev_parents or card.mdevs}
    history = record_cells(record_classes(history, cards, with_mdevs), providers)
    moves = moves_of(providers, _cell_totals(cells, settings), located, cells, history)
    all_read = all(guest_domain.domain is not None for guest_domain in domains)
    return HostModel(
        Description(
            providers,
            moves,
            reportable_traits(host) | tpm_secret_traits(settings.tpm_secrets),
            (*mixed_sizes.contradictions(devices, settings.devices), *unusable),
        ),
        replace(describe_topology(host, settings.host), near=near),
        tuple(guest_domain.guest for guest_domain in located),
        update_records(named, devices, settings.devices, locations, known, boot, forget=all_read),
        tuple(missing),
        devices,
        locations,
        history,
        encryption,
        host.pmem,
    )


def _host_and_cells(
    host: HostFacts, devices: DeviceFacts, settings: ModelSettings
) -> tuple[DescribedProvider, ...]:
    """The providers of the host and its cells, with what the settings and the devices add to the host's."""
    described = describe_host(host, settings.host, settings.name, report_numa=settings.report_numa)
    described = with_tpm_secrets(described, settings.tpm_secrets)
    root, *cells = memory.with_namespaces(described, host.pmem, settings.pmem)
    traits = {MEMORY_FILES} if settings.file_backed_mb else set()
    if has_remote_managed_ports(devices.cards, settings.devices.specs):
        traits.add(REMOTE_MANAGED_PORTS)
    return (replace(root, traits=root.traits | traits), *cells)


def with_devices_of_domain(
    guest: Guest,
    domain: Domain | None,
    encryption: frozenset[str],
    pmem: Iterable[PmemNamespace],
    settings: ModelSettings,
    near: Collection[int] = (),
) -> Guest:
    """The located guest with what its domain has beside PCI and mediated devices; see `HostModel`."""
    guest = memory.with_cpuless_memory(guest, near)
    guest = memory.with_epc(memory.with_context(guest, domain, encryption), domain)
    return memory.with_used_namespaces(guest, domain, pmem, settings.pmem)


def with_other_devices(
    needs: DomainNeeds, xml: str, model: HostModel, settings: ModelSettings
) -> DomainNeeds:
    """The needs, with what only this driver knows: functions over vDPA, namespaces of memory, memory that is
    encrypted or for enclaves.

    Raises DriverDataError for malformed XML.
    """
    domain = DomainXml.parse(xml)
    vdpa = needed_vdpa(domain.root, vdpa_functions(model.devices.cards))
    namespaces = memory.needed_namespaces(domain.memory_files, model.pmem, settings.pmem)
    has_card = any(each.kind in memory.KINDS_OF_CARDS for each in needs.devices)
    amounts = memory.needed_contexts(domain.encryption, model.encryption, has_card=has_card)
    amounts |= {EPC_CLASS: domain.epc_mb} if domain.epc_mb else {}
    devices = (*needs.devices, *vdpa, *namespaces)
    needs = replace(needs, devices=devices, amounts=amounts, encryption=domain.encryption)
    return memory.without_cpuless_memory(needs, model.topology.near)


def _parent_names(
    host_and_cells: Sequence[DescribedProvider], settings: ModelSettings
) -> Callable[[int | None], str]:
    """A function from a device's cell to its parent: the host, unless the cell has a provider."""
    names = {provider.name for provider in host_and_cells}

    def parent_of(numa: int | None) -> str:
        name = settings.name if numa is None else cell_provider_name(settings.name, numa)
        return name if name in names else settings.name

    return parent_of


def _cell_totals(cells: tuple[Cell, ...], settings: ModelSettings) -> dict[int, dict[str, int]]:
    """{cell id: {resource class: total}} as if each cell had a provider."""
    providers = host_providers(settings.name, cells, 0, frozenset(), settings.host, report_numa=True)
    return {
        cell.id: {name: inventory.total for name, inventory in provider.inventories.items()}
        for cell, provider in zip(cells, providers[1:], strict=True)
    }
