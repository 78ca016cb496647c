"""The service's jobs: each at its time or when it is woken, and when the first audit comes."""

import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from agent.clock import HostClock
from agent.daemon.service import Jobs, first_audit_s


@pytest.mark.parametrize("interval_s", [1, 30, 60, 600, 86400])
def test_the_first_audit_comes_within_a_minute_whatever_the_interval(interval_s: int) -> None:
    delays = [first_audit_s(interval_s) for _ in range(200)]
    assert all(0 < delay < 60 and delay <= interval_s for delay in delays)
    assert len({*delays}) > 1 or interval_s == 1, "hosts that start together do not stay in step"


LONG_S = 3600.0


@pytest.fixture
def errors() -> list[tuple[str, BaseException]]:
    return []


@pytest.fixture
def jobs(errors: list[tuple[str, BaseException]]) -> Iterator[Jobs]:
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    jobs = Jobs(lambda name, error: errors.append((name, error)))
    yield jobs
    jobs.stop()


def test_a_job_runs_again_and_again(jobs: Jobs) -> None:
    third = threading.Event()
    runs: list[float] = []

    def job() -> None:
        runs.append(time.monotonic())
        if len(runs) == 3:
            third.set()

    jobs.every("look", job, 0.05)
    jobs.start()
    assert third.wait(5)


def test_waking_many_times_runs_once_and_soon(jobs: Jobs) -> None:
    ran = threading.Semaphore(0)
    jobs.every("look", ran.release, LONG_S)
    jobs.wake("look", 0.1)
    jobs.start()
    for _ in range(10):
        jobs.wake("look", 0.1)
    assert ran.acquire(timeout=5)
    assert not ran.acquire(timeout=0.3)


def test_an_event_during_a_run_is_not_lost_and_runs_never_overlap(jobs: Jobs) -> None:
    entered, leave = threading.Semaphore(0), threading.Event()
    inside = [0, 0]

    def job() -> None:
        inside[0] += 1
        inside[1] = max(inside)
        entered.release()
        leave.wait(5)
        inside[0] -= 1

    jobs.every("look", job, LONG_S)
    jobs.start()
    jobs.wake("look")
    assert entered.acquire(timeout=5)
    jobs.wake("look")
    assert not entered.acquire(timeout=0.2)
    leave.set()
    assert entered.acquire(timeout=5)
    assert inside[1] == 1


def test_a_job_that_breaks_is_told_and_runs_again(
    jobs: Jobs, errors: list[tuple[str, BaseException]]
) -> None:
    ran = threading.Semaphore(0)

    def job() -> None:
        ran.release()
        raise RuntimeError("of a mistake")

    jobs.every("look", job, 0.05)
    jobs.start()
    assert ran.acquire(timeout=5) and ran.acquire(timeout=5)
    assert errors[0][0] == "look" and str(errors[0][1]) == "of a mistake"


def test_stopping_waits_for_the_run_under_way(jobs: Jobs) -> None:
    entered, done = threading.Event(), []

    def job() -> None:
        entered.set()
        time.sleep(0.2)
        done.append(True)

    jobs.every("look", job, LONG_S)
    jobs.start()
    jobs.wake("look")
    assert entered.wait(5)
    jobs.wake("look")
    jobs.stop()
    assert done == [True]


def test_stopping_waits_for_a_run_that_plans_another_as_it_ends(jobs: Jobs) -> None:
    """A pass that finds a fault is tried again later; it may end while the agent stops."""
    entered, done = threading.Event(), []

    def job() -> None:
        entered.set()
        while jobs._scheduler.running:
            time.sleep(0.01)
        time.sleep(0.05)  # the stop is under way
        jobs.wake("verify", 1.0)
        done.append(True)

    jobs.every("verify", lambda: None, LONG_S)
    jobs.every("look", job, LONG_S)
    jobs.start()
    jobs.wake("look")
    assert entered.wait(5)
    stop = threading.Thread(target=jobs.stop, daemon=True)
    stop.start()
    stop.join(5)
    assert not stop.is_alive() and done == [True]


def test_a_removed_job_and_an_unknown_one(jobs: Jobs) -> None:
    ran = threading.Event()
    jobs.every("verify", ran.set, LONG_S)
    jobs.start()
    jobs.remove("verify")
    jobs.remove("verify")
    jobs.wake("verify")
    assert not ran.wait(0.1)


def test_jobs_with_jitter_begin_at_different_times(jobs: Jobs) -> None:
    begun: SimpleQueue[float] = SimpleQueue()
    for number in range(200):
        jobs.every(f"verify {number}", lambda: begun.put(time.monotonic()), 5.0, jitter=True)
    jobs.start()
    first = [begun.get(timeout=10) for _ in range(20)]
    assert first[-1] - first[0] > 0.1, "40 a second are to be expected"


def test_a_job_that_is_removed_while_the_clock_is_set_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload removes a job from another thread than the one that moves the plan along."""
    ahead = [3600.0]  # and then back to what APScheduler reads
    host = HostClock(lambda: time.time() + ahead[0])
    stepped, ran = SimpleQueue[float](), threading.Semaphore(0)
    jobs = Jobs(lambda name, error: None, stepped.put, host)
    jobs.every("verify", lambda: None, LONG_S)
    jobs.every("look", ran.release, 0.05)
    scheduler, removals = jobs._scheduler, []
    listed = scheduler.get_jobs

    def get_jobs() -> list[Any]:
        found: list[Any] = listed()
        removals.append(removal := threading.Thread(target=jobs.remove, args=("verify",)))
        removal.start()
        removal.join(0.2)
        return found

    monkeypatch.setattr(scheduler, "get_jobs", get_jobs)
    jobs.start()
    try:
        ahead[0] = 0.0
        assert stepped.get(timeout=5) == pytest.approx(-3600.0, abs=0.1)
        removals[0].join(5)
        assert ran.acquire(timeout=5) and scheduler.get_job("verify") is None
    finally:
        jobs.stop()


def test_what_was_due_while_the_host_was_suspended_runs_at_once() -> None:
    """The wall clock and the clock since the boot go on meanwhile; the monotonic one stands still."""
    hour_s = 3600.0
    ahead, slept = [-8 * hour_s], [0.0]  # and then what APScheduler reads
    stepped, resumed, ran = SimpleQueue[float](), SimpleQueue[float](), threading.Semaphore(0)
    host = HostClock(lambda: time.time() + ahead[0])
    jobs = Jobs(lambda name, error: None, stepped.put, host, resumed.put, lambda: slept[0])
    jobs.every("look", ran.release, hour_s)
    jobs.every("audit", lambda: None, 10 * hour_s)
    jobs.start()
    try:
        began = time.monotonic()
        slept[0], ahead[0] = 8 * hour_s, 0.0
        assert resumed.get(timeout=5) == pytest.approx(8 * hour_s, abs=0.5)
        assert ran.acquire(timeout=5) and time.monotonic() - began < 2.5
        left = jobs._scheduler.get_job("audit").next_run_time - jobs._scheduler.in_s(0)
        assert left.total_seconds() == pytest.approx(2 * hour_s, abs=5)
        ahead[0] -= hour_s  # and then somebody sets the clock
        assert stepped.get(timeout=5) == pytest.approx(-hour_s, abs=0.5)
        assert resumed.empty()
    finally:
        jobs.stop()
