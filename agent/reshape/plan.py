"""Reshape arithmetic: move instructions + current tree + current allocations -> one atomic change. Pure.

A driver that changed its model says which inventory went where (`MoveInstruction`, seed 2018), and, where
it knows, which consumer uses how much. `plan_reshape` turns that into the content of one `POST /reshaper`:
only the touched providers, only the touched consumers. Placement proves nothing of what is asked of it there,
so it is proved here, by `reshape_laws`, before anything is written.

Where ownership is told, that is where a consumer goes. Where it is not, a consumer is placed whole on the
first target with room, the largest first, then by uuid; if there is none, the whole reshape is refused. From
a source that goes on offering the class nobody is moved untold, unless it no longer has room for all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.bundles import Bundle, bundles
from agent.reshape.laws import breaches
from agent.reshape.types import (
    Instruction,
    Relocation,
    Reshape,
    Slot,
    allocations_of,
    instructions,
    inventory_at,
    name_of,
    slots_of,
)
from agent.shapes import Allocations
from agent.tree import Inventory, ProviderTree


class _Doubt(NamedTuple):
    """The consumer should hold as much as it `uses` at the target in the end; `sentence` says why, if not."""

    consumer: str
    target: Slot
    uses: int
    sentence: str


@dataclass(slots=True)
class _Work:
    """The plan in the making: what everybody holds after the moves so far, and what is wrong with it."""

    current: ProviderTree
    desired: ProviderTree
    held: dict[str, dict[Slot, int]]
    parked: dict[str, dict[Slot, int]]
    used: dict[Slot, int] = field(default_factory=lambda: defaultdict(int))
    settled: dict[tuple[str, Slot], int] = field(default_factory=lambda: defaultdict(int))
    uses: dict[tuple[str, Slot], int] = field(default_factory=lambda: defaultdict(int))
    relocations: list[Relocation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def shift(self, consumer: str, source: Slot, amount: int, target: Slot) -> None:
        """Move `amount`; the source must hold it."""
        for change, where in ((-amount, source), (amount, target)):
            left = self.held[consumer].get(where, 0) + change
            if left:
                self.held[consumer][where] = left
            else:
                del self.held[consumer][where]
            self.used[where] += change
        left_class, there = source.resource_class, target.resource_class
        self.relocations.append(
            Relocation(consumer, left_class, amount, source.provider, target.provider, there)
        )

    def movable(self, consumer: str, slot: Slot) -> int:
        """What the consumer holds there and is neither parked nor told to be there."""
        told = max(self.settled[consumer, slot], self.uses[consumer, slot]) if self.offered(slot) else 0
        return max(0, self.held[consumer].get(slot, 0) - self.parked.get(consumer, {}).get(slot, 0) - told)

    def offered(self, slot: Slot) -> Inventory | None:
        return inventory_at(self.desired, slot)

    def room(self, slot: Slot) -> int:
        inventory = self.offered(slot)
        return inventory.capacity - self.used[slot] if inventory else 0

    def takes(self, consumer: str, slot: Slot, amount: int) -> bool:
        """Whether the slot may give the consumer so much more."""
        inventory = self.offered(slot)
        whole = amount + self.held[consumer].get(slot, 0)
        return (
            inventory is not None
            and self.room(slot) >= amount
            and inventory.min_unit <= whole <= inventory.max_unit
            and not whole % inventory.step_size
        )

    def name(self, provider: str) -> str:
        return name_of(provider, self.desired, self.current)


def plan_reshape(
    current: ProviderTree,
    desired: ProviderTree,
    moves: Sequence[MoveInstruction],
    held: Mapping[str, Allocations],
    *,
    may_grow: bool = False,
) -> Reshape:
    """What one `POST /reshaper` must say so that `moves` happened; `may_grow` see `breaches`.

    :param current: the tree as placement has it
    :param desired: the tree as the driver wants it; names in `moves` are looked up here, then in `current`
    :param held: {consumer uuid: its whole allocation}, of every consumer on a touched provider
    :raises ReshapeRefused: with every reason; nothing can then be moved
    """
    told = instructions(moves, current, desired)
    work = _Work(current, desired, {who: slots_of(each) for who, each in held.items()}, _parked(told))
    for slots in work.held.values():
        for slot, amount in slots.items():
            work.used[slot] += amount
    doubts = _place_told(work, told)
    for bundle in bundles(told):
        _place_companions(work, bundle)
        _place_untold(work, bundle)
    # Only now: several instructions may tell of the same units, as they would come from here or from there.
    work.problems[:0] = [
        doubt.sentence
        for doubt in doubts
        if work.held.get(doubt.consumer, {}).get(doubt.target, 0) < doubt.uses
    ]
    reshape = Reshape(
        {uuid: _inventories(desired, uuid) for uuid in touched(told)},
        {consumer: allocations_of(work.held[consumer]) for consumer, *_ in work.relocations},
        tuple(work.relocations),
    )
    problems = work.problems or list(breaches(reshape, current, desired, told, held, may_grow=may_grow))
    if problems:
        raise ReshapeRefused(
            f"the reshape cannot be done as a whole, so nothing of it was: {'; '.join(problems)}",
            reasons=problems,
        )
    return reshape


def touched(told: Iterable[Instruction]) -> list[str]:
    """The uuids of the providers that inventory leaves or comes to."""
    return sorted({uuid for each in told for uuid in (each.source, each.target)})


def inverse_moves(
    moves: Sequence[MoveInstruction], reshape: Reshape, before: ProviderTree, tree: ProviderTree
) -> tuple[MoveInstruction, ...]:
    """The instructions that undo `moves`, and bring each relocated amount back to where it came from.

    `before` is the tree that was reshaped, `tree` has every provider that `moves` name.
    """
    back: _Back = {}
    for consumer, before_class, amount, source, target, there in reshape.relocations:
        shares = back.setdefault((tree[target].name, tree[source].name), {}).setdefault(consumer, {})
        shares[before_class, there] = shares.get((before_class, there), 0) + amount
    short = _short(moves, reshape, before)
    found = []
    for move in moves:
        source = move.from_resource_provider
        more = {name: short.pop((source, name), 0) for name in move.moved_resources}
        found.append(_inverse(move, back, more))
    return tuple(found)


def _short(
    moves: Iterable[MoveInstruction], reshape: Reshape, before: ProviderTree
) -> dict[tuple[str, str], int]:
    """{(provider name, class): how much more the source lost than its targets were brought}.

    What was counted on the host need not be what its cards add up to; undone, it is as it was all the same.
    """
    lost: dict[tuple[str, str], int] = {}
    for move in moves:
        source = before.by_name(move.from_resource_provider)
        for name, amount in move.moved_resources.items():
            was = source.inventories.get(name) if source else None
            if source is None or was is None:
                continue
            left = reshape.inventories.get(source.uuid, {}).get(name)
            key = (source.name, name)
            lost[key] = lost.get(key, was.total - (left.total if left else 0)) - amount
    return {key: amount for key, amount in lost.items() if amount > 0}


_Back = dict[tuple[str, str], dict[str, dict[tuple[str, str], int]]]
"""{(provider it came to, provider it left): {consumer: {(class it was, class it is): amount}}}, by name"""


def _inverse(move: MoveInstruction, back: _Back, more: Mapping[str, int]) -> MoveInstruction:
    origin, goal = move.to_resource_provider, move.from_resource_provider
    there = {name: move.becomes.get(name, name) for name in move.moved_resources}
    consumers = {
        who: {now: amount for (was, now), amount in shares.items() if there.get(was) == now}
        for who, shares in back.get((origin, goal), {}).items()
    }
    return MoveInstruction(
        origin,
        {there[name]: amount + more[name] for name, amount in move.moved_resources.items()},
        goal,
        {who: shares for who, shares in consumers.items() if shares},
        {after: before for before, after in there.items() if before != after},
    )


def _parked(told: Iterable[Instruction]) -> dict[str, dict[Slot, int]]:
    """{consumer: {slot: amount}} of what stays where it is; see agent.reshape.parking."""
    found: dict[str, dict[Slot, int]] = {}
    for each in told:
        if each.move.stays:
            for consumer, shares in (each.move.consumers or {}).items():
                mine = {Slot(each.source, name): amount for name, amount in shares.items()}
                found.setdefault(consumer, {}).update(mine)
    return found


def _place_told(work: _Work, told: Sequence[Instruction]) -> list[_Doubt]:
    """Move what the driver says each consumer uses; the answer is what it did not hold where it was said."""
    left = {consumer: dict(slots) for consumer, slots in work.held.items()}
    doubts = []
    for each in told:
        for source, target, _ in each.pairs():
            if source == target:
                continue
            for consumer, shares in sorted((each.move.consumers or {}).items()):
                uses = shares.get(source.resource_class, 0)
                has = left.get(consumer, {}).get(source, 0)
                work.uses[consumer, target] = max(uses, work.uses[consumer, target])
                if uses > has:
                    sentence = (
                        f"consumer {consumer} uses {uses} {source.resource_class} of "
                        f"{each.move.to_resource_provider} but holds {has} on "
                        f"{each.move.from_resource_provider}: give it an allocation first"
                    )
                    doubts.append(_Doubt(consumer, target, uses, sentence))
                if uses and has:
                    left[consumer][source] = has - min(uses, has)
                    work.shift(consumer, source, min(uses, has), target)
                    work.settled[consumer, target] += min(uses, has)
    return doubts


def _place_companions(work: _Work, bundle: Bundle) -> None:
    """What nobody told of goes where it was told that the rest of the consumer's share goes: bandwidth to the
    card of the virtual function. With functions of several cards, in proportion to them.
    """
    went: dict[str, dict[str, int]] = {}
    for consumer, name, amount, source, target, _ in work.relocations:
        if source == bundle.source and name in bundle.classes:
            targets = went.setdefault(consumer, {})
            targets[target] = targets.get(target, 0) + amount
    for name in sorted(_leaving(work, bundle)):
        slot = Slot(bundle.source, name)
        for consumer, targets in sorted(went.items()):
            amount, units = work.movable(consumer, slot), sum(targets.values())
            parts = {target: amount * n // units for target, n in targets.items()}
            if not amount or sum(parts.values()) != amount:
                continue
            there = {target: bundle.targets.get(target, {}).get(name) for target in targets}
            if all(new and work.takes(consumer, Slot(to, new), parts[to]) for to, new in there.items()):
                for target, new in there.items():
                    work.shift(consumer, slot, parts[target], Slot(target, str(new)))


def _leaving(work: _Work, bundle: Bundle) -> set[str]:
    """The classes that the source loses, but for what is parked there."""
    parking = {slot for slots in work.parked.values() for slot in slots}
    slots = {name: Slot(bundle.source, name) for name in bundle.classes}
    return {name for name, slot in slots.items() if work.offered(slot) is None or slot in parking}


def _place_untold(work: _Work, bundle: Bundle) -> None:
    """Place whole every consumer that is left on a class which its provider loses."""
    sources = {name: Slot(bundle.source, name) for name in bundle.classes}
    leaving = _leaving(work, bundle)
    for consumer, share in _by_size(work, sources, leaving):
        if not _placed(work, bundle, sources, consumer, share, frozenset(bundle.targets)):
            work.problems.append(_no_room(work, bundle, consumer, share))
    for name in sorted(bundle.classes - leaving):
        for consumer, share in _by_size(work, sources, {name}):
            if work.room(sources[name]) >= 0:
                break
            _placed(work, bundle, sources, consumer, share, bundle.untold | bundle.alike({name}))


def _placed(
    work: _Work,
    bundle: Bundle,
    sources: Mapping[str, Slot],
    consumer: str,
    share: Mapping[str, int],
    targets: frozenset[str],
) -> bool:
    """Whether the share found a place on one of the targets; with what else the consumer has of the bundle,
    if there is room for all of that: a guest's memory stays with its CPUs.
    """
    whole = {name: amount for name, slot in sources.items() if (amount := work.movable(consumer, slot))}
    for part, among in ((whole, targets & bundle.alike(whole)), (share, targets)):
        target = _first_with_room(work, bundle, among, consumer, part)
        if target is not None:
            _shift_all(work, bundle, consumer, part, target)
            return True
    return False


def _by_size(
    work: _Work, sources: Mapping[str, Slot], classes: Iterable[str]
) -> Iterator[tuple[str, dict[str, int]]]:
    """(consumer, {class: amount}) of who holds some of these classes, the largest first, then by uuid."""
    shares = {
        consumer: {name: work.movable(consumer, sources[name]) for name in classes} for consumer in work.held
    }
    found = [
        (consumer, {name: amount for name, amount in share.items() if amount})
        for consumer, share in shares.items()
        if any(share.values())
    ]
    return iter(sorted(found, key=lambda each: (-sum(each[1].values()), each[0])))


def _first_with_room(
    work: _Work, bundle: Bundle, targets: Iterable[str], consumer: str, share: Mapping[str, int]
) -> str | None:
    for target in bundle.targets:
        there = bundle.targets[target]
        if (
            target in targets
            and share.keys() <= there.keys()
            and all(work.takes(consumer, Slot(target, there[name]), amount) for name, amount in share.items())
        ):
            return target
    return None


def _shift_all(work: _Work, bundle: Bundle, consumer: str, share: Mapping[str, int], target: str) -> None:
    for name, amount in sorted(share.items()):
        there = Slot(target, bundle.targets[target][name])
        work.shift(consumer, Slot(bundle.source, name), amount, there)


def _no_room(work: _Work, bundle: Bundle, consumer: str, share: Mapping[str, int]) -> str:
    asked = ", ".join(f"{amount} {name}" for name, amount in sorted(share.items()))
    free = "; ".join(
        f"{work.name(target)}: "
        + ", ".join(
            f"{max(0, work.room(Slot(target, there[c])))} {there[c]}" for c in sorted(share) if c in there
        )
        for target, there in bundle.targets.items()
    )
    return (
        f"consumer {consumer} holds {asked} of {work.name(bundle.source)}, nobody said which units those "
        f"are, and no single target has room for them (free on {free})"
    )


def _inventories(tree: ProviderTree, uuid: str) -> Mapping[str, Inventory]:
    provider = tree.get(uuid)
    return provider.inventories if provider else {}
