"""How long a durable claim takes through the embedded core's doors, beside OpenStack Placement in process.

    python -m benchmarks.embedded_door [--no-reference | --journal DSN]

Claims on three providers, with 1000 consumers before (OpenStack's: 100), in milliseconds. The core is served
by a process of its own (`plimsoll placement serve`) and its state lies in the current folder, so on the disk
that holds that; every client keeps its connection.

With --journal, which needs `./dev bench`: over a new journal in that PostgreSQL, beside one process of
OpenStack Placement on a database of its own there, in turn. Each of 16 clients claims on three providers of
its own, as the agents of 16 hosts do.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from agent.placement.embedded import Core
from benchmarks.embedded_world import Ask, Refused, Trio, held

CLAIMS = 2000
CLAIMS_OF_MANY = 10_000
CLAIMS_OF_REFERENCE = 40
CONSUMERS_BEFORE = 1000
CLIENTS = 16
ROUNDS = 3
PATIENCE_S = 30
Address = Path | int
"""A Unix socket, or a port on this machine."""
HEADERS = {
    "X-Auth-Token": "admin",
    "OpenStack-API-Version": "placement 1.39",
    "Content-Type": "application/json",
}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name:
        folder = Path(name)
        print(f"{'one client':26} {'median':>8} {'p99':>8}")
        core = Core.open(folder / "in-process")
        baseline = show("in process", one_client(in_process(core), CLAIMS))
        core.close()
        with served(folder) as address:
            show("over the Unix socket", one_client(over(address), CLAIMS), baseline)
            print(f"{CLIENTS} clients")
            show("over the Unix socket", many_clients(address))
            show("the same, with keys", many_clients(address, with_keys=True))
        if "--journal" in sys.argv:
            beside_openstack(folder, sys.argv[sys.argv.index("--journal") + 1])
        elif "--no-reference" not in sys.argv:
            from benchmarks import embedded_reference

            print("one client")
            theirs = one_client(embedded_reference.load(folder), CLAIMS_OF_REFERENCE)
            show("OpenStack, in process", theirs, baseline)


def beside_openstack(folder: Path, journal: str) -> None:
    import psycopg
    from kits.placements import OpenStack
    from psycopg.conninfo import conninfo_to_dict

    where = {name: value for name, value in conninfo_to_dict(journal).items() if name != "dbname"}
    with psycopg.connect(journal, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plimsoll_reference")
        connection.execute("CREATE DATABASE plimsoll_reference")
    openstack = OpenStack(f"postgresql+psycopg2:///plimsoll_reference?{urlencode(where)}")
    (folder / "shared").mkdir()
    with served(folder / "shared", "--journal", journal, "--advertise", "http://here") as address:
        ours, theirs = list[float](), list[float]()
        for _ in range(ROUNDS):
            times = many_clients(address, trees=CLIENTS, with_keys=True)
            show("over PostgreSQL, with keys", times)
            ours.append(statistics.mean(times))
            times = many_clients(openstack.port, CLAIMS_OF_REFERENCE * CLIENTS, trees=CLIENTS)
            show("OpenStack over PostgreSQL", times)
            theirs.append(statistics.mean(times))
    openstack.down()
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"{ratio:.1f} times as many claims as OpenStack Placement, the medians of {ROUNDS} rounds")


def one_client(ask: Ask, claims: int) -> list[float]:
    trio = Trio(ask)
    for _ in range(CONSUMERS_BEFORE if claims == CLAIMS else 100):
        trio.claim(ask)
    return timed(lambda: trio.claim(ask), claims)


def many_clients(
    address: Address, claims: int = CLAIMS_OF_MANY, *, trees: int = 1, with_keys: bool = False
) -> list[float]:
    """The times of claims by CLIENTS connections, each with one under way; prints the throughput of all.

    `with_keys`: each has an idempotency key, as those of an agent have.

    One thread sends requests that were made before, so that what it costs is the server's.
    """
    trios = [Trio(over(address), f"busy-{uuid.uuid4()}") for _ in range(trees)]
    each = range(claims // CLIENTS)
    requests = [
        [claim_text(trios[number % trees], root_of(address), with_keys=with_keys) for _ in each]
        for number in range(CLIENTS)
    ]
    times: list[float] = []
    sent_at: dict[int, float] = {}
    with selectors.DefaultSelector() as selector, ExitStack() as stack:

        def send(sock: socket.socket, left: list[bytes]) -> None:
            sent_at[sock.fileno()] = time.perf_counter()
            sock.sendall(left.pop())

        begin = time.perf_counter()
        for left in requests:
            sock = stack.enter_context(connected(address))
            selector.register(sock, selectors.EVENT_READ, (sock, left))
            send(sock, left)
        while len(times) < len(each) * CLIENTS:
            for key, _ in selector.select():
                sock, left = key.data
                if not sock.recv(65536).startswith(b"HTTP/1.1 204 "):
                    raise Refused
                times.append((time.perf_counter() - sent_at[key.fd]) * 1000)
                if left:
                    send(sock, left)
    print(f"{'':26} {len(times) / (time.perf_counter() - begin):8.0f} claims/s")
    return times


def root_of(address: Address) -> str:
    """Where the API begins: the kit's OpenStack Placement, at a port, serves its first test there."""
    return "/1" if isinstance(address, int) else ""


def connected(address: Address) -> socket.socket:
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(address))
    return sock


def claim_text(trio: Trio, root: str, *, with_keys: bool) -> bytes:
    body = json.dumps(held(trio.resources))
    told = {**HEADERS, "Host": "localhost", "Content-Length": len(body)}
    told |= {"Idempotency-Key": uuid.uuid4().hex} if with_keys else {}
    lines = [
        f"PUT {root}/allocations/{uuid.uuid4()} HTTP/1.1",
        *(f"{name}: {value}" for name, value in told.items()),
    ]
    return "\r\n".join((*lines, "", body)).encode()


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1000)
    return times


def show(name: str, times: list[float], baseline: float | None = None) -> float:
    times.sort()
    median = statistics.median(times)
    ratio = f"   {median / baseline:.1f} times in process" if baseline else ""
    print(f"{name:26} {median:8.3f} {times[int(len(times) * 0.99)]:8.3f}{ratio}")
    return median


def in_process(core: Core) -> Ask:
    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = core.request(method, path, body, microversion="1.39")
        return answer.status, answer.body

    return ask


def over(address: Address, *, reads: bool = True) -> Ask:
    """A client with a connection of its own; one that does not read JSON costs less."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connected(address)

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        text = None if body is None else json.dumps(body)
        connection.request(method, f"{root_of(address)}{path}", text, HEADERS)
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if said and reads else None

    return ask


@contextmanager
def served(folder: Path, *journal: str) -> Iterator[Path]:
    address = folder / "door"
    command = [sys.executable, "-m", "agent.cli.main", "placement", "serve", "--bind", f"unix:{address}"]
    command += journal or ["--state-dir", str(folder / "served")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not address.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        while journal and process.poll() is None and time.monotonic() < deadline:
            if over(address)("PUT", "/traits/CUSTOM_READY", None)[0] < HTTPStatus.INTERNAL_SERVER_ERROR:
                break  # this server is the active one
        try:
            yield address
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
