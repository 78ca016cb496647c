"""What a finding is judged from: one consumer, one move or one row, with all that is known about it. Pure.

Each case is one frozen value, so that a judgement is a function of it alone; `FindingKind` is the base
class of the kinds, which judge.

The first functions are about claims whose records are older than Placement and the guests, as in a restored
state directory. Such a claim follows what its guest uses, where Placement holds just that. The unit that it
gets may be that of another claim, which is as old and follows its own guest: then the claims follow
together. Where a claim that does not follow has such a unit, no repair is offered, since it would be refused.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agent.audit.finding import Finding, FollowGuests
from agent.audit.observation import Observation
from agent.claims.attribution import Place, use_of
from agent.claims.claim import Claim, ClaimState
from agent.claims.rows import Row
from agent.claims.use_difference import UseDifference, use_difference
from agent.driver import Guest, GuestState
from agent.errors import by_force
from agent.moves import ownership
from agent.moves.ownership import SplitAllocations
from agent.moves.states import MIGRATION_TYPE, Move, MoveRole, MoveState, request_for_allocations
from agent.placement.client import ConsumerAllocations
from agent.reshape.claimed_units import HostRecords
from agent.reshape.laws import Relocation
from agent.reshape.relocate import follow_placement
from agent.shapes import Allocations, beyond, by_class

JUST_MADE_S = 60.0
"""An audit does not take this long from its reading of Placement to that of the claims."""


def held_of(observation: Observation, claim: Claim) -> Allocations:
    """What Placement has of the claim here, as far as the observation goes: pools are as the claim says."""
    pools = {
        uuid: amounts for uuid, amounts in claim.allocations.items() if not observation.host.is_own(uuid)
    }
    return {**observation.allocations_here(claim.consumer), **pools}


def is_older(observation: Observation, claim: Claim, held: Allocations) -> bool:
    """Whether the claim's guest runs with just what Placement has, and not with what the claim has.

    `held` is what Placement has. A definition may be older than the claim. So a guest that is shut off tells
    only by exact units that its definition names, and only where Placement says that the claim has others.
    """
    if claim.consumer in observation.consumers_in_moves:
        return False
    guest = observation.guests.get(claim.consumer)
    if guest is not None and guest.is_off:
        now = as_used(observation, claim, held) if held != claim.allocations else None
        if now is None or set(now.exact) <= set(claim.exact):
            return False
        guest = replace(guest, state=GuestState.RUNNING)
    by_placement, by_claim = _differences(observation, claim, held, guest)
    return by_placement == 0 and bool(by_claim)


def is_undecided(observation: Observation, claim: Claim, held: Allocations) -> bool:
    """Whether nothing tells which is newer, the claim or Placement: the same amounts, on other providers.

    No exact unit is among them, and the guest, if there is one, runs with the one as well as with the other.
    """
    more = {name for amounts in beyond(held, claim.allocations).values() for name in amounts}
    if by_class(held.values()) != by_class(claim.allocations.values()) or more & _exact(observation, claim):
        return False
    guest = observation.guests.get(claim.consumer)
    by_placement, by_claim = _differences(observation, claim, held, guest)
    return by_claim != 0 or by_placement == 0


def used_by_others(observation: Observation, claim: Claim) -> tuple[tuple[str, str], ...]:
    """(unit, instance whose guest uses it) of the claim's units: others got them since it was recorded."""
    users = {
        (used.resource_class, used.unit): guest.uuid
        for guest in observation.guests.values()
        for used in guest.units
        if guest.uuid != claim.consumer and not guest.is_off
    }
    return tuple((unit, users[name, unit]) for _, name, unit in claim.exact if (name, unit) in users)


