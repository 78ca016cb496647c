"""How the recorded host is carved, and what the options on carving mean."""

from __future__ import annotations

import pytest
from kits.libvirt_model import FACTS

from agent.driver import CarvedUnit, DeclaredCarving
from agent.errors import SettingsError
from drivers.libvirt.describe.cards import MdevSpec, UnitRecord
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.options import declared_carving
from drivers.libvirt.describe.unit_records import carved_units

SETTINGS = DeviceSettings(mdevs=(MdevSpec("nvidia-471", frozenset({"0000:84:00.0"})), MdevSpec("nvidia-11")))


def test_the_functions_and_mediated_devices_of_the_recorded_host() -> None:
    units = {unit.unit: unit for unit in carved_units(FACTS["mdevs"], (), SETTINGS)}
    assert units["0000:41:10.2"] == CarvedUnit("0000:41:10.2", "0000:41:00.0", "0000:41:10.2")
    mdevs = [unit for unit in units.values() if unit.unit != unit.parent]
    assert mdevs and all(unit.type_id for unit in mdevs)
    assert {(unit.card, unit.parent) for unit in mdevs} <= {
        ("0000:42:00.0", "0000:42:00.0"),
        ("0000:82:00.0", "0000:82:00.0"),
        *(("0000:84:00.0", f"0000:84:00.{number}") for number in range(1, 5)),
    }


def test_a_vgpu_type_is_that_of_the_options_and_none_is_not_known() -> None:
    types = {"0000:84:00.1": "471", "0000:84:00.2": "0"}
    facts = DeviceFacts(FACTS["vfs"].cards, vgpu_types=types)
    units = {unit.unit: unit.type_id for unit in carved_units(facts, (), SETTINGS)}
    assert units["0000:84:00.1"] == "nvidia-471"
    assert "0000:84:00.2" not in units, "what it was before the boot is in the plan file"


def test_a_vgpu_is_made_again_where_it_is_on_its_card() -> None:
    facts = DeviceFacts(
        FACTS["vfs"].cards, vgpu_types={"0000:84:00.1": "471"}, vgpu_places={"0000:84:00.1": 20}
    )
    units = {unit.unit: unit for unit in carved_units(facts, (), SETTINGS)}
    assert units["0000:84:00.1"] == CarvedUnit(
        "0000:84:00.1", "0000:84:00.0", "0000:84:00.1", "nvidia-471", placement=20
    )


def test_a_mediated_device_that_a_boot_took_away_is_known_by_its_record() -> None:
    record = UnitRecord("u-1", "0000:42:00.0", "VGPU", "0000:42:00.0", "nvidia-11", "boot-1")
    vf = UnitRecord("0000:41:10.0", "0000:41:00.0", "SRIOV_NET_VF", boot="boot-1")
    assert carved_units(DeviceFacts(), (record, vf), SETTINGS) == (
        CarvedUnit("u-1", "0000:42:00.0", "0000:42:00.0", "nvidia-11"),
    )


def test_the_options_say_what_is_to_be_there() -> None:
    options = {
        "sriov_vfs": ["0000:41:00.0=4", "0000:81:00.0 = 0"],
        "driver_overrides": ["0000:83:00.0=vfio-pci", "0000:41:00.0/vfs=mlx5_vfio_pci"],
        "vgpu_types": ["0000:84:00.1=nvidia-471"],
    }
    assert declared_carving(options, SETTINGS) == DeclaredCarving(
        {"0000:41:00.0": 4, "0000:81:00.0": 0},
        {"0000:83:00.0": "vfio-pci"},
        {"0000:41:00.0": "mlx5_vfio_pci"},
        {"0000:84:00.1": "nvidia-471"},
        {"nvidia-471": frozenset({"0000:84:00.0"}), "nvidia-11": frozenset()},
    )
    assert declared_carving({}, DeviceSettings()) == DeclaredCarving()


def test_a_type_is_allowed_on_the_functions_and_cards_that_name_it() -> None:
    declared = declared_carving({}, SETTINGS)
    assert declared.allows("nvidia-471", "0000:84:00.1", "0000:84:00.0")
    assert not declared.allows("nvidia-471", "0000:85:00.1", "0000:85:00.0")
    assert declared.allows("nvidia-11", "0000:42:00.0", "0000:42:00.0")
    assert not declared.allows("nvidia-12", "0000:42:00.0", "0000:42:00.0")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("sriov_vfs", "0000:41:00.0"),
        ("sriov_vfs", "0000:41:00.0=many"),
        ("sriov_vfs", "*:41:*.*=4"),
        ("sriov_vfs", "0000:41:00.0/vfs=4"),
        ("sriov_vfs", "../x=4"),
        ("driver_overrides", "0000:41:00.0=../../x"),
        ("driver_overrides", "/vfs=vfio-pci"),
        ("vgpu_types", "0000:84:00.1=nvidia-99"),
    ],
)
def test_what_names_no_device_or_no_value_is_refused(option: str, text: str) -> None:
    with pytest.raises(SettingsError, match=rf"\[devices\] {option}"):
        declared_carving({option: [text]}, SETTINGS)


def test_an_address_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="twice"):
        declared_carving({"sriov_vfs": ["0000:41:00.0=4", "0000:41:00.0=2"]}, SETTINGS)
