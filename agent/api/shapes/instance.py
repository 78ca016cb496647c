"""Instances on this host: their claims (`/v1/claims`, `/v1/domains`), what the host can still give
(`/v1/capacity`, `/v1/defrag`), guests and claims side by side (`/v1/instances`), moves between hosts
(`/v1/moves`), and the verdicts of the gate (`/v1/gate`).

The bodies of requests for a claim come first, as the other shapes are made of them.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from agent.api.shapes.schema import (
    Column,
    Count,
    From,
    Moment,
    Named,
    Notes,
    Positive,
    ResourcesShape,
    Schema,
    Uuid,
    Values,
    amounts_text,
    list_text,
    local_time,
)
from agent.shapes import by_class

NumaPolicy = Literal["required", "preferred", "legacy", "socket"]
Name = Annotated[str, Schema(maxLength=255), "for people"]
Identifier = Annotated[str, Schema(minLength=1, maxLength=255)]
ConsumerType = Annotated[str, Schema(pattern="^[A-Z0-9_]{1,255}$")]


class GroupShape(TypedDict, total=False):
    """A request group, in Placement's terms."""

    suffix: Annotated[
        str,
        Schema(pattern="^[A-Za-z0-9_-]{0,64}$", default=""),
        "the group without a suffix may come from several providers, each other group comes from one",
    ]
    resources: Annotated[
        dict[str, Annotated[int, Schema(minimum=1, maximum=2147483647)]],
        Schema(propertyNames={"pattern": "^[A-Z0-9_]{1,255}$"}),
        "{resource class: amount}",
    ]
    required: Annotated[
        list[str], "traits, all of which must hold: TRAIT, in:TRAIT,TRAIT (one of), !TRAIT (not)"
    ]
    member_of: Annotated[list[str], "aggregates: uuid or in:uuid,uuid (one of)"]
    numa_policy: Annotated[
        NumaPolicy | None,
        "how near the provider must be to the guest's NUMA cells; null: as near as possible",
    ]


class TopologyShape(TypedDict, total=False):
    """The guest's CPUs, memory and NUMA cells, as a flavor's `hw:` extra specs ask for them."""

    cpu_policy: Literal["shared", "dedicated", "mixed"]
    cpu_thread_policy: Literal["prefer", "isolate", "require"] | None
    cells: Count
    cell_cpus: Annotated[list[Annotated[str, "a CPU set such as 0-3,6"]], "the guest CPUs of each cell"]
    cell_memory_mb: list[Positive]
    dedicated_cpus: str
    mem_page_size: Annotated[int | str | None, "KiB, or small, large, any"]
    pci_numa_policy: Annotated[NumaPolicy | None, "takes precedence over the policy of a PCI alias"]
    isolate_emulator: Annotated[bool, "one PCPU of the request is for the emulator's threads alone"]


class PciRequestShape(TypedDict):
    """PCI devices, asked for by an alias."""

    alias: str
    count: NotRequired[Annotated[int, Schema(minimum=1, default=1)]]


class FlavorShape(TypedDict):
    """A flavor, as nova has it."""

    vcpus: Positive
    memory_mb: Positive
    disk_gb: NotRequired[Count]
    extra_specs: NotRequired[
        Annotated[dict[str, str | int], "resources:VGPU, trait:..., hw:cpu_policy and others, as in nova"]
    ]


Consumer = Annotated[
    Uuid,
    "the instance; only a claim with a name may leave it out: it is the instance of this host that has the "
    "name, else a new one",
]


class ProcessShape(TypedDict):
    """A process of the host, and of the user who asks."""

    pid: Annotated[Positive, "in the pid namespace of the agent"]
    started: Annotated[Count, "clock ticks since the boot, field 22 of /proc/PID/stat"]
    boot: Annotated[Uuid, "/proc/sys/kernel/random/boot_id"]


