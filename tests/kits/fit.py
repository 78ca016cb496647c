"""Requests and providers in short, and fits with names in the place of uuids."""

from __future__ import annotations

from agent.claims.claim import Fit
from agent.claims.fit import fit
from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Inventory, Provider, ProviderTree
from kits.uuids import uuid_of

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
RACK = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
SHARING = "MISC_SHARES_VIA_AGGREGATE"


def provider(
    name: str,
    parent: str | None = None,
    *,
    traits: tuple[str, ...] = (),
    aggregates: tuple[str, ...] = (),
    **classes: int | Inventory,
) -> Provider:
    return Provider(
        uuid_of(name),
        name,
        uuid_of(parent) if parent else None,
        {key: Inventory(item) if isinstance(item, int) else item for key, item in classes.items()},
        frozenset(traits),
        frozenset(aggregates),
    )


def group(suffix: str = "", *required: str, forbidden: str = "", **resources: int) -> RequestGroup:
    return RequestGroup(
        suffix,
        resources,
        tuple(frozenset(item.split(",")) for item in required),
        frozenset(forbidden.split()),
    )


def ask(*groups: RequestGroup, policy: str | None = None, subtree: str = "") -> ClaimRequest:
    return ClaimRequest(CONSUMER, groups, policy, (frozenset(subtree.split()),) if subtree else ())


def fitted(
    request: ClaimRequest,
    *providers: Provider,
    used: dict[str, dict[str, int]] | None = None,
    units: dict[str, dict[str, tuple[str, ...]]] | None = None,
) -> Fit:
    """The fit, with uuids as names."""
    names = {item.uuid: item.name for item in providers}
    result = fit(
        request,
        ProviderIndex.of(ProviderTree(providers)),
        {uuid_of(name): amounts for name, amounts in (used or {}).items()},
        {uuid_of(name): exact for name, exact in (units or {}).items()},
    )
    return Fit(
        result.fits,
        {names[uuid]: dict(amounts) for uuid, amounts in result.allocations.items()},
        {names[uuid]: dict(exact) for uuid, exact in result.units.items()},
        result.shortfalls,
    )


def reasons(result: Fit) -> list[tuple[str, int, int, str, str]]:
    assert not result.fits
    return [(s.resource_class, s.asked, s.free, s.provider, s.reason) for s in result.shortfalls]


HOST = provider("host", VCPU=8, MEMORY_MB=4096, DISK_GB=100)
NUMA = (
    provider("host", DISK_GB=100),
    provider("numa0", "host", VCPU=8, MEMORY_MB=1024),
    provider("numa1", "host", VCPU=8, MEMORY_MB=4096),
    provider("gpu0", "numa0", VGPU=4, traits=("CUSTOM_T4",)),
    provider("gpu1", "numa1", VGPU=4, traits=("CUSTOM_M60",)),
)
