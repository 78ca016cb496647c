"""A pass with nothing new: 256 providers, 500 guests. Target: under 5 ms and no placement request.

PYTHONPATH=tests python -m benchmarks.pass
"""

import copy
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from kits.agent import Wire

from agent.driver import DriverSettings, Guest, GuestState, HostSettings
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.reconcile.reconciler import Reconciler
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, cell

PROVIDERS = 256
GUESTS = 500
PASSES = 1000
TARGET_MS = 5.0


class Forgetful(FakeDriver):
    """Describes the same host by other objects each time, as a driver that keeps nothing would."""

    def prepare(self) -> None:
        self.descriptions = itertools.cycle([copy.deepcopy(self.describe()) for _ in range(2)])
        self.guest_lists = itertools.cycle([copy.deepcopy(self.guests()) for _ in range(2)])
        self.describe = lambda: next(self.descriptions)  # type: ignore[method-assign]
        self.guests = lambda: next(self.guest_lists)  # type: ignore[method-assign]


def host() -> FakeHost:
    return FakeHost(
        cells=(cell(0, frozenset(range(64)), 262144),),
        disk_gb=1000,
        gpus=tuple(Gpu(f"{number:04x}:00:00.0", "VGPU", 4) for number in range(PROVIDERS - 1)),
        guests=tuple(
            Guest(str(uuid4()), f"guest{number}", GuestState.RUNNING, {"VCPU": 1, "MEMORY_MB": 512})
            for number in range(GUESTS)
        ),
    )


def measure(what: str, reconciler: Reconciler, wire: Wire) -> None:
    wire.asked.clear()
    times = []
    for _ in range(PASSES):
        started = time.perf_counter()
        reconciler.reconcile("its interval")
        times.append((time.perf_counter() - started) * 1000)
    print(
        f"{what}: median {statistics.median(times):.3f} ms, worst of {PASSES} {max(times):.3f} ms, "
        f"{wire.requests} requests (target < {TARGET_MS} ms, 0 requests)"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        wire = Wire(open_transport("embedded", state_dir=Path(directory)))
        client = PlacementClient(wire)
        driver = Forgetful(host(), DriverSettings("node1", HostSettings()))
        journal = Journal.open(Path(directory))
        reconciler = Reconciler(driver, client, ResourceTracker(journal, client), journal, str(uuid4()))
        first = reconciler.reconcile("the start")
        print(
            f"first pass: {first.providers} providers, {first.operations} operations, "
            f"{wire.requests} requests, {first.duration_ms:.0f} ms"
        )
        measure("unchanged, the very same objects", reconciler, wire)
        driver.prepare()
        measure("unchanged, equal objects", reconciler, wire)
        driver.close()
        client.close()
        journal.close()


if __name__ == "__main__":
    main()
