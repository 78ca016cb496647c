"""Units that domains name: located, recorded, missing, made again after a reboot, and carved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.libvirt_model import FACTS
from kits.libvirt_node import DATA
from kits.recorded_cards import A100, M60, NIC0, NIC1, T4, cards

from agent.driver import CarvedUnit, DescribedProvider
from drivers.host.domain_xml import parse_domain
from drivers.host.providers import UnitLocation
from drivers.libvirt.describe.cards import Card, MdevSpec, UnitRecord, cards_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.history import (
    LostMdev,
    carved_units,
    lost_mdevs,
    missing_records,
    unit_locations,
    update_records,
)
from drivers.libvirt.xml import (
    MediatedDevice,
    PciDevice,
)


def owners_of(found: tuple[Card, ...]) -> dict[str, str]:
    """{unit: `Card.key`}, with a provider for each card and its functions."""
    described = [
        DescribedProvider(
            card.key,
            device=card.key,
            units={"PCI": (card.device.address, *(vf.address for vf in card.vfs))},
        )
        for card in found
    ]
    settings = DeviceSettings(mdevs=(MdevSpec("t"),))
    return {
        unit: place.device for unit, place in unit_locations(described, DeviceFacts(found), settings).items()
    }


def test_every_device_of_every_recorded_domain_has_its_card() -> None:
    owners = owners_of(tuple(cards("domains").values()))
    held = {}
    for name in ("vm-mdev", "vm-vf", "vm-gpu", "vm-both", "vm-off-inactive"):
        domain = parse_domain((DATA / "domains" / f"{name}.xml").read_text())
        held[name] = [owners[unit] for unit in (*domain.mdevs, *domain.pci_devices, *domain.interfaces)]
    assert held == {
        "vm-mdev": [f"pci:{M60}"],
        "vm-vf": [f"pci:{NIC0}"],
        "vm-gpu": [f"pci:{T4}"],
        "vm-both": [f"pci:{A100}", f"pci:{NIC0}"],
        "vm-off-inactive": ["pci:0000:82:00.0", f"pci:{NIC1}"],
    }


def test_the_active_one_of_two_devices_with_one_uuid_holds_it() -> None:
    uuid = "11111111-1111-4111-8111-111111111111"
    functions = [PciDevice(f"p{n}", f"0000:0{n}:00.0", "10de", "13f2", 0x030200) for n in (1, 2)]
    for active in ((True, False), (False, True)):
        mdevs = [MediatedDevice(f"m{n}", uuid, f"p{n}", "t", active[n - 1]) for n in (1, 2)]
        holder = "pci:0000:01:00.0" if active[0] else "pci:0000:02:00.0"
        assert owners_of(cards_of([*functions, *mdevs]))[uuid] == holder


PARENT = "pci_0000_42_00_0"
UUID = "11111111-1111-4111-8111-111111111111"
NAME = f"mdev_{UUID.replace('-', '_')}_0000_42_00_0"
UNIT = UnitRecord(UUID, M60, "VGPU", M60, "nvidia-11", "boot-1")


def after_a_reboot(*mdevs: MediatedDevice) -> DeviceFacts:
    cards = FACTS["boot"].cards
    return DeviceFacts(
        tuple(replace(card, mdevs=mdevs) if card.device.address == M60 else card for card in cards)
    )


def mdev(parent: str = PARENT, *, active: bool) -> MediatedDevice:
    return MediatedDevice(NAME, UUID, parent, "nvidia-11", active)


def lost(facts: DeviceFacts, missing: tuple[UnitRecord, ...] = (UNIT,)) -> list[LostMdev]:
    return lost_mdevs(missing, facts, "boot-2")


def test_a_transient_one_is_made_anew() -> None:
    assert lost(after_a_reboot()) == [LostMdev(UNIT, PARENT, None)]


def test_a_persistent_one_is_started_as_it_is_defined() -> None:
    assert lost(after_a_reboot(mdev(active=False))) == [LostMdev(UNIT, PARENT, NAME)]
    elsewhere = mdev("pci_0000_82_00_0", active=False)
    assert lost(after_a_reboot(elsewhere)) == [LostMdev(UNIT, PARENT, None)], (
        "that definition is of another card"
    )


@pytest.mark.parametrize(
    ("record", "boot"),
    [
        (replace(UNIT, boot="boot-2"), "boot-2"),
        (replace(UNIT, boot=""), "boot-2"),
        (UNIT, ""),
        (replace(UNIT, parent=NIC0), "boot-2"),
        (UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1"), "boot-2"),
    ],
)
def test_only_what_an_earlier_boot_had_is_made_again_on_a_parent_that_can_have_it(
    record: UnitRecord, boot: str
) -> None:
    assert lost_mdevs([record], after_a_reboot(), boot) == []


def test_a_unit_is_missing_while_its_card_is_there_and_it_is_not() -> None:
    settings = DeviceSettings(mdevs=(MdevSpec("nvidia-11", resource_class="CUSTOM_SMALL"),))
    vf = UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1")
    of_a_gone_card = UnitRecord("9", "0000:99:00.0", "VGPU", "0000:99:00.0", "t", "boot-1")
    known = {each.unit: each for each in (vf, of_a_gone_card)}
    defined = after_a_reboot(mdev(active=False))
    named = frozenset({UUID, *known, "0000:41:10.1"})
    as_defined = UnitRecord(UUID, M60, "CUSTOM_SMALL", M60, "nvidia-11")
    assert missing_records(named, defined, settings, known) == [vf, as_defined]
    assert missing_records(named, defined, settings, known | {UUID: UNIT}) == [vf, UNIT], "it existed once"
    assert missing_records(frozenset({UUID}), defined, settings, known) == [as_defined]
    assert missing_records(named, after_a_reboot(mdev(active=True)), settings, known | {UUID: UNIT}) == [vf]
    assert missing_records(named, FACTS["vfs"], settings, known) == [], "the function is back"


def test_a_missing_unit_is_where_it_was_in_the_class_of_its_type() -> None:
    m60, nic = (DescribedProvider(card, "h", device=f"pci:{card}") for card in (M60, NIC0))
    vf = UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1")
    unit, plain = replace(UNIT, resource_class="OLD"), DeviceSettings()
    enabled = DeviceSettings(mdevs=(MdevSpec("nvidia-11", resource_class="CUSTOM_SMALL"),))
    facts = after_a_reboot()
    assert unit_locations([m60, nic], facts, enabled, [unit, vf]) == {
        UUID: UnitLocation("CUSTOM_SMALL", m60.device)
    }
    assert unit_locations([m60, nic], facts, plain, [unit]) == {UUID: UnitLocation("OLD", m60.device)}
    assert unit_locations([nic], facts, enabled, [unit]) == {}, "a card that offers nothing"
    there = after_a_reboot(mdev(active=True))
    assert unit_locations([m60], there, enabled) == {UUID: UnitLocation("CUSTOM_SMALL", m60.device)}
    assert unit_locations([nic], there, enabled) == {}


def test_what_domains_name_is_recorded_as_it_is_now_and_dropped_when_none_names_it() -> None:
    facts, vf = FACTS["domains"], "0000:41:10.0"
    idle, gone = (UnitRecord(name, M60, "VGPU", M60, "t", "boot-1") for name in ("idle", "gone"))
    known = {"idle": idle, "gone": gone, UUID: replace(UNIT, resource_class="OLD")}
    named = frozenset({vf, UUID, "gone"})
    locations = {vf: UnitLocation("X", f"pci:{NIC0}"), UUID: UnitLocation("Y", f"pci:{M60}")}
    now = {
        vf: UnitRecord(vf, NIC0, "X", boot="boot-2"),
        UUID: replace(UNIT, resource_class="Y", boot="boot-2"),
    }
    all_read = update_records(named, facts, DeviceSettings(), locations, known, "boot-2", forget=True)
    assert all_read == {"gone": gone} | now
    in_part = update_records(named, facts, DeviceSettings(), locations, known, "boot-2", forget=False)
    assert in_part == known | now, "a domain that could not be read may name it"
    unlocated = update_records(named, facts, DeviceSettings(), {}, known, "boot-2", forget=True)
    assert unlocated == {"gone": gone, UUID: replace(UNIT, boot="boot-2")}


def test_one_with_autostart_is_there_and_left_alone() -> None:
    """The host started it; where it did not (a broken udev rule), it is as any persistent one."""
    assert lost(after_a_reboot(mdev(active=True)), missing=()) == []


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


def test_a_function_is_carved_with_the_port_that_its_card_has_for_it() -> None:
    ports = {"0000:41:10.0": "52:54:00:00:00:01 VLAN 100", "0000:41:10.2": "00:00:00:00:00:00"}
    units = {unit.unit: unit.port for unit in carved_units(replace(FACTS["vfs"], ports=ports), (), SETTINGS)}
    assert units["0000:41:10.0"] == "52:54:00:00:00:01 VLAN 100"
    assert units["0000:41:10.2"] == units["0000:41:10.4"] == "", "the card has none"
