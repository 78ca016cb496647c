"""The agent as a process, on the fake driver and the usual placement."""

import subprocess
import sys
import time
from pathlib import Path

from agent.errors import ExitCode
from kits.cli_process import DEADLINE_S, ENVIRONMENT, plimsoll
from kits.placements import section_of, usual_placement

PAUSE_S = 0.05


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
        command = [sys.executable, "-m", "agent.cli.main", "agent", "--config-file", str(self.file)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)
        end = time.monotonic() + DEADLINE_S
        while self("status").returncode != ExitCode.DONE:
            assert self._process.poll() is None and time.monotonic() < end, self._log.read_text()
            time.sleep(PAUSE_S)

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
