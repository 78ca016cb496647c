"""Units of cards: where they are, and where they were once they are gone. Pure.

A unit that domains name is recorded while it exists. After a reboot of the host virtual functions and
mediated devices come back one by one, and a record tells on which card its unit belongs; the mediated devices
that the reboot removed are created again, with the same uuid and type on the same parent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from agent.device_names import address_of
from agent.driver import CarvedUnit, DescribedProvider
from drivers.host.providers import UnitLocation, described_locations
from drivers.libvirt.describe.cards import (
    NO_TYPE,
    Card,
    UnitRecord,
    mdev_specs_of,
    vgpu_spec_of,
)
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, class_of, mdev_class
from drivers.libvirt.describe.mixed_sizes import vgpus_of
from drivers.libvirt.xml import MediatedDevice


def unit_locations(
    providers: Iterable[DescribedProvider],
    facts: DeviceFacts,
    settings: DeviceSettings,
    missing: Iterable[UnitRecord] = (),
) -> Mapping[str, UnitLocation]:
    """{CPU id, PCI address or uuid of a mediated device: location} of all that the providers describe.

    If a uuid is defined on two parents, the location is that of the active device.
    """
    providers = tuple(providers)
    locations = described_locations(providers)
    devices = {provider.device for provider in providers}
    cards = {card.device.address: card for card in facts.cards}
    for record in missing:
        card = cards[record.card]
        if record.type_id and card.key in devices:
            specs = mdev_specs_of(card, settings.mdevs)
            resource_class = class_of(specs, record.type_id) if specs else record.resource_class
            locations[record.unit] = UnitLocation(resource_class, card.key)
    for card in facts.cards:
        if card.key in devices:
            for mdev in sorted(card.mdevs, key=lambda mdev: mdev.active):
                if mdev.active or mdev.uuid not in locations:
                    locations[mdev.uuid] = UnitLocation(mdev_class(card, settings, mdev.type_id), card.key)
    return locations


def missing_records(
    named: frozenset[str], facts: DeviceFacts, settings: DeviceSettings, known: Mapping[str, UnitRecord]
) -> list[UnitRecord]:
    """The records of units that domains name and that do not exist now, in the order of their units.

    Such a unit existed once (`known`), or it is a mediated device that is defined and not started.
    """
    existing = {function.address for card in facts.cards for function in (card.device, *card.vfs)}
    existing |= {mdev.uuid for card in facts.cards for mdev in card.mdevs if mdev.active}
    existing |= {unit for card in facts.cards for unit in vgpus_of(card, facts, settings)}
    addresses = {card.device.address for card in facts.cards}
    records = {
        mdev.uuid: _mdev_record(card, mdev, mdev_class(card, settings, mdev.type_id), boot="")
        for card in facts.cards
        for mdev in card.mdevs
        if not mdev.active
    }
    records |= {unit: record for unit, record in known.items() if record.card in addresses}
    return [records[unit] for unit in sorted(named & records.keys()) if unit not in existing]


def update_records(
    named: frozenset[str],
    facts: DeviceFacts,
    settings: DeviceSettings,
    locations: Mapping[str, UnitLocation],
    known: Mapping[str, UnitRecord],
    boot: str,
    *,
    forget: bool,
) -> Mapping[str, UnitRecord]:
    """The `known` records, with those of the existing units that domains name.

    With `forget` a record whose unit no domain names is dropped; keep them while not every domain could be
    read.
    """
    records = {unit: record for unit, record in known.items() if unit in named or not forget}
    for card in facts.cards:
        for mdev in card.mdevs:
            if mdev.active and mdev.uuid in named:
                location = locations.get(mdev.uuid, UnitLocation("VGPU", card.key))
                records[mdev.uuid] = _mdev_record(card, mdev, location.resource_class, boot)
        for unit, (function, type_id) in vgpus_of(card, facts, settings).items():
            if unit in named and unit in locations:
                records[unit] = UnitRecord(
                    unit, card.device.address, locations[unit].resource_class, function, type_id, boot
                )
        for vf in card.vfs:
            if vf.address in named and vf.address in locations:
                resource_class = locations[vf.address].resource_class
                records[vf.address] = UnitRecord(vf.address, card.device.address, resource_class, boot=boot)
    return records


def _mdev_record(card: Card, mdev: MediatedDevice, resource_class: str, boot: str) -> UnitRecord:
    parents = {function.name: function.address for function in (card.device, *card.vfs)}
    return UnitRecord(
        mdev.uuid, card.device.address, resource_class, parents[mdev.parent], mdev.type_id, boot
    )


@dataclass(frozen=True, slots=True)
class LostMdev:
    """A mediated device to create on `parent`, the name of a node device.

    `defined_name` is the name of its own node device, if libvirt has its definition.
    """

    record: UnitRecord
    parent: str
    defined_name: str | None = None


def lost_mdevs(missing: Iterable[UnitRecord], facts: DeviceFacts, boot: str) -> list[LostMdev]:
    """The missing mediated devices whose parents exist; `boot` is the id of the current boot."""
    parents = {
        function.address: function.name
        for card in facts.cards
        for function in (card.device, *card.vfs)
        if function.mdev_types
    }
    defined_names = {
        (mdev.uuid, mdev.parent): mdev.name for card in facts.cards for mdev in card.mdevs if not mdev.active
    }
    return [
        LostMdev(record, parents[record.parent], defined_names.get((record.unit, parents[record.parent])))
        for record in missing
        if record.type_id and boot and record.boot not in ("", boot) and record.parent in parents
    ]


def mdev_xml(mdev: LostMdev) -> str:
    """The XML for nodeDeviceCreateXML. Source: https://libvirt.org/formatnode.html"""
    return (
        f"<device><parent>{mdev.parent}</parent><capability type='mdev'>"
        f"<type id={quoteattr(mdev.record.type_id)}/><uuid>{mdev.record.unit}</uuid></capability></device>"
    )


def carved_units(
    facts: DeviceFacts, missing: Iterable[UnitRecord], settings: DeviceSettings
) -> tuple[CarvedUnit, ...]:
    """The virtual functions and mediated devices of all cards, and the mediated devices that are missing.

    A function whose vGPU type is gone is left out: what it was is not to be seen on it.
    """
    units: list[CarvedUnit] = []
    for record in missing:
        place = record.unit.rpartition("@")[2]
        if address_of(record.unit) != record.unit and place.isdecimal():
            units.append(CarvedUnit(record.parent, record.card, record.parent, record.type_id, int(place)))
        elif record.type_id and record.parent:
            units.append(CarvedUnit(record.unit, record.card, record.parent, record.type_id))
    for card in facts.cards:
        address = card.device.address
        parents = {function.name: function.address for function in (card.device, *card.vfs)}
        for mdev in card.mdevs:
            if mdev.active:
                units.append(CarvedUnit(mdev.uuid, address, parents[mdev.parent], mdev.type_id))
        for vf in card.vfs:
            number = facts.vgpu_types.get(vf.address)
            if number is None:
                units.append(CarvedUnit(vf.address, address, vf.address))
            elif number != NO_TYPE:
                spec = vgpu_spec_of(card, vf, number, settings.mdevs)
                type_id = spec.type_id if spec else number
                units.append(
                    CarvedUnit(vf.address, address, vf.address, type_id, facts.vgpu_places.get(vf.address))
                )
    return tuple(units)
