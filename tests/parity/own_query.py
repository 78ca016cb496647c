"""The same question, asked of Plimsoll."""

from __future__ import annotations

from agent.claims.parse_request import parse_claim
from parity.query import Demand, Group, Query

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


def own_query(demand: Demand) -> Query:
    """What the claim of such a guest asks for. Raises UsageError where it is refused."""
    body = {
        "consumer": CONSUMER,
        "flavor": {
            "vcpus": demand.vcpus,
            "memory_mb": demand.memory_mb,
            "disk_gb": demand.disk_gb,
            "extra_specs": dict(demand.specs),
        },
    }
    if demand.image is not None:
        body["image"] = dict(demand.image)
    request = parse_claim(body)
    return Query(
        {
            group.suffix: Group(
                dict(group.resources),
                frozenset(name for any_of in group.required for name in any_of),
                group.forbidden,
            )
            for group in request.groups
        },
        request.root_required,
        request.root_forbidden,
        request.group_policy,
    )
