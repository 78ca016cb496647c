"""How the host's cards are carved, and how the operator wants them after a boot. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.device_names import address_of
from agent.driver import CarvedUnit, DeclaredCarving
from agent.errors import SettingsError
from drivers.libvirt.describe.cards import NO_TYPE, Card, UnitRecord
from drivers.libvirt.describe.device_spec import pci_address_of, vgpu_spec_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings

ALL_VFS = "/vfs"
"""What follows the address of a card in [devices] driver_overrides, for all of its virtual functions."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,4}", re.ASCII)


def carved_units(
    facts: DeviceFacts, missing: Iterable[UnitRecord], settings: DeviceSettings
) -> tuple[CarvedUnit, ...]:
    """The virtual functions and mediated devices of all cards, and the mediated devices that are missing.

    A function whose vGPU type is gone is left out: what it was is not to be seen on it.
    """
    return (*_missing(missing), *(unit for card in facts.cards for unit in _of_card(card, facts, settings)))


def _missing(missing: Iterable[UnitRecord]) -> Iterator[CarvedUnit]:
    for record in missing:
        place = record.unit.rpartition("@")[2]
        if address_of(record.unit) != record.unit and place.isdecimal():
            yield CarvedUnit(record.parent, record.card, record.parent, record.type_id, int(place))
        elif record.type_id and record.parent:
            yield CarvedUnit(record.unit, record.card, record.parent, record.type_id)


def _of_card(card: Card, facts: DeviceFacts, settings: DeviceSettings) -> Iterator[CarvedUnit]:
    address = card.device.address
    parents = {function.name: function.address for function in (card.device, *card.vfs)}
    for mdev in card.mdevs:
        if mdev.active:
            yield CarvedUnit(mdev.uuid, address, parents[mdev.parent], mdev.type_id)
    for vf in card.vfs:
        number = facts.vgpu_types.get(vf.address)
        if number is None:
            yield CarvedUnit(vf.address, address, vf.address)
        elif number != NO_TYPE:
            spec = vgpu_spec_of(card, vf, number, settings.mdevs)
            type_id = spec.type_id if spec else number
            yield CarvedUnit(vf.address, address, vf.address, type_id, facts.vgpu_places.get(vf.address))


def declared_carving(options: Mapping[str, Any], settings: DeviceSettings) -> DeclaredCarving:
    """What the options of [devices] say. Raises SettingsError where one is malformed."""
    vfs = _pairs(options, "sriov_vfs", _NUMBER, "0000:41:00.0=4")
    drivers = _pairs(options, "driver_overrides", _NAME, "0000:41:00.0/vfs=vfio-pci", ALL_VFS)
    types = _pairs(options, "vgpu_types", _NAME, "0000:84:00.1=nvidia-471")
    for address, type_id in types.items():
        if not any(spec.type_id == type_id for spec in settings.mdevs):
            raise SettingsError(
                f"[devices] vgpu_types gives {address} the type {type_id}, which enabled_mdev_types does not "
                "name; add it there"
            )
    return DeclaredCarving(
        {address: int(number) for address, number in vfs.items()},
        {address: name for address, name in drivers.items() if not address.endswith(ALL_VFS)},
        {
            address.removesuffix(ALL_VFS): name
            for address, name in drivers.items()
            if address.endswith(ALL_VFS)
        },
        types,
        {spec.type_id: spec.addresses for spec in settings.mdevs},
        frozenset(settings.mixed),
    )


def _pairs(
    options: Mapping[str, Any], option: str, pattern: re.Pattern[str], example: str, suffix: str = ""
) -> dict[str, str]:
    """{address: value} of an option whose items are ADDRESS=VALUE; an address may have the suffix."""
    pairs: dict[str, str] = {}
    for text in options.get(option) or ():
        key, _, value = (part.strip() for part in text.partition("="))
        bare = key.removesuffix(suffix) if suffix else key
        try:
            address = pci_address_of(bare) + key[len(bare) :]
        except ValueError as error:
            raise SettingsError(f"[devices] {option}: {text!r}: {error}; write {example}") from error
        if not pattern.fullmatch(value) or address in pairs:
            raise SettingsError(
                f"[devices] {option}: {text!r} is not as {example}, or its address is there twice"
            )
        pairs[address] = value
    return pairs
