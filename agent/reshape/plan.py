"""Plan a reshape: from move instructions, trees and allocations to the content of one request. Pure.

A driver that changes its model describes which inventory moved where (`MoveInstruction`, seed 2018) and,
where it knows, which consumer uses how much of it. `plan_reshape` turns that into one `POST /reshaper`,
which names the touched providers and consumers only. Placement does not check that a reshape conserves
anything, so `agent.reshape.laws` checks the result before it is sent.

What a claim has exact units for goes where these units are (`agent.reshape.claimed_units`). A consumer that
an instruction names goes where the instruction says. Any other consumer goes as a whole to the first target
with room, the largest first, then by uuid; if no target has room, the whole reshape is refused. A source
that still offers the class keeps its other consumers as long as it has room for them.

A reshape divides a pass. The pass first writes the *staged* tree (`staged_tree`): everything as desired,
except the inventory that the reshape moves. New providers exist, still empty, and the slots that exchange
units are as Placement has them. Then one atomic request moves the units. Then the pass removes what is left
over, mostly providers without inventory. While the reshape cannot be carried out, the tree stays staged and
the inventory to move is reserved, so that no scheduler allocates it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agent.claims.claim import Claim
from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused, by_force
from agent.providers.reservations import with_reserved
from agent.reshape.claimed_units import ClaimedPlaces, Places, relocations_of_record
from agent.reshape.laws import (
    Instruction,
    Relocation,
    Reshape,
    Slot,
    breaches,
    inventory_at,
    name_of,
    slots_of,
)
from agent.reshape.relocate import relocate_allocations
from agent.shapes import Allocations, Amounts, total
from agent.tree import Inventory, ProviderTree


def plan_reshape(
    current: ProviderTree,
    desired: ProviderTree,
    instructions: Sequence[Instruction],
    held: Mapping[str, Allocations],
    *,
    claimed: ClaimedPlaces | None = None,
    unheld: Mapping[str, Allocations] | None = None,
    strangers: Collection[str] = (),
    followers: Mapping[str, Claim] | None = None,
    may_grow: bool = False,
) -> Reshape:
    """The content of the one request that carries out the instructions.

    `current` is Placement's tree, `desired` the driver's; `held` has the whole allocation of every consumer
    on a touched provider, `claimed` where the units of the agent's claims are, and `unheld` what claims have
    beyond that: it goes along, in the agent's records, and is reserved where it comes to. `strangers` are
    consumers that may be migrations of guests which hold nothing, and `followers` {migration: claim whose
    record follows it} are of those that hold a part of a claimed place. `may_grow`: see
    `agent.reshape.laws.breaches`. Raises ReshapeRefused with every reason; then nothing can be moved.
    """
    claimed, unheld = claimed or ClaimedPlaces(), unheld or {}
    together = {who: total((held.get(who, {}), unheld.get(who, {}))) for who in {**held, **unheld}}
    draft = _Draft(
        current,
        desired,
        {consumer: slots_of(allocations) for consumer, allocations in together.items()},
        unheld=unheld,
    )
    for instruction in instructions:
        for consumer, shares in (instruction.move.consumers or {}).items() if instruction.move.stays else ():
            slots = {Slot(instruction.source, name): amount for name, amount in shares.items()}
            draft.parked.setdefault(consumer, {}).update(slots)
    for slots in draft.held.values():
        for slot, amount in slots.items():
            draft.used[slot] += amount
    _place_claimed(draft, claimed.located, held)
    missing = _place_named(draft, instructions)
    # What a guest uses and no consumer holds is reserved where it is: no other one is placed on it.
    most = {(share.consumer, share.target): share for share in sorted(missing, key=lambda each: each.amount)}
    for share in most.values():
        draft.used[share.target] += draft.lack(share)
    for bundle in _bundles(instructions):
        _place_companions(draft, bundle)
        _place_unnamed(draft, bundle)
    draft.problems[:0] = [*claimed.problems, *_unexplained(draft, missing, held, strangers)]
    relocations, records = _divided(draft.relocations, held)
    # What is not held comes to its place together with what is: no scheduler is offered it in between.
    unheld_after = {consumer: _relocated(unheld, consumer, records) for consumer in sorted(unheld)}
    reserved = with_reserved(desired, total(unheld_after.values()))
    touched = touched_providers(instructions)
    reshape = Reshape(
        {uuid: reserved[uuid].inventories if uuid in reserved else {} for uuid in touched},
        {consumer: _relocated(held, consumer, relocations) for consumer, *_ in relocations},
        relocations,
        (
            *records,
            *_following(relocations, followers or {}),
            *(
                relocation
                for claim, places in claimed.adrift.values()
                for relocation in relocations_of_record(claim, places, instructions)
            ),
        ),
    )
    problems = draft.problems or list(
        breaches(reshape, current, desired, instructions, held, unheld=unheld_after, may_grow=may_grow)
    )
    if problems:
        raise ReshapeRefused(
            f"The reshape cannot be carried out as a whole, so nothing was changed: {'; '.join(problems)}",
            reasons=problems,
        )
    return reshape


def _relocated(
    allocations: Mapping[str, Allocations], consumer: str, relocations: Iterable[Relocation]
) -> Allocations:
    own = (relocation for relocation in relocations if relocation.consumer == consumer)
    return relocate_allocations(allocations[consumer], own)


def touched_providers(instructions: Iterable[Instruction]) -> list[str]:
    """The uuids of the providers that units leave or come to, sorted."""
    return sorted({uuid for instruction in instructions for uuid in (instruction.source, instruction.target)})


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The instructions of one source whose classes travel together.

    `targets` {target: {class at the source: class at the target}}. `open_targets` are those whose instruction
    names no consumers because the driver does not know them.
    """

    source: str
    classes: frozenset[str]
    targets: Mapping[str, Mapping[str, str]]
    open_targets: frozenset[str]

    def targets_keeping(self, classes: Iterable[str]) -> frozenset[str]:
        """The targets where these classes keep their names."""
        return frozenset(
            uuid
            for uuid, names in self.targets.items()
            if all(names.get(resource_class) == resource_class for resource_class in classes)
        )


