"""Bandwidth of Open vSwitch bridges and packet rates of the switch, from the operator's configuration. Pure.

The options are those of Neutron's Open vSwitch agent in name and format, and so are resource classes and
traits. The providers have names of their own, which never collide with those of Neutron's agent.

Source: https://docs.openstack.org/neutron/latest/admin/config-qos-min-bw.html and .../config-qos-min-pps.html
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.device_names import physical_network_trait
from agent.driver import DescribedInventory, DescribedProvider
from agent.errors import SettingsError
from agent.tree import MAX_UNIT
from drivers.libvirt.describe.inventory_defaults import InventoryDefaults, parse_inventory_defaults

TUNNELS = "rp_tunnelled"
"""The name of all tunnelled networks together, in place of a bridge: the default of Neutron's option."""
TUNNEL_TRAIT = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
VNIC_TRAITS = frozenset({"CUSTOM_VNIC_TYPE_NORMAL", "CUSTOM_VNIC_TYPE_DIRECT"})
"""The ports that the switch serves, as Neutron's mechanism driver says."""

BANDWIDTH = ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC")
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
    networks = _networks(values.get("bridge_mappings") or ())
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
        inventories=_inventories(settings.rates, settings.rate_defaults),
        traits=VNIC_TRAITS,
        device="ovs",
    )
    for bridge, amounts in bridges.items():
        of_tunnels = frozenset({TUNNEL_TRAIT}) if bridge == TUNNELS else frozenset[str]()
        yield DescribedProvider(
            name=f"{switch}_{bridge}",
            parent=switch,
            inventories=_inventories(amounts, settings.bandwidth_defaults),
            traits=VNIC_TRAITS | of_tunnels | physical_network_trait(settings.networks.get(bridge)),
            device=f"ovs:{bridge}",
        )


def _inventories(amounts: Amounts, defaults: InventoryDefaults) -> dict[str, DescribedInventory]:
    return {name: defaults.inventory(total) for name, total in amounts.items()}


def _networks(texts: Iterable[str]) -> dict[str, str]:
    networks: dict[str, str] = {}
    for text in texts:
        network, colon, bridge = (part.strip() for part in text.partition(":"))
        if not (network and colon and bridge) or bridge in networks or network in networks.values():
            _refuse("bridge_mappings", text, "it is not NETWORK:BRIDGE, or one of both is there twice")
        networks[bridge] = network
    return networks


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
