"""`plimsoll placement serve` as a process: over TLS, with a token file, at an address of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.cli_process import DEADLINE_S, ENVIRONMENT
from kits.daemon_process import eventually
from kits.served_core_client import make_certificate


class ServedCore:
    """One server; `url` is its address, and `certificate` proves it.

    `like` another one: with that one's records, once that is gone, and its certificate.
    """

    def __init__(self, directory: Path, tokens: str, like: ServedCore | None = None) -> None:
        directory.mkdir()
        self.certificate, self._key = (
            make_certificate(directory) if like is None else (like.certificate, like._key)
        )
        self._state = directory / "state" if like is None else like._state
        self._log = directory / "log"
        file = directory / "tokens"
        file.touch(mode=0o600)
        file.write_text(tokens)
        self._command = [sys.executable, "-m", "agent.cli.main", "placement", "serve"]
        self._command += ["--state-dir", str(self._state), "--tokens-file", str(file)]
        self._command += ["--tls-cert", str(self.certificate), "--tls-key", str(self._key), "--bind"]
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve, again at the same port."""
        lines = self._log.read_text().count("\n") if self._log.exists() else 0

        def served() -> bool:
            assert process.poll() is None, self._log.read_text()
            return any("Serving" in line for line in self._log.read_text().splitlines()[lines:])

        with self._log.open("ab") as log:
            command = [*self._command, f"127.0.0.1:{self.port}"]
            self.process = process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)
        eventually("the Placement is served", served)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_S)
        assert "Traceback" not in self._log.read_text()


def free_port() -> int:
    """A port of loopback that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def served_process(directory: Path, tokens: str) -> Iterator[ServedCore]:
    server = ServedCore(directory, tokens)
    server.start()
    try:
        yield server
    finally:
        server.stop()