def _differences(
    observation: Observation, claim: Claim, held: Allocations, guest: Guest | None
) -> tuple[int | None, int | None]:
    """By how much the guest's use differs from what Placement has, and from the claim; None: unknown."""
    consumer, place = claim.consumer, observation.place
    row = Row(consumer, {consumer: held}, {}, guest)
    by_placement = use_difference(row, place)
    by_claim = use_difference(Row(consumer, {}, {consumer: claim}, guest), place)
    if by_placement is None or by_claim is None:
        return None, None
    elsewhere = sum(map(len, beyond(use_of(row, place).amounts, held).values()))
    return by_placement.size + elsewhere, by_claim.size


def _exact(observation: Observation, claim: Claim) -> frozenset[str]:
    """The classes that have exact units here, or in the claim."""
    offered = (*observation.offered.values(), *claim.units.values())
    return frozenset(name for classes in offered for name in classes)


def as_used(observation: Observation, claim: Claim, held: Allocations) -> Claim | None:
    """The claim with what Placement has and its guest uses; None where that does not say all of it.

    The cells of a claim were chosen together with its amounts.
    """
    guest = observation.guests.get(claim.consumer)
    units = use_of(Row(claim.consumer, {claim.consumer: held}, {}, guest), observation.place).units
    exact = _exact(observation, claim)
    told = [
        len(units.get(uuid, {}).get(name, ())) == amount
        for uuid, amounts in held.items()
        for name, amount in amounts.items()
        if name in exact
    ]
    if claim.state is not ClaimState.CLAIMED or claim.cells or not all(told):
        return None
    request = claim.request
    if held != claim.allocations:
        request = request_for_allocations(request, held)
    return replace(claim, request=request, allocations=held, units=units, makings={}, group_units={})


def follow_together(
    observation: Observation, claim: Claim, held: Allocations
) -> tuple[tuple[FollowGuests, ...], str]:
    """The step that has the claim follow its guest, and with it the claims whose units it gets; () if none.

    Also what stands in its way, as a sentence with the remedy: then the step would be refused, and is none.
    """
    now = as_used(observation, claim, held)
    if now is None:
        return (), ""
    owners = _owners(observation)
    found, to_look_at = {claim.consumer: (claim, now)}, [now]
    while to_look_at:
        for _, name, unit in to_look_at.pop().exact:
            owner = owners.get((name, unit), claim.consumer)
            other = observation.claims[owner]
            other_held = held_of(observation, other)
            if owner not in found and is_older(observation, other, other_held):
                other_now = as_used(observation, other, other_held)
                if other_now is not None:
                    found[owner] = other, other_now
                    to_look_at.append(other_now)
    in_the_way = obstacle(observation, [after for _, after in found.values()])
    step = FollowGuests(tuple(pair for _, pair in sorted(found.items())))
    return (() if in_the_way else (step,)), in_the_way


def _owners(observation: Observation) -> Mapping[tuple[str, str], str]:
    """{(class, exact unit): consumer that claims it}"""
    return {
        (name, unit): consumer
        for consumer, claim in observation.claims.items()
        for _, name, unit in claim.exact
    }


def obstacle(observation: Observation, follow: Collection[Claim]) -> str:
    """Why claims cannot become these, which have what their guests use, as a sentence; empty if they can.

    A claim that ends, or gives up the unit, by itself or by its own repair is no obstacle.
    """
    owners, consumers = _owners(observation), {after.consumer for after in follow}
    users: dict[tuple[str, str], set[str]] = {}
    for guest in observation.guests.values():
        for used in guest.units if not guest.is_off else ():
            users.setdefault((used.resource_class, used.unit), set()).add(guest.uuid)
    wanted: dict[tuple[str, str], set[str]] = {}
    for after in follow:
        for _, name, unit in after.exact:
            wanted.setdefault((name, unit), set()).add(after.consumer)
    for (name, unit), who in sorted(wanted.items()):
        owner = owners.get((name, unit))
        if len(who) > 1 or (owner not in consumers and users.get((name, unit), who) - who):
            guests = sorted(who | users.get((name, unit), who))
            return (
                f"Nothing is repaired while the guests {' and '.join(guests)} have the same {name} {unit}: "
                "take it from one of them."
            )
        if owner is not None and owner not in consumers and _stays(observation, owner):
            return (
                f"Nothing is repaired while the claim of {owner} has the {name} {unit}, which is the guest "
                f"{', '.join(who)}'s: release it {by_force(owner)}, repair again, and claim for it "
                "after that."
            )
    return ""


