"""The health checks: is the agent alive, and is it ready? Each check has a name. Pure.

An agent that is not alive needs a restart. A ready agent can answer claims.
"""

from dataclasses import dataclass

from agent.status.overview import Fault, Health, HealthCheck, HostState

LOOP_LATE_S = 60.0
PASS_STUCK_S = 300.0


@dataclass(frozen=True, slots=True)
class HealthInputs:
    """The data of the checks.

    `beat_age_s` seconds have passed since the last heartbeat, `pass_s` since the begin of the pass under way
    (0 if there is none). `closed` is the reason why claims are closed. `seen_host`: the driver has delivered
    an inventory. `writable`: the agent may write to its state directory.
    """

    state: HostState
    fault: Fault | None
    closed: str | None
    seen_host: bool
    beat_age_s: float
    pass_s: float
    writable: bool
    state_path: str


def judge_health(inputs: HealthInputs) -> Health:
    """All checks, those of /livez and those of /readyz."""
    return Health(str(inputs.state), _live(inputs), _ready(inputs))


def _live(inputs: HealthInputs) -> tuple[HealthCheck, ...]:
    return (
        _check(
            "loop",
            inputs.beat_age_s < LOOP_LATE_S,
            f"The agent's last heartbeat was {inputs.beat_age_s:.0f} s ago; restart the agent.",
        ),
        _check(
            "pass",
            inputs.pass_s < PASS_STUCK_S,
            f"A pass has been running for {inputs.pass_s:.0f} s; restart the agent.",
        ),
    )


def _ready(inputs: HealthInputs) -> tuple[HealthCheck, ...]:
    fault = inputs.fault

    def in_order(concern: str) -> HealthCheck:
        failed = fault is not None and fault.concern == concern
        return _check(concern, not failed, fault.sentence if fault else "")

    state = in_order("agent")
    written = state.ok and inputs.writable
    return (
        _check("inventory", inputs.seen_host, "The driver has not delivered a full inventory yet."),
        in_order("driver"),
        in_order("placement"),
        in_order("identity"),
        _check(
            "state", written, state.reason or f"The state directory {inputs.state_path} cannot be written."
        ),
        _check("claims", inputs.closed is None, f"Claims are closed: {inputs.closed}."),
    )


def _check(name: str, ok: bool, reason: str) -> HealthCheck:
    return HealthCheck(name, ok, "" if ok else reason)
