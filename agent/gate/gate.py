"""The gate's decisions: whether a guest may start here or come in, and what becomes of its claim afterwards.

libvirt waits for the answer with the domain locked, so nothing is asked of the hypervisor. A guest that comes
in by a live migration is a move, which this host, the destination, begins: the hook of the source has nothing
to say in it. What becomes of all that afterwards is in `agent.gate.settle`.
Source: https://libvirt.org/hooks.html#etc-libvirt-hooks-qemu
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.claims.refusal import amounts_text, does_not_fit, label
from agent.driver import Guest
from agent.errors import (
    ClaimConflict,
    ClaimsClosed,
    DoesNotFit,
    DriverDataError,
    PlacementUnavailable,
    Refused,
    UsageError,
)
from agent.gate.domain_request import DomainRequest, with_allocated_disk, covers, made_by_gate, request_for_domain
from agent.gate.settle import ABSENT, Settler
from agent.moves.ownership import split_allocations
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import PlacementClient
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)


class Outcome(StrEnum):
    """What the gate did; each lets the guest go on."""

    CLAIMED = "claimed"
    HELD = "held"
    """It had a claim that covers it."""
    MOVING = "moving"
    """It comes in by a live migration; the move has begun."""
    NOTED = "noted"
    """It has gone; its claim goes once it is seen to be neither running nor defined."""
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of libvirt's hook: its second and third argument, and what it had on its standard input."""

    operation: str
    sub_operation: str
    xml: str


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """`consumer` is the guest's uuid; `sentence` is for people."""

    outcome: Outcome
    consumer: str | None
    sentence: str


