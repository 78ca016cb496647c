"""What both sides of the comparison are asked: hosts, claims, swaps, a reshape and candidates.

`Ask` sends one request at 1.39 and answers status and body; it is all that the two sides have in common.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

Ask = Callable[[str, str, Any], tuple[int, Any]]

GPUS_PER_HOST = 8
UNITS_PER_GPU = 16


class Refused(Exception):
    """A request that the benchmark relies on was not granted."""


def done(ask: Ask, method: str, path: str, body: Any = None) -> Any:
    """:raises Refused: not a 2xx"""
    status, answer = ask(method, path, body)
    if status >= 300:
        raise Refused(f"{method} {path}: {status} {answer}")
    return answer


def provider(ask: Ask, name: str, parent: str | None = None, **totals: int) -> str:
    """Make a provider with these totals; answers its uuid."""
    made = str(uuid.uuid4())
    done(ask, "POST", "/resource_providers", {"name": name, "uuid": made, "parent_provider_uuid": parent})
    if totals:
        inventories = {resource_class: {"total": total} for resource_class, total in totals.items()}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        done(ask, "PUT", f"/resource_providers/{made}/inventories", body)
    return made


def host(ask: Ask, name: str) -> str:
    """A root with two NUMA cells, eight GPUs and four network ports: 15 providers."""
    root = provider(ask, name, DISK_GB=10_000)
    cells = [provider(ask, f"{name}_numa{n}", root, VCPU=64, MEMORY_MB=262_144) for n in range(2)]
    for number in range(GPUS_PER_HOST):
        provider(ask, f"{name}_gpu{number}", cells[number % 2], VGPU=UNITS_PER_GPU)
    for number in range(4):
        provider(ask, f"{name}_port{number}", cells[number % 2], SRIOV_NET_VF=16)
    return root


def held(resources: dict[str, dict[str, int]], generation: int | None = None) -> dict[str, Any]:
    """The body of a claim."""
    return {
        "allocations": {uuid: {"resources": part} for uuid, part in resources.items()},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    }


class Trio:
    """Three providers of one tree, wide enough for any number of claims."""

    def __init__(self, ask: Ask, name: str = "trio") -> None:
        root = provider(ask, name, VCPU=10**6, MEMORY_MB=10**9)
        gpu = provider(ask, f"{name}_gpu", root, VGPU=10**6)
        port = provider(ask, f"{name}_port", root, SRIOV_NET_VF=10**6)
        self.resources = {
            root: {"VCPU": 1, "MEMORY_MB": 512},
            gpu: {"VGPU": 1},
            port: {"SRIOV_NET_VF": 1},
        }

    def claim(self, ask: Ask) -> str:
        consumer = str(uuid.uuid4())
        done(ask, "PUT", f"/allocations/{consumer}", held(self.resources))
        return consumer

    def swap(self, ask: Ask, instance: str) -> None:
        """What the instance holds goes to a migration."""
        body = {str(uuid.uuid4()): held(self.resources), instance: held({}, 1)}
        done(ask, "POST", "/allocations", body)


def reshape_body(ask: Ask, consumers: int) -> dict[str, Any]:
    """A flat provider whose consumers hold a VGPU each, and the body that moves them to eight children."""
    name = f"flat{consumers}"
    root = provider(ask, name, VGPU=consumers)
    children = [provider(ask, f"{name}_{number}", root) for number in range(8)]
    holders = [str(uuid.uuid4()) for _ in range(consumers)]
    for holder in holders:
        done(ask, "PUT", f"/allocations/{holder}", held({root: {"VGPU": 1}}))
    generation = done(ask, "GET", f"/resource_providers/{root}")["generation"]
    offered = {"VGPU": {"total": consumers}}
    inventories = {child: {"resource_provider_generation": 0, "inventories": offered} for child in children}
    inventories[root] = {"resource_provider_generation": generation, "inventories": {}}
    moved = {holder: held({children[number % 8]: {"VGPU": 1}}, 1) for number, holder in enumerate(holders)}
    return {"inventories": inventories, "allocations": moved}


THREE_GROUPS = (
    "/allocation_candidates?resources=DISK_GB:10&resources_C=VCPU:4,MEMORY_MB:4096&resources_G=VGPU:1"
    "&group_policy=none&limit=10"
)


def isolated_groups(count: int) -> str:
    groups = "&".join(f"resources_{number}=VGPU:1" for number in range(count))
    return f"/allocation_candidates?{groups}&group_policy=isolate&limit=10"
