"""The options of the libvirt driver: what each says, what they mean together, and which do not fit the host.

Names and groups are nova's where nova has the option, and for bandwidth Neutron's. Pure.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from oslo_config import cfg, types

from agent.device_names import MIG_INSTANCE, VRAM_PREFIX, custom_class, mig_slices, vram_class
from agent.driver import DeclaredCarving, Suggestion, Topology
from agent.errors import SettingsError, counted, first_few
from agent.providers.divided_cards import MIXED_SIZES, MixedSizes
from drivers.host.sysfs import CHECKS, MEMORY_KINDS
from drivers.libvirt.describe.bandwidth import parse_bandwidths, parse_inventory_defaults
from drivers.libvirt.describe.cards import (
    Card,
    MdevSpec,
    mdev_types,
    parents_for,
    parse_device_specs,
    pci_address_of,
    without_serial,
)
from drivers.libvirt.describe.devices import LINKS, PEERS, DeviceFacts, DeviceSettings
from drivers.libvirt.describe.host import MODES, WAYS, CpuModel
from drivers.libvirt.describe.memory import PmemLabels, parse_pmem_namespaces

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*|[A-Za-z0-9_-]*")
"""A URI of libvirt, or one of its aliases."""


@dataclass(frozen=True, slots=True)
class LibvirtOptions:
    """The values of the group, with its defaults. Times are in seconds."""

    connection_uri: str = "qemu:///system"
    virt_type: str | None = None
    cpu_model: CpuModel = field(default_factory=CpuModel)
    file_backed_memory: int = 0
    pmem_namespaces: PmemLabels = field(default_factory=dict)
    supported_tpm_secret_security: tuple[str, ...] = ()
    num_intel_tdx_guests: int | None = None
    call_timeout: float = 10.0
    probe_timeout: float = 60.0
    read_timeout: float = 120.0
    full_read_interval: float = 300.0
    full_connection: bool = True
    storage_pools: tuple[str, ...] = ()
    images_path: str = "/var/lib/libvirt/images"
    image_cache_path: str = ""
    report_numa: bool = False
    cpuless_memory: tuple[str, ...] = ()
    sysfs_path: str = "/sys"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "LibvirtOptions":
        """The options in the configuration {option: value}. Raises SettingsError where one makes no sense."""
        known = {each.name for each in fields(cls)}
        given = {name: value for name, value in values.items() if name in known and value is not None}
        given["cpu_model"] = CpuModel.of(
            values.get("cpu_mode"), values.get("cpu_models") or (), values.get("cpu_model_extra_flags") or ()
        )
        given["pmem_namespaces"] = parse_pmem_namespaces(given.get("pmem_namespaces", ()))
        given["supported_tpm_secret_security"] = tuple(given.get("supported_tpm_secret_security", ()))
        for name in ("storage_pools", "cpuless_memory"):
            given[name] = tuple(given.get(name, ()))
        options = cls(**given)
        if len(set(options.storage_pools)) != len(options.storage_pools):
            raise SettingsError("[libvirt] storage_pools names a pool twice; remove one of them")
        if options.image_cache_path and options.storage_pools:
            raise SettingsError(
                "[libvirt] image_cache_path is for images_path; with storage_pools, set reserved_host_disk_mb"
            )
        if not _URI.fullmatch(options.connection_uri):
            raise SettingsError(
                f"[libvirt] connection_uri = {options.connection_uri} is no libvirt URI; write "
                "qemu:///system, or an alias of libvirt.conf"
            )
        for name in ("images_path", "image_cache_path", "sysfs_path"):
            path = getattr(options, name)
            if path and not path.startswith("/"):
                raise SettingsError(f"[libvirt] {name} {path!r} must be an absolute path")
        return options


_DEFAULT = LibvirtOptions()

MDEV_GROUP = "mdev_<type>"
"""A pattern of groups, see `agent.driver.Driver.DEVICE_OPTIONS`."""
_MDEV_PREFIX = MDEV_GROUP.partition("<")[0]

_OF_LIBVIRT = (
    cfg.StrOpt(
        "connection_uri",
        default=_DEFAULT.connection_uri,
        help="The libvirt URI of this host's hypervisor.",
    ),
    cfg.StrOpt(
        "virt_type",
        choices=["kvm", "qemu"],
        help="The type of guests whose CPU flags and devices become traits. Unset: kvm if the host has it.",
    ),
    cfg.StrOpt(
        "cpu_mode",
        choices=list(MODES),
        help="The CPU that guests get, whose flags become traits. Unset: host-model, or the host's CPU where "
        "libvirt has no model of it.",
    ),
    cfg.ListOpt(
        "cpu_models",
        default=[],
        help="libvirt's names of the models that guests may get (cpu_mode = custom), the most basic first: "
        "the host has the flags of any of them.",
    ),
    cfg.ListOpt(
        "cpu_model_extra_flags",
        default=[],
        help="Flags that guests have beside those of the model; with a minus, those that they do not have.",
    ),
    cfg.ListOpt(
        "supported_tpm_secret_security",
        item_type=types.String(choices=WAYS),
        default=[],
        help="How the secrets of guests' TPMs are kept (user, host, deployment), as traits; a scheduler of "
        "nova asks for one. Unset: the agent neither sets these traits nor takes them away.",
    ),
    cfg.IntOpt(
        "num_intel_tdx_guests",
        min=0,
        help="The most guests with Intel TDX, where that is fewer than the processor has keys for, or where "
        "the kernel does not tell their number (fs/cgroup/misc.capacity). Unset: the kernel's number.",
    ),
    cfg.IntOpt(
        "file_backed_memory",
        default=_DEFAULT.file_backed_memory,
        min=0,
        help="MiB for the memory of guests in files (memory_backing_dir in libvirt's qemu.conf), which are "
        "then MEMORY_MB instead of the host's memory; 0: none. It needs reserved_host_memory_mb = 0 and no "
        "overcommit of memory, and no large pages are offered.",
    ),
    cfg.ListOpt(
        "pmem_namespaces",
        default=[],
        help="Namespaces of persistent memory (mode devdax, created with a name) for guests, as "
        "LABEL:NAME|NAME, ...: hw:pmem=LABEL gives a guest one of them, CUSTOM_PMEM_NAMESPACE_LABEL.",
    ),
    cfg.FloatOpt(
        "call_timeout",
        default=_DEFAULT.call_timeout,
        min=0.1,
        help="Seconds that a call to libvirt may take; after that the agent replaces the connection.",
    ),
    cfg.FloatOpt(
        "probe_timeout",
        default=_DEFAULT.probe_timeout,
        min=0.1,
        help="The same for calls for which libvirt starts an emulator to find out what it can do.",
    ),
    cfg.FloatOpt(
        "read_timeout",
        default=_DEFAULT.read_timeout,
        min=0.1,
        help="Seconds that reading the whole host, or all domains, may take.",
    ),
    cfg.FloatOpt(
        "full_read_interval",
        default=_DEFAULT.full_read_interval,
        min=1.0,
        help="Seconds after which the agent reads every domain again, even without an event.",
    ),
    cfg.BoolOpt(
        "full_connection",
        default=_DEFAULT.full_connection,
        help="Read what guests can have over a second connection, which may write and is closed at once: "
        "libvirt refuses that call on a read-only one. Without it, traits of firmware, vTPM, disk buses and "
        "graphics are missing.",
    ),
    cfg.ListOpt(
        "storage_pools",
        default=list(_DEFAULT.storage_pools),
        help="The storage pools whose sizes are DISK_GB. Unset: the file system of images_path.",
    ),
    cfg.StrOpt(
        "images_path",
        default=_DEFAULT.images_path,
        help="The directory of the guests' disks; without storage_pools, its file system is DISK_GB.",
    ),
    cfg.StrOpt(
        "image_cache_path",
        default=_DEFAULT.image_cache_path,
        help="The directory of cached images that are the base of guests' disks; what its files take on the "
        "file system of images_path is reserved (nova: reserve_disk_resource_for_image_cache). Empty: none.",
    ),
    cfg.BoolOpt(
        "report_numa",
        default=_DEFAULT.report_numa,
        help="Report CPUs, memory and devices below a provider for each NUMA cell: claims can then request "
        "resources of one cell (same_subtree). A change moves the allocations of running guests.",
    ),
    cfg.ListOpt(
        "cpuless_memory",
        item_type=types.String(choices=MEMORY_KINDS),
        default=[],
        help="The memory that guests may have of NUMA cells without CPUs, by kind: cxl, hbm, pmem (as system "
        "RAM), or other, which may be the memory of a GPU. It is CUSTOM_CPULESS_MEMORY_MB and never "
        "MEMORY_MB. Unset: none.",
    ),
    cfg.StrOpt(
        "sysfs_path",
        default=_DEFAULT.sysfs_path,
        help="Where the host's sysfs is mounted; change it only in a container.",
    ),
)

OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "libvirt": _OF_LIBVIRT,
    "devices": (
        cfg.ListOpt(
            "enabled_mdev_types",
            default=[],
            help="Types of mediated devices (vGPU) for guests, such as nvidia-11. A card is divided into the "
            "first type that it offers; with several types, name the cards of each in [mdev_<type>].",
        ),
        cfg.BoolOpt(
            "restore_mdevs",
            default=True,
            help="After a reboot of the host, create the mediated devices again that its domains name, with "
            "the same uuid on the same parent. Needs a user who may manage libvirt.",
        ),
        cfg.ListOpt(
            "sriov_vfs",
            default=[],
            help="How many virtual functions cards are to have after a boot, such as 0000:41:00.0=4. "
            "`plimsoll devices apply` makes them, as it does what the two options below say.",
        ),
        cfg.BoolOpt(
            "restore_ports",
            default=False,
            help="After a boot, give virtual functions of cards in sriov_vfs the MAC addresses and VLANs "
            "again that they had, while the same guests have them. plimsoll-devices.service needs a drop-in "
            "for that: CapabilityBoundingSet=CAP_NET_ADMIN and RestrictAddressFamilies=AF_NETLINK.",
        ),
        cfg.ListOpt(
            "driver_overrides",
            default=[],
            help="The only driver that a device may have, such as 0000:83:00.0=vfio-pci, or "
            "0000:41:00.0/vfs=vfio-pci for all virtual functions of a card.",
        ),
        cfg.ListOpt(
            "vgpu_types",
            default=[],
            help="The vGPU types of virtual functions under a vendor's own VFIO driver, such as "
            "0000:84:00.1=nvidia-471. Name each type in enabled_mdev_types as well. A guest that has a "
            "function keeps the type that it had.",
        ),
        cfg.ListOpt(
            "mig_instances",
            default=[],
            help="The MIG instances that GPUs are to have after a boot, each by its profile and the memory "
            "slice in which it starts, such as 0000:84:00.0=3g.20gb:0/3g.20gb:4. MIG mode is yours to switch "
            "on. plimsoll-devices.service needs a drop-in for nvidia-smi, see the guide on reboots.",
        ),
        cfg.ListOpt(
            "mixed_size_cards",
            default=[],
            help="Cards in mixed-size mode, with the name of their table: 0000:84:00.0=A100 40 GB. Tables: "
            f"{', '.join(MIXED_SIZES)}. Each virtual function of such a card can have any type of "
            "enabled_mdev_types, in the places that the table has for its size; `plimsoll devices apply` "
            "writes the types that claims need, and takes away those that none needs.",
        ),
        cfg.ListOpt(
            "vram_cards",
            default=[],
            help="GPUs whose virtual functions have amounts of VRAM, in MiB: how much they may have "
            "together, and the sizes of functions, such as 0000:03:00.0=20480/2048/4096/8192. Each size is a "
            "class, such as CUSTOM_VRAM_4096MB. `plimsoll devices apply` writes the VRAM that claims need "
            "where the driver has quotas; for a card whose driver gives each function the same, name that "
            "one size.",
        ),
        cfg.ListOpt(
            "execution_quanta",
            default=[],
            help="How long virtual functions of Intel's xe compute in turn: the execution quantum in ms and "
            "the preemption timeout in us of each function of a card, such as 0000:03:00.0=25/500000; 0 is "
            "no limit. `plimsoll devices apply` writes both, also while guests run.",
        ),
        cfg.ListOpt(
            "context_quotas",
            default=[],
            help="How many contexts and doorbells each virtual function of a card of Intel's xe has, such as "
            "0000:03:00.0=8192/32, on each of the card's GTs. `plimsoll devices apply` writes both to "
            "debugfs while no guest has the function; it refuses that while the kernel is locked down.",
        ),
        cfg.StrOpt(
            "report_pcie",
            choices=list(PEERS),
            help="Report cards below a provider for each PCIe switch (the root port above it), for each "
            "root complex, or for each group of GPUs that XGMI or NVLink joins: claims can then request "
            "devices of one of them (same_subtree). Unset: none. A change moves the providers, and no "
            "allocation. `plimsoll devices apply` reads the groups; its unit needs a drop-in for nvidia-smi, "
            "see the guide on reboots.",
        ),
        cfg.ListOpt(
            "health_checks",
            default=list(CHECKS),
            item_type=types.String(choices=CHECKS),
            help="What tells whether a device is well: whether its configuration space answers; its driver; "
            "the link of a card with virtual functions; uncorrected errors on PCI Express, and of its own "
            "memory; its power state. A device that is not well is offered to no guest. Empty: nothing.",
        ),
    ),
    MDEV_GROUP: (
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="The PCI addresses of the cards, or of their virtual functions, that are divided into this "
            "type. Unset: every card that offers it.",
        ),
        cfg.StrOpt(
            "mdev_class",
            default="VGPU",
            help="The resource class of the type: VGPU or CUSTOM_... Types that name the same card need a "
            "class each; the first claim then decides into which type the card is divided.",
        ),
        cfg.IntOpt(
            "max_instances",
            min=1,
            help="The most devices of the type on each card. Devices in use always count.",
        ),
    ),
    "pci": (
        cfg.MultiStrOpt(
            "device_spec",
            default=[],
            help="Devices for guests, as JSON: vendor_id, product_id, address (with globs) or devname; "
            "physical_network, resource_class, traits, managed, live_migratable, one_time_use, cc_mode. "
            "May be repeated.",
        ),
    ),
    "ovs": (
        cfg.ListOpt(
            "bridge_mappings",
            default=[],
            help="The bridges of physical networks, NETWORK:BRIDGE, as for Neutron's Open vSwitch agent.",
        ),
        cfg.ListOpt(
            "resource_provider_bandwidths",
            default=[],
            help="Bandwidth of bridges, in kbit/s: BRIDGE:EGRESS:INGRESS; rp_tunnelled stands for all "
            "tunnels. Leave it unset where Neutron's agent reports it, as the packet rates below.",
        ),
        cfg.ListOpt(
            "resource_provider_inventory_defaults",
            default=[],
            help="Fields of these inventories beside their total, as for Neutron's agent: "
            "allocation_ratio:1.0, min_unit:1, max_unit:N, step_size:1, reserved:0.",
        ),
        cfg.ListOpt(
            "resource_provider_packet_processing_without_direction",
            default=[],
            help="What the switch can process, in 1000 packets/s: :RATE.",
        ),
        cfg.ListOpt(
            "resource_provider_packet_processing_with_direction",
            default=[],
            help="The same for a switch in hardware: :EGRESS:INGRESS.",
        ),
        cfg.ListOpt(
            "resource_provider_packet_processing_inventory_defaults",
            default=[],
            help="Fields of the inventories of packet rates, as resource_provider_inventory_defaults.",
        ),
    ),
    "sriov_nic": (
        cfg.ListOpt(
            "resource_provider_bandwidths",
            default=[],
            help="Bandwidth of network cards, in kbit/s: INTERFACE:EGRESS:INGRESS, as for Neutron's agent. "
            "Leave it unset where a network agent reports the bandwidth.",
        ),
        cfg.ListOpt(
            "resource_provider_inventory_defaults",
            default=[],
            help="Fields of these inventories beside their total, as for Neutron's agent: "
            "allocation_ratio:1.0, min_unit:1, max_unit:N, step_size:1, reserved:0.",
        ),
    ),
}


def health_checks(options: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Those of `drivers.host.sysfs.CHECKS` that [devices] health_checks asks for."""
    told = options.get("devices", {}).get("health_checks")
    return frozenset(CHECKS if told is None else told)


