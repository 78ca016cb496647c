"""How the agent's own records follow a reshape: claims and moves get their new providers and units. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.states import Move, claims_of
from agent.reshape.types import Relocation, Slot, allocations_of, slots_of
from agent.shapes import Allocations, Units


@dataclass(frozen=True, slots=True)
class ExactUnits:
    """What exact units there are: `offered` {provider uuid: {class: (unit, ...)}}, and who uses which."""

    offered: Units
    guests: Collection[Guest]


@dataclass(frozen=True, slots=True)
class Followed:
    """The records as they are after the reshape, only those that changed."""

    claims: tuple[Claim, ...]
    moves: tuple[Move, ...]


def follow(
    relocations: Iterable[Relocation],
    claims: Mapping[str, Claim],
    moves: Mapping[str, Move],
    exact: ExactUnits,
) -> Followed:
    """`claims` {consumer: claim} and `moves` {migration: move} as they are before; ended moves stay."""
    by_consumer: dict[str, list[Relocation]] = {}
    for each in relocations:
        by_consumer.setdefault(each.consumer, []).append(each)
    pool = _Pool(exact, [claim for who, claim in claims.items() if who not in by_consumer])
    followed = {
        who: _followed(claims[who], shifts, pool) for who, shifts in by_consumer.items() if who in claims
    }
    carried = []
    for move in moves.values():
        if move.ended or not {move.instance, move.migration} & by_consumer.keys():
            continue
        after = _carried(move, by_consumer, followed, pool)
        carried.append(after)
        for consumer, claim in claims_of(after).items():
            if consumer in followed:
                followed[consumer] = claim
    changed = tuple(claim for who, claim in followed.items() if claim != claims[who])
    return Followed(changed, tuple(carried))


def shifted(allocations: Allocations, relocations: Iterable[Relocation]) -> dict[str, dict[str, int]]:
    """What was held, after these relocations of its consumer; never more than was there moves."""
    slots = slots_of(allocations)
    for each in relocations:
        source, target = each.slots
        amount = min(each.amount, slots.get(source, 0))
        if amount:
            slots[source] -= amount
            slots[target] = slots.get(target, 0) + amount
    left = allocations_of({slot: amount for slot, amount in slots.items() if amount})
    return {uuid: dict(amounts) for uuid, amounts in left.items()}


def _carried(
    move: Move, shifts: Mapping[str, list[Relocation]], followed: Mapping[str, Claim], pool: "_Pool"
) -> Move:
    """The migration's shifts are of the old allocation, the instance's of the new one."""
    mine, theirs = shifts.get(move.migration, []), shifts.get(move.instance, [])
    old, new = move.old, move.new
    if mine:
        claim = followed.get(move.migration)
        units = claim.units if claim else pool.units_for(old, shifted(old.allocations, mine))
        old = replace(old, allocations=shifted(old.allocations, mine), units=units)
    if new is not None and theirs:
        claim = followed.get(move.instance)
        units = claim.units if claim else pool.units_for(new, shifted(new.allocations, theirs))
        new = replace(new, allocations=shifted(new.allocations, theirs), units=units)
    return replace(move, old=old, new=new, handed=shifted(move.handed, mine))


def _followed(claim: Claim, shifts: list[Relocation], pool: "_Pool") -> Claim:
    allocations = shifted(claim.allocations, shifts)
    if allocations == claim.allocations:
        return claim
    return replace(claim, allocations=allocations, units=pool.units_for(claim, allocations))


class _Pool:
    """The exact units that nobody else has."""

    def __init__(self, exact: ExactUnits, others: Iterable[Claim]) -> None:
        self._offered = exact.offered
        self._used = {
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
        """So many units on each slot as it holds, where there are any: what the guest has in its hands, then
        what the claim had, then the next free ones."""
        had = {unit for classes in claim.units.values() for units in classes.values() for unit in units}
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for slot, amount in slots_of(allocations).items():
            offered = self._offered.get(slot.provider, {}).get(slot.resource_class, ())
            kept = claim.units.get(slot.provider, {}).get(slot.resource_class, ())
            order = self._preferred(claim.consumer, slot, offered, had) if offered else kept
            chosen = tuple(order)[:amount]
            self._taken.update((slot, unit) for unit in chosen)
            if chosen:
                found.setdefault(slot.provider, {})[slot.resource_class] = chosen
        return found

    def _preferred(
        self, consumer: str, slot: Slot, offered: Collection[str], had: Collection[str]
    ) -> Iterator[str]:
        free = [
            unit
            for unit in offered
            if (slot, unit) not in self._taken
            and self._used.get((slot.resource_class, unit), consumer) == consumer
        ]
        mine = [unit for unit in free if (slot.resource_class, unit) in self._used]
        yield from mine
        yield from (unit for unit in free if unit in had and unit not in mine)
        yield from (unit for unit in free if unit not in had and unit not in mine)
