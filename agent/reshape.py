"""Reshape arithmetic: move instructions + current tree + current allocations -> one atomic change. Pure.

A driver that changed its model says which inventory went where (`agent.driver.Move`, seed 2018), and, where
it knows, which consumer uses how much. `plan_reshape` turns that into the content of one `POST /reshaper`:
only the touched providers, only the touched consumers. Placement proves nothing of what is asked of it there,
so it is proved here: for every consumer and class the sum stays the same, every target can hold what it gets,
and nobody is left on inventory that goes away.

Where ownership is told, that is where a consumer goes. Where it is not, a consumer is placed whole on the
first target with room, the largest first, then by uuid; if there is none, the whole reshape is refused.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agent.claim import Allocations
from agent.driver import Move
from agent.errors import ReshapeRefused
from agent.tree import Inventory, Provider, ProviderTree


class Relocation(NamedTuple):
    """`amount` of `resource_class`, held by `consumer`, goes from provider `source` to `target` (uuids)."""

    consumer: str
    resource_class: str
    amount: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Reshape:
    """The content of one `POST /reshaper`.

    `inventories` {provider uuid: its whole new inventory}; `allocations` {consumer uuid: its whole new set}.
    """

    inventories: Mapping[str, Mapping[str, Inventory]]
    allocations: Mapping[str, Allocations]
    relocations: tuple[Relocation, ...]

    @property
    def empty(self) -> bool:
        return not self.inventories


class _Slot(NamedTuple):
    """One class of one provider: what is counted, moved and filled."""

    provider: str
    resource_class: str


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The instructions of one source whose classes hang together: `targets` {uuid: classes it may take}."""

    source: str
    classes: frozenset[str]
    targets: Mapping[str, frozenset[str]]


