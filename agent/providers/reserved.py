"""Reserve what Placement must not offer because of what is in use; each pass does it anew. Pure.

Classes of one device that exclude each other take room from one another (`agent.providers.exclusive`). A
device for one-time use is reserved once it was allocated, also after its release, until an operator sets
`reserved` of its inventory back to 0 in Placement, as with nova.

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (one-time-use devices).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from agent.device_names import ONE_TIME_USE
from agent.driver import MoveInstruction
from agent.providers.exclusive import WaysOf, reserve_excluded
from agent.providers.resolve import ResolvedDescription
from agent.shapes import Classes, Usages
from agent.tree import Inventory, Provider, ProviderTree


@dataclass(frozen=True, slots=True)
class ReservedUsages:
    """The usages on which the last reservations and totals in Placement are based.

    `classes` are the classes whose usage decides what must be reserved or counted; `amounts` is their usage,
    without zeros.
    """

    classes: Classes = field(default_factory=dict)
    amounts: Usages = field(default_factory=dict)

    @classmethod
    def of(cls, resolved: ResolvedDescription, used: Usages) -> "ReservedUsages":
        """The part of the usages `used` that decides what `resolved` reserves and counts."""
        classes = dict(_one_time_classes(resolved))
        for uuid, ways in resolved.ways.items():
            classes[uuid] = classes.get(uuid, frozenset()).union(*ways)
        for counted in (resolved.gone, resolved.cordoned):
            for uuid, names in counted.items():
                classes[uuid] = classes.get(uuid, frozenset()) | names
        return cls(classes, _amounts_of(used, classes))

    def differs(self, used: Usages) -> bool:
        """Whether the usages `used` call for other reservations."""
        return _amounts_of(used, self.classes) != self.amounts


def reserve_used(
    resolved: ResolvedDescription,
    current: ProviderTree,
    used: Usages,
    moves: Collection[MoveInstruction] = (),
    *,
    exclusive: bool = True,
) -> ResolvedDescription:
    """`resolved` with its tree's inventories reserved as `used` requires; `current` is Placement's tree.

    Unless `exclusive`, nothing is reserved for classes of a device that exclude each other.
    A device may be in use under a class that the driver no longer reports for it. Until that class is free,
    it excludes all other classes of the device, unless one of the driver's `moves` says where it went.
    """
    ways = {**resolved.ways, **_ways_of_reconfigured(resolved, used, moves)}
    tree = reserve_excluded(resolved.tree, ways, used) if exclusive else resolved.tree
    problems = list(resolved.problems)
    for uuid, classes in _one_time_classes(resolved).items():
        before = tree[uuid]
        tree = tree.with_provider(_reserve_one_time(before, classes, used.get(uuid, {}), current.get(uuid)))
        problems += (
            f"{name} of {before.name} is for one-time use and was used: it stays reserved until an operator "
            "sets `reserved` of its inventory back to 0 in Placement."
            for name in sorted(classes & before.inventories.keys())
            if tree[uuid].inventories[name].capacity < before.inventories[name].capacity
            and not used.get(uuid, {}).get(name, 0)
        )
    return replace(resolved, tree=tree, ways=ways, problems=tuple(problems))


def _ways_of_reconfigured(
    resolved: ResolvedDescription, used: Usages, moves: Collection[MoveInstruction]
) -> WaysOf:
    moving = {(move.from_resource_provider, name) for move in moves for name in move.moved_resources}
    ways = {}
    for uuid, units in resolved.units.items():
        provider = resolved.tree[uuid]
        if resolved.devices.get(uuid, "").startswith("pci:"):
            gone = frozenset(
                name
                for name, amount in used.get(uuid, {}).items()
                if amount and name not in provider.inventories and (provider.name, name) not in moving
            )
            if gone:
                ways[uuid] = (gone, frozenset(units))
    return ways


def _one_time_classes(resolved: ResolvedDescription) -> Classes:
    """The classes of devices for one-time use."""
    return {
        uuid: frozenset(exact)
        for uuid, exact in resolved.units.items()
        if ONE_TIME_USE in resolved.tree[uuid].traits
    }


def _amounts_of(used: Usages, classes: Classes) -> Usages:
    amounts_of = {
        uuid: {name: amount for name, amount in used.get(uuid, {}).items() if amount and name in names}
        for uuid, names in classes.items()
    }
    return {uuid: amounts for uuid, amounts in amounts_of.items() if amounts}


def _reserve_one_time(
    provider: Provider, classes: frozenset[str], used: Mapping[str, int], now: Provider | None
) -> Provider:
    inventories = dict(provider.inventories)
    for name in classes & inventories.keys():
        before = now.inventories.get(name) if now is not None else None
        inventories[name] = _with_reserved(inventories[name], bool(used.get(name, 0)), before)
    return replace(provider, inventories=inventories)


def _with_reserved(inventory: Inventory, in_use: bool, before: Inventory | None) -> Inventory:
    amount = inventory.total if in_use else before.reserved if before is not None else 0
    return replace(inventory, reserved=min(inventory.total, max(inventory.reserved, amount)))
