"""Claims as JSON, for the journal and the local API; each value that is read is checked. Pure."""

from collections.abc import Iterable
from typing import Any

from agent.claims.claim import Claim, ClaimState
from agent.claims.mappings import GroupUnits
from agent.claims.numa.cell_fit import PlacedCell
from agent.claims.parse_request import read_request, request_to_json
from agent.errors import UsageError
from agent.json_checks import (
    read_choice,
    read_list,
    read_object,
    read_seconds,
    read_text,
    read_uuid,
    read_whole,
)
from agent.shapes import Allocations, Makings, Units
from agent.tree import MAX_UNIT

Json = dict[str, Any]


def claim_to_json(claim: Claim) -> Json:
    """The JSON form that `read_claim` reads; `since` is seconds since 1970 (UTC)."""
    return {
        "consumer": claim.consumer,
        "state": claim.state.value,
        "request": request_to_json(claim.request),
        "allocations": claim.allocations,
        "units": claim.units,
        "since": claim.since,
        "adopted": claim.adopted,
        "cells": cells_to_json(claim.cells),
        "makings": claim.makings,
        "group_units": claim.group_units,
    }


def read_claim(value: object) -> Claim:
    """The claim of a JSON object. Raises UsageError where a value is missing or invalid."""
    record = read_object(value, "claim")
    return Claim(
        read_uuid(record.get("consumer"), "consumer"),
        ClaimState(read_choice(record.get("state"), "state", list(ClaimState))),
        read_request(record.get("request")),
        read_allocations(record.get("allocations")),
        read_units(record.get("units")),
        read_seconds(record.get("since"), "since"),
        record.get("adopted") is True,
        read_cells(record.get("cells", [])),
        read_makings(record.get("makings", {})),
        read_group_units(record.get("group_units", {})),
    )


def read_makings(value: object) -> Makings:
    """{unit: {"parent": ..., "type": ...}} from JSON. Raises UsageError where it is invalid."""
    return {
        unit: {key: read_text(text, "makings") for key, text in read_object(making, "makings").items()}
        for unit, making in read_object(value, "makings").items()
    }


def read_group_units(value: object) -> GroupUnits:
    """{suffix: {class: (unit, ...)}} from JSON. Raises UsageError where it is invalid."""
    return {
        suffix: {
            name: tuple(read_text(unit, "group_units") for unit in read_list(exact, "group_units"))
            for name, exact in read_object(classes, "group_units").items()
        }
        for suffix, classes in read_object(value, "group_units").items()
    }


def cells_to_json(cells: Iterable[PlacedCell]) -> list[Json]:
    """The guest's NUMA cells in the local API's form; `pinned_cpus` is {guest CPU: host CPU}."""
    return [
        {
            "cell": cell.guest_cell,
            "host_cell": cell.host_cell,
            "pinned_cpus": {str(cpu): pin for cpu, pin in sorted(cell.pinning.items())},
            "shared_cpus": sorted(cell.floating),
            "withheld_cpus": sorted(cell.withheld),
            "emulator_cpus": sorted(cell.emulator),
            "memory_mb": cell.memory_mb,
            "page_kib": cell.page_kib,
        }
        for cell in cells
    ]


def read_cells(value: object) -> tuple[PlacedCell, ...]:
    """The inverse of `cells_to_json`. Raises UsageError where it is invalid."""
    return tuple(_read_cell(cell) for cell in read_list(value, "cells"))


def _read_cell(value: object) -> PlacedCell:
    record = read_object(value, "cell")
    pinned = read_object(record.get("pinned_cpus"), "pinned_cpus")
    if not all(str(cpu).isdecimal() for cpu in pinned):
        raise UsageError("pinned_cpus: each key must be the number of a guest CPU.")
    return PlacedCell(
        guest_cell=read_whole(record.get("cell"), "cell", 0, MAX_UNIT),
        host_cell=read_whole(record.get("host_cell"), "host_cell", 0, MAX_UNIT),
        pinning={int(cpu): read_whole(pin, "pinned_cpus", 0, MAX_UNIT) for cpu, pin in pinned.items()},
        withheld=_read_cpu_ids(record.get("withheld_cpus"), "withheld_cpus"),
        page_kib=read_whole(record.get("page_kib"), "page_kib", 1, MAX_UNIT),
        memory_mb=read_whole(record.get("memory_mb"), "memory_mb", 0, MAX_UNIT),
        floating=_read_cpu_ids(record.get("shared_cpus"), "shared_cpus"),
        emulator=_read_cpu_ids(record.get("emulator_cpus", []), "emulator_cpus"),
    )


def _read_cpu_ids(value: object, what: str) -> frozenset[int]:
    return frozenset(read_whole(cpu, what, 0, MAX_UNIT) for cpu in read_list(value, what))


def read_allocations(value: object) -> Allocations:
    """{provider uuid: {class: amount}} from JSON. Raises UsageError where it is invalid."""
    return {
        read_uuid(uuid, "provider"): {
            name: read_whole(amount, name, 1, MAX_UNIT)
            for name, amount in read_object(amounts, "allocations").items()
        }
        for uuid, amounts in read_object(value, "allocations").items()
    }


def read_units(value: object) -> Units:
    """{provider uuid: {class: (unit, ...)}} from JSON. Raises UsageError where it is invalid."""
    return {
        read_uuid(uuid, "provider"): {
            name: tuple(read_text(unit, "units") for unit in read_list(exact, "units"))
            for name, exact in read_object(classes, "units").items()
        }
        for uuid, classes in read_object(value, "units").items()
    }
