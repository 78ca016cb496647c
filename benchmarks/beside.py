"""Claims beside a long question: how long each claim takes while another client asks for all candidates.

    python -m benchmarks.beside [--hosts N]

The embedded core, 1000 hosts of 8 GPUs, and queries for two GPUs without a limit, one behind the other: 64
candidates a host. The claims go to a tree of their own. First both run in this process, as in an agent that
serves its Placement; then over the Unix socket of a served core, the queries from a process of their own.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.placement.embedded import Core
from benchmarks.embedded_door import in_process, over, served
from benchmarks.embedded_world import Ask, Trio, host

QUERY = "/allocation_candidates?resources_1=VGPU:1&resources_2=VGPU:1&group_policy=none"
ROUNDS = 3


def main() -> None:
    hosts = int(sys.argv[sys.argv.index("--hosts") + 1]) if "--hosts" in sys.argv else 1000
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name:
        folder = Path(name)
        print("over the Unix socket")
        with served(folder) as address:
            asks = multiprocessing.get_context("spawn").Process
            measure(over(address), hosts, lambda: run_to_its_end(asks(target=ask_over, args=(address,))))
        print("in process")
        core = Core.open(folder / "state")
        measure(in_process(core), hosts, lambda: ask_all(in_process(core)))
        core.close()


def measure(ask: Ask, hosts: int, ask_beside: Callable[[], None]) -> None:
    """Claims alone, and while `ask_beside` runs."""
    trio = Trio(ask)
    for number in range(hosts):
        host(ask, f"host{number}")
    show("claims alone", [timed_claim(trio, ask) for _ in range(500)])
    asker = threading.Thread(target=ask_beside)
    asker.start()
    beside: list[float] = []
    while asker.is_alive():
        beside.append(timed_claim(trio, ask))
    show("claims beside it", beside)


def run_to_its_end(process: Any) -> None:
    process.start()
    process.join()


def ask_over(address: Path) -> None:
    ask_all(over(address, reads=False))


def ask_all(ask: Ask) -> None:
    for _ in range(ROUNDS):
        began = time.perf_counter()
        status, _ = ask("GET", QUERY, None)
        print(f"the query: {status} in {time.perf_counter() - began:.2f} s", flush=True)


def timed_claim(trio: Trio, ask: Ask) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    trio.claim(ask)
    return (time.perf_counter() - began) * 1000


def show(what: str, times: list[float]) -> None:
    ordered = sorted(times)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"{what}: {len(times)}, median {statistics.median(times):.2f} ms, p99 {p99:.2f} ms, "
        f"longest {ordered[-1]:.2f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
