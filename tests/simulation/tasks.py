"""Tasks that take turns on one thread, the virtual clock, and the primitives on which a task waits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from math import inf, nextafter
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

EPOCH = 1_800_000_000.0
STALLS_S = (0.5, 5.0, 20.0, 70.0)


class Killed(BaseException):
    """The process of this task was killed: nothing that the task does from here on has an effect."""


class Stuck(AssertionError):
    """All tasks wait for each other, or something took more steps than it may."""


class Process:
    """A process of the simulated world: its tasks die together. `places` counts where its tasks waited.

    `slept_s` is for how long its host was suspended so far, until it was suspended at `asleep_since`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.places = 0
        self.killed_at: int | None = None
        self.slept_s = 0.0
        self.asleep_since: float | None = None
        self.held: list[Task] = []
        self.timers: list[tuple[float, int, Task]] = []
        """While it is asleep: its tasks that could go on, and the timers of others, with what is left."""


class Task:
    """One thread of a process; `value` or `error` once it is `done`. One that is `prompt` is not stalled."""

    def __init__(self, name: str, process: Process, number: int) -> None:
        self.name = name
        self.process = process
        self.number = number
        self.greenlet: greenlet
        self.ready = True
        self.timer: int | None = None
        self.timed_out = False
        self.done = self.prompt = False
        self.value: Any = None
        self.error: Exception | None = None


class Scheduler:
    """Runs one task at a time. `restless` is the probability that a task is interrupted where it could go on,
    `stall` that it is stopped there for a while."""

    def __init__(self, seed: int, *, restless: float = 0.0, stall: float = 0.0) -> None:
        self.dice = Random(f"schedule {seed}")
        self.names = Random(f"names {seed}")
        self.restless = restless
        self.stall = stall
        self.now = 0.0
        self.ahead_s = 0.0
        """How far the wall clock was set ahead of where it began."""
        self.stamped_at: dict[float, float] = {}
        """{what the wall clock said: when it was asked last and said that}"""
        self.steps = 0
        self.stopped = False
        """Set by an observer: the director takes over."""
        self.current: Task | None = None
        self.broken: list[tuple[Task, Exception]] = []
        self._hub = getcurrent()
        self._numbers = count()
        self._timers: list[tuple[float, int, Task]] = []
        self._ready: list[Task] = []
        self._tasks: dict[Task, None] = {}
        self.on_death: Callable[[Process], None] = lambda process: None

    # From anywhere

    def spawn(self, name: str, process: Process, function: Callable[[], Any]) -> Task:
        """A task that begins when the scheduler comes to it."""
        task = Task(name, process, next(self._numbers))

        def run() -> None:
            try:
                task.value = function()
            except Killed:
                pass
            except Exception as error:  # noqa: BLE001 - the director looks at it
                task.error = error
            finally:  # An interrupt from outside, such as the end of a test's time, goes on to the director.
                task.done = True
                self._tasks.pop(task, None)

        task.greenlet = greenlet(run, parent=self._hub)
        self._tasks[task] = None
        self._get_ready(task)
        return task

    def _get_ready(self, task: Task) -> None:
        process = task.process
        (self._ready if process.asleep_since is None else process.held).append(task)

    @property
    def steady(self) -> float:
        """The monotonic clock of the current task: it stands still while its host is suspended."""
        return self.now - (self.current.process.slept_s if self.current is not None else 0.0)

    def suspend(self, process: Process) -> None:
        """Stop the process, as its host is suspended; what others send to it waits."""
        if process.dead or process.asleep_since is not None:
            return
        process.asleep_since = self.now
        process.held = [task for task in self._ready if task.process is process]
        self._ready = [task for task in self._ready if task.process is not process]
        process.timers = [(at - self.now, *rest) for at, *rest in self._timers if rest[-1].process is process]
        self._timers = [timer for timer in self._timers if timer[-1].process is not process]
        heapq.heapify(self._timers)

    def resume(self, process: Process) -> None:
        """Let the process go on, if it was suspended."""
        if process.asleep_since is None:
            return
        process.slept_s += self.now - process.asleep_since
        process.asleep_since = None
        for left_s, number, task in process.timers:
            heapq.heappush(self._timers, (self.now + left_s, number, task))
        self._ready += [task for task in process.held if not task.done]
        process.held, process.timers = [], []

    def wake(self, task: Task) -> None:
        """Let the task go on; without effect if it does not wait."""
        if not task.ready and not task.done:
            task.ready, task.timer = True, None
            self._get_ready(task)

    # From a task

    def place(self) -> None:
        """A place at which the current task may be interrupted, stopped for a while, or killed."""
        task = self.current
        if task is None:
            return
        process = task.process
        if process.dead:
            raise Killed
        process.places += 1
        if process.killed_at is not None and process.places >= process.killed_at:
            process.dead = True
            raise Killed
        if self.stall and self.dice.random() < self.stall and not task.prompt:
            self.wait(self.dice.choice(STALLS_S))
        elif self.restless and self.dice.random() < self.restless:
            self._ready.append(task)
            self._switch(task)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until somebody wakes the current task; False if `seconds` have passed instead."""
        task = self.current
        assert task is not None, "the director cannot wait"
        if task.process.dead:
            raise Killed
        task.ready, task.timed_out = False, False
        if seconds is not None:
            task.timer = next(self._numbers)
            at = self.now + max(0.0, seconds)
            if seconds > 0.0 and at == self.now:  # less than the clock can tell: it must go on nevertheless
                at = nextafter(at, inf)
            heapq.heappush(self._timers, (at, task.timer, task))
        self._switch(task)
        return not task.timed_out

    def sleep(self, seconds: float) -> None:
        """Wait so long."""
        self.wait(seconds)

    def _switch(self, task: Task) -> None:
        self._hub.switch()
        self.current = task
        if task.process.dead:
            raise Killed

    # From the director

    def run(
        self, until: Callable[[], bool] = lambda: False, *, seconds: float = 0.0, slices: int = 200_000
    ) -> bool:
        """Run tasks until `until`, for at most so many seconds of the clock and so many slices; whether
        `until` came true. It also returns where nothing is left to do in that time."""
        end = self.now + seconds
        while not until():
            if self.stopped or self.broken:
                return False
            if slices <= 0:
                return until()
            slices -= 1
            if not self._ready and not self._next_timer(end):
                self.now = max(self.now, end)
                return until()
            self._run_one()
        return True

    def _run_one(self) -> None:
        ready = self._ready
        at = self.dice.randrange(len(ready)) if self.restless and len(ready) > 1 else 0
        task = ready.pop(at)
        if task.done:
            return
        self.steps += 1
        if self.steps > 2_000_000:
            raise Stuck("the history takes too many steps")
        self.current = task
        try:
            task.greenlet.switch()
        finally:
            self.current = None
        if task.process.dead:
            self.kill(task.process)
        if task.error is not None:
            self.broken.append((task, task.error))
            task.error = None

    def _next_timer(self, end: float) -> bool:
        while self._timers and self._timers[0][0] <= end:
            at, number, task = heapq.heappop(self._timers)
            if task.timer == number and not task.done:
                self.now = max(self.now, at)
                task.timed_out = True
                self.wake(task)
                return True
        return False

    def kill(self, process: Process) -> None:
        """Kill the process where its tasks are."""
        process.dead = True
        for task in [task for task in self._tasks if task.process is process]:
            self._tasks.pop(task, None)
            if not task.done:
                if task.greenlet:
                    self.current = task
                    task.greenlet.throw(Killed)
                    self.current = None
                task.done = True
        self._ready = [task for task in self._ready if not task.done]
        if process.killed_at != -1:
            process.killed_at = -1
            self.on_death(process)

    def end(self) -> None:
        """Kill all that is left, so that no greenlet survives."""
        for process in dict.fromkeys(task.process for task in self._tasks):
            process.killed_at = -1
            self.kill(process)


active: Scheduler | None = None
"""The scheduler of the world that runs now."""


def use(scheduler: Scheduler | None) -> None:
    """Make it the one that the primitives speak to."""
    global active
    active = scheduler


def _scheduler() -> Scheduler:
    assert active is not None, "no simulated world runs"
    return active


class Lock:
    """threading.Lock."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = _scheduler()
        scheduler.place()
        end = None if timeout < 0 else scheduler.steady + timeout
        while self._held:
            if not blocking:
                return False
            task = scheduler.current
            assert task is not None, "the director meets a lock that a task holds"
            self._waiting.append(task)
            try:
                answered = scheduler.wait(None if end is None else end - scheduler.steady)
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
            if not answered:
                return False
        self._held = True
        return True

    def release(self) -> None:
        assert self._held or _scheduler().current is None or _scheduler().current.process.dead
        self._held = False
        if self._waiting:
            _scheduler().wake(self._waiting[0])

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """threading.RLock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _scheduler().current
        if self._depth and self._owner is me:
            self._depth += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """threading.Condition."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = _scheduler()
        task = scheduler.current
        assert task is not None
        self._waiting.append(task)
        self._lock.release()
        try:
            answered = scheduler.wait(timeout)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
        self._lock.acquire()
        return answered

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else _scheduler().steady + timeout
        while not (came := predicate()):
            left = None if end is None else end - _scheduler().steady
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return came

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            _scheduler().wake(task)

    def notify(self, n: int = 1) -> None:
        waiting, self._waiting = self._waiting[:n], self._waiting[n:]
        for task in waiting:
            _scheduler().wake(task)


