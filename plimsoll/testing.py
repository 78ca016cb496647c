"""A host for the tests of programs: an agent on the fake driver. Needs the agent's package.

@pytest.fixture
def agent(tmp_path):
    with plimsoll.testing.fake_host(tmp_path) as agent:
        yield agent
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plimsoll.agent import Agent
from plimsoll.errors import Conflict, PlimsollError, Unavailable
from plimsoll.placement import BESIDE
from plimsoll.wire import PATH_BYTES_MAX

SETTINGS = """[DEFAULT]
compute_driver = fake
host = {name}
state_path = {directory}/state
[placement]
kind = embedded
[api]
socket = {socket}
"""
PROGRAM = """import os, signal, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
from agent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""The agent, until its standard input ends: a test that is killed leaves none."""


@contextmanager
def fake_host(
    directory: Path, host: Mapping[str, Any] | None = None, *, name: str = "host1", timeout: float = 60.0
) -> Iterator[Agent]:
    """The agent of a host that needs no hypervisor, in a process of its own until the block ends.

    `host` is what a host file of the fake driver says (docs/drivers.md), by default a server with GPUs. What
    the agent keeps is in the directory, which is made if it is missing: a second host there is the first one,
    started again. Raises Unavailable with the agent's last words where it does not become ready within
    `timeout` seconds, Conflict where the first one still runs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings, log, socket = (directory / f"plimsoll.{kind}" for kind in ("conf", "log", "sock"))
    with TemporaryDirectory(prefix="plimsoll-") as short:
        if len(os.fsencode(socket)) > PATH_BYTES_MAX:
            socket = Path(short, "s")
        agent = Agent(str(socket), made_by="test")
        if _is_ready(agent):
            raise Conflict(f"A host of the directory {directory} runs already: leave its block first.")
        settings.touch(mode=0o600)
        text = SETTINGS.format(name=name, directory=directory, socket=socket)
        if host is not None:
            (directory / "host.yaml").write_text(json.dumps(host), encoding="utf-8")
            text += f"[fake]\nhost_file = {directory}/host.yaml\n"
        settings.write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", PROGRAM, "agent", "--config-file", str(settings)]
        paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), BESIDE]))
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the agent
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": paths},
            )
        try:
            deadline = time.monotonic() + timeout
            while not _is_ready(agent):
                if process.poll() is not None or time.monotonic() > deadline:
                    words = log.read_text("utf-8", "replace").strip().splitlines()[-3:]
                    raise Unavailable(f"The agent in {directory} is not ready: {' '.join(words)}")
                time.sleep(0.05)
            yield agent
        finally:
            process.terminate()
            process.communicate()


def _is_ready(agent: Agent) -> bool:
    try:
        return agent.readyz().ok
    except PlimsollError:
        return False
