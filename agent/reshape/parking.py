"""What stays where it is though the rest moves: units that no device has any more. Pure.

A driver says so by an instruction from a provider to itself: these consumers use so much of what was counted
there, and it is on none of the providers that the rest goes to. Their devices were counted there, too; so as
long as the others do not take up all that was counted, what they hold is parked: it stays, the source goes on
offering just that much, which nobody else can get, and it is said. Beyond that nobody knows whose units are
whose, and they are placed as any consumer is of whom nothing is known.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.driver import MoveInstruction
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.types import Instruction, Slot, instructions, inventory_at, total_at
from agent.shapes import Held
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class Parking:
    """The tree to reach, with what is parked; the moves, of which those of a provider to itself say just what
    is parked; what of it is the agent's to take away again; and a sentence for each consumer.
    """

    tree: ProviderTree
    moves: tuple[MoveInstruction, ...]
    owned: OwnedProviders = field(default_factory=OwnedProviders)
    told: tuple[str, ...] = ()


def parked(
    moves: Sequence[MoveInstruction],
    described: Mapping[str, Iterable[str]],
    current: ProviderTree,
    desired: ProviderTree,
    held: Held,
) -> Parking:
    """`described` {provider name: classes} is what the driver still has there: of that nothing is parked."""
    others = tuple(move for move in moves if not move.stays)
    staying = [
        move
        for move in moves
        if move.stays and move.consumers and move.from_resource_provider in described
        if current.by_name(move.from_resource_provider)
    ]
    told = instructions([move for move in others if _known(move, current, desired)], current, desired)
    found: list[MoveInstruction] = []
    owned: dict[str, OwnedProvider] = {}
    sentences: list[str] = []
    for move in staying:
        source = move.from_resource_provider
        provider = desired.by_name(source)
        for name in move.moved_resources:
            if provider is None or name in described[source]:
                continue
            slot = Slot(provider.uuid, name)
            shares = _shares(slot, move, told, current, desired, held)
            for companion, amounts in _with_companions(slot, shares, told, held).items():
                total = sum(amounts.values())
                desired = _offering(desired, current, companion, total)
                found.append(
                    MoveInstruction(
                        source, {companion.resource_class: total}, source, _by_class(companion, amounts)
                    )
                )
                ours = OwnedProvider(classes=frozenset({companion.resource_class}))
                owned[companion.provider] = owned.get(companion.provider, OwnedProvider()) | ours
            sentences.extend(_sentence(source, name, who, amount) for who, amount in shares.items())
    return Parking(desired, (*others, *found), OwnedProviders(owned), tuple(sentences))


def _known(move: MoveInstruction, *trees: ProviderTree) -> bool:
    return any(tree.by_name(move.from_resource_provider) for tree in trees)


def _shares(
    slot: Slot,
    move: MoveInstruction,
    told: Sequence[Instruction],
    current: ProviderTree,
    desired: ProviderTree,
    held: Held,
) -> dict[str, int]:
    """{consumer: amount} of what is parked in the slot, by uuid, as long as it was counted there."""
    pairs = [pair for each in told for pair in each.pairs() if pair[0] == slot]
    if inventory_at(current, slot) is None or not pairs:
        return {}
    grown = sum(
        max(0, total_at(desired, target) - total_at(current, target))
        for target in {pair[1] for pair in pairs}
    )
    left = total_at(current, slot) - grown
    found: dict[str, int] = {}
    for consumer, uses in sorted((move.consumers or {}).items()):
        elsewhere = sum(
            (each.move.consumers or {}).get(consumer, {}).get(slot.resource_class, 0)
            for each in told
            if each.source == slot.provider
        )
        has = held.get(slot.provider, {}).get(consumer, {}).get(slot.resource_class, 0)
        amount = min(uses.get(slot.resource_class, 0), has - elsewhere)
        if 0 < amount <= left:
            found[consumer] = amount
            left -= amount
    return found


def _with_companions(
    slot: Slot, shares: Mapping[str, int], told: Sequence[Instruction], held: Held
) -> dict[Slot, dict[str, int]]:
    """The shares by slot, with all that their consumers hold there of what travels with the class."""
    if not shares:
        return {}
    travelling = {
        name
        for each in told
        if each.source == slot.provider and slot.resource_class in each.move.moved_resources
        for name in each.move.moved_resources
    }
    placed = {who for each in told if each.source == slot.provider for who in (each.move.consumers or {})}
    found = {slot: dict(shares)}
    for name in sorted(travelling - {slot.resource_class}):
        for consumer in shares.keys() - placed:
            amount = held[slot.provider][consumer].get(name, 0)
            if amount:
                found.setdefault(Slot(slot.provider, name), {})[consumer] = amount
    return found


def _by_class(slot: Slot, amounts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {who: {slot.resource_class: amount} for who, amount in amounts.items()}


def _offering(desired: ProviderTree, current: ProviderTree, slot: Slot, total: int) -> ProviderTree:
    """Just so much, without a ratio: all of it is in use."""
    now, provider = inventory_at(current, slot), desired[slot.provider]
    if now is None:
        return desired
    inventory = replace(now, total=total, reserved=0, allocation_ratio=1.0)
    inventories = {**provider.inventories, slot.resource_class: inventory}
    return desired.with_provider(replace(provider, inventories=inventories))


def _sentence(provider: str, resource_class: str, consumer: str, amount: int) -> str:
    return (
        f"Consumer {consumer} holds {amount} {resource_class} of {provider} whose device is not there: that "
        "is parked, nobody else gets it. Bring the device back, or release the consumer."
    )
