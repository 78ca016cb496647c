"""What a card has of mediated devices: those that are there, and those that can be made on it. Pure.

One that can be made has its uuid before it is made, the same one each time the host is looked at: whoever
claims it knows which uuid to make, of which type, on which parent, and made it is the same unit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from uuid import UUID, uuid5

from agent.device_names import mdev_type_trait
from agent.driver import DescribedInventory
from drivers.libvirt.describe.cards import Card, Remembered, mdev_room, mdev_total, parents_for
from drivers.libvirt.describe.device_spec import MdevSpec
from drivers.libvirt.xml.nodedevs import MediatedDevice

_NAMESPACE = UUID("5f0c2a53-6d0e-4c35-9a0e-0d9cf1a3d0c9")
NOT_CONFIGURED = "VGPU"
"""The class of what is in use of a type that is not, or no longer, enabled."""


@dataclass(frozen=True, slots=True)
class Division:
    """See DescribedProvider for all of it."""

    inventories: Mapping[str, DescribedInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ways: tuple[frozenset[str], ...] = ()
    to_make: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)


def class_of(specs: Sequence[MdevSpec], type_id: str) -> str:
    """The class of a mediated device of that type, on a card that is meant for these."""
    for spec in specs:
        if spec.type_id == type_id:
            return spec.resource_class
    return specs[0].resource_class if specs else NOT_CONFIGURED


@dataclass(frozen=True, slots=True)
class Divided:
    """A card and what is known of it; see DeviceFacts for `most` and `made`."""

    card: Card
    host: str
    specs: tuple[MdevSpec, ...]
    most: Mapping[str, int]
    made: int | None
    lost: tuple[Remembered, ...]
    held: frozenset[str]

    @property
    def active(self) -> list[MediatedDevice]:
        return [mdev for mdev in self.card.mdevs if mdev.active]

    def division(self) -> Division:
        if not self.specs:
            return self._leftovers()
        if len(self.specs) == 1:
            return self._of_one_type(self.specs[0])
        return self._of_types()

    def _leftovers(self) -> Division:
        """A card whose type is not enabled still has what is on it, and what is to come back."""
        units: dict[str, tuple[str, ...]] = {}
        if self.active:
            units[NOT_CONFIGURED] = tuple(mdev.uuid for mdev in self.active)
        for each in self.lost:
            units[each.resource_class] = (*units.get(each.resource_class, ()), each.unit)
        return Division({name: _inventory(len(exact)) for name, exact in units.items()}, units=units)

    def _of_one_type(self, spec: MdevSpec) -> Division:
        """Whatever is there takes room, also of another type; only what is of this one is given out."""
        most = self.most.get(spec.type_id)
        total = mdev_total(self.card, spec.type_id, most, spec.max_instances, self.made, spec.addresses)
        total = max(total, len(self.active) + len(self.lost))
        there = max(len(self.active), self.made or 0)
        own = self._own(spec)
        inventory = _inventory(total, reserved=len(self.active) - len(own))
        return self._division({spec: (inventory, own, total - there - len(self.lost))})

    def _of_types(self) -> Division:
        """Types that exclude each other, or share the card: each has a class of its own."""
        parts = {}
        for spec in self.specs:
            own = self._own(spec)
            held = len(own) + sum(each.resource_class == spec.resource_class for each in self.lost)
            most = self.most.get(spec.type_id)
            now = len(own) + mdev_room(self.card, spec.type_id, most, self.made, spec.addresses)
            total = now if most is None else most
            if spec.max_instances is not None:
                total = min(total, spec.max_instances)
            total = max(total, held)
            inventory = _inventory(total, reserved=max(0, total - max(now, held)))
            parts[spec] = (inventory, own, total - held)
        return self._division(parts)

    def _own(self, spec: MdevSpec) -> tuple[str, ...]:
        """Those of the type, and those of no such type that a domain holds all the same."""
        return tuple(
            mdev.uuid
            for mdev in self.active
            if mdev.type_id == spec.type_id
            or (mdev.uuid in self.held and class_of(self.specs, mdev.type_id) == spec.resource_class)
        )

    def _division(
        self, parts: Mapping[MdevSpec, tuple[DescribedInventory, tuple[str, ...], int]]
    ) -> Division:
        inventories, units, to_make = {}, {}, {}
        for spec, (inventory, there, makeable) in parts.items():
            if not inventory.total:
                continue
            name = spec.resource_class
            made_here = dict(zip(range(max(0, makeable)), self._places(spec), strict=False))
            new = {uuid: {"parent": parent, "type": spec.type_id} for uuid, parent in made_here.values()}
            lost = tuple(each.unit for each in self.lost if each.resource_class == name or len(parts) == 1)
            inventories[name] = inventory
            units[name] = (*there, *lost, *new)
            if new:
                to_make[name] = new
        ways: dict[object, set[str]] = {}
        for spec in parts:
            ways.setdefault(self.most.get(spec.type_id, spec.type_id), set()).add(spec.resource_class)
        return Division(
            inventories,
            frozenset(mdev_type_trait(spec.type_id) for spec in parts),
            units,
            tuple(map(frozenset, ways.values())) if len(parts) > 1 else (),
            to_make,
        )

    def _places(self, spec: MdevSpec) -> Iterator[tuple[str, str]]:
        """(uuid, parent's address) of what can be made; a virtual function takes one."""
        names = {mdev.parent for mdev in self.active}
        busy = {each.parent for each in self.lost}
        there = {mdev.uuid for mdev in self.active} | {each.unit for each in self.lost}
        for parent in parents_for(self.card, spec.type_id, spec.addresses):
            if parent.physical_function is None:
                count = self.most.get(spec.type_id, parent.mdev_types[spec.type_id].available) + len(there)
            else:
                count = int(parent.name not in names and parent.address not in busy)
            for number in range(count):
                uuid = _uuid(self.host, parent.address, number)
                if uuid not in there:
                    yield uuid, parent.address


@cache
def _uuid(host: str, parent: str, number: int) -> str:
    return str(uuid5(_NAMESPACE, f"{host}/{parent}/{number}"))


def _inventory(total: int, reserved: int = 0) -> DescribedInventory:
    return DescribedInventory(total, reserved, allocation_ratio=1.0)
