"""How the agent is, and what it did: status and health checks, pauses, audits, the history and its
explanations, the overview of the whole host, and the settings in force.
"""

from typing import Annotated, Any, NamedTuple, TypedDict

from agent.api.shapes.instances import InstanceShape, MoveShape
from agent.api.shapes.providers import ResourceProviderShape
from agent.api.shapes.schema import (
    Column,
    Count,
    ExactMoment,
    From,
    Moment,
    Named,
    Schema,
    Values,
    consumer_text,
    extensible,
    list_text,
    local_time,
)

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

    events: Annotated[list[EventShape], "the newest first"]


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