def device_settings(options: Mapping[str, Mapping[str, Any]]) -> DeviceSettings:
    """The settings in the configuration's groups {group: {option: value}}.

    Raises SettingsError where options are malformed or contradict each other.
    """
    devices, pci, sriov = (options.get(group, {}) for group in ("devices", "pci", "sriov_nic"))
    mdevs = _mdev_specs(options)
    texts = devices.get("mixed_size_cards") or ()
    mixed: dict[str, MixedSizes] = {}
    for text in texts:
        key, _, table = (part.strip() for part in text.partition("="))
        try:
            address = pci_address_of(key)
        except ValueError as error:
            raise SettingsError(f"[devices] mixed_size_cards: {text!r}: {error}") from error
        if table not in MIXED_SIZES or address in mixed:
            raise SettingsError(
                f"[devices] mixed_size_cards: {text!r} names no table, or its address is there twice; the "
                f"tables are {', '.join(MIXED_SIZES)}, as in 0000:84:00.0=A100 40 GB"
            )
        mixed[address] = MIXED_SIZES[table]
        classes: dict[str, str] = {}
        for spec in mdevs:
            if not spec.addresses or address in spec.addresses:
                other = classes.setdefault(spec.resource_class, spec.type_id)
                if other != spec.type_id:
                    raise SettingsError(
                        f"[devices] mixed_size_cards names {address}, for which the types {other} and "
                        f"{spec.type_id} are both {spec.resource_class}; give each an mdev_class of its own"
                    )
    with_size: dict[int, set[str]] = {}
    for address, text in _pairs(devices, "vram_cards", _VRAM, _VRAM_EXAMPLE).items():
        vram, *sizes = map(int, text.split("/"))
        if not all(0 < size <= vram for size in sizes) or address in mixed:
            raise SettingsError(
                f"[devices] vram_cards: {address} is in mixed_size_cards, too, or a size of {text} is 0, or "
                f"more than the {vram} MiB of all functions; write {_VRAM_EXAMPLE}"
            )
        mixed[address] = MixedSizes(0, dict.fromkeys(sizes, (0,)), vram)
        for size in sizes:
            with_size.setdefault(size, set()).add(address)
    mdevs += tuple(
        MdevSpec(f"{VRAM_PREFIX}{size}", frozenset(addresses), vram_class(size))
        for size, addresses in sorted(with_size.items())
    )
    return DeviceSettings(
        specs=parse_device_specs(tuple(pci.get("device_spec") or ())),
        mdevs=mdevs,
        mixed=mixed,
        peers=devices.get("report_pcie"),
        bandwidth=parse_bandwidths(sriov.get("resource_provider_bandwidths") or ()),
        bandwidth_defaults=parse_inventory_defaults(
            "[sriov_nic] resource_provider_inventory_defaults",
            sriov.get("resource_provider_inventory_defaults") or (),
        ),
    )


