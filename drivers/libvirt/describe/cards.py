"""Cards, each the device behind one provider, from node devices. Pure.

A card is a PCI function that is not virtual, with its virtual functions, their mediated devices and its
network interface. In libvirt's tree of node devices the parent of a virtual function is a PCI bridge, so only
`physical_function` tells to which card it belongs.
Source: https://docs.kernel.org/PCI/pci-iov-howto.html and
https://docs.kernel.org/driver-api/vfio-mediated-device.html
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from drivers.libvirt.xml import MediatedDevice, NetDevice, NodeDevice, PciDevice, VdpaDevice

_NETWORK = 0x02


@dataclass(frozen=True, slots=True)
class Card:
    """A PCI function, its virtual functions by address, and the mediated devices on any of them by uuid.

    `vdpa` {address of a function: /dev/vhost-vdpa-N} are those that a guest gets over vDPA.
    """

    device: PciDevice
    vfs: tuple[PciDevice, ...] = ()
    mdevs: tuple[MediatedDevice, ...] = ()
    interface: NetDevice | None = None
    vdpa: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """`DescribedProvider.device` of its provider."""
        return f"pci:{self.device.address}"

    @property
    def mdev_parents(self) -> tuple[PciDevice, ...]:
        """The functions on which mediated devices can be created: the card, or its virtual functions."""
        return tuple(function for function in (self.device, *self.vfs) if function.mdev_types)

    @property
    def is_network(self) -> bool:
        """Whether it is a network card."""
        return self.device.class_id >> 16 == _NETWORK

    @property
    def numa(self) -> int | None:
        """The id of its NUMA cell, None without affinity."""
        return self.device.numa


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """Where a unit was that a domain names: a mediated device by its uuid, a virtual function by its address.

    `card` and `parent` are the addresses of its card and of the function on which a mediated device was
    created; `type_id` is "" for a virtual function. `boot` is the id of the boot in which it existed.
    """

    unit: str
    card: str
    resource_class: str
    parent: str = ""
    type_id: str = ""
    boot: str = ""


def cards_of(devices: Iterable[NodeDevice]) -> tuple[Card, ...]:
    """All cards, by address.

    A virtual function whose physical function was not read is left out until it is.
    """
    devices = tuple(devices)
    functions = {device.name: device for device in devices if isinstance(device, PciDevice)}
    vfs: dict[str, list[PciDevice]] = {}
    card_addresses: dict[str, str] = {}
    for function in functions.values():
        card_addresses[function.name] = function.physical_function or function.address
        if function.physical_function is not None:
            vfs.setdefault(function.physical_function, []).append(function)
    mdevs: dict[str, list[MediatedDevice]] = {}
    interfaces: dict[str, NetDevice] = {}
    vdpa: dict[str, dict[str, str]] = {}
    for device in devices:
        if isinstance(device, MediatedDevice) and device.parent in card_addresses:
            mdevs.setdefault(card_addresses[device.parent], []).append(device)
        elif isinstance(device, NetDevice) and device.parent in functions:
            interfaces[functions[device.parent].address] = device
        elif isinstance(device, VdpaDevice) and device.parent in functions:
            parent = functions[device.parent]
            vdpa.setdefault(card_addresses[parent.name], {})[parent.address] = device.path
    return tuple(
        Card(
            device=function,
            vfs=tuple(sorted(vfs.get(function.address, ()), key=lambda vf: vf.address)),
            mdevs=tuple(sorted(mdevs.get(function.address, ()), key=lambda mdev: (mdev.uuid, mdev.name))),
            interface=interfaces.get(function.address),
            vdpa=vdpa.get(function.address, {}),
        )
        for function in sorted(functions.values(), key=lambda function: function.address)
        if function.physical_function is None
    )


def mdev_types(card: Card) -> frozenset[str]:
    """The ids of the types of mediated devices that the card offers."""
    return frozenset(type_id for parent in card.mdev_parents for type_id in parent.mdev_types)


def parents_for(card: Card, type_id: str, addresses: Collection[str] = ()) -> tuple[PciDevice, ...]:
    """The functions that offer the type: those at `addresses`, or all if none or the card is given."""
    return tuple(
        parent
        for parent in card.mdev_parents
        if type_id in parent.mdev_types
        and (not addresses or parent.address in addresses or card.device.address in addresses)
    )


def mdev_total(
    card: Card,
    type_id: str,
    limit: int | None = None,
    max_instances: int | None = None,
    existing: int | None = None,
    addresses: Collection[str] = (),
) -> int:
    """How many mediated devices of the type the card can have, existing ones included.

    `limit` is how many of the type the whole card can have according to its driver's description in sysfs.
    `max_instances` is the operator's limit, which never hides existing devices. `existing` is how many the
    kernel has: libvirt learns of a new device later than of the lower number that is still available.

    The available number of every type drops when a device of any type is created. So existing devices of all
    types count, and the total stays the same while guests come and go. Virtual functions that share
    a card each offer the same room again; without `limit`, only one more than the existing ones is certain.
    """
    existing = sum(mdev.active for mdev in card.mdevs) if existing is None else existing
    total = existing + mdev_room(card, type_id, limit, existing, addresses)
    return total if max_instances is None else min(total, max(max_instances, existing))


def mdev_room(
    card: Card,
    type_id: str,
    limit: int | None = None,
    existing: int | None = None,
    addresses: Collection[str] = (),
) -> int:
    """How many more mediated devices of the type the card can have now; see `mdev_total`."""
    existing = sum(mdev.active for mdev in card.mdevs) if existing is None else existing
    parents = parents_for(card, type_id, addresses)
    available = sum(parent.mdev_types[type_id].available for parent in parents)
    if limit is not None:
        return min(available, max(0, limit - existing))
    parents_share_room = any(parent.physical_function is not None for parent in card.mdev_parents)
    return min(available, 1) if parents_share_room else available


NO_TYPE = "0"
"""The vGPU type of a virtual function that has none; a guest cannot open it."""
