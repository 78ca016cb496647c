"""The agent's records follow a reshape: claims and moves get their new providers and exact units. Pure.

A unit keeps its identity: a claim has the same units as before, on the provider on which the driver says
that they are. Only an amount that had no units before gets some. The records follow the request by consumer
(`relocate_records`); where that is not enough, there are two more ways.

A claim may stay behind. While a host was down, or between two of its looks, a migration may take the
allocation of a claim, and a reshape then moves what the migration holds. The receipts of the reshapes say
what became of an allocation like the claim's, and so where the place may be now (`whereabouts`).

A journal and a Placement may be from the two sides of a reshape, when one of them was restored from a copy.
Where the journal is from before the reshape, claims name providers that have lost the inventory, and
Placement has the same amounts of the same consumers where the move instructions lead from there: the
records follow (`follow_placement`). Where Placement is from before it, the reshape is due once more, and
each amount goes where its claim has it (`places_of_claims`). If it is refused now, the records go back to
where Placement has the amounts (`leads_back`).

A claim goes along with a reshape that this agent carries out, whether Placement holds it or not
(`unheld_claims`). Two kinds are left behind. Either the reshape was another agent's, as that of a copy of
this host's disk, and the allocation is deleted, so that nothing in Placement says where it went. Or the
instance was on another host at the time, and its guest came back. Such a claim names a provider that is gone
or has lost the class, and nothing would be reserved for it. So does a claim of which another client has taken
only a part. It goes where the driver's move instructions lead (`follow_inventory`): with its exact units and
what Placement still holds of it, else as a whole to a target with room, else to the one with the most room.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.claims.claim import Claim, ClaimState
from agent.driver import MoveInstruction
from agent.moves.states import Move, MoveState, claims_of
from agent.providers.resolve import uuid_of_new
from agent.reshape.claimed_units import ExactUnits, HostRecords, Places, places_of_units, used_instead
from agent.reshape.laws import Instruction, Relocation, Slot, allocations_of, inventory_at, slots_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, beyond, total
from agent.tree import ProviderTree

_WITHOUT_UNITS = frozenset({"VCPU"})
"""Classes whose units cannot be told apart: a dedicated CPU that becomes shared is no exact unit any more."""


@dataclass(frozen=True, slots=True)
class RelocatedRecords:
    """The claims and the moves that a reshape changed, as they are afterwards."""

    claims: tuple[Claim, ...]
    moves: tuple[Move, ...]


def relocate_records(
    relocations: Iterable[Relocation],
    claims: Mapping[str, Claim],
    moves: Mapping[str, Move],
    exact: ExactUnits,
) -> RelocatedRecords:
    """Apply the relocations to the claims, by consumer, and to the moves under way, by migration."""
    by_consumer: dict[str, list[Relocation]] = {}
    for relocation in relocations:
        by_consumer.setdefault(relocation.consumer, []).append(relocation)
    instead = used_instead(claims, exact.guests, moves)
    relocated = {
        consumer: _relocate_claim(claims[consumer], shifts, instead.get(consumer, {}), exact)
        for consumer, shifts in by_consumer.items()
        if consumer in claims
    }
    taken = {(name, unit) for claim in {**claims, **relocated}.values() for _, name, unit in claim.exact}
    relocated = {
        consumer: _with_free_units(claim, exact, taken) if claim != claims[consumer] else claim
        for consumer, claim in relocated.items()
    }
    relocated_moves = []
    for move in moves.values():
        if move.ended or not {move.instance, move.migration} & by_consumer.keys():
            continue
        # The migration's relocations change the old allocation, the instance's the new one.
        of_migration = by_consumer.get(move.migration, [])
        of_instance = by_consumer.get(move.instance, [])
        old, new = move.old, move.new
        if of_migration:
            old = _follow(old, relocated.get(move.migration), of_migration, exact)
        if new is not None and of_instance:
            new = _follow(new, relocated.get(move.instance), of_instance, exact)
        followed = replace(move, old=old, new=new, handed=relocate_allocations(move.handed, of_migration))
        relocated_moves.append(followed)
        for consumer, claim in claims_of(followed).items():
            if consumer in relocated:
                relocated[consumer] = claim
    changed = (claim for consumer, claim in relocated.items() if claim != claims[consumer])
    return RelocatedRecords(tuple(changed), tuple(relocated_moves))


def relocate_allocations(
    allocations: Allocations, relocations: Iterable[Relocation]
) -> dict[str, dict[str, int]]:
    """The allocations after these relocations of their consumer; no more moves than the source slot has."""
    slots = slots_of(allocations)
    for relocation in relocations:
        source, target = relocation.slots
        amount = min(relocation.amount, slots.get(source, 0))
        if amount:
            slots[source] -= amount
            slots[target] = slots.get(target, 0) + amount
    left = allocations_of({slot: amount for slot, amount in slots.items() if amount})
    return {uuid: dict(amounts) for uuid, amounts in left.items()}


def _follow(claim: Claim, bearer: Claim | None, relocations: list[Relocation], exact: ExactUnits) -> Claim:
    """The claim of a move, with the units of the consumer that bears it now."""
    moved = _relocate_claim(claim, relocations, {}, exact)
    return replace(moved, units=bearer.units, makings=bearer.makings) if bearer else moved


def _relocate_claim(
    claim: Claim, relocations: list[Relocation], instead: Mapping[str, str], exact: ExactUnits
) -> Claim:
    before = slots_of(claim.allocations)
    if not any(relocation.slots[0] in before for relocation in relocations):
        return claim
    allocations = relocate_allocations(claim.allocations, relocations)
    units: dict[Slot, list[str]] = {}
    for uuid, classes in claim.units.items():
        for name, names in classes.items():
            slot = Slot(uuid, name)
            left: Counter[Slot] = Counter()
            for relocation in relocations:
                if relocation.slots[0] == slot:
                    left[relocation.slots[1]] += relocation.amount
            present = [instead.get(unit, unit) for unit in names] if left else list(names)
            staying = max(0, len(present) - left.total())
            if staying:
                left[slot] = staying
            for unit, place in _places(present, slot, left, exact):
                if place.resource_class not in _WITHOUT_UNITS:
                    units.setdefault(place, []).append(unit)
    chosen: dict[str, dict[str, tuple[str, ...]]] = {}
    for place, exact_units in units.items():
        chosen.setdefault(place.provider, {})[place.resource_class] = tuple(exact_units)
    kept = {unit for classes in chosen.values() for names in classes.values() for unit in names}
    makings = {unit: making for unit, making in claim.makings.items() if unit in kept}
    return replace(claim, allocations=allocations, units=chosen, makings=makings)


def _places(
    units: list[str], slot: Slot, amounts: Counter[Slot], exact: ExactUnits
) -> list[tuple[str, Slot]]:
    """(unit, its slot): where the driver says that it is, within the `amounts` that went to each slot.

    The driver does not say where a unit is that no provider offers any more, or that an undone reshape has
    put back: such a unit goes with the amount.
    """
    places, left = [], []
    for unit in units:
        place = next((each for each, amount in amounts.items() if amount and exact.is_in(unit, each)), None)
        if place is None:
            left.append(unit)
        else:
            amounts[place] -= 1
            places.append((unit, place))
    for unit in left:
        place = next((each for each, amount in amounts.items() if amount > 0), slot)
        amounts[place] -= 1
        places.append((unit, place))
    return places


def _with_free_units(claim: Claim, exact: ExactUnits, taken: set[tuple[str, str]]) -> Claim:
    """The claim with units for the amounts that had none, those that its guest uses first.

    The units are those that no claim has (`taken`, which then has these) and no other guest uses.
    """
    users = {(unit.resource_class, unit.unit): guest.uuid for guest in exact.guests for unit in guest.units}
    units = {uuid: dict(classes) for uuid, classes in claim.units.items()}
    for slot, amount in slots_of(claim.allocations).items():
        name = slot.resource_class
        present = units.get(slot.provider, {}).get(name, ())
        if len(present) >= amount or not exact.has(slot):
            continue
        free = [
            unit
            for unit in exact.offered[slot.provider][name]
            if (name, unit) not in taken and users.get((name, unit), claim.consumer) == claim.consumer
        ]
        free.sort(key=lambda unit: (name, unit) not in users)
        added = tuple(free[: amount - len(present)])
        taken.update((name, unit) for unit in added)
        if present or added:
            units.setdefault(slot.provider, {})[name] = (*present, *added)
    return replace(claim, units=units)


# Claims that a reshape passed by


@dataclass(frozen=True, slots=True)
class Passage:
    """What one reshape did with one allocation; `after` is the whole allocation of its consumer afterwards.

    The relocations name no consumer: they apply to every place that was just such an allocation.
    """

    relocations: tuple[Relocation, ...]
    after: Allocations

    def leads_from(self, allocations: Allocations) -> bool:
        """Whether these allocations were what the reshape moved, or that and some that it did not touch.

        A migration holds nothing of what stays with its instance on shared providers.
        """
        before = slots_of(allocations)
        if not any(relocation.slots[0] in before for relocation in self.relocations):
            return False
        moved = slots_of(relocate_allocations(allocations, self.relocations))
        return moved != before and slots_of(self.after).items() <= moved.items()


def passages(receipts: Iterable[Receipt]) -> tuple[Passage, ...]:
    """What the executed reshapes did, each kind of allocation once for each reshape; the oldest first."""
    found: list[Passage] = []
    for receipt in receipts:
        by_consumer: dict[str, list[Relocation]] = {}
        for relocation in receipt.relocations:
            by_consumer.setdefault(relocation.consumer, []).append(relocation._replace(consumer=""))
        kinds: dict[str, Passage] = {}
        for consumer, relocations in by_consumer.items():
            passage = Passage(tuple(relocations), receipt.allocations.get(consumer, {}))
            kinds.setdefault(repr((passage.relocations, sorted(slots_of(passage.after).items()))), passage)
        found += kinds.values()
    return tuple(found)


def whereabouts(
    place: Claim, known: Iterable[Passage], claims: Mapping[str, Claim], exact: ExactUnits
) -> tuple[Claim, ...]:
    """The place as it is recorded, and then as it is wherever one of the passages may have led it.

    `claims` are all claims of the host, whose exact units the place does not get.
    """
    found = [place]
    for passage in known:
        for each in tuple(found):
            if passage.leads_from(each.allocations):
                relocations = [shift._replace(consumer=place.consumer) for shift in passage.relocations]
                records = relocate_records(relocations, {**claims, place.consumer: each}, {}, exact)
                moved = next((claim for claim in records.claims if claim.consumer == place.consumer), each)
                if all(moved.allocations != other.allocations for other in found):
                    found.append(moved)
    return tuple(found)


# A journal or a Placement that was restored from a copy


Flows = Counter[tuple[Slot, Slot]]
"""{(slot before the reshape, slot after it): amount}"""


def leads_of(
    moves: Iterable[MoveInstruction], root_uuid: str, *trees: ProviderTree
) -> tuple[Instruction, ...]:
    """The instructions by uuid, also from providers that are in none of the trees any more."""

    def uuid_of(name: str) -> str:
        found = next(filter(None, (tree.by_name(name) for tree in trees)), None)
        return found.uuid if found is not None else uuid_of_new(root_uuid, name)

    return tuple(
        Instruction(move, uuid_of(move.from_resource_provider), uuid_of(move.to_resource_provider))
        for move in moves
    )


def leads_back(leads: Iterable[Instruction]) -> tuple[Instruction, ...]:
    """The ways from the targets of the instructions to the sources, where only one leads back.

    None changes a class. So each exact unit is known again at the source.
    """
    ways: dict[Slot, set[str]] = {}
    for instruction in leads:
        for source, target, _ in instruction.slot_pairs():
            if source != target and source.resource_class == target.resource_class:
                ways.setdefault(target, set()).add(source.provider)
    return tuple(
        Instruction(MoveInstruction(slot.provider, {slot.resource_class: 1}, to), slot.provider, to)
        for slot, (to, *others) in ways.items()
        if not others
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
    located = places_of_units(records, leads) if lagging else {}
    found: list[Relocation] = []
    for consumer, allocations in sorted(lagging.items()):
        flows = _flows(records.claims[consumer].allocations, allocations, located.get(consumer, {}), leads)
        if flows and all(
            _is_evident(consumer, source, target, amount, located.get(consumer, {}), leads, current)
            for (source, target), amount in flows.items()
        ):
            found += [
                Relocation.between(consumer, source, target, amount)
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


def unheld_claims(
    records: HostRecords,
    held: Mapping[str, Allocations],
    instructions: Sequence[Instruction],
    strangers: Collection[str] = (),
) -> dict[str, Allocations]:
    """{consumer: what its claim has in slots of the instructions, and Placement does not hold for it}

    Another client deleted the allocation, or gave it to another host while the guest stayed. Such a claim
    follows the inventory that moves, as if it were held. Not so that of a consumer which holds as much
    elsewhere: then Placement and the record are from the two sides of a reshape; nor one that is not granted
    yet; nor one whose place may be held by one of the `strangers`, which may be migrations without a claim.
    `held` {consumer: its allocation on the providers of the instructions, at least}.
    """
    slots = {slot for instruction in instructions for pair in instruction.slot_pairs() for slot in pair[:2]}
    ends = {slot.provider for slot in slots}
    partners = {
        consumer: {move.instance, move.migration}
        for move in records.moves.values()
        if not move.ended
        for consumer in (move.instance, move.migration)
    }
    partners |= {instance: {instance, migration} for instance, migration in records.away.items() if migration}
    guests = {guest.uuid for guest in records.exact.guests}
    taken: dict[str, Counter[Slot]] = {}  # {instance or migration: what of its row's lack is one claim's}
    places = [
        {slot: amount for slot, amount in slots_of(held.get(who, {})).items() if slot in slots}
        for who in strangers
    ]
    unheld: dict[str, Allocations] = {}
    for consumer, claim in sorted(records.claims.items()):
        stays = claim.state is ClaimState.RELEASING and partners.get(consumer, {consumer}) & guests
        if records.away.get(consumer) == "" or not (claim.state is ClaimState.CLAIMED or stays):
            continue
        row = sorted(partners.get(consumer, {consumer}))
        columns = [records.claims[who].allocations for who in row if who in records.claims]
        lack = Counter(slots_of(beyond(total(columns), total(held.get(who, {}) for who in row))))
        lack -= taken.setdefault(row[0], Counter())
        mine = {
            slot: min(amount, lack[slot])
            for slot, amount in slots_of(beyond(claim.allocations, held.get(consumer, {}))).items()
            if slot in slots and lack[slot] > 0
        }
        here, there = (
            {uuid: amounts for uuid, amounts in each.items() if uuid in ends}
            for each in (claim.allocations, held.get(consumer, {}))
        )
        if (
            not mine
            or mine in places
            or _flows(here, there, {}, instructions)
            or _flows(there, here, {}, instructions)
        ):
            continue
        taken[row[0]].update(mine)
        unheld[consumer] = allocations_of(mine)
    return unheld


def claims_of_migrations(
    records: HostRecords,
    held: Mapping[str, Allocations],
    instructions: Sequence[Instruction],
    strangers: Collection[str],
) -> dict[str, Claim]:
    """{consumer that holds a claim's place, or a part of it, unknown to this host: that claim}

    The claim's record follows it. It is a migration that this host does not know yet; or the instance of a
    known one, where another host has reverted that move, and this host has not looked since. One of the
    `strangers` is taken for a migration where it alone holds what the claim has in slots of the instructions,
    and no other claim has just that without holding it.
    """
    slots = {slot for instruction in instructions for pair in instruction.slot_pairs() for slot in pair[:2]}
    found = {who: records.claims[at] for at, who in records.away.items() if who and at in records.claims}
    found |= {
        move.instance: records.claims[migration]
        for migration, move in records.moves.items()
        if migration in records.claims and migration not in held and move.instance not in records.claims
    }
    places: dict[str, tuple[list[str], list[Claim]]] = {}
    for who in strangers:
        part = sorted(each for each in slots_of(held.get(who, {})).items() if each[0] in slots)
        places.setdefault(str(part), ([], []))[0].append(who)
    for consumer, claim in records.claims.items():
        lack = slots_of(beyond(claim.allocations, held.get(consumer, {})))
        part = sorted(each for each in lack.items() if each[0] in slots)
        if part and str(part) in places:
            places[str(part)][1].append(claim)
    for holders, claims in places.values():
        if len(holders) == len(claims) == 1:
            found.setdefault(holders[0], claims[0])
    return found


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
    _add_rest(flows, leaving, coming, targets)
    return Flows() if any(leaving.values()) or any(coming.values()) else flows


def _add_rest(
    flows: Flows, leaving: dict[Slot, int], coming: Counter[Slot], targets: Mapping[Slot, Collection[Slot]]
) -> None:
    """Let what is left of each slot go to its targets, as far as it came there; the fewest targets first."""
    for source in sorted(targets, key=lambda slot: (len(targets[slot]), slot)):
        for target in sorted(targets[source]):
            amount = min(leaving[source], coming[target])
            if amount > 0:
                flows[source, target] += amount
                leaving[source] -= amount
                coming[target] -= amount


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


# Claims that a reshape left behind


Ways = Mapping[Slot, Mapping[str, Slot]]
"""{slot that has lost its inventory: {provider to which the instructions lead from it: the slot there}}"""


def follow_inventory(
    records: HostRecords, held: Mapping[str, Allocations], leads: Sequence[Instruction], current: ProviderTree
) -> tuple[Relocation, ...]:
    """Where the claims go that name slots without inventory, and of which Placement holds a part or nothing.

    What Placement holds where the instructions lead is what is left of the claim there. Of a consumer that
    holds anything else as well, the claim stays. `held` {consumer: its allocation on this host}; `current` is
    Placement's tree. Not so the claims of moves under way, nor those of instances on other hosts: there a
    migration may hold the place.
    """
    moving = {
        who for move in records.moves.values() if not move.ended for who in (move.instance, move.migration)
    }
    left_behind: dict[str, tuple[Ways, Counter[Slot]]] = {}
    for consumer, claim in records.claims.items():
        if claim.state is not ClaimState.CLAIMED or consumer in moving or consumer in records.away:
            continue
        arrived = Counter(slots_of(beyond(held.get(consumer, {}), claim.allocations)))
        ways = _ways(claim, leads, current, arrived)
        if ways:
            left_behind[consumer] = ways, arrived
    if not left_behind:
        return ()
    used: Counter[Slot] = Counter()
    for consumer in records.claims.keys() | held.keys():
        claimed = records.claims[consumer].allocations if consumer in records.claims else {}
        used += Counter(slots_of(claimed)) | Counter(slots_of(held.get(consumer, {})))
    found: list[Relocation] = []
    for consumer, (ways, arrived) in sorted(left_behind.items()):
        flows = _flows_by_ways(records.claims[consumer], ways, arrived, used, records.exact, current)
        for (source, target), amount in sorted(flows.items()):
            used[target] += amount
            found.append(Relocation.between(consumer, source, target, amount))
        if flows:
            used -= arrived  # it was counted already
    return tuple(found)


def _ways(
    claim: Claim, leads: Sequence[Instruction], current: ProviderTree, arrived: Collection[Slot]
) -> Ways:
    """Where the instructions lead from the claim's slots without inventory.

    On each provider by the class of what has `arrived` there if the claim has none of that, else by the same
    class if possible.
    """
    ways: dict[Slot, dict[str, Slot]] = {}
    before = slots_of(claim.allocations)
    changed = {
        each for each in arrived if each.resource_class not in {slot.resource_class for slot in before}
    }
    for slot in before:
        if inventory_at(current, slot) is not None:
            continue
        reached = [each for each in _targets(slot, leads) if inventory_at(current, each) is not None]
        for target in sorted(
            reached,
            key=lambda each: (each in changed, each.resource_class == slot.resource_class, each),
        ):
            ways.setdefault(slot, {})[target.provider] = target
    return ways


def _flows_by_ways(
    claim: Claim,
    ways: Ways,
    arrived: Counter[Slot],
    used: Counter[Slot],
    exact: ExactUnits,
    current: ProviderTree,
) -> Flows:
    """{(slot without inventory, slot to which the claim's amount goes): amount}

    Empty where not all that has `arrived` can be of this claim.
    """
    flows = Flows()
    left = {slot: amount for slot, amount in slots_of(claim.allocations).items() if slot in ways}
    missing = Counter(arrived)
    for provider, name, unit in claim.exact:
        source = Slot(provider, name)
        target = next((each for each in ways.get(source, {}).values() if exact.is_in(unit, each)), None)
        if target is not None:
            flows[source, target] += 1
            left[source] -= 1
            missing[target] -= 1
    _add_rest(flows, left, missing, {slot: ways[slot].values() for slot in left})
    if +missing:
        return Flows()
    preferred = {target.provider for _, target in flows}
    for uuid in sorted({slot.provider for slot in left}):
        rest = {slot: amount for slot, amount in left.items() if slot.provider == uuid and amount > 0}
        for slot, target in _whole(rest, ways, preferred, used, current).items():
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
        least = 0
        for slot, amount in rest.items():
            target = ways[slot][uuid]
            inventory = inventory_at(current, target)
            least = min(least, (inventory.capacity if inventory else 0) - used[target] - amount)
        return least

    common = set.intersection(*(set(ways[slot]) for slot in rest)) if rest else set()
    if not common:
        return {}
    chosen = min(common, key=lambda uuid: (uuid not in preferred, -spare(uuid), uuid))
    return {slot: ways[slot][chosen] for slot in rest}
