"""Claims beside a long question: how long each claim takes while another thread asks for all candidates.

    python -m benchmarks.beside [--hosts N]

The embedded core, 1000 hosts of 8 GPUs, and a query for two GPUs without a limit: 64 candidates a host. The
claims go to a tree of their own. Both run in this process, as in an agent that serves its Placement.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from agent.http.process import share_the_interpreter
from agent.placement.embedded import Core
from benchmarks.embedded_world import Trio, done, host

QUERY = "/allocation_candidates?resources_1=VGPU:1&resources_2=VGPU:1&group_policy=none"
ROUNDS = 3


def main() -> None:
    share_the_interpreter()
    hosts = int(sys.argv[sys.argv.index("--hosts") + 1]) if "--hosts" in sys.argv else 1000
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        core = Core.open(Path(folder) / "state")

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            answer = core.request(method, path, body, microversion="1.39")
            return answer.status, answer.body

        trio = Trio(ask)
        for number in range(hosts):
            host(ask, f"host{number}")
        alone = [timed_claim(trio, ask) for _ in range(500)]
        show("claims alone", alone)
        beside: list[float] = []
        ends = threading.Event()
        claimer = threading.Thread(target=lambda: claim_until(ends, trio, ask, beside))
        claimer.start()
        for _ in range(ROUNDS):
            began = time.perf_counter()
            found = len(done(ask, "GET", QUERY)["allocation_requests"])
            print(f"the query: {found} candidates in {time.perf_counter() - began:.2f} s")
        ends.set()
        claimer.join()
        show("claims beside it", beside)
        core.close()


def claim_until(ends: threading.Event, trio: Trio, ask: Any, times: list[float]) -> None:
    while not ends.is_set():
        times.append(timed_claim(trio, ask))


def timed_claim(trio: Trio, ask: Any) -> float:
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