class Event:
    """threading.Event."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            _scheduler().wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = _scheduler()
        if not self._set:
            assert scheduler.current is not None
            self._waiting.append(scheduler.current)
            scheduler.wait(timeout)
        return self._set


class Threading:
    """What the agent's modules use of `threading`."""

    Lock = Lock
    RLock = RLock
    Condition = Condition
    Event = Event

    @staticmethod
    def current_thread() -> object:
        return _scheduler().current

    @staticmethod
    def get_ident() -> int:
        task = _scheduler().current
        return task.number + 1 if task else 0

    class Thread:
        """A thread that the agent starts becomes a task of the process that starts it."""

        def __init__(self, target: Any = None, args: Any = (), kwargs: Any = None, **_: object) -> None:
            self._call = lambda: target(*args, **(kwargs or {}))
            self._task: Task | None = None

        def start(self) -> None:
            scheduler = _scheduler()
            assert scheduler.current is not None
            self._task = scheduler.spawn("thread", scheduler.current.process, self._call)

        def is_alive(self) -> bool:
            return self._task is not None and not self._task.done

        def join(self, timeout: float | None = None) -> None:
            while self.is_alive():
                _scheduler().wait(0.01)


def wall_clock() -> float:
    """time.time"""
    scheduler = _scheduler()
    stamp = EPOCH + scheduler.now + scheduler.ahead_s
    scheduler.stamped_at[stamp] = scheduler.now
    return stamp


def steady_clock() -> float:
    """time.monotonic"""
    return _scheduler().steady


def sleep(seconds: float) -> None:
    """time.sleep"""
    _scheduler().sleep(seconds)
