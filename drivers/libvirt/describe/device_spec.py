"""The devices that the operator offers: [pci] device_spec and [devices] enabled_mdev_types, as in nova. Pure.

Source: https://docs.openstack.org/nova/latest/configuration/config.html#pci.device_spec
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.device_names import LIVE_MIGRATABLE, ONE_TIME_USE, custom_class, custom_traits
from agent.errors import SettingsError
from agent.nova_json import flag_of, id_of, known_object, text_of
from drivers.libvirt.describe.cards import Card, parents_for
from drivers.libvirt.xml import PciDevice

_FLAGS = ("one_time_use", "live_migratable", "managed", "trusted", "remote_managed")
_KEYS = {
    *("vendor_id", "product_id", "address", "devname", "physical_network", "resource_class", "traits"),
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
    own; they are in no inventory.
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
            data = json.loads(text)
        except ValueError as error:
            raise SettingsError(f"[pci] device_spec {text[:200]!r} is not JSON: {error}") from error
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
    flag_traits = {LIVE_MIGRATABLE: flags["live_migratable"], ONE_TIME_USE: one_time_use}
    return DeviceSpec(
        vendor_id=_id_or_any(given, "vendor_id"),
        product_id=_id_or_any(given, "product_id"),
        address=_address(given.get("address")),
        interface=text_of(given, "devname"),
        physical_network=network,
        resource_class=None if resource_class is None else custom_class(resource_class),
        traits=_traits(given.get("traits", "")) | {trait for trait, is_set in flag_traits.items() if is_set},
        one_time_use=one_time_use,
        remote_managed=bool(flags["remote_managed"]),
    )


def _id_or_any(data: Mapping[str, Any], key: str) -> str | None:
    return None if text_of(data, key) == "*" else id_of(data, key)


def _address(value: object) -> AddressPattern | None:
    """The addresses of a glob ("*:41:00.*", ":41:") or of an object with regular expressions."""
    if value is None:
        return None
    if isinstance(value, str):
        patterns = _patterns_of_glob(value.strip().lower())
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


def _patterns_of_glob(text: str) -> dict[str, str]:
    """As nova: domain, bus and slot are counted from the right, and what is left out is any."""
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
    return patterns


def _traits(value: object) -> frozenset[str]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("traits must be text, names separated by commas")
    return custom_traits(names)


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
