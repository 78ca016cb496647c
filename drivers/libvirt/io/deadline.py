"""A deadline on calls that have none: each piece of work runs in a thread that can be left behind.

libvirt's calls wait as long as their daemon likes. Python cannot interrupt them, so the caller stops
waiting, and the thread goes on alone until its call returns; the number of such threads is bounded.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.errors import DriverUnavailable

T = TypeVar("T")
STUCK_MAX = 8


class Hung(DriverUnavailable):
    """A deadline was over, and the work's thread was left behind; `returned` is set once it comes back."""

    def __init__(self, message: str, returned: threading.Event) -> None:
        super().__init__(message)
        self.returned = returned


class LeftBehind(Exception):
    """The work's caller has given up; the work ends here, and with it the thread that nobody waits for."""


class Beat:
    """The work's side of its deadline, called before each call that may hang."""

    def __init__(self, call_timeout_s: float) -> None:
        self._call_timeout_s = call_timeout_s
        self.due = time.monotonic() + call_timeout_s
        self.given_up = False

    def __call__(self, within_s: float | None = None) -> None:
        """The next call may take `within_s` seconds. Raises LeftBehind where nobody waits any more."""
        if self.given_up:
            raise LeftBehind
        self.due = time.monotonic() + (self._call_timeout_s if within_s is None else within_s)


class _Job(Generic[T]):
    """One piece of work: it is either finished or given up, whichever comes first."""

    def __init__(self, work: Callable[[Beat], T], late: Callable[[], None], beat: Beat) -> None:
        self.beat = beat
        self.finished = threading.Event()
        self.result: T
        self.error: BaseException | None = None
        self._work = work
        self._late = late
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            self.result = self._work(self.beat)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits, which raises it
            self.error = error
        with self._lock:
            in_time = not self.beat.given_up
            self.finished.set()
        if not in_time:
            self._late()

    def give_up(self) -> bool:
        """False where the work was finished meanwhile."""
        with self._lock:
            self.beat.given_up = not self.finished.is_set()
            return self.beat.given_up


class Runner:
    """Runs work with a deadline on each of its calls (`call_timeout_s`) and one on the whole.

    `who` is what may hang, `advice` what to do about it, for the errors.
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

    def run(self, what: str, work: Callable[[Beat], T], late: Callable[[], None] = lambda: None) -> T:
        """What `work` returns or raises; `late` is called in its thread if it ends after it was given up.

        Raises Hung when a deadline is over, DriverUnavailable when too many calls hang already.
        """
        self._refuse_when_stuck(what)
        started = time.monotonic()
        job = _Job(work, late, Beat(self.call_timeout_s))
        thread = threading.Thread(target=job.run, name="plimsoll-libvirt-call", daemon=True)
        thread.start()
        while not job.finished.wait(max(0.0, self._due(job.beat, started) - time.monotonic())):
            if time.monotonic() >= self._due(job.beat, started) and job.give_up():
                with self._lock:
                    self._stuck.append(thread)
                raise Hung(
                    f"{self._who} did not answer within {time.monotonic() - started:.1f} s ({what}): "
                    f"{self._advice}",
                    job.finished,
                )
        if job.error is not None:
            raise job.error
        return job.result

    def _due(self, beat: Beat, started: float) -> float:
        return min(beat.due, started + self._total_timeout_s)

    def _refuse_when_stuck(self, what: str) -> None:
        with self._lock:
            self._stuck = [thread for thread in self._stuck if thread.is_alive()]
            if len(self._stuck) >= self._stuck_max:
                raise DriverUnavailable(
                    f"{len(self._stuck)} calls to {self._who} hang already, none is added ({what}): "
                    f"{self._advice}"
                )
