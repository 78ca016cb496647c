"""The agent as a process, forked with all modules there, on the fake driver and the usual placement."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.cli.client import Client
from agent.errors import DaemonUnreachable
from kits.cli_process import DEADLINE_S, ENVIRONMENT, plimsoll
from kits.daemon_process import eventually
from kits.forked_commands import ForkedCommand
from kits.placements import section_of, usual_placement


class Agent:
    """A state directory, and the agent's process on it."""

    def __init__(self, directory: Path, host_file: Path | None = None, more: str = "") -> None:
        """`more` is further text of the configuration file."""
        self.socket = directory / "s"
        self.file = directory / "plimsoll.conf"
        self._log = directory / "log"
        self.file.touch(mode=0o600)
        self.file.write_text(
            "[DEFAULT]\ncompute_driver = fake\nhost = node1\n"
            f"state_path = {directory / 'state'}\n[api]\nsocket = {self.socket}\n"
            + (f"[fake]\nhost_file = {host_file}\n" if host_file else "")
            + ("" if "[placement]" in more else section_of(usual_placement(directory)))
            + more,
            encoding="utf-8",
        )

    def start(self) -> None:
        with self._log.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            streams = (nothing.fileno(), log.fileno(), log.fileno())
            self._process = ForkedCommand(("agent", "--config-file", str(self.file)), ENVIRONMENT, streams)
        eventually("the agent's start", self._answers)

    def status(self) -> dict[str, Any]:
        """What `plimsoll status` shows, without a process for the command."""
        found: dict[str, Any] = Client(str(self.socket), DEADLINE_S).get("/v1/status")
        return found

    def _answers(self) -> bool:
        """Whether it has looked at its host, and serves."""
        assert self._process.poll() is None, self.log()
        with suppress(DaemonUnreachable):
            return bool(self.status()["state"] != "starting")
        return False

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(DEADLINE_S)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def log(self) -> str:
        return self._log.read_text("utf-8")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(self.socket, *words)
