"""The trees around a reshape: which instructions are due, and how the tree stands meanwhile. Pure.

A reshape splits a pass in two. What does not move is planned and applied as ever, new providers included,
which stay empty; that is the *staged* tree, where the moving slots are as placement has them. Then comes the
one atomic request, and then what is left over goes, mostly providers that offer nothing any more. While a
reshape cannot be done the tree stays staged, with what is to move reserved, so that nobody claims it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.driver import MoveInstruction
from agent.reshape.laws import exchanges_of
from agent.reshape.types import Instruction, Slot, instructions, inventory_at, total_at
from agent.shapes import Allocations, Held
from agent.tree import Inventory, Provider, ProviderTree


def due_moves(
    moves: Iterable[MoveInstruction], current: ProviderTree, desired: ProviderTree, held: Held
) -> tuple[MoveInstruction, ...]:
    """The moves that have not happened yet, without the classes that have.

    A class of a source is due where placement still has it there and the driver no longer does, or less of it
    while a target waits for it; or where a consumer that is told to use a target holds all on the source and
    nothing there. A source that placement does not have needs no move.
    """
    known = [
        move
        for move in moves
        if not move.stays or move.consumers
        if desired.by_name(move.from_resource_provider) or current.by_name(move.from_resource_provider)
    ]
    told = instructions(known, current, desired)
    exchanges = exchanges_of(told)
    growing = _growing(exchanges, current, desired)
    due = {
        source
        for each in told
        for source, target, _ in each.pairs()
        if source != target
        and (
            _has_left(source, current, desired, exchanges[source] in growing)
            or _is_told(each, source, target, current, held)
        )
    }
    groups = {
        exchanges[slot] for slot in due
    }  # units that go round: one instruction is nothing without another
    due |= {slot for slot, group in exchanges.items() if group in groups and inventory_at(current, slot)}
    found = []
    for each in told:
        names = [source.resource_class for source, _, _ in each.pairs() if source in due]
        if names:
            found.append(_restricted(each.move, names))
    return tuple(found)


def _growing(exchanges: Mapping[Slot, int], current: ProviderTree, desired: ProviderTree) -> set[int]:
    """The groups of slots that exchange units, some of which get more. All together they do not: then there
    are new units, and that a slot has less has nothing to do with them.
    """
    more: set[int] = set()
    sums: Counter[int] = Counter()
    for slot, group in exchanges.items():
        grown = total_at(desired, slot) - total_at(current, slot)
        sums[group] += grown
        if grown > 0:
            more.add(group)
    return {group for group in more if sums[group] <= 0}


def _has_left(source: Slot, current: ProviderTree, desired: ProviderTree, awaited: bool) -> bool:
    """Whether the driver has nothing more there, or less while the units are `awaited` elsewhere."""
    now, wanted = inventory_at(current, source), inventory_at(desired, source)
    if now is None:
        return False
    return wanted is None or (awaited and wanted.total < now.total)


def _is_told(each: Instruction, source: Slot, target: Slot, current: ProviderTree, held: Held) -> bool:
    """Whether somebody who is told to use the target holds all on the source and nothing there."""
    here, there = held.get(source.provider, {}), held.get(target.provider, {})
    return inventory_at(current, source) is not None and any(
        shares.get(source.resource_class, 0)
        and here.get(consumer, {}).get(source.resource_class, 0)
        and not there.get(consumer, {}).get(target.resource_class, 0)
        for consumer, shares in (each.move.consumers or {}).items()
    )


def _restricted(move: MoveInstruction, names: Sequence[str]) -> MoveInstruction:
    consumers = move.consumers
    if consumers is not None:
        shares = {who: _only(amounts, names) for who, amounts in consumers.items()}
        consumers = {who: amounts for who, amounts in shares.items() if amounts}
    return replace(
        move,
        moved_resources=_only(move.moved_resources, names),
        consumers=consumers,
        becomes={name: there for name, there in move.becomes.items() if name in names},
    )


def _only(amounts: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def moving_slots(told: Iterable[Instruction]) -> tuple[frozenset[Slot], frozenset[Slot]]:
    """The slots that inventory leaves, and those that it comes to."""
    pairs = [pair for each in told for pair in each.pairs()]
    return frozenset(pair[0] for pair in pairs), frozenset(pair[1] for pair in pairs)


def staged(
    current: ProviderTree, desired: ProviderTree, moves: Sequence[MoveInstruction], *, reserve: bool
) -> ProviderTree:
    """`desired`, but the moving slots as in `current`, on providers that may be about to go.

    `reserve`: what is to leave a source is reserved there.
    """
    told = instructions(moves, current, desired)
    leaving, coming = moving_slots(told)
    providers = {provider.uuid: provider for provider in desired}
    for each in told:
        _keep(providers, current, each.source)
    for slot in leaving | coming:
        provider = providers[slot.provider]
        inventories = dict(provider.inventories)
        now = inventory_at(current, slot)
        if now is None:
            inventories.pop(slot.resource_class, None)
        elif reserve and slot in leaving:
            inventories[slot.resource_class] = _reserved(now, inventory_at(desired, slot))
        else:
            inventories[slot.resource_class] = now
        providers[slot.provider] = replace(provider, inventories=inventories)
    return ProviderTree(providers.values())


def _keep(providers: dict[str, Provider], current: ProviderTree, uuid: str) -> None:
    """The provider and what it hangs under, emptied, where they are not among `providers`."""
    for provider in (current[uuid], *current.ancestors(uuid)) if uuid in current else ():
        if provider.uuid not in providers:
            providers[provider.uuid] = replace(provider, inventories={})


def _reserved(now: Inventory, wanted: Inventory | None) -> Inventory:
    """`now` with so much reserved that no more can be claimed than afterwards."""
    left = wanted.total - wanted.reserved if wanted else 0
    return replace(now, reserved=max(now.reserved, min(now.total, now.total - left)))


def without_sources(
    desired: ProviderTree, described: Mapping[str, Iterable[str]], moves: Iterable[MoveInstruction]
) -> ProviderTree:
    """`desired` without classes that the driver says moved away, whoever put them there.

    `described` {provider name: classes} is what the driver describes: that stays.
    """
    for move in moves:
        source = desired.by_name(move.from_resource_provider)
        if source is None:
            continue
        gone = set(move.moved_resources).difference(described.get(source.name, ()))
        if gone & source.inventories.keys():
            left = {name: each for name, each in source.inventories.items() if name not in gone}
            desired = desired.with_provider(replace(source, inventories=left))
    return desired


def still_held(
    moves: Iterable[MoveInstruction], held: Held, tree: ProviderTree
) -> tuple[MoveInstruction, ...]:
    """The moves of a receipt, told only of those consumers that still hold so much on the source."""
    found = []
    for move in moves:
        source = tree.by_name(move.from_resource_provider)
        there = held.get(source.uuid, {}) if source else {}
        consumers = {
            who: shares
            for who, shares in (move.consumers or {}).items()
            if all(there.get(who, {}).get(name, 0) >= amount for name, amount in shares.items())
        }
        found.append(replace(move, consumers=consumers))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Owner:
    """What a guest uses of one source by the driver's word, and who may hold it in its stead."""

    guest: str
    uses: Mapping[str, int]


