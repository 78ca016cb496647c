"""Answers of the local API that `docs/cli.md` shows as the command line draws them."""

from agent.api.shapes.host import TreeShape
from agent.api.shapes.instance import InstancesShape

TREE: TreeShape = {
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

INSTANCES: InstancesShape = {
    "instances": [
        {
            "uuid": "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
            "name": "web1",
            "guest": {"state": "running", "resources": {"MEMORY_MB": 4096, "VCPU": 2}, "units": []},
            "moved_away": False,
            "advice": None,
            "migration_of": None,
            "migration": None,
            "claim": {
                "consumer": "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
                "name": "web1",
                "state": "claimed",
                "adopted": False,
                "since": "2026-11-21T10:00:00+00:00",
                "allocations": {
                    "11111111-1111-4111-8111-111111111111": {"resources": {"MEMORY_MB": 4096, "VCPU": 2}},
                    "33333333-3333-4333-8333-333333333333": {"resources": {"VGPU": 1}},
                },
                "units": {
                    "33333333-3333-4333-8333-333333333333": {"VGPU": ["4b20d080-1b54-4048-85b3-a6a62d165c01"]}
                },
                "cells": [],
                "to_make": {
                    "4b20d080-1b54-4048-85b3-a6a62d165c01": {"parent": "0000:84:00.0", "type": "nvidia-11"}
                },
                "mappings": [
                    {
                        "suffix": "",
                        "label": "",
                        "allocations": {
                            "11111111-1111-4111-8111-111111111111": {
                                "resources": {"MEMORY_MB": 4096, "VCPU": 2}
                            }
                        },
                        "units": {},
                    },
                    {
                        "suffix": "1",
                        "label": "1",
                        "allocations": {"33333333-3333-4333-8333-333333333333": {"resources": {"VGPU": 1}}},
                        "units": {
                            "33333333-3333-4333-8333-333333333333": {
                                "VGPU": ["4b20d080-1b54-4048-85b3-a6a62d165c01"]
                            }
                        },
                    },
                ],
                "request": {
                    "consumer": "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
                    "groups": [
                        {"resources": {"MEMORY_MB": 4096, "VCPU": 2}},
                        {"suffix": "1", "resources": {"VGPU": 1}},
                    ],
                    "group_policy": "none",
                    "name": "web1",
                    "project_id": "plimsoll",
                    "user_id": "plimsoll",
                    "consumer_type": "INSTANCE",
                },
                "made_by": {"uid": 0, "program": "ansible"},
            },
        },
        {
            "uuid": "8d7b4f34-5d0c-4d8c-8a2d-6b1f0e9c7a21",
            "name": "built-by-hand",
            "guest": {
                "state": "running",
                "resources": {"DISK_GB": 20, "MEMORY_MB": 2048, "VCPU": 2},
                "units": [],
            },
            "moved_away": False,
            "advice": None,
            "migration_of": None,
            "migration": None,
            "claim": None,
        },
    ]
}
