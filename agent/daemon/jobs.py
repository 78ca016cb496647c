"""One job per concern, each at most once at a time; any of them can be woken early.

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

THREADS = 5
JITTER_PART = 10

_DICE = SystemRandom()


class Jobs:
    """`on_error` is called with the job's name and the exception that a job let through."""

    def __init__(self, on_error: Callable[[str, BaseException], None]) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(THREADS)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(partial(_tell, on_error), EVENT_JOB_ERROR)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._again: dict[str, float] = {}

    def every(
        self, name: str, function: Callable[[], None], interval_s: float, *, jitter: bool = False
    ) -> None:
        """Run `function` every so often, first after one interval; a name given again replaces its job.

        With jitter, first after a random part of the interval: hosts that started together do not stay
        together. One that is late by up to an interval still runs, several missed ones run once.
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
        """Run it no more; a run under way ends by itself."""
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def wake(self, name: str, delay_s: float = 0.0) -> None:
        """Run the job in `delay_s` at the latest; while it is running, so long after it ended."""
        with self._lock:
            if name in self._running:
                self._again[name] = min(delay_s, self._again.get(name, delay_s))
                return
            job = self._scheduler.get_job(name)
            due = datetime.now(UTC) + timedelta(seconds=delay_s)
            planned = getattr(job, "next_run_time", None)  # a scheduler that has not started sets none
            if job is not None and (planned is None or planned > due):
                job.modify(next_run_time=due)

    def start(self) -> None:
        self._scheduler.start()

    def stop(self) -> None:
        """Start no more of them and wait for the ones under way, which all end within their deadlines."""
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
                again = self._again.pop(name, None)
            if again is not None and self._scheduler.running:
                self.wake(name, again)


def _tell(on_error: Callable[[str, BaseException], None], event: JobExecutionEvent) -> None:
    on_error(event.job_id, event.exception)
