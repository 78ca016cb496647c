"""This host: its resource providers (`/v1/tree`), devices and their cordons (`/v1/devices`), what a reshape
moves between providers (`/v1/reshape`) and what the next pass changes (`/v1/plan`); how the agent is and what
it did: status and health checks, pauses, audits, the history and its explanations, the overview of the whole
host, and the settings in force.
"""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from agent.api.shapes.instance import InstanceShape, MoveShape
from agent.api.shapes.schema import (
    Column,
    Count,
    ExactMoment,
    From,
    Moment,
    Named,
    Positive,
    ResourcesShape,
    Schema,
    Uuid,
    Values,
    consumer_text,
    extensible,
    list_text,
    local_time,
)
from agent.errors import counted


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
    parent_provider_uuid: Annotated[str | None, From("parent")]
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


Address = Annotated[
    str,
    Schema(minLength=1, maxLength=64),
    "a PCI address, of a card or of one of its functions, or the uuid of a mediated device",
]


class CordonShape(TypedDict):
    """An operator's word that a device is given to no guest."""

    address: Address
    reason: str
    uid: Annotated[Count, "the user who asked for it"]
    since: Annotated[Moment, From("at")]


class DeviceHealthShape(TypedDict):
    """Why a device is unhealthy, and given to no guest."""

    address: Annotated[
        str, "the device, or the card that has it; `plimsoll devices clear` takes this address"
    ]
    symptoms: Annotated[
        list[Annotated[str, Values("agent.providers.device_health:Symptom")]], "what made it unhealthy"
    ]
    reason: Annotated[str, "the same in words"]
    since: Moment
    recovering: Annotated[bool, "it shows none of that now; after some more looks it is offered again"]


class DeviceShape(TypedDict):
    """An exact unit that the host offers to guests."""

    unit: Annotated[str, "a PCI address, or the uuid of a mediated device"]
    resource_class: str
    provider: Annotated[str, "the name of the resource provider that has it"]
    holder: Annotated[Uuid | None, "the instance or the migration that has it; null: no consumer has it"]
    holder_name: Annotated[str, "the instance's; empty: it has none, or no consumer has the device"]
    cordon: Annotated[CordonShape | None, "null: not cordoned"]
    health: Annotated[DeviceHealthShape | None, "null: well, or not known to be unhealthy"]


class DevicesShape(TypedDict):
    """All devices of this host."""

    devices: list[DeviceShape]


class CordonBodyShape(TypedDict):
    """The device to cordon."""

    address: Address
    reason: NotRequired[Annotated[str, Schema(maxLength=255, default="")]]


class ClearBodyShape(TypedDict):
    """The device whose cordon is to end."""

    address: Address


def _withheld(device: DeviceShape) -> str:
    cordon, health = device["cordon"], device["health"]
    clauses = []
    if cordon is not None:
        clauses.append(f"cordoned: {cordon['reason']}" if cordon["reason"] else "cordoned")
    if health is not None:
        state = "recovering" if health["recovering"] else "unhealthy"
        where = "" if health["address"] == device["unit"] else f" ({health['address']})"
        clauses.append(f"{state}{where}: {', '.join(health['symptoms'])}")
    return "; ".join(clauses) or "-"


DEVICE_COLUMNS: tuple[Column[DeviceShape], ...] = (
    Column("DEVICE", lambda device: device["unit"]),
    Column("CLASS", lambda device: device["resource_class"]),
    Column("PROVIDER", lambda device: device["provider"]),
    Column("HOLDER", lambda device: device["holder"] or "-"),
    Column("NAME", lambda device: device["holder_name"] or "-"),
    Column("WITHHELD", _withheld),
)
"""The table of `plimsoll devices`."""


_Source = Annotated[Uuid, From("source")]
_Target = Annotated[Uuid, From("target")]
_Ends = TypedDict("_Ends", {"from": str, "from_uuid": _Source, "to": str, "to_uuid": _Target})


