"""The sentences with which a claim is refused: what was asked, what is free, and where. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from agent.claims.claim import Claim, Shortfall
from agent.claims.parse_request import ClaimRequest
from agent.errors import ClaimConflict, DoesNotFit
from agent.shapes import Allocations
from agent.tree import ProviderTree

TOLD_MAX = 4


def does_not_fit(request: ClaimRequest, shortfalls: Sequence[Shortfall]) -> DoesNotFit:
    """Tells the first few shortfalls; all of them are in `details`."""
    told = [_short(short) for short in shortfalls[:TOLD_MAX]]
    if len(told) < len(shortfalls):
        told.append(f"and {len(shortfalls) - len(told)} more")
    return DoesNotFit(
        f"The claim of {label(request)} does not fit: {'; '.join(told)}.",
        consumer=request.consumer,
        shortfalls=[asdict(short) for short in shortfalls],
    )


def refused_by_placement(
    request: ClaimRequest,
    allocations: Allocations,
    message: str,
    tree: ProviderTree,
    free: Callable[[str, str, str], int],
) -> DoesNotFit:
    """By our numbers it fits: tell them, and what placement says. `free` (provider, class, consumer)."""
    return does_not_fit(
        request,
        [
            Shortfall(
                name,
                asked,
                free(uuid, name, request.consumer),
                provider_label(uuid, tree),
                uuid,
                f"placement refuses: {message}",
            )
            for uuid, each in allocations.items()
            for name, asked in each.items()
        ],
    )


def _short(short: Shortfall) -> str:
    if not short.resource_class:
        return short.reason
    where = f" on {short.provider}" if short.provider else ""
    return f"{short.asked} {short.resource_class} asked, {short.free} free{where} ({short.reason})"


def other_claim_conflict(claim: Claim) -> ClaimConflict:
    """The consumer has, or is getting, another claim than the one asked for."""
    return ClaimConflict(
        f"{label(claim.request)} is {claim.state} already, with another request "
        f"({amounts_text(claim.request.resources)}): release it first.",
        consumer=claim.consumer,
        holds={uuid: dict(each) for uuid, each in claim.allocations.items()},
    )


def late_claim_conflict(claim: Claim) -> ClaimConflict:
    """Another claim for the consumer was asked of placement, was not answered, and may be done yet."""
    return ClaimConflict(
        f"Placement did not answer an earlier claim of {label(claim.request)} for "
        f"{amounts_text(claim.request.resources)} and may still execute it: try again in a minute, when the "
        "agent has undone it.",
        consumer=claim.consumer,
    )


def not_covered_conflict(
    request: ClaimRequest, held: Allocations, shortfalls: Sequence[Shortfall], tree: ProviderTree
) -> ClaimConflict:
    """Somebody else wrote an allocation for the consumer, which does not cover what is asked."""
    told = "; ".join(
        f"{provider_label(uuid, tree)}: {amounts_text(each)}"
        for uuid, each in sorted(held.items(), key=lambda item: item[0])
    )
    here = any(uuid in tree for uuid in held)
    why = "; ".join(
        f"{short.asked} {short.resource_class} asked, {short.free} held" for short in shortfalls[:TOLD_MAX]
    )
    return ClaimConflict(
        f"{label(request)} already holds, in placement, {told}; "
        + (f"that does not cover the claim ({why})." if here else "none of it on this host.")
        + " Free that first, or ask for what it holds.",
        consumer=request.consumer,
        holds={uuid: dict(each) for uuid, each in held.items()},
    )


def label(request: ClaimRequest) -> str:
    return f"{request.name} ({request.consumer})" if request.name else f"consumer {request.consumer}"


def amounts_text(resources: Mapping[str, int]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(resources.items()))


def provider_label(uuid: str, tree: ProviderTree) -> str:
    provider = tree.get(uuid)
    return provider.name if provider else f"provider {uuid}"
