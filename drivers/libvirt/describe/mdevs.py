"""The mediated devices of a card: those that exist, and those that can be created on it. Pure.

A device that can be created has its uuid already, the same one in every description. So a claim says which
uuid to create, of which type, on which parent, and once created the device is the claimed unit.
Source: https://docs.kernel.org/driver-api/vfio-mediated-device.html
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from uuid import UUID, uuid5

from agent.device_names import mdev_type_trait
from agent.driver import DescribedInventory
from drivers.libvirt.describe.cards import Card, UnitRecord, mdev_room, mdev_total, parents_for
from drivers.libvirt.describe.device_spec import MdevSpec
from drivers.libvirt.xml import MediatedDevice

_NAMESPACE = UUID("5f0c2a53-6d0e-4c35-9a0e-0d9cf1a3d0c9")
NOT_CONFIGURED = "VGPU"
"""The resource class of existing devices whose type is not, or no longer, enabled."""


@dataclass(frozen=True, slots=True)
class MdevResources:
    """The part of a card's provider that mediated devices make up; see `DescribedProvider`."""

    inventories: Mapping[str, DescribedInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ways: tuple[frozenset[str], ...] = ()
    to_make: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)


def class_of(specs: Sequence[MdevSpec], type_id: str) -> str:
    """The resource class of a mediated device of that type, on a card with these specs."""
    for spec in specs:
        if spec.type_id == type_id:
            return spec.resource_class
    return specs[0].resource_class if specs else NOT_CONFIGURED


@dataclass(frozen=True, slots=True)
class _TypeUnits:
    """The devices of one type: its inventory, existing units, and how many more can be created."""

    inventory: DescribedInventory
    existing: tuple[str, ...]
    creatable: int


@dataclass(frozen=True, slots=True)
class MdevCard:
    """A card that has mediated devices.

    `specs` are the enabled types for it. `limits` {type: how many it can have} and `existing` (how many the
    kernel has) are those of `mdev_total`. `missing` are records of devices that domains name and that do not
    exist now; `held` are all units that domains name.
    """

    card: Card
    host: str
    specs: tuple[MdevSpec, ...]
    limits: Mapping[str, int]
    existing: int | None
    missing: tuple[UnitRecord, ...]
    held: frozenset[str]

    @property
    def active(self) -> list[MediatedDevice]:
        """The devices that exist; others are only defined."""
        return [mdev for mdev in self.card.mdevs if mdev.active]

    def resources(self) -> MdevResources:
        """What the card's provider has of mediated devices."""
        if not self.specs:
            return self._resources_not_configured()
        if len(self.specs) == 1:
            return self._resources({self.specs[0]: self._units_of_only_type(self.specs[0])})
        return self._resources({spec: self._units_of_type(spec) for spec in self.specs})

    def _resources_not_configured(self) -> MdevResources:
        """Existing and missing devices of a card for which no type is enabled."""
        units: dict[str, tuple[str, ...]] = {}
        if self.active:
            units[NOT_CONFIGURED] = tuple(mdev.uuid for mdev in self.active)
        for record in self.missing:
            units[record.resource_class] = (*units.get(record.resource_class, ()), record.unit)
        return MdevResources({name: _inventory(len(uuids)) for name, uuids in units.items()}, units=units)

    def _units_of_only_type(self, spec: MdevSpec) -> _TypeUnits:
        """Devices of other types take room on the card too: they count, and are reserved."""
        limit = self.limits.get(spec.type_id)
        total = mdev_total(self.card, spec.type_id, limit, spec.max_instances, self.existing, spec.addresses)
        total = max(total, len(self.active) + len(self.missing))
        existing = max(len(self.active), self.existing or 0)
        own = self._own(spec)
        inventory = _inventory(total, reserved=len(self.active) - len(own))
        return _TypeUnits(inventory, own, total - existing - len(self.missing))

    def _units_of_type(self, spec: MdevSpec) -> _TypeUnits:
        """One of several types, each with its own class, that share the card or exclude each other."""
        own = self._own(spec)
        held = len(own) + sum(record.resource_class == spec.resource_class for record in self.missing)
        limit = self.limits.get(spec.type_id)
        possible = len(own) + mdev_room(self.card, spec.type_id, limit, self.existing, spec.addresses)
        total = possible if limit is None else limit
        if spec.max_instances is not None:
            total = min(total, spec.max_instances)
        total = max(total, held)
        inventory = _inventory(total, reserved=max(0, total - max(possible, held)))
        return _TypeUnits(inventory, own, total - held)

    def _own(self, spec: MdevSpec) -> tuple[str, ...]:
        """The uuids of devices of the type, and of held devices whose type is not enabled, by their class."""
        return tuple(
            mdev.uuid
            for mdev in self.active
            if mdev.type_id == spec.type_id
            or (mdev.uuid in self.held and class_of(self.specs, mdev.type_id) == spec.resource_class)
        )

    def _resources(self, units_by_spec: Mapping[MdevSpec, _TypeUnits]) -> MdevResources:
        inventories, units, to_make = {}, {}, {}
        for spec, type_units in units_by_spec.items():
            if not type_units.inventory.total:
                continue
            name = spec.resource_class
            chosen = zip(range(max(0, type_units.creatable)), self._creatable(spec), strict=False)
            makings = {uuid: {"parent": parent, "type": spec.type_id} for _, (uuid, parent) in chosen}
            missing = tuple(
                record.unit
                for record in self.missing
                if record.resource_class == name or len(units_by_spec) == 1
            )
            inventories[name] = type_units.inventory
            units[name] = (*type_units.existing, *missing, *makings)
            if makings:
                to_make[name] = makings
        return MdevResources(
            inventories,
            frozenset(mdev_type_trait(spec.type_id) for spec in units_by_spec),
            units,
            self._ways(units_by_spec) if len(units_by_spec) > 1 else (),
            to_make,
        )

    def _ways(self, specs: Iterable[MdevSpec]) -> tuple[frozenset[str], ...]:
        """Types of which the card can have the same number share it; others exclude each other."""
        ways: dict[object, set[str]] = {}
        for spec in specs:
            ways.setdefault(self.limits.get(spec.type_id, spec.type_id), set()).add(spec.resource_class)
        return tuple(map(frozenset, ways.values()))

    def _creatable(self, spec: MdevSpec) -> Iterator[tuple[str, str]]:
        """(uuid, parent's address) of each device that can be created; a virtual function can have one."""
        used_parents = {mdev.parent for mdev in self.active}
        missing_parents = {record.parent for record in self.missing}
        taken_uuids = {mdev.uuid for mdev in self.active} | {record.unit for record in self.missing}
        for parent in parents_for(self.card, spec.type_id, spec.addresses):
            if parent.physical_function is None:
                count = self.limits.get(spec.type_id, parent.mdev_types[spec.type_id].available) + len(
                    taken_uuids
                )
            else:
                count = int(parent.name not in used_parents and parent.address not in missing_parents)
            for number in range(count):
                uuid = _uuid(self.host, parent.address, number)
                if uuid not in taken_uuids:
                    yield uuid, parent.address


@cache
def _uuid(host: str, parent: str, number: int) -> str:
    return str(uuid5(_NAMESPACE, f"{host}/{parent}/{number}"))


def _inventory(total: int, reserved: int = 0) -> DescribedInventory:
    return DescribedInventory(total, reserved, allocation_ratio=1.0)
