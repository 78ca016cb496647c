"""The condition: one line a change, none while nothing changes."""

import pytest

from agent.condition import Condition, State


@pytest.fixture
def told() -> list[tuple[State, str]]:
    return []


@pytest.fixture
def condition(told: list[tuple[State, str]]) -> Condition:
    ticks = iter(range(1, 100))
    return Condition(lambda state, sentence: told.append((state, sentence)), clock=lambda: next(ticks))


def test_each_change_is_told_once(condition: Condition, told: list[tuple[State, str]]) -> None:
    assert condition.state is State.STARTING
    for _ in range(3):
        condition.degraded("driver", "libvirtd is away.")
    for _ in range(3):
        condition.degraded("placement", "Placement is away.")
    for _ in range(3):
        condition.ready("All is well.")
    assert told == [
        (State.DEGRADED, "libvirtd is away."),
        (State.DEGRADED, "Placement is away."),
        (State.READY, "All is well."),
    ]
    assert condition.fault is None


def test_since_is_of_the_state_not_of_the_fault(condition: Condition) -> None:
    condition.degraded("driver", "one")
    since = condition.since
    condition.degraded("driver", "two")
    assert condition.since == since and condition.fault is not None and condition.fault.sentence == "two"


def test_stopping_is_the_end(condition: Condition, told: list[tuple[State, str]]) -> None:
    condition.stopping()
    condition.degraded("driver", "late")
    condition.ready("late")
    assert condition.state is State.STOPPING and told == []
