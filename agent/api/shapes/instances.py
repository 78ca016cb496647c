"""Instances on this host: `GET /v1/instances`, their moves between hosts (`/v1/moves`), and whether they
may start, by the verdicts of the gate (`/v1/gate`).
"""

from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.claims import (
    AdditionShape,
    AllocationsShape,
    ClaimBodyShape,
    ClaimShape,
    DomainXml,
    HoldingShape,
)
from agent.api.shapes.schema import (
    Column,
    Moment,
    Notes,
    ResourcesShape,
    Schema,
    Uuid,
    Values,
    amounts_text,
    local_time,
)
from agent.shapes import by_class


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
    return f"{text}, adopted" if claim and claim["adopted"] and text == claim["state"] else text


def _resources(instance: InstanceShape) -> str:
    guest, claim = instance["guest"], instance["claim"]
    return _allocated(claim["allocations"]) if claim else amounts_text(guest["resources"] if guest else {})


def _allocated(allocations: AllocationsShape) -> str:
    return amounts_text(by_class(allocation["resources"] for allocation in allocations.values()))


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
