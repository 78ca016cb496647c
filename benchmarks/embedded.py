"""The embedded core beside OpenStack Placement: the same work on both, medians, 99th percentiles and ratios.

    python -m benchmarks.embedded [--quick]

Both run in this process over a SQLite file in the current folder; the embedded core syncs every write
(`synchronous=FULL`). `--quick` leaves out what takes the reference minutes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from agent.placement.embedded import Core
from benchmarks import embedded_reference, embedded_world
from benchmarks.embedded_world import Ask, Trio, done, held, host, provider, reshape_body

CLIENTS = 16


def main() -> None:
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        core = Core.open(Path(folder) / "state")

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            answer = core.request(method, path, body, microversion="1.39")
            return answer.status, answer.body

        ours = measure(ask, 2000, 100, quick=False)
        thousand_hosts(ask)
        core.close()
        theirs = measure(embedded_reference.load(Path(folder)), 60, 6, quick)
        show(ours, theirs)


def measure(ask: Ask, rounds: int, many: int, quick: bool) -> dict[str, list[float]]:
    """Milliseconds by kind of work; `rounds` of the short kinds."""
    times: dict[str, list[float]] = {}
    for number in range(1 if quick else 100):
        host(ask, f"host{number}")
    groups = embedded_world.THREE_GROUPS
    times["candidates, 100 hosts, 3 groups, limit 10"] = timed(lambda: done(ask, "GET", groups), many)
    for count in (4,) if quick else (4, 5):
        path = embedded_world.isolated_groups(count)
        name = f"candidates, {count} isolated groups"
        times[name] = timed(partial(done, ask, "GET", path), many if count == 4 else 1)
    trio = Trio(ask)
    instances = [trio.claim(ask) for _ in range(100 if quick else 1000)]
    times["claim, 3 providers"] = timed(lambda: trio.claim(ask), rounds)
    times["swap, 3 providers"] = timed(lambda: trio.swap(ask, instances.pop()), min(rounds, 90))
    for consumers in (100,) if quick else (100, 1000):
        body = reshape_body(ask, consumers)
        name = f"reshape, {consumers} consumers"
        times[name] = timed(partial(done, ask, "POST", "/reshaper", body), 1)
    times[f"{CLIENTS} clients, per claim"] = clients(ask, rounds * 4)
    return times


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1000)
    return times


def clients(ask: Ask, claims: int) -> list[float]:
    """The time of each granted claim by one of 16 clients; prints the throughput."""
    target = provider(ask, "target", VCPU=10**6)
    times: list[float] = []
    failed: list[float] = []

    def work() -> None:
        for _ in range(claims // CLIENTS):
            start = time.perf_counter()
            status, _ = ask("PUT", f"/allocations/{uuid.uuid4()}", held({target: {"VCPU": 1}}))
            (times if status == 204 else failed).append((time.perf_counter() - start) * 1000)

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    print(f"{CLIENTS} clients: {len(times) / seconds:.0f} claims/s granted, {len(failed)} failed")
    return times


def thousand_hosts(ask: Ask) -> None:
    """Ours alone: the same question to ten times the hosts."""
    for number in range(100, 1000):
        host(ask, f"host{number}")
    times = timed(lambda: done(ask, "GET", embedded_world.THREE_GROUPS), 200)
    print(f"candidates, 1000 hosts, 3 groups, limit 10: {statistics.median(times):.2f} ms")


def show(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> None:
    print(f"{'milliseconds':44} {'ours':>9} {'p99':>9} {'theirs':>10} {'p99':>10} {'ratio':>7}")
    for name, times in ours.items():
        line = f"{name:44} {statistics.median(times):9.3f} {p99(times):9.3f}"
        if other := theirs.get(name):
            median = statistics.median(other)
            line += f" {median:10.1f} {p99(other):10.1f} {median / statistics.median(times):6.0f}x"
        print(line)


def p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


if __name__ == "__main__":
    main()
