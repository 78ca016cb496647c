"""Telling systemd how the service is: one datagram a message, nothing where no manager listens.

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
    """`environment`'s NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say what systemd wants."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # "@name" is how an abstract socket, whose address begins with NUL, is written in the environment.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_interval_s = _watchdog_interval_s(environment)

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self) -> None:
        """Both in one datagram, and `ready` after it, or `systemctl reload` waits for nothing."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stopping")

    def status(self, text: str) -> None:
        self._send(f"STATUS={_line(text)}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for so much more time to start, reload or stop."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            LOG.warning("The service manager cannot be told %s: %s.", lines[0], error)


def _line(text: str) -> str:
    return " ".join(text.split())


def _watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    """Seconds within which systemd wants a ping, None if it wants none from this process."""
    interval, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not interval.isdigit() or int(interval) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(interval) / 1_000_000
