"""A thread that reports changes to the agent once they have settled, and reconnects to libvirt."""

import threading
import time
from collections.abc import Callable

from agent.errors import DriverError

QUIET_S = 0.3
LONGEST_S = 2.0
RECONNECT_FIRST_S = 1.0
RECONNECT_LONGEST_S = 30.0
REASONS_MAX = 5


class ChangeNotifier:
    """Calls `changed(why)` when no change came for `quiet_s`, at the latest `longest_s` after the first one.

    While the connection is lost it calls `connect`, which raises DriverError where that fails, again and
    again, with a pause that grows up to RECONNECT_LONGEST_S.
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
        self._first_at = self._last_at = 0.0
        self._disconnected = False
        self._pause_s = reconnect_first_s
        self._retry_at = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="plimsoll-libvirt-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def report_change(self, why: str) -> None:
        """Something may have changed; `why` is a clause for the log."""
        with self._condition:
            self._last_at = time.monotonic()
            if not self._reasons:
                self._first_at = self._last_at
            self._reasons[why] = None
            self._condition.notify()

    def report_disconnect(self, why: str) -> None:
        """The connection was lost: report that as a change, and reconnect."""
        if self.start_connecting():
            self.report_change(why)

    def start_connecting(self) -> bool:
        """Connect after the first pause, and again until it succeeds. False where that is under way."""
        with self._condition:
            if self._disconnected:
                return False
            self._disconnected = True
            self._pause_s = self._reconnect_first_s
            self._retry_at = time.monotonic() + self._pause_s
            self._condition.notify()
            return True

    def report_connect(self) -> None:
        """A connection was opened."""
        with self._condition:
            self._disconnected = False

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; idempotent."""
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
                retry = self._disconnected and time.monotonic() >= self._retry_at
            if reasons:
                self._changed(reasons)
            if retry:
                self._reconnect()

    def _wait_s(self) -> float | None:
        """Seconds until the next action; None to wait for a notification."""
        if self._closed:
            return 0.0
        times = []
        if self._reasons:
            times.append(self._settled_at())
        if self._disconnected:
            times.append(self._retry_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _settled_at(self) -> float:
        return min(self._last_at + self._quiet_s, self._first_at + self._longest_s)

    def _take_reasons(self) -> str:
        if not self._reasons or time.monotonic() < self._settled_at():
            return ""
        reasons, self._reasons = list(self._reasons), {}
        more = len(reasons) - REASONS_MAX
        return "; ".join(reasons[:REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")

    def _reconnect(self) -> None:
        try:
            self._connect()
        except DriverError:  # the agent's own calls to the driver report the reason
            with self._condition:
                self._pause_s = min(2 * self._pause_s, RECONNECT_LONGEST_S)
                self._retry_at = time.monotonic() + self._pause_s
        else:
            self.report_connect()