Process = Annotated[ProcessShape, "the agent releases the claim once this process has ended"]


class AlternativeShape(TypedDict, total=False):
    """What is asked for in another way, by groups or by a flavor."""

    flavor: FlavorShape
    image: dict[str, str | int | bool]
    root_required: list[str]
    groups: Annotated[list[GroupShape], Schema(maxItems=64)]
    group_policy: Literal["none", "isolate"] | None
    same_subtree: list[list[str]]
    topology: TopologyShape
    pci: list[PciRequestShape]


Alternatives = Annotated[
    list[AlternativeShape],
    Schema(maxItems=15),
    "what is asked for where the body, and the alternatives before, do not fit; in the order of preference",
]


class ClaimByGroupsShape(TypedDict):
    """A claim, asked for by request groups."""

    consumer: NotRequired[Consumer]
    groups: Annotated[list[GroupShape], Schema(minItems=1, maxItems=64)]
    group_policy: NotRequired[Literal["none", "isolate"] | None]
    same_subtree: NotRequired[list[list[str]]]
    root_required: NotRequired[
        Annotated[list[str], "traits that the host's root provider must have, or with ! must not"]
    ]
    topology: NotRequired[TopologyShape]
    pci: NotRequired[list[PciRequestShape]]
    alternatives: NotRequired[Alternatives]
    alternative: NotRequired[
        Annotated[Count, "of a claim's request: the number of the alternative that was taken, from 1"]
    ]
    process: NotRequired[Process]
    name: NotRequired[Name]
    project_id: NotRequired[Identifier]
    user_id: NotRequired[Identifier]
    consumer_type: NotRequired[ConsumerType]


class ClaimByFlavorShape(TypedDict):
    """A claim, asked for by a flavor."""

    consumer: NotRequired[Consumer]
    flavor: FlavorShape
    image: NotRequired[
        Annotated[
            dict[str, str | int | bool],
            "properties of the guest's image, as glance has them: hw_firmware_type, trait:..., and others",
        ]
    ]
    alternatives: NotRequired[Alternatives]
    process: NotRequired[Process]
    name: NotRequired[Name]
    project_id: NotRequired[Identifier]
    user_id: NotRequired[Identifier]
    consumer_type: NotRequired[ConsumerType]


ClaimBodyShape = Annotated[
    ClaimByGroupsShape | ClaimByFlavorShape, Named("ClaimBody", "by groups or by a flavor")
]

ClaimRequestShape = Annotated[
    ClaimByGroupsShape,
    Schema(required=["consumer", "project_id", "user_id", "consumer_type"]),
    Named("ClaimRequest", "the request, in its form by groups"),
]


DomainXml = Annotated[str, Schema(maxLength=1048576), "the domain's XML, without a document type"]


class AdditionShape(AlternativeShape, total=False):
    """What is asked for beside a domain's XML: by groups, by a flavor, or nothing."""

    alternatives: Alternatives
    name: Name
    project_id: Identifier
    user_id: Identifier
    consumer_type: ConsumerType


class ClaimDomainBodyShape(TypedDict):
    """A domain to claim for."""

    xml: DomainXml
    consumer: NotRequired[
        Annotated[
            Uuid,
            "for a domain without a <uuid>; without it, the instance of this host that has its name, else a "
            "new one",
        ]
    ]
    request: NotRequired[AdditionShape]


class DomainBodyShape(TypedDict):
    """The domain to complete."""

    xml: DomainXml
    replace: NotRequired[
        Annotated[bool, Schema(default=False), "write over what the domain has from a former place"]
    ]


class ExtendBodyShape(TypedDict):
    """What the claim is to have in all; what it has more of stays."""

    resources: Annotated[
        dict[str, Annotated[int, Schema(minimum=1, maximum=2147483647)]],
        "{resource class: amount}, of classes without exact units; for a guest without NUMA cells",
    ]


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


