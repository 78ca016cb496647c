"""The book's decision alone: where a request fits on a host of 500 guests. Target: under 0.3 ms.

python benchmarks/book.py

Each guest runs on its claim: CPUs, memory and a virtual function of its own. Nothing is written.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import DriverSettings, Guest, GuestState, HostSettings, UsedUnit
from agent.placement.client import PlacementClient
from agent.placement.connect import open_transport
from agent.reconcile.reconciler import Reconciler
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Nic, cell

GUESTS, DECISIONS = 500, 2000
TARGET_MS = 0.3
CARDS, VFS = 8, 64


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        client = PlacementClient(open_transport("embedded", state_dir=Path(directory)))
        journal = Journal.open(Path(directory))
        driver = FakeDriver(host(), DriverSettings("bench", HostSettings()))
        tracker = ResourceTracker(journal, client)
        reconciler = Reconciler(driver, client, tracker, journal, str(uuid4()))
        reconciler.reconcile("the start")
        tracker.admission.open()
        for number in range(GUESTS):
            driver.add_guest(running(tracker.claim(asked(SRIOV_NET_VF=1)).claim, number))
        report = reconciler.reconcile("an event")
        assert report.error is None, report
        tell("CPU and memory", lambda: tracker.view.fit(asked()).fits)
        tell("CPU, memory and a virtual function", lambda: tracker.view.fit(asked(SRIOV_NET_VF=1)).fits)
        tell(
            "refused: no card has two functions free",
            lambda: not tracker.view.fit(asked(SRIOV_NET_VF=13)).fits,
        )
        journal.close()
        client.close()


def host() -> FakeHost:
    nics = tuple(
        Nic(f"eth{n}", f"0000:{n}1:00.0", tuple(f"0000:{n}1:{vf // 8 + 1:02x}.{vf % 8}" for vf in range(VFS)))
        for n in range(CARDS)
    )
    return FakeHost((cell(0, frozenset(range(128)), 524_288),), disk_gb=1000, nics=nics)


def asked(**more: int) -> ClaimRequest:
    return ClaimRequest(str(uuid4()), (RequestGroup("", {"VCPU": 1, "MEMORY_MB": 512, **more}),), None)


def running(claim: Claim, number: int) -> Guest:
    units = tuple(
        UsedUnit(name, unit, f"pci:{unit[:7]}:00.0")
        for held in claim.units.values()
        for name, given in held.items()
        for unit in given
    )
    resources = {"VCPU": 1, "MEMORY_MB": 512, "SRIOV_NET_VF": 1}
    return Guest(claim.consumer, f"guest{number}", GuestState.RUNNING, resources, units=units)


def tell(what: str, decide: Callable[[], bool]) -> None:
    took_ms = []
    for _ in range(DECISIONS):
        begun = time.perf_counter()
        right = decide()
        took_ms.append((time.perf_counter() - begun) * 1000)
        assert right, what
    p50, p99 = statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]
    print(f"{what}: p50 {p50:.3f} ms, p99 {p99:.3f} ms beside {GUESTS} guests (target < {TARGET_MS} ms)")


if __name__ == "__main__":
    main()
