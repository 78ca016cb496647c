"""The agent's records after a reshape: claims and moves with their new providers and exact units. Pure.

A unit keeps its identity: a claim has the same units as before, on the provider on which the driver says that
they are. Only an amount that had no units before gets some.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.claims.claim import Claim
from agent.moves.states import Move, claims_of
from agent.reshape.claimed_units import ExactUnits, used_instead
from agent.reshape.types import Relocation, Slot, allocations_of, slots_of
from agent.shapes import Allocations, Units

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
    pool = _FreeUnits(exact, {**claims, **relocated}.values())
    relocated = {
        consumer: pool.complete(claim) if claim != claims[consumer] else claim
        for consumer, claim in relocated.items()
    }
    relocated_moves = []
    for move in moves.values():
        if move.ended or not {move.instance, move.migration} & by_consumer.keys():
            continue
        followed = _relocate_move(move, by_consumer, relocated, exact)
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


def _relocate_move(
    move: Move,
    relocations: Mapping[str, list[Relocation]],
    claims: Mapping[str, Claim],
    exact: ExactUnits,
) -> Move:
    """The migration's relocations change the old allocation, the instance's the new one."""
    of_migration = relocations.get(move.migration, [])
    of_instance = relocations.get(move.instance, [])
    old, new = move.old, move.new
    if of_migration:
        old = _follow(old, claims.get(move.migration), of_migration, exact)
    if new is not None and of_instance:
        new = _follow(new, claims.get(move.instance), of_instance, exact)
    return replace(move, old=old, new=new, handed=relocate_allocations(move.handed, of_migration))


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
    chosen = _nested(units)
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


def _nested(units: Mapping[Slot, list[str]]) -> Units:
    nested: dict[str, dict[str, tuple[str, ...]]] = {}
    for slot, names in units.items():
        nested.setdefault(slot.provider, {})[slot.resource_class] = tuple(names)
    return nested


class _FreeUnits:
    """The exact units that no claim has and no guest of another consumer uses."""

    def __init__(self, exact: ExactUnits, claims: Iterable[Claim]) -> None:
        self._exact = exact
        self._users = {
            (unit.resource_class, unit.unit): guest.uuid for guest in exact.guests for unit in guest.units
        }
        self._taken = {(name, unit) for claim in claims for _, name, unit in claim.exact}

    def complete(self, claim: Claim) -> Claim:
        """The claim with units for the amounts that had none, those that its guest uses first."""
        units = {uuid: dict(classes) for uuid, classes in claim.units.items()}
        for slot, amount in slots_of(claim.allocations).items():
            name = slot.resource_class
            present = units.get(slot.provider, {}).get(name, ())
            if len(present) >= amount or not self._exact.has(slot):
                continue
            free = [
                unit
                for unit in self._exact.offered[slot.provider][name]
                if (name, unit) not in self._taken
                and self._users.get((name, unit), claim.consumer) == claim.consumer
            ]
            free.sort(key=lambda unit: (name, unit) not in self._users)
            added = tuple(free[: amount - len(present)])
            self._taken.update((name, unit) for unit in added)
            if present or added:
                units.setdefault(slot.provider, {})[name] = (*present, *added)
        return replace(claim, units=units)
