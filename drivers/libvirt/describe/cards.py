"""Cards, each the device behind one provider, and which of them the operator offers. Pure.

A card is a PCI function that is not virtual, with its virtual functions, their mediated devices and its
network interface. In libvirt's tree of node devices the parent of a virtual function is a PCI bridge, so only
`physical_function` tells to which card it belongs.

The operator names devices in [pci] device_spec and types of mediated devices in [devices] enabled_mdev_types,
as in nova. A spec with remote_managed is for ports that a network service plugs on the card itself. As in
nova, that service finds the card by the serial number in its vital product data (VPD), so a function without
one is not of these, and a physical function never is.

Source: https://docs.kernel.org/PCI/pci-iov-howto.html,
https://docs.kernel.org/driver-api/vfio-mediated-device.html,
https://docs.openstack.org/nova/latest/configuration/config.html#pci.device_spec,
nova 34 (nova/pci/devspec.py) and https://docs.openstack.org/neutron/latest/admin/ovn/smartnic_dpu.html
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent import device_names
from agent.errors import DriverDataError, SettingsError
from agent.strict_text import flag_of, id_of, known_object, read_json, text_of
from drivers.libvirt.xml import MediatedDevice, NetDevice, NodeDevice, PciDevice, VdpaDevice

NO_TYPE = "0"
"""The vGPU type of a virtual function that has none; a guest cannot open it."""

_NETWORK = 0x02


@dataclass(frozen=True, slots=True)
class Card:
    """A PCI function, its virtual functions by address, and the mediated devices on any of them by uuid.

    `vdpa` {address of a function: /dev/vhost-vdpa-N} are those that a guest gets over vDPA.
    """

    device: PciDevice
    vfs: tuple[PciDevice, ...] = ()
    mdevs: tuple[MediatedDevice, ...] = ()
    interface: NetDevice | None = None
    vdpa: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`DescribedProvider.device` of its provider."""
        return f"pci:{self.device.address}"

    @property
    def mdev_parents(self) -> tuple[PciDevice, ...]:
        """The functions on which mediated devices can be created: the card, or its virtual functions."""
        return tuple(function for function in (self.device, *self.vfs) if function.mdev_types)

    @property
    def is_network(self) -> bool:
        """Whether it is a network card."""
        return self.device.class_id >> 16 == _NETWORK

    @property
    def numa(self) -> int | None:
        """The id of its NUMA cell, None without affinity."""
        return self.device.numa


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """Where a unit was that a domain names: a mediated device by its uuid, a virtual function by its address.

    `card` and `parent` are the addresses of its card and of the function on which a mediated device was
    created; `type_id` is "" for a virtual function. `boot` is the id of the boot in which it existed.
    """

    unit: str
    card: str
    resource_class: str
    parent: str = ""
    type_id: str = ""
    boot: str = ""


FIRST_CPULESS = "cpuless"

DeviceHistory = Mapping[str, tuple[str, ...]]
"""Five kinds of entries, each with its newest value last:

{`DescribedProvider.device` of a card: resource classes of its exact units}
{`DescribedProvider.device` of a NUMA cell: the devices of all cells that were ever described}, or () as long
as the cells never changed
{"net:<PCI address of a network card>": names of its interface, "" while it has none}
{"slot:<PCI address of a card>": addresses that the card had before}
{FIRST_CPULESS: the devices of the cells without CPUs that were there when such cells were first told apart}
"""


def cards_of(devices: Iterable[NodeDevice]) -> tuple[Card, ...]:
    """All cards, by address.

    A virtual function whose physical function was not read is left out until it is.
    """
    devices = tuple(devices)
    functions = {device.name: device for device in devices if isinstance(device, PciDevice)}
    vfs: dict[str, list[PciDevice]] = {}
    card_addresses: dict[str, str] = {}
    for function in functions.values():
        card_addresses[function.name] = function.physical_function or function.address
        if function.physical_function is not None:
            vfs.setdefault(function.physical_function, []).append(function)
    mdevs: dict[str, list[MediatedDevice]] = {}
    interfaces: dict[str, NetDevice] = {}
    vdpa: dict[str, dict[str, str]] = {}
    for device in devices:
        if isinstance(device, MediatedDevice) and device.parent in card_addresses:
            mdevs.setdefault(card_addresses[device.parent], []).append(device)
        elif isinstance(device, NetDevice) and device.parent in functions:
            interfaces[functions[device.parent].address] = device
        elif isinstance(device, VdpaDevice) and device.parent in functions:
            parent = functions[device.parent]
            vdpa.setdefault(card_addresses[parent.name], {})[parent.address] = device.path
    return tuple(
        Card(
            device=function,
            vfs=tuple(sorted(vfs.get(function.address, ()), key=lambda vf: vf.address)),
            mdevs=tuple(sorted(mdevs.get(function.address, ()), key=lambda mdev: (mdev.uuid, mdev.name))),
            interface=interfaces.get(function.address),
            vdpa=vdpa.get(function.address, {}),
        )
        for function in sorted(functions.values(), key=lambda function: function.address)
        if function.physical_function is None
    )


