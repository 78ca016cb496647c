"""Several served cores on one journal in PostgreSQL, clients that claim and release, faults, and a checker.

Each client repeats a request with its idempotency key until it is answered, at the next server or at the one
that a 503 names. The checker compares the answers with the journal and with what is there in the end.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agent.placement.embedded.model import Draft, Model
from agent.placement.embedded.store import decode
from kits.journals import until
from kits.paths import CHECKOUT

ANSWER_S = 1.0
PATIENCE_S = 30.0
HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.39",
    "Content-Type": "application/json",
}


class Server:
    """A `plimsoll placement serve --journal` of its own."""

    def __init__(self, dsn: str, log: Path, island: Island | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        if island is not None:  # clients reach it still when the network is cut
            self.address = f"unix:{log.with_suffix('.sock')}"
        self._command = [
            *(island.prefix if island else ()),
            sys.executable,
            "-m",
            "agent.cli.main",
            "placement",
        ]
        self._command += ["serve", "--bind", self.address, "--advertise", f"http://{self.address}"]
        self._command += ["--journal", island.dsn if island else dsn]
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, cwd=CHECKOUT)

    def revive(self) -> None:
        """As systemd does: a server ends at its start where the database is away."""
        assert self.process is not None
        if self.process.poll() is not None:
            self.start()

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        return self.process.wait(30)

    @property
    def answers(self) -> bool:
        try:
            return ask(self.address, "GET", "/").status == 200
        except (OSError, http.client.HTTPException):
            return False

    @property
    def log(self) -> str:
        return self._log.read_text()


class Island:
    """A network namespace with one cable, at whose end the database is. Needs root.

    The database listens at a Unix socket only: a relay of this process passes on what comes by the cable.
    """

    def __init__(self, dsn: str) -> None:
        self._name = f"plimsoll{os.getpid()}"
        self._cable = f"pl{os.getpid()}"
        self._socket = f"{conninfo_to_dict(dsn)['host']}/.s.PGSQL.5432"
        self.prefix = ("ip", "netns", "exec", self._name)
        inside = f"{self._cable}i"
        for command in (
            f"netns add {self._name}",
            f"link add {self._cable} type veth peer name {inside} netns {self._name}",
            f"addr add 10.213.7.1/30 dev {self._cable}",
            f"link set {self._cable} up",
            f"-n {self._name} addr add 10.213.7.2/30 dev {inside}",
            f"-n {self._name} link set {inside} up",
            f"-n {self._name} link set lo up",
        ):
            self._ip(command)
        self._listener = socket.create_server(("10.213.7.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = make_conninfo(dsn, host="10.213.7.1", port=port)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop each packet from now on; neither end gets a reset."""
        self._ip(f"link set {self._cable} down")

    def mend(self) -> None:
        self._ip(f"link set {self._cable} up")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept(), too
        self._listener.close()
        self._ip(f"netns del {self._name}")

    def _ip(self, command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, timeout=10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                inner = self._listener.accept()[0]
                outer = socket.socket(socket.AF_UNIX)
                try:
                    outer.connect(self._socket)
                except OSError:
                    inner.close()
                    continue
                for ends in ((inner, outer), (outer, inner)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with source:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(data)
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


def ask(address: str, method: str, path: str, body: Any = None, key: str | None = None) -> Answer:
    """One request. Raises OSError and HTTPException where no answer comes."""
    connection = http.client.HTTPConnection(address.removeprefix("unix:"), timeout=ANSWER_S)
    try:
        if address.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=ANSWER_S)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(address.removeprefix("unix:"))
        headers = HEADERS if key is None else {**HEADERS, "Idempotency-Key": key}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        said = json.loads(text) if text else None
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, said)
    finally:
        connection.close()


