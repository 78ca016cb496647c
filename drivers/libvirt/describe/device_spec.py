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
from drivers.libvirt.xml.nodedevs import PciDevice

_FLAGS = ("one_time_use", "live_migratable", "managed", "trusted", "remote_managed")
_KEYS = {
    *("vendor_id", "product_id", "address", "devname", "physical_network", "resource_class", "traits"),
    *_FLAGS,
}
_PARTS = {"domain": "[0-9a-f]{4,8}", "bus": "[0-9a-f]{2}", "slot": "[0-9a-f]{2}", "function": "[0-7]"}
_GLOB = re.compile(
    r"(?:(?P<domain>[0-9a-f*]*):)?(?P<bus>[0-9a-f*]*):(?P<slot>[0-9a-f*]*)(?:\.(?P<function>[0-7*]*))?",
    re.ASCII | re.IGNORECASE,
)
_FULL_ADDRESS = re.compile("{domain}:{bus}:{slot}\\.{function}".format(**_PARTS), re.ASCII)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One entry of [pci] device_spec.

    Ids are four hexadecimal digits, None for any. `address` is a regular expression, `interface` the name of
    a network interface. With `one_time_use` a device stays reserved after its guest, until the operator
    releases it. With `remote_managed` the functions are for ports that a network service plugs on a card with
    processors of its own; they are in no inventory.
    """

    vendor_id: str | None = None
    product_id: str | None = None
    address: str | None = None
    interface: str | None = None
    physical_network: str | None = None
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    one_time_use: bool = False
    remote_managed: bool = False

    def matches(self, function: PciDevice, card: Card) -> bool:
        """Whether it offers the function. The address or interface of a card stands for all functions."""
        if self.vendor_id is not None and self.vendor_id != function.vendor_id:
            return False
        if self.product_id is not None and self.product_id != function.product_id:
            return False
        if self.address is not None:
            addresses = {function.address, card.device.address}
            if not any(re.fullmatch(self.address, address) for address in addresses):
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


def _address(value: object) -> str | None:
    """A regular expression of PCI addresses, from a glob ("*:41:00.*") or an object of expressions."""
    if value is None:
        return None
    if isinstance(value, str):
        match = _GLOB.fullmatch(value.strip())
        if not match:
            raise ValueError(f"address {value!r} is not a PCI address such as 0000:41:00.0 or *:41:*.*")
        given: Mapping[str, Any] = {name: _from_glob(text) for name, text in match.groupdict().items()}
    elif isinstance(value, dict) and value.keys() <= _PARTS.keys():
        given = value
    else:
        raise ValueError("address must be text or an object of domain, bus, slot and function")
    parts = {name: given.get(name) or pattern for name, pattern in _PARTS.items()}
    pattern = "(?:{domain}):(?:{bus}):(?:{slot})\\.(?:{function})".format(**parts)
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"address: {error}") from error
    return pattern


def _from_glob(text: str | None) -> str | None:
    return None if text in (None, "", "*") else str(text).lower().replace("*", "[0-9a-f]*")


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
