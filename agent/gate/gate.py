"""The gate: decides for libvirt's hook whether a guest may start here or come in by a live migration.

At a start it finds or makes the claim that covers the guest's domain, or refuses the start. libvirt waits for
the answer with the domain locked, so nothing is asked of the hypervisor. A guest that comes in is a move,
which this host, the destination, begins; the hook of the source decides nothing.

What a guest that the gate let in takes of pages and memory counts as used before the driver reports it. What
the driver reports afterwards ends the gate's claims and moves: a claim that the gate made lives as long as
its guest is on this host, running or defined, and a move that this host began as the destination is confirmed
or reverted by what the host then sees of the guest. Guests that started while the gate did not decide,
because the agent was away or claims were closed, get their claims then.
Source: https://libvirt.org/hooks.html#etc-libvirt-hooks-qemu
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from agent import errors, log
from agent.claims import domain_demand
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.domain_demand import DomainRequest
from agent.claims.refusal import amounts_text, label
from agent.claims.request import wrong_cards
from agent.doctor.check import start_problems
from agent.driver import Driver, Guest, GuestState, HostSettings
from agent.gate.decision import (
    GateOutcome,
    GateVerdict,
    HookCall,
    brought_in_by_gate,
    covers,
    made_by_gate,
    power_down,
    power_up,
)
from agent.moves.live_migratable import failed_arrival
from agent.moves.ownership import split_allocations
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Units
from agent.tracker.claims import GuestDemand
from agent.tracker.context import allocations_for
from agent.tracker.tracker import ResourceTracker


class ExpectedGuests:
    """Any thread may call. Guests are named by uuid; times are in seconds since the epoch."""

    def __init__(self, tracker: ResourceTracker, clock: Callable[[], float]) -> None:
        self._tracker = tracker
        self._clock = clock
        self._lock = threading.Lock()
        self._let_in: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def let_in(self, uuid: str) -> None:
        """The gate lets the guest in, or is about to."""
        with self._lock:
            self._ended.pop(uuid, None)
            self._let_in[uuid] = self._clock()

    def end(self, uuid: str) -> None:
        """The guest has ended: it is not expected any more, and holds no units."""
        self._tracker.guests.forget(uuid)
        with self._lock:
            self._tracker.expect_no_more(uuid)
            self._let_in.pop(uuid, None)
            self._ended[uuid] = self._clock()

    def is_let_in(self, uuid: str) -> bool:
        """Whether the gate let the guest in and still expects it."""
        with self._lock:
            return uuid in self._let_in

    def ended_before(self, at: float) -> frozenset[str]:
        """The guests that ended before this time and were not let in again."""
        with self._lock:
            return frozenset(
                uuid
                for uuid, when in self._ended.items()
                if self._tracker.age_s(when) > self._tracker.age_s(at)
            )

    def give_up(self, at: float, grace_s: float) -> None:
        """Do not expect the guests any longer that were let in more than `grace_s` seconds before this time.

        The lock is held throughout: a guest that is let in again meanwhile stays expected.
        """
        with self._lock:
            least_s = self._tracker.age_s(at) + grace_s
            for uuid in [uuid for uuid, when in self._let_in.items() if self._tracker.age_s(when) > least_s]:
                self._tracker.expect_no_more(uuid)
                del self._let_in[uuid]

    def forget_ended(self, uuids: frozenset[str]) -> None:
        """Forget that these guests have ended."""
        with self._lock:
            for uuid in uuids:
                self._ended.pop(uuid, None)


LOG = log.get(__name__)


@dataclass(eq=False)
class GuestAdmission:
    """Any thread may call. `devices` returns {provider uuid: device}."""

    tracker: ResourceTracker
    client: PlacementClient
    devices: Callable[[], Mapping[str, str]]

    def admit(self, guest: Guest) -> GateVerdict:
        """Let the guest start on a claim that covers its domain.

        Raises DoesNotFit, ClaimConflict, ClaimsClosed, PlacementError, StateError: the guest may not start.
        """

        def decide(claim: Claim | None, move: Move | None) -> tuple[GuestDemand, bool]:
            incoming = guest
            if claim is not None:
                tree = self.tracker.view.host.tree
                for card, clause in wrong_cards(claim.request, guest, claim.allocations, tree):
                    raise errors.ClaimConflict(
                        f"{label(claim.request)} has a claim of {card.name}, which {clause}. Give the card "
                        "its former mode and state that in [pci] device_spec, change the domain, or release "
                        "the claim.",
                        consumer=claim.consumer,
                    )
                # The disks of a guest that comes in, or that cannot be read now, are those that are claimed.
                incoming = domain_demand.with_allocated_disk(guest, claim.allocations)
                incoming = domain_demand.with_claimed_devices(incoming, claim, self.devices())
            wanted = self.request_for(incoming, claim)
            return demand_of(incoming, wanted), claim is not None and self._covers(claim, wanted, move)

        claim, was_held = self.tracker.admit(guest.uuid, decide)
        outcome = GateOutcome.HELD if was_held else GateOutcome.CLAIMED
        held = f"{label(claim.request)} holds {amounts_text(claim.request.resources)}"
        return GateVerdict(outcome, claim.consumer, held)

    def request_for(self, guest: Guest, claim: Claim | None = None) -> DomainRequest:
        """The request for the guest's domain; `claim` is the one that it may start on.

        Raises ClaimsClosed before the first inventory, and DoesNotFit for a mediated device that the agent
        does not know yet, and for a unit that a claim could only have another one for.
        """
        place = self.tracker.view.place
        if place.host.root is None:
            raise errors.ClaimsClosed("Claims are closed: the agent has not read the whole host yet.")
        devices = {device: uuid for uuid, device in self.devices().items()}
        wanted = domain_demand.request_for_domain(guest, place, devices, claim)
        for unit in wanted.unmanaged:
            if unit.device.startswith(domain_demand.UNSEEN_MDEV):
                raise errors.DoesNotFit(
                    f"The mediated device {unit.unit} of {label(wanted.request)} is on no provider of this "
                    "host (yet): if it was created just now, try again in a moment.",
                    consumer=guest.uuid,
                    shortfalls=[],
                )
            if unit in wanted.astray:
                raise errors.DoesNotFit(
                    f"{unit.resource_class} {unit.unit} of {label(wanted.request)} "
                    f"{domain_demand.why_on_no_provider(unit, place)}. A claim would have another one in "
                    "its place: give the guest one that this host offers, or have the agent offer it.",
                    consumer=guest.uuid,
                    shortfalls=[],
                )
            LOG.info("%s uses %s, which is not managed: nothing is claimed for it.", guest.name, unit.unit)
        if guest.problem is not None:
            LOG.info("For %s no disk space is claimed: %s.", guest.name, guest.problem)
        return wanted

    def _covers(self, claim: Claim, wanted: DomainRequest, move: Move | None) -> bool:
        """Whether the guest may start on the claim. False: the gate made it for a former domain.

        Raises ClaimConflict, PlacementUnavailable where the claim may not be replaced, or cannot be now.
        """
        held, unreachable = self._check_still_here(claim)
        if not made_by_gate(claim):
            if not covers(claim, wanted):
                raise errors.ClaimConflict(
                    f"{label(wanted.request)} has a claim of {amounts_text(claim.request.resources)}"
                    f"{_with_units(claim.units)}, and its domain needs "
                    f"{amounts_text(wanted.request.resources)}"
                    f"{_with_units(wanted.named)}: release the claim, or change the domain.",
                    consumer=claim.consumer,
                    holds={uuid: dict(amounts) for uuid, amounts in claim.allocations.items()},
                )
            self._hold_again(claim, held, move)
            return True
        if claim.request.resources == wanted.request.resources and covers(claim, wanted):
            self._hold_again(claim, held, move)
            return True
        if unreachable is not None:
            raise unreachable  # the claim could not be replaced
        if move is not None:
            raise errors.ClaimConflict(
                f"{label(wanted.request)} is moving, and its domain needs other resources than the move gave "
                "it: end the move first (plimsoll move list).",
                consumer=claim.consumer,
            )
        return False

    def _check_still_here(
        self, claim: Claim
    ) -> tuple[ConsumerAllocations | None, errors.PlacementUnavailable | None]:
        """Raises ClaimConflict where the guest has moved to another host, which it may be running on.

        Returns what Placement holds for it, or the error where Placement is unreachable: then the agent's own
        record decides.
        """
        try:
            held = self.client.allocations_of(claim.consumer)
        except errors.PlacementUnavailable as error:
            LOG.warning(
                "%s starts without a check whether it has moved away: %s", claim.consumer, error.message
            )
            return None, error
        host = self.tracker.view.host
        if held.allocations and not any(host.is_own(uuid) for uuid in held.allocations):
            raise errors.ClaimConflict(
                f"{label(claim.request)} has its resources on another host: it has moved there.",
                consumer=claim.consumer,
            )
        return held, None

    def _hold_again(self, claim: Claim, held: ConsumerAllocations | None, move: Move | None) -> None:
        """Write the claim's allocation again where Placement holds nothing for it any more.

        Another client deleted it: then a scheduler was offered what the guest is about to use. Raises
        ClaimConflict where another consumer holds that meanwhile, or where the instance was moving here: its
        move ends as that of a deleted instance, and the claim with it. Raises PlacementError.
        """
        if held is None or held.allocations:
            return
        if move is not None:
            if move.role is MoveRole.DESTINATION:
                raise errors.ClaimConflict(
                    f"{label(claim.request)} was moving here (migration {move.migration}), and another "
                    "client deleted its allocations: the agent ends that move. Start the guest again after "
                    "that (plimsoll move list).",
                    consumer=claim.consumer,
                )
            return
        try:
            self.tracker.heal(allocations_for(claim, held.generation))
        except errors.PlacementFull as full:
            raise errors.ClaimConflict(
                f"Placement holds nothing for {label(claim.request)} any more, and other consumers hold what "
                f"it claimed: release its claim, then claim it again. ({full.message})",
                consumer=claim.consumer,
            ) from full


def demand_of(guest: Guest, wanted: DomainRequest) -> GuestDemand:
    """The demand of the guest whose domain was read as `wanted`."""
    return GuestDemand(guest, wanted.request, Restriction(wanted.named, bound=wanted.bound))


def _with_units(units: Units) -> str:
    names = [unit for classes in units.values() for exact in classes.values() for unit in exact]
    return f" with {', '.join(names)}" if names else ""


GRACE_S = 60.0
"""A guest that the driver does not report so long after the gate let it in has not started."""

ARRIVED = frozenset({GuestState.RUNNING, GuestState.SUSPENDED})


@dataclass(frozen=True, slots=True)
class _Report:
    """The guests that the driver reported: {uuid: guest}. `ended`: those whose end libvirt reported before.

    `age_s` is how long ago the driver began to read.
    """

    guests: Mapping[str, Guest]
    ended: frozenset[str]
    age_s: float

    def is_late(self, age_s: float) -> bool:
        """Whether a guest that was let in so many seconds ago should have been there when the driver read."""
        return age_s - self.age_s > GRACE_S


class Settler:
    """Any thread may call; `settle` one at a time."""

    def __init__(self, tracker: ResourceTracker, expected: ExpectedGuests) -> None:
        self._tracker = tracker
        self._expected = expected
        self._too_large: frozenset[tuple[str, int]] = frozenset()

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """End what is over, after the driver reported the guests; it began to read them at `at`.

        Stops while the agent backs off from Placement; the next call continues. Raises PlacementUnavailable,
        StateError. Other refusals are logged, and the next call tries again.
        """
        ended = self._expected.ended_before(at)
        report = _Report({guest.uuid: guest for guest in guests}, ended, self._tracker.age_s(at))
        self._expected.give_up(at, GRACE_S)
        moves = [move for move in self._tracker.moves().values() if not move.ended]
        placement = self._tracker.placement
        if placement.is_backing_off():
            return
        # Free the guests of the gate that have moved away; a definition that stays behind holds nothing.
        claims = self._tracker.claims()
        departed = {
            move.instance
            for move in moves
            if move.role is MoveRole.SOURCE
            and move.old.request.user_id == domain_demand.GATE_USER
            and _is_absent(report.guests.get(move.instance))
        } | {
            guest
            for guest in self._tracker.moved_away()
            if guest in claims and made_by_gate(claims[guest]) and _is_absent(report.guests.get(guest))
        }
        for instance in departed:
            self._tracker.guests.forget(instance)
        if departed:
            self._tracker.deliver()
        if (departed or report.ended) and not placement.is_backing_off():
            self._try("moves are not followed", self._tracker.follow_moves)
        if not self._settle_moves(moves, report) or not self._settle_claims(moves, report):
            return
        self._too_large = frozenset(size for size in self._too_large if size[0] in report.guests)
        self._expected.forget_ended(report.ended)

    def _settle_moves(self, moves: Collection[Move], report: _Report) -> bool:
        """Returns False if the agent backs off from Placement before the end."""
        for move in moves:
            if self._tracker.placement.is_backing_off():
                return False
            is_arrival = move.role is MoveRole.DESTINATION and move.state is MoveState.BEGUN
            if not is_arrival or not brought_in_by_gate(move):
                continue
            guest = report.guests.get(move.instance)
            late, migration = report.is_late(self._tracker.age_s(move.since)), move.migration
            if guest is not None and (guest.state in ARRIVED or (guest.state is GuestState.PAUSED and late)):
                confirm = partial(self._tracker.confirm_move, migration)
                self._try(f"migration {migration} is not confirmed", confirm)
            elif _is_absent(guest) and (late or move.instance in report.ended):
                self._tracker.guests.forget(move.instance)
                let_in = partial(self._expected.is_let_in, move.instance)
                revert = partial(self._tracker.revert_move, migration, unless=let_in)
                done = self._try(f"migration {migration} is not reverted", revert)
                now = self._tracker.moves().get(migration, move)
                if done and now.state is not MoveState.BEGUN and move.new is not None:
                    failed = failed_arrival(move.new, self._tracker.view.host)
                    if failed:
                        LOG.warning("%s", failed, fields={"consumer": move.instance})
        return True

    def _settle_claims(self, moves: Collection[Move], report: _Report) -> bool:
        """Returns False if the agent backs off from Placement before the end."""
        moving = {consumer for move in moves for consumer in (move.instance, move.migration)}
        for claim in self._tracker.claims().values():
            if self._tracker.placement.is_backing_off():
                return False
            if not made_by_gate(claim) or claim.state is not ClaimState.CLAIMED or claim.consumer in moving:
                continue
            guest = report.guests.get(claim.consumer)
            if guest is not None:
                disk = partial(self._claim_disk, claim, guest)
                self._try(f"the disks of {guest.uuid} are not claimed", disk)
            elif claim.consumer in report.ended or report.is_late(self._tracker.age_s(claim.since)):
                self._release_unless_let_in(claim)
        return True

    def _claim_disk(self, claim: Claim, guest: Guest) -> None:
        """Extend the claim by the sizes of disks that were not known when the guest started."""
        request = domain_demand.with_disk(claim.request, guest)
        size = guest.uuid, guest.resources.get(domain_demand.DISK, 0)
        if guest.problem is not None or request == claim.request or size in self._too_large:
            return
        try:
            self._tracker.extend(claim, request)
        except errors.DoesNotFit as error:
            self._too_large |= {size}
            LOG.warning(
                "The disks of %s (%d GiB) are in use and not claimed: %s",
                label(claim.request),
                size[1],
                error.message,
                fields={"consumer": claim.consumer},
            )

    def _release_unless_let_in(self, claim: Claim) -> None:
        """Release the claim, unless the gate lets the guest in on it just now, after the driver's report.

        The tracker asks for that when no other operation on the consumer is under way, and the gate takes
        note of the guest before it asks for the claim. So the claim on which a guest starts is not released,
        and neither is one that was made since.
        """

        def stays() -> bool:
            present = self._tracker.claim_of(claim.consumer)
            is_another = present is not None and present.since != claim.since
            return is_another or self._expected.is_let_in(claim.consumer)

        done = self._try(
            f"{claim.consumer} is not released", lambda: self._tracker.release(claim.consumer, unless=stays)
        )
        if done and self._tracker.claim_of(claim.consumer) is None:
            LOG.info(
                "Released %s: its guest is not on this host any more.",
                label(claim.request),
                fields={"consumer": claim.consumer},
            )

    def _try(self, problem: str, action: Callable[[], object]) -> bool:
        """Whether the action was done; a refusal is logged. Raises PlacementUnavailable, StateError."""
        try:
            action()
        except errors.PlacementUnavailable:
            raise
        except errors.UnknownConsumer:
            return False  # another pass, or a caller, has just ended it
        except (errors.PlacementError, errors.Refused) as error:
            LOG.warning("The gate: %s: %s", problem, error.message)
            return False
        return True


def _is_absent(guest: Guest | None) -> bool:
    return guest is None or guest.is_off


class Gate:
    """Any thread may call. `driver` returns the driver in use, which reads a domain's XML.

    `devices` returns {provider uuid: device}.
    """

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        driver: Callable[[], Driver],
        devices: Callable[[], Mapping[str, str]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tracker = tracker
        self._client = client
        self._driver = driver
        self._admission = GuestAdmission(tracker, client, devices)
        self._expected = ExpectedGuests(tracker, clock)
        self._settler = Settler(tracker, self._expected)

    def decide(self, call: HookCall, settings: HostSettings = HostSettings()) -> GateVerdict:  # noqa: B008 - frozen
        """Let the guest go on; by `settings` its CPUs are powered up or down.

        Raises Refused where it may not; UsageError for XML that is not a domain; DriverUnavailable,
        PlacementError, StateError where the gate cannot decide.
        """
        match call.operation, call.sub_operation:
            case "prepare", "begin":
                guest = self._check_devices(call.xml, self._read(call.xml))
                return replace(self._start(guest), cpu_power=power_up(guest, settings))
            case "migrate", "begin":
                return self._come_in(self._check_devices(call.xml, self._read(call.xml)))
            case "release", "end":
                guest = self._read(call.xml)
                others = [row for row in self._tracker.view.rows().values() if row.instance != guest.uuid]
                guests = [row.guest for row in others if row.guest is not None]
                present = [other for other in guests if not other.is_off]
                claims = [claim for row in others for claim in row.claimed.values()]
                down = power_down(guest, settings, present, claims)
                self._expected.end(guest.uuid)
                ended = f"{guest.name} ({guest.uuid}) has ended"
                return GateVerdict(GateOutcome.NOTED, guest.uuid, ended, cpu_power=down)
        return GateVerdict(
            GateOutcome.IGNORED, None, f"the gate does nothing at {call.operation} {call.sub_operation}"
        )

    def claim_running(
        self, guests: Collection[Guest]
    ) -> tuple[tuple[Guest, GateVerdict | errors.Refused], ...]:
        """Claim for each running guest without a claim, as if it started now.

        Also for those that do not run and that were here before the state directory, which has lost what was
        claimed for them, if anything was.

        Returns each such guest with the verdict or the refusal. Raises ClaimsClosed, PlacementError.
        """
        claims, found = self._tracker.claims(), self._tracker.view.found_guests()
        verdicts: list[tuple[Guest, GateVerdict | errors.Refused]] = []
        for guest in guests:
            is_absent = guest.is_off
            if (is_absent and guest.uuid not in found) or guest.uuid in claims or guest.problem is not None:
                continue
            try:
                verdicts.append((guest, self._admission.admit(guest) if is_absent else self._start(guest)))
                if is_absent:
                    self._tracker.expect_no_more(guest.uuid)
            except errors.ClaimsClosed:
                raise
            except errors.Refused as refused:
                verdicts.append((guest, refused))
        return tuple(verdicts)

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """End the claims and moves that are over. See `Settler.settle`."""
        self._settler.settle(guests, at)

    def _read(self, xml: str) -> Guest:
        try:
            return self._driver().guest_of(xml)
        except errors.DriverDataError as error:
            raise errors.UsageError(error.message) from error

    def _check_devices(self, xml: str, guest: Guest) -> Guest:
        """The guest. Raises DeviceUnfit where it would hang or fail with a PCI device of its domain."""
        passed = self._driver().passed_devices(xml)
        if passed:
            holders = {
                unit.unit: f"{row.guest.name} ({row.instance})"
                for row in self._tracker.view.rows().values()
                if row.guest is not None and row.instance != guest.uuid and not row.guest.is_off
                for unit in row.guest.units
            }
            problems = list(start_problems(passed, holders))
            if problems:
                raise errors.DeviceUnfit(
                    f"{guest.name} ({guest.uuid}) would not start with its devices: {' '.join(problems)}",
                    consumer=guest.uuid,
                    problems=problems,
                )
        return guest

    def _start(self, guest: Guest) -> GateVerdict:
        self._expected.let_in(guest.uuid)
        return self._admission.admit(guest)

    def _come_in(self, guest: Guest) -> GateVerdict:
        """Begin a move if the instance has an allocation on another host; otherwise the guest just starts."""
        self._expected.let_in(guest.uuid)
        # End a former move that waits only until its guest has left this host. It has left: libvirt lets no
        # guest come in that already runs here.
        self._tracker.guests.forget(guest.uuid)
        waiting = (MoveState.REVERTING, MoveState.LEAVING, MoveState.CONFIRMING)
        moves = [move for move in self._tracker.moves().values() if move.instance == guest.uuid]
        if any(move.state in waiting for move in moves) and not self._tracker.placement.is_backing_off():
            self._tracker.deliver()
        if self._tracker.claim_of(guest.uuid) is not None:
            return self._start(guest)
        placed = self._client.allocations_of(guest.uuid)
        host = self._tracker.view.host
        shared = {provider.uuid for provider in host.providers}
        source = split_allocations(placed.allocations, host.is_own, shared.__contains__)
        if not source.elsewhere:
            return self._start(guest)
        wanted = self._admission.request_for(
            domain_demand.with_allocated_disk(guest, {**source.elsewhere, **source.shared})
        )
        demand = demand_of(guest, wanted)
        move = self._tracker.begin_move(wanted.request, MoveKind.LIVE_MIGRATE, str(uuid4()), demand).move
        return GateVerdict(
            GateOutcome.MOVING, guest.uuid, f"{label(wanted.request)} comes in by migration {move.migration}"
        )


class MissedGuests:
    """Remembers which guests run. One thread calls at a time."""

    def __init__(self, gate: Gate, tracker: ResourceTracker) -> None:
        self._gate = gate
        self._tracker = tracker
        self._running: frozenset[str] = frozenset()
        self._missed: frozenset[str] = frozenset()

    def claim(self, guests: Collection[Guest]) -> tuple[tuple[Guest, GateVerdict | errors.Refused], ...]:
        """Claim for the guests without a claim that have begun to run since the call before.

        Those that were refused are tried again. A guest whose claim was released while it runs, one that
        moves, and one whose instance is on another host stay as they are. Raises as `Gate.claim_running`.
        """
        running = frozenset(guest.uuid for guest in guests if guest.state in ARRIVED)
        started, self._running = running - self._running, running
        moving = {move.instance for move in self._tracker.moves().values() if not move.ended}
        elsewhere = self._tracker.moved_away()
        self._missed = (
            ((self._missed & running) | started) - self._tracker.claims().keys() - moving - elsewhere
        )
        if not self._missed:
            return ()
        verdicts = self._gate.claim_running([guest for guest in guests if guest.uuid in self._missed])
        self._missed -= {guest.uuid for guest, verdict in verdicts if isinstance(verdict, GateVerdict)}
        return verdicts
