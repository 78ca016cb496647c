"""The placements that the functional tests run on: the embedded core, and a real OpenStack Placement.

PLIMSOLL_TEST_DATABASE names the real one's database as SQLAlchemy does (postgresql+psycopg2:...); without it,
that is SQLite in a directory of the test's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from agent.errors import PlacementUnavailable
from agent.placement.connect import open_transport
from agent.placement.transport import Reply, Transport

SERVER = Path(__file__).parent / "integration" / "openstack_placement.py"
DATABASE = "PLIMSOLL_TEST_DATABASE"
REMOTE_TOO = "PLIMSOLL_TEST_REMOTE"
ENDS_WITHIN_S = 20.0


class Placement(Protocol):
    """One placement, empty at first. `kind` and `options` are what the settings' [placement] would say."""

    kind: str
    options: dict[str, Any]

    def transport(self) -> Transport:
        """A connection. There is one at a time; what was written through the last one is there."""

    def anew(self, directory: Path) -> Placement:
        """One of this kind that is empty (again); what it keeps in files is in that directory."""


class Embedded:
    kind = "embedded"

    def __init__(self, directory: Path) -> None:
        self.options: dict[str, Any] = {}
        self._directory = directory

    def transport(self) -> Transport:
        return open_transport(self.kind, state_dir=self._directory)

    def anew(self, directory: Path) -> Embedded:
        return Embedded(directory)


class OpenStack:
    """The real thing as a process; it can be pulled down and up again at the same address."""

    kind = "remote"

    def __init__(self, database: str) -> None:
        self._database = database
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None
        self.up()

    @classmethod
    def on_sqlite(cls, directory: Path) -> OpenStack:
        return cls(f"sqlite:///{directory / 'openstack.db'}")

    @classmethod
    def configured(cls, directory: Path) -> OpenStack:
        """On the database that the environment names, or on SQLite."""
        told = os.environ.get(DATABASE)
        return cls(told) if told else cls.on_sqlite(directory)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "auth_type": "admin_token",
            "token": "admin",
            "endpoint_override": f"http://127.0.0.1:{self.port}",
            "timeout": 10,
        }

    def transport(self) -> Transport:
        return open_transport(self.kind, options=self.options)

    def anew(self, _directory: Path) -> OpenStack:
        self.empty()
        return self

    def up(self) -> None:
        """Serve again, what is in the database."""
        assert self._process is None
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), self._database, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear("serving")

    def down(self) -> None:
        """Stop serving: whoever asks finds nobody at the address."""
        if self._process is not None:
            self._process.communicate(timeout=ENDS_WITHIN_S)
            self._process = None

    def empty(self) -> None:
        """Forget everything."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write("empty\n")
        self._process.stdin.flush()
        self._hear("empty")

    def _hear(self, word: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        heard = self._process.stdout.readline()
        assert heard == f"{word}\n", heard


class Faulty:
    """A transport that fails on purpose.

    `fails` is asked for each request, by its number (from 1) since `tell`; a request may be lost on its way
    there ("before") or on its way back, although it was done ("after"); "" lets it through.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self._fails: Callable[[int, str], str] = _never

    def tell(self, fails: Callable[[int, str], str]) -> None:
        self.calls.clear()
        self._fails = fails

    def heal(self) -> None:
        self.tell(_never)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        call = f"{method} {path.split('?')[0]}"
        self.calls.append(call)
        fault = self._fails(len(self.calls), call)
        if fault == "before":
            raise PlacementUnavailable(f"Placement did not get {call}, as it was told.")
        reply = self.inner.request(method, path, body, microversion=microversion)
        if fault == "after":
            raise PlacementUnavailable(f"Placement did {call} and its answer was lost, as it was told.")
        return reply

    def close(self) -> None:
        self.inner.close()


def _never(_number: int, _call: str) -> str:
    return ""
