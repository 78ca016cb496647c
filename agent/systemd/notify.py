"""Notifies systemd of the service's state: one datagram per message, none without a service manager.

Source: https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

import logging
import os
import socket
import time
from collections.abc import Mapping

LOG = logging.getLogger(__name__)

SEND_TIMEOUT_S = 1.0


class Notifier:
    """Sends notifications as `environment` asks for: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # "@name" stands for an abstract socket, whose address begins with NUL.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        interval, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        is_expected = interval.isdigit() and int(interval) > 0 and pid in ("", str(os.getpid()))
        self.watchdog_interval_s = int(interval) / 1_000_000 if is_expected else None
        """Seconds between the pings that systemd expects; None if it expects none from this process."""

    def ready(self, status: str) -> None:
        """The start or a reload is complete."""
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """A reload begins; `systemctl reload` waits for `ready`. Both lines must be in one datagram."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The service stops."""
        self._send("STOPPING=1", "STATUS=stopping")

    def status(self, text: str) -> None:
        """The line that `systemctl status` shows."""
        self._send(f"STATUS={_line(text)}")

    def watchdog(self) -> None:
        """The service is alive."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Request more time to start, reload or stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            LOG.warning("The notification %s to the service manager failed: %s.", lines[0], error)


def _line(text: str) -> str:
    return " ".join(text.split())
