"""Who owns what in a move: the arithmetic of its requests, and what is read back. Pure.

Begin hands the source allocation to the migration and gives the instance the new one; confirm takes away what
the migration holds; revert gives the instance its old allocation and takes away what the migration holds.
Resources on shared providers stay with the instance while their amount stays the same: held once, never
twice.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.moves.states import MIGRATION_TYPE, Move, MoveKind, MoveRole, MoveStep
from agent.shapes import Allocations

IsOwn = Callable[[str], bool]
"""Whether a provider is in this host's own tree."""


def migration_share(old: Allocations, new: Allocations, is_own: IsOwn) -> Allocations:
    """What the migration gets of `old`: all but what stays the same on providers outside this host's tree."""
    return _without_nothing(
        {
            uuid: {
                name: amount
                for name, amount in amounts.items()
                if is_own(uuid) or new.get(uuid, {}).get(name) != amount
            }
            for uuid, amounts in old.items()
        }
    )


class ObservedState(StrEnum):
    """Where placement says that a move is."""

    BEFORE = "before"
    """The instance has its old allocation, the migration nothing: not begun, or reverted."""
    UNDER_WAY = "under way"
    """Each holds its own, as begin wrote it."""
    AFTER = "after"
    """The instance has the new allocation, the migration nothing: confirmed."""
    NEITHER = "neither"
    """Nobody holds anything: the instance was deleted."""
    ORPHANED = "orphaned"
    """Only the migration holds something: the instance was deleted in the middle."""
    CHANGED = "changed"
    """Somebody else wrote something that no step of this move writes; the migration holds something."""
    MOVED_ON = "moved on"
    """The migration holds nothing, and the instance something that is neither old nor new."""


def observed_state(move: Move, instance: Allocations, migration: Allocations) -> ObservedState:
    """`instance` and `migration` are what placement holds for the two.

    Of a resize that changes no amount, before and after look the same; it is taken for before.
    """
    if not instance:
        return ObservedState.ORPHANED if migration else ObservedState.NEITHER
    is_new = move.new is not None and instance == move.new.allocations
    if migration:
        known = is_new if move.new is not None else instance != move.old.allocations
        return ObservedState.UNDER_WAY if known and migration == move.handed else ObservedState.CHANGED
    if instance == move.old.allocations:
        return ObservedState.BEFORE
    return ObservedState.AFTER if is_new else ObservedState.MOVED_ON


def observed_end(move: Move, instance: Allocations, migration: Allocations, is_own: IsOwn) -> MoveStep | None:
    """How the move ended, whoever ended it; None while it did not, or where that cannot be told.

    What the instance has in this host's tree decides: what it has elsewhere may have changed since. An
    instance that is at neither end has moved on after the move was confirmed.
    """
    if migration:
        return None
    if not instance:
        return MoveStep.GONE
    here = _of(instance, is_own)
    old = _of(move.old.allocations, is_own)
    if move.role is MoveRole.DESTINATION:
        return MoveStep.RESTORED if not here and instance == move.old.allocations else MoveStep.FREED
    if move.role is MoveRole.SOURCE:
        return MoveStep.RESTORED if here == old else MoveStep.FREED
    new = _of(move.new.allocations, is_own) if move.new else {}
    if old == new:
        return None
    return MoveStep.RESTORED if here == old else MoveStep.FREED


def has_moved_on(move: Move, instance: Allocations, is_own: IsOwn) -> bool:
    """Whether the instance of a move to this host, or within it, has moved on to another host since.

    Then it has arrived here before: what is left of the move is to confirm it.
    """
    if move.role is MoveRole.SOURCE or any(is_own(uuid) for uuid in instance):
        return False
    return move.kind is MoveKind.REBUILD or bool(instance)


def undecided_reason(move: Move, instance: Allocations, migration: Allocations, is_own: IsOwn) -> str | None:
    """Why a move that has begun is not ended by this host alone, though it does not go on; a clause.

    Whoever began it ends it, or an operator does: confirming frees what the migration holds.
    """
    if move.kind is MoveKind.REBUILD:
        return None
    if migration and not instance and (move.role is MoveRole.SOURCE or move.adopted):
        return "the instance holds nothing any more, and the migration still does"
    if migration and move.adopted and has_moved_on(move, instance, is_own):
        return "the instance lives on a third host by now, and the migration still holds its source"
    if not migration and instance and observed_end(move, instance, migration, is_own) is None:
        return "the migration holds nothing any more, and how it ended cannot be told"
    return None


# Linking, at the source


@dataclass(frozen=True, slots=True)
class MoveConsumer:
    """A consumer as placement shows it; `consumer_type` is empty where it is not shown."""

    consumer: str
    allocations: Allocations
    project_id: str
    user_id: str
    consumer_type: str = ""


