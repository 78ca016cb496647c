"""Is the agent alive, and is it ready? Each check has a name, so that the answer says which one failed. Pure.

Alive means that a restart would not help: the loop goes round. Ready means that a claim would be looked at.
"""

from dataclasses import dataclass

from agent.status.condition import Fault, HostState
from agent.status.overview import Health, HealthCheck

LOOP_LATE_S = 60.0
PASS_STUCK_S = 300.0


@dataclass(frozen=True, slots=True)
class Signs:
    """What the checks look at. `beat_age_s`: since the loop last went round; `pass_s`: of the pass under way.

    `closed` says why claims are closed; `writable`: whether the state directory may be written.
    """

    state: HostState
    fault: Fault | None
    closed: str | None
    seen_host: bool
    beat_age_s: float
    pass_s: float
    writable: bool
    state_path: str


def judge(signs: Signs) -> Health:
    return Health(str(signs.state), _live(signs), _ready(signs))


def _live(signs: Signs) -> tuple[HealthCheck, ...]:
    return (
        _check(
            "loop",
            signs.beat_age_s < LOOP_LATE_S,
            f"The agent's loop last went round {signs.beat_age_s:.0f} s ago; restart the agent.",
        ),
        _check(
            "pass",
            signs.pass_s < PASS_STUCK_S,
            f"A pass has been running for {signs.pass_s:.0f} s; restart the agent.",
        ),
    )


def _ready(signs: Signs) -> tuple[HealthCheck, ...]:
    fault = signs.fault

    def in_order(concern: str) -> HealthCheck:
        failed = fault is not None and fault.concern == concern
        return _check(concern, not failed, fault.sentence if fault else "")

    state = in_order("agent")
    written = state.ok and signs.writable
    return (
        _check("inventory", signs.seen_host, "The driver has not delivered a full inventory yet."),
        in_order("driver"),
        in_order("placement"),
        in_order("identity"),
        _check(
            "state", written, state.reason or f"The state directory {signs.state_path} cannot be written."
        ),
        _check("claims", signs.closed is None, f"Claims are closed: {signs.closed}."),
    )


def _check(name: str, ok: bool, reason: str) -> HealthCheck:
    return HealthCheck(name, ok, "" if ok else reason)
