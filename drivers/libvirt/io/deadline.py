"""Deadlines for calls that have none, such as libvirt's.

A call to libvirt may block as long as its daemon does, and Python cannot interrupt it. So each piece of work
runs in a thread of its own. When a deadline passes, the caller stops waiting and the thread goes on alone
until its call returns. The number of such abandoned threads is bounded.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.errors import DriverSlow, DriverUnavailable, counted

T = TypeVar("T")
STUCK_MAX = 8


class CallTimeout(DriverSlow):
    """A deadline passed and the thread was abandoned; `returned` is set when its call returns after all."""

    def __init__(self, message: str, returned: threading.Event) -> None:
        super().__init__(message)
        self.returned = returned


class WorkAbandoned(Exception):
    """Ends work, and its thread, after its caller has stopped waiting."""


class CallDeadline:
    """The deadline of the next call. Work extends it before each call that may block.

    `ends_at` is in seconds of the monotonic clock; `abandoned` is set by the caller.
    """

    def __init__(self, call_timeout_s: float) -> None:
        self._call_timeout_s = call_timeout_s
        self.ends_at = time.monotonic() + call_timeout_s
        self.abandoned = False

    def extend(self, within_s: float | None = None) -> None:
        """Give the next call `within_s` seconds, by default the call timeout.

        Raises WorkAbandoned where the caller has stopped waiting.
        """
        if self.abandoned:
            raise WorkAbandoned
        self.ends_at = time.monotonic() + (self._call_timeout_s if within_s is None else within_s)


class _Job(Generic[T]):
    """One piece of work, which is either finished or abandoned, never both."""

    def __init__(
        self, work: Callable[[CallDeadline], T], late: Callable[[], None], deadline: CallDeadline
    ) -> None:
        self.deadline = deadline
        self.finished = threading.Event()
        self.result: T
        self.error: BaseException | None = None
        self._work = work
        self._late = late
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self.result = self._work(self.deadline)
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
        with self._lock:
            in_time = not self.deadline.abandoned
            self.finished.set()
        if not in_time:
            self._late()

    def abandon(self) -> bool:
        """False where the work finished meanwhile."""
        with self._lock:
            self.deadline.abandoned = not self.finished.is_set()
            return self.deadline.abandoned


class DeadlineRunner:
    """Runs work with a deadline for each of its calls (`call_timeout_s`) and one for all of it.

    In errors, `who` names what did not answer, and `advice` says what to do about it.
    """

    def __init__(
        self, who: str, advice: str, call_timeout_s: float, total_timeout_s: float, stuck_max: int = STUCK_MAX
    ) -> None:
        self.call_timeout_s = call_timeout_s
        self._who = who
        self._advice = advice
        self._total_timeout_s = total_timeout_s
        self._stuck_max = stuck_max
        self._stuck: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, what: str, work: Callable[[CallDeadline], T], late: Callable[[], None] = lambda: None) -> T:
        """The result of `work`. If the work ends after it was abandoned, its thread calls `late`.

        Raises CallTimeout where a deadline passes, DriverUnavailable where too many calls are stuck already,
        and the exceptions of `work`.
        """
        self._refuse_when_stuck(what)
        started = time.monotonic()
        job = _Job(work, late, CallDeadline(self.call_timeout_s))
        thread = threading.Thread(target=job.run, name="plimsoll-libvirt-call", daemon=True)
        thread.start()
        while not job.finished.wait(max(0.0, self._ends_at(job.deadline, started) - time.monotonic())):
            if time.monotonic() >= self._ends_at(job.deadline, started) and job.abandon():
                with self._lock:
                    self._stuck.append(thread)
                raise CallTimeout(
                    f"{self._who} did not answer within {time.monotonic() - started:.1f} s ({what}): "
                    f"{self._advice}",
                    job.finished,
                )
        if job.error is not None:
            raise job.error
        return job.result

    def _ends_at(self, deadline: CallDeadline, started: float) -> float:
        return min(deadline.ends_at, started + self._total_timeout_s)

    def _refuse_when_stuck(self, what: str) -> None:
        with self._lock:
            self._stuck = [thread for thread in self._stuck if thread.is_alive()]
            if len(self._stuck) >= self._stuck_max:
                who = self._who
                stuck = counted(len(self._stuck), f"call to {who} is", f"calls to {who} are")
                raise DriverUnavailable(f"{stuck} stuck, the agent starts no other ({what}): {self._advice}")