def may_be_migration(candidate: MoveConsumer, instance: MoveConsumer) -> bool:
    """By its type, where there are types, and by whose it is: project and user are its instance's."""
    return candidate.consumer_type in ("", MIGRATION_TYPE, "unknown") and (
        candidate.project_id,
        candidate.user_id,
    ) == (instance.project_id, instance.user_id)


def has_taken_over(old: Allocations, instance: MoveConsumer, candidate: MoveConsumer, is_own: IsOwn) -> bool:
    """Whether the candidate holds just what the instance held here, and the instance lives elsewhere.

    All of `old` in this host's tree is the candidate's; of the rest, what is not the candidate's is still the
    instance's.
    """
    if not may_be_migration(candidate, instance):
        return False
    if not instance.allocations or any(is_own(uuid) for uuid in instance.allocations):
        return False
    rest = {
        uuid: {
            name: amount
            for name, amount in amounts.items()
            if candidate.allocations.get(uuid, {}).get(name) != amount
        }
        for uuid, amounts in old.items()
    }
    mine = {(uuid, name) for uuid, amounts in old.items() for name in amounts}
    theirs = {(uuid, name) for uuid, amounts in candidate.allocations.items() for name in amounts}
    return theirs <= mine and all(
        not is_own(uuid) and instance.allocations.get(uuid, {}).get(name) == amount
        for uuid, amounts in rest.items()
        for name, amount in amounts.items()
    )


def unambiguous_pairs(left: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """{instance: migration} where the two match each other and nobody else; `left` {instance: migrations}.

    Moves that look the same are left alone: which is whose is not certain.
    """
    wanted: dict[str, list[str]] = {}
    for instance, migrations in left.items():
        for migration in migrations:
            wanted.setdefault(migration, []).append(instance)
    return {
        instance: found[0]
        for instance, migrations in left.items()
        if len(found := list(migrations)) == 1 and len(wanted[found[0]]) == 1
    }


# Doubled allocations: one consumer holds source and destination at once


@dataclass(frozen=True, slots=True)
class SplitAllocations:
    """What a consumer holds: in this host's tree, on providers shared with it, and anywhere else."""

    here: Allocations
    shared: Allocations
    elsewhere: Allocations

    @property
    def doubled(self) -> bool:
        return bool(self.here and self.elsewhere)


def count_shared_once(found: SplitAllocations, resources: Mapping[str, int]) -> Allocations:
    """Of the shared providers, no more than is asked for in all, where both hosts' amounts were summed up."""
    left = {
        name: asked - sum(amounts.get(name, 0) for amounts in found.here.values())
        for name, asked in resources.items()
    }
    kept: dict[str, dict[str, int]] = {}
    for uuid, amounts in found.shared.items():
        for name, amount in amounts.items():
            once = min(amount, left.get(name, amount))
            if once > 0:
                kept.setdefault(uuid, {})[name] = once
                left[name] = left.get(name, amount) - once
    return kept


def split_allocations(held: Allocations, is_own: IsOwn, is_shared: IsOwn) -> SplitAllocations:
    """`is_shared`: whether a provider outside this host's tree serves it, by an aggregate."""
    here = {uuid: amounts for uuid, amounts in held.items() if is_own(uuid)}
    shared = {uuid: amounts for uuid, amounts in held.items() if uuid not in here and is_shared(uuid)}
    elsewhere = {uuid: amounts for uuid, amounts in held.items() if uuid not in here and uuid not in shared}
    return SplitAllocations(here, shared, elsewhere)


def separate_allocations(
    found: SplitAllocations, resources: Mapping[str, int]
) -> tuple[Allocations, Allocations]:
    """(instance's, migration's) of a doubled allocation whose destination is this host.

    `resources` is what the instance asks for at the destination.
    """
    return {**found.here, **count_shared_once(found, resources)}, found.elsewhere


def reduce_allocations(
    found: SplitAllocations, *, runs_here: bool, resources: Mapping[str, int] | None = None
) -> Allocations:
    """What is left of a doubled allocation where the instance really runs.

    `resources` is what it asked for here, where that is known: then what is shared is charged once.
    """
    if not runs_here:
        return {**found.elsewhere, **found.shared}
    return {**found.here, **(found.shared if resources is None else count_shared_once(found, resources))}


def _of(allocations: Allocations, is_own: IsOwn) -> Allocations:
    return {uuid: amounts for uuid, amounts in allocations.items() if is_own(uuid)}


def _without_nothing(allocations: Allocations) -> Allocations:
    return {uuid: amounts for uuid, amounts in allocations.items() if amounts}
