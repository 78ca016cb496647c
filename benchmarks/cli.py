"""How long the command line and the local API take, in milliseconds: `python benchmarks/cli.py [rounds]`.

Serves a tree of 9 providers from a process of its own: what is measured is the command, the socket and
the server, and no tracker or placement.
"""

import http.client
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.api.server import ApiServer
from agent.config.access import Access
from agent.tree import Inventory, Provider, ProviderTree

ROUNDS = 30
READY = "ready"


class Host:
    """As much of the agent as status and tree ask for."""

    host_status = SimpleNamespace(overview=lambda: SimpleNamespace(unclaimed={}))

    def __init__(self) -> None:
        root = Provider("0", "host", inventories={"VCPU": Inventory(64), "MEMORY_MB": Inventory(65536)})
        devices = (Provider(str(n), f"host_pci_{n}", "0", {"VGPU": Inventory(16)}) for n in range(1, 9))
        self._tree = ProviderTree([root, *devices])

    def status(self) -> dict[str, Any]:
        health = {"ok": True, "error": None}
        return {
            "host": "host",
            "uuid": "0",
            "version": "0",
            "state": READY,
            "reasons": [],
            "since": "2026-01-01T00:00:00Z",
            "driver": {"name": "none", **health},
            "placement": {"kind": "none", **health},
            "claims": {"open": True, "reason": None, "count": 0},
            "last_pass": None,
            "pid": 0,
        }

    def tree(self) -> tuple[ProviderTree, dict[str, dict[str, int]]]:
        return self._tree, {}

    def tree_warnings(self, tree: ProviderTree, usages: object) -> tuple[str, ...]:
        return ()


def serve(path: str) -> None:
    server = ApiServer(Host(), Access.parse([], [], []), Path(path))  # type: ignore[arg-type]
    server.start()
    print(READY, flush=True)
    sys.stdin.read()
    server.stop()


def spread(name: str, rounds: int, work: Callable[[], object]) -> None:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1000)
    times.sort()
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    print(f"{name:<34} median {statistics.median(times):7.2f}   least {times[0]:7.2f}   p99 {p99:7.2f}")


def measure(path: str, rounds: int) -> None:
    command = [sys.executable, "-m", "agent.cli.main", "--socket", path]

    def run(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([*command, *words], stdout=subprocess.DEVNULL, check=True)

    def connect() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
        return connection

    def get(connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/v1/status")
        connection.getresponse().read()

    def fresh() -> None:
        connection = connect()
        get(connection)
        connection.close()

    spread("an empty Python", rounds, lambda: subprocess.run([sys.executable, "-c", ""], check=True))
    spread("plimsoll status", rounds, run("status"))
    spread("plimsoll tree", rounds, run("tree"))
    spread("plimsoll --help", rounds, run("--help"))
    kept = connect()
    spread("GET /v1/status, kept connection", rounds * 20, lambda: get(kept))
    kept.close()
    spread("GET /v1/status, new connection", rounds * 20, fresh)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "s")
        server = [sys.executable, __file__, "serve", path]
        with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline().strip() == READY
            measure(path, rounds)
            process.communicate("", timeout=30)


if __name__ == "__main__":
    main()