class HoldingShape(TypedDict):
    """What a consumer has: its allocations, exact units and NUMA cells. Part of a claim, and of a move."""

    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape


class GroupMappingShape(TypedDict):
    """What one group of the request got, as Placement's `mappings`."""

    suffix: Annotated[str, "empty: the unsuffixed group"]
    label: Annotated[str, "the suffix, or the name of the PCI alias that the group comes from"]
    allocations: AllocationsShape
    units: UnitsShape


class MakerShape(TypedDict):
    """Who asked for a claim."""

    uid: Annotated[Count, "the user"]
    program: Annotated[str, "the name that it gave itself (User-Agent); empty: it gave none"]


class ClaimShape(TypedDict):
    """A claim of an instance on this host."""

    consumer: Uuid
    name: Annotated[str, From("request.name")]
    state: Annotated[str, Values("agent.claims.claim:ClaimState")]
    adopted: Annotated[bool, "true: the agent did not write the allocation, it found it in Placement"]
    since: Annotated[Moment, "when the claim was made or adopted; a move makes a new one; RFC 3339, UTC"]
    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape
    to_make: Annotated[ToMakeShape, From("makings")]
    mappings: Annotated[list[GroupMappingShape], "which group got what, by suffix"]
    request: ClaimRequestShape
    made_by: Annotated[MakerShape | None, From("maker"), "null: the agent itself, as for a guest that ran"]
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


class RefusedAlternativeShape(TypedDict):
    """An alternative that does not fit."""

    alternative: Annotated[Count, "its number, from 1"]
    asked: Annotated[ResourcesShape, "summed up over the groups"]
    shortfalls: list[ShortfallShape]


class ExplanationShape(TypedDict):
    """Whether a claim would fit, and why not."""

    consumer: Uuid
    asked: Annotated[ResourcesShape, "summed up over the groups"]
    fits: Annotated[bool, "also while claims are closed"]
    closed: Annotated[str | None, "why the host takes no new claims now; null: it takes them"]
    allocations: AllocationsShape
    units: UnitsShape
    cells: CellsShape
    to_make: Annotated[ToMakeShape, From("makings")]
    shortfalls: list[ShortfallShape]
    alternative: NotRequired[
        Annotated[Count, "of several: the number of the first that fits, from 1; if none does, 1"]
    ]
    alternatives: NotRequired[Annotated[Count, "of several: how many"]]
    refused: NotRequired[Annotated[list[RefusedAlternativeShape], "the others that were tried"]]
    notes: NotRequired[Notes]


class ReleasedShape(TypedDict):
    """The result of a release."""

    consumer: Uuid
    released: Annotated[bool, "false: journaled, and delivered when Placement answers again"]


class DomainShape(TypedDict):
    """The domain of an instance."""

    consumer: Annotated[Uuid, From("claim.consumer")]
    made: Annotated[bool, "true: the claim was made for this domain just now"]
    claim: ClaimShape
    xml: Annotated[str, "the domain's XML with everything that the claim gave"]
    notes: NotRequired[Notes]


class HolderShape(TypedDict):
    """An instance with a claim on this host."""

    consumer: Uuid
    name: str


class StrandedShape(TypedDict):
    """What is free and goes to no further guest of the flavor, as something else is not free near it."""

    provider: str
    provider_uuid: Uuid
    resource_class: str
    free: Count
    holders: Annotated[list[HolderShape], "those each of which alone strands some of it"]
    divided: Annotated[
        bool,
        "true: a size of a divided card; `free` is what it can give at least once a holder is gone",
    ]


class CapacityShape(TypedDict):
    """How many guests that ask for this the host can still get, one after the other."""

    asked: Annotated[ResourcesShape, "summed up over the groups"]
    guests: Count
    more: Annotated[bool, "true: the count ended there, and further guests may fit"]
    shortfalls: Annotated[list[ShortfallShape], "why not one more"]
    stranded: list[StrandedShape]
    notes: NotRequired[Notes]


