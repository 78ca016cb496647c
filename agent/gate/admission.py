"""Admits a guest that starts: finds or makes the claim that covers its domain, or refuses the start.

libvirt waits for the answer with the domain locked. Therefore nothing is asked of the hypervisor.
"""

from collections.abc import Callable, Mapping

from agent import log
from agent.claims.claim import Claim, Restriction
from agent.claims.domain_demand import (
    UNSEEN_MDEV,
    DomainRequest,
    request_for_domain,
    with_allocated_disk,
    with_claimed_devices,
)
from agent.claims.refusal import amounts_text, label
from agent.driver import Guest
from agent.errors import ClaimConflict, ClaimsClosed, DoesNotFit, PlacementFull, PlacementUnavailable
from agent.gate.coverage import covers, made_by_gate
from agent.gate.decision import GateOutcome, GateVerdict
from agent.moves.states import Move
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Units
from agent.tracker.guest_demand import GuestDemand
from agent.tracker.holdings import allocations_for
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

        def decide(claim: Claim | None, move: Move | None) -> tuple[GuestDemand, bool]:
            # libvirt asks for a guest that comes in a second time, at `prepare`.
            is_coming_in = claim is not None and move is not None
            incoming = with_allocated_disk(guest, claim.allocations) if claim and is_coming_in else guest
            if claim is not None:
                incoming = with_claimed_devices(incoming, claim, self._devices())
            wanted = self.request_for(incoming)
            return demand_of(incoming, wanted), claim is not None and self._covers(claim, wanted, move)

        claim, was_held = self._tracker.admit(guest.uuid, decide)
        return _verdict(GateOutcome.HELD if was_held else GateOutcome.CLAIMED, claim)

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
            if unit.device.startswith(UNSEEN_MDEV):
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

    def _covers(self, claim: Claim, wanted: DomainRequest, move: Move | None) -> bool:
        """Whether the guest may start on the claim. False: the gate made it for a former domain.

        Raises ClaimConflict, PlacementUnavailable where the claim may not be replaced, or cannot be now.
        """
        held, unreachable = self._check_still_here(claim)
        if not made_by_gate(claim):
            if not covers(claim, wanted):
                raise _not_covered(claim, wanted)
            self._hold_again(claim, held, move)
            return True
        if claim.request.resources == wanted.request.resources and covers(claim, wanted):
            self._hold_again(claim, held, move)
            return True
        if unreachable is not None:
            raise unreachable  # the claim could not be replaced
        if move is not None:
            raise ClaimConflict(
                f"{label(wanted.request)} is moving, and its domain needs other resources than the move gave "
                "it: end the move first (plimsoll move list).",
                consumer=claim.consumer,
            )
        return False

    def _check_still_here(
        self, claim: Claim
    ) -> tuple[ConsumerAllocations | None, PlacementUnavailable | None]:
        """Raises ClaimConflict where the guest has moved to another host, which it may be running on.

        Returns what Placement holds for it, or the error where Placement is unreachable: then the agent's own
        record decides.
        """
        try:
            held = self._client.allocations_of(claim.consumer)
        except PlacementUnavailable as error:
            LOG.warning(
                "%s starts without a check whether it has moved away: %s", claim.consumer, error.message
            )
            return None, error
        host = self._tracker.host()
        if held.allocations and not any(host.is_own(uuid) for uuid in held.allocations):
            raise ClaimConflict(
                f"{label(claim.request)} has its resources on another host: it has moved there.",
                consumer=claim.consumer,
            )
        return held, None

    def _hold_again(self, claim: Claim, held: ConsumerAllocations | None, move: Move | None) -> None:
        """Write the claim's allocation again where Placement holds nothing for it any more.

        Another client deleted it: then a scheduler was offered what the guest is about to use. Raises
        ClaimConflict where another consumer holds that meanwhile, PlacementError.
        """
        if held is None or held.allocations or move is not None:
            return
        try:
            self._tracker.heal(allocations_for(claim, held.generation))
        except PlacementFull as full:
            raise ClaimConflict(
                f"Placement holds nothing for {label(claim.request)} any more, and other consumers hold what "
                f"it claimed: release its claim, then claim it again. ({full.message})",
                consumer=claim.consumer,
            ) from full


def demand_of(guest: Guest, wanted: DomainRequest) -> GuestDemand:
    """The demand of the guest whose domain was read as `wanted`."""
    return GuestDemand(guest, wanted.request, Restriction(wanted.named, bound=wanted.bound))


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
