"""What placement must not offer because of what is in use: it is reserved, pass by pass. Pure.

Classes that exclude each other take room from one another. A device for one-time use
is reserved from when somebody had it, also after it was freed, until an operator sets `reserved` back in
placement, as with nova.
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
    """What was in use, of the classes in `classes`, when placement was told what is left."""

    classes: Classes = field(default_factory=dict)
    amounts: Usages = field(default_factory=dict)

    @classmethod
    def of(cls, resolved: ResolvedDescription, used: Usages) -> "ReservedUsages":
        """`used` {provider uuid: {class: in use, by whomever}}."""
        classes = dict(_one_time_classes(resolved))
        for uuid, ways in resolved.ways.items():
            classes[uuid] = classes.get(uuid, frozenset()).union(*ways)
        return cls(classes, _of(used, classes))

    def differs(self, used: Usages) -> bool:
        """Whether placement must be told anew what is left."""
        return _of(used, self.classes) != self.amounts


def reserve_used(
    resolved: ResolvedDescription,
    current: ProviderTree,
    used: Usages,
    moves: Collection[MoveInstruction] = (),
) -> ResolvedDescription:
    """`resolved` with what must be reserved in its tree; `current` is what placement has.

    A device that is in use as something that the driver no longer offers it as excludes all else of it, until
    it is free: unless `moves` say what became of that.
    """
    ways = {**resolved.ways, **_reconfigured(resolved, used, moves)}
    tree = reserve_excluded(resolved.tree, ways, used)
    told = list(resolved.problems)
    for uuid, classes in _one_time_classes(resolved).items():
        before = tree[uuid]
        tree = tree.with_provider(_burnt(before, classes, used.get(uuid, {}), current.get(uuid)))
        told += (
            f"{name} of {before.name} is for one-time use and was used: it is reserved until somebody sets "
            "`reserved` of its inventory back to 0 in placement."
            for name in sorted(classes & before.inventories.keys())
            if tree[uuid].inventories[name].capacity < before.inventories[name].capacity
            and not used.get(uuid, {}).get(name, 0)
        )
    return replace(resolved, tree=tree, ways=ways, problems=tuple(told))


def _reconfigured(resolved: ResolvedDescription, used: Usages, moves: Collection[MoveInstruction]) -> WaysOf:
    moving = {(move.from_resource_provider, name) for move in moves for name in move.moved_resources}
    found = {}
    for uuid, units in resolved.units.items():
        provider = resolved.tree[uuid]
        if resolved.devices.get(uuid, "").startswith("pci:"):
            gone = frozenset(
                name
                for name, amount in used.get(uuid, {}).items()
                if amount and name not in provider.inventories and (provider.name, name) not in moving
            )
            if gone:
                found[uuid] = (gone, frozenset(units))
    return found


def _one_time_classes(resolved: ResolvedDescription) -> Classes:
    """The classes of devices for one-time use."""
    return {
        uuid: frozenset(exact)
        for uuid, exact in resolved.units.items()
        if ONE_TIME_USE in resolved.tree[uuid].traits
    }


def _of(used: Usages, classes: Classes) -> Usages:
    found = {
        uuid: {name: amount for name, amount in used.get(uuid, {}).items() if amount and name in names}
        for uuid, names in classes.items()
    }
    return {uuid: amounts for uuid, amounts in found.items() if amounts}


def _burnt(
    provider: Provider, classes: frozenset[str], used: Mapping[str, int], now: Provider | None
) -> Provider:
    inventories = dict(provider.inventories)
    for name in classes & inventories.keys():
        before = now.inventories.get(name) if now is not None else None
        inventories[name] = _reserving(inventories[name], bool(used.get(name, 0)), before)
    return replace(provider, inventories=inventories)


def _reserving(inventory: Inventory, in_use: bool, before: Inventory | None) -> Inventory:
    amount = inventory.total if in_use else before.reserved if before is not None else 0
    return replace(inventory, reserved=min(inventory.total, max(inventory.reserved, amount)))
