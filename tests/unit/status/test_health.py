"""Each check fails for its own reason, and only for that."""

from dataclasses import replace

import pytest

from agent.status.host_status import LOOP_LATE_S, PASS_STUCK_S, HealthInputs, judge_health
from agent.status.overview import Fault, HostState

WELL = HealthInputs(HostState.READY, None, None, True, 1.0, 0.0, True, "/var/lib/plimsoll")


def failed(signs: HealthInputs) -> tuple[list[str], list[str]]:
    health = judge_health(signs)
    for check in (*health.live, *health.ready):
        assert bool(check.reason) is not check.ok
    return [each.name for each in health.live if not each.ok], [
        each.name for each in health.ready if not each.ok
    ]


def test_a_well_agent_is_alive_and_ready() -> None:
    assert failed(WELL) == ([], [])


@pytest.mark.parametrize(
    ("signs", "live", "ready"),
    [
        (replace(WELL, beat_age_s=LOOP_LATE_S), ["loop"], []),
        (replace(WELL, pass_s=PASS_STUCK_S), ["pass"], []),
        (replace(WELL, seen_host=False), [], ["inventory"]),
        (replace(WELL, fault=Fault("driver", "libvirt is away.", True)), [], ["driver"]),
        (replace(WELL, fault=Fault("placement", "It is away.", True)), [], ["placement"]),
        (replace(WELL, fault=Fault("identity", "Who am I?")), [], ["identity"]),
        (replace(WELL, fault=Fault("agent", "The disk is full.")), [], ["state"]),
        (replace(WELL, writable=False), [], ["state"]),
        (replace(WELL, closed="the agent is stopping"), [], ["claims"]),
        (replace(WELL, fault=Fault("reshape", "It waits.")), [], []),
    ],
)
def test_what_fails_says_so_and_why(signs: HealthInputs, live: list[str], ready: list[str]) -> None:
    assert failed(signs) == (live, ready)


def test_a_reason_is_the_fault_s_own_sentence() -> None:
    health = judge_health(replace(WELL, fault=Fault("placement", "Placement does not answer.", True)))
    (check,) = [each for each in health.ready if not each.ok]
    assert check.reason == "Placement does not answer."
