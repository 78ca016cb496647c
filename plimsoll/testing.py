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
from typing import Any

from plimsoll.agent import Agent
from plimsoll.errors import PlimsollError, Unavailable
from plimsoll.placement import BESIDE

SETTINGS = """[DEFAULT]
compute_driver = fake
host = {name}
state_path = {directory}/state
[placement]
kind = embedded
[api]
socket = {directory}/plimsoll.sock
"""


@contextmanager
def fake_host(
    directory: Path, host: Mapping[str, Any] | None = None, *, name: str = "host1", timeout: float = 60.0
) -> Iterator[Agent]:
    """The agent of a host that needs no hypervisor, in a process of its own until the block ends.

    `host` is what a host file of the fake driver says (docs/drivers.md), by default a server with GPUs. What
    the agent keeps is in the directory: a second host there is the first one, started again. Raises
    Unavailable with the agent's last words where it does not become ready within `timeout` seconds.
    """
    settings, log = directory / "plimsoll.conf", directory / "plimsoll.log"
    settings.touch(mode=0o600)
    text = SETTINGS.format(name=name, directory=directory)
    if host is not None:
        (directory / "host.yaml").write_text(json.dumps(host), encoding="utf-8")
        text += f"[fake]\nhost_file = {directory}/host.yaml\n"
    settings.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "agent.cli.main", "agent", "--config-file", str(settings)]
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), BESIDE]))
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the agent
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": paths},
        )
    agent = Agent(str(directory / "plimsoll.sock"), made_by="test")
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
        process.wait()


def _is_ready(agent: Agent) -> bool:
    try:
        return agent.readyz().ok
    except PlimsollError:
        return False
