"""Which allocations the instance and the migration have at each step of a move. Pure.

To begin a move gives the source allocation to the migration, and the new one to the instance. To confirm it
removes the migration's allocation. To revert it gives the old allocation back to the instance and removes the
migration's. Resources on shared providers stay with the instance while their amount is the same, so that they
count once.

Source: https://docs.openstack.org/nova/latest/contributor/resize-and-cold-migrate.html
(allocations of a migration).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.claims.claim import Claim
from agent.claims.refusal import amounts_text
from agent.claims.request import ClaimRequest
from agent.device_names import vram_sizes
from agent.errors import Refused, UsageError
from agent.moves.states import MIGRATION_TYPE, Move, MoveKind, MoveRole, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations, Amounts, by_class, total

ANY_ALTERNATIVE = 0
"""The number that stands for the first alternative that fits."""
IsOwn = Callable[[str], bool]
"""Whether the provider with that uuid is in this host's own tree."""


def migration_share(old: Allocations, new: Allocations, is_own: IsOwn) -> Allocations:
    """What the migration gets of `old`: all but equal amounts on providers outside this host's tree."""
    return _without_empty(
        {
            uuid: {
                name: amount
                for name, amount in amounts.items()
                if is_own(uuid) or new.get(uuid, {}).get(name) != amount
            }
            for uuid, amounts in old.items()
        }
    )


def same_amounts(first: Allocations, second: Allocations) -> bool:
    """Whether both have the same sum: a reshape moves amounts to other providers and classes, and no more."""
    one, other = (
        sum(amount for amounts in allocations.values() for amount in amounts.values())
        for allocations in (first, second)
    )
    return one == other


def restored_allocations(move: Move, migration: Allocations) -> Allocations:
    """What a revert gives the instance: what the migration has now, and what stayed with the instance.

    The source may have been reshaped since the begin; then the migration's allocation is on other providers
    than `move.old` says. If another client changed its amounts, the instance gets `move.old`.
    """
    if not same_amounts(migration, move.handed):
        return move.old.allocations
    restored = {
        uuid: {name: amount for name, amount in amounts.items() if name not in move.handed.get(uuid, {})}
        for uuid, amounts in move.old.allocations.items()
    }
    return _without_empty(total((restored, migration)))


def with_source_at(move: Move, migration: Allocations) -> Move:
    """The move after a reshape of its source, which put the migration's allocation where it is now."""
    old = replace(move.old, allocations=restored_allocations(move, migration))
    return replace(move, old=old, handed=migration)


def kept_options(
    options: Sequence[ClaimRequest], held: Amounts, *, is_resize: bool
) -> Sequence[ClaimRequest]:
    """Those of a request's alternatives by which an instance may hold this, {class: amount}.

    They name the same of the classes that are in any of them; for a move that keeps the amounts, the one with
    the same amounts counts alone.
    """
    classes = {name for option in options for name in option.resources}
    amounts = {name: amount for name, amount in held.items() if name in classes}
    kept = [option for option in options if option.resources.keys() == amounts.keys()]
    equal = [] if is_resize else [option for option in kept if option.resources == amounts]
    return equal or kept