def _mdev_specs(options: Mapping[str, Mapping[str, Any]]) -> tuple[MdevSpec, ...]:
    """The enabled types with their groups. Raises SettingsError where two of one class name the same card."""
    types = tuple(dict.fromkeys(options.get("devices", {}).get("enabled_mdev_types") or ()))
    groups = {group: values for group, values in options.items() if group.startswith(_MDEV_PREFIX)}
    wanted = {_MDEV_PREFIX + type_id.lower() for type_id in types}
    for group in groups:
        if group.lower() not in wanted:
            raise SettingsError(
                f"[{group}] is of a type that [devices] enabled_mdev_types does not name; add "
                f"{group.removeprefix(_MDEV_PREFIX)} there, or remove the group",
                group=group,
            )
    by_name = {group.lower(): values for group, values in groups.items()}
    specs: list[MdevSpec] = []
    for type_id in types:
        group, values = _MDEV_PREFIX + type_id, by_name.get(_MDEV_PREFIX + type_id.lower(), {})
        try:
            addresses = frozenset(pci_address_of(text) for text in values.get("device_addresses") or ())
            resource_class = custom_class(values.get("mdev_class") or "VGPU")
        except ValueError as error:
            raise SettingsError(f"[{group}]: {error}", group=group) from error
        specs.append(MdevSpec(type_id, addresses, resource_class, values.get("max_instances")))
    seen: dict[tuple[str, str], str] = {}
    for spec in specs:
        for address in sorted(spec.addresses):
            other = seen.setdefault((address, spec.resource_class), spec.type_id)
            if other != spec.type_id:
                raise SettingsError(
                    f"[mdev_{spec.type_id}] device_addresses names {address}, as [mdev_{other}] does, "
                    f"and both are {spec.resource_class}; remove it from one of them, or give each type an "
                    "mdev_class of its own"
                )
    return tuple(specs)


