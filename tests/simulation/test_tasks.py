"""The simulator's own clock, locks and kills."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress

import pytest

from simulation import tasks
from simulation.machine import SimGuest
from simulation.story import Story
from simulation.tasks import Killed, Process, Scheduler


def world(seed: int = 0, restless: float = 0.0) -> tuple[Scheduler, Process]:
    scheduler = Scheduler(seed, restless=restless)
    tasks.use(scheduler)
    return scheduler, Process("p")


def test_time_passes_only_while_all_wait() -> None:
    scheduler, process = world()
    seen: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> Callable[[], None]:
        def sleep() -> None:
            tasks.sleep(seconds)
            seen.append((name, scheduler.now))

        return sleep

    for name, seconds in (("long", 50.0), ("short", 2.0)):
        scheduler.spawn(name, process, sleeper(name, seconds))
    scheduler.run(seconds=10.0)
    assert seen == [("short", 2.0)] and scheduler.now == 10.0
    scheduler.run(seconds=100.0)
    assert seen[-1] == ("long", 50.0)


def test_a_hypervisor_shows_its_guests_whatever_keeps_the_agents_thread() -> None:
    """Seed 362629: the thread that put a guest there stood still for 70 s before the driver had it."""
    with Story("a") as story:
        host = story.hosts["a"]
        story.scheduler.stall = 1.0
        began = story.scheduler.now
        host.ask("start", lambda operations: host.put_guest("web1", SimGuest("web1", {"VCPU": 1})))
        story._run(lambda: bool(host._starting[1]._host.guests), 100.0)
        assert story.scheduler.now - began <= 70.0, "its first place"


def test_a_suspended_process_stands_still_with_its_monotonic_clock() -> None:
    scheduler, process = world()
    seen: list[tuple[float, float, float]] = []
    event = tasks.Event()

    def sleeper() -> None:
        began = tasks.wall_clock()
        tasks.sleep(50.0)
        seen.append((scheduler.now, tasks.steady_clock(), tasks.wall_clock() - began))
        event.wait(10.0)
        seen.append((scheduler.now, tasks.steady_clock(), tasks.wall_clock() - began))

    scheduler.spawn("sleeper", process, sleeper)
    scheduler.run(seconds=20.0)
    scheduler.suspend(process)
    scheduler.run(seconds=900.0)
    assert seen == []
    scheduler.resume(process)
    scheduler.run(seconds=30.0)
    assert seen == [(950.0, 50.0, 950.0)]
    scheduler.suspend(process)
    event.set()
    late = scheduler.spawn("a task that begins meanwhile", process, tasks.steady_clock)
    scheduler.run(seconds=100.0)
    assert len(seen) == 1 and not late.done
    scheduler.resume(process)
    scheduler.run(seconds=1.0)
    assert seen[1] == (1050.0, 50.0, 1050.0) and late.value == 50.0


def test_a_lock_has_one_holder_however_restless_the_schedule_is() -> None:
    for seed in range(50):
        scheduler, process = world(seed, restless=1.0)
        lock, inside, order = tasks.Lock(), [], []

        def work(
            name: int,
            scheduler: Scheduler = scheduler,
            lock: tasks.Lock = lock,
            inside: list = inside,
            order: list = order,
        ) -> None:
            for _ in range(3):
                with lock:
                    inside.append(name)
                    scheduler.place()
                    assert inside == [name]
                    inside.clear()
                    order.append(name)

        for name in range(4):
            scheduler.spawn(str(name), process, lambda name=name: work(name))
        scheduler.run(seconds=1.0)
        assert not scheduler.broken and len(order) == 12


def test_a_condition_wakes_or_times_out() -> None:
    scheduler, process = world()
    condition = tasks.Condition(tasks.Lock())
    answers: list[tuple[bool, float]] = []

    def wait(seconds: float) -> None:
        with condition:
            answers.append((condition.wait(seconds), scheduler.now))

    def notify() -> None:
        tasks.sleep(5.0)
        with condition:
            condition.notify_all()

    scheduler.spawn("soon", process, lambda: wait(1.0))
    scheduler.spawn("late", process, lambda: wait(60.0))
    scheduler.spawn("notify", process, notify)
    scheduler.run(seconds=100.0)
    assert answers == [(False, 1.0), (True, 5.0)]


def test_a_killed_process_does_nothing_more_and_others_go_on() -> None:
    scheduler, process = world()
    other, lock, done = Process("other"), tasks.Lock(), []

    def work(name: str) -> None:
        try:
            with lock:
                tasks.sleep(10.0)
                done.append(name)
        finally:
            with suppress(ValueError):
                scheduler.place()
                done.append(f"{name} tidied up")

    scheduler.spawn("a", process, lambda: work("a"))
    scheduler.spawn("b", other, lambda: tasks.sleep(20.0) or done.append("b"))
    scheduler.run(seconds=5.0)
    scheduler.kill(process)
    scheduler.run(seconds=60.0)
    assert done == ["b"]


@pytest.mark.parametrize(("now", "slept_s"), [(1992.543, 860.087), (1998.16, 257.305)])
def test_each_wait_for_what_is_left_of_a_time_brings_its_end_nearer(now: float, slept_s: float) -> None:
    """Seed 343042: after the host had been suspended, less was left than the clock could tell."""
    scheduler, process = world()
    scheduler.now, process.slept_s = now, slept_s
    waits: list[float] = []

    def work() -> None:
        end = scheduler.steady + 60.0
        while scheduler.steady < end and len(waits) < 5:
            waits.append(end - scheduler.steady)
            scheduler.wait(waits[-1])

    scheduler.spawn("a", process, work)
    scheduler.run(seconds=100.0)
    assert len(waits) < 5


def test_a_process_dies_at_the_place_that_was_told() -> None:
    scheduler, process = world()
    reached = []

    def work() -> None:
        for number in range(10):
            scheduler.place()
            reached.append(number)

    process.killed_at = 4
    task = scheduler.spawn("a", process, work)
    scheduler.run(seconds=1.0)
    assert reached == [0, 1, 2] and process.dead and task.done and not isinstance(task.error, Killed)


def test_an_interrupt_ends_the_history_and_is_not_taken_for_a_broken_task() -> None:
    scheduler, process = world()

    def work() -> None:
        raise KeyboardInterrupt

    task = scheduler.spawn("a", process, work)
    with pytest.raises(KeyboardInterrupt):
        scheduler.run(seconds=1.0)
    assert task.done and scheduler.current is None and not scheduler.broken


def test_the_databases_of_a_world_are_closed_with_it() -> None:
    with Story("ab") as story:
        disks = [host.disk for host in story.hosts.values()]
    for disk in disks:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            disk.rows("SELECT 1")