def _stays(observation: Observation, consumer: str) -> bool:
    """Whether this claim keeps its units: no move, operation or repair of its own ends or changes it."""
    claim = observation.claims[consumer]
    if consumer in observation.consumers_in_moves or claim.state is not ClaimState.CLAIMED:
        return False
    held = held_of(observation, claim)
    if is_older(observation, claim, held) and follow_together(observation, claim, held)[0]:
        return False
    known = (observation.guests, observation.consumers, observation.lost, observation.elsewhere)
    return any(consumer in each for each in known)


@dataclass(frozen=True, slots=True)
class ConsumerCase:
    """One consumer, which no operation of the agent changes while it is judged.

    `placed` is everything that Placement has for it, on any host, read after the observation. `parts` divides
    that into this host's providers, the providers shared with it, and those elsewhere.
    """

    observation: Observation
    placed: ConsumerAllocations
    parts: SplitAllocations

    @classmethod
    def of(cls, observation: Observation, placed: ConsumerAllocations) -> "ConsumerCase":
        """The case of the consumer that `placed` names."""
        claim = observation.claims.get(placed.consumer)
        claimed_on = claim.allocations.keys() if claim else ()
        shared = {*(provider.uuid for provider in observation.host.providers), *claimed_on}
        return cls(
            observation,
            placed,
            ownership.split_allocations(placed.allocations, observation.host.is_own, shared.__contains__),
        )

    @property
    def consumer(self) -> str:
        """The consumer's uuid."""
        return self.placed.consumer

    @property
    def claim(self) -> Claim | None:
        """The consumer's claim on this host."""
        return self.observation.claims.get(self.consumer)

    @property
    def guest(self) -> Guest | None:
        """The consumer's guest on this host."""
        return self.observation.guests.get(self.consumer)

    @property
    def move(self) -> Move | None:
        """The move whose migration the consumer is, if the agent knows it."""
        return next((move for move in self.observation.moves if move.migration == self.consumer), None)

    @property
    def is_migration(self) -> bool:
        """Whether the consumer is a migration, without a guest and a claim of its own."""
        if self.claim is not None or self.guest is not None:
            return False
        return self.move is not None or self.placed.consumer_type == MIGRATION_TYPE

    @property
    def claimed_otherwise(self) -> Allocations | None:
        """The allocations of the claim, where Placement has others on this host.

        None: they agree, or Placement has none on this host, because the consumer has moved away; or a move
        was reverted that the agent has yet to learn of, and a reshape has moved the place meanwhile.
        """
        if self.claim is None or not self.parts.here or self._placed_here == self._claimed:
            return None
        return None if self._placed_here in self._whereabouts else self._claimed

    @property
    def reshaped(self) -> tuple[Relocation, ...]:
        """How a reshape led from the claim to what Placement has, if the claim's record is from before it."""
        if self.claimed_otherwise is None:
            return ()
        observation = self.observation
        moves = {move.migration: move for move in observation.moves}
        records = HostRecords(observation.claims, moves, observation.exact_units)
        held = {self.consumer: self._placed_here}
        return follow_placement(records, held, observation.leads, observation.host.tree)

    @property
    def is_outdated(self) -> bool:
        """Whether the guest has just what Placement has here, and not what the claim has; see `is_older`.

        Then the claim's record is the oldest of the three, as in a restored journal.
        """
        if self.claim is None or self.claimed_otherwise is None:
            return False
        return is_older(self.observation, self.claim, self._placed_here)

    @property
    def is_undecided(self) -> bool:
        """Whether nothing tells which is newer, the claim or what Placement has; see `is_undecided`."""
        return self.claim is not None and is_undecided(self.observation, self.claim, self._placed_here)

    @property
    def used_by_others(self) -> tuple[tuple[str, str], ...]:
        """(unit, instance whose guest uses it) of the claim. None while it moves."""
        if self.claim is None or self.is_moving:
            return ()
        return used_by_others(self.observation, self.claim)

    @property
    def follows(self) -> tuple[tuple[FollowGuests, ...], str]:
        """The repair of a claim that is outdated, and what stands in its way; see `follow_together`.

        Both are empty where what Placement has does not say all of it.
        """
        return follow_together(self.observation, self.claim, self._placed_here) if self.claim else ((), "")

    @property
    def is_on_other_providers(self) -> bool:
        """Whether the claim and Placement name different providers."""
        return self._placed_here.keys() != self._claimed.keys()

    @property
    def remainder(self) -> Allocations:
        """The allocations without those on this host; shared providers stay only with those elsewhere."""
        if not self.parts.elsewhere:
            return {}
        return {**self.parts.shared, **self.parts.elsewhere}

    @property
    def is_moving(self) -> bool:
        """Whether the consumer is the instance or the migration of a move that has not ended."""
        return self.consumer in self.observation.consumers_in_moves

    @property
    def is_comparable(self) -> bool:
        """Whether a difference means anything.

        Not while the agent settles a write of the consumer by itself. During a move, only while both its
        consumers have what the claims of the move say. Without a claim, not where its guest could not be
        read, and not for the migration of a move that this host has yet to learn of. A judgement that uses
        the state of a claimed guest must check `guest.problem` itself.
        """
        if self.consumer in self.observation.settling:
            return False
        if self.is_moving:
            move = next(
                move
                for move in self.observation.moves
                if not move.ended and self.consumer in (move.instance, move.migration)
            )
            if move.state is not MoveState.BEGUN or self.claim is None or not self.parts.here:
                return False
            # In a move on one host the instance has its old place again once the migration has nothing.
            return move.role is not MoveRole.BOTH or bool(self.observation.allocations_here(move.migration))
        if self.claim is not None:
            return True
        if self.guest is not None:
            return self.guest.problem is None
        if self.placed.consumer_type == MIGRATION_TYPE and any(
            ownership.same_amounts(self.observation.own_part(claim.allocations), self.parts.here)
            for claim in self._claims_that_left
        ):
            return False
        return bool(self.parts.here) and not self._holds_for_a_guest

    @property
    def possible_origins(self) -> tuple[str, ...]:
        """The consumers that may have handed this allocation to the consumer, as a migration.

        A guest here without a claim, whose instance is on another host; a guest of which Placement has
        nothing, with or without a claim; or that of a claim that has no allocation here any more, while its
        instance has one on another host.
        """
        if self.claim is not None or self.guest is not None:
            return ()
        if not ownership.may_be_migration(self.placed.consumer_type):
            return ()
        guests = tuple(
            guest
            for guest, placed in self.observation.departed.items()
            if (guest in self._departed_guests and ownership.resembles_migration(self.placed, placed))
            or (
                not placed.allocations
                and self.observation.may_have_place_of(
                    self.observation.guests[guest], self.parts.here, self.placed.consumer_type
                )
            )
        )
        return guests + tuple(
            claim.consumer
            for claim in self._claims_that_left
            if ownership.same_amounts(self.observation.own_part(claim.allocations), self.parts.here)
            or any(
                name in amounts
                for uuid, amounts in claim.allocations.items()
                for name in self.parts.here.get(uuid, ())
            )
        )

    @property
    def possible_migrations(self) -> tuple[str, ...]:
        """The consumers here that may hold the place of the guest, of which Placement has nothing.

        They have the guest among their `possible_origins`. If the guest got a place of its own on that guess,
        they would be taken for left over next, and deleted.
        """
        guest, observation = self.guest, self.observation
        if guest is None or self.placed.allocations:
            return ()
        known = observation.claims.keys() | observation.guests.keys() | observation.consumers_in_moves
        ended = {move.migration: move.handed for move in observation.moves if move.ended}
        return tuple(
            consumer
            for consumer in sorted(observation.consumers - known)
            if observation.allocations_here(consumer) != observation.own_part(ended.get(consumer, {}))
            and observation.may_have_place_of(
                guest, observation.allocations_here(consumer), observation.types.get(consumer, "")
            )
        )

    @property
    def migration_doubt(self) -> str:
        """What the operator does about the `possible_migrations`, in sentences."""
        holders = self.possible_migrations
        return (
            f"{', '.join(holders)} may hold its place here in a move: find out in the control plane whose "
            f"{'migration it is' if len(holders) == 1 else 'migrations they are'}. The agent repairs nothing "
            "on a guess."
        )

    @property
    def possible_holders(self) -> tuple[str, ...]:
        """The consumers without guest and claim that have as much here as the claim: maybe its migration.

        Not those whose type says that they are none.
        """
        if self.claim is None:
            return ()
        claimed = self.observation.own_part(self.claim.allocations)
        known = self.observation.claims.keys() | self.observation.guests.keys()
        return tuple(
            consumer
            for consumer in sorted(self.observation.consumers - known)
            if ownership.same_amounts(self.observation.allocations_here(consumer), claimed)
            and ownership.may_be_migration(self.observation.types.get(consumer, ""))
        )

    @property
    def leaves_alone(self) -> bool:
        """Whether no other instance without a known move has as large a claim, and has left or was deleted.

        The agent may have written a new claim since the audit read Placement, and a claim in flight is on its
        way there or back: nothing tells of these that their instances were deleted.
        """
        claim, observation = self.claim, self.observation
        deleted = [
            each
            for each in observation.lost_claims()
            if each.state is ClaimState.CLAIMED and observation.ages.get(each.consumer, 0.0) > JUST_MADE_S
        ]
        return claim is not None and not any(
            ownership.same_amounts(
                observation.own_part(other.allocations), observation.own_part(claim.allocations)
            )
            for other in (*self._claims_that_left, *deleted)
            if other.consumer not in {claim.consumer, *observation.consumers_in_moves}
        )

    @property
    def place_is_evident(self) -> bool:
        """Whether one consumer has just the place of the claim: the agent learns of that move by itself."""
        if self.claim is None or len(self.possible_holders) != 1 or not self.leaves_alone:
            return False
        held = self.observation.allocations_here(self.possible_holders[0])
        places = (self.claim.allocations, *self._whereabouts)
        return held in [self.observation.own_part(place) for place in places]

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the three sources show, JSON-ready."""
        return {
            "guest": dict(self.guest.resources) if self.guest else None,
            "claim": _copy(self.claim.allocations) if self.claim else None,
            "placement": _copy(self.placed.allocations),
            "generation": self.placed.generation,
        }

    @property
    def _placed_here(self) -> Allocations:
        return {**self.parts.here, **self.parts.shared}

    @property
    def _whereabouts(self) -> Collection[Allocations]:
        return self.observation.whereabouts.get(self.consumer, ())

    @property
    def _claimed(self) -> Allocations:
        allocations = self.claim.allocations if self.claim else {}
        return {uuid: amounts for uuid, amounts in allocations.items() if amounts}

    @property
    def _holds_for_a_guest(self) -> bool:
        """Whether it is the migration of a guest that is still here, which its control plane ends."""
        departed = self.observation.departed
        return any(ownership.is_migration(self.placed, departed[guest]) for guest in self._departed_guests)

    @property
    def _departed_guests(self) -> tuple[str, ...]:
        """Those whose instances are on other hosts, without a granted claim.

        Also where a revert waits for the guest: then a move onward may have taken its place over.
        """
        is_own, claims = self.observation.host.is_own, self.observation.claims
        returning = {move.instance for move in self.observation.moves if move.state is MoveState.REVERTING}
        return tuple(
            guest
            for guest, placed in self.observation.departed.items()
            if ownership.has_left(placed.allocations, is_own)
            and (guest not in claims or claims[guest].state is ClaimState.CLAIMING or guest in returning)
        )

    @property
    def _claims_that_left(self) -> tuple[Claim, ...]:
        """The claims without an allocation here whose instances have allocations elsewhere.

        A claim in doubt or to be released counts, too, unless its move is known.
        """
        instances = self.observation.instances
        moving = self.observation.consumers_in_moves
        return tuple(
            claim
            for claim in self.observation.lost_claims()
            if self.observation.elsewhere.get(instances.get(claim.consumer, claim.consumer))
            and (claim.state is ClaimState.CLAIMED or claim.consumer not in moving)
        )


@dataclass(frozen=True, slots=True)
class MoveCase:
    """One move, whose two consumers no operation of the agent changes while it is judged.

    `instance` and `migration` are everything that Placement has for the two.
    """

    observation: Observation
    move: Move
    instance: ConsumerAllocations
    migration: ConsumerAllocations

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the agent and Placement show, JSON-ready."""
        return {
            "move": f"{self.move.kind}, {self.move.role}, {self.move.state}",
            "instance": self.move.instance,
            "placement": {
                placed.consumer: _copy(placed.allocations) for placed in (self.instance, self.migration)
            },
            "generation": self.migration.generation,
        }