class Client:
    """Asks one server after the other until one says what became of the request."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._at = random.choice(addresses)

    def write(self, method: str, path: str, body: Any = None) -> Answer:
        key, end = str(uuid.uuid4()), time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = ask(self._at, method, path, body, key)
                if answer.status not in (503, 504):
                    return answer
                active = answer.headers.get("plimsoll-active", "").removeprefix("http://")
                self._at = active or random.choice(self._addresses)
            except (OSError, http.client.HTTPException):
                self._at = random.choice(self._addresses)
            assert time.monotonic() < end, f"no server answers {method} {path}"
            time.sleep(0.02)


class Done(NamedTuple):
    """What a client was told: `kind` is claim or release; it was granted, or refused."""

    kind: str
    consumer: str
    granted: bool
    began: float
    ended: float


class Fleet:
    """`servers` on the journal, and what their clients were told."""

    def __init__(self, dsn: str, folder: Path, islands: Sequence[Island | None] = (None, None, None)) -> None:
        self.dsn = dsn
        self.servers = [
            Server(dsn, folder / f"server{number}.log", island) for number, island in enumerate(islands)
        ]
        self.addresses = [server.address for server in self.servers]
        self.history: list[Done] = []
        self.failures: list[BaseException] = []
        self._ending = threading.Event()

    @contextmanager
    def running(self) -> Iterator[Fleet]:
        try:
            for server in self.servers:
                server.start()
                until(lambda: self.active is not None)  # the first one is to be the active one
            until(lambda: self.active is not None and all(server.answers for server in self.servers))
            yield self
        finally:
            for server in self.servers:
                server.end()

    @property
    def active(self) -> Server | None:
        """The server that says so itself: a standby's answer may be old."""
        for server in self.servers:
            try:
                if "plimsoll-stale" not in ask(server.address, "GET", "/traits?name=in:HW_NUMA_ROOT").headers:
                    return server
            except (OSError, http.client.HTTPException):
                continue
        return None

    def provider(self, units: int) -> str:
        """A provider with so many units."""
        client, made = Client(self.addresses), str(uuid.uuid4())
        client.write("POST", "/resource_providers", {"name": made, "uuid": made})
        body = {"resource_provider_generation": 0, "inventories": {"VGPU": {"total": units}}}
        assert client.write("PUT", f"/resource_providers/{made}/inventories", body).status == 200
        return made

    @contextmanager
    def clients(self, number: int, provider: str) -> Iterator[None]:
        """Claim and release one unit at a time, with so many clients."""
        threads = [threading.Thread(target=self._work, args=(provider,)) for _ in range(number)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join(PATIENCE_S * 2)
            self._ending.clear()
        assert not self.failures, self.failures

    def _work(self, provider: str) -> None:
        client, held = Client(self.addresses), list[str]()
        try:
            while not self._ending.is_set():
                if held and random.random() < 0.5:
                    consumer, kind, body = held.pop(), "release", None
                else:
                    consumer, kind = str(uuid.uuid4()), "claim"
                    body = {
                        "allocations": {provider: {"resources": {"VGPU": 1}}},
                        "project_id": "p",
                        "user_id": "u",
                        "consumer_generation": None,
                        "consumer_type": "INSTANCE",
                    }
                began = time.monotonic()
                method = "PUT" if kind == "claim" else "DELETE"
                answer = client.write(method, f"/allocations/{consumer}", body)
                assert answer.status in (204, 409), (kind, answer)
                assert kind == "claim" or answer.status == 204, (kind, answer)
                if kind == "claim" and answer.status == 204:
                    held.append(consumer)
                self.history.append(Done(kind, consumer, answer.status == 204, began, time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - told by `clients`
            self.failures.append(error)

    def back_after(self, moment: float) -> float:
        """Seconds from the moment to the end of the first granted claim that began after it."""

        def first() -> list[float]:
            return [
                done.ended
                for done in self.history
                if done.kind == "claim" and done.granted and done.began > moment
            ]

        until(lambda: bool(first()))
        return min(first()) - moment


def check(fleet: Fleet, provider: str, units: int) -> None:
    """Nothing acknowledged is lost, nothing is sold twice, and no two servers were active at once."""
    with psycopg.connect(fleet.dsn) as connection:
        rows = connection.execute("SELECT seq, epoch, changes FROM plimsoll_journal ORDER BY seq").fetchall()
        ((epoch, seq),) = connection.execute("SELECT epoch, seq FROM plimsoll_writer").fetchall()
    assert [row[0] for row in rows] == list(range(rows[0][0], seq + 1)), "the journal is dense"
    epochs = [row[1] for row in rows]
    assert epochs == sorted(epochs) and epochs[-1] <= epoch, "no epoch writes after the next one began"
    model, writes = Model({}, {}), Counter[str]()
    for _, _, changes in rows:
        for part in json.loads(changes):
            draft: Draft = decode(part, model)
            writes.update(
                uuid for uuid, consumer in draft.consumers.items() if uuid not in model.consumers and consumer
            )
            model.apply(draft)
            assert model.used(provider, "VGPU") <= units, "sold twice"
    claimed = {done.consumer for done in fleet.history if done.kind == "claim" and done.granted}
    refused = {done.consumer for done in fleet.history if done.kind == "claim" and not done.granted}
    released = {done.consumer for done in fleet.history if done.kind == "release"}
    assert not claimed - released - set(model.consumers), "what was acknowledged is there"
    assert not set(model.consumers) - (claimed - released), "and nothing else is"
    assert not refused & set(model.consumers)
    if rows[0][0] == 1:
        assert all(writes[consumer] == 1 for consumer in claimed), "each claim was done once"
