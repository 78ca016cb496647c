"""Bandwidth of cards and bridges, and packet rates of the switch, from the operator's configuration. Pure.

The options are those of Neutron's agents in name and format, and so are resource classes and traits. The
providers of the switch have names of their own, which never collide with those of Neutron's agent.

Source: https://docs.openstack.org/neutron/latest/admin/config-qos-min-bw.html,
.../config-qos-min-pps.html and https://docs.openstack.org/api-ref/placement/#update-resource-provider-inventories
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.device_names import physical_network_trait
from agent.driver import DescribedInventory, DescribedProvider
from agent.errors import SettingsError
from agent.tree import MAX_UNIT

# What the inventories have beside their total

RATIO_MAX = 10_000.0
_LEAST = {"min_unit": 1, "max_unit": 1, "step_size": 1, "reserved": 0}


@dataclass(frozen=True, slots=True)
class InventoryDefaults:
    """The fields of each inventory; Neutron has the same defaults. `max_unit` None means the total."""

    allocation_ratio: float = 1.0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    reserved: int = 0

    def inventory(self, total: int) -> DescribedInventory:
        """An inventory of this total; no more than that is reserved."""
        return DescribedInventory(
            total,
            reserved=min(self.reserved, total),
            min_unit=self.min_unit,
            max_unit=self.max_unit,
            step_size=self.step_size,
            allocation_ratio=self.allocation_ratio,
        )


def parse_inventory_defaults(option: str, texts: Iterable[str]) -> InventoryDefaults:
    """The defaults in texts such as "step_size:1000"; messages name the `option`. Raises SettingsError."""
    ratio = 1.0
    found: dict[str, int] = {}
    seen: set[str] = set()
    for text in texts:
        key, _, value = (part.strip() for part in text.partition(":"))
        if key in seen:
            raise SettingsError(f"{option} has {key} twice; remove one of them.")
        seen.add(key)
        if key == "allocation_ratio":
            try:
                ratio = float(value)
            except ValueError:
                ratio = 0.0
            if not 0.0 < ratio <= RATIO_MAX:
                raise SettingsError(f"{option}: allocation_ratio {value[:80]!r} is not a number above 0.")
        elif key in _LEAST and value.isdecimal() and _LEAST[key] <= int(value) <= MAX_UNIT:
            found[key] = int(value)
        else:
            raise SettingsError(
                f"{option}: {text[:80]!r} is not allocation_ratio:NUMBER, or one of min_unit, max_unit, "
                "step_size, reserved with a whole number."
            )
    return InventoryDefaults(ratio, **found)


# Network cards

BANDWIDTH = ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC")


def parse_bandwidths(texts: Iterable[str]) -> dict[str, tuple[int, int]]:
    """{interface: (egress, ingress) in kbit/s} of texts INTERFACE:EGRESS:INGRESS. Raises SettingsError."""
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


# Open vSwitch

TUNNELS = "rp_tunnelled"
"""The name of all tunnelled networks together, in place of a bridge: the default of Neutron's option."""
TUNNEL_TRAIT = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
VNIC_TRAITS = frozenset({"CUSTOM_VNIC_TYPE_NORMAL", "CUSTOM_VNIC_TYPE_DIRECT"})
"""The ports that the switch serves, as Neutron's mechanism driver says."""

RATES = ("NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC", "NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC")
RATE = ("NET_PACKET_RATE_KILOPACKET_PER_SEC",)

Amounts = Mapping[str, int]
"""{resource class: amount}, without zeros"""


@dataclass(frozen=True, slots=True)
class OvsSettings:
    """`networks` {bridge: physical network}, `bandwidth` {bridge: amounts}, and the switch's `rates`."""

    networks: Mapping[str, str] = field(default_factory=dict)
    bandwidth: Mapping[str, Amounts] = field(default_factory=dict)
    rates: Amounts = field(default_factory=dict)
    bandwidth_defaults: InventoryDefaults = field(default_factory=InventoryDefaults)
    rate_defaults: InventoryDefaults = field(default_factory=InventoryDefaults)


