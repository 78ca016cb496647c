"""The agent's records after a reshape: claims and moves with their new providers and exact units. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.states import Move, claims_of
from agent.reshape.types import Relocation, Slot, allocations_of, slots_of
from agent.shapes import Allocations, Units


@dataclass(frozen=True, slots=True)
class ExactUnits:
    """The exact units that the driver offers, and the guests that use some of them."""

    offered: Units
    guests: Collection[Guest]


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
    pool = _FreeUnits(exact, [claim for consumer, claim in claims.items() if consumer not in by_consumer])
    relocated_claims = {
        consumer: _relocate_claim(claims[consumer], shifts, pool)
        for consumer, shifts in by_consumer.items()
        if consumer in claims
    }
    relocated_moves = []
    for move in moves.values():
        if move.ended or not {move.instance, move.migration} & by_consumer.keys():
            continue
        relocated = _relocate_move(move, by_consumer, relocated_claims, pool)
        relocated_moves.append(relocated)
        for consumer, claim in claims_of(relocated).items():
            if consumer in relocated_claims:
                relocated_claims[consumer] = claim
    changed = (claim for consumer, claim in relocated_claims.items() if claim != claims[consumer])
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


def _relocate_move(
    move: Move,
    relocations: Mapping[str, list[Relocation]],
    claims: Mapping[str, Claim],
    pool: "_FreeUnits",
) -> Move:
    """The migration's relocations change the old allocation, the instance's the new one."""
    of_migration = relocations.get(move.migration, [])
    of_instance = relocations.get(move.instance, [])
    old, new = move.old, move.new
    if of_migration:
        allocations = relocate_allocations(old.allocations, of_migration)
        claim = claims.get(move.migration)
        units = claim.units if claim else pool.units_for(old, allocations)
        old = replace(old, allocations=allocations, units=units)
    if new is not None and of_instance:
        allocations = relocate_allocations(new.allocations, of_instance)
        claim = claims.get(move.instance)
        units = claim.units if claim else pool.units_for(new, allocations)
        new = replace(new, allocations=allocations, units=units)
    return replace(move, old=old, new=new, handed=relocate_allocations(move.handed, of_migration))


def _relocate_claim(claim: Claim, relocations: list[Relocation], pool: "_FreeUnits") -> Claim:
    allocations = relocate_allocations(claim.allocations, relocations)
    if allocations == claim.allocations:
        return claim
    return replace(claim, allocations=allocations, units=pool.units_for(claim, allocations))


class _FreeUnits:
    """The exact units that no other claim has and no other guest uses."""

    def __init__(self, exact: ExactUnits, others: Iterable[Claim]) -> None:
        self._offered = exact.offered
        self._users = {
            (unit.resource_class, unit.unit): guest.uuid for guest in exact.guests for unit in guest.units
        }
        self._taken = {
            (Slot(uuid, name), unit)
            for claim in others
            for uuid, classes in claim.units.items()
            for name, units in classes.items()
            for unit in units
        }

    def units_for(self, claim: Claim, allocations: Allocations) -> Units:
        """As many units in each slot as are allocated there, if the slot has exact units.

        Units that the guest uses come first, then those that the claim had, then other free ones.
        """
        former = {unit for classes in claim.units.values() for units in classes.values() for unit in units}
        chosen: dict[str, dict[str, tuple[str, ...]]] = {}
        for slot, amount in slots_of(allocations).items():
            offered = self._offered.get(slot.provider, {}).get(slot.resource_class, ())
            present = claim.units.get(slot.provider, {}).get(slot.resource_class, ())
            order = self._in_order(claim.consumer, slot, offered, former) if offered else present
            units = tuple(order)[:amount]
            self._taken.update((slot, unit) for unit in units)
            if units:
                chosen.setdefault(slot.provider, {})[slot.resource_class] = units
        return chosen

    def _in_order(
        self, consumer: str, slot: Slot, offered: Collection[str], former: Collection[str]
    ) -> Iterator[str]:
        free = [
            unit
            for unit in offered
            if (slot, unit) not in self._taken
            and self._users.get((slot.resource_class, unit), consumer) == consumer
        ]
        used = [unit for unit in free if (slot.resource_class, unit) in self._users]
        yield from used
        yield from (unit for unit in free if unit in former and unit not in used)
        yield from (unit for unit in free if unit not in former and unit not in used)
