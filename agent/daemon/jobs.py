"""Runs one job per concern: each at intervals, at most once at a time, or earlier on request.

APScheduler plans by the wall clock, which may be set to any time. So its scheduler looks at least once a
second whether that happened, and then moves its plan along: all intervals are of the monotonic clock, and
the time for which the host was suspended is a part of them. What was due meanwhile runs at the resume.

Source: https://apscheduler.readthedocs.io/en/3.x/userguide.html
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import SystemRandom

from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from agent.clock import STEP_S, HostClock, suspended_s

THREADS = 6
JITTER_PART = 10

CLOCK_LOOK_S = 1.0

_DICE = SystemRandom()


class _Interval(IntervalTrigger):  # type: ignore[misc]
    """The next run is after now: the runs that the clock has left out are not counted one by one."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        due: datetime = super().get_next_fire_time(previous_fire_time, now)
        return due if previous_fire_time is None or due > now else now + self.interval


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Moves its plan along where the wall clock was set; `on_step` gets by how many seconds.

    `on_resume` gets for how many seconds the host was suspended.
    """

    def __init__(
        self,
        clock: HostClock,
        on_step: Callable[[float], None],
        on_resume: Callable[[float], None],
        suspended: Callable[[], float],
    ) -> None:
        super().__init__(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._clock = clock
        self._on_step = on_step
        self._on_resume = on_resume
        self._suspended = suspended
        self._suspended_s = suspended()
        self._ahead_s = clock.ahead_s()
        self._plan_lock = threading.RLock()

    def in_s(self, delay_s: float) -> datetime:
        """The time so many seconds from now, by the wall clock as the plan knows it."""
        return datetime.fromtimestamp(time.monotonic() + self._ahead_s + delay_s, UTC)

    def plan(self, change: Callable[[], None]) -> None:
        """Change the plan while it is not moved along."""
        with self._plan_lock:
            change()

    def end(self) -> None:
        """Start no more runs, and wait for those under way.

        APScheduler itself waits with its locks held, which a run that plans another at its end needs.
        """
        executors = [*self._executors.values()]
        self.shutdown(wait=False)
        for executor in executors:
            executor.shutdown(wait=True)

    def _process_jobs(self) -> float:
        with self._plan_lock:
            slept_s = self._suspended() - self._suspended_s
            if slept_s < STEP_S:  # two clocks are read one after the other
                slept_s = 0.0
            self._suspended_s += slept_s
            lead_s = self._clock.ahead_s() - self._ahead_s
            self._ahead_s += lead_s
            step_s = lead_s - slept_s
            if abs(step_s) < STEP_S:
                step_s = 0.0
            for job in self.get_jobs() if step_s else ():
                job.modify(next_run_time=job.next_run_time + timedelta(seconds=step_s))
            due_s = super()._process_jobs()
        if slept_s:
            self._on_resume(slept_s)
        if step_s:
            self._on_step(step_s)
        return CLOCK_LOOK_S if due_s is None else min(due_s, CLOCK_LOOK_S)


class Jobs:
    """The agent's jobs.

    `on_error(job's name, exception)` is called after an exception in a job, `on_step(seconds)` after the wall
    clock was set forward or (negative) back, `on_resume(seconds)` after the host was suspended.
    """

    def __init__(
        self,
        on_error: Callable[[str, BaseException], None],
        on_step: Callable[[float], None] = lambda step_s: None,
        clock: HostClock | None = None,
        on_resume: Callable[[float], None] = lambda slept_s: None,
        suspended: Callable[[], float] = suspended_s,
    ) -> None:
        self._scheduler = _Scheduler(clock or HostClock(), on_step, on_resume, suspended)
        self._scheduler.add_listener(partial(_report_error, on_error), EVENT_JOB_ERROR)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._requested: dict[str, float] = {}

    def every(
        self, name: str, function: Callable[[], None], interval_s: float, *, jitter: bool = False
    ) -> None:
        """Run `function` at intervals, first after one interval. A known name replaces its job.

        With jitter, the first run comes after a random part of the interval, so that hosts that start at the
        same time do not stay in step. A run that is late still takes place; several missed runs become one.
        """
        first_s = _DICE.uniform(0, interval_s) if jitter else interval_s
        self._scheduler.plan(
            lambda: self._scheduler.add_job(
                partial(self._run, name, function),
                _Interval(
                    seconds=interval_s,
                    jitter=interval_s / JITTER_PART if jitter else None,
                    timezone=UTC,
                ),
                id=name,
                name=name,
                replace_existing=True,
                next_run_time=self._scheduler.in_s(first_s),
            )
        )

    def remove(self, name: str) -> None:
        """Remove a job; a run under way goes on to its end."""
        self._scheduler.plan(partial(self._remove, name))

    def _remove(self, name: str) -> None:
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def wake(self, name: str, delay_s: float = 0.0) -> None:
        """Run the job in `delay_s` seconds at the latest; if it is running now, so long after its end."""
        with self._lock:
            if name in self._running:
                self._requested[name] = min(delay_s, self._requested.get(name, delay_s))
                return
            self._scheduler.plan(partial(self._hasten, name, delay_s))

    def _hasten(self, name: str, delay_s: float) -> None:
        job, due = self._scheduler.get_job(name), self._scheduler.in_s(delay_s)
        if job is not None and job.next_run_time > due:
            with suppress(JobLookupError):  # the scheduler has been stopped since
                job.modify(next_run_time=due)

    def start(self) -> None:
        """Start the intervals."""
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs, and wait for those under way, which all have deadlines."""
        if self._scheduler.running:
            self._scheduler.end()

    def _run(self, name: str, function: Callable[[], None]) -> None:
        with self._lock:
            self._running.add(name)
        try:
            function()
        finally:
            with self._lock:
                self._running.discard(name)
                delay_s = self._requested.pop(name, None)
            if delay_s is not None and self._scheduler.running:
                self.wake(name, delay_s)


def _report_error(on_error: Callable[[str, BaseException], None], event: JobExecutionEvent) -> None:
    on_error(event.job_id, event.exception)