# How the operator wants the host's cards to be carved after a boot

ALL_VFS = "/vfs"
"""What follows the address of a card in [devices] driver_overrides, for all of its virtual functions."""

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)
_VRAM = re.compile(r"[0-9]{1,8}(?:/[0-9]{1,8}){1,16}", re.ASCII)
_MIG = re.compile(rf"{MIG_INSTANCE.pattern}(?:/{MIG_INSTANCE.pattern}){{0,15}}", re.ASCII)
_VRAM_EXAMPLE = "0000:03:00.0=20480/2048/4096/8192"
_QUANTA = re.compile(r"(?:0|[1-9][0-9]{0,8})/(?:0|[1-9][0-9]{0,8})", re.ASCII)
# A function works without doorbells, and not without contexts (xe's `pf_validate_vf_config`).
_CONTEXTS = re.compile(r"[1-9][0-9]{0,4}/(?:0|[1-9][0-9]{0,2})", re.ASCII)
_QUOTAS = {
    "execution_quanta": (_QUANTA, "0000:03:00.0=25/500000"),
    "context_quotas": (_CONTEXTS, "0000:03:00.0=8192/32"),
}


def declared_carving(options: Mapping[str, Any], settings: DeviceSettings) -> DeclaredCarving:
    """What the options of [devices] say. Raises SettingsError where one is malformed."""
    vfs = _pairs(options, "sriov_vfs", _NUMBER, "0000:41:00.0=4")
    drivers = _pairs(options, "driver_overrides", _WORD, "0000:41:00.0/vfs=vfio-pci", ALL_VFS)
    types = _pairs(options, "vgpu_types", _WORD, "0000:84:00.1=nvidia-471")
    pairs = _pairs(options, "mig_instances", _MIG, "0000:84:00.0=3g.20gb:0/3g.20gb:4")
    mig = {card: tuple(text.split("/")) for card, text in pairs.items()}
    for card, instances in mig.items():
        taken: dict[int, str] = {}
        for instance in instances:
            try:
                slices = mig_slices(instance)
            except ValueError as error:
                raise SettingsError(f"[devices] mig_instances: {card}={instance}: {error}") from error
            for other in (taken[each] for each in slices if each in taken):
                raise SettingsError(
                    f"[devices] mig_instances gives {card} both {other} and {instance}, which take the same "
                    "memory slice; remove one of them, or give it another place"
                )
            taken |= dict.fromkeys(slices, instance)
    for address, type_id in types.items():
        if not any(spec.type_id == type_id for spec in settings.mdevs):
            raise SettingsError(
                f"[devices] vgpu_types gives {address} the type {type_id}, which enabled_mdev_types does not "
                "name; add it there"
            )
    return DeclaredCarving(
        {address: int(number) for address, number in vfs.items()},
        {address: name for address, name in drivers.items() if not address.endswith(ALL_VFS)},
        {
            address.removesuffix(ALL_VFS): name
            for address, name in drivers.items()
            if address.endswith(ALL_VFS)
        },
        types,
        {spec.type_id: spec.addresses for spec in settings.mdevs},
        frozenset(settings.mixed),
        bool(options.get("restore_ports")),
        mig,
        {option: _pairs(options, option, *_QUOTAS[option]) for option in _QUOTAS if options.get(option)},
        settings.peers == LINKS,
    )


