"""Whether a claim is the gate's, and whether it covers the domain that starts on it. Pure."""

from agent.claims.claim import Claim
from agent.claims.domain_demand import GATE_USER, MEMORY, DomainRequest
from agent.moves.states import Move


def made_by_gate(claim: Claim) -> bool:
    """Whether the gate made the claim, and no other program wrote its allocation."""
    return claim.request.user_id == GATE_USER and not claim.adopted


def brought_in_by_gate(move: Move) -> bool:
    """Whether this host's gate began the move."""
    return move.new is not None and move.new.request.user_id == GATE_USER


def covers(claim: Claim, wanted: DomainRequest) -> bool:
    """Whether the claim has all amounts of the domain, and its named units where the claim has exact units.

    A claim of the gate must also have the memory on the domain's cells. Where another claim has its memory is
    decided by the program that made it.
    """
    amounts = claim.request.resources
    if any(amount > amounts.get(name, 0) for name, amount in wanted.request.resources.items()):
        return False
    if made_by_gate(claim) and any(
        amount > claim.allocations.get(uuid, {}).get(MEMORY, 0) for uuid, amount in wanted.memory.items()
    ):
        return False
    return all(
        _has_units(claim, uuid, name, units)
        for uuid, classes in wanted.named.items()
        for name, units in classes.items()
    )


def _has_units(claim: Claim, uuid: str, name: str, units: tuple[str, ...]) -> bool:
    exact = claim.units.get(uuid, {}).get(name)
    if exact is not None and not set(units) <= set(exact):
        return False
    return len(units) <= claim.allocations.get(uuid, {}).get(name, 0)
