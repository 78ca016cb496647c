"""The provider tree: `GET /v1/tree`."""

from typing import Annotated, TypedDict

from agent.api.shapes.schema import Count, Uuid


class InventoryShape(TypedDict):
    """An inventory, in Placement's terms."""

    total: Count
    reserved: Count
    min_unit: Count
    max_unit: Count
    step_size: Count
    allocation_ratio: float
    capacity: Annotated[int, "(total - reserved) * allocation_ratio"]


class ResourceProviderShape(TypedDict):
    """A resource provider, with its inventories and usages."""

    uuid: Uuid
    name: str
    parent_provider_uuid: str | None
    root_provider_uuid: Uuid
    generation: int | None
    inventories: Annotated[dict[str, InventoryShape], "{resource class: inventory}"]
    usages: Annotated[
        dict[str, Count], "{resource class: amount in use}, by any consumer; 0 where nothing is in use"
    ]
    unclaimed: Annotated[
        dict[str, Count],
        "{resource class: amount} that guests use without a claim; the agent reserves it",
    ]
    traits: list[str]
    aggregates: list[Uuid]


class TreeShape(TypedDict):
    """The provider tree of this host."""

    resource_providers: Annotated[list[ResourceProviderShape], "depth first, each parent before its children"]
    warnings: Annotated[list[str], "sentences on what is offered and not there"]


SAMPLE: TreeShape = {
    "resource_providers": [
        {
            "uuid": "11111111-1111-4111-8111-111111111111",
            "name": "host1",
            "parent_provider_uuid": None,
            "root_provider_uuid": "11111111-1111-4111-8111-111111111111",
            "generation": 7,
            "inventories": {
                "DISK_GB": {
                    "total": 500,
                    "reserved": 10,
                    "min_unit": 1,
                    "max_unit": 500,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                    "capacity": 490,
                },
                "MEMORY_MB": {
                    "total": 65536,
                    "reserved": 512,
                    "min_unit": 1,
                    "max_unit": 65536,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                    "capacity": 65024,
                },
                "VCPU": {
                    "total": 16,
                    "reserved": 0,
                    "min_unit": 1,
                    "max_unit": 16,
                    "step_size": 1,
                    "allocation_ratio": 4.0,
                    "capacity": 64,
                },
            },
            "usages": {"DISK_GB": 0, "MEMORY_MB": 0, "VCPU": 32},
            "unclaimed": {},
            "traits": ["COMPUTE_NODE"],
            "aggregates": [],
        },
        {
            "uuid": "22222222-2222-4222-8222-222222222222",
            "name": "host1_numa0",
            "parent_provider_uuid": "11111111-1111-4111-8111-111111111111",
            "root_provider_uuid": "11111111-1111-4111-8111-111111111111",
            "generation": 2,
            "inventories": {},
            "usages": {},
            "unclaimed": {},
            "traits": ["HW_NUMA_ROOT"],
            "aggregates": [],
        },
        {
            "uuid": "33333333-3333-4333-8333-333333333333",
            "name": "host1_pci_0000:84:00.0",
            "parent_provider_uuid": "22222222-2222-4222-8222-222222222222",
            "root_provider_uuid": "11111111-1111-4111-8111-111111111111",
            "generation": 5,
            "inventories": {
                "VGPU": {
                    "total": 4,
                    "reserved": 0,
                    "min_unit": 1,
                    "max_unit": 4,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                    "capacity": 4,
                }
            },
            "usages": {"VGPU": 4},
            "unclaimed": {},
            "traits": [],
            "aggregates": [],
        },
    ],
    "warnings": [],
}
