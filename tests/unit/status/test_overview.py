"""The condition: one line a change, none while nothing changes."""

import pytest

from agent.status.overview import Condition, Fault, HostState


@pytest.fixture
def told() -> list[tuple[HostState, str]]:
    return []


@pytest.fixture
def condition(told: list[tuple[HostState, str]]) -> Condition:
    ticks = iter(range(1, 100))
    return Condition(lambda state, sentence: told.append((state, sentence)), clock=lambda: next(ticks))


DRIVER = Fault("driver", "libvirtd is away.", away=True)
PLACEMENT = Fault("placement", "Placement did not show the tree.", away=True)


def test_each_change_is_told_once(condition: Condition, told: list[tuple[HostState, str]]) -> None:
    assert condition.state is HostState.STARTING
    for _ in range(3):
        condition.degrade(DRIVER)
    for _ in range(3):
        condition.degrade(PLACEMENT)
    for _ in range(3):
        condition.become_ready("All is well.")
    assert told == [
        (HostState.DEGRADED, DRIVER.sentence),
        (HostState.DEGRADED, PLACEMENT.sentence),
        (HostState.READY, "All is well."),
    ]
    assert condition.fault is None


def test_being_away_is_one_fault_in_whatever_words(
    condition: Condition, told: list[tuple[HostState, str]]
) -> None:
    condition.degrade(PLACEMENT)
    condition.degrade(Fault("placement", "Placement did not put the traits.", away=True))
    assert len(told) == 1
    assert condition.fault is not None and condition.fault.sentence == "Placement did not put the traits."
    condition.degrade(Fault("placement", "Placement refused the plan."))
    condition.degrade(Fault("placement", "Placement refused another plan."))
    assert len(told) == 3


def test_since_is_of_the_state_not_of_the_fault(condition: Condition) -> None:
    condition.degrade(DRIVER)
    since = condition.since
    condition.degrade(PLACEMENT)
    assert condition.since == since and condition.fault == PLACEMENT


def test_stopping_is_the_end(condition: Condition, told: list[tuple[HostState, str]]) -> None:
    condition.begin_stop()
    condition.degrade(DRIVER)
    condition.become_ready("late")
    assert condition.state is HostState.STOPPING and told == []
