"""Which move instructions are due: those that Placement does not show as carried out yet. Pure.

A driver repeats its instructions as long as it likes, so an instruction that Placement already follows is
dropped, as are those classes of an instruction that have moved before.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.driver import MoveInstruction
from agent.reshape.claimed_units import Places, slots_left
from agent.reshape.laws import exchanges_of
from agent.reshape.types import Instruction, Slot, inventory_at, resolve_instructions, total_at
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
    claimed: Collection[str],
    current: ProviderTree,
    desired: ProviderTree,
) -> tuple[Instruction, ...]:
    """Leave the `claimed` consumers out where a class is to change and the target gains nothing.

    The target's units were there when these claims were made. A guest that uses another class than its claim
    has differs from the claim, but its units have not moved.
    """
    kept = []
    for instruction in instructions:
        unmoved = {
            source.resource_class
            for source, target, _ in instruction.slot_pairs()
            if source.resource_class != target.resource_class
            and inventory_at(current, target) is not None
            and total_at(desired, target) <= total_at(current, target)
        }
        consumers = instruction.move.consumers
        if unmoved and consumers:
            consumers = {
                consumer: {
                    name: amount
                    for name, amount in shares.items()
                    if consumer not in claimed or name not in unmoved
                }
                for consumer, shares in consumers.items()
            }
            consumers = {consumer: shares for consumer, shares in consumers.items() if shares}
        kept.append(replace(instruction, move=replace(instruction.move, consumers=consumers)))
    return tuple(kept)


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
    growing = _growing_groups(exchanges, current, desired)
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
            restricted.append(replace(instruction, move=_restrict(instruction.move, names)))
    return tuple(restricted)


def _growing_groups(exchanges: Mapping[Slot, int], current: ProviderTree, desired: ProviderTree) -> set[int]:
    """The groups of slots that exchange units, of which some slots grow and the sum does not.

    Where the sum grows, the units are new, and a slot that shrinks has not given them away.
    """
    growing: set[int] = set()
    sums: Counter[int] = Counter()
    for slot, group in exchanges.items():
        growth = total_at(desired, slot) - total_at(current, slot)
        sums[group] += growth
        if growth > 0:
            growing.add(group)
    return {group for group in growing if sums[group] <= 0}


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


def _restrict(move: MoveInstruction, names: Sequence[str]) -> MoveInstruction:
    consumers = move.consumers
    if consumers is not None:
        shares = {consumer: _only(amounts, names) for consumer, amounts in consumers.items()}
        consumers = {consumer: amounts for consumer, amounts in shares.items() if amounts}
    return replace(
        move,
        moved_resources=_only(move.moved_resources, names),
        consumers=consumers,
        becomes={name: new_name for name, new_name in move.becomes.items() if name in names},
    )


def _only(amounts: Amounts, names: Collection[str]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name in names}


def still_held(instructions: Iterable[Instruction], held: Held) -> tuple[Instruction, ...]:
    """The instructions of a receipt, naming only the consumers that still hold their share on the source."""
    restricted = []
    for instruction in instructions:
        holders = held.get(instruction.source, {})
        consumers = {
            consumer: shares
            for consumer, shares in (instruction.move.consumers or {}).items()
            if all(holders.get(consumer, {}).get(name, 0) >= amount for name, amount in shares.items())
        }
        restricted.append(replace(instruction, move=replace(instruction.move, consumers=consumers)))
    return tuple(restricted)


@dataclass(frozen=True, slots=True)
class _GuestUse:
    """What a guest uses of one source, as the driver describes it."""

    guest: str
    amounts: Amounts


def with_stand_ins(
    instructions: Sequence[Instruction], held: Mapping[str, Allocations], migrations: Collection[str]
) -> tuple[Instruction, ...]:
    """The instructions with each guest that is moving away replaced by its migration.

    Nova's migrations hold the source allocation while a guest moves, and the guest then holds nothing on
    these providers. A migration is recognized by its allocation, which equals the guest's use. `held` has the
    whole allocation of each consumer, `migrations` the uuids of those consumers that are migrations.
    """
    named = {consumer for instruction in instructions for consumer in (instruction.move.consumers or {})}
    stand_ins: dict[tuple[str, str], str] = {}
    for source in sorted({instruction.source for instruction in instructions}):
        free = sorted(set(migrations) - named)
        for use in _guest_uses(instructions, source):
            if held.get(use.guest, {}).get(source):
                continue
            matches = [
                migration
                for migration in free
                if _only(held[migration].get(source, {}), use.amounts.keys()) == use.amounts
            ]
            if matches:
                stand_ins[source, use.guest] = matches[0]
                free.remove(matches[0])
    return tuple(_replace_guests(instruction, stand_ins) for instruction in instructions)


def _replace_guests(instruction: Instruction, stand_ins: Mapping[tuple[str, str], str]) -> Instruction:
    """`stand_ins` is {(source provider, guest): migration}."""
    if not instruction.move.consumers:
        return instruction
    consumers = {
        stand_ins.get((instruction.source, consumer), consumer): shares
        for consumer, shares in instruction.move.consumers.items()
    }
    return replace(instruction, move=replace(instruction.move, consumers=consumers))


def _guest_uses(instructions: Sequence[Instruction], source: str) -> list[_GuestUse]:
    uses: dict[str, Counter[str]] = {}
    for instruction in instructions:
        if instruction.source == source:
            for guest, shares in (instruction.move.consumers or {}).items():
                uses.setdefault(guest, Counter()).update(shares)
    return [_GuestUse(guest, dict(uses[guest])) for guest in sorted(uses)]
