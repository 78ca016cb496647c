"""Where the exact units and the cells that claims name are now: the amounts of a claim follow them. Pure.

A claim was told which units it has, and its guest may not run yet, so the driver cannot know whose they
are. The agent knows: a unit goes to the provider on which the driver says that it is now, for an instance
and for a migration alike. What a driver says of the guests of such claims is replaced by what the claims
say.

CPUs and memory that move to NUMA cells have no exact units. A driver knows which cells it sees a guest on;
a claim has the cells that the agent chose for the guest. Where they differ the claim is right, so that
Placement and the claim still agree after the reshape: the instructions are completed with the cells of the
claims.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.claims.claim import Claim
from agent.driver import Description, Guest, MoveInstruction
from agent.moves.states import Move, MoveKind, MoveRole
from agent.reshape.laws import CELL_CLASSES, Instruction, Relocation, Slot
from agent.shapes import Allocations, Held, Units
from agent.tree import ProviderTree

Places = Mapping[Slot, Mapping[Slot | None, int]]
"""{slot in which a claim has units: {slot in which they are now, None for nowhere: how many}}"""


@dataclass(frozen=True, slots=True)
class ClaimedPlaces:
    """What the planner knows of claims: where the units of each consumer that holds some are now.

    `adrift` {consumer: (claim, places)} are the claims whose consumers hold nothing in these slots: only the
    agent's records of them follow. `problems` refuse the reshape.
    """

    located: Mapping[str, Places] = field(default_factory=dict)
    adrift: Mapping[str, tuple[Claim, Places]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExactUnits:
    """The exact units that the driver offers, and the guests that use some of them."""

    offered: Units = field(default_factory=dict)
    guests: Collection[Guest] = ()

    def has(self, slot: Slot) -> bool:
        """Whether the units of the slot can be told apart."""
        return bool(self.offered.get(slot.provider, {}).get(slot.resource_class))

    def is_in(self, unit: str, slot: Slot) -> bool:
        """Whether the driver says that the unit is in the slot."""
        return unit in self.offered.get(slot.provider, {}).get(slot.resource_class, ())


@dataclass(frozen=True, slots=True)
class HostRecords:
    """What the agent knows of who has what: its claims by consumer, its moves by migration, and the units.

    The instances that are `away` {instance: migration} live on other hosts. Where the migration is known, it
    holds a part of the place here; what others are it may be that of another one, or hold all of it: "".
    """

    claims: Mapping[str, Claim] = field(default_factory=dict)
    moves: Mapping[str, Move] = field(default_factory=dict)
    exact: ExactUnits = field(default_factory=ExactUnits)
    away: Mapping[str, str] = field(default_factory=dict)


def name_migrations(
    instructions: Iterable[MoveInstruction], moves: Mapping[str, Move], guests: Iterable[Guest] = ()
) -> tuple[MoveInstruction, ...]:
    """The instructions with each guest that uses what its migration holds replaced by the migration.

    `moves` {migration: move} are those that the agent knows.
    """
    bearers = _bearers(moves, guests)
    return tuple(
        replace(
            instruction,
            consumers={bearers.get(name, name): shares for name, shares in instruction.consumers.items()},
        )
        if instruction.consumers and bearers.keys() & instruction.consumers.keys()
        else instruction
        for instruction in instructions
    )


def _bearers(moves: Mapping[str, Move], guests: Iterable[Guest]) -> dict[str, str]:
    """{guest: migration} of the guests that use what the migration of their move holds.

    Such a guest leaves this host, or is resized on it and still has exact units of its old claim.
    """
    used = {guest.uuid: {(unit.resource_class, unit.unit) for unit in guest.units} for guest in guests}
    bearers = {}
    for migration, move in moves.items():
        if move.ended:
            continue
        is_bearer = move.role is MoveRole.SOURCE
        if not is_bearer and move.kind is MoveKind.SAME_HOST_RESIZE and move.new is not None:
            old, new = (
                {(name, unit) for _, name, unit in claim.exact} & used.get(move.instance, set())
                for claim in (move.old, move.new)
            )
            is_bearer = bool(old - new) and not new - old
        if is_bearer:
            bearers[move.instance] = migration
    return bearers


def used_instead(
    claims: Mapping[str, Claim], guests: Iterable[Guest], moves: Mapping[str, Move]
) -> dict[str, dict[str, str]]:
    """{consumer: {claimed unit: unit that its guest uses in its place}}

    A guest that runs with other units than its claim was told is followed, unless a claim has those units.
    """
    claimed = {unit for claim in claims.values() for _, _, unit in claim.exact}
    guests = tuple(guests)
    bearers = _bearers(moves, guests)
    instead: dict[str, dict[str, str]] = {}
    for guest in guests:
        consumer = bearers.get(guest.uuid, guest.uuid)
        claim = claims.get(consumer)
        if claim is None:
            continue
        used: dict[str, list[str]] = {}
        for unit in guest.units:
            used.setdefault(unit.resource_class, []).append(unit.unit)
        for name, units in used.items():
            mine = [unit for _, other, unit in claim.exact if other == name]
            unused = [unit for unit in mine if unit not in units]
            strange = [unit for unit in units if unit not in claimed]
            instead.setdefault(consumer, {}).update(zip(unused, strange, strict=False))
    return instead


def places_of_units(
    records: HostRecords, instructions: Sequence[Instruction], back: Iterable[Instruction] = ()
) -> dict[str, Places]:
    """{consumer: places} of the units in slots that an instruction moves, where units can be told apart.

    `back` undo a reshape, against what the driver says: the receipt says where the units of their slots go.
    """
    claims, exact = records.claims, records.exact
    undone = {slot for instruction in back for pair in instruction.slot_pairs() for slot in pair[:2]}
    targets: dict[Slot, list[Slot]] = {}
    for instruction in instructions:
        for source, target, _ in instruction.slot_pairs():
            if source != target and source not in undone:
                targets.setdefault(source, []).append(target)
    known = {
        source: ends for source, ends in targets.items() if any(exact.has(slot) for slot in (source, *ends))
    }
    instead = used_instead(claims, exact.guests, records.moves)
    located: dict[str, Places] = {}
    for consumer, claim in claims.items():
        places: dict[Slot, Counter[Slot | None]] = {}
        for uuid, name, unit in claim.exact:
            slot = Slot(uuid, name)
            if slot in known:
                now = instead.get(consumer, {}).get(unit, unit)
                place = next((each for each in (slot, *known[slot]) if exact.is_in(now, each)), None)
                places.setdefault(slot, Counter())[place] += 1
        if places:
            located[consumer] = places
    return located


def without_claimed(
    instructions: Iterable[Instruction], located: Mapping[str, Places]
) -> tuple[Instruction, ...]:
    """The instructions without what the driver says of consumers whose claims say it better."""
    claimed = {(consumer, slot.resource_class) for consumer, places in located.items() for slot in places}
    return tuple(
        instruction if instruction.move.stays else instruction.without_shares(claimed)
        for instruction in instructions
    )


def with_missing(
    instructions: Iterable[MoveInstruction], located: Mapping[str, Places], tree: ProviderTree
) -> tuple[MoveInstruction, ...]:
    """The instructions with one that parks the claimed units that are nowhere, for each slot with some.

    What the driver would park for these consumers is left out: the claims know better. `tree` has the names.
    """
    missing: dict[Slot, dict[str, int]] = {}
    for consumer, places in sorted(located.items()):
        for slot, now in places.items():
            if now.get(None) and slot.provider in tree:
                missing.setdefault(slot, {})[consumer] = now[None]
    merged = []
    for instruction in instructions:
        provider = tree.by_name(instruction.from_resource_provider)
        if not instruction.stays or not instruction.consumers or provider is None:
            merged.append(instruction)
            continue
        consumers = {
            consumer: {
                name: amount
                for name, amount in shares.items()
                if Slot(provider.uuid, name) not in located.get(consumer, {})
            }
            for consumer, shares in instruction.consumers.items()
        }
        for name in instruction.moved_resources:  # what it parks already is not missing any more
            for consumer, amount in missing.pop(Slot(provider.uuid, name), {}).items():
                consumers.setdefault(consumer, {})[name] = amount
        left = {consumer: shares for consumer, shares in consumers.items() if shares}
        merged.append(replace(instruction, consumers=left))
    for slot, shares in missing.items():
        name = tree[slot.provider].name
        by_consumer = {consumer: {slot.resource_class: amount} for consumer, amount in shares.items()}
        merged.append(MoveInstruction(name, {slot.resource_class: sum(shares.values())}, name, by_consumer))
    return tuple(merged)


def slots_left(instruction: Instruction, located: Mapping[str, Places], held: Held) -> set[Slot]:
    """The source slots of the instruction from which a claimed unit has gone to its target.

    `held` has the allocations on the sources: a claim whose consumer holds nothing there makes nothing due.
    """
    return {
        source
        for source, target, _ in instruction.slot_pairs()
        if source != target
        and any(
            places.get(source, {}).get(target)
            and held.get(source.provider, {}).get(consumer, {}).get(source.resource_class)
            for consumer, places in located.items()
        )
    }


# Claims whose consumers hold nothing here


def relocations_of_record(
    claim: Claim, places: Places, instructions: Iterable[Instruction]
) -> tuple[Relocation, ...]:
    """Where a claim goes whose consumer holds nothing in these slots: its units, and what travels with them.

    Classes without exact units that an instruction moves together with the units go along in proportion.
    """
    relocations = [
        Relocation.between(claim.consumer, slot, place, amount)
        for slot, now in places.items()
        for place, amount in now.items()
        if place is not None and place != slot
    ]
    units: Counter[tuple[str, str]] = Counter()
    for relocation in relocations:
        units[relocation.source, relocation.target] += relocation.amount
    with_units = {slot.resource_class for slot in places}
    companions: dict[Slot, dict[str, str]] = {}
    for instruction in instructions:
        if (instruction.source, instruction.target) in units:
            for source, target, _ in instruction.slot_pairs():
                if source.resource_class not in with_units and not instruction.move.becomes:
                    companions.setdefault(source, {})[target.provider] = target.resource_class
    for slot, targets in sorted(companions.items()):
        amount = claim.allocations.get(slot.provider, {}).get(slot.resource_class, 0)
        shares = {target: units[slot.provider, target] for target in targets}
        parts = {target: amount * share // sum(shares.values()) for target, share in shares.items()}
        if amount and sum(parts.values()) == amount:
            relocations += [
                Relocation(claim.consumer, slot.resource_class, part, slot.provider, target, targets[target])
                for target, part in parts.items()
            ]
    return tuple(relocations)


def claimed_places(
    records: HostRecords,
    located: Mapping[str, Places],
    held: Mapping[str, Allocations],
    migrations: Collection[str],
) -> ClaimedPlaces:
    """Which consumers hold what the claims have.

    An instance that moves away holds nothing here, and its migration holds just the same: that one follows
    the units. Where a move was reverted and the agent has not learned of that, it is the other way round.
    `held` has the allocations of each consumer on the touched providers, `migrations` those consumers that
    may be migrations. Migrations that look alike are told apart only by an operator, so they refuse the
    reshape where their units go to different providers.
    """
    claims = records.claims
    adrift: dict[str, list[str]] = {}
    bearers: dict[str, Places] = {}
    names: set[str] = set()
    for consumer, places in sorted(located.items()):
        mine = held.get(consumer, {})
        if not any(mine.get(slot.provider, {}).get(slot.resource_class) for slot in places):
            names.add(consumer)
            instance = records.moves[consumer].instance if consumer in records.moves else consumer
            part = _part(claims[consumer].allocations, places)
            if instance not in claims and _part(held.get(instance, {}), places) == part:
                bearers[instance] = places
                continue
            slots = {slot.provider for slot in places}
            alike = str(sorted((uuid, sorted(claims[consumer].allocations[uuid].items())) for uuid in slots))
            adrift.setdefault(alike, []).append(consumer)
    problems = []
    for group in adrift.values():
        places = located[group[0]]
        part = _part(claims[group[0]].allocations, places)
        holders = [
            other
            for other in sorted(migrations)
            if other not in claims and _part(held.get(other, {}), places) == part
        ]
        if holders and any(located[consumer] != places for consumer in group):
            problems.append(
                f"{', '.join(group)} have moved away, and it is not certain which of {', '.join(holders)} "
                "holds whose devices, which are on different providers now: confirm or revert one of these "
                "moves with `plimsoll move confirm MIGRATION --instance UUID` (or revert)"
            )
        bearers |= dict.fromkeys(holders, places)
    holding = {consumer: places for consumer, places in located.items() if consumer not in names}
    return ClaimedPlaces(
        {**holding, **bearers},
        {consumer: (claims[consumer], located[consumer]) for consumer in sorted(names)},
        tuple(problems),
    )


def _part(allocations: Allocations, places: Places) -> Allocations:
    providers = {slot.provider for slot in places}
    return {uuid: dict(amounts) for uuid, amounts in allocations.items() if uuid in providers}


# CPUs and memory that move to NUMA cells


def name_claimed_cells(
    description: Description, claims: Mapping[str, Claim], migrations: Mapping[str, Move]
) -> Description:
    """The description, with moves to cells that name what each claim has on the cell.

    `claims` by consumer, `migrations` {migration: its move}. Where a migration holds what an instance's guest
    uses, the migration is named in place of the guest.
    """
    chosen = {consumer: claim.cells for consumer, claim in claims.items() if claim.cells}
    cells = {provider.name: provider.cell for provider in description.providers if provider.cell is not None}
    if not chosen or not cells:
        return description
    guests = {migrations[consumer].instance for consumer in chosen if consumer in migrations} - claims.keys()
    moves = []
    for move in description.moves:
        cell = cells.get(move.to_resource_provider)
        if cell is None or move.becomes or not move.moved_resources.keys() <= CELL_CLASSES:
            moves.append(move)
            continue
        consumers = {
            consumer: shares
            for consumer, shares in (move.consumers or {}).items()
            if consumer not in chosen and consumer not in guests
        }
        for consumer, placed_cells in chosen.items():
            mine = [placed for placed in placed_cells if placed.host_cell == cell]
            amounts = {
                "MEMORY_MB": sum(placed.memory_mb for placed in mine),
                "PCPU": sum(len(placed.cpus) for placed in mine),
                "VCPU": sum(len(placed.floating) for placed in mine),
            }
            shares = {
                name: amount for name, amount in amounts.items() if amount and name in move.moved_resources
            }
            if shares:
                consumers[consumer] = shares
        moves.append(replace(move, consumers=consumers))
    return replace(description, moves=tuple(moves))
