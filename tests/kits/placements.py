"""The placements that the functional tests run on: the embedded core, and a real OpenStack Placement.

PLIMSOLL_TEST_DATABASE names the real one's database as SQLAlchemy does (postgresql+psycopg2:...); without it,
that is SQLite in a directory of the test's. PLIMSOLL_TEST_PLACEMENT=openstack runs the tests that know of one
placement only on the real one; PLIMSOLL_TEST_ENDPOINT names one that runs already, for processes that
tests start.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from agent.placement.connect import open_transport
from agent.placement.transport import Transport
from kits.paths import TESTS

SERVER = "kits.openstack_placement"
DATABASE = "PLIMSOLL_TEST_DATABASE"
REMOTE_TOO = "PLIMSOLL_TEST_REMOTE"
USUAL = "PLIMSOLL_TEST_PLACEMENT"
ENDPOINT = "PLIMSOLL_TEST_ENDPOINT"
OPENSTACK = "openstack"
NEWEST = "1.39"
ENDS_WITHIN_S = 20.0


class Placement(Protocol):
    """One placement, empty at first. `kind` and `options` are what the settings' [placement] would say."""

    kind: str
    options: dict[str, Any]

    def transport(self) -> Transport:
        """A connection. There is one at a time; what was written through the last one is there."""

    def anew(self, directory: Path) -> Placement:
        """One of this kind that is empty (again); what it keeps in files is in that directory."""

    def environment(self) -> dict[str, str]:
        """What makes this the usual placement of a process that a test starts with the same directory."""


def section_of(placement: Placement) -> str:
    """The [placement] section of a configuration file."""
    options = {"kind": placement.kind, **placement.options}
    return "".join(["[placement]\n", *(f"{name} = {value}\n" for name, value in options.items())])


def _options_at(endpoint: str) -> dict[str, Any]:
    return {"auth_type": "admin_token", "token": "admin", "endpoint_override": endpoint, "timeout": 10}


class Embedded:
    kind = "embedded"

    def __init__(self, directory: Path) -> None:
        self.options: dict[str, Any] = {}
        self._directory = directory

    def transport(self) -> Transport:
        return open_transport(self.kind, state_dir=self._directory)

    def anew(self, directory: Path) -> Embedded:
        return Embedded(directory)

    def environment(self) -> dict[str, str]:
        return {}


class Running:
    """An OpenStack Placement that another process started, with what is in it."""

    kind = "remote"

    def __init__(self, endpoint: str) -> None:
        self.options = _options_at(endpoint)

    def transport(self) -> Transport:
        return open_transport(self.kind, options=self.options)

    def anew(self, _directory: Path) -> Running:
        return self

    def environment(self) -> dict[str, str]:
        return {ENDPOINT: str(self.options["endpoint_override"])}


class OpenStack:
    """The real thing as a process; it can be pulled down and up again at the same address.

    `empty` gives it another address: what is sent to a former one is refused, however late it comes.
    """

    kind = "remote"

    def __init__(self, database: str) -> None:
        self._database = database
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._tests = 1
        self.options = _options_at(f"http://127.0.0.1:{self.port}/1")
        self._process: subprocess.Popen[str] | None = None
        self.up()

    @classmethod
    def on_sqlite(cls, directory: Path) -> OpenStack:
        return cls(f"sqlite:///{directory / 'openstack.db'}")

    @classmethod
    def configured(cls, directory: Path) -> OpenStack:
        """On the database that the environment names, or on SQLite."""
        told = os.environ.get(DATABASE)
        return cls(_of_worker(told)) if told else cls.on_sqlite(directory)

    def transport(self) -> Transport:
        return open_transport(self.kind, options=self.options)

    def anew(self, _directory: Path) -> OpenStack:
        self.empty()
        return self

    def environment(self) -> dict[str, str]:
        return {ENDPOINT: str(self.options["endpoint_override"])}

    def up(self) -> None:
        """Serve again, what is in the database."""
        assert self._process is None
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", SERVER, self._database, str(self.port), str(self._tests)],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
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
        self._tests += 1
        self._order(f"empty {self._tests}")
        self.options["endpoint_override"] = f"http://127.0.0.1:{self.port}/{self._tests}"

    def close_door(self) -> None:
        """Stop listening, at once: connections are refused, as after `down`."""
        self._order("close")

    def open_door(self) -> None:
        self._order("open")

    @contextmanager
    def aged(self, newest: str) -> Iterator[None]:
        """It knows no later microversion."""
        self._order(f"speak {newest}")
        try:
            yield
        finally:
            self._order(f"speak {NEWEST}")

    @contextmanager
    def making_candidates(self, order: str, most: int) -> Iterator[None]:
        """It makes so many candidates; breadth-first: one of each tree before the second one of the first."""
        self._order(f"generate {order} {most}")
        try:
            yield
        finally:
            self._order("generate depth-first -1")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Connections are taken and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Each of its threads runs on until the kernel has stopped it; a quick request is answered meanwhile.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _order(self, word: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._hear(word)

    def _hear(self, word: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        heard = self._process.stdout.readline()
        assert heard == f"{word}\n", heard


def _of_worker(database: str) -> str:
    """The database of this worker of pytest; `./dev test-remote` makes one for each."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    return database.replace("/placement?", f"/placement_{worker}?") if worker else database


_shared: list[OpenStack] = []
_begun: set[Path] = set()


def usual_placement(directory: Path) -> Placement:
    """The placement of a test that does not say which: embedded in that directory, or as USUAL says.

    There is one real one for all, so a test may have one directory that it keeps its placement in.
    """
    if ENDPOINT in os.environ:
        return Running(os.environ[ENDPOINT])
    if os.environ.get(USUAL) != OPENSTACK:
        return Embedded(directory)
    if not _shared:
        files = tempfile.TemporaryDirectory()
        _shared.append(OpenStack.configured(Path(files.name)))
        atexit.register(lambda: (_shared[0].down(), files.cleanup()))
    if directory not in _begun:
        _begun.add(directory)
        _shared[0].empty()
    return _shared[0]
