"""A guest on this host that has no claim."""

from collections import Counter
from collections.abc import Collection

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.audit.repair import ClaimUse, TakeClaim
from agent.claims.claim import Restriction, Shortfall
from agent.claims.domain_demand import request_for_domain
from agent.claims.request import ClaimRequest, RequestGroup
from agent.claims.rows import Row
from agent.claims.used import IDLE, use_of
from agent.driver import Guest
from agent.shapes import Units, by_class

AGENT = "plimsoll"
AGENT_IDENTITY = (AGENT, AGENT)
"""The project and the user of the agent's claims where the request names no others."""


class UnclaimedInstance(FindingKind):
    """A guest without allocation and claim, or with an allocation whose claim the agent has lost.

    An allocation that another program wrote needs no claim.
    """

    name = "unclaimed instance"
    rows = (
        TableRow(
            "A guest has neither a claim nor an allocation. A guest that is shut off only if it was here "
            "before the state directory: what was claimed for it is not known.",
            "A claim of what the guest uses, with the devices that it has. If that does not fit, the finding "
            "lists the shortfalls and has no repair.",
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
            if case.guest.state in IDLE and case.consumer not in case.observation.found:
                return None  # it uses nothing
            return self._without_allocation(case, case.guest)
        if not case.parts.here or (case.placed.project_id, case.placed.user_id) != AGENT_IDENTITY:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"The guest {case.consumer} ({case.guest.name}) has an allocation that this agent wrote, but no "
            "claim.",
            case.evidence,
            own=True,
            repair=(TakeClaim(_request_for(case, case.guest), _units_of(case, case.guest)),),
        )

    def _without_allocation(self, case: ConsumerCase, guest: Guest) -> Finding:
        reason = f"The guest {guest.uuid} ({guest.name}) is on this host, and has no claim"
        observation = case.observation
        problem = _problem(observation, guest)
        if problem:
            return Finding(self.name, guest.uuid, f"{reason}; {problem}.", case.evidence)
        cells = {cell.id: cell.provider for cell in observation.cells.cells}
        wanted = request_for_domain(guest, observation.host, observation.devices, cells, user_id=AGENT)
        claim = ClaimUse(wanted.request, Restriction(_offered(observation, wanted.named), bound=wanted.bound))
        return Finding(self.name, guest.uuid, f"{reason}.", case.evidence, repair=(claim,))


def _offered(observation: Observation, units: Units) -> Units:
    """The units of the classes of which the driver offers all of them; it may not name those of a class."""
    return {
        uuid: {
            name: exact
            for name, exact in classes.items()
            if set(exact) <= set(observation.offered.get(uuid, {}).get(name, ()))
        }
        for uuid, classes in units.items()
    }


def _request_for(case: ConsumerCase, guest: Guest) -> ClaimRequest:
    """A request that the guest's allocation covers, also where two providers have amounts of one class."""
    groups = tuple(
        RequestGroup(f"_{number}", dict(amounts))
        for number, (_, amounts) in enumerate(sorted(case.placed.allocations.items()), start=1)
    )
    return ClaimRequest(
        case.consumer,
        groups,
        group_policy="none" if len(groups) > 1 else None,
        name=guest.name,
        project_id=AGENT,
        user_id=AGENT,
    )


def _units_of(case: ConsumerCase, guest: Guest) -> Restriction:
    """The units that the guest uses, and others only of classes of which it has more."""
    held = case.placed.allocations
    row = Row(case.consumer, {case.consumer: held}, {}, guest)
    units = _offered(case.observation, use_of(row, case.observation.place).units)
    used = Counter(name for classes in units.values() for name, exact in classes.items() for _ in exact)
    has = by_class(held.values())
    return Restriction(units, frozenset(name for name in used if used[name] < has.get(name, 0)))


def _problem(observation: Observation, guest: Guest) -> str:
    """Why what the guest uses cannot be claimed, as a clause; empty if it can."""
    rest = dict(guest.resources)
    for used in guest.units:
        provider = observation.devices.get(used.device)
        if provider is None or used.resource_class not in _classes(observation, provider):
            return f"its {used.resource_class} {used.unit} is on no provider of this host"
        rest[used.resource_class] = rest.get(used.resource_class, 1) - 1
    rest = {name: amount for name, amount in rest.items() if amount > 0}
    if rest:
        request = ClaimRequest(guest.uuid, (RequestGroup("", rest),))
        result = observation.fit(request)
        if not result.fits:
            return f"it does not fit ({_describe(result.shortfalls)})"
    return "" if rest or guest.units else "the resources that it uses are not known"


def _classes(observation: Observation, uuid: str) -> Collection[str]:
    provider = observation.host.tree.get(uuid)
    return provider.inventories if provider else ()


def _describe(shortfalls: Collection[Shortfall]) -> str:
    return "; ".join(f"{shortfall.resource_class}: {shortfall.reason}" for shortfall in shortfalls)
