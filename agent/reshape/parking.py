"""Parked units: allocated units whose device is gone stay on their provider when the rest moves. Pure.

A driver reports them by an instruction from a provider to itself: these consumers use so many of the units
that were counted there, and none of them is on the targets of the other instructions. As long as the targets
do not take up all units that were counted, the allocation is parked: it stays, the source goes on offering
exactly that much, which is in use, and the operator is told. Beyond that the agent cannot know whose device
is gone, so the consumer is placed like any other that no instruction names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.driver import MoveInstruction
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.types import Instruction, Slot, inventory_at, resolve_instructions, total_at
from agent.shapes import Held
from agent.tree import ProviderTree


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
    instructions = resolve_instructions(
        [move for move in others if _has_source(move, current, desired)], current, desired
    )
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
                desired = _offer_parked(desired, current, parked_slot, total)
                resource_class = parked_slot.resource_class
                consumers = {consumer: {resource_class: amount} for consumer, amount in amounts.items()}
                parked.append(MoveInstruction(source, {resource_class: total}, source, consumers))
                addition = OwnedProvider(classes=frozenset({resource_class}))
                owned[parked_slot.provider] = owned.get(parked_slot.provider, OwnedProvider()) | addition
            notices.extend(_notice(source, name, consumer, amount) for consumer, amount in shares.items())
    return Parking(desired, (*others, *parked), OwnedProviders(owned), tuple(notices))


def _has_source(move: MoveInstruction, *trees: ProviderTree) -> bool:
    return any(tree.by_name(move.from_resource_provider) for tree in trees)


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
        for consumer in shares.keys() - named:
            amount = held[slot.provider][consumer].get(name, 0)
            if amount:
                parked.setdefault(Slot(slot.provider, name), {})[consumer] = amount
    return parked


def _offer_parked(desired: ProviderTree, current: ProviderTree, slot: Slot, total: int) -> ProviderTree:
    """`desired` offering exactly `total` in the slot, without an allocation ratio: all of it is in use."""
    now, provider = inventory_at(current, slot), desired[slot.provider]
    if now is None:
        return desired
    inventory = replace(now, total=total, reserved=0, allocation_ratio=1.0)
    inventories = {**provider.inventories, slot.resource_class: inventory}
    return desired.with_provider(replace(provider, inventories=inventories))


def _notice(provider: str, resource_class: str, consumer: str, amount: int) -> str:
    return (
        f"Consumer {consumer} holds {amount} {resource_class} of {provider} whose device is not there: it is "
        "parked, and no other consumer gets it. Bring the device back, or release the consumer."
    )