def options_of_move(
    kind: MoveKind,
    options: Sequence[ClaimRequest],
    number: int | None,
    claim: Claim | None,
    elsewhere: Callable[[], Amounts],
) -> Sequence[ClaimRequest]:
    """The alternatives of a request that a move may take: the one that the instance has, or of that `number`.

    The instance's `claim` on this host tells which one it has, else what it holds `elsewhere`, which is read
    only where it matters. Several sizes of VRAM are one alternative. A live migration keeps the devices, and
    so takes only an alternative of the same classes, also where the host has one size of VRAM that is large
    enough. Raises UsageError where there is no such alternative, or the instance may have several of them;
    Refused where a live migration could keep none.
    """
    consumer, numbers = options[0].consumer, {each.alternative for each in options}
    is_live, is_resize = kind is MoveKind.LIVE_MIGRATE, kind in (MoveKind.RESIZE, MoveKind.SAME_HOST_RESIZE)
    wanted = (claim.request.alternative or None) if number is None and claim is not None else number
    is_one = number is None and len(numbers) == 1
    chosen = [each for each in options if is_one or not wanted or (each.alternative or 1) == wanted]
    if not chosen:
        who = f"{consumer} has" if number is None else "The move is to take"
        raise UsageError(
            f"{who} alternative {wanted}, and the request has {len(numbers)}: name one of those "
            "(--alternative N), or take the first that fits (--alternative any).",
            consumer=consumer,
        )
    is_only = len(options if is_live else chosen) == 1 and not (is_live and vram_sizes(options[0].resources))
    if is_only or (wanted == ANY_ALTERNATIVE and not is_live):
        return chosen
    held = elsewhere() if claim is None else by_class(claim.allocations.values())
    same = kept_options(options, held, is_resize=is_resize)
    kept = [each for each in chosen if each in same]
    if is_live and held and not kept:
        raise Refused(
            f"{consumer} holds {amounts_text(held)}, and a live migration keeps the devices: no alternative "
            "that it may take asks for just that here. Shut the guest off, and migrate it cold.",
            consumer=consumer,
        )
    if is_live and wanted is not None:
        return kept or chosen
    if not is_live and len({each.alternative for each in chosen}) == 1:
        # Sizes of VRAM: first the one that it has, which a live migration keeps.
        return [*kept, *(each for each in chosen if each not in kept)]
    if not held or len({each.alternative for each in kept}) == 1:
        return kept or chosen[:1]
    if is_resize and not kept:
        return chosen  # it had none of them
    which = f"alternatives {', '.join(str(each.alternative) for each in kept)}" if kept else "no alternative"
    raise UsageError(
        f"What {consumer} holds, {amounts_text(held)}, may be of {which} of the request: name one "
        "(--alternative N), or take the first that fits (--alternative any).",
        consumer=consumer,
    )


class ObservedState(StrEnum):
    """How far a move is, according to the allocations in Placement."""

    BEFORE = "before"
    """The instance has its old allocation, the migration none: not begun, or reverted."""
    UNDER_WAY = "under way"
    """Instance and migration have the allocations that the begin of the move wrote."""
    AFTER = "after"
    """The instance has the new allocation, the migration none: confirmed."""
    NEITHER = "neither"
    """Neither has an allocation: the instance was deleted."""
    ORPHANED = "orphaned"
    """Only the migration has an allocation: the instance was deleted during the move."""
    CHANGED = "changed"
    """The migration has an allocation, but another service wrote what no step of this move writes."""
    MOVED_ON = "moved on"
    """The migration has no allocation, and the instance one that is neither the old nor the new."""


def observed_state(move: Move, instance: Allocations, migration: Allocations) -> ObservedState:
    """The state of a move, according to the allocations of its `instance` and its `migration` in Placement.

    If a resize changes no amount, BEFORE and AFTER look the same; the result is BEFORE.
    """
    if not instance:
        return ObservedState.ORPHANED if migration else ObservedState.NEITHER
    is_new = move.new is not None and instance == move.new.allocations
    if migration:
        known = is_new if move.new is not None else instance != move.old.allocations
        unchanged = same_amounts(migration, move.handed)
        return ObservedState.UNDER_WAY if known and unchanged else ObservedState.CHANGED
    if instance == move.old.allocations:
        return ObservedState.BEFORE
    return ObservedState.AFTER if is_new else ObservedState.MOVED_ON


