"""Several served cores on one journal in PostgreSQL, clients that claim and release, faults, and a checker.

Each client repeats a request with its idempotency key until it is answered, at the next server or at the one
that a 503 names. The checker compares the answers with the journal and with what is there in the end.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from agent.placement.embedded.model import Model
from agent.placement.embedded.store import decode
from kits.journals import until
from kits.paths import CHECKOUT

ANSWER_S = 0.4
"""Less than what a takeover from a stopped server takes, so that it is measured, and not this."""
PATIENCE_S = 30.0
READS = 0.03
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
        name = self.address if island is None else log.stem
        self._command += ["serve", "--bind", self.address, "--advertise", f"http://{name}"]
        self._command += ["--journal", dsn, "--state-dir", str(log.with_suffix(""))]
        self._log = log
        self.island = island
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*self._command, *more], stderr=log, cwd=CHECKOUT)

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
    """A network namespace with one cable, at whose other end, `host`, are the databases. Needs root."""

    def __init__(self, number: int) -> None:
        self._name, self._cable = f"plimsoll{os.getpid()}-{number}", f"pl{os.getpid()}-{number}"
        network, inside = f"10.213.{(os.getpid() * 3 + number) % 256}", f"{self._cable}i"
        self.host = f"{network}.1"
        self.prefix = ("ip", "netns", "exec", self._name)
        for command in (
            f"netns add {self._name}",
            f"link add {self._cable} type veth peer name {inside} netns {self._name}",
            f"addr add {self.host}/30 dev {self._cable}",
            f"link set {self._cable} up",
            f"-n {self._name} addr add {network}.2/30 dev {inside}",
            f"-n {self._name} link set {inside} up",
            f"-n {self._name} link set lo up",
        ):
            self._ip(command)

    def cut(self) -> None:
        """Drop each packet from now on; neither end gets a reset."""
        self._ip(f"link set {self._cable} down")

    def mend(self) -> None:
        self._ip(f"link set {self._cable} up")

    def close(self) -> None:
        self._ip(f"link del {self._cable}")  # the kernel would delete it some time after the namespace
        self._ip(f"netns del {self._name}")

    def _ip(self, command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, timeout=10)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


def ask(address: str, method: str, path: str, body: Any = None, key: str | None = None) -> Answer:
    """One request. Raises OSError and HTTPException where no answer comes."""
    is_unix = address.startswith("unix:")
    connection = http.client.HTTPConnection("localhost" if is_unix else address, timeout=ANSWER_S)
    with closing(connection):
        if is_unix:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(ANSWER_S)
            connection.sock.connect(address.removeprefix("unix:"))
        headers = HEADERS if key is None else {**HEADERS, "Idempotency-Key": key}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.getheader("content-type") == "application/json"
        said = json.loads(text) if text and is_json else text
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, said)


class Client:
    """Asks one server after the other until one says what became of the request, or the test has ended."""

    def __init__(self, addresses: list[str], given_up: threading.Event | None = None) -> None:
        self._addresses = addresses
        self._given_up = given_up or threading.Event()
        self._at = random.choice(addresses)

    def write(self, method: str, path: str, body: Any = None) -> Answer | None:
        key, end = str(uuid.uuid4()), time.monotonic() + PATIENCE_S
        while not self._given_up.is_set():
            try:
                answer = ask(self._at, method, path, body, key)
                if answer.status not in (503, 504):
                    return answer
                active = answer.headers.get("plimsoll-active", "").removeprefix("http://")
                named = [each for each in self._addresses if active in (each, Path(each).stem)]
                self._at = random.choice(named or self._addresses)
            except (OSError, http.client.HTTPException):
                self._at = random.choice(self._addresses)
            assert time.monotonic() < end, f"no server answers {method} {path}"
            time.sleep(0.02)
        return None

    def misses(self, consumer: str) -> bool:
        """Whether a server that says that it is the active one knows nothing of the consumer."""
        try:
            answer = ask(random.choice(self._addresses), "GET", f"/allocations/{consumer}")
        except (OSError, http.client.HTTPException):
            return False
        return "plimsoll-stale" not in answer.headers and answer.body == {"allocations": {}}


class Done(NamedTuple):
    """What a client was told: `kind` is claim or release; None: it has given up before it was told."""

    kind: str
    consumer: str
    granted: bool | None
    began: float
    ended: float


class Fleet:
    """`servers` on the journal, and what their clients were told."""

    def __init__(self, dsn: str, servers: list[Server]) -> None:
        self.dsn = dsn
        self.servers = servers
        self.addresses = [server.address for server in self.servers]
        self.history: list[Done] = []
        self.failures: list[BaseException] = []
        self._ending, self.given_up = threading.Event(), threading.Event()

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
        answer = client.write("PUT", f"/resource_providers/{made}/inventories", body)
        assert answer is not None and answer.status == 200, answer
        return made

    @contextmanager
    def clients(self, number: int, provider: str) -> Iterator[None]:
        """Claim and release one unit at a time, with so many clients; their history begins anew."""
        self.history = []
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
            self.given_up.clear()
        assert not self.failures, self.failures

    def _work(self, provider: str) -> None:
        client, held = Client(self.addresses, self.given_up), list[str]()
        try:
            while not self._ending.is_set() and not self.given_up.is_set():
                if held and random.random() < READS:
                    assert not client.misses(held[-1]), "an answer is old, and does not say so"
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
                if answer is None:
                    self.history.append(Done(kind, consumer, None, began, math.inf))
                    return
                assert answer.status in (204, 409), (kind, answer)
                assert kind == "claim" or answer.status == 204, (kind, answer)
                if kind == "claim" and answer.status == 204:
                    held.append(consumer)
                self.history.append(Done(kind, consumer, answer.status == 204, began, time.monotonic()))
        except BaseException as error:  # noqa: BLE001 - told by `clients`
            self.failures.append(error)

    def held(self) -> set[str]:
        """What clients have by the answers to them. One that has given up may have released it."""
        gone = {done.consumer for done in self.history if done.kind == "release"}
        return {done.consumer for done in self.history if done.kind == "claim" and done.granted} - gone

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
    rows, there = _journal(fleet.dsn, provider, units)
    assert there == fleet.held(), "what was acknowledged is there, and nothing else"
    claimed = {done.consumer for done in fleet.history if done.kind == "claim" and done.granted}
    if rows[0][0] == 1:
        writes = Counter(
            uuid
            for _, _, changes in rows
            for part in json.loads(changes)
            for uuid, consumer in part.get("c", {}).items()
            if consumer
        )
        assert all(writes[consumer] == 1 for consumer in claimed), "each claim was done once"
    check_history(fleet.history, units)


def check_lost(fleet: Fleet, provider: str, units: int) -> int:
    """What was acknowledged and is gone has been named; returns how much that is."""
    _, there = _journal(fleet.dsn, provider, units)
    lost = fleet.held() - there
    logs = "".join(server.log for server in fleet.servers)
    named = {name for each in re.findall(r"Missing claims: (.*?)\. To", logs) for name in each.split(", ")}
    assert lost <= named, f"{lost - named} are gone, and no server says so"
    return len(lost)


def _journal(dsn: str, provider: str, units: int) -> tuple[list[tuple[int, int, str]], set[str]]:
    """The rows of the journal, and who has units of the provider in the end."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT seq, epoch, changes FROM plimsoll_journal ORDER BY seq").fetchall()
        ((epoch, seq),) = connection.execute("SELECT epoch, seq FROM plimsoll_writer").fetchall()
    assert [row[0] for row in rows] == list(range(rows[0][0], seq + 1)), "the journal is dense"
    epochs = [row[1] for row in rows]
    assert epochs == sorted(epochs) and epochs[-1] <= epoch, "no epoch writes after the next one began"
    model = Model({}, {})
    for _, _, changes in rows:
        for part in json.loads(changes):
            model.apply(decode(part, model))
            assert model.used(provider, "VGPU") <= units, "sold twice"
    return rows, {uuid for uuid, one in model.consumers.items() if provider in one.allocations}


def check_history(history: list[Done], units: int) -> None:
    """The answers are those of one counter of units that each request changes once, between its two times.

    Of each consumer it is known from when to when it surely had its unit, and from when to when it may have
    had it. At no time more than all are surely taken; while a claim is refused, all may be at some time.
    """
    claims = {done.consumer: done for done in history if done.kind == "claim" and done.granted is not False}
    releases = {done.consumer: done for done in history if done.kind == "release"}
    surely, maybe = list[tuple[float, int]](), list[tuple[float, int]]()
    for consumer, claim in claims.items():
        release = releases.get(consumer)
        maybe += [(claim.began, -1), (release.ended if release else math.inf, 1)]
        if claim.granted:
            surely += [(claim.ended, 1), (release.began if release else math.inf, -1)]
    taken = 0
    for _, change in sorted(surely):
        taken += change
        assert taken <= units, "sold twice"
    maybe.sort()
    times, free = [at for at, _ in maybe], [units, *(units + n for n in accumulate(n for _, n in maybe))]
    for done in history:
        if done.granted is False:
            least = free[bisect_left(times, done.began) : bisect_right(times, done.ended) + 1]
            assert min(least) <= 0, f"{done} was refused, and there were {min(least)} units"