class RelocationShape(_Ends):
    """An amount that goes from one provider to another."""

    consumer: Uuid
    name: Annotated[str, "the consumer's, or that of its migration's instance; empty: it has none"]
    resource_class: str
    amount: Positive
    becomes: Annotated[str, From("target_class"), "the resource class at the target, nearly always the same"]


class MoveInstructionShape(TypedDict):
    """What the driver asked to move from one provider to another."""

    from_resource_provider: str
    moved_resources: ResourcesShape
    to_resource_provider: str


class ReceiptShape(TypedDict):
    """A reshape that was done, kept so that it can be undone."""

    id: str
    at: Moment
    undone: Annotated[bool, "true: it was undone, and the agent does not repeat it until asked to"]
    undoes: Annotated[str | None, "the receipt that this reshape undid"]
    allocations: Annotated[int, "the number of allocations that were moved"]
    moves: list[MoveInstructionShape]


class PreviewShape(TypedDict):
    """What a reshape would do."""

    due: bool
    refused: Annotated[str | None, "why the reshape would not be done"]
    before: TreeShape
    after: TreeShape
    moves: Annotated[list[RelocationShape], "by consumer"]
    parked: Annotated[list[str], "sentences on units whose device is gone: they stay allocated or reserved"]
    receipts: Annotated[list[ReceiptShape], "the newest first"]


class ReshapedShape(TypedDict):
    """What a reshape did."""

    receipts: list[ReceiptShape]


class ReshapeBodyShape(TypedDict, total=False):
    """A reshape to do or to undo."""

    undo: Annotated[str | None, "the receipt to undo"]


def _class(relocation: RelocationShape) -> str:
    before, after = relocation["resource_class"], relocation["becomes"]
    return before if before == after else f"{before} -> {after}"


RELOCATION_COLUMNS: tuple[Column[RelocationShape], ...] = (
    Column("class", _class),
    Column("amount", lambda relocation: relocation["amount"]),
    Column("consumer", lambda relocation: consumer_text(relocation["consumer"], relocation["name"])),
    Column("from", lambda relocation: relocation["from"]),
    Column("to", lambda relocation: relocation["to"]),
)


def _moved(receipt: ReceiptShape) -> Iterator[str]:
    """A clause for each set of classes: the provider that they left, and the one that they went to."""
    ways: dict[str, tuple[set[str], set[str]]] = {}
    for move in receipt["moves"]:
        sources, targets = ways.setdefault(", ".join(move["moved_resources"]), (set(), set()))
        sources.add(move["from_resource_provider"])
        targets.add(move["to_resource_provider"])
    for classes, ends in ways.items():
        source, target = (next(iter(end)) if len(end) == 1 else counted(len(end), "provider") for end in ends)
        yield f"{classes}: {source} -> {target}"


def _undo(receipt: ReceiptShape) -> str:
    if receipt["undone"]:
        return "undone"
    return f"undid {receipt['undoes']}" if receipt["undoes"] else ""


RECEIPT_COLUMNS: tuple[Column[ReceiptShape], ...] = (
    Column("receipt", lambda receipt: receipt["id"]),
    Column("at", lambda receipt: receipt["at"]),
    Column("allocations", lambda receipt: receipt["allocations"]),
    Column("moved", lambda receipt: "; ".join(_moved(receipt))),
    Column("", _undo),
)


PlanOperation = Annotated[
    dict[str, Any],
    Schema(properties={"operation": {"type": "string"}}, required=["operation"]),
    "`operation` is the kind: create_provider, put_inventories and others, each with further keys of its own",
]


class PlanShape(TypedDict):
    """The operations of the next pass."""

    operations: Annotated[list[PlanOperation], "in their order"]
    lines: Annotated[list[str], "the operations for people"]


StateShape = Annotated[str, Values("agent.status.overview:HostState"), Named("State")]


class HealthCheckShape(TypedDict):
    """The result of one health check."""

    ok: bool
    reason: Annotated[str | None, "why the check failed"]


