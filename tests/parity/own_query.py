"""The same question, asked of Plimsoll."""

from __future__ import annotations

import json

from agent.claims.device_profiles import parse_device_profiles
from agent.claims.guest_cells import guest_cells, wants_cells
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest
from parity.demands import PROFILES
from parity.query import Cells, Demand, Group, Query

DEVICE_PROFILES = parse_device_profiles(
    json.dumps([{"name": name, "groups": groups} for name, groups in PROFILES.items()]).encode(), "profiles"
)
CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


def own_cells(demand: Demand) -> Cells | None:
    """The cells that the claim of such a guest places. Raises UsageError where it is refused."""
    request = _request(demand)
    topology = request.topology
    if not wants_cells(topology):
        return None
    return Cells(
        tuple((cell.floating, cell.pinned, cell.memory_mb) for cell in guest_cells(request)),
        topology.mem_page_size,
        topology.cpu_thread_policy,
        topology.isolate_emulator,
    )


def own_query(demand: Demand) -> Query:
    """What the claim of such a guest asks for. Raises UsageError where it is refused."""
    request = _request(demand)
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


def _request(demand: Demand) -> ClaimRequest:
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
    return parse_claim(body, DEVICE_PROFILES)
