"""What a device was before, which nobody else knows: who renames a class in the configuration, or a network
interface, or divides the host into other NUMA cells, has the allocations follow. Pure.

The configuration, and the host, say only how things are now. So what was described once is remembered.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agent.driver import DescribedProvider
from drivers.host.providers import cell_device
from drivers.libvirt.describe.cards import Card, Remembered
from drivers.libvirt.xml.nodedevs import NetDevice

CLASSES_MAX = 16
USUAL = "VGPU"
"""What nova calls mediated devices unless it is told otherwise."""

Classes = Mapping[str, tuple[str, ...]]
"""{DescribedProvider.device: the classes of its exact units, the one described last at the end; of a NUMA
cell, once there were others than now: the cells that there ever were; "net:<a network card's address>": the
names of its interface, the one it has or had last at the end, "" where it was first seen without one;
"slot:<a card's address>": the addresses that the card had before}
"""


def classes_described(
    known: Classes, providers: Iterable[DescribedProvider], divided: Collection[str]
) -> Classes:
    """`known` with what these providers have, at most CLASSES_MAX a device.

    `divided` are the devices that mediated ones are made on: theirs may have had the usual class.
    """
    found = dict(known)
    for provider in providers:
        if not provider.device.startswith("pci:") or not provider.units:
            continue
        now = tuple(sorted(provider.units))
        usual = (USUAL,) if provider.device in divided else ()
        before = dict.fromkeys(name for name in (*usual, *found.get(provider.device, ())) if name not in now)
        found[provider.device] = (*before, *now)[-CLASSES_MAX:]
    return found


def slots_seen(known: Classes, cards: Sequence[Card], units: Mapping[str, Remembered]) -> Classes:
    """`known` with the slots of cards that are in others now: what guests had there is here. `units` is what
    was known of each before this look. A slot that has a card again is that one's."""
    there = {card.device.address for card in cards}
    found = {
        key: tuple(each for each in was if each not in there) if key.startswith(_slot_of("")) else was
        for key, was in known.items()
    }
    for card in cards:
        slots = (units[mdev.uuid].card for mdev in card.mdevs if mdev.active and mdev.uuid in units)
        gone = [slot for slot in slots if slot not in there]
        if gone:
            key = _slot_of(card.device.address)
            found[key] = tuple(dict.fromkeys((*found.get(key, ()), *gone)))[-CLASSES_MAX:]
    return found


def slots_of(address: str, known: Classes) -> tuple[str, ...]:
    """The addresses that the card had before."""
    return known.get(_slot_of(address), ())


def _slot_of(address: str) -> str:
    return f"slot:{address}"


def interfaces_seen(known: Classes, cards: Iterable[Card]) -> Classes:
    """`known` with the names that the cards' interfaces have now, at most CLASSES_MAX a card.

    A name that another card has by now is no longer that of a card without an interface: two would be one
    provider.
    """
    cards = tuple(cards)
    called = {
        card.interface.interface: _interface_of(card.device.address)
        for card in cards
        if card.is_network and card.interface is not None
    }
    found = {
        key: (*(each for each in names if each), "")
        if key.startswith(_interface_of("")) and names and called.get(names[-1], key) != key
        else names
        for key, names in known.items()
    }
    for card in cards:
        if card.is_network:
            names = found.get(_interface_of(card.device.address), ())
            name = card.interface.interface if card.interface is not None else ""
            if not names or (name and name != names[-1]):
                before = tuple(each for each in names if each != name)
                found[_interface_of(card.device.address)] = (*before, name)[-CLASSES_MAX:]
    return found


def with_interfaces(cards: Iterable[Card], known: Classes) -> tuple[Card, ...]:
    """The cards; one that has no interface now, because a guest has it whole, with the one that it had."""
    return tuple(_with_interface(card, known.get(_interface_of(card.device.address), ())) for card in cards)


def _with_interface(card: Card, names: tuple[str, ...]) -> Card:
    if card.interface is not None or not card.is_network or not names or not names[-1]:
        return card
    return replace(card, interface=NetDevice("", card.device.name, names[-1]))


def interfaces_of(address: str, known: Classes, there: Collection[str]) -> tuple[str, ...]:
    """The names that the card's interface has had, without those that others have by now whose units are
    gone: what is held there is theirs. `there` are the devices that have units.
    """
    mine, prefix = _interface_of(address), _interface_of("")
    theirs = {
        names[-1]
        for key, names in known.items()
        if key.startswith(prefix) and key != mine and names and names[-1]
        if _device_of(key.removeprefix(prefix)) in known.keys() - set(there)
    }
    return tuple(name for name in known.get(mine, ()) if name not in theirs)


def _device_of(address: str) -> str:
    return f"pci:{address}"


def _interface_of(address: str) -> str:
    return f"net:{address}"


def cells_described(known: Classes, providers: Iterable[DescribedProvider]) -> Classes:
    """`known` with the cells among these providers; they are others than before, or the same."""
    now = {each.device for each in providers if _cells([each.device])}
    before = {device for device in known if _cells([device])}
    if not now or now == before:
        return known
    every = tuple(sorted(now | before)) if before else ()
    return {**known, **dict.fromkeys(sorted(now | before), every)}


def cells_before(cell: int, known: Classes) -> tuple[int, ...]:
    """The cells that this one's CPUs and memory may have been counted in."""
    return tuple(each for each in _cells(known.get(cell_device(cell), ())) if each != cell)


def cells_gone(known: Classes, there: Collection[int]) -> tuple[int, ...]:
    """The cells that were described once and are not among those that are `there`."""
    return tuple(cell for cell in _cells(known) if cell not in there)


def cells_changed(known: Classes, there: Collection[int]) -> bool:
    """Whether cells that were described are, or once were, others than those that are `there`: what each of
    them had nobody knows.
    """
    before = _cells(known)
    others = any(known[cell_device(cell)] for cell in before)
    return others or bool(before and set(before) != set(there))


def _cells(devices: Iterable[str]) -> list[int]:
    prefix = cell_device("")
    numbers = (device.removeprefix(prefix) for device in devices if device.startswith(prefix))
    return sorted(int(number) for number in numbers if number.isdecimal())


def renamed(provider: DescribedProvider, known: Classes) -> Iterator[tuple[str, str]]:
    """(class before, class now) for each that the device's units may have changed."""
    for before in known.get(provider.device, ()):
        if before not in provider.inventories:
            for now in sorted(provider.units.keys() & provider.inventories.keys()):
                yield before, now