@dataclass(frozen=True, slots=True)
class RowCase:
    """One row of the book, whose consumers no operation of the agent changes while it is judged.

    Of Placement it has what the observation has: the allocations on this host's providers. `use` is how the
    guest's use differs from what it has; None where that cannot be told.
    """

    observation: Observation
    place: Place
    row: Row
    use: UseDifference | None

    @classmethod
    def of(cls, observation: Observation, instance: str) -> "RowCase":
        """The case of the instance's row."""
        place = observation.place
        row = observation.row(instance, place)
        return cls(observation, place, row, use_difference(row, place))

    @classmethod
    def all_of(cls, observation: Observation) -> Iterator["RowCase"]:
        """The cases of all rows, in the order of their instances."""
        place = observation.place
        for _, row in sorted(observation.rows().items()):
            yield cls(observation, place, row, use_difference(row, place))

    @property
    def instance(self) -> str:
        """The instance's uuid; a migration's where its instance is not known."""
        return self.row.instance

    @property
    def is_moving(self) -> bool:
        """Whether a move of the instance has not ended."""
        return self.instance in self.observation.consumers_in_moves

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The columns of the row, JSON-ready."""
        guest = self.row.guest
        return {
            "guest": dict(guest.resources) if guest else None,
            "claim": {
                consumer: _copy(claim.allocations) for consumer, claim in sorted(self.row.claimed.items())
            },
            "placement": {
                consumer: _copy(allocations) for consumer, allocations in sorted(self.row.held.items())
            },
        }


def _copy(allocations: Allocations) -> dict[str, dict[str, int]]:
    return {uuid: dict(amounts) for uuid, amounts in allocations.items()}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table of findings in docs/audit.md.

    `meaning` says when the finding is reported, and `repair` what its repair does. Without a repair, `repair`
    is what the operator does instead ("None: move the guest."). `automatic` says when the agent repairs it by
    itself with `heal = own`: "yes", "no", or a condition; without a repair it is "no".
    """

    meaning: str
    repair: str
    automatic: str


class FindingKind:
    """One kind of finding. A subclass overrides one or more of the judgements, which are pure.

    Each judgement returns findings whose `kind` is the class's `name`.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[TableRow, ...]]

    judges_moves: ClassVar[bool] = False
    """Whether `judge_consumer` also judges the consumers of a move under way, each by its claim."""

    def judge_row(self, case: RowCase) -> Iterable[Finding]:
        """The findings about what one instance has and uses; they stand beside every other finding."""
        return ()

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """The finding about one comparable consumer, by all that Placement has for it."""
        return None

    def judge_move(self, case: MoveCase) -> Finding | None:
        """The finding about one move that may not end by itself."""
        return None

    def judge_host(self, observation: Observation) -> Iterable[Finding]:
        """The findings about the host's providers and devices."""
        return ()
