"""What systemd hears."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.systemd.notify import Notifier


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        yield server


def heard(server: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in server.recv(4096).decode().splitlines())


def test_each_message_is_one_datagram(listener: socket.socket, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    listener.bind(path)
    notifier = Notifier({"NOTIFY_SOCKET": path})
    notifier.ready("serving\nnode1")
    assert heard(listener) == {"READY": "1", "STATUS": "serving node1"}
    notifier.reloading()
    said = heard(listener)
    assert said["RELOADING"] == "1" and int(said["MONOTONIC_USEC"]) > 0
    notifier.status("looking")
    assert heard(listener) == {"STATUS": "looking"}
    notifier.watchdog()
    assert heard(listener) == {"WATCHDOG": "1"}
    notifier.extend_timeout(1.5)
    assert heard(listener) == {"EXTEND_TIMEOUT_USEC": "1500000"}
    notifier.stopping()
    assert heard(listener)["STOPPING"] == "1"


def test_an_abstract_socket(listener: socket.socket) -> None:
    name = f"plimsoll-test-{os.getpid()}"
    listener.bind(f"\0{name}")
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).watchdog()
    assert heard(listener) == {"WATCHDOG": "1"}


def test_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).ready("alone")
    assert not caplog.records
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("unheard")
    assert "READY=1" in caplog.text


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_for_the_process_it_names(
    environment: dict[str, str], interval_s: float | None
) -> None:
    assert Notifier(environment).watchdog_interval_s == interval_s