def _pairs(
    options: Mapping[str, Any], option: str, pattern: re.Pattern[str], example: str, suffix: str = ""
) -> dict[str, str]:
    """{address: value} of an option whose items are ADDRESS=VALUE; an address may have the suffix."""
    pairs: dict[str, str] = {}
    for text in options.get(option) or ():
        key, _, value = (part.strip() for part in text.partition("="))
        bare = key.removesuffix(suffix) if suffix else key
        try:
            address = pci_address_of(bare) + key[len(bare) :]
        except ValueError as error:
            raise SettingsError(f"[devices] {option}: {text!r}: {error}; write {example}") from error
        if not pattern.fullmatch(value) or address in pairs:
            raise SettingsError(
                f"[devices] {option}: {text!r} is not as {example}, or its address is there twice"
            )
        pairs[address] = value
    return pairs


# Options that match nothing on this host: misspelt ones, or those of another host

_SELECTS = ("vendor_id", "product_id", "address", "interface")


def unmatched_options(facts: DeviceFacts, settings: DeviceSettings) -> Iterator[str]:
    """A sentence for each spec, type, address and interface that matches no device, or not all it names."""
    for number, spec in enumerate(settings.specs, start=1):
        selected = replace(spec, remote_managed=False)  # without_serial says which of those are left out
        if not any(
            selected.matches(function, card) for card in facts.cards for function in (card.device, *card.vfs)
        ):
            chosen = [(name, value) for name in _SELECTS if (value := getattr(spec, name)) is not None]
            selection = ", ".join(f"{name} {value}" for name, value in chosen) or "any device"
            yield f"[pci] device_spec number {number} ({selection}) matches no device of this host."
    yield from without_serial(facts.cards, settings.specs)
    addresses = {
        function.address for card in facts.cards for function in (card.device, *card.vfs, *card.mdev_parents)
    }
    for mdev in (each for each in settings.mdevs if not each.is_vram):
        for address in sorted(mdev.addresses - addresses):
            yield f"[mdev_{mdev.type_id}] device_addresses names {address}, which this host does not have."
        # A vendor's own VFIO driver shows a type only once a function has it.
        if not facts.vgpu_types and not any(
            parents_for(card, mdev.type_id, mdev.addresses) for card in facts.cards
        ):
            yield f"[devices] enabled_mdev_types names {mdev.type_id}, which no card of this host offers."
    interfaces = {card.interface.interface for card in facts.cards if card.interface is not None}
    for interface in sorted(settings.bandwidth.keys() - interfaces):
        yield (
            f"[sriov_nic] resource_provider_bandwidths names the interface {interface}, which no network "
            "card of this host has."
        )


