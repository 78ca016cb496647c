"""A claim, its states and steps, and the result of a fit, as values; and their JSON, checked when it is
read. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from agent.claims.guest_cells import PlacedCell
from agent.claims.mappings import GroupMapping, GroupUnits, map_groups
from agent.claims.parse_request import read_request, request_to_json
from agent.claims.request import ClaimRequest
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
from agent.tree import MAX_UNIT, Provider, ProviderTree


class ClaimState(StrEnum):
    """The state of a claim.

    CLAIMING: chosen and journaled, and not known to be in Placement. CLAIMED: in Placement. RELEASING:
    journaled for removal from Placement.
    """

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"


class ClaimStep(StrEnum):
    """A step in the life of a claim; its value is also the name of the event in the journal's history."""

    BEGIN = "begin"
    """The resources are chosen and reserved, the intent is journaled, and nothing was sent to Placement yet.
    """
    GRANT = "grant"
    """Placement has exactly the chosen allocation."""
    ADOPT = "adopt"
    """Placement already has an allocation for the consumer, written by another service, and it covers the
    request.
    """
    REFUSE = "refuse"
    """Placement has no allocation of this claim."""
    RELEASE = "release"
    """The allocation is to be removed from Placement, now or when Placement answers again."""
    GONE = "gone"
    """Placement has no allocation of it any more."""
    KEEP = "keep"
    """The consumer is on another host, and a migration may have its allocation on this one: nothing is freed.
    """
    FOUND = "found"
    """Its guest uses resources that were unknown at the claim (exact units, disks); the claim now has them.
    """
    REPLACE = "replace"
    """The consumer's domain has changed, and Placement has the allocation that the new one needs."""
    RELOCATE = "relocate"
    """A reshape moved its allocation while another consumer held that; the claim is where it is held now."""
    LEFT = "left"
    """The consumer is on another host, and its allocation on this one is gone."""


CLAIM_TRANSITIONS: Mapping[tuple[ClaimState | None, ClaimStep], ClaimState | None] = {
    (None, ClaimStep.BEGIN): ClaimState.CLAIMING,
    (None, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.BEGIN): ClaimState.CLAIMING,  # chosen anew after a conflict
    (ClaimState.CLAIMING, ClaimStep.GRANT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.REFUSE): None,
    (ClaimState.CLAIMING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.FOUND): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.REPLACE): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.RELOCATE): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.LEFT): None,
    (ClaimState.RELEASING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.RELEASING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.RELEASING, ClaimStep.GONE): None,
}
"""{(state, step): next state}, all transitions there are; None stands for no claim.

After a crash the agent finishes a CLAIMING claim if its guest exists, and refuses it otherwise; it delivers a
RELEASING claim. It does the same while it runs, after Placement did not answer a request.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """One consumer's claim on this host. `since`: when it was made or adopted, in seconds since 1970 (UTC); a
    move makes a new claim.

    `adopted`: another service wrote the allocation, and the agent chose the exact units. `cells` is the
    guest's chosen NUMA topology, empty for a guest without cells; its CPUs are among `units`. `makings` says
    how to make those of the `units` that did not exist when they were chosen, `group_units` which of them
    each suffixed group of the request got.
    """

    consumer: str
    state: ClaimState
    request: ClaimRequest
    allocations: Allocations
    units: Units = field(default_factory=dict)
    since: float = 0.0
    adopted: bool = False
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)
    group_units: GroupUnits = field(default_factory=dict)

    def in_state(self, state: ClaimState) -> "Claim":
        """The same claim in that state."""
        return self if self.state is state else replace(self, state=state)

    @property
    def exact(self) -> Iterator[tuple[str, str, str]]:
        """(provider uuid, class, unit) of each exact unit of the claim."""
        for uuid, classes in self.units.items():
            for name, units in classes.items():
                for unit in units:
                    yield uuid, name, unit

    @property
    def replaceable(self) -> frozenset[str]:
        """The units that were to be made, and in place of which the guest may have been given another.

        A unit with a place on its card is none of them: in another place it takes the room of others.
        """
        return frozenset(unit for unit, making in self.makings.items() if "placement" not in making)

    def mappings(self, tree: ProviderTree) -> tuple[GroupMapping, ...]:
        """What each request group got, as `map_groups` says; `tree` are the providers of the claim's host."""
        return map_groups(self.request, self.allocations, self.units, tree, self.group_units)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a provider cannot serve a request.

    `asked` and `free` are amounts of `resource_class`; it is empty where the reason concerns no class.
    `reason` is a clause: "only 3 of 16 are free", "lacks trait HW_CPU_X86_AVX2", "max_unit is 4". `traits`
    are the ones that it is about, any of which is wanted, or all of which are forbidden.
    """

    resource_class: str
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: str
    traits: tuple[str, ...] = ()

    @classmethod
    def at(
        cls,
        provider: Provider | None,
        resource_class: str,
        asked: int,
        free: int,
        reason: str,
        traits: Iterable[str] = (),
    ) -> "Shortfall":
        """A shortfall at the provider; None: at no provider."""
        name, uuid = (provider.name, provider.uuid) if provider else ("", "")
        return cls(resource_class, asked, free, name, uuid, reason, tuple(sorted(traits)))

    def to_json(self) -> dict[str, Any]:
        """As the local API has it: without `traits` where the reason concerns none."""
        body = {each.name: getattr(self, each.name) for each in fields(self)}
        traits = body.pop("traits")
        return {**body, "traits": list(traits)} if traits else body


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit: `allocations`, `units`, `cells` and `makings` if it fits, else `shortfalls`."""

    fits: bool
    allocations: Allocations
    units: Units
    shortfalls: tuple[Shortfall, ...]
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)
    group_units: GroupUnits = field(default_factory=dict)


def claim_of_fit(request: ClaimRequest, fit: Fit) -> Claim:
    """The claim that the request would become by the fit; it is in no journal."""
    return Claim(
        request.consumer,
        ClaimState.CLAIMING,
        request,
        fit.allocations,
        fit.units,
        cells=fit.cells,
        makings=fit.makings,
        group_units=fit.group_units,
    )


def fit_of_claim(claim: Claim) -> Fit:
    """The claim's resources as the result of its fit."""
    return Fit(True, claim.allocations, claim.units, (), claim.cells, claim.makings, claim.group_units)


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