class Gate:
    """`guest_of` reads a domain's XML; `devices` tells {provider uuid: device}. Any thread may call."""

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        guest_of: Callable[[str], Guest],
        devices: Callable[[], Mapping[str, str]],
        *,
        clock: Callable[[], float] = time.time,
        new_uuid: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._tracker = tracker
        self._client = client
        self._guest_of = guest_of
        self._devices = devices
        self._new_uuid = new_uuid
        self._ending = Settler(tracker, clock)

    def decide(self, asked: HookCall) -> GateVerdict:
        """Raises Refused where the guest may not start; UsageError for XML that makes no sense;
        DriverUnavailable, PlacementError, StateError."""
        match asked.operation, asked.sub_operation:
            case "prepare", "begin":
                return self._enter(self._read(asked.xml))
            case "migrate", "begin":
                return self._come_in(self._read(asked.xml))
            case "release", "end":
                return self._leave(self._read(asked.xml))
        return GateVerdict(
            Outcome.IGNORED, None, f"nothing is done at {asked.operation} {asked.sub_operation}"
        )

    def _read(self, xml: str) -> Guest:
        try:
            return self._guest_of(xml)
        except DriverDataError as error:
            raise UsageError(error.message) from error

    def claim_running(self, guests: Collection[Guest]) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        """Claim for the guests that run and have no claim, as if each started now.

        Raises ClaimsClosed, PlacementError.
        """
        claims = self._tracker.claims()
        found: list[tuple[Guest, GateVerdict | Refused]] = []
        for guest in guests:
            if guest.state in ABSENT or guest.uuid in claims or guest.problem is not None:
                continue
            try:
                found.append((guest, self._enter(guest)))
            except ClaimsClosed:
                raise
            except Refused as refused:
                found.append((guest, refused))
        return tuple(found)

    # A guest starts

    def _enter(self, guest: Guest) -> GateVerdict:
        self._ending.comes(guest)
        present, move = self._tracker.claim_and_move_of(guest.uuid)
        if move is not None and present is not None:
            guest = with_allocated_disk(guest, present.allocations)  # libvirt asks once more for who comes in
        asked = self._wanted(guest)
        with self._tracker.expecting(guest, asked.request):
            if present is None or present.state is not ClaimState.CLAIMED:
                return self._claim(asked)
            away = self._check_still_here(present)
            if covers(present, asked) and (present.request == asked.request or not made_by_gate(present)):
                return _verdict(Outcome.HELD, present)
            if not made_by_gate(present):
                raise _other_claim(present, asked)
            if away is not None:
                raise away  # nothing could be claimed for what would be let go
            if move is not None:
                raise ClaimConflict(
                    f"{label(asked.request)} moves, and its domain wants something else than it was given "
                    "for that: end the move first (plimsoll move list).",
                    consumer=guest.uuid,
                )
            return self._claim_anew(present, asked)

    def _check_still_here(self, present: Claim) -> PlacementUnavailable | None:
        """Raises ClaimConflict where the guest has moved away and this host did not hear of it yet: it may be
        running there. While placement is away, which is returned, what is known here holds."""
        try:
            held = self._client.allocations_of(present.consumer).allocations
        except PlacementUnavailable as error:
            LOG.warning("%s starts on the word of this host alone: %s", present.consumer, error.message)
            return error
        host = self._tracker.host()
        if held and not any(host.is_own(uuid) for uuid in held):
            raise ClaimConflict(
                f"{label(present.request)} holds its resources on another host: it has moved there.",
                consumer=present.consumer,
            )
        return None

    def _wanted(self, guest: Guest) -> DomainRequest:
        host, cells = self._tracker.host_and_cells()
        if host.root is None:
            raise ClaimsClosed("Claims are closed: this host has not been seen whole yet.")
        devices = {device: uuid for uuid, device in self._devices().items()}
        asked = request_for_domain(guest, host, devices, {cell.id: cell.provider for cell in cells.cells})
        for unit in asked.unmanaged:
            if unit.device.startswith("mdev:"):
                raise DoesNotFit(
                    f"The mediated device {unit.unit} of {label(asked.request)} is on no provider of this "
                    "host (yet): if it was made just now, try again in a moment.",
                    consumer=guest.uuid,
                    shortfalls=[],
                )
            LOG.info("%s uses %s, which is not managed: nothing is claimed for it.", guest.name, unit.unit)
        if guest.problem is not None:
            LOG.info("For %s no disk space is claimed: %s.", guest.name, guest.problem)
        return asked

    def _claim(self, asked: DomainRequest) -> GateVerdict:
        with self._pinned(asked):
            return _verdict(Outcome.CLAIMED, self._tracker.claim(asked.request).claim)

    def _claim_anew(self, present: Claim, asked: DomainRequest) -> GateVerdict:
        """Its domain was changed since it was claimed for: only if the new claim fits the old one goes."""
        closed = self._tracker.closed_reason
        if closed is not None:
            raise ClaimsClosed(f"Claims are closed: {closed}.", reason=closed)
        with self._pinned(asked):
            found = self._tracker.fit(asked.request)
            if not found.fits:
                raise does_not_fit(asked.request, found.shortfalls)
            if not self._tracker.release(present.consumer, now=not self._tracker.is_placement_paused()):
                raise ClaimsClosed(f"What {label(asked.request)} held before is not released yet: try again.")
            return _verdict(Outcome.CLAIMED, self._tracker.claim(asked.request).claim)

    def _pinned(self, asked: DomainRequest) -> AbstractContextManager[None]:
        """While the block lasts the consumer gets its named units and no others. Raises DoesNotFit."""
        return self._tracker.pinned(asked.request, asked.named, asked.bound)

    # A guest comes in

    def _come_in(self, guest: Guest) -> GateVerdict:
        """As a move where the instance holds something elsewhere; else it starts here as any other does."""
        self._ending.comes(guest)
        self._end_before(guest.uuid)
        if self._tracker.claim_of(guest.uuid) is not None:
            return self._enter(guest)
        held = self._client.allocations_of(guest.uuid)
        host = self._tracker.host()
        shared = {provider.uuid for provider in host.providers}
        before = split_allocations(held.allocations, host.is_own, shared.__contains__)
        if not before.elsewhere:
            return self._enter(guest)
        asked = self._wanted(with_allocated_disk(guest, {**before.elsewhere, **before.shared}))
        with self._tracker.expecting(guest, asked.request), self._pinned(asked):
            move = self._tracker.begin_move(asked.request, MoveKind.LIVE_MIGRATE, self._new_uuid()).move
        return GateVerdict(
            Outcome.MOVING,
            guest.uuid,
            f"{label(asked.request)} comes in by migration {move.migration}",
        )

    def _end_before(self, instance: str) -> None:
        """An earlier move of it that waits only for its guest to go, which it has: libvirt lets none come in
        where one runs."""
        self._tracker.forget_guest(instance)
        for move in self._tracker.moves().values():
            if move.instance != instance or move.ended:
                continue
            waits = move.state in (MoveState.REVERTING, MoveState.LEAVING, MoveState.CONFIRMING)
            if waits and not self._tracker.is_placement_paused():
                self._tracker.deliver()

    # A guest goes

    def _leave(self, guest: Guest) -> GateVerdict:
        self._ending.went(guest)
        return GateVerdict(Outcome.NOTED, guest.uuid, f"{guest.name} ({guest.uuid}) has gone")

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """See `Settler.settle`."""
        self._ending.settle(guests, at)


def _verdict(outcome: Outcome, claim: Claim) -> GateVerdict:
    told = amounts_text(claim.request.resources)
    return GateVerdict(outcome, claim.consumer, f"{label(claim.request)} holds {told}")


def _other_claim(present: Claim, asked: DomainRequest) -> ClaimConflict:
    units = [unit for classes in present.units.values() for units in classes.values() for unit in units]
    named = [unit for classes in asked.named.values() for units in classes.values() for unit in units]
    return ClaimConflict(
        f"{label(asked.request)} has a claim of {amounts_text(present.request.resources)}"
        f"{' with ' + ', '.join(units) if units else ''}, and its domain wants "
        f"{amounts_text(asked.request.resources)}{' with ' + ', '.join(named) if named else ''}: release the "
        "claim, or change the domain.",
        consumer=present.consumer,
        holds={uuid: dict(each) for uuid, each in present.allocations.items()},
    )