def with_stand_ins(
    told: Sequence[Instruction], held: Mapping[str, Allocations], migrations: Collection[str]
) -> tuple[MoveInstruction, ...]:
    """The moves with migrations in the place of the guests whose allocation on the source they own.

    While a guest moves away, its migration holds what it uses here; the guest itself holds nothing on these
    providers. The two are known by what they hold: the guest's use is the migration's allocation.
    `held` {consumer: its whole allocation}; `migrations` are those consumers that are one.
    """
    known = {who for each in told for who in (each.move.consumers or {})}
    stand_ins: dict[tuple[str, str], str] = {}
    for source in sorted({each.source for each in told}):
        free = sorted(set(migrations) - known)
        for owner in _owners(told, source):
            if held.get(owner.guest, {}).get(source):
                continue
            match = [who for who in free if _only(held[who].get(source, {}), [*owner.uses]) == owner.uses]
            if match:
                stand_ins[source, owner.guest] = match[0]
                free.remove(match[0])
    return tuple(
        replace(
            each.move,
            consumers={
                stand_ins.get((each.source, who), who): shares for who, shares in each.move.consumers.items()
            },
        )
        if each.move.consumers
        else each.move
        for each in told
    )


def _owners(told: Sequence[Instruction], source: str) -> list[_Owner]:
    uses: dict[str, dict[str, int]] = {}
    for each in told:
        if each.source == source:
            for who, shares in (each.move.consumers or {}).items():
                mine = uses.setdefault(who, {})
                for name, amount in shares.items():
                    mine[name] = mine.get(name, 0) + amount
    return [_Owner(who, uses[who]) for who in sorted(uses)]