def mdev_types(card: Card) -> frozenset[str]:
    """The ids of the types of mediated devices that the card offers."""
    return frozenset(type_id for parent in card.mdev_parents for type_id in parent.mdev_types)


def parents_for(card: Card, type_id: str, addresses: Collection[str] = ()) -> tuple[PciDevice, ...]:
    """The functions that offer the type: those at `addresses`, or all if none or the card is given."""
    return tuple(
        parent
        for parent in card.mdev_parents
        if type_id in parent.mdev_types
        and (not addresses or parent.address in addresses or card.device.address in addresses)
    )


def mdev_total(
    card: Card,
    type_id: str,
    limit: int | None = None,
    max_instances: int | None = None,
    existing: int | None = None,
    addresses: Collection[str] = (),
) -> int:
    """How many mediated devices of the type the card can have, existing ones included.

    `limit` is how many of the type the whole card can have according to its driver's description in sysfs.
    `max_instances` is the operator's limit, which never hides existing devices. `existing` is how many the
    kernel has: libvirt learns of a new device later than of the lower number that is still available.

    The available number of every type drops when a device of any type is created. So existing devices of all
    types count, and the total stays the same while guests come and go. Virtual functions that share
    a card each offer the same room again; without `limit`, only one more than the existing ones is certain.
    """
    existing = sum(mdev.active for mdev in card.mdevs) if existing is None else existing
    total = existing + mdev_room(card, type_id, limit, existing, addresses)
    return total if max_instances is None else min(total, max(max_instances, existing))


def mdev_room(
    card: Card,
    type_id: str,
    limit: int | None = None,
    existing: int | None = None,
    addresses: Collection[str] = (),
) -> int:
    """How many more mediated devices of the type the card can have now; see `mdev_total`."""
    existing = sum(mdev.active for mdev in card.mdevs) if existing is None else existing
    parents = parents_for(card, type_id, addresses)
    available = sum(parent.mdev_types[type_id].available for parent in parents)
    if limit is not None:
        return min(available, max(0, limit - existing))
    parents_share_room = any(parent.physical_function is not None for parent in card.mdev_parents)
    return min(available, 1) if parents_share_room else available


# What the operator offers

