"""Admits a guest that starts: finds or makes the claim that covers its domain, or refuses the start.

libvirt waits for the answer with the domain locked. Therefore nothing is asked of the hypervisor.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.claims.refusal import amounts_text, does_not_fit, label
from agent.driver import Guest
from agent.errors import ClaimConflict, ClaimsClosed, DoesNotFit, PlacementUnavailable
from agent.gate.coverage import covers, made_by_gate
from agent.gate.decision import GateOutcome, GateVerdict
from agent.gate.domain_request import DomainRequest, request_for_domain, with_allocated_disk
from agent.moves.states import Move
from agent.placement.client import PlacementClient
from agent.shapes import Units
from agent.tracker.tracker import ResourceTracker

LOG = log.get(__name__)


class GuestAdmission:
    """Any thread may call. `devices` returns {provider uuid: device}."""

    def __init__(
        self,
        tracker: ResourceTracker,
        client: PlacementClient,
        devices: Callable[[], Mapping[str, str]],
    ) -> None:
        self._tracker = tracker
        self._client = client
        self._devices = devices

    def admit(self, guest: Guest) -> GateVerdict:
        """Let the guest start on a claim that covers its domain.

        Raises DoesNotFit, ClaimConflict, ClaimsClosed, PlacementError, StateError: the guest may not start.
        """
        claim, move = self._tracker.claim_and_move_of(guest.uuid)
        if claim is not None and move is not None:
            # libvirt asks for a guest that comes in a second time, at `prepare`.
            guest = with_allocated_disk(guest, claim.allocations)
        wanted = self.request_for(guest)
        with self._tracker.expecting(guest, wanted.request):
            if claim is None or claim.state is not ClaimState.CLAIMED:
                return self._claim(wanted)
            return self._start_on(claim, wanted, move)

    def request_for(self, guest: Guest) -> DomainRequest:
        """The request for the guest's domain.

        Raises ClaimsClosed before the first inventory, and DoesNotFit for a mediated device that the agent
        does not know yet.
        """
        host, cells = self._tracker.host_and_cells()
        if host.root is None:
            raise ClaimsClosed("Claims are closed: the agent has not read the whole host yet.")
        devices = {device: uuid for uuid, device in self._devices().items()}
        wanted = request_for_domain(guest, host, devices, {cell.id: cell.provider for cell in cells.cells})
        for unit in wanted.unmanaged:
            if unit.device.startswith("mdev:"):
                raise DoesNotFit(
                    f"The mediated device {unit.unit} of {label(wanted.request)} is on no provider of this "
                    "host (yet): if it was created just now, try again in a moment.",
                    consumer=guest.uuid,
                    shortfalls=[],
                )
            LOG.info("%s uses %s, which is not managed: nothing is claimed for it.", guest.name, unit.unit)
        if guest.problem is not None:
            LOG.info("For %s no disk space is claimed: %s.", guest.name, guest.problem)
        return wanted

    def pinned(self, wanted: DomainRequest) -> AbstractContextManager[None]:
        """In the block, a claim or a move gets exactly the units that the domain names. Raises DoesNotFit."""
        return self._tracker.pinned(wanted.request, wanted.named, wanted.bound)

    def _claim(self, wanted: DomainRequest) -> GateVerdict:
        with self.pinned(wanted):
            return _verdict(GateOutcome.CLAIMED, self._tracker.claim(wanted.request).claim)

    def _start_on(self, claim: Claim, wanted: DomainRequest, move: Move | None) -> GateVerdict:
        """Start on the consumer's claim, or on a new one if the gate made the claim for a former domain."""
        unreachable = self._check_still_here(claim)
        if not made_by_gate(claim):
            if not covers(claim, wanted):
                raise _not_covered(claim, wanted)
            return _verdict(GateOutcome.HELD, claim)
        if claim.request == wanted.request and covers(claim, wanted):
            return _verdict(GateOutcome.HELD, claim)
        if unreachable is not None:
            raise unreachable  # the old claim would be released, and the new one could not be made
        if move is not None:
            raise ClaimConflict(
                f"{label(wanted.request)} is moving, and its domain needs other resources than the move gave "
                "it: end the move first (plimsoll move list).",
                consumer=claim.consumer,
            )
        return self._replace(claim, wanted)

    def _check_still_here(self, claim: Claim) -> PlacementUnavailable | None:
        """Raises ClaimConflict where the guest has moved to another host, which it may be running on.

        Returns the error where Placement is unreachable: then the agent's own record decides.
        """
        try:
            allocations = self._client.allocations_of(claim.consumer).allocations
        except PlacementUnavailable as error:
            LOG.warning(
                "%s starts without a check whether it has moved away: %s", claim.consumer, error.message
            )
            return error
        host = self._tracker.host()
        if allocations and not any(host.is_own(uuid) for uuid in allocations):
            raise ClaimConflict(
                f"{label(claim.request)} has its resources on another host: it has moved there.",
                consumer=claim.consumer,
            )
        return None

    def _replace(self, claim: Claim, wanted: DomainRequest) -> GateVerdict:
        """Make a new claim for a changed domain. The old claim is released only if the new one fits."""
        closed = self._tracker.closed_reason
        if closed is not None:
            raise ClaimsClosed(f"Claims are closed: {closed}.", reason=closed)
        with self.pinned(wanted):
            fit = self._tracker.fit(wanted.request)
            if not fit.fits:
                raise does_not_fit(wanted.request, fit.shortfalls)
            if not self._tracker.release(claim.consumer, now=not self._tracker.is_placement_paused()):
                raise ClaimsClosed(
                    f"The former claim of {label(wanted.request)} is not released yet: try again in a moment."
                )
            return _verdict(GateOutcome.CLAIMED, self._tracker.claim(wanted.request).claim)


def _verdict(outcome: GateOutcome, claim: Claim) -> GateVerdict:
    amounts = amounts_text(claim.request.resources)
    return GateVerdict(outcome, claim.consumer, f"{label(claim.request)} holds {amounts}")


def _not_covered(claim: Claim, wanted: DomainRequest) -> ClaimConflict:
    return ClaimConflict(
        f"{label(wanted.request)} has a claim of {amounts_text(claim.request.resources)}"
        f"{_with_units(claim.units)}, and its domain needs {amounts_text(wanted.request.resources)}"
        f"{_with_units(wanted.named)}: release the claim, or change the domain.",
        consumer=claim.consumer,
        holds={uuid: dict(amounts) for uuid, amounts in claim.allocations.items()},
    )


def _with_units(units: Units) -> str:
    names = [unit for classes in units.values() for exact in classes.values() for unit in exact]
    return f" with {', '.join(names)}" if names else ""
