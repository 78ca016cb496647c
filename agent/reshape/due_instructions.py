"""Which move instructions Placement does not show as carried out yet, and which units are parked. Pure.

A driver repeats its instructions as long as it likes, so an instruction that Placement already follows is
dropped, as are those classes of an instruction that have moved before.

Parked units are allocated units whose device is gone: they stay on their provider when the rest moves. A
driver reports them by an instruction from a provider to itself: these consumers use so many of the units
that were counted there, and none of them is on the targets of the other instructions. As long as the
targets do not take up all units that were counted, the allocation is parked: it stays, the source goes on
offering exactly that much, which is in use, and the operator is told. Beyond that the agent cannot know
whose device is gone, so the consumer is placed like any other that no instruction names.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.claims.claim import Claim
from agent.driver import MoveInstruction
from agent.errors import by_force
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.claimed_units import Places, slots_left
from agent.reshape.laws import Instruction, Slot, exchanges_of, inventory_at, resolve_instructions, total_at
from agent.shapes import Allocations, Amounts, Held
from agent.tree import ProviderTree


def known_instructions(
    moves: Iterable[MoveInstruction], current: ProviderTree, desired: ProviderTree
) -> tuple[Instruction, ...]:
    """The moves by uuid, without those whose source is in neither tree: there is nothing to move.

    Raises ReshapeRefused for a target that is not in the desired tree.
    """
    known = [
        move
        for move in moves
        if not move.stays or move.consumers
        if desired.by_name(move.from_resource_provider) or current.by_name(move.from_resource_provider)
    ]
    return resolve_instructions(known, current, desired)


def without_claimed_changes(
    instructions: Iterable[Instruction],
    claims: Mapping[str, Claim],
    current: ProviderTree,
    desired: ProviderTree,
) -> tuple[Instruction, ...]:
    """Leave consumers with claims out where a class is to change and the host gains nothing of the new one.

    The host's units were there when these claims were made. A guest that uses another class than its claim
    has differs from the claim, but its units have not moved. Nor have they where the claim has exact units of
    the new class already, as many as the guest uses: those are the guest's, and no others become such.
    """
    exact = {consumer: Counter(name for _, name, _ in claim.exact) for consumer, claim in claims.items()}
    kept = []
    for instruction in instructions:
        unmoved = {
            source.resource_class
            for source, target, _ in instruction.slot_pairs()
            if source.resource_class != target.resource_class
            and (now := _totals(current, target.resource_class))
            and _totals(desired, target.resource_class) <= now
        }
        named = {(consumer, name) for consumer in claims for name in unmoved}
        named |= {
            (consumer, name)
            for name, new_name in instruction.move.becomes.items()
            for consumer, shares in (instruction.move.consumers or {}).items()
            if consumer in exact and exact[consumer][new_name] >= shares.get(name, 0)
        }
        kept.append(instruction.without_shares(named))
    return tuple(kept)


def _totals(tree: ProviderTree, resource_class: str) -> int:
    """What the whole host has of the class, wherever a reshape moves it."""
    return sum(total_at(tree, Slot(provider.uuid, resource_class)) for provider in tree)


def due_instructions(
    instructions: Sequence[Instruction],
    current: ProviderTree,
    desired: ProviderTree,
    held: Held,
    located: Mapping[str, Places] | None = None,
) -> tuple[Instruction, ...]:
    """The instructions that are not carried out yet, without the classes that have moved.

    A class is due where Placement still has it on the source and the driver has none there, or less while a
    target waits for it. It is also due where a consumer that the instruction names has its whole allocation
    on the source and none on the target, or where a claimed unit has gone to the target: `located` has the
    places of the claims' units. `held` has the allocations on both ends.
    """
    exchanges = exchanges_of(instructions)
    # The groups of slots of which some grow and the sum does not. Where the sum grows, the units are new, and
    # a slot that shrinks has not given them away.
    growing: set[int] = set()
    sums: Counter[int] = Counter()
    for slot, group in exchanges.items():
        growth = total_at(desired, slot) - total_at(current, slot)
        sums[group] += growth
        if growth > 0:
            growing.add(group)
    growing -= {group for group in growing if sums[group] > 0}
    due = {
        source
        for instruction in instructions
        for source, target, _ in instruction.slot_pairs()
        if source != target
        and (
            _has_surplus(source, current, desired, awaited=exchanges[source] in growing)
            or _has_consumer_to_move(instruction, source, target, current, held)
        )
    }
    for instruction in instructions:
        due |= slots_left(instruction, located or {}, held)
    # Units may go round in a circle: a group of slots moves as a whole.
    groups = {exchanges[slot] for slot in due}
    due |= {slot for slot, group in exchanges.items() if group in groups and inventory_at(current, slot)}
    restricted = []
    for instruction in instructions:
        names = [source.resource_class for source, _, _ in instruction.slot_pairs() if source in due]
        if names:
            move = instruction.move
            consumers = move.consumers
            if consumers is not None:
                shares = {consumer: _only(amounts, names) for consumer, amounts in consumers.items()}
                consumers = {consumer: amounts for consumer, amounts in shares.items() if amounts}
            restricted.append(
                replace(
                    instruction,
                    move=replace(
                        move,
                        moved_resources=_only(move.moved_resources, names),
                        consumers=consumers,
                        becomes={name: new_name for name, new_name in move.becomes.items() if name in names},
                    ),
                )
            )
    return tuple(restricted)


def _has_surplus(source: Slot, current: ProviderTree, desired: ProviderTree, *, awaited: bool) -> bool:
    """Whether the driver has nothing left in the slot, or less while the units are `awaited` elsewhere."""
    now, wanted = inventory_at(current, source), inventory_at(desired, source)
    if now is None:
        return False
    return wanted is None or (awaited and wanted.total < now.total)


def _has_consumer_to_move(
    instruction: Instruction, source: Slot, target: Slot, current: ProviderTree, held: Held
) -> bool:
    """Whether a consumer that uses the target has an allocation in the source slot only."""
    at_source, at_target = held.get(source.provider, {}), held.get(target.provider, {})
    return inventory_at(current, source) is not None and any(
        shares.get(source.resource_class, 0)
        and at_source.get(consumer, {}).get(source.resource_class, 0)
        and not at_target.get(consumer, {}).get(target.resource_class, 0)
        for consumer, shares in (instruction.move.consumers or {}).items()
    )


def _only(amounts: Amounts, names: Container[str]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def still_held(
    instructions: Iterable[Instruction], held: Mapping[str, Allocations]
) -> tuple[Instruction, ...]:
    """The instructions of a receipt, naming only the consumers that still have their share on the source.

    `held` {consumer: what it holds on the sources, with what its claim has there}.
    """
    restricted = []
    for instruction in instructions:
        consumers = {
            consumer: shares
            for consumer, shares in (instruction.move.consumers or {}).items()
            if all(
                held.get(consumer, {}).get(instruction.source, {}).get(name, 0) >= amount
                for name, amount in shares.items()
            )
        }
        restricted.append(instruction.naming(consumers))
    return tuple(restricted)


def with_stand_ins(
    instructions: Sequence[Instruction],
    held: Mapping[str, Allocations],
    migrations: Collection[str],
    departed: Mapping[str, Collection[str]],
) -> tuple[Instruction, ...]:
    """The instructions with each guest that is moving away replaced by its migration.

    Nova's migrations hold the source allocation while a guest moves, and the guest then holds nothing on
    these providers. A migration is recognized by its allocation, which equals the guest's use. `held` has the
    whole allocation of each consumer, `migrations` the uuids of those consumers that are migrations. One that
    may be that of an instance on another host, `departed` {instance: such consumers}, is no other guest's.
    """
    named = {consumer for instruction in instructions for consumer in (instruction.move.consumers or {})}
    stand_ins: dict[tuple[str, str], str] = {}  # {(source provider, guest): migration}
    for source in sorted({instruction.source for instruction in instructions}):
        uses: dict[str, Counter[str]] = {}
        for instruction in instructions:
            if instruction.source == source:
                for guest, shares in (instruction.move.consumers or {}).items():
                    uses.setdefault(guest, Counter()).update(shares)
        free = sorted(set(migrations) - named)
        for guest, use in sorted(uses.items()):
            if held.get(guest, {}).get(source):
                continue
            others = {each for instance in departed.keys() - {guest} for each in departed[instance]}
            matches = [
                migration
                for migration in free
                if migration not in others.difference(departed.get(guest, ()))
                and _only(held[migration].get(source, {}), use) == dict(use)
            ]
            if matches:
                stand_ins[source, guest] = matches[0]
                free.remove(matches[0])
    return tuple(
        instruction.naming(
            {
                stand_ins.get((instruction.source, consumer), consumer): shares
                for consumer, shares in instruction.move.consumers.items()
            }
        )
        if instruction.move.consumers
        else instruction
        for instruction in instructions
    )


# Parked units


@dataclass(frozen=True, slots=True)
class Parking:
    """`tree` is the desired tree with the parked units, `owned` what the agent owns of those.

    `moves` are the driver's, of which those from a provider to itself name exactly what is parked. `notices`
    has a sentence for each parked consumer.
    """

    tree: ProviderTree
    moves: tuple[MoveInstruction, ...]
    owned: OwnedProviders = field(default_factory=OwnedProviders)
    notices: tuple[str, ...] = ()


def park_units(
    moves: Sequence[MoveInstruction],
    described: Mapping[str, Iterable[str]],
    current: ProviderTree,
    desired: ProviderTree,
    held: Held,
) -> Parking:
    """Park the units whose device is gone.

    `described` {provider name: classes} is what the driver still has on each provider; nothing of those is
    parked. `held` has the allocations on the sources.
    """
    others = tuple(move for move in moves if not move.stays)
    staying = [
        move
        for move in moves
        if move.stays and move.consumers and move.from_resource_provider in described
        if current.by_name(move.from_resource_provider)
    ]
    instructions = known_instructions(others, current, desired)
    parked: list[MoveInstruction] = []
    owned: dict[str, OwnedProvider] = {}
    notices: list[str] = []
    for move in staying:
        source = move.from_resource_provider
        provider = desired.by_name(source)
        for name in move.moved_resources:
            if provider is None or name in described[source]:
                continue
            slot = Slot(provider.uuid, name)
            shares = _parked_shares(slot, move, instructions, current, desired, held)
            for parked_slot, amounts in _with_companions(slot, shares, instructions, held).items():
                total = sum(amounts.values())
                resource_class, now = parked_slot.resource_class, inventory_at(current, parked_slot)
                if now is not None:
                    # Exactly the total is offered, without an allocation ratio: all of it is in use.
                    offered = replace(now, total=total, reserved=0, allocation_ratio=1.0)
                    parking = desired[parked_slot.provider].with_inventory(resource_class, offered)
                    desired = desired.with_provider(parking)
                consumers = {consumer: {resource_class: amount} for consumer, amount in amounts.items()}
                parked.append(MoveInstruction(source, {resource_class: total}, source, consumers))
                addition = OwnedProvider(classes=frozenset({resource_class}))
                owned[parked_slot.provider] = owned.get(parked_slot.provider, OwnedProvider()) | addition
            notices.extend(
                (
                    f"Consumer {consumer} holds {amount} {name} of {source} whose device is not there: it is "
                    "parked, and no other consumer gets it. Bring the device back, or release the consumer "
                    f"{by_force(consumer)}."
                )
                for consumer, amount in shares.items()
            )
    return Parking(desired, (*others, *parked), OwnedProviders(owned), tuple(notices))


def _parked_shares(
    slot: Slot,
    move: MoveInstruction,
    instructions: Sequence[Instruction],
    current: ProviderTree,
    desired: ProviderTree,
    held: Held,
) -> dict[str, int]:
    """{consumer: amount} to park in the slot, by uuid, as long as the units were counted there."""
    targets = {
        target
        for instruction in instructions
        for source, target, _ in instruction.slot_pairs()
        if source == slot
    }
    if inventory_at(current, slot) is None or not targets:
        return {}
    growth = sum(max(0, total_at(desired, target) - total_at(current, target)) for target in targets)
    left = total_at(current, slot) - growth
    shares: dict[str, int] = {}
    for consumer, uses in sorted((move.consumers or {}).items()):
        elsewhere = sum(
            (instruction.move.consumers or {}).get(consumer, {}).get(slot.resource_class, 0)
            for instruction in instructions
            if instruction.source == slot.provider
        )
        has = held.get(slot.provider, {}).get(consumer, {}).get(slot.resource_class, 0)
        amount = min(uses.get(slot.resource_class, 0), has - elsewhere)
        if 0 < amount <= left:
            shares[consumer] = amount
            left -= amount
    return shares


def _with_companions(
    slot: Slot, shares: Mapping[str, int], instructions: Sequence[Instruction], held: Held
) -> dict[Slot, dict[str, int]]:
    """The shares by slot, with what their consumers hold there of the classes that travel with the class."""
    if not shares:
        return {}
    travelling = {
        name
        for instruction in instructions
        if instruction.source == slot.provider and slot.resource_class in instruction.move.moved_resources
        for name in instruction.move.moved_resources
    }
    named = {
        consumer
        for instruction in instructions
        if instruction.source == slot.provider
        for consumer in (instruction.move.consumers or {})
    }
    parked = {slot: dict(shares)}
    for name in sorted(travelling - {slot.resource_class}):
        for consumer in sorted(shares.keys() - named):
            amount = held[slot.provider][consumer].get(name, 0)
            if amount:
                parked.setdefault(Slot(slot.provider, name), {})[consumer] = amount
    return parked
