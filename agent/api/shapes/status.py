"""How the agent is: `GET /v1/status` and the health checks."""

from collections.abc import Iterable
from typing import Annotated, TypedDict

from agent.api.shapes.schema import Count, Moment, Named, Values, extensible


def _states() -> Iterable[str]:
    from agent.status.overview import HostState

    return HostState


StateShape = Annotated[str, Values(_states), Named("State")]


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
    schedulers: Annotated[bool, "false: the root provider has COMPUTE_STATUS_DISABLED, whoever set it"]


@extensible
class PauseShape(TypedDict):
    """An operator's word that this host takes no new claims."""

    reason: str
    uid: Annotated[Count, "the user who asked for it"]
    since: Moment
    schedulers: Annotated[bool, "true: the host has the trait COMPUTE_STATUS_DISABLED"]
    drains: Annotated[bool, "true: the instances that are here are to leave"]


@extensible
class GateStatusShape(TypedDict):
    """Whether guests start only by the gate's word."""

    hook: Annotated[str, "enabled, outdated, foreign or disabled; unknown: the agent may not read the folder"]
    in_effect: Annotated[bool | None, "null: the gate is disabled, or that cannot be told"]
    unanswered: Annotated[str, "while the agent does not decide, guests start (allow) or do not (refuse)"]


@extensible
class LastPassShape(TypedDict):
    """The last pass: the agent compared the host with Placement and wrote the differences."""

    at: Moment
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
    since: Annotated[Moment, "when the agent came into this state; RFC 3339, UTC"]
    driver: DriverStatusShape
    placement: PlacementStatusShape
    claims: ClaimsStatusShape
    gate: GateStatusShape
    pause: Annotated[PauseShape | None, "null: the host is not paused"]
    last_pass: LastPassShape | None
    next_try: Annotated[Moment | None, "when the agent tries again after a fault; null: there is no fault"]
    findings: Annotated[Count, "the number of findings of the last audit"]
    audited: Annotated[Moment | None, "when the last audit ended; null: not audited since the start"]
    pid: Count
