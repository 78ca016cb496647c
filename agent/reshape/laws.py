"""The laws of a reshape, checked from its content alone: no part of how it was made is trusted. Pure.

Placement proves none of this: it takes a shrink below what is used, a newcomer in the room that a consumer
was made to leave, a consumer that is cut short, and the same units listed twice.

    units      a target gains at most what the instructions bring it, and where a source goes on offering a
               class, the slots that exchange units offer together no more than before; of memory a little
               more, since no two boots of a host find the same; parts of a host that its driver divides
               anew as much as there is now
    consumers  the ones named are the ones there were; of what does not move each holds exactly what it held,
               of what moves the same sum, class for class unless the instruction changes the class
    room       nobody is left on a slot that is gone; no slot that moves is over-full, and no other becomes
               so; whoever gets something gets it within min_unit, max_unit and step_size
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.reshape.types import Instruction, Reshape, Slot, inventory_at, name_of, slots_of, total_at
from agent.shapes import Allocations
from agent.tree import ProviderTree

DRIFT = 32
"""The part of a host's memory that may come with a boot, or with another division into cells."""
OF_CELLS = ("VCPU", "PCPU", "MEMORY_MB")


def breaches(
    reshape: Reshape,
    current: ProviderTree,
    desired: ProviderTree,
    instructions: Sequence[Instruction],
    held: Mapping[str, Allocations],
    *,
    may_grow: bool = False,
) -> Iterator[str]:
    """Every law that `reshape` would break, a sentence each.

    `held` {consumer uuid: its whole allocation} of every consumer on a touched provider. `may_grow`: all of
    `instructions` is what the driver says of now, so that cells which have more together have been given it.
    """
    exchanges = exchanges_of(instructions)
    yield from _units(current, desired, instructions, exchanges, may_grow=may_grow)
    yield from _consumers(reshape, instructions, exchanges, held)
    yield from _room(reshape, current, desired, exchanges, held)


def exchanges_of(instructions: Iterable[Instruction]) -> dict[Slot, int]:
    """{slot that units leave or come to: number of the group of slots that exchange units}."""
    group: dict[Slot, int] = {}
    for number, (source, target, _) in enumerate(pair for each in instructions for pair in each.slot_pairs()):
        joined = {group[slot] for slot in (source, target) if slot in group}
        for slot, other in group.items():
            if other in joined:
                group[slot] = number
        group[source] = group[target] = number
    return group


def _units(
    current: ProviderTree,
    desired: ProviderTree,
    instructions: Sequence[Instruction],
    exchanges: Mapping[Slot, int],
    *,
    may_grow: bool,
) -> Iterator[str]:
    brought: dict[Slot, int] = defaultdict(int)
    stay: set[int] = set()
    for source, target, amount in (pair for each in instructions for pair in each.slot_pairs()):
        brought[target] += amount
        if inventory_at(desired, source) is not None:
            stay.add(exchanges[source])
    for slot, amount in brought.items():
        before, after = total_at(current, slot), total_at(desired, slot)
        if after > before + amount:
            yield (
                f"{name_of(slot.provider, desired)} would offer {after} {slot.resource_class}, "
                f"but it had {before} and {amount} moved there"
            )
    for number in sorted(stay):
        slots = [slot for slot, group in exchanges.items() if group == number]
        before = sum(total_at(current, slot) for slot in slots)
        after = sum(total_at(desired, slot) for slot in slots)
        classes = {slot.resource_class for slot in slots}
        found_more = before // DRIFT if classes == {"MEMORY_MB"} else 0
        if may_grow and _of_siblings(slots, current, desired):
            continue
        if after > before + found_more:
            where = ", ".join(f"{name_of(s.provider, desired, current)} {s.resource_class}" for s in slots)
            yield f"the same units would be offered twice: {after} where there were {before} ({where})"


