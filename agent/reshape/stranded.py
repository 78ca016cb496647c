"""Claims that a reshape left behind, and for which Placement holds nothing there any more. Pure.

A claim goes along with a reshape that this agent carries out, whether Placement holds it or not (`plan`).
Two kinds stay behind: the reshape was another agent's, as that of a copy of this host's disk, and the
allocation is deleted, so that nothing in Placement says where it went (`relocate.follow_placement`); or the
instance was on another host at the time, and its guest came back. Such a claim names a provider that is gone
or has lost the class, and nothing would be reserved for it. It goes where the driver's move instructions
lead: with its exact units, else as a whole to a target with room, else to the target with the most room.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from agent.claims.claim import Claim, ClaimState
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.laws import Instruction, Relocation, Slot, inventory_at, slots_of
from agent.reshape.relocate import targets_of
from agent.shapes import Allocations, beyond
from agent.tree import ProviderTree

Ways = Mapping[Slot, Mapping[str, Slot]]
"""{slot that has lost its inventory: {provider to which the instructions lead from it: the slot there}}"""


def follow_inventory(
    records: HostRecords, held: Mapping[str, Allocations], leads: Sequence[Instruction], current: ProviderTree
) -> tuple[Relocation, ...]:
    """Where the claims go that name slots without inventory, and of which Placement holds nothing elsewhere.

    `held` {consumer: its allocation on this host}; `current` is Placement's tree. Not so the claims of moves
    under way, nor those of instances on other hosts: there a migration may hold the place.
    """
    moving = {
        who for move in records.moves.values() if not move.ended for who in (move.instance, move.migration)
    }
    stranded: dict[str, Ways] = {}
    for consumer, claim in records.claims.items():
        if claim.state is not ClaimState.CLAIMED or consumer in moving or consumer in records.away:
            continue
        ways = _ways(claim, leads, current)
        if ways and not beyond(held.get(consumer, {}), claim.allocations):
            stranded[consumer] = ways
    if not stranded:
        return ()
    used: Counter[Slot] = Counter()
    for consumer in records.claims.keys() | held.keys():
        claimed = records.claims[consumer].allocations if consumer in records.claims else {}
        used += Counter(slots_of(claimed)) | Counter(slots_of(held.get(consumer, {})))
    found: list[Relocation] = []
    for consumer, ways in sorted(stranded.items()):
        flows = _flows(records.claims[consumer], ways, used, records.exact, current)
        for (source, target), amount in sorted(flows.items()):
            used[target] += amount
            found.append(
                Relocation(
                    consumer,
                    source.resource_class,
                    amount,
                    source.provider,
                    target.provider,
                    target.resource_class,
                )
            )
    return tuple(found)


def _ways(claim: Claim, leads: Sequence[Instruction], current: ProviderTree) -> Ways:
    """Where the instructions lead from the claim's slots without inventory, by the same class if possible."""
    ways: dict[Slot, dict[str, Slot]] = {}
    for slot in slots_of(claim.allocations):
        if inventory_at(current, slot) is not None:
            continue
        reached = [each for each in targets_of(slot, leads) if inventory_at(current, each) is not None]
        for target in sorted(reached, key=lambda each: each.resource_class == slot.resource_class):
            ways.setdefault(slot, {})[target.provider] = target
    return ways


def _flows(
    claim: Claim, ways: Ways, used: Counter[Slot], exact: ExactUnits, current: ProviderTree
) -> Counter[tuple[Slot, Slot]]:
    """{(slot without inventory, slot to which the claim's amount goes): amount}"""
    flows: Counter[tuple[Slot, Slot]] = Counter()
    left = {slot: amount for slot, amount in slots_of(claim.allocations).items() if slot in ways}
    for provider, name, unit in claim.exact:
        source = Slot(provider, name)
        target = next((each for each in ways.get(source, {}).values() if exact.is_in(unit, each)), None)
        if target is not None:
            flows[source, target] += 1
            left[source] -= 1
    with_units = {target.provider for _, target in flows}
    for uuid in sorted({slot.provider for slot in left}):
        rest = {slot: amount for slot, amount in left.items() if slot.provider == uuid and amount > 0}
        for slot, target in _whole(rest, ways, with_units, used, current).items():
            flows[slot, target] += rest[slot]
    return flows


def _whole(
    rest: Mapping[Slot, int],
    ways: Ways,
    preferred: Collection[str],
    used: Counter[Slot],
    current: ProviderTree,
) -> dict[Slot, Slot]:
    """{slot: its target}, all on one provider: a preferred one, else one with room, else the roomiest."""

    def spare(uuid: str) -> int:
        rooms = [_capacity(current, ways[slot][uuid]) - used[ways[slot][uuid]] - rest[slot] for slot in rest]
        return min(0, *rooms) if rooms else 0

    common = set.intersection(*(set(ways[slot]) for slot in rest)) if rest else set()
    if not common:
        return {}
    chosen = min(common, key=lambda uuid: (uuid not in preferred, -spare(uuid), uuid))
    return {slot: ways[slot][chosen] for slot in rest}


def _capacity(tree: ProviderTree, slot: Slot) -> int:
    inventory = inventory_at(tree, slot)
    return inventory.capacity if inventory else 0