def _bundles(instructions: Sequence[Instruction]) -> Iterator[_Bundle]:
    by_source: dict[str, list[Instruction]] = {}
    for instruction in instructions:
        if not instruction.move.stays:
            by_source.setdefault(instruction.source, []).append(instruction)
    for source, group in by_source.items():
        # The unions of the sets of classes that overlap, directly or through others.
        unions: list[frozenset[str]] = []
        for instruction in group:
            union = frozenset(instruction.move.moved_resources).union(
                *(other for other in unions if not other.isdisjoint(instruction.move.moved_resources))
            )
            unions = [*(other for other in unions if other.isdisjoint(union)), union]
        for classes in unions:
            members = [
                instruction for instruction in group if instruction.move.moved_resources.keys() <= classes
            ]
            # Where instructions disagree, a class keeps its name: only a consumer that is named changes its.
            targets: dict[str, dict[str, str]] = {}
            for member in members:
                names = targets.setdefault(member.target, {})
                for leaving, coming, _ in member.slot_pairs():
                    if leaving.resource_class == coming.resource_class:
                        names[leaving.resource_class] = coming.resource_class
                    else:
                        names.setdefault(leaving.resource_class, coming.resource_class)
            unknown = frozenset(member.target for member in members if member.move.consumers is None)
            yield _Bundle(source, classes, targets, unknown)