def _of_siblings(slots: Sequence[Slot], *trees: ProviderTree) -> bool:
    """Whether they are one class of a host's own, and none of them the whole of which others are parts: with
    that in hand the same units would be instructions twice.
    """
    providers = [tree[slot.provider] for slot in slots for tree in trees if slot.provider in tree]
    return (
        len({slot.resource_class for slot in slots}) == 1
        and slots[0].resource_class in OF_CELLS
        and len({provider.parent for provider in providers}) == 1
        and providers[0].parent is not None
    )


def _consumers(
    reshape: Reshape,
    instructions: Sequence[Instruction],
    exchanges: Mapping[Slot, int],
    held: Mapping[str, Allocations],
) -> Iterator[str]:
    changing = {name for each in instructions for pair in each.move.becomes.items() for name in pair}
    for consumer, allocations in sorted(reshape.allocations.items()):
        if consumer not in held:
            yield f"consumer {consumer} holds nothing here and would get something"
            continue
        before, after = slots_of(held[consumer]), slots_of(allocations)
        was, would = _law(before, exchanges, changing), _law(after, exchanges, changing)
        if was != would:
            yield f"consumer {consumer} would hold {_sums(after)} where it held {_sums(before)}"


def _law(
    slots: Mapping[Slot, int], exchanges: Mapping[Slot, int], changing: set[str]
) -> dict[tuple[object, ...], int]:
    """What may not change: the amount in each group of slots and of each class, else in each slot."""
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for slot, amount in slots.items():
        if slot in exchanges:
            sums["group", exchanges[slot]] += amount
        else:
            sums["slot", slot] += amount
        if slot.resource_class not in changing:
            sums["class", slot.resource_class] += amount
    return sums


def _room(
    reshape: Reshape,
    current: ProviderTree,
    desired: ProviderTree,
    exchanges: Mapping[Slot, int],
    held: Mapping[str, Allocations],
) -> Iterator[str]:
    used_before: dict[Slot, int] = defaultdict(int)
    used: dict[Slot, int] = defaultdict(int)
    for consumer, allocations in sorted(held.items()):
        before = slots_of(allocations)
        after = slots_of(reshape.allocations.get(consumer, allocations))
        for slot, amount in before.items():
            used_before[slot] += amount
        for slot, amount in after.items():
            if slot.provider not in reshape.inventories:
                continue
            used[slot] += amount
            yield from _place(reshape, desired, current, consumer, slot, (before.get(slot, 0), amount))
    for slot, amount in sorted(used.items()):
        inventory = reshape.inventories[slot.provider].get(slot.resource_class)
        if inventory is None or amount <= inventory.capacity:
            continue
        was = inventory_at(current, slot)
        shrinks = was is None or inventory.capacity < was.capacity
        if slot in exchanges or shrinks or amount > used_before[slot]:
            yield (
                f"{name_of(slot.provider, desired, current)} would hold {amount} {slot.resource_class} "
                f"and has room for {inventory.capacity}"
            )


def _place(
    reshape: Reshape,
    desired: ProviderTree,
    current: ProviderTree,
    consumer: str,
    slot: Slot,
    amounts: tuple[int, int],
) -> Iterator[str]:
    """What is wrong with one consumer's amount, (before, after), in one slot."""
    before, after = amounts
    inventory = reshape.inventories[slot.provider].get(slot.resource_class)
    where = name_of(slot.provider, desired, current)
    if inventory is None:
        if before != after or inventory_at(current, slot) is not None:
            yield (
                f"consumer {consumer} holds {after} {slot.resource_class} of {where}, which no longer has any"
            )
    elif after > before and not (
        inventory.min_unit <= after <= inventory.max_unit and not after % inventory.step_size
    ):
        yield (
            f"consumer {consumer} would hold {after} {slot.resource_class} of {where}, which gives "
            f"{inventory.min_unit} to {inventory.max_unit} in steps of {inventory.step_size}"
        )


def _sums(slots: Mapping[Slot, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for slot, amount in slots.items():
        sums[slot.resource_class] = sums.get(slot.resource_class, 0) + amount
    return dict(sorted(sums.items()))