def observed_end(move: Move, instance: Allocations, migration: Allocations, is_own: IsOwn) -> MoveStep | None:
    """The step with which the move ended, also if another host ended it; None: it did not, or it is unknown.

    The instance's allocations in this host's tree decide, because those elsewhere may have changed since. The
    source may have been reshaped, so the amounts of the old allocation count, not its providers. An instance
    that has neither the old nor the new allocation has moved on after a confirm.
    """
    if migration:
        return None
    if not instance:
        return MoveStep.GONE
    own_part = _own_part(instance, is_own)
    old_part = _own_part(move.old.allocations, is_own)
    if move.role is MoveRole.DESTINATION:
        is_old = not own_part and same_amounts(instance, move.old.allocations)
        return MoveStep.RESTORED if is_old else MoveStep.FREED
    if move.role is MoveRole.SOURCE:
        return MoveStep.RESTORED if own_part and same_amounts(own_part, old_part) else MoveStep.FREED
    new_part = _own_part(move.new.allocations, is_own) if move.new else {}
    if old_part == new_part:
        return None
    return MoveStep.RESTORED if own_part == old_part else MoveStep.FREED


def has_left(instance: Allocations, is_own: IsOwn) -> bool:
    """Whether the instance has resources, and none on this host's own providers: it is on another host."""
    return bool(instance) and not any(is_own(uuid) for uuid in instance)


def has_moved_on(move: Move, instance: Allocations, is_own: IsOwn) -> bool:
    """Whether the instance of a move to this host, or within it, is on another host now.

    If so, it had arrived here before, and only the confirm of the move is left.
    """
    if move.role is MoveRole.SOURCE or any(is_own(uuid) for uuid in instance):
        return False
    return move.kind is MoveKind.REBUILD or bool(instance)


def undecided_reason(move: Move, instance: Allocations, migration: Allocations, is_own: IsOwn) -> str | None:
    """Why this host cannot end a begun move that does not progress, as a clause; None if there is no reason.

    The service that began the move must end it, or an operator; a confirm removes the migration's allocation.
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


# Find the migration of an instance, at the source


def is_migration(candidate: ConsumerAllocations, instance: ConsumerAllocations) -> bool:
    """Whether the candidate is a migration by its type, and has the instance's project and user."""
    return candidate.consumer_type == MIGRATION_TYPE and _same_owner(candidate, instance)


def resembles_migration(candidate: ConsumerAllocations, instance: ConsumerAllocations) -> bool:
    """Whether the candidate may be the instance's migration: by its type, or because it has none.

    Below microversion 1.38 no consumer has a type. A new instance of the same project looks the same as a
    migration there; so nothing is done on a resemblance, except that nothing is freed.
    """
    return may_be_migration(candidate.consumer_type) and _same_owner(candidate, instance)


def may_be_migration(consumer_type: str) -> bool:
    """Whether a consumer of that type is a migration, or may be one because it has none."""
    return consumer_type in ("", "unknown", MIGRATION_TYPE)


def _same_owner(candidate: ConsumerAllocations, instance: ConsumerAllocations) -> bool:
    return (candidate.project_id, candidate.user_id) == (instance.project_id, instance.user_id)


def has_taken_over(
    old: Allocations, instance: ConsumerAllocations, candidate: ConsumerAllocations, is_own: IsOwn
) -> bool:
    """Whether the candidate has what `old` was here, of an instance that is on another host now.

    The candidate must have all of `old` that is in this host's tree. Of the rest, the instance must still
    have what the candidate does not have, unless it was deleted there and has nothing. Whether the candidate
    is a migration at all, `is_migration` tells.
    """
    if any(map(is_own, instance.allocations)):
        return False
    rest = {
        uuid: {
            name: amount
            for name, amount in amounts.items()
            if candidate.allocations.get(uuid, {}).get(name) != amount
        }
        for uuid, amounts in old.items()
    }
    old_keys = {(uuid, name) for uuid, amounts in old.items() for name in amounts}
    candidate_keys = {(uuid, name) for uuid, amounts in candidate.allocations.items() for name in amounts}
    return candidate_keys <= old_keys and all(
        not is_own(uuid)
        and (not instance.allocations or instance.allocations.get(uuid, {}).get(name) == amount)
        for uuid, amounts in rest.items()
        for name, amount in amounts.items()
    )