class DefragMoveShape(TypedDict):
    """A guest that would have to move."""

    consumer: Annotated[Uuid, From("claim.consumer")]
    name: Annotated[str, From("claim.request.name")]
    here: Annotated[HoldingShape | None, "its new place on this host; null: it has to go to another host"]
    kind: Annotated[
        str,
        "live_migrate, or cold_migrate where a device or large pages may forbid that; also on this host",
    ]
    request: Annotated[ClaimRequestShape, From("claim.request"), "what its claim asks for"]


class DefragShape(TypedDict):
    """The moves that make room for one guest that asks for this. Nothing is moved."""

    asked: Annotated[ResourcesShape, "summed up over the groups"]
    possible: Annotated[bool, "false: no moves of guests make room; see `shortfalls`"]
    place: Annotated[HoldingShape | None, "where it fits then"]
    moves: Annotated[list[DefragMoveShape], "in an order in which they can be done; empty: it fits already"]
    fewest: Annotated[bool, "true: no smaller number of moves does"]
    shortfalls: list[ShortfallShape]
    notes: NotRequired[Notes]


STRANDED_COLUMNS: tuple[Column[StrandedShape], ...] = (
    Column("PROVIDER", lambda stranded: stranded["provider"]),
    Column("RESOURCE CLASS", lambda stranded: stranded["resource_class"]),
    Column("FREE", lambda stranded: stranded["free"]),
    Column(
        "STRANDED BY", lambda stranded: ", ".join(name_of(holder) for holder in stranded["holders"]) or "-"
    ),
)
"""The table of `plimsoll explain --capacity`."""


def name_of(holder: HolderShape | DefragMoveShape) -> str:
    """The instance for people: its name and its uuid."""
    return f"{holder['name']} ({holder['consumer']})" if holder["name"] else holder["consumer"]


class UsedUnitShape(TypedDict):
    """An exact unit that a guest uses, such as a virtual function or a mediated device."""

    resource_class: str
    unit: str
    device: str


class GuestShape(TypedDict):
    """A guest, as the virt driver sees it."""

    state: Annotated[str, Values("agent.driver:GuestState")]
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
    if claim and text == claim["state"]:
        number = claim["request"].get("alternative")
        text += ", adopted" * claim["adopted"] + (f", alternative {number}" if number else "")
    return text


def _resources(instance: InstanceShape) -> str:
    guest, claim = instance["guest"], instance["claim"]
    return _allocated(claim["allocations"]) if claim else amounts_text(guest["resources"] if guest else {})


def _allocated(allocations: AllocationsShape) -> str:
    return amounts_text(by_class(allocation["resources"] for allocation in allocations.values()))


def _maker(instance: InstanceShape) -> str:
    claim = instance["claim"]
    maker = claim and claim.get("made_by")  # an older agent that still runs has none
    if not maker:
        return "-"
    return f"{maker['program']} (uid {maker['uid']})" if maker["program"] else f"uid {maker['uid']}"