def parse_ovs(values: Mapping[str, Any], host: str) -> OvsSettings:
    """The settings in the group [ovs]; `host` is this host's name.

    Raises SettingsError where options are malformed or contradict each other.
    """
    networks: dict[str, str] = {}
    for text in values.get("bridge_mappings") or ():
        network, colon, bridge = (part.strip() for part in text.partition(":"))
        if not (network and colon and bridge) or bridge in networks or network in networks.values():
            _refuse("bridge_mappings", text, "it is not NETWORK:BRIDGE, or one of both is there twice")
        networks[bridge] = network
    bandwidth = _amounts("resource_provider_bandwidths", values, BANDWIDTH)
    for bridge in bandwidth:
        if bridge not in networks and bridge != TUNNELS:
            _refuse("resource_provider_bandwidths", bridge, "bridge_mappings does not have this bridge")
    rates: dict[str, Amounts] = {}
    for option, classes in (
        ("resource_provider_packet_processing_without_direction", RATE),
        ("resource_provider_packet_processing_with_direction", RATES),
    ):
        for name, amounts in _amounts(option, values, classes).items():
            if name not in ("", host):
                _refuse(option, name, f"this host is {host}; leave the name out")
            if rates:
                _refuse(option, name or host, "the rates are given already; use one of the two options, once")
            rates[host] = amounts
    bandwidth_defaults, rate_defaults = (
        parse_inventory_defaults(f"[ovs] {option}", values.get(option) or ())
        for option in (
            "resource_provider_inventory_defaults",
            "resource_provider_packet_processing_inventory_defaults",
        )
    )
    return OvsSettings(networks, bandwidth, rates.get(host, {}), bandwidth_defaults, rate_defaults)


def ovs_providers(host: str, settings: OvsSettings) -> Iterator[DescribedProvider]:
    """The switch's provider below the host, and one for each bridge below that; none without amounts."""
    bridges = {bridge: amounts for bridge, amounts in settings.bandwidth.items() if amounts}
    if not bridges and not settings.rates:
        return
    switch = f"{host}_ovs"
    yield DescribedProvider(
        name=switch,
        parent=host,
        inventories={name: settings.rate_defaults.inventory(total) for name, total in settings.rates.items()},
        traits=VNIC_TRAITS,
        device="ovs",
    )
    for bridge, amounts in bridges.items():
        of_tunnels = frozenset({TUNNEL_TRAIT}) if bridge == TUNNELS else frozenset[str]()
        yield DescribedProvider(
            name=f"{switch}_{bridge}",
            parent=switch,
            inventories={
                name: settings.bandwidth_defaults.inventory(total) for name, total in amounts.items()
            },
            traits=VNIC_TRAITS | of_tunnels | physical_network_trait(settings.networks.get(bridge)),
            device=f"ovs:{bridge}",
        )


def _amounts(option: str, values: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, Amounts]:
    """{name: amounts} of texts such as "br-ex:1000:2000"; an amount may be left out."""
    found: dict[str, Amounts] = {}
    for text in values.get(option) or ():
        name, *numbers = (part.strip() for part in text.split(":"))
        if len(numbers) > len(classes) or name in found:
            _refuse(option, text, f"it is not NAME{':NUMBER' * len(classes)}, or its name is there twice")
        if not all(part == "" or (part.isdecimal() and int(part) <= MAX_UNIT) for part in numbers):
            _refuse(option, text, f"a number is not a whole one from 0 to {MAX_UNIT}")
        given = zip(classes, numbers, strict=False)
        found[name] = {resource_class: int(part) for resource_class, part in given if part and int(part)}
    return found


def _refuse(option: str, text: str, why: str) -> None:
    raise SettingsError(f"[ovs] {option}: {text[:80]!r}: {why}", group="ovs", option=option)
