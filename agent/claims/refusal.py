"""The errors with which a claim is refused: what was asked, what is free, and where. Pure."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from agent.claims.claim import Claim, Shortfall
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.driver import Guest
from agent.errors import ClaimConflict, DoesNotFit, GuestRuns
from agent.shapes import Allocations, beyond, by_class
from agent.tree import ProviderTree

SHOWN_MAX = 4


def does_not_fit(request: ClaimRequest, shortfalls: Sequence[Shortfall]) -> DoesNotFit:
    """The error for a request that does not fit: the first shortfalls in its sentence, all in `details`."""
    clauses = [_clause(shortfall) for shortfall in shortfalls[:SHOWN_MAX]]
    if len(clauses) < len(shortfalls):
        clauses.append(f"and {len(shortfalls) - len(clauses)} more")
    return DoesNotFit(
        f"The claim of {label(request)} does not fit: {'; '.join(clauses)}.",
        consumer=request.consumer,
        shortfalls=[shortfall.to_json() for shortfall in shortfalls],
    )


def refused_by_placement(
    request: ClaimRequest,
    allocations: Allocations,
    message: str,
    tree: ProviderTree,
    free: Callable[[str, str, str], int],
) -> DoesNotFit:
    """The error for a request that fits by the agent's book, and that Placement refuses with `message`.

    `free` (provider uuid, class, consumer) returns the amount that the book says is free.
    """
    return does_not_fit(
        request,
        [
            Shortfall(
                name,
                asked,
                free(uuid, name, request.consumer),
                provider_label(uuid, tree),
                uuid,
                f"Placement refuses: {message}",
            )
            for uuid, amounts in allocations.items()
            for name, asked in amounts.items()
        ],
    )


def _clause(shortfall: Shortfall) -> str:
    if not shortfall.resource_class:
        named = bool(shortfall.traits and shortfall.provider)
        return f"{shortfall.provider} {shortfall.reason}" if named else shortfall.reason
    where = f" on {shortfall.provider}" if shortfall.provider else ""
    asked = f"{shortfall.asked} {shortfall.resource_class} asked"
    return f"{asked}, {shortfall.free} free{where} ({shortfall.reason})"


def other_claim_conflict(claim: Claim) -> ClaimConflict:
    """The error for a consumer that already has a claim for another request."""
    return ClaimConflict(
        f"{label(claim.request)} is {claim.state} already, with another request "
        f"({amounts_text(claim.request.resources)}): release it first.",
        consumer=claim.consumer,
        holds={uuid: dict(amounts) for uuid, amounts in claim.allocations.items()},
    )


def guest_runs(guest: Guest, row: Row) -> GuestRuns:
    """The error for the release of a claim whose guest runs; `row` is the guest's in the book."""
    offered = by_class(beyond(row.need, row.used.amounts).values())
    reserved = by_class(row.used.amounts.values())
    effects = [
        f"{amounts_text(amounts)} {effect}"
        for amounts, effect in (
            (offered, "would be offered to others"),
            (reserved, "would stay reserved only while the guest runs"),
        )
        if amounts
    ]
    return GuestRuns(
        f"The guest {guest.name} ({guest.uuid}) is {guest.state} on this host, and the agent keeps its claim"
        f"{': without it, ' * bool(effects)}{', and '.join(effects)}. Stop the guest first, or use --force.",
        consumer=guest.uuid,
        offered=offered,
        reserved=reserved,
    )


def not_covered_conflict(
    request: ClaimRequest, held: Allocations, shortfalls: Sequence[Shortfall], tree: ProviderTree
) -> ClaimConflict:
    """The error for a consumer whose allocation, written by another service, does not cover the request."""
    allocated = "; ".join(
        f"{provider_label(uuid, tree)}: {amounts_text(amounts)}"
        for uuid, amounts in sorted(held.items(), key=lambda item: item[0])
    )
    on_this_host = any(uuid in tree for uuid in held)
    why = "; ".join(
        f"{shortfall.asked} {shortfall.resource_class} asked, {shortfall.free} held"
        for shortfall in shortfalls[:SHOWN_MAX]
    )
    return ClaimConflict(
        f"{label(request)} already has an allocation in Placement: {allocated}; "
        + (f"that does not cover the claim ({why})." if on_this_host else "none of it is on this host.")
        + " Release that first, or ask for what it has.",
        consumer=request.consumer,
        holds={uuid: dict(amounts) for uuid, amounts in held.items()},
    )


def label(request: ClaimRequest) -> str:
    """The consumer in a sentence: "name (uuid)", or "consumer uuid"."""
    return f"{request.name} ({request.consumer})" if request.name else f"consumer {request.consumer}"


def amounts_text(
    resources: Mapping[str, int], units: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """{class: amount} in a sentence: "2048 MEMORY_MB, 2 VCPU".

    `units` {class: exact units} are named with their amounts: "1 SRIOV_NET_VF (0000:41:02.0), 2 VCPU".
    """
    return ", ".join(
        f"{amount} {name}" + (f" ({', '.join(units[name])})" if units.get(name) else "")
        for name, amount in sorted(resources.items())
    )


def provider_label(uuid: str, tree: ProviderTree) -> str:
    """The provider in a sentence: its name, or "provider uuid" where the tree does not have it."""
    provider = tree.get(uuid)
    return provider.name if provider else f"provider {uuid}"
