"""Runs one job per concern: each at intervals, at most once at a time, or earlier on request.

Source: https://apscheduler.readthedocs.io/en/3.x/userguide.html
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from random import SystemRandom

from apscheduler.events import EVENT_JOB_ERROR, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

THREADS = 6
JITTER_PART = 10

_DICE = SystemRandom()


class Jobs:
    """The agent's jobs. `on_error(job's name, exception)` is called after an exception in a job."""

    def __init__(self, on_error: Callable[[str, BaseException], None]) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(partial(_report_error, on_error), EVENT_JOB_ERROR)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._requested: dict[str, float] = {}

    def every(
        self, name: str, function: Callable[[], None], interval_s: float, *, jitter: bool = False
    ) -> None:
        """Run `function` at intervals, first after one interval. A known name replaces its job.

        With jitter, the first run comes after a random part of the interval, so that hosts that start at the
        same time do not stay in step. A run that is late by up to an interval still takes place; several
        missed runs become one.
        """
        first_s = _DICE.uniform(0, interval_s) if jitter else interval_s
        self._scheduler.add_job(
            partial(self._run, name, function),
            IntervalTrigger(
                seconds=interval_s,
                start_date=datetime.now(UTC) + timedelta(seconds=first_s),
                jitter=interval_s / JITTER_PART if jitter else None,
                timezone=UTC,
            ),
            id=name,
            name=name,
            misfire_grace_time=max(1, int(interval_s)),
            replace_existing=True,
        )

    def remove(self, name: str) -> None:
        """Remove a job; a run under way goes on to its end."""
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def wake(self, name: str, delay_s: float = 0.0) -> None:
        """Run the job in `delay_s` seconds at the latest; if it is running now, so long after its end."""
        with self._lock:
            if name in self._running:
                self._requested[name] = min(delay_s, self._requested.get(name, delay_s))
                return
            job = self._scheduler.get_job(name)
            due = datetime.now(UTC) + timedelta(seconds=delay_s)
            planned = getattr(job, "next_run_time", None)  # missing before the scheduler starts
            if job is not None and (planned is None or planned > due):
                job.modify(next_run_time=due)

    def start(self) -> None:
        """Start the intervals."""
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more runs, and wait for those under way, which all have deadlines."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

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
