"""What events say: hints that something changed, kept until it is read again. Thread-safe; no libvirt here.

Events are hints, not a log: they come doubled, out of order, and not for everything. So what they name is
read again, and they are gathered for a moment before anybody is told.
"""

import threading
import time
from collections.abc import Callable

from agent.errors import DriverError

QUIET_S = 0.3
LONGEST_S = 2.0
RECONNECT_FIRST_S = 1.0
RECONNECT_LONGEST_S = 30.0
REASONS_MAX = 5


class Hints:
    """What is known to be out of date. `take_` methods hand it over and forget it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._domains: set[str] = set()
        self._devices: set[str] = set()
        self._all_domains = self._all_devices = True

    def domain(self, uuid: str) -> None:
        with self._lock:
            self._domains.add(uuid)

    def device(self, name: str) -> None:
        with self._lock:
            self._devices.add(name)

    def all_domains(self) -> None:
        with self._lock:
            self._all_domains = True

    def all_devices(self) -> None:
        with self._lock:
            self._all_devices = True

    def everything(self) -> None:
        """After a new connection nothing that was read before is known to be true."""
        with self._lock:
            self._all_domains = self._all_devices = True

    def take_domains(self) -> frozenset[str] | None:
        """The uuids to read again; None for all."""
        with self._lock:
            taken = None if self._all_domains else frozenset(self._domains)
            self._domains, self._all_domains = set(), False
            return taken

    def take_devices(self) -> frozenset[str] | None:
        """The names of the node devices to read again; None for all."""
        with self._lock:
            taken = None if self._all_devices else frozenset(self._devices)
            self._devices, self._all_devices = set(), False
            return taken


class Watcher:
    """A thread that tells `changed(why)` once things are quiet, and connects again when the connection is
    lost.

    `connect` raises DriverError while that is not possible; it is tried with a growing pause, for ever,
    because a hypervisor that is away is a state.
    """

    def __init__(
        self,
        changed: Callable[[str], None],
        connect: Callable[[], None],
        quiet_s: float = QUIET_S,
        longest_s: float = LONGEST_S,
        reconnect_first_s: float = RECONNECT_FIRST_S,
    ) -> None:
        self._changed = changed
        self._connect = connect
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._reconnect_first_s = reconnect_first_s
        self._condition = threading.Condition()
        self._reasons: dict[str, None] = {}
        self._first = self._last = 0.0
        self._lost = False
        self._pause_s = reconnect_first_s
        self._retry_at = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plimsoll-libvirt-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hint(self, why: str) -> None:
        """Something may have changed."""
        with self._condition:
            self._last = time.monotonic()
            if not self._reasons:
                self._first = self._last
            self._reasons[why] = None
            self._condition.notify()

    def lost(self, why: str) -> None:
        """There is no connection any more: tell, and connect again."""
        if self.connect():
            self.hint(why)

    def connect(self) -> bool:
        """There is no connection: connect soon, and again until it works. False where that was known."""
        with self._condition:
            if self._lost:
                return False
            self._lost = True
            self._pause_s = self._reconnect_first_s
            self._retry_at = time.monotonic() + self._pause_s
            self._condition.notify()
            return True

    def found(self) -> None:
        """There is a connection."""
        with self._condition:
            self._lost = False

    def close(self, timeout_s: float = 1.0) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait(self._wait_s())
                if self._closed:
                    return
                reasons = self._take_reasons()
                retry = self._lost and time.monotonic() >= self._retry_at
            if reasons:
                self._changed(reasons)
            if retry:
                self._reconnect()

    def _wait_s(self) -> float | None:
        """Seconds until there is something to do; None for "until something happens"."""
        if self._closed:
            return 0.0
        times = []
        if self._reasons:
            times.append(min(self._last + self._quiet_s, self._first + self._longest_s))
        if self._lost:
            times.append(self._retry_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take_reasons(self) -> str:
        now = time.monotonic()
        if not self._reasons or now < min(self._last + self._quiet_s, self._first + self._longest_s):
            return ""
        reasons, self._reasons = list(self._reasons), {}
        more = len(reasons) - REASONS_MAX
        return "; ".join(reasons[:REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")

    def _reconnect(self) -> None:
        try:
            self._connect()
        except DriverError:
            with self._condition:  # whoever asks the driver gets the reason; here it is only tried again
                self._pause_s = min(2 * self._pause_s, RECONNECT_LONGEST_S)
                self._retry_at = time.monotonic() + self._pause_s
        else:
            self.found()
