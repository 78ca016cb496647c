"""The options on devices. Their groups and names are those of nova, and for bandwidth those of Neutron."""

from collections.abc import Iterable, Mapping
from typing import Any

from oslo_config import cfg, types

from agent.device_names import custom_class
from agent.errors import SettingsError
from agent.providers.divided_cards import MIXED_SIZES
from drivers.host.sysfs import CHECKS
from drivers.libvirt.describe.device_spec import MdevSpec, parse_device_specs, pci_address_of
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.inventory_defaults import parse_inventory_defaults

MDEV_GROUP = "mdev_<type>"
"""A pattern of groups, see `agent.driver.Driver.OPTIONS`."""
_MDEV_PREFIX = MDEV_GROUP.partition("<")[0]

OPTIONS: Mapping[str, tuple[Any, ...]] = {
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
            "mixed_size_cards",
            default=[],
            help="Cards in mixed-size mode, with the name of their table: 0000:84:00.0=A100 40 GB. Tables: "
            f"{', '.join(MIXED_SIZES)}. Each virtual function of such a card can have any type of "
            "enabled_mdev_types, in the places that the table has for its size; `plimsoll devices apply` "
            "writes the types that claims need, and takes away those that none needs.",
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
            "physical_network, resource_class, traits, live_migratable, one_time_use. May be repeated.",
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
    types = tuple(dict.fromkeys(devices.get("enabled_mdev_types") or ()))
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
    mdevs = tuple(_mdev(type_id, by_name.get(_MDEV_PREFIX + type_id.lower(), {})) for type_id in types)
    _check_cards(mdevs)
    return DeviceSettings(
        specs=parse_device_specs(tuple(pci.get("device_spec") or ())),
        mdevs=mdevs,
        mixed=_mixed(devices.get("mixed_size_cards") or (), mdevs),
        bandwidth=_bandwidths(sriov.get("resource_provider_bandwidths") or ()),
        bandwidth_defaults=parse_inventory_defaults(
            "[sriov_nic] resource_provider_inventory_defaults",
            sriov.get("resource_provider_inventory_defaults") or (),
        ),
    )


def _mixed(texts: Iterable[str], mdevs: Iterable[MdevSpec]) -> dict[str, str]:
    """{address: table}. Raises SettingsError where a text is malformed, or types of a card have one class."""
    mixed: dict[str, str] = {}
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
        mixed[address] = table
        classes: dict[str, str] = {}
        for spec in mdevs:
            if not spec.addresses or address in spec.addresses:
                other = classes.setdefault(spec.resource_class, spec.type_id)
                if other != spec.type_id:
                    raise SettingsError(
                        f"[devices] mixed_size_cards names {address}, for which the types {other} and "
                        f"{spec.type_id} are both {spec.resource_class}; give each an mdev_class of its own"
                    )
    return mixed


def _mdev(type_id: str, values: Mapping[str, Any]) -> MdevSpec:
    group = f"[{_MDEV_PREFIX}{type_id}]"
    try:
        return MdevSpec(
            type_id,
            frozenset(pci_address_of(text) for text in values.get("device_addresses") or ()),
            custom_class(values.get("mdev_class") or "VGPU"),
            values.get("max_instances"),
        )
    except ValueError as error:
        raise SettingsError(f"{group}: {error}", group=group.strip("[]")) from error


def _check_cards(mdevs: Iterable[MdevSpec]) -> None:
    """Raises SettingsError where two types of one class name the same card."""
    seen: dict[tuple[str, str], str] = {}
    for spec in mdevs:
        for address in sorted(spec.addresses):
            key = (address, spec.resource_class)
            if key in seen:
                raise SettingsError(
                    f"[mdev_{spec.type_id}] device_addresses names {address}, as [mdev_{seen[key]}] does, "
                    f"and both are {spec.resource_class}; remove it from one of them, or give each type an "
                    "mdev_class of its own"
                )
            seen[key] = spec.type_id


def _bandwidths(texts: Iterable[str]) -> dict[str, tuple[int, int]]:
    bandwidths: dict[str, tuple[int, int]] = {}
    for text in texts:
        interface, egress, ingress = (*(part.strip() for part in text.split(":")), "", "", "")[:3]
        if text.count(":") != 2 or not interface or interface in bandwidths:
            raise SettingsError(
                f"[sriov_nic] resource_provider_bandwidths: {text!r} is not INTERFACE:EGRESS:INGRESS, or "
                "its interface is there twice"
            )
        try:
            bandwidths[interface] = (int(egress or 0), int(ingress or 0))
        except ValueError as error:
            raise SettingsError(f"[sriov_nic] resource_provider_bandwidths: {text!r}: {error}") from error
        if min(bandwidths[interface]) < 0:
            raise SettingsError(f"[sriov_nic] resource_provider_bandwidths: {text!r} has a negative number")
    return bandwidths
