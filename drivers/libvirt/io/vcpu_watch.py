"""A thread that looks for guests whose vCPUs changed: libvirt has no event for vCPUs that come.

Since version 12.4 it has one for those that went. So the agent counts the vCPUs of those guests that may get
or lose some; most have all from the start, and cost nothing. Counting those of one guest takes one call,
which does not ask QEMU: 0.12 ms where this was measured.
"""

import logging
import threading
from collections.abc import Callable

from agent.errors import DriverError

LOG = logging.getLogger(__name__)
INTERVAL_S = 0.5


class VcpuWatch:
    """Calls `look` each `interval_s` seconds. `look` may raise DriverError, which the readings report."""

    def __init__(self, look: Callable[[], None], interval_s: float = INTERVAL_S) -> None:
        self._look = look
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plimsoll-libvirt-vcpus", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; idempotent."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                self._look()
            except DriverError as error:
                LOG.debug("the vCPUs of guests were not counted: %s", error)
