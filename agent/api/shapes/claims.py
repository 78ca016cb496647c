"""Claims, and whether a claim would fit: `/v1/claims`."""

from collections.abc import Iterable, Mapping
from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.columns import Column, list_text
from agent.api.shapes.requests import ClaimRequestShape
from agent.api.shapes.schema import Count, Moment, Named, Notes, Positive, ResourcesShape, Uuid, Values


class ProviderAllocationShape(TypedDict):
    """The allocation from one provider."""

    resources: ResourcesShape


AllocationsShape = Annotated[
    dict[str, ProviderAllocationShape],
    Named("Allocations", "{provider uuid: {resources}}, as Placement writes allocations"),
]
UnitsShape = Annotated[
    dict[str, dict[str, list[str]]], Named("Units", "{provider uuid: {resource class: [exact unit]}}")
]


class GuestCellShape(TypedDict):
    """A NUMA cell of the guest, as the agent placed it."""

    cell: Annotated[Count, "the guest's cell"]
    host_cell: Annotated[Count, "the host's cell that backs it"]
    pinned_cpus: Annotated[dict[str, Count], "{guest CPU: host CPU}"]
    shared_cpus: Annotated[list[Count], "guest CPUs that float on the host cell's shared CPUs"]
    withheld_cpus: Annotated[list[Count], "host CPUs that no other guest gets: siblings of isolated CPUs"]
    emulator_cpus: Annotated[list[Count], "host CPUs for the emulator's threads alone"]
    memory_mb: Count
    page_kib: Annotated[Positive, "size of the pages that back the memory"]


GUEST_CELL_COLUMNS: tuple[Column[GuestCellShape], ...] = (
    Column("GUEST CELL", lambda cell: cell["cell"]),
    Column("HOST CELL", lambda cell: cell["host_cell"]),
    Column(
        "PINNED CPUS", lambda cell: list_text(f"{cpu}->{pin}" for cpu, pin in cell["pinned_cpus"].items())
    ),
    Column("SHARED CPUS", lambda cell: list_text(cell["shared_cpus"])),
    Column("WITHHELD", lambda cell: list_text(cell["withheld_cpus"])),
    Column("MEMORY_MB", lambda cell: cell["memory_mb"]),
    Column("PAGE_KIB", lambda cell: cell["page_kib"]),
)

CellsShape = Annotated[
    list[GuestCellShape], "the guest's NUMA cells, empty for a guest without a NUMA topology"
]


class MakingShape(TypedDict):
    """A unit to make."""

    parent: Annotated[str, "the PCI address of the function that the unit is made on"]
    type: Annotated[str, "the id of the mediated type, such as nvidia-11"]
    placement: NotRequired[
        Annotated[str, "of the vGPU of a function: the slot of the card in which it is to start"]
    ]


ToMakeShape = Annotated[
    dict[str, MakingShape], "{unit that did not exist when the agent chose it: what to make}"
]


class GroupMappingShape(TypedDict):
    """What one group of the request got, as Placement's `mappings`."""

    suffix: Annotated[str, "empty: the unsuffixed group"]
    label: Annotated[str, "the suffix, or the name of the PCI alias that the group comes from"]
    allocations: AllocationsShape
    units: UnitsShape


def _claim_states() -> Iterable[str]:
    from agent.claims.claim import ClaimState

    return ClaimState


class ClaimShape(TypedDict):
    """A claim of an instance on this host."""

    consumer: Uuid
    name: str
    state: Annotated[str, Values(_claim_states)]
    adopted: Annotated[bool, "true: the agent did not write the allocation, it found it in Placement"]
    since: Annotated[Moment, "when the claim was made or adopted; a move makes a new one; RFC 3339, UTC"]
    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape
    to_make: ToMakeShape
    mappings: Annotated[list[GroupMappingShape], "which group got what, by suffix"]
    request: ClaimRequestShape
    notes: NotRequired[Notes]


class ShortfallShape(TypedDict):
    """A provider that cannot give what the claim asks for."""

    resource_class: Annotated[str, "empty: the reason concerns no class"]
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: Annotated[str, "a clause: only 3 of 16 are free"]
    traits: NotRequired[
        Annotated[
            list[str], "of a reason that concerns traits: any of them is wanted, or all of them are forbidden"
        ]
    ]


class ExplanationShape(TypedDict):
    """Whether a claim would fit, and why not."""

    consumer: Uuid
    asked: Annotated[ResourcesShape, "summed up over the groups"]
    fits: Annotated[bool, "also while claims are closed"]
    closed: Annotated[str | None, "why the host takes no new claims now; null: it takes them"]
    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape
    to_make: ToMakeShape
    shortfalls: list[ShortfallShape]
    notes: NotRequired[Notes]


class ReleasedShape(TypedDict):
    """The result of a release."""

    consumer: Uuid
    released: Annotated[bool, "false: journaled, and delivered when Placement answers again"]


class DomainShape(TypedDict):
    """The domain of an instance."""

    consumer: Uuid
    made: Annotated[bool, "true: the claim was made for this domain just now"]
    claim: ClaimShape
    xml: Annotated[str, "the domain's XML with everything that the claim gave"]
    notes: NotRequired[Notes]


class HoldingShape(TypedDict):
    """What a consumer has: its allocations, exact units and NUMA cells. Part of a claim, and of a move."""

    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape


def total_amounts(allocations: Mapping[str, ProviderAllocationShape]) -> dict[str, int]:
    """{resource class: amount}, summed up over the providers."""
    total: dict[str, int] = {}
    for allocation in allocations.values():
        for resource_class, amount in allocation["resources"].items():
            total[resource_class] = total.get(resource_class, 0) + amount
    return total
