"""How long the command line and the local API take, in milliseconds: `python benchmarks/cli.py [rounds]`.

The agent runs with the fake driver, in a process of its own.
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

from benchmarks.daemon import started

ROUNDS = 30


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
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as directory:
        process, _ = started(Path(directory))
        try:
            measure(f"{directory}/plimsoll.sock", rounds)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