class HealthShape(TypedDict):
    """The results of the health checks."""

    ok: bool
    state: StateShape
    failed: Annotated[list[str], "the names of the checks that failed"]
    checks: Annotated[dict[str, HealthCheckShape], "{name of the check: its result}"]


@extensible
class DriverStatusShape(TypedDict):
    """Whether the virt driver answers."""

    name: str
    ok: bool
    error: Annotated[str | None, "why the driver does not answer"]


@extensible
class PlacementStatusShape(TypedDict):
    """Whether Placement answers."""

    kind: Annotated[str, "embedded or remote"]
    ok: bool
    error: Annotated[str | None, "why Placement does not answer"]


@extensible
class ClaimsStatusShape(TypedDict):
    """Whether the agent takes claims."""

    open: bool
    reason: Annotated[str | None, "why claims are closed"]
    count: Annotated[Count, "the claims on this host"]
    schedulers: Annotated[bool, "false: the root provider has COMPUTE_STATUS_DISABLED, set by any client"]


@extensible
class PauseShape(TypedDict):
    """An operator's word that this host takes no new claims."""

    reason: str
    uid: Annotated[Count, "the user who asked for it"]
    since: Annotated[ExactMoment, From("at")]
    schedulers: Annotated[bool, "true: the host has the trait COMPUTE_STATUS_DISABLED"]
    drains: Annotated[bool, "true: the instances that are here are to leave"]


class PauseBodyShape(TypedDict, total=False):
    """A pause. On a host that is paused, what is not named stays as it is."""

    reason: Annotated[str, Schema(maxLength=255)]
    schedulers: Annotated[bool, "tell schedulers, by the trait COMPUTE_STATUS_DISABLED"]
    drain: Annotated[bool, "the instances that are here are to leave"]


@extensible
class GateStatusShape(TypedDict):
    """Whether guests start only by the gate's word."""

    hook: Annotated[str, "enabled, outdated, foreign or disabled; unknown: the agent may not read the folder"]
    in_effect: Annotated[bool | None, "null: the gate is disabled, or that cannot be told"]
    unanswered: Annotated[str, "while the agent does not decide, guests start (allow) or do not (refuse)"]


@extensible
class LastPassShape(TypedDict):
    """The last pass: the agent compared the host with Placement and wrote the differences."""

    at: ExactMoment
    sentence: Annotated[str, "what the pass did"]
    duration_ms: float


@extensible
class StatusShape(TypedDict):
    """The state of the agent, with the reasons."""

    host: str
    uuid: Annotated[str | None, "the host's root provider; null: the agent has not found or created it yet"]
    version: str
    state: StateShape
    reasons: Annotated[list[str], "why the state is not ready, one sentence each"]
    since: Annotated[ExactMoment, "when the agent came into this state; RFC 3339, UTC"]
    driver: DriverStatusShape
    placement: PlacementStatusShape
    claims: ClaimsStatusShape
    gate: GateStatusShape
    pause: Annotated[PauseShape | None, "null: the host is not paused"]
    last_pass: LastPassShape | None
    next_try: Annotated[
        ExactMoment | None, "when the agent tries again after a fault; null: there is no fault"
    ]
    findings: Annotated[Count, "the number of findings of the last audit"]
    audited: Annotated[ExactMoment | None, "when the last audit ended; null: not audited since the start"]
    pid: Count


class FindingShape(TypedDict):
    """A difference between the host, the claims and Placement."""

    kind: Annotated[str, Values("agent.audit.findings:KIND_NAMES")]
    subject: Annotated[str, "a consumer, a provider or a device"]
    reason: str
    evidence: Annotated[dict[str, Any], "what the host, the agent and Placement each say"]
    own: Annotated[bool, "true: provably this agent's to heal"]
    repair: Annotated[
        list[str], "the operations in their order; empty: the agent can only report the finding"
    ]
    healed: bool
    failed: Annotated[str | None, "why the repair was not done"]


