"""The real daemon audits on its schedule, and `plimsoll audit` ends as its exit codes say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.cli_process import plimsoll
from kits.daemon_process import Daemon, eventually

from agent.errors import ExitCode

GUEST = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
HOST = {"cells": [{"id": 0, "cpus": "0-3", "memory_mb": 4096}], "disk_gb": 10}
UNCLAIMED = {**HOST, "guests": [{"uuid": GUEST, "name": "web1", "resources": {"VCPU": 1, "MEMORY_MB": 64}}]}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """It audits each second, and has a guest for which nothing was claimed."""
    (tmp_path / "host.json").write_text(json.dumps(UNCLAIMED))
    daemon = Daemon(
        tmp_path,
        {
            "DEFAULT": {"compute_driver": "fake"},
            "fake": {"host_file": tmp_path / "host.json"},
            "audit": {"interval": 1},
        },
    )
    daemon.start()
    yield daemon
    daemon.close()


def test_it_finds_by_itself_and_heals_when_told(daemon: Daemon) -> None:
    """Scenario 113: looking writes nothing, and the exit code tells what was found, or healed."""
    eventually("the first audit, which no command requests", lambda: daemon.status()["audited"], 20)
    eventually("the finding", lambda: daemon.status()["findings"] == 1, 20)
    assert len(daemon.lines("unclaimed instance")) == 1, "told once, however often it is seen"
    socket = daemon.socket
    for options in ((), ("--dry-run",)):
        found = plimsoll(socket, "audit", *options)
        assert found.returncode == ExitCode.DRIFT_FOUND, found.stderr
        assert f"{GUEST} (web1) is on this host" in found.stdout
    assert daemon.claims() == {}
    assert "findings   1, which `plimsoll audit` shows" in plimsoll(socket, "status").stdout
    healed = plimsoll(socket, "audit", "--heal")
    assert healed.returncode == ExitCode.DRIFT_HEALED and "healed: claim what the guest" in healed.stdout
    assert daemon.claims()[GUEST]["state"] == "claimed"
    again = plimsoll(socket, "audit")
    assert (again.returncode, again.stdout) == (ExitCode.DONE, "nothing differs\n")
    eventually("no finding", lambda: daemon.status()["findings"] == 0, 20)
