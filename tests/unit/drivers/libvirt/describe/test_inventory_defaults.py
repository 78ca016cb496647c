"""Neutron's defaults of inventories, for bandwidth of cards and bridges and for packet rates."""

from __future__ import annotations

import pytest

from agent.driver import DescribedInventory
from agent.errors import SettingsError
from drivers.libvirt.describe.bandwidth import (
    InventoryDefaults,
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
def test_what_makes_no_sense_is_refused_with_the_option(texts: list[str]) -> None:
    with pytest.raises(SettingsError, match="some_option"):
        parse_inventory_defaults("[ovs] some_option", texts)