def may_be_superseded(move: Move, instance_generation: int | None) -> bool:
    """Whether a move, seen from its source, may have been reverted and begun again under another uuid.

    Its migration holds nothing any more, and its instance is elsewhere, with this generation now. If no
    client wrote the instance since the source learned of the move, a client confirmed the move.
    """
    return move.instance_generation is None or move.instance_generation != instance_generation


def unambiguous_pairs(candidates: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """{instance: migration} where each matches only the other.

    `candidates` is {instance: possible migrations}. Ambiguous pairs are left out: it is uncertain which
    migration belongs to which instance.
    """
    wanted: dict[str, list[str]] = {}
    for instance, migrations in candidates.items():
        for migration in migrations:
            wanted.setdefault(migration, []).append(instance)
    return {
        instance: matches[0]
        for instance, migrations in candidates.items()
        if len(matches := list(migrations)) == 1 and len(wanted[matches[0]]) == 1
    }


# Doubled allocations: one consumer has the resources of source and destination at once


@dataclass(frozen=True, slots=True)
class SplitAllocations:
    """A consumer's allocations in this host's tree, on providers shared with the host, and elsewhere."""

    here: Allocations
    shared: Allocations
    elsewhere: Allocations

    @property
    def doubled(self) -> bool:
        """Whether the consumer has resources of this host and of another one at once."""
        return bool(self.here and self.elsewhere)


def count_shared_once(split: SplitAllocations, resources: Mapping[str, int]) -> Allocations:
    """The allocations on shared providers, limited to what `resources` asks for in all.

    A doubled allocation has the sum of both hosts' amounts on shared providers.
    """
    left = {
        name: asked - sum(amounts.get(name, 0) for amounts in split.here.values())
        for name, asked in resources.items()
    }
    once: dict[str, dict[str, int]] = {}
    for uuid, amounts in split.shared.items():
        for name, amount in amounts.items():
            amount_once = min(amount, left.get(name, amount))
            if amount_once > 0:
                once.setdefault(uuid, {})[name] = amount_once
                left[name] = left.get(name, amount) - amount_once
    return once


def split_allocations(held: Allocations, is_own: IsOwn, is_shared: IsOwn) -> SplitAllocations:
    """Split allocations by provider; `is_shared`: whether a provider shares resources with this host."""
    here = {uuid: amounts for uuid, amounts in held.items() if is_own(uuid)}
    shared = {uuid: amounts for uuid, amounts in held.items() if uuid not in here and is_shared(uuid)}
    elsewhere = {uuid: amounts for uuid, amounts in held.items() if uuid not in here and uuid not in shared}
    return SplitAllocations(here, shared, elsewhere)


def separate_allocations(
    split: SplitAllocations, resources: Mapping[str, int]
) -> tuple[Allocations, Allocations]:
    """(instance's, migration's) allocations of a doubled allocation whose destination is this host.

    `resources` {class: amount} is what the instance asks for at the destination.
    """
    return {**split.here, **count_shared_once(split, resources)}, split.elsewhere


def reduce_allocations(
    split: SplitAllocations, *, runs_here: bool, resources: Mapping[str, int] | None = None
) -> Allocations:
    """The part of a doubled allocation that belongs to the host on which the instance runs.

    `resources` {class: amount} is what the instance asked for on this host, if known; then amounts on shared
    providers count once.
    """
    if not runs_here:
        return {**split.elsewhere, **split.shared}
    return {**split.here, **(split.shared if resources is None else count_shared_once(split, resources))}


def _own_part(allocations: Allocations, is_own: IsOwn) -> Allocations:
    return {uuid: amounts for uuid, amounts in allocations.items() if is_own(uuid)}


def _without_empty(allocations: Allocations) -> Allocations:
    return {uuid: amounts for uuid, amounts in allocations.items() if amounts}
