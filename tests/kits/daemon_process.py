"""A real agent as a process, with a service manager that listens to it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent.cli.client import Client
from agent.errors import DaemonUnreachable

PATIENCE_S = 30.0
PAUSE_S = 0.02


def eventually(what: str, check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `check`."""
    end = time.monotonic() + patience_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {patience_s} s")
        time.sleep(PAUSE_S)


class Manager:
    """Listens at a notify socket as systemd does; `messages` are the datagrams' lines as mappings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0.1)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def heard(self, key: str) -> list[dict[str, str]]:
        return [message for message in self.messages if key in message]

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                continue
            self.messages.append(dict(line.split("=", 1) for line in data.decode().splitlines()))


class Daemon:
    """One state directory and the agent that runs on it, over and over again."""

    def __init__(self, directory: Path, options: Mapping[str, Mapping[str, Any]]) -> None:
        self.directory = directory
        self.file = directory / "plimsoll.conf"
        self.socket = directory / "plimsoll.sock"
        self.log = directory / "agent.log"
        self.options = {group: dict(values) for group, values in options.items()}
        self.options.setdefault("DEFAULT", {}).setdefault("host", "node1")
        self.options["DEFAULT"]["state_path"] = directory / "state"
        self.options["api"] = {"socket": self.socket}
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []
        """The command that the agent's own command line is appended to."""
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(str(self.socket), 10.0)
        self.write()

    def write(self) -> None:
        """Write the configuration file from `options`."""
        lines = []
        for group, values in self.options.items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
        self.file.touch(mode=0o600)
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def move_socket(self, path: Path) -> None:
        """Ask the agent at this path, where its own name of the socket is another one."""
        self.socket = path
        self.client = Client(str(path), 10.0)

    def launch(self) -> "subprocess.Popen[bytes]":
        own = [sys.executable, "-m", "agent.cli.main", "agent", "--config-file", str(self.file)]
        command = [*self.prefix, *own]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        return self.process

    def start(self) -> None:
        """Launch, and wait until it answers."""
        process = self.launch()
        eventually("the agent's start", lambda: self._answers() or self._fail_if_ended(process))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def hang_up(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/v1/status")
        return found

    def claim(self, resources: Mapping[str, int], consumer: str | None = None) -> dict[str, Any]:
        body = {
            "consumer": consumer or str(uuid4()),
            "groups": [{"suffix": "", "resources": dict(resources)}],
        }
        made: dict[str, Any] = self.client.request("POST", "/v1/claims", body)
        return made

    def claims(self) -> dict[str, dict[str, Any]]:
        instances = self.client.get("/v1/instances")["instances"]
        return {each["uuid"]: each["claim"] for each in instances if each["claim"]}

    def release(self, consumer: str) -> None:
        assert self.client.request("DELETE", f"/v1/claims/{consumer}")["released"]

    def used(self) -> dict[str, int]:
        """{class: amount} that anybody holds anywhere in the tree."""
        found: dict[str, int] = {}
        for provider in self.client.get("/v1/tree")["resource_providers"]:
            for name, amount in provider["usages"].items():
                found[name] = found.get(name, 0) + amount
        return {name: amount for name, amount in found.items() if amount}

    def lines(self, word: str) -> list[str]:
        return [line for line in self.log.read_text(encoding="utf-8").splitlines() if word in line]

    def resident_mb(self) -> float:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def _answers(self) -> bool:
        try:
            self.client.get("/healthz")
        except DaemonUnreachable:
            return False
        return True

    def _fail_if_ended(self, process: "subprocess.Popen[bytes]") -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the agent ended with {process.returncode}:\n{self.log.read_text()}")
        return False
