"""How long the command line and the local API take, in milliseconds: `python benchmarks/cli.py [rounds]`.

The agent runs with the fake driver, in a process of its own.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import plimsoll
from agent.http.unix_connection import UnixConnection
from benchmarks.daemon import started

ROUNDS = 30
KEPT_S = 600.0


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

    def python(program: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", program], check=True)

    spread("an empty Python", rounds, python(""))
    spread("import plimsoll", rounds, python("import plimsoll"))
    spread("import plimsoll.shapes", rounds, python("import plimsoll.shapes"))
    spread("plimsoll status", rounds, run("status"))
    spread("plimsoll tree", rounds, run("tree"))
    spread("plimsoll --help", rounds, run("--help"))
    kept = UnixConnection(path, KEPT_S)

    def ask() -> None:
        kept.request("GET", "/v1/status")
        kept.getresponse().read()

    spread("GET /v1/status, kept connection", rounds * 20, ask)
    kept.close()
    agent = plimsoll.Agent(path)
    spread("GET /v1/status, new connection", rounds * 20, lambda: agent.request("GET", "/v1/status"))
    spread("Agent.status", rounds * 20, agent.status)

    def claim() -> None:
        agent.release(agent.claim(resources={"VCPU": 1}).consumer)

    spread("Agent.claim and Agent.release", rounds * 20, claim)


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
