"""What devices were before, so that allocations can follow a rename. Pure.

The configuration and the host show only the present. So the driver records each device's resource classes,
the names of network interfaces, the slots of cards and the NUMA cells, and derives moves from changes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.device_names import VDPA_CLASS
from agent.driver import DescribedProvider
from drivers.host.providers import cell_device
from drivers.libvirt.describe.cards import Card, UnitRecord
from drivers.libvirt.xml import NetDevice

ENTRIES_MAX = 16
USUAL_MDEV_CLASS = "VGPU"
"""The resource class of mediated devices in nova, unless the operator configured another."""

DeviceHistory = Mapping[str, tuple[str, ...]]
"""Four kinds of entries, each with its newest value last:

{`DescribedProvider.device` of a card: resource classes of its exact units}
{`DescribedProvider.device` of a NUMA cell: the devices of all cells that were ever described}, or () as long
as the cells never changed
{"net:<PCI address of a network card>": names of its interface, "" while it has none}
{"slot:<PCI address of a card>": addresses that the card had before}
"""


def record_classes(
    history: DeviceHistory, providers: Iterable[DescribedProvider], with_mdevs: Collection[str]
) -> DeviceHistory:
    """The history with the resource classes of these providers, at most ENTRIES_MAX a device.

    `with_mdevs` are the devices that can have mediated devices, which may have had nova's usual class.
    """
    recorded = dict(history)
    for provider in providers:
        if not provider.device.startswith("pci:") or not provider.units:
            continue
        now = tuple(sorted(provider.units))
        usual = (USUAL_MDEV_CLASS,) if provider.device in with_mdevs else ()
        earlier = (*usual, *recorded.get(provider.device, ()))
        before = dict.fromkeys(name for name in earlier if name not in now)
        recorded[provider.device] = (*before, *now)[-ENTRIES_MAX:]
    return recorded


def record_slots(
    history: DeviceHistory, cards: Sequence[Card], records: Mapping[str, UnitRecord]
) -> DeviceHistory:
    """The history with the slots of cards that are in another slot now.

    A mediated device that was recorded on another card's address tells that its card moved. A slot that has a
    card again belongs to that card. `records` are those from before this reading.
    """
    occupied = {card.device.address for card in cards}
    recorded = {
        key: tuple(slot for slot in values if slot not in occupied)
        if key.startswith(_slot_key(""))
        else values
        for key, values in history.items()
    }
    for card in cards:
        slots = (records[mdev.uuid].card for mdev in card.mdevs if mdev.active and mdev.uuid in records)
        former = [slot for slot in slots if slot not in occupied]
        if former:
            key = _slot_key(card.device.address)
            recorded[key] = tuple(dict.fromkeys((*recorded.get(key, ()), *former)))[-ENTRIES_MAX:]
    return recorded


def former_slots(address: str, history: DeviceHistory) -> tuple[str, ...]:
    """The addresses that the card had before."""
    return history.get(_slot_key(address), ())


def _slot_key(address: str) -> str:
    return f"slot:{address}"


def record_interfaces(history: DeviceHistory, cards: Iterable[Card]) -> DeviceHistory:
    """The history with the names of the cards' interfaces, at most ENTRIES_MAX a card.

    A card without an interface loses a name that another card has now, because two cards of one name would be
    one provider.
    """
    cards = tuple(cards)
    current_keys = {
        card.interface.interface: _interface_key(card.device.address)
        for card in cards
        if card.is_network and card.interface is not None
    }
    recorded = {
        key: (*filter(None, names), "")
        if key.startswith(_interface_key("")) and names and current_keys.get(names[-1], key) != key
        else names
        for key, names in history.items()
    }
    for card in cards:
        if card.is_network:
            names = recorded.get(_interface_key(card.device.address), ())
            name = card.interface.interface if card.interface is not None else ""
            if not names or (name and name != names[-1]):
                before = tuple(former for former in names if former != name)
                recorded[_interface_key(card.device.address)] = (*before, name)[-ENTRIES_MAX:]
    return recorded


def restore_interfaces(cards: Iterable[Card], history: DeviceHistory) -> tuple[Card, ...]:
    """The cards; one without an interface, because a guest has all of it, gets the interface that it had."""
    return tuple(
        _restore_interface(card, history.get(_interface_key(card.device.address), ())) for card in cards
    )


def _restore_interface(card: Card, names: tuple[str, ...]) -> Card:
    if card.interface is not None or not card.is_network or not names or not names[-1]:
        return card
    return replace(card, interface=NetDevice("", card.device.name, names[-1]))


def former_interfaces(address: str, history: DeviceHistory, with_units: Collection[str]) -> tuple[str, ...]:
    """The names that the card's interface had.

    A name that another card has now is left out if that card's units are gone: then allocations on a provider
    of that name belong to the other card. `with_units` are the devices that have units.
    """
    own_key, prefix = _interface_key(address), _interface_key("")
    without_units = history.keys() - set(with_units)
    names_of_others = {
        names[-1]
        for key, names in history.items()
        if key.startswith(prefix) and key != own_key and names and names[-1]
        if f"pci:{key.removeprefix(prefix)}" in without_units
    }
    return tuple(name for name in history.get(own_key, ()) if name not in names_of_others)


def _interface_key(address: str) -> str:
    return f"net:{address}"


def record_cells(history: DeviceHistory, providers: Iterable[DescribedProvider]) -> DeviceHistory:
    """The history with the cells among these providers."""
    now = {provider.device for provider in providers if _cell_ids([provider.device])}
    before = {device for device in history if _cell_ids([device])}
    if not now or now == before:
        return history
    all_cells = tuple(sorted(now | before)) if before else ()
    return {**history, **dict.fromkeys(sorted(now | before), all_cells)}


def former_cells(cell: int, history: DeviceHistory) -> tuple[int, ...]:
    """The ids of other cells in which this cell's CPUs and memory may have been counted."""
    return tuple(former for former in _cell_ids(history.get(cell_device(cell), ())) if former != cell)


def removed_cells(history: DeviceHistory, present: Collection[int]) -> tuple[int, ...]:
    """The ids of cells that were described once and are not `present`."""
    return tuple(cell for cell in _cell_ids(history) if cell not in present)


def cells_changed(history: DeviceHistory, present: Collection[int]) -> bool:
    """Whether the described cells are or once were others than `present`.

    Then it is unknown which CPUs and memory each of them had.
    """
    described = _cell_ids(history)
    changed_before = any(history[cell_device(cell)] for cell in described)
    return changed_before or bool(described and set(described) != set(present))


def _cell_ids(devices: Iterable[str]) -> list[int]:
    prefix = cell_device("")
    ids = (device.removeprefix(prefix) for device in devices if device.startswith(prefix))
    return sorted(int(cell_id) for cell_id in ids if cell_id.isdecimal())


def renamed_classes(provider: DescribedProvider, history: DeviceHistory) -> Iterator[tuple[str, str]]:
    """(former class, current class) for each former class of the device that it no longer has.

    A function whose vDPA device is made or removed is another kind of unit, and not one with another name.
    """
    for former in history.get(provider.device, ()):
        if former not in provider.inventories and former != VDPA_CLASS:
            for current in sorted(provider.units.keys() & provider.inventories.keys() - {VDPA_CLASS}):
                yield former, current
