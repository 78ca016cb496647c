"""Neutron's options for bandwidth of cards and bridges and for packet rates, with their defaults."""

from __future__ import annotations

import pytest

from agent.driver import DescribedInventory
from agent.errors import SettingsError
from drivers.libvirt.describe.bandwidth import (
    InventoryDefaults,
    OvsSettings,
    ovs_providers,
    parse_inventory_defaults,
    parse_ovs,
)
from drivers.libvirt.describe.options import device_settings

TOLD = ["allocation_ratio:1.5", "min_unit:100", "max_unit:500", "step_size:100", "reserved:50"]
AS_TOLD = DescribedInventory(
    1000, reserved=50, min_unit=100, max_unit=500, step_size=100, allocation_ratio=1.5
)


def test_without_options_an_inventory_has_neutrons_defaults() -> None:
    """{'allocation_ratio': 1.0, 'min_unit': 1, 'step_size': 1, 'reserved': 0}"""
    assert parse_inventory_defaults("x", ()) == InventoryDefaults()
    assert InventoryDefaults().inventory(7) == DescribedInventory(7, allocation_ratio=1.0)


def test_bridges_and_rates_have_fields_of_their_own() -> None:
    told = {
        "bridge_mappings": ["physnet0:br-ex"],
        "resource_provider_bandwidths": ["br-ex:1000:"],
        "resource_provider_inventory_defaults": TOLD,
        "resource_provider_packet_processing_without_direction": [":1000"],
        "resource_provider_packet_processing_inventory_defaults": ["step_size:10"],
    }
    switch, bridge = ovs_providers("h", parse_ovs(told, "h"))
    assert bridge.inventories == {"NET_BW_EGR_KILOBIT_PER_SEC": AS_TOLD}
    (rate,) = switch.inventories.values()
    assert rate == DescribedInventory(1000, step_size=10, allocation_ratio=1.0)


def test_cards_have_those_of_their_group() -> None:
    settings = device_settings({"sriov_nic": {"resource_provider_inventory_defaults": TOLD}})
    assert settings.bandwidth_defaults.inventory(1000) == AS_TOLD


def test_no_more_is_reserved_than_there_is() -> None:
    assert InventoryDefaults(reserved=50).inventory(20).reserved == 20


@pytest.mark.parametrize(
    "texts",
    [
        *(["step_size:0"], ["step"], ["total:5"], ["reserved:-1"], ["min_unit:1.5"], ["allocation_ratio:0"]),
        *(["allocation_ratio:x"], ["min_unit:1", "min_unit:2"]),
    ],
)
def test_defaults_that_make_no_sense_are_refused_with_the_option(texts: list[str]) -> None:
    with pytest.raises(SettingsError, match="some_option"):
        parse_inventory_defaults("[ovs] some_option", texts)


EGRESS, INGRESS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"
MAPPINGS = {"bridge_mappings": ["physnet0:br-ex", "physnet1:br-two"]}
NORMAL = {"CUSTOM_VNIC_TYPE_NORMAL", "CUSTOM_VNIC_TYPE_DIRECT"}


def test_each_bridge_has_its_bandwidth_and_its_network_below_the_switch() -> None:
    told = {"resource_provider_bandwidths": ["br-ex:1000:2000", "br-two::500", "rp_tunnelled:7:7"]}
    providers = {each.name: each for each in ovs_providers("h", parse_ovs(MAPPINGS | told, "h"))}
    assert list(providers) == ["h_ovs", "h_ovs_br-ex", "h_ovs_br-two", "h_ovs_rp_tunnelled"]
    assert (providers["h_ovs"].parent, providers["h_ovs"].inventories) == ("h", {})
    totals = {
        name: {each: inventory.total for each, inventory in provider.inventories.items()}
        for name, provider in providers.items()
    }
    assert totals["h_ovs_br-ex"] == {EGRESS: 1000, INGRESS: 2000}
    assert totals["h_ovs_br-two"] == {INGRESS: 500}, "a direction that is left out is not limited"
    assert providers["h_ovs_br-ex"].traits == NORMAL | {"CUSTOM_PHYSNET_PHYSNET0"}
    assert providers["h_ovs_rp_tunnelled"].traits == NORMAL | {"CUSTOM_NETWORK_TUNNEL_PROVIDER"}
    assert {each.parent for name, each in providers.items() if name != "h_ovs"} == {"h_ovs"}


@pytest.mark.parametrize(
    ("option", "text", "rates"),
    [
        ("without", ":100", {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 100}),
        ("without", "h:100", {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 100}),
        (
            "with",
            ":100:200",
            {
                "NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC": 100,
                "NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC": 200,
            },
        ),
        ("with", ":0:0", {}),
    ],
)
def test_the_switch_has_packet_rates_with_or_without_direction(
    option: str, text: str, rates: dict[str, int]
) -> None:
    settings = parse_ovs({f"resource_provider_packet_processing_{option}_direction": [text]}, "h")
    assert settings.rates == rates
    assert [each.name for each in ovs_providers("h", settings)] == (["h_ovs"] if rates else [])


@pytest.mark.parametrize(
    "values",
    [
        {"bridge_mappings": ["physnet0"]},
        {"bridge_mappings": ["physnet0:br-ex", "physnet1:br-ex"]},
        {"bridge_mappings": ["physnet0:br-ex", "physnet0:br-two"]},
        {"resource_provider_bandwidths": ["br-none:1:1"]},
        {**MAPPINGS, "resource_provider_bandwidths": ["br-ex:1:1:1"]},
        {**MAPPINGS, "resource_provider_bandwidths": ["br-ex:-1:1"]},
        {**MAPPINGS, "resource_provider_bandwidths": ["br-ex:1:1", "br-ex:2:2"]},
        {"resource_provider_packet_processing_without_direction": ["other:1"]},
        {"resource_provider_packet_processing_without_direction": [":1:2"]},
        {"resource_provider_packet_processing_without_direction": [":1", "h:2"]},
        {
            "resource_provider_packet_processing_without_direction": [":1"],
            "resource_provider_packet_processing_with_direction": [":1:1"],
        },
    ],
)
def test_what_makes_no_sense_is_refused_with_the_option(values: dict[str, list[str]]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_ovs(values, "h")
    option = list(values)[-1]
    assert caught.value.message.startswith(f"[ovs] {option}: ")


def test_without_options_there_is_nothing() -> None:
    assert parse_ovs({}, "h") == OvsSettings()
    assert not list(ovs_providers("h", OvsSettings()))
