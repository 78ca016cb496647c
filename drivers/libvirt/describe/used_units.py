"""Who holds what: from the devices that domains name to units of described providers. Pure."""

from collections.abc import Iterable, Mapping

from agent.driver import DescribedProvider
from drivers.host.unit_locations import UnitLocation, described_locations
from drivers.libvirt.describe.cards import Card, Remembered
from drivers.libvirt.describe.device_spec import mdev_specs_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, mdev_class
from drivers.libvirt.describe.mdevs import class_of
from drivers.libvirt.xml.nodedevs import MediatedDevice, PciDevice


def unit_locations(
    providers: Iterable[DescribedProvider],
    facts: DeviceFacts,
    settings: DeviceSettings,
    missing: Iterable[Remembered] = (),
) -> Mapping[str, UnitLocation]:
    """{CPU's id, PCI address or mediated device's uuid: what it is of}, of all that is described.

    The same uuid may be defined on two parents; then the active one holds it.
    """
    providers = tuple(providers)
    places = described_locations(providers)
    described = {provider.device for provider in providers}
    cards = {card.device.address: card for card in facts.cards}
    for each in missing:
        card = cards[each.card]
        if each.type_id and card.key in described:
            specs = mdev_specs_of(card, settings.mdevs)
            name = class_of(specs, each.type_id) if specs else each.resource_class
            places[each.unit] = UnitLocation(name, card.key)
    for card in facts.cards:
        if card.key in described:
            for mdev in sorted(card.mdevs, key=lambda mdev: mdev.active):
                if mdev.active or mdev.uuid not in places:
                    places[mdev.uuid] = UnitLocation(mdev_class(card, settings, mdev.type_id), card.key)
    return places


def missing_units(
    named: frozenset[str], facts: DeviceFacts, settings: DeviceSettings, known: Mapping[str, Remembered]
) -> list[Remembered]:
    """What domains name and is not there now, in order: it was there once, or is defined and not started."""
    there = {function.address for card in facts.cards for function in (card.device, *card.vfs)}
    there |= {mdev.uuid for card in facts.cards for mdev in card.mdevs if mdev.active}
    cards = {card.device.address for card in facts.cards}
    found = {
        mdev.uuid: _remembered_mdev(card, mdev, mdev_class(card, settings, mdev.type_id), boot="")
        for card in facts.cards
        for mdev in card.mdevs
        if not mdev.active
    }
    found |= {unit: each for unit, each in known.items() if each.card in cards}
    return [found[unit] for unit in sorted(named & found.keys()) if unit not in there]


def remember(
    named: frozenset[str],
    facts: DeviceFacts,
    places: Mapping[str, UnitLocation],
    known: Mapping[str, Remembered],
    boot: str,
    *,
    forget: bool,
) -> Mapping[str, Remembered]:
    """`known` with what is there of the units that domains name, without those that none names any more.

    `forget` False keeps those: not every domain could be read.
    """
    found = {unit: each for unit, each in known.items() if unit in named or not forget}
    for card in facts.cards:
        for mdev in card.mdevs:
            if mdev.active and mdev.uuid in named:
                place = places.get(mdev.uuid, UnitLocation("VGPU", card.key))
                found[mdev.uuid] = _remembered_mdev(card, mdev, place.resource_class, boot)
        for vf in card.vfs:
            if vf.address in named and vf.address in places:
                found[vf.address] = _remembered_vf(card, vf, places, boot)
    return found


def _remembered_mdev(card: Card, mdev: MediatedDevice, resource_class: str, boot: str) -> Remembered:
    parents = {function.name: function.address for function in (card.device, *card.vfs)}
    return Remembered(
        mdev.uuid, card.device.address, resource_class, parents[mdev.parent], mdev.type_id, boot
    )


def _remembered_vf(card: Card, vf: PciDevice, places: Mapping[str, UnitLocation], boot: str) -> Remembered:
    return Remembered(vf.address, card.device.address, places[vf.address].resource_class, boot=boot)