# Options that fit a host's hardware, for `plimsoll init`

DISPLAY = 0x03
SHOWN_MAX = 3


def suggestions(topology: Topology, cards: Iterable[Card]) -> tuple[Suggestion, ...]:
    """The options to suggest. Those on devices are not certain: only the operator knows their purpose."""
    cards, found = tuple(cards), []
    cells = [cell for cell in topology.cells if cell.cpus]
    if len(cells) > 1:
        found.append(
            Suggestion(
                "libvirt",
                "report_numa",
                "true",
                f"The host has {counted(len(cells), 'NUMA cell')}; with a provider for each, a claim can ask "
                "for CPUs, memory and devices of one cell.",
            )
        )
    return (*found, *_of_divided_cards(cards), *_of_passed_cards(cards))


def _of_divided_cards(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    types: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for card in cards:
        for type_id in mdev_types(card):
            types.setdefault(type_id, []).append(card.device.address)
        for parent in card.mdev_parents:
            names |= {mdev_type.id: mdev_type.name for mdev_type in parent.mdev_types.values()}
    if types:
        offers = "; ".join(
            f"{type_id} ({names[type_id]}) on {first_few(addresses, SHOWN_MAX)}"
            for type_id, addresses in sorted(types.items())
        )
        yield Suggestion(
            "devices",
            "enabled_mdev_types",
            sorted(types)[0],
            f"Cards here can be divided into vGPUs; choose one type for each card: {offers}.",
            certain=False,
        )
    divided = [card for card in cards if card.vfs]
    if divided:
        yield Suggestion(
            "devices",
            "sriov_vfs",
            ", ".join(f"{card.device.address}={len(card.vfs)}" for card in divided),
            "The virtual functions that the cards have now; plimsoll-devices.service makes them again after "
            "a reboot.",
            certain=False,
        )


def _of_passed_cards(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    for card in cards:
        if card.is_network and card.device.vfs_max:
            where = card.interface.interface if card.interface else card.device.address
            yield Suggestion(
                "pci",
                "device_spec",
                json.dumps({"address": card.device.address, "physical_network": "physnet1"}),
                f"{where} can have {counted(card.device.vfs_max, 'virtual function')}, and has "
                f"{len(card.vfs)}; say which physical network it is on.",
                certain=False,
            )
    kinds: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        device = card.device
        if device.class_id >> 16 == DISPLAY and not device.mdev_types and not card.vfs and not device.vfs_max:
            kinds.setdefault((device.vendor_id, device.product_id), []).append(device.address)
    for (vendor, product), addresses in sorted(kinds.items()):
        yield Suggestion(
            "pci",
            "device_spec",
            json.dumps({"vendor_id": vendor, "product_id": product}),
            f"Graphics cards that could be given to guests whole: {first_few(addresses, SHOWN_MAX)}. Leave "
            "the host's own console out.",
            certain=False,
        )
