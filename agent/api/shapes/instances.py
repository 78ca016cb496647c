"""Guests and claims side by side: `GET /v1/instances`."""

from collections.abc import Iterable
from typing import Annotated, TypedDict

from agent.api.shapes.claims import ClaimShape, total_amounts
from agent.api.shapes.columns import Column, amounts_text
from agent.api.shapes.schema import ResourcesShape, Uuid, Values


def _guest_states() -> Iterable[str]:
    from agent.driver import GuestState

    return GuestState


class UsedUnitShape(TypedDict):
    """An exact unit that a guest uses, such as a virtual function or a mediated device."""

    resource_class: str
    unit: str
    device: str


class GuestShape(TypedDict):
    """A guest, as the virt driver sees it."""

    state: Annotated[str, Values(_guest_states)]
    resources: ResourcesShape
    units: list[UsedUnitShape]


class InstanceShape(TypedDict):
    """An instance: its guest, its claim, or both."""

    uuid: Uuid
    name: str
    guest: Annotated[GuestShape | None, "null: the host has no such guest"]
    moved_away: Annotated[bool, "true: the guest is here, and by Placement its instance is on another host"]
    advice: Annotated[str | None, "what to do about the guest, in sentences; null: nothing"]
    migration_of: Annotated[
        Uuid | None, "the instance whose old place this migration holds during a move; null: not a migration"
    ]
    migration: Annotated[
        Uuid | None, "the migration of the move that the instance is in; null: it is in none"
    ]
    claim: Annotated[
        ClaimShape | None, "null: the guest has no claim; at the source of a move, its migration has it"
    ]


class InstancesShape(TypedDict):
    """All instances of this host."""

    instances: Annotated[list[InstanceShape], "by uuid"]


def _guest(instance: InstanceShape) -> str:
    return instance["guest"]["state"] if instance["guest"] else "none"


def _claim(instance: InstanceShape) -> str:
    if instance["moved_away"]:
        return "MOVED AWAY"
    if instance["migration_of"] is not None:
        return "migration"
    if instance["claim"] is None:
        return "UNCLAIMED" if instance.get("migration") is None else "moving"
    return instance["claim"]["state"]


def _claim_and_origin(instance: InstanceShape) -> str:
    text, claim = _claim(instance), instance["claim"]
    return f"{text}, adopted" if claim and claim["adopted"] and text == claim["state"] else text


def _resources(instance: InstanceShape) -> str:
    guest, claim = instance["guest"], instance["claim"]
    return amounts_text(total_amounts(claim["allocations"]) if claim else guest["resources"] if guest else {})


INSTANCE_COLUMNS: tuple[Column[InstanceShape], ...] = (
    Column("UUID", lambda instance: instance["uuid"]),
    Column("NAME", lambda instance: instance["name"] or "-"),
    Column("GUEST", _guest),
    Column("CLAIM", _claim_and_origin),
    Column("RESOURCES", _resources),
)
"""The table of `plimsoll instances`."""

TOP_INSTANCE_COLUMNS: tuple[Column[InstanceShape], ...] = (
    Column("INSTANCE", lambda instance: instance["name"] or "-"),
    Column("UUID", lambda instance: instance["uuid"]),
    Column("GUEST", _guest),
    Column("CLAIM", _claim),
    Column("RESOURCES", _resources),
)
"""The table in `plimsoll top`."""

SAMPLE: InstancesShape = {
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