@dataclass(slots=True)
class _Work:
    """The plan in the making: what everybody holds after the moves so far, and what is wrong with it."""

    desired: ProviderTree
    held: dict[str, dict[_Slot, int]]
    used: dict[_Slot, int] = field(default_factory=lambda: defaultdict(int))
    relocations: list[Relocation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def shift(self, consumer: str, slot: _Slot, amount: int, target: str) -> None:
        """Move `amount`; the source must hold it."""
        for change, where in ((-amount, slot), (amount, _Slot(target, slot.resource_class))):
            left = self.held[consumer].get(where, 0) + change
            if left:
                self.held[consumer][where] = left
            else:
                del self.held[consumer][where]
            self.used[where] += change
        self.relocations.append(Relocation(consumer, slot.resource_class, amount, slot.provider, target))

    def offered(self, slot: _Slot) -> Inventory | None:
        provider = self.desired.get(slot.provider)
        return provider.inventories.get(slot.resource_class) if provider else None

    def room(self, slot: _Slot) -> int:
        inventory = self.offered(slot)
        return inventory.capacity - self.used[slot] if inventory else 0

    def name(self, provider: str) -> str:
        found = self.desired.get(provider)
        return found.name if found else provider


def plan_reshape(
    current: ProviderTree,
    desired: ProviderTree,
    moves: Sequence[Move],
    held: Mapping[str, Allocations],
) -> Reshape:
    """What one `POST /reshaper` must say so that `moves` happened.

    :param current: the tree as placement has it
    :param desired: the tree as the driver wants it; names in `moves` are looked up here, then in `current`
    :param held: {consumer uuid: its whole allocation}, of every consumer on a touched provider
    :raises ReshapeRefused: with every reason; nothing can then be moved
    """
    bundles = _bundles(moves, current, desired)
    touched = {uuid for bundle in bundles for uuid in (bundle.source, *bundle.targets)}
    work = _Work(desired, {consumer: _slots(allocations) for consumer, allocations in held.items()})
    for slots in work.held.values():
        for slot, amount in slots.items():
            work.used[slot] += amount
    _place_told(work, moves, current)
    if not work.problems:
        _place_untold(work, bundles)
    allocations = {consumer: _allocations(work.held[consumer]) for consumer, *_ in work.relocations}
    inventories = {
        uuid: provider.inventories if (provider := desired.get(uuid)) else {} for uuid in sorted(touched)
    }
    reshape = Reshape(inventories, allocations, tuple(work.relocations))
    problems = work.problems or list(breaches(reshape, desired, held))
    if problems:
        raise ReshapeRefused(
            f"the reshape cannot be done as a whole, so nothing of it was: {'; '.join(problems)}",
            reasons=problems,
        )
    return reshape


def inverse_moves(reshape: Reshape, tree: ProviderTree) -> tuple[Move, ...]:
    """The instructions that bring each relocated amount back to where it came from."""
    back: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for consumer, resource_class, amount, source, target in reshape.relocations:
        shares = back.setdefault((target, source), {}).setdefault(consumer, {})
        shares[resource_class] = shares.get(resource_class, 0) + amount
    return tuple(
        Move(tree[origin].name, _sums(consumers.values()), tree[goal].name, consumers)
        for (origin, goal), consumers in back.items()
    )


def with_sources_reserved(current: ProviderTree, moves: Iterable[Move]) -> ProviderTree:
    """`current` with everything that is to move reserved, so that nobody claims it while a reshape is due."""
    tree = current
    for move in moves:
        source = tree.by_name(move.from_resource_provider)
        if source is None:
            continue
        inventories = dict(source.inventories)
        for resource_class in move.moved_resources:
            if resource_class in inventories:
                inventory = inventories[resource_class]
                inventories[resource_class] = replace(inventory, reserved=inventory.total)
        tree = tree.with_provider(replace(source, inventories=inventories))
    return tree


def breaches(reshape: Reshape, desired: ProviderTree, held: Mapping[str, Allocations]) -> Iterable[str]:
    """Every law that `reshape` would break, a sentence each; no part of how it was made is trusted."""
    after = {
        consumer: reshape.allocations.get(consumer, allocations) for consumer, allocations in held.items()
    }
    for consumer in sorted(reshape.allocations):
        before_sums = _sums(held.get(consumer, {}).values())
        after_sums = _sums(after.get(consumer, {}).values())
        if before_sums != after_sums:
            yield f"consumer {consumer} would hold {after_sums} where it held {before_sums}"
    used: dict[_Slot, int] = defaultdict(int)
    moved_to = {(relocation.consumer, relocation.target) for relocation in reshape.relocations}
    for consumer, allocations in sorted(after.items()):
        for slot, amount in _slots(allocations).items():
            if slot.provider not in reshape.inventories:
                continue
            used[slot] += amount
            inventory = reshape.inventories[slot.provider].get(slot.resource_class)
            if inventory is None:
                yield (
                    f"consumer {consumer} holds {amount} {slot.resource_class} of "
                    f"{_name(desired, slot.provider)}, which no longer has any"
                )
            elif (consumer, slot.provider) in moved_to:
                yield from _unit_breach(consumer, slot, amount, inventory, desired)
    for slot, amount in sorted(used.items()):
        inventory = reshape.inventories[slot.provider].get(slot.resource_class)
        if inventory is not None and amount > inventory.capacity:
            yield (
                f"{_name(desired, slot.provider)} would hold {amount} {slot.resource_class} "
                f"and has room for {inventory.capacity}"
            )


def _unit_breach(
    consumer: str, slot: _Slot, amount: int, inventory: Inventory, desired: ProviderTree
) -> Iterable[str]:
    if not inventory.min_unit <= amount <= inventory.max_unit or amount % inventory.step_size:
        yield (
            f"consumer {consumer} would hold {amount} {slot.resource_class} of "
            f"{_name(desired, slot.provider)}, which gives {inventory.min_unit} to {inventory.max_unit} "
            f"in steps of {inventory.step_size}"
        )


def _place_told(work: _Work, moves: Sequence[Move], current: ProviderTree) -> None:
    """Move what the driver says each consumer uses."""
    for move in moves:
        source = _uuid(move.from_resource_provider, work.desired, current)
        target = _uuid(move.to_resource_provider, work.desired)
        for consumer, shares in sorted((move.consumers or {}).items()):
            for resource_class, amount in sorted(shares.items()):
                slot = _Slot(source, resource_class)
                has = work.held.get(consumer, {}).get(slot, 0)
                if amount > has:
                    work.problems.append(
                        f"consumer {consumer} uses {amount} {resource_class} of {move.to_resource_provider} "
                        f"but holds {has} on {move.from_resource_provider}: give it an allocation first"
                    )
                elif amount:
                    work.shift(consumer, slot, amount, target)


def _place_untold(work: _Work, bundles: Sequence[_Bundle]) -> None:
    """Place whole every consumer that is left on a class which its provider loses."""
    for bundle in bundles:
        leaving = {c for c in bundle.classes if work.offered(_Slot(bundle.source, c)) is None}
        left = {
            consumer: share
            for consumer, slots in work.held.items()
            if (
                share := {
                    c: slots[_Slot(bundle.source, c)] for c in leaving if _Slot(bundle.source, c) in slots
                }
            )
        }
        for consumer, share in sorted(left.items(), key=lambda item: (-sum(item[1].values()), item[0])):
            target = _first_with_room(work, bundle, consumer, share)
            if target is None:
                work.problems.append(_no_room(work, bundle, consumer, share))
                continue
            for resource_class, amount in sorted(share.items()):
                work.shift(consumer, _Slot(bundle.source, resource_class), amount, target)


def _first_with_room(work: _Work, bundle: _Bundle, consumer: str, share: Mapping[str, int]) -> str | None:
    for target, classes in bundle.targets.items():
        if share.keys() <= classes and all(
            work.room(_Slot(target, c)) >= amount and _gives(work, consumer, _Slot(target, c), amount)
            for c, amount in share.items()
        ):
            return target
    return None


def _gives(work: _Work, consumer: str, slot: _Slot, amount: int) -> bool:
    inventory = work.offered(slot)
    whole = amount + work.held[consumer].get(slot, 0)
    return (
        inventory is not None
        and inventory.min_unit <= whole <= inventory.max_unit
        and not whole % inventory.step_size
    )


def _no_room(work: _Work, bundle: _Bundle, consumer: str, share: Mapping[str, int]) -> str:
    asked = ", ".join(f"{amount} {c}" for c, amount in sorted(share.items()))
    free = "; ".join(
        f"{work.name(target)}: " + ", ".join(f"{work.room(_Slot(target, c))} {c}" for c in sorted(share))
        for target in bundle.targets
    )
    return (
        f"consumer {consumer} holds {asked} of {work.name(bundle.source)}, nobody said which units those "
        f"are, and no single target has room for them (free on {free})"
    )


def _bundles(moves: Sequence[Move], current: ProviderTree, desired: ProviderTree) -> tuple[_Bundle, ...]:
    """The instructions by source, and within it by classes that travel together."""
    by_source: dict[str, list[tuple[frozenset[str], str]]] = {}
    for move in moves:
        source = _uuid(move.from_resource_provider, desired, current)
        target = _uuid(move.to_resource_provider, desired)
        by_source.setdefault(source, []).append((frozenset(move.moved_resources), target))
    bundles = []
    for source, instructions in by_source.items():
        for classes in _components(classes for classes, _ in instructions):
            targets: dict[str, frozenset[str]] = {}
            for taken, target in instructions:
                if taken <= classes:
                    targets[target] = targets.get(target, frozenset()) | taken
            bundles.append(_Bundle(source, classes, targets))
    return tuple(bundles)


def _components(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The unions of overlapping sets, in the order of their first member set."""
    components: list[frozenset[str]] = []
    for members in sets:
        joined = members
        apart = []
        for component in components:
            if component & joined:
                joined |= component
            else:
                apart.append(component)
        components = [*apart, joined]
    return components


def _uuid(name: str, *trees: ProviderTree) -> str:
    for tree in trees:
        provider = tree.by_name(name)
        if provider is not None:
            return provider.uuid
    raise ReshapeRefused(
        f"a move instruction names provider {name}, which is in no tree; the driver's description is wrong",
        reasons=[f"unknown provider {name}"],
    )


def _name(tree: ProviderTree, uuid: str) -> str:
    provider: Provider | None = tree.get(uuid)
    return provider.name if provider else uuid


def _slots(allocations: Allocations) -> dict[_Slot, int]:
    return {
        _Slot(provider, resource_class): amount
        for provider, resources in allocations.items()
        for resource_class, amount in resources.items()
    }


def _allocations(slots: Mapping[_Slot, int]) -> Allocations:
    allocations: dict[str, dict[str, int]] = {}
    for slot, amount in slots.items():
        allocations.setdefault(slot.provider, {})[slot.resource_class] = amount
    return allocations


def _sums(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for resources in many:
        for resource_class, amount in resources.items():
            sums[resource_class] = sums.get(resource_class, 0) + amount
    return dict(sorted(sums.items()))
