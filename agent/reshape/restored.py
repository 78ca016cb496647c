"""A journal and a Placement from the two sides of a reshape: one of them was restored from a copy. Pure.

Where the journal is from before the reshape, claims name providers that have lost the inventory, and
Placement has the same amounts of the same consumers where the move instructions lead from there: the records
follow. Where Placement is from before it, the reshape is due once more, and each amount goes where its claim
has it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.claims.claim import ClaimState
from agent.driver import MoveInstruction
from agent.moves.states import MoveState
from agent.providers.resolve import uuid_of_new
from agent.reshape.claimed_units import HostRecords, Places, locate_units
from agent.reshape.types import Instruction, Relocation, Slot, inventory_at, slots_of
from agent.shapes import Allocations
from agent.tree import ProviderTree

Flows = Counter[tuple[Slot, Slot]]
"""{(slot before the reshape, slot after it): amount}"""


def leads_of(
    moves: Iterable[MoveInstruction], root_uuid: str, *trees: ProviderTree
) -> tuple[Instruction, ...]:
    """The instructions by uuid, also from providers that are in none of the trees any more."""

    def uuid_of(name: str) -> str:
        found = (tree.by_name(name) for tree in trees)
        return next((each.uuid for each in found if each is not None), uuid_of_new(root_uuid, name))

    return tuple(
        Instruction(move, uuid_of(move.from_resource_provider), uuid_of(move.to_resource_provider))
        for move in moves
    )


def follow_placement(
    records: HostRecords, held: Mapping[str, Allocations], leads: Sequence[Instruction], current: ProviderTree
) -> tuple[Relocation, ...]:
    """Where the claims of a journal from before a reshape are now; none for a claim that is up to date.

    `held` {consumer: its allocation on this host, with the pools that it shares in}; `current` is Placement's
    tree. A claim follows as a whole or not at all: Placement has the same amounts of its consumer, each exact
    unit is where the driver has it, and any other amount has left a slot without inventory, or the driver
    names the consumer in the instruction. Anything else is no reshape, and a finding of the audit.
    """
    moving = {
        consumer: move.state
        for move in records.moves.values()
        if not move.ended
        for consumer in (move.instance, move.migration)
    }
    lagging = {
        consumer: allocations
        for consumer, allocations in held.items()
        if consumer in records.claims
        and records.claims[consumer].state is ClaimState.CLAIMED
        and moving.get(consumer, MoveState.BEGUN) is MoveState.BEGUN
        and slots_of(records.claims[consumer].allocations) != slots_of(allocations)
    }
    located = locate_units(records, leads) if lagging else {}
    found: list[Relocation] = []
    for consumer, allocations in sorted(lagging.items()):
        flows = _flows(records.claims[consumer].allocations, allocations, located.get(consumer, {}), leads)
        if flows and all(
            _is_evident(consumer, source, target, amount, located.get(consumer, {}), leads, current)
            for (source, target), amount in flows.items()
        ):
            found += [
                Relocation(
                    consumer,
                    source.resource_class,
                    amount,
                    source.provider,
                    target.provider,
                    target.resource_class,
                )
                for (source, target), amount in sorted(flows.items())
            ]
    return tuple(found)


def places_of_claims(
    records: HostRecords, held: Mapping[str, Allocations], instructions: Sequence[Instruction]
) -> dict[str, Places]:
    """{consumer: places} of the allocations that a reshape is to move, and whose claims are moved already.

    `held` {consumer: its allocation on the providers of the instructions, at least}.
    """
    ends = {uuid for instruction in instructions for uuid in (instruction.source, instruction.target)}
    places: dict[str, Places] = {}
    for consumer, allocations in held.items():
        claim = records.claims.get(consumer)
        if claim is None:
            continue
        before, after = (
            {uuid: amounts for uuid, amounts in each.items() if uuid in ends}
            for each in (allocations, claim.allocations)
        )
        mine: dict[Slot, dict[Slot | None, int]] = {}
        for (source, target), amount in _flows(before, after, {}, instructions).items():
            mine.setdefault(source, {})[target] = amount
        if mine:
            places[consumer] = mine
    return places


def _flows(
    before: Allocations, after: Allocations, located: Places, instructions: Sequence[Instruction]
) -> Flows:
    """What went from where to where, so that `before` became `after`; empty if that was no reshape.

    `located` says where the exact units of slots are; of the rest, the amounts with the fewest targets first.
    """
    leaving, coming = Counter(slots_of(before)), Counter(slots_of(after))
    leaving, coming = leaving - coming, coming - leaving
    if leaving.total() != coming.total():
        return Flows()
    flows = Flows(
        {
            (slot, place): amount
            for slot, now in located.items()
            for place, amount in now.items()
            if place is not None and place != slot
        }
    )
    targets = {source: _targets(source, instructions) for source in leaving}
    for (source, target), amount in flows.items():
        leaving[source] -= amount
        coming[target] -= amount
    for source in sorted(targets, key=lambda slot: (len(targets[slot]), slot)):
        for target in sorted(targets[source]):
            amount = min(leaving[source], coming[target])
            if amount > 0:
                flows[source, target] += amount
                leaving[source] -= amount
                coming[target] -= amount
    return Flows() if any(leaving.values()) or any(coming.values()) else flows


def _targets(source: Slot, instructions: Sequence[Instruction]) -> set[Slot]:
    """The slots to which the instructions lead from this one, one after the other."""
    reached, open_slots = {source}, [source]
    pairs = [pair[:2] for instruction in instructions for pair in instruction.slot_pairs()]
    while open_slots:
        slot = open_slots.pop()
        new = {target for start, target in pairs if start == slot} - reached
        reached |= new
        open_slots += new
    return reached - {source}


def _is_evident(
    consumer: str,
    source: Slot,
    target: Slot,
    amount: int,
    located: Places,
    leads: Sequence[Instruction],
    current: ProviderTree,
) -> bool:
    """Whether the amount cannot be in the source slot any more, or the driver has it in the target."""
    return (
        located.get(source, {}).get(target) == amount
        or inventory_at(current, source) is None
        or any(
            (move.consumers or {}).get(consumer, {}).get(source.resource_class, 0) >= amount
            for move, pairs in ((each.move, each.slot_pairs()) for each in leads)
            if (source, target) in [pair[:2] for pair in pairs]
        )
    )
