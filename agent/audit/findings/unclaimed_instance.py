"""A guest on this host that has no claim."""

from collections.abc import Collection

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.audit.repair import TakeClaim, WriteAllocations
from agent.claims.claim import Shortfall
from agent.claims.request import ClaimRequest, RequestGroup
from agent.claims.used import IDLE
from agent.driver import Guest
from agent.moves.states import request_for_allocations
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations

AGENT_IDENTITY = ("plimsoll", "plimsoll")
"""The project and the user of the agent's claims where the request names no others."""


class UnclaimedInstance(FindingKind):
    """A guest without allocation and claim, or with an allocation whose claim the agent has lost.

    An allocation that another program wrote needs no claim.
    """

    name = "unclaimed instance"
    rows = (
        TableRow(
            "A guest that is not shut off has neither a claim nor an allocation.",
            "An allocation of what the guest uses, its devices where they are, and a claim for it. If that "
            "does not fit, the finding lists the shortfalls and has no repair.",
            "no",
        ),
        TableRow(
            "A guest has an allocation that this agent wrote, but no claim: the agent's record is lost.",
            "A claim is recorded for the allocation.",
            "yes",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A guest without a claim, with an allocation of the agent's here or with none at all."""
        if case.claim is not None or case.guest is None:
            return None
        if not case.placed.allocations:
            if case.guest.state in IDLE:
                return None  # it uses nothing
            return self._without_allocation(case, case.guest)
        if not case.parts.here or (case.placed.project_id, case.placed.user_id) != AGENT_IDENTITY:
            return None
        request = request_for_allocations(case.consumer, case.placed.allocations, name=case.guest.name)
        return Finding(
            self.name,
            case.consumer,
            f"The guest {case.consumer} ({case.guest.name}) has an allocation that this agent wrote, but no "
            "claim.",
            case.evidence,
            own=True,
            repair=(TakeClaim(request),),
        )

    def _without_allocation(self, case: ConsumerCase, guest: Guest) -> Finding:
        reason = f"The guest {guest.uuid} ({guest.name}) is on this host, and has no claim"
        allocations, problem = _place(case.observation, guest)
        if problem:
            return Finding(self.name, guest.uuid, f"{reason}; {problem}.", case.evidence)
        request = request_for_allocations(guest.uuid, allocations, name=guest.name)
        write = ConsumerAllocations(guest.uuid, allocations)
        return Finding(
            self.name,
            guest.uuid,
            f"{reason}.",
            case.evidence,
            repair=(WriteAllocations(write), TakeClaim(request)),
        )


def _place(observation: Observation, guest: Guest) -> tuple[Allocations, str]:
    """(allocations, "") of what the guest uses, its devices where they are; ({}, clause) where that fails."""
    allocations: dict[str, dict[str, int]] = {}
    rest = dict(guest.resources)
    for used in guest.units:
        provider = observation.devices.get(used.device)
        if provider is None or used.resource_class not in _classes(observation, provider):
            return {}, f"its {used.resource_class} {used.unit} is on no provider of this host"
        _add(allocations, provider, used.resource_class, 1)
        rest[used.resource_class] = rest.get(used.resource_class, 1) - 1
    rest = {name: amount for name, amount in rest.items() if amount > 0}
    if rest:
        request = ClaimRequest(guest.uuid, (RequestGroup("", rest),))
        result = observation.fit(request)
        if not result.fits:
            return {}, f"it does not fit ({_describe(result.shortfalls)})"
        for provider, amounts in result.allocations.items():
            for name, amount in amounts.items():
                _add(allocations, provider, name, amount)
    return (allocations, "") if allocations else ({}, "the resources that it uses are not known")


def _add(allocations: dict[str, dict[str, int]], provider: str, name: str, amount: int) -> None:
    amounts = allocations.setdefault(provider, {})
    amounts[name] = amounts.get(name, 0) + amount


def _classes(observation: Observation, uuid: str) -> Collection[str]:
    provider = observation.host.tree.get(uuid)
    return provider.inventories if provider else ()


def _describe(shortfalls: Collection[Shortfall]) -> str:
    return "; ".join(f"{shortfall.resource_class}: {shortfall.reason}" for shortfall in shortfalls)
