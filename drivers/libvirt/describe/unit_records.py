"""Locate the units that domains name, and record where they were for when their device is gone. Pure."""

from collections.abc import Iterable, Mapping

from agent.driver import DescribedProvider
from drivers.host.unit_locations import UnitLocation, described_locations
from drivers.libvirt.describe.cards import Card, UnitRecord
from drivers.libvirt.describe.device_spec import mdev_specs_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, mdev_class
from drivers.libvirt.describe.mdevs import class_of
from drivers.libvirt.describe.mixed_sizes import vgpus_of
from drivers.libvirt.xml import MediatedDevice, PciDevice


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
                records[vf.address] = _vf_record(card, vf, resource_class, boot)
    return records


def _mdev_record(card: Card, mdev: MediatedDevice, resource_class: str, boot: str) -> UnitRecord:
    parents = {function.name: function.address for function in (card.device, *card.vfs)}
    return UnitRecord(
        mdev.uuid, card.device.address, resource_class, parents[mdev.parent], mdev.type_id, boot
    )


def _vf_record(card: Card, vf: PciDevice, resource_class: str, boot: str) -> UnitRecord:
    return UnitRecord(vf.address, card.device.address, resource_class, boot=boot)