class AuditShape(TypedDict):
    """The findings of an audit."""

    findings: list[FindingShape]


class LookShape(TypedDict):
    """The agent's state after the pass, and what the audit found."""

    status: StatusShape
    audit: AuditShape


class EventShape(TypedDict):
    """An event of the history."""

    id: Annotated[str, "what `after` takes"]
    at: Moment
    consumer: Annotated[str | None, "a uuid, or the subject of a finding; null: the host"]
    name: str
    event: Annotated[
        str,
        "a step of a claim or a move, or waited, pass, refused, move_refused, healed, reshape, ready or "
        "degraded",
    ]
    detail: str
    uid: Annotated[
        int | None, "of the process that asked for it over this API; null: the agent acted by itself"
    ]
    pid: int | None


class HistoryShape(TypedDict):
    """Events of the history."""

    events: Annotated[list[EventShape], "the newest first; with `after`, the oldest first"]


class FoundShape(TypedDict):
    """A consumer, provider, unit or reshape that the question names."""

    kind: Annotated[str, Schema(enum=["consumer", "provider", "unit", "reshape"])]
    id: str
    name: str
    lines: Annotated[list[str], "sentences for people"]
    events: list[EventShape]


class ExplainedShape(TypedDict):
    """Everything that the question names."""

    asked: str
    found: Annotated[list[FoundShape], Schema(minItems=1)]


def asker_text(event: EventShape) -> str:
    """The process that asked for the event, or `-`."""
    return "-" if event["uid"] is None else f"uid {event['uid']} (pid {event['pid']})"


_WHEN: Column[EventShape] = Column("WHEN", lambda event: local_time(event["at"]))
_WHAT: Column[EventShape] = Column("WHAT", lambda event: event["event"])
_WHO: Column[EventShape] = Column("WHO", lambda event: consumer_text(event["consumer"], event["name"]))
_ASKED_BY: Column[EventShape] = Column("ASKED BY", asker_text)
_WHY: Column[EventShape] = Column("WHY", lambda event: event["detail"] or "-")

EVENT_COLUMNS = (_WHEN, _WHAT, _WHO, _ASKED_BY, _WHY)
"""The table of `plimsoll history`."""

TOP_EVENT_COLUMNS = (_WHEN, _WHAT, _WHO, _WHY)
"""The table in `plimsoll top`, which has less room."""


class OverviewShape(TypedDict):
    """The whole host as the agent knows it; the agent asks neither the hypervisor nor Placement."""

    at: Moment
    status: StatusShape
    health: HealthShape
    resource_providers: Annotated[list[ResourceProviderShape], "depth first, each parent before its children"]
    instances: list[InstanceShape]
    moves: Annotated[list[MoveShape], "those under way"]
    findings: Annotated[list[FindingShape], "of the last audit, without those that were healed"]
    pending: Annotated[Count, "releases, intents of unknown outcome and ends of moves that wait"]
    reshape_pending: Annotated[str | None, "why a due reshape was not done"]


class OptionShape(TypedDict):
    """The value of an option."""

    value: Any
    origin: Annotated[str, "the file, the environment variable or the default that the value comes from"]


ConfigurationShape = Annotated[
    dict[str, dict[str, OptionShape]],
    Named("Configuration", "{group: {option: {value, origin}}}, secrets masked"),
]


class SettingRow(NamedTuple):
    """A row of the table of `plimsoll config show`."""

    group: str
    option: str
    setting: OptionShape


def _value(row: SettingRow) -> str:
    value = row.setting["value"]
    if isinstance(value, list):
        return list_text(value)
    return "-" if value is None or value == "" else str(value)


SETTING_COLUMNS: tuple[Column[SettingRow], ...] = (
    Column("GROUP", lambda row: f"[{row.group}]"),
    Column("OPTION", lambda row: row.option),
    Column("VALUE", _value),
    Column("ORIGIN", lambda row: row.setting["origin"]),
)
"""The table of `plimsoll config show`."""
