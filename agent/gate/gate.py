"""The gate: decides for libvirt's hook whether a guest may start here or come in by a live migration.

A guest that comes in is a move, which this host, the destination, begins; the hook of the source decides
nothing. `agent.gate.settle` ends claims and moves afterwards.
Source: https://libvirt.org/hooks.html#etc-libvirt-hooks-qemu
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from uuid import uuid4

from agent.claims.claim import Claim
from agent.claims.domain_demand import with_allocated_disk
from agent.claims.refusal import label
from agent.doctor.check import start_problems
from agent.driver import Guest, HostSettings, PassedDevice
from agent.errors import ClaimsClosed, DeviceUnfit, DriverDataError, Refused, UsageError
from agent.gate.admission import GuestAdmission, demand_of
from agent.gate.cpu_power import power_down, power_up
from agent.gate.decision import GateOutcome, GateVerdict, HookCall
from agent.gate.expected_guests import ExpectedGuests
from agent.gate.settle import ABSENT, Settler
from agent.moves.ownership import split_allocations
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import PlacementClient
from agent.tracker.tracker import ResourceTracker


class Gate:
    """Any thread may call. `guest_of` reads a domain's XML, `passed_devices` the PCI devices that it names.

    `devices` returns {provider uuid: device}.
    """

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        guest_of: Callable[[str], Guest],
        devices: Callable[[], Mapping[str, str]],
        passed_devices: Callable[[str], Collection[PassedDevice]] = lambda xml: (),
        *,
        clock: Callable[[], float] = time.time,
        new_uuid: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._tracker = tracker
        self._client = client
        self._guest_of = guest_of
        self._passed_devices = passed_devices
        self._new_uuid = new_uuid
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
                down = power_down(guest, settings, self._others(guest), self._claims_of_others(guest))
                return replace(self._leave(guest), cpu_power=down)
        return GateVerdict(
            GateOutcome.IGNORED, None, f"the gate does nothing at {call.operation} {call.sub_operation}"
        )

    def claim_running(self, guests: Collection[Guest]) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        """Claim for each running guest without a claim, as if it started now.

        Also for those that do not run and that were here before the state directory, which has lost what was
        claimed for them, if anything was.

        Returns each such guest with the verdict or the refusal. Raises ClaimsClosed, PlacementError.
        """
        claims, found = self._tracker.claims(), self._tracker.found_guests()
        verdicts: list[tuple[Guest, GateVerdict | Refused]] = []
        for guest in guests:
            is_absent = guest.state in ABSENT
            if (is_absent and guest.uuid not in found) or guest.uuid in claims or guest.problem is not None:
                continue
            try:
                verdicts.append((guest, self._admission.admit(guest) if is_absent else self._start(guest)))
                if is_absent:
                    self._tracker.expect_no_more(guest.uuid)
            except ClaimsClosed:
                raise
            except Refused as refused:
                verdicts.append((guest, refused))
        return tuple(verdicts)

    def settle(self, guests: Collection[Guest], at: float) -> None:
        """End the claims and moves that are over. See `Settler.settle`."""
        self._settler.settle(guests, at)

    def _read(self, xml: str) -> Guest:
        try:
            return self._guest_of(xml)
        except DriverDataError as error:
            raise UsageError(error.message) from error

    def _check_devices(self, xml: str, guest: Guest) -> Guest:
        """The guest. Raises DeviceUnfit where it would hang or fail with a PCI device of its domain."""
        passed = self._passed_devices(xml)
        if passed:
            holders = {
                unit.unit: f"{row.guest.name} ({row.instance})"
                for row in self._tracker.rows().values()
                if row.guest is not None and row.instance != guest.uuid and row.guest.state not in ABSENT
                for unit in row.guest.units
            }
            problems = list(start_problems(passed, holders))
            if problems:
                raise DeviceUnfit(
                    f"{guest.name} ({guest.uuid}) would not start with its devices: {' '.join(problems)}",
                    consumer=guest.uuid,
                    problems=problems,
                )
        return guest

    def _others(self, guest: Guest) -> list[Guest]:
        """The other guests that are here."""
        rows = self._tracker.rows().values()
        present = [row.guest for row in rows if row.guest is not None and row.instance != guest.uuid]
        return [other for other in present if other.state not in ABSENT]

    def _claims_of_others(self, guest: Guest) -> list[Claim]:
        rows = self._tracker.rows().values()
        return [claim for row in rows if row.instance != guest.uuid for claim in row.claimed.values()]

    def _start(self, guest: Guest) -> GateVerdict:
        self._expected.let_in(guest.uuid)
        return self._admission.admit(guest)

    def _come_in(self, guest: Guest) -> GateVerdict:
        """Begin a move if the instance has an allocation on another host; otherwise the guest just starts."""
        self._expected.let_in(guest.uuid)
        self._end_former_move(guest.uuid)
        if self._tracker.claim_of(guest.uuid) is not None:
            return self._start(guest)
        placed = self._client.allocations_of(guest.uuid)
        host = self._tracker.host()
        shared = {provider.uuid for provider in host.providers}
        source = split_allocations(placed.allocations, host.is_own, shared.__contains__)
        if not source.elsewhere:
            return self._start(guest)
        wanted = self._admission.request_for(
            with_allocated_disk(guest, {**source.elsewhere, **source.shared})
        )
        demand = demand_of(guest, wanted)
        move = self._tracker.begin_move(wanted.request, MoveKind.LIVE_MIGRATE, self._new_uuid(), demand).move
        return GateVerdict(
            GateOutcome.MOVING, guest.uuid, f"{label(wanted.request)} comes in by migration {move.migration}"
        )

    def _end_former_move(self, instance: str) -> None:
        """End a former move that waits only until its guest has left this host.

        It has left: libvirt lets no guest come in that already runs here.
        """
        self._tracker.forget_guest(instance)
        for move in self._tracker.moves().values():
            if move.instance != instance or move.ended:
                continue
            waits = move.state in (MoveState.REVERTING, MoveState.LEAVING, MoveState.CONFIRMING)
            if waits and not self._tracker.is_placement_paused():
                self._tracker.deliver()

    def _leave(self, guest: Guest) -> GateVerdict:
        self._expected.end(guest.uuid)
        return GateVerdict(GateOutcome.NOTED, guest.uuid, f"{guest.name} ({guest.uuid}) has ended")
