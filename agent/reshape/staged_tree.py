"""The tree before a reshape: everything as desired, except the inventory that the reshape moves. Pure.

A reshape divides a pass. The pass first writes the *staged* tree: new providers exist, still empty, and the
slots that exchange units are as Placement has them. Then one atomic request moves the units. Then the pass
removes what is left over, mostly providers without inventory. While the reshape cannot be carried out, the
tree stays staged and the inventory to move is reserved, so that no scheduler allocates it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.driver import MoveInstruction
from agent.reshape.types import Instruction, Slot, inventory_at
from agent.tree import Inventory, Provider, ProviderTree


def moving_slots(instructions: Iterable[Instruction]) -> tuple[frozenset[Slot], frozenset[Slot]]:
    """The slots that units leave, and the slots that they come to."""
    pairs = [pair for instruction in instructions for pair in instruction.slot_pairs()]
    return frozenset(source for source, _, _ in pairs), frozenset(target for _, target, _ in pairs)


def staged_tree(
    current: ProviderTree, desired: ProviderTree, instructions: Sequence[Instruction], *, reserve: bool
) -> ProviderTree:
    """`desired`, with the slots that exchange units as in `current`, and with the providers that have them.

    `reserve`: what is to leave a source is reserved there.
    """
    leaving, coming = moving_slots(instructions)
    providers = {provider.uuid: provider for provider in desired}
    for instruction in instructions:
        _add_emptied(providers, current, instruction.source)
    for slot in leaving | coming:
        provider = providers[slot.provider]
        inventories = dict(provider.inventories)
        now = inventory_at(current, slot)
        if now is None:
            inventories.pop(slot.resource_class, None)
        elif reserve and slot in leaving:
            inventories[slot.resource_class] = _reserve_leaving(now, inventory_at(desired, slot))
        else:
            inventories[slot.resource_class] = now
        providers[slot.provider] = replace(provider, inventories=inventories)
    return ProviderTree(providers.values())


def _add_emptied(providers: dict[str, Provider], current: ProviderTree, uuid: str) -> None:
    """Add the provider and its ancestors, without inventory, where `providers` lacks them."""
    for provider in (current[uuid], *current.ancestors(uuid)) if uuid in current else ():
        if provider.uuid not in providers:
            providers[provider.uuid] = replace(provider, inventories={})


def _reserve_leaving(now: Inventory, wanted: Inventory | None) -> Inventory:
    """`now`, with as much reserved as is no longer offered after the reshape."""
    left = wanted.total - wanted.reserved if wanted else 0
    return replace(now, reserved=max(now.reserved, min(now.total, now.total - left)))


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
