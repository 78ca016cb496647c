"""Allocation candidates alone: small and large clouds, full ones, and requests that cannot be met.

    python -m benchmarks.candidates [--reference]

Each host has 15 providers (see embedded_world.host). With `--reference` OpenStack Placement is asked too,
about one host and not about all: six isolated groups take it half a minute each time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.placement.embedded import Core
from benchmarks import embedded_reference
from benchmarks.embedded_world import UNITS_PER_GPU, Ask, done, held, host, isolated_groups

THREE = (
    "/allocation_candidates?resources=DISK_GB:10,VCPU:4,MEMORY_MB:4096&resources_G=VGPU:1"
    "&resources_N=SRIOV_NET_VF:1&group_policy=none"
)
QUICK = {
    "3 groups, limit 10": f"{THREE}&limit=10",
    "3 groups, limit 1000": f"{THREE}&limit=1000",
    "4 isolated groups, limit 10": isolated_groups(4),
}
SLOW_THERE = {
    "5 isolated groups, limit 10": isolated_groups(5),
    "6 isolated groups, limit 10": isolated_groups(6),
}
HOPELESS = {"9 isolated groups on 8 GPUs": isolated_groups(9)}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        core = Core.open(Path(folder) / "state")

        def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            answer = core.request(method, path, body, microversion="1.39")
            return answer.status, answer.body

        made, every = 0, QUICK | SLOW_THERE | HOPELESS
        for hosts in (1, 100, 1000):
            for number in range(made, hosts):
                host(ask, f"host{number}")
            made = hosts
            show(f"{hosts} hosts", ask, every, rounds=100)
        fill(ask)
        show(
            "1000 hosts, all GPUs full but those of the last host",
            ask,
            QUICK | SLOW_THERE | HOPELESS,
            rounds=20,
        )
        core.close()
        if "--reference" in sys.argv:
            reference = embedded_reference.load(Path(folder))
            host(reference, "host0")
            show("OpenStack Placement, 1 host", reference, QUICK, rounds=10)
            show("OpenStack Placement, 1 host", reference, SLOW_THERE, rounds=1)


def fill(ask: Ask) -> None:
    """Claim every GPU but those of the last host, one consumer a host."""
    gpus: dict[str, list[str]] = {}
    for one in done(ask, "GET", "/resource_providers?resources=VGPU:1")["resource_providers"]:
        gpus.setdefault(one["root_provider_uuid"], []).append(one["uuid"])
    for number, uuids in enumerate(list(gpus.values())[:-1]):
        body = held({uuid: {"VGPU": UNITS_PER_GPU} for uuid in uuids})
        done(ask, "PUT", f"/allocations/{number:08x}-0000-4000-8000-000000000000", body)


def show(title: str, ask: Ask, questions: Mapping[str, str], rounds: int) -> None:
    print(f"{title}\n{'':4}{'milliseconds':40} {'median':>10} {'p99':>10} {'candidates':>11}")
    for name, path in questions.items():
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            found = done(ask, "GET", path)["allocation_requests"]
            times.append((time.perf_counter() - started) * 1000)
        p99 = sorted(times)[int(len(times) * 0.99)]
        print(f"{'':4}{name:40} {statistics.median(times):10.3f} {p99:10.3f} {len(found):11}", flush=True)


if __name__ == "__main__":
    main()
