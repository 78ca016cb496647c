"""`./dev try-fleet`: its agents run on a served core, and something goes on there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.daemon_process import eventually
from kits.paths import TESTS

from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server


@pytest.mark.timeout(180)
def test_guests_come_and_move_and_each_kind_of_trouble_is_there(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path / "placement")) as core, Server(core, ["127.0.0.1:0"]) as server:
        (address,) = server.addresses
        fleet = subprocess.Popen(
            [sys.executable, "-m", "kits.try_fleet", str(tmp_path), f"http://{address}", "8"],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )

        def shown() -> Any:
            assert fleet.poll() is None
            return core.request("GET", "/fleet", microversion="1.39").body

        try:
            eventually("the start", (tmp_path / "ready").exists, 60)
            first = shown()
            assert (first["hosts"], first["states"]) == (8, {"degraded": 1, "ready": 7})
            assert first["with_findings"] == 1 and first["instances"] > 8
            eventually("a move", lambda: shown()["moves"] > 0, 90)
            socket = tmp_path / "hv001" / "plimsoll.sock"
            assert socket.is_socket()
        finally:
            fleet.send_signal(signal.SIGTERM)
            assert fleet.wait(20) == 0