_FLAGS = ("one_time_use", "live_migratable", "managed", "trusted", "remote_managed")
_KEYS = {
    *("vendor_id", "product_id", "address", "devname", "physical_network", "resource_class", "traits"),
    "cc_mode",
    *_FLAGS,
}
_PARTS = {"domain": "[0-9a-f]{4,8}", "bus": "[0-9a-f]{2}", "slot": "[0-9a-f]{2}", "function": "[0-7]"}
_WIDTHS = {"domain": 4, "bus": 2, "slot": 2, "function": 1}
_MOST = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}
_HEX = re.compile("[0-9a-f]+", re.ASCII)
_END = r"\Z"
_GLOB = re.compile(r"[0-9a-f*]+", re.ASCII)
_FULL_ADDRESS = re.compile("{domain}:{bus}:{slot}\\.{function}".format(**_PARTS), re.ASCII)


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """PCI addresses: a regular expression for the beginning of each part, as nova matches them.

    `names_one`: it is a complete address, which for a card stands for the card's virtual functions as well.
    """

    parts: tuple[str, ...]
    names_one: bool

    def matches(self, address: str) -> bool:
        """Whether the address, such as 0000:41:10.2, is one of these."""
        found = zip(self.parts, re.split("[:.]", address), strict=True)
        return all(re.match(pattern, part) for pattern, part in found)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One entry of [pci] device_spec.

    Ids are four hexadecimal digits, None for any. `interface` is the name of a network interface. With
    `one_time_use` a device stays reserved after its guest, until the operator releases it. With
    `remote_managed` the functions are for ports that a network service plugs on a card with processors of its
    own; they are in no inventory. `live_migratable` None: as the host's drivers tell. Without `managed`
    libvirt leaves a device under the driver that it has.
    """

    vendor_id: str | None = None
    product_id: str | None = None
    address: AddressPattern | None = None
    interface: str | None = None
    physical_network: str | None = None
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    one_time_use: bool = False
    remote_managed: bool = False
    live_migratable: bool | None = None
    managed: bool = True

    def names_card(self, card: Card) -> bool:
        """Whether its one address or its interface is that of the card itself."""
        if self.interface is not None:
            return card.interface is not None and card.interface.interface == self.interface
        address = self.address
        return address is not None and address.names_one and address.matches(card.device.address)

    def matches(self, function: PciDevice, card: Card) -> bool:
        """Whether it offers the function. One address or interface of a card stands for all its functions."""
        if self.remote_managed and not function.serial and not (function in card.vfs and card.device.serial):
            return False
        if self.vendor_id is not None and self.vendor_id != function.vendor_id:
            return False
        if self.product_id is not None and self.product_id != function.product_id:
            return False
        if self.address is not None:
            of_card = self.address.names_one and self.address.matches(card.device.address)
            if not of_card and not self.address.matches(function.address):
                return False
        return self.interface is None or (
            card.interface is not None and card.interface.interface == self.interface
        )


def parse_device_specs(texts: tuple[str, ...]) -> tuple[DeviceSpec, ...]:
    """The specs in texts that are each a JSON object or a list of them. Raises SettingsError."""
    specs = []
    for text in filter(str.strip, texts):
        try:
            data = read_json(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SettingsError(f"[pci] device_spec {text[:200]!r} is not JSON: {error}") from error
        except ValueError as error:
            raise SettingsError(f"[pci] device_spec {text[:200]!r}: {error}") from error
        for entry in data if isinstance(data, list) else [data]:
            try:
                specs.append(_spec(entry))
            except ValueError as error:
                raise SettingsError(f"[pci] device_spec {text[:200]!r}: {error}") from error
    return tuple(specs)


def _spec(data: object) -> DeviceSpec:
    given = known_object(data, _KEYS)
    if "devname" in given and "address" in given:
        raise ValueError("devname and address both name devices; remove one of them")
    if not {"vendor_id", "product_id", "devname", "address"} & given.keys():
        raise ValueError("it names no device: give vendor_id, product_id, address or devname")
    resource_class = text_of(given, "resource_class")
    # `managed` and `trusted` do not change the inventory, but must be booleans as for nova.
    flags = {key: flag_of(given, key) for key in _FLAGS}
    one_time_use, network = bool(flags["one_time_use"]), text_of(given, "physical_network")
    if one_time_use and network is not None:
        raise ValueError(
            "one_time_use is for devices that a flavor requests by alias, not with a physical_network"
        )
    if flags["remote_managed"] and (one_time_use or resource_class is not None):
        raise ValueError("remote_managed devices are in no inventory: remove resource_class and one_time_use")
    traits = given.get("traits", "")
    names = traits.split(",") if isinstance(traits, str) else traits
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("traits must be text, names separated by commas")
    mode = text_of(given, "cc_mode")
    if mode not in (None, *device_names.CC_MODES):
        raise ValueError(f"cc_mode must be one of {', '.join(device_names.CC_MODES)}, not {mode!r}")
    flag_traits = {
        device_names.LIVE_MIGRATABLE: flags["live_migratable"],
        device_names.ONE_TIME_USE: one_time_use,
    }
    return DeviceSpec(
        vendor_id=_id_or_any(given, "vendor_id"),
        product_id=_id_or_any(given, "product_id"),
        address=_address(given.get("address")),
        interface=text_of(given, "devname"),
        physical_network=network,
        resource_class=None if resource_class is None else device_names.custom_class(resource_class),
        traits=device_names.custom_traits(names)
        | {trait for trait, is_set in flag_traits.items() if is_set}
        | device_names.CC_MODES.get(mode or "", frozenset()),
        one_time_use=one_time_use,
        remote_managed=bool(flags["remote_managed"]),
        live_migratable=flags["live_migratable"],
        managed=flags["managed"] is not False,
    )


def _id_or_any(data: Mapping[str, Any], key: str) -> str | None:
    return None if text_of(data, key) == "*" else id_of(data, key)


def _address(value: object) -> AddressPattern | None:
    """The addresses of a glob ("*:41:00.*", ":41:") or of an object with regular expressions."""
    if value is None:
        return None
    if isinstance(value, str):
        # As nova: domain, bus and slot are counted from the right, and what is left out is any.
        text = value.strip().lower()
        front, dot, function = text.partition(".")
        fields = front.split(":")
        given = dict(zip(_PARTS, ["*"] * (3 - len(fields)) + [*fields, function], strict=False))
        if len(fields) > 3 or not (dot or ":" in front):
            raise ValueError(f"address {text!r} is not a PCI address such as 0000:41:00.0 or *:41:*.*")
        patterns = {}
        for name, glob in given.items():
            part = glob.strip() or "*"
            if not _GLOB.fullmatch(part) or ("*" not in part and int(part, 16) > _MOST[name]):
                raise ValueError(f"address {text!r} is not a PCI address such as 0000:41:00.0 or *:41:*.*")
            if "*" not in part:
                part = f"{int(part, 16):0{_WIDTHS[name]}x}"
            patterns[name] = part.replace("*", "[0-9a-f]*") + _END
    elif isinstance(value, dict) and value.keys() <= _PARTS.keys():
        patterns = {name: value.get(name) or "" for name in _PARTS}
    else:
        raise ValueError("address must be text or an object of domain, bus, slot and function")
    try:
        for pattern in patterns.values():
            re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"address: {error}") from error
    digits = {name: pattern.removesuffix(_END) for name, pattern in patterns.items()}
    names_one = all(_HEX.fullmatch(digits[name]) and len(digits[name]) >= _WIDTHS[name] for name in _PARTS)
    return AddressPattern(tuple(patterns[name] for name in _PARTS), names_one)


def pci_address_of(text: str) -> str:
    """ "0000:41:10.2" from one address without globs. Raises ValueError."""
    match = re.fullmatch(_FULL_ADDRESS, text.strip().lower())
    if not match:
        raise ValueError(f"{text!r} is not a PCI address such as 0000:41:00.0")
    return match[0]


@dataclass(frozen=True, slots=True)
class MdevSpec:
    """An enabled type of mediated device; without addresses, it is for every card that offers it."""

    type_id: str
    addresses: frozenset[str] = frozenset()
    resource_class: str = "VGPU"
    max_instances: int | None = None

    @property
    def is_vram(self) -> bool:
        """Whether it is an amount of VRAM of a function, see `device_names.VRAM_PREFIX`."""
        return self.type_id.startswith(device_names.VRAM_PREFIX)


def vgpu_spec_of(card: Card, vf: PciDevice, number: str, specs: tuple[MdevSpec, ...]) -> MdevSpec | None:
    """The enabled type of a virtual function under a vendor's own VFIO driver, None if it is not enabled.

    The driver reports the type as a number, which is the end of the type's id.
    """
    for spec in specs:
        is_enabled = not spec.addresses or {vf.address, card.device.address} & spec.addresses
        if is_enabled and spec.type_id.rpartition("-")[2] == number:
            return spec
    return None


def mdev_specs_of(card: Card, specs: tuple[MdevSpec, ...]) -> tuple[MdevSpec, ...]:
    """The enabled types for a card: the first one that it offers, or all that name it if that one does."""
    offered = [spec for spec in specs if parents_for(card, spec.type_id, spec.addresses)]
    if offered and offered[0].addresses:
        return tuple(spec for spec in offered if spec.addresses)
    return tuple(offered[:1])


def has_remote_managed_ports(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> bool:
    """Whether a virtual function is for ports that a network service manages on the card itself."""
    managed = [spec for spec in specs if spec.remote_managed]
    return any(spec.matches(vf, card) for card in cards for vf in card.vfs for spec in managed)


def check_remote_managed(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> None:
    """Check that no spec makes a physical function remote_managed. Raises DriverDataError where one does.

    A spec that names a card means its virtual functions only by their product.
    """
    managed = [spec for spec in specs if spec.remote_managed]
    for card, spec in ((card, spec) for card in cards for spec in managed if card.device.vfs_max is not None):
        if not spec.names_card(card):
            continue
        device, products = card.device, {vf.product_id for vf in card.vfs}
        of_vendor = spec.vendor_id in (None, device.vendor_id)
        of_card = spec.product_id in (None, device.product_id)
        if of_vendor and (spec.product_id in products or not (products or of_card)):
            continue
        named = f"[pci] device_spec has remote_managed for {device.address}, a physical function"
        if of_vendor and of_card:
            raise DriverDataError(
                f"{named}: guests cannot reach the far side of its port; give the product_id of its virtual "
                f"functions{_among(products)}"
            )
        raise DriverDataError(
            f"{named}, with vendor_id {spec.vendor_id or 'any'} and product_id {spec.product_id}: its "
            f"virtual functions have vendor_id {device.vendor_id} and another product_id{_among(products)}"
        )


def _among(products: Iterable[str]) -> str:
    listed = ", ".join(sorted(products))
    return f" ({listed})" if listed else ""


def without_serial(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> Iterator[str]:
    """A sentence for each spec that leaves virtual functions out because their card has no serial number."""
    cards = tuple(cards)
    for number, spec in enumerate(specs, start=1):
        wider = replace(spec, remote_managed=False)
        left_out = [
            vf.address
            for card in cards
            for vf in card.vfs
            if wider.matches(vf, card) and not spec.matches(vf, card)
        ]
        if left_out:
            yield (
                f"[pci] device_spec number {number}: remote_managed needs the serial number in the card's "
                f"vital product data (VPD), and libvirt reports none for {', '.join(left_out)}."
            )
