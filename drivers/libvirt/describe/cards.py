"""Cards: what stands behind one provider, put together from node devices. Pure.

A card is a PCI function that is not virtual, with everything that hangs on it: its virtual functions, their
mediated devices, its network interface. The parent of a virtual function is a bridge in libvirt's tree, so
only `physical_function` says whose it is.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from drivers.libvirt.xml.nodedevs import MediatedDevice, NetDevice, NodeDevice, PciDevice

_NETWORK = 0x02


@dataclass(frozen=True, slots=True)
class Card:
    """A PCI function with its virtual functions, by address, and what is on any of them."""

    device: PciDevice
    vfs: tuple[PciDevice, ...] = ()
    mdevs: tuple[MediatedDevice, ...] = ()
    interface: NetDevice | None = None

    @property
    def key(self) -> str:
        """`DescribedProvider.device` of its provider."""
        return f"pci:{self.device.address}"

    @property
    def mdev_parents(self) -> tuple[PciDevice, ...]:
        """The functions that mediated devices can be made on: itself, or its virtual functions."""
        return tuple(each for each in (self.device, *self.vfs) if each.mdev_types)

    @property
    def is_network(self) -> bool:
        return self.device.class_id >> 16 == _NETWORK

    @property
    def numa(self) -> int | None:
        return self.device.numa


@dataclass(frozen=True, slots=True)
class Remembered:
    """A unit that a domain names: a mediated device's uuid, or a virtual function's address.

    `card` is the card's address, `parent` the function's that a mediated device was made on, `boot` the boot
    of the host in which it was there.
    """

    unit: str
    card: str
    resource_class: str
    parent: str = ""
    type_id: str = ""
    boot: str = ""


def cards_of(devices: Iterable[NodeDevice]) -> tuple[Card, ...]:
    """All cards, by address.

    A virtual function whose physical function was not seen (yet) is left for the next look.
    """
    devices = tuple(devices)
    functions = {each.name: each for each in devices if isinstance(each, PciDevice)}
    virtual: dict[str, list[PciDevice]] = {}
    owner: dict[str, str] = {}
    for function in functions.values():
        owner[function.name] = function.physical_function or function.address
        if function.physical_function is not None:
            virtual.setdefault(function.physical_function, []).append(function)
    mdevs: dict[str, list[MediatedDevice]] = {}
    interfaces: dict[str, NetDevice] = {}
    for each in devices:
        if isinstance(each, MediatedDevice) and each.parent in owner:
            mdevs.setdefault(owner[each.parent], []).append(each)
        elif isinstance(each, NetDevice) and each.parent in functions:
            interfaces[functions[each.parent].address] = each
    return tuple(
        Card(
            device=function,
            vfs=tuple(sorted(virtual.get(function.address, ()), key=lambda vf: vf.address)),
            mdevs=tuple(sorted(mdevs.get(function.address, ()), key=lambda mdev: (mdev.uuid, mdev.name))),
            interface=interfaces.get(function.address),
        )
        for function in sorted(functions.values(), key=lambda function: function.address)
        if function.physical_function is None
    )


def mdev_types(card: Card) -> frozenset[str]:
    """The ids of the types that the card can be divided into."""
    return frozenset(type_id for parent in card.mdev_parents for type_id in parent.mdev_types)


def parents_for(card: Card, type_id: str, named: Collection[str] = ()) -> tuple[PciDevice, ...]:
    """The functions on which that type can be made: those `named`, or all where the card or none is."""
    return tuple(
        parent
        for parent in card.mdev_parents
        if type_id in parent.mdev_types
        and (not named or parent.address in named or card.device.address in named)
    )


def mdev_total(
    card: Card,
    type_id: str,
    most: int | None = None,
    cap: int | None = None,
    made: int | None = None,
    named: Collection[str] = (),
) -> int:
    """How many mediated devices of that type the card is good for, those that are there included.

    `most` is how many of the type fit on the whole card, which its driver says in sysfs; `cap` is the
    operator's; `made` is how many the kernel has: libvirt learns of them later than of what is available.
    That shrinks for all types of a card when one device is made, so those that are there are counted whatever
    their type: then the total stays as it is while guests come and go. Virtual functions each offer one of
    what they share, so without `most` only one more than there are is certain.
    What is there is never left out, whatever the cap. `named` see `parents_for`.
    """
    made = sum(mdev.active for mdev in card.mdevs) if made is None else made
    total = made + mdev_room(card, type_id, most, made, named)
    return total if cap is None else min(total, max(cap, made))


def mdev_room(
    card: Card,
    type_id: str,
    most: int | None = None,
    made: int | None = None,
    named: Collection[str] = (),
) -> int:
    """How many more of that type can be made on the card now; see `mdev_total`."""
    made = sum(mdev.active for mdev in card.mdevs) if made is None else made
    offers = [parent.mdev_types[type_id].available for parent in parents_for(card, type_id, named)]
    shared = any(parent.physical_function is not None for parent in card.mdev_parents)
    if most is not None:
        return min(sum(offers), max(0, most - made))
    return min(sum(offers), 1) if shared else sum(offers)


NO_TYPE = "0"
"""What a virtual function says that has no type: a guest cannot open it."""