@dataclass(slots=True)
class _Draft:
    """The plan in the making: the allocations after the moves so far, and the problems met.

    `held` is with what is `unheld`. `parked` {consumer: {slot: amount}} stays where it is (see
    `agent.reshape.due_instructions`), and so does `kept`, whose units are there. `named` {(consumer, target
    slot): amount} is what instructions say that the consumer uses there, `placed` what of it has been moved
    there.
    """

    current: ProviderTree
    desired: ProviderTree
    held: dict[str, dict[Slot, int]]
    unheld: Mapping[str, Allocations] = field(default_factory=dict)
    parked: dict[str, dict[Slot, int]] = field(default_factory=dict)
    kept: dict[str, dict[Slot, int]] = field(default_factory=lambda: defaultdict(dict))
    used: dict[Slot, int] = field(default_factory=lambda: defaultdict(int))
    placed: dict[tuple[str, Slot], int] = field(default_factory=lambda: defaultdict(int))
    named: dict[tuple[str, Slot], int] = field(default_factory=lambda: defaultdict(int))
    relocations: list[Relocation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def shift(self, consumer: str, source: Slot, amount: int, target: Slot) -> None:
        """Move an amount that the consumer holds in the source slot."""
        for change, slot in ((-amount, source), (amount, target)):
            left = self.held[consumer].get(slot, 0) + change
            if left:
                self.held[consumer][slot] = left
            else:
                del self.held[consumer][slot]
            self.used[slot] += change
        self.relocations.append(Relocation.between(consumer, source, target, amount))

    def movable(self, consumer: str, slot: Slot) -> int:
        """What the consumer holds in the slot and is neither parked nor known to be there."""
        staying = max(self.parked.get(consumer, {}).get(slot, 0), self.kept[consumer].get(slot, 0))
        if self.inventory(slot):
            staying += max(self.placed[consumer, slot], self.named[consumer, slot])
        return max(0, self.held[consumer].get(slot, 0) - staying)

    def lack(self, share: "_MissingShare") -> int:
        """How much of the share the consumer has not got at the target."""
        return max(0, share.amount - self.held.get(share.consumer, {}).get(share.target, 0))

    def inventory(self, slot: Slot) -> Inventory | None:
        return inventory_at(self.desired, slot)

    def room(self, slot: Slot) -> int:
        inventory = self.inventory(slot)
        return inventory.capacity - self.used[slot] if inventory else 0

    def accepts(self, consumer: str, slot: Slot, amount: int) -> bool:
        """Whether the slot can give the consumer this amount beside what it holds there."""
        inventory = self.inventory(slot)
        total = amount + self.held[consumer].get(slot, 0)
        return (
            inventory is not None
            and self.room(slot) >= amount
            and inventory.min_unit <= total <= inventory.max_unit
            and not total % inventory.step_size
        )


class _MissingShare(NamedTuple):
    """A share that the consumer did not hold on the source, where it `has` less."""

    consumer: str
    move: MoveInstruction
    source: Slot
    target: Slot
    amount: int
    has: int


def _divided(
    moved: Iterable[Relocation], held: Mapping[str, Allocations]
) -> tuple[tuple[Relocation, ...], tuple[Relocation, ...]]:
    """The relocations of what Placement holds, and of what only claims have; what is held goes first."""
    left = {consumer: Counter(slots_of(allocations)) for consumer, allocations in held.items()}
    relocations, records = [], []
    for relocation in moved:
        source, target = relocation.slots
        mine = left.setdefault(relocation.consumer, Counter())
        amount = min(relocation.amount, mine[source])
        mine[source] -= amount
        mine[target] += amount
        if amount:
            relocations.append(relocation._replace(amount=amount))
        if amount < relocation.amount:
            records.append(relocation._replace(amount=relocation.amount - amount))
    return tuple(relocations), tuple(records)


def _following(relocations: Iterable[Relocation], followers: Mapping[str, Claim]) -> Iterator[Relocation]:
    """The relocations of records that follow what their migrations hold, as far as the claims have it."""
    left = {who: Counter(slots_of(claim.allocations)) for who, claim in followers.items()}
    for relocation in relocations:
        if claim := followers.get(relocation.consumer):
            source, target = relocation.slots
            amount = min(relocation.amount, left[relocation.consumer][source])
            left[relocation.consumer].update({source: -amount, target: amount})
            if amount:
                yield relocation._replace(consumer=claim.consumer, amount=amount)


def _place_claimed(draft: _Draft, located: Mapping[str, Places], held: Mapping[str, Allocations]) -> None:
    """Move the amounts of claims to where their units are; what is nowhere is parked, or a problem."""
    for consumer, places in sorted(located.items()):
        for slot, now in places.items():
            has = draft.held.get(consumer, {}).get(slot, 0)
            for place, units in now.items():
                amount = min(units, has)
                has -= amount
                if place is None or place == slot:
                    draft.kept[consumer][slot] = draft.kept[consumer].get(slot, 0) + amount
                elif amount:
                    draft.shift(consumer, slot, amount, place)
                    draft.placed[consumer, place] += amount
            lost = now.get(None, 0) - draft.parked.get(consumer, {}).get(slot, 0)
            holds = held.get(consumer, {}).get(slot.provider, {}).get(slot.resource_class, 0)
            if holds and draft.kept[consumer].get(slot) and lost > 0 and draft.inventory(slot) is None:
                draft.problems.append(
                    f"consumer {consumer} has claimed {lost} {slot.resource_class} of "
                    f"{name_of(slot.provider, draft.desired, draft.current)} that are on no provider now: "
                    f"bring the device back, or release the consumer {by_force(consumer)}"
                )


def _place_named(draft: _Draft, instructions: Sequence[Instruction]) -> list[_MissingShare]:
    """Move the consumers that instructions name; returns the shares that they did not hold on the source."""
    left = {consumer: dict(slots) for consumer, slots in draft.held.items()}
    missing = []
    for instruction in instructions:
        for source, target, _ in instruction.slot_pairs():
            if source == target:
                continue
            for consumer, shares in sorted((instruction.move.consumers or {}).items()):
                uses = shares.get(source.resource_class, 0)
                has = left.get(consumer, {}).get(source, 0)
                draft.named[consumer, target] = max(uses, draft.named[consumer, target])
                if uses > has:
                    missing.append(_MissingShare(consumer, instruction.move, source, target, uses, has))
                amount = min(uses, has)
                if amount:
                    left[consumer][source] = has - amount
                    draft.shift(consumer, source, amount, target)
                    draft.placed[consumer, target] += amount
    return missing


def _unexplained(
    draft: _Draft,
    missing: Iterable[_MissingShare],
    held: Mapping[str, Allocations],
    strangers: Collection[str],
) -> Iterator[str]:
    """A sentence for each share that is not held for the guest, unless by one of the `strangers`.

    Judged last: several instructions may name the same units, since they may come from either source.
    """
    told = set()
    for share in missing:
        others = [
            stranger
            for stranger in sorted(strangers)
            if held.get(stranger, {}).get(share.source.provider, {}).get(share.source.resource_class)
        ]
        if not others or (share.consumer, share.target) in told or not draft.lack(share):
            continue
        told.add((share.consumer, share.target))
        yield (
            f"consumer {share.consumer} uses {share.amount} {share.target.resource_class} of "
            f"{share.move.to_resource_provider} but holds {share.has} {share.source.resource_class} on "
            f"{share.move.from_resource_provider}, where {', '.join(f'consumer {each}' for each in others)} "
            "may hold it as its migration: end that move, or delete the allocation that no move needs "
            "(`plimsoll audit` shows both)"
        )


def _place_companions(draft: _Draft, bundle: _Bundle) -> None:
    """Move the other classes of a named consumer along: the bandwidth to the card of the virtual function.

    With functions of several cards, they are divided in proportion to those.
    """
    moved: dict[str, dict[str, int]] = {}
    for consumer, name, amount, source, target, _ in draft.relocations:
        if source == bundle.source and name in bundle.classes:
            targets = moved.setdefault(consumer, {})
            targets[target] = targets.get(target, 0) + amount
    for name in sorted(_lost_classes(draft, bundle)):
        slot = Slot(bundle.source, name)
        for consumer, targets in sorted(moved.items()):
            amount, units = draft.movable(consumer, slot), sum(targets.values())
            parts = {target: amount * share // units for target, share in targets.items()}
            if not amount or sum(parts.values()) != amount:
                continue
            names = {target: bundle.targets.get(target, {}).get(name) for target in targets}
            if all(
                new_name and draft.accepts(consumer, Slot(target, new_name), parts[target])
                for target, new_name in names.items()
            ):
                for target, new_name in names.items():
                    draft.shift(consumer, slot, parts[target], Slot(target, str(new_name)))


def _lost_classes(draft: _Draft, bundle: _Bundle) -> set[str]:
    """The classes that the source loses, even where some units of them are parked there."""
    parking = {slot for slots in draft.parked.values() for slot in slots}
    slots = {name: Slot(bundle.source, name) for name in bundle.classes}
    return {name for name, slot in slots.items() if draft.inventory(slot) is None or slot in parking}


def _place_unnamed(draft: _Draft, bundle: _Bundle) -> None:
    """Move every consumer that is left on a class which the source loses or no longer has room for."""
    sources = {name: Slot(bundle.source, name) for name in bundle.classes}
    lost = _lost_classes(draft, bundle)
    for consumer, share in _largest_first(draft, sources, lost):
        if not _place_whole(draft, bundle, sources, consumer, share, frozenset(bundle.targets)):
            amounts = ", ".join(f"{amount} {name}" for name, amount in sorted(share.items()))
            free = "; ".join(
                f"{name_of(target, draft.desired, draft.current)}: "
                + ", ".join(
                    f"{max(0, draft.room(Slot(target, names[name])))} {names[name]}"
                    for name in sorted(share)
                    if name in names
                )
                for target, names in bundle.targets.items()
            )
            unheld = draft.unheld.get(consumer, {}).get(bundle.source)
            remedy = (
                f". Placement does not hold it: release the claim {by_force(consumer)}; what the guest uses "
                "stays reserved"
                if unheld
                else f". Release it {by_force(consumer)}, or move it to another host and back"
            )
            draft.problems.append(
                f"consumer {consumer} {'has a claim of' if unheld else 'holds'} {amounts} of "
                f"{name_of(bundle.source, draft.desired, draft.current)}, no instruction says which units "
                f"these are, and no single target has room for them (free on {free})"
                f"{remedy}"
            )
    for name in sorted(bundle.classes - lost):
        targets = bundle.open_targets | bundle.targets_keeping({name})
        for consumer, share in _largest_first(draft, sources, {name}):
            if draft.room(sources[name]) >= 0:
                break
            _place_whole(draft, bundle, sources, consumer, share, targets)


def _place_whole(
    draft: _Draft,
    bundle: _Bundle,
    sources: Mapping[str, Slot],
    consumer: str,
    share: Amounts,
    targets: frozenset[str],
) -> bool:
    """Move the share to the first of the targets with room for it; returns whether there is one.

    If there is room for all that the consumer has of the bundle, all of it moves: memory follows the CPUs.
    """
    whole = {name: amount for name, slot in sources.items() if (amount := draft.movable(consumer, slot))}
    for amounts, candidates in ((whole, targets & bundle.targets_keeping(whole)), (share, targets)):
        for target, names in bundle.targets.items():
            if (
                target in candidates
                and amounts.keys() <= names.keys()
                and all(
                    draft.accepts(consumer, Slot(target, names[name]), amount)
                    for name, amount in amounts.items()
                )
            ):
                for name, amount in sorted(amounts.items()):
                    draft.shift(consumer, Slot(bundle.source, name), amount, Slot(target, names[name]))
                return True
    return False


def _largest_first(
    draft: _Draft, sources: Mapping[str, Slot], classes: Iterable[str]
) -> list[tuple[str, dict[str, int]]]:
    """(consumer, {class: movable amount}) of those with some of these classes; ties are sorted by uuid."""
    shares = {
        consumer: {name: amount for name in classes if (amount := draft.movable(consumer, sources[name]))}
        for consumer in draft.held
    }
    return sorted(
        ((consumer, share) for consumer, share in shares.items() if share),
        key=lambda item: (-sum(item[1].values()), item[0]),
    )


# The staged tree


def moving_slots(instructions: Iterable[Instruction]) -> tuple[frozenset[Slot], frozenset[Slot]]:
    """The slots that units leave, and the slots that they come to."""
    pairs = [pair for instruction in instructions for pair in instruction.slot_pairs()]
    return frozenset(source for source, _, _ in pairs), frozenset(target for _, target, _ in pairs)


def staged_tree(
    current: ProviderTree, desired: ProviderTree, instructions: Sequence[Instruction], *, reserve: bool
) -> ProviderTree:
    """`desired`, with the slots that exchange units as in `current`, and with the providers that have them.

    `reserve`: as much is reserved on a source as it no longer offers after the reshape, and on a target that
    is there already as is desired there.
    """
    leaving, coming = moving_slots(instructions)
    providers = {provider.uuid: provider for provider in desired}
    # A source that is not desired, and its ancestors, stay as long as they have the inventory to move.
    for instruction in instructions:
        source = instruction.source
        for provider in (current[source], *current.ancestors(source)) if source in current else ():
            if provider.uuid not in providers:
                providers[provider.uuid] = replace(provider, inventories={})
    for slot in leaving | coming:
        now, wanted = inventory_at(current, slot), inventory_at(desired, slot)
        if now is not None and reserve and slot in leaving:
            left = wanted.total - wanted.reserved if wanted else 0
            now = replace(now, reserved=max(now.reserved, min(now.total, now.total - left)))
        elif now is not None and reserve and wanted is not None:
            now = replace(now, reserved=min(now.total, wanted.reserved))
        providers[slot.provider] = providers[slot.provider].with_inventory(slot.resource_class, now)
    return ProviderTree(providers.values())


def without_sources(
    desired: ProviderTree, described: Mapping[str, Iterable[str]], moves: Iterable[MoveInstruction]
) -> ProviderTree:
    """`desired` without the classes that an instruction moves away from their provider.

    `described` {provider name: classes} is what the driver describes; a class that it describes stays.
    """
    for move in moves:
        source = desired.by_name(move.from_resource_provider)
        if source is None:
            continue
        moved = set(move.moved_resources).difference(described.get(source.name, ()))
        if moved & source.inventories.keys():
            left = {name: inventory for name, inventory in source.inventories.items() if name not in moved}
            desired = desired.with_provider(replace(source, inventories=left))
    return desired