INSTANCE_COLUMNS: tuple[Column[InstanceShape], ...] = (
    Column("UUID", lambda instance: instance["uuid"]),
    Column("NAME", lambda instance: instance["name"] or "-"),
    Column("GUEST", _guest),
    Column("CLAIM", _claim_and_origin),
    Column("RESOURCES", _resources),
    Column("MADE BY", _maker),
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


class MoveShape(TypedDict):
    """A move of an instance, seen from this host."""

    migration: Uuid
    instance: Uuid
    name: str
    kind: Annotated[
        str,
        Values("agent.moves.states:MoveKind", in_order=True),
        "unknown: the source knows the move only from Placement",
    ]
    role: Annotated[str, Values("agent.moves.states:MoveRole"), "the part of this host in the move"]
    state: Annotated[str, Values("agent.moves.states:MoveState")]
    next: Annotated[str, "who acts next, and what they do; a clause for people"]
    ended: bool
    adopted: Annotated[bool, "true: the agent did not begin the move, it found it in Placement"]
    since: Annotated[Moment, "RFC 3339, UTC"]
    handed: Annotated[HoldingShape, "the allocation of the migration while the move is under way"]
    old: Annotated[ClaimShape, "the claim before the move"]
    new: Annotated[ClaimShape | None, "the claim at the destination; null: this host is the source"]
    providers: Annotated[
        dict[Uuid, str], "the names of the providers of both places, as far as they are known"
    ]
    notes: NotRequired[Notes]


class MovesShape(TypedDict):
    """The moves that this host takes part in."""

    moves: list[MoveShape]


class MoveBodyShape(TypedDict):
    """A move to begin; with a domain, the request may leave out what its XML says."""

    migration: Annotated[Uuid, "the uuid of the migration"]
    kind: Annotated[str, Values("agent.moves.states:MoveKind", in_order=True, without="unknown")]
    request: NotRequired[ClaimBodyShape | AdditionShape]
    domain: NotRequired[DomainXml]
    consumer: NotRequired[Annotated[Uuid, "the instance, with a domain"]]
    alternative: NotRequired[
        Annotated[
            Count,
            "the number of the alternative to take, from 1; 0: the first that fits; without it, the one that "
            "the instance has",
        ]
    ]


MOVE_COLUMNS: tuple[Column[MoveShape], ...] = (
    Column("MIGRATION", lambda move: move["migration"]),
    Column("INSTANCE", lambda move: move["instance"]),
    Column("NAME", lambda move: move["name"] or "-"),
    Column("KIND", lambda move: move["kind"]),
    Column("ROLE", lambda move: move["role"]),
    Column("STATE", lambda move: move["state"]),
    Column("IT HOLDS", lambda move: "-" if move["ended"] else _allocated(move["handed"]["allocations"])),
    Column("WHOSE TURN", lambda move: move["next"]),
)
"""The table of `plimsoll move list`."""

TOP_MOVE_COLUMNS: tuple[Column[MoveShape], ...] = (
    Column("MOVING", lambda move: move["name"] or "-"),
    Column("UUID", lambda move: move["instance"]),
    Column("KIND", lambda move: move["kind"]),
    Column("THIS HOST IS", lambda move: move["role"]),
    Column("STATE", lambda move: move["state"]),
    Column("SINCE", lambda move: local_time(move["since"])),
    Column("THE MIGRATION HOLDS", lambda move: _allocated(move["handed"]["allocations"])),
)
"""The table in `plimsoll top`."""


class GateBodyShape(TypedDict):
    """The arguments of libvirt's hook after the guest's name, and its standard input."""

    operation: Annotated[str, Schema(maxLength=64)]
    sub_operation: Annotated[str, Schema(maxLength=64)]
    extra: NotRequired[Annotated[str, Schema(maxLength=64)]]
    xml: DomainXml


class CpuPowerShape(TypedDict):
    """What the hook does with CPUs of the host."""

    cpus: list[int]
    state: Annotated[str, "online, offline, or a governor of cpufreq"]


class VerdictShape(TypedDict):
    """The gate's verdict: the guest may go on."""

    outcome: Annotated[str, Values("agent.gate.decision:GateOutcome")]
    consumer: Annotated[Uuid | None, "the uuid of the guest"]
    sentence: str
    cpu_power: Annotated[CpuPowerShape | None, "for libvirt's hook, which may write it below /sys"]


class GuestVerdictShape(TypedDict):
    """The verdict on a running guest."""

    consumer: Uuid
    name: str
    sentence: str


class ClaimedRunningShape(TypedDict):
    """The guests that ran without a claim: those that have a claim now, and those that do not fit."""

    claimed: list[GuestVerdictShape]
    refused: list[GuestVerdictShape]
