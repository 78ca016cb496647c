"""Hosts with NUMA cells on the embedded core: fake driver, pass and tracker, which may be restarted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import cell_amounts
from agent.claims.parse_request import Flavor, claim_for_flavor
from agent.claims.request import ClaimRequest
from agent.driver import DriverSettings, HostSettings
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.reconciler import Reconciler
from agent.tracker.tracker import ResourceTracker
from agent.tree import Provider
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Nic, cell
from kits.cell_check import check_cells
from kits.placements import usual_placement
from kits.restarted import Outside, Restarting
from kits.tracker import TappedJournal, uuid_of
from kits.wire import Wire

SHARED, DEDICATED = frozenset({0, 1, 8, 9}), frozenset(range(16)) - {0, 1, 8, 9}
CELLS = tuple(
    cell(
        number, frozenset(range(8 * number, 8 * number + 8)), 16384, threads=2, pages={2048: 2048, 1048576: 4}
    )
    for number in range(2)
)
"""Two cells of 4 cores with 2 threads (0+4, 1+5, ...), of each 6 CPUs for dedicated use (2+6 and 3+7 whole
cores); 16 GiB each, 4 GiB of it in pages of 2 MiB and 4 GiB in pages of 1 GiB."""

NICS = tuple(
    Nic(f"eth{number}", f"0000:{number}1:00.0", (f"0000:{number}1:02.0", f"0000:{number}1:02.1"), numa=number)
    for number in range(2)
)
"""A card on each cell, with two virtual functions."""


def ask(
    vcpus: int = 2, memory_mb: int = 1024, *, consumer: str | None = None, disk_gb: int = 0, **specs: str
) -> ClaimRequest:
    """A flavor; `hw_numa_nodes="2"` is hw:numa_nodes=2, and `hw_numa_cpus_0` hw:numa_cpus.0."""
    named = {_spec(key): value for key, value in specs.items()}
    return claim_for_flavor(consumer or str(uuid4()), Flavor(vcpus, memory_mb, disk_gb, named))


def _spec(key: str) -> str:
    if not key.startswith("hw_"):
        return key.replace("__", ":")
    name = key.removeprefix("hw_")
    for celled in ("numa_cpus_", "numa_mem_"):
        if name.startswith(celled):
            return f"hw:{celled[:-1]}.{name.removeprefix(celled)}"
    return f"hw:{name}"


class NumaHost(Restarting, Outside):
    """One host's agent; `host` is what its driver pretends. Several may share a placement's transport."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "node1",
        transport: Transport | None = None,
        shared: Iterable[int] = SHARED,
        dedicated: Iterable[int] = DEDICATED,
        reserved_mb: int = 0,
        **host: Any,
    ) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.name = name
        self._given = transport
        host.setdefault("cells", CELLS)
        settings = HostSettings(
            cpu_shared_set=frozenset(shared),
            cpu_dedicated_set=frozenset(dedicated) or None,
            reserved_host_memory_mb=reserved_mb,
            initial_cpu_allocation_ratio=2.0,
        )
        self.driver = FakeDriver(FakeHost(**host), DriverSettings(name, settings))
        self._open()

    def _open(self) -> None:
        transport = self._given or usual_placement(self.directory).transport()
        self.raw = PlacementClient(transport)
        self.tap = Wire(transport)
        self.journal = journal = TappedJournal.open(self.directory)
        journal.remember_host(uuid_of(self.name))
        client = PlacementClient(self.tap)
        self.tracker = ResourceTracker(journal, client, turn_wait_s=10.0)
        root = uuid_of(self.name)
        self.reconciler = Reconciler(self.driver, client, self.tracker, journal, root)
        self.look()
        self.tracker.recover(self.driver.guests())
        self.tracker.admission.open()

    def look(self, *, verify: bool = False) -> None:
        report = self.reconciler.verify("a test") if verify else self.reconciler.reconcile("a test")
        assert (report.error, report.pending) == (None, None), report

    def close(self) -> None:
        self.journal.close()
        if self._given is None:
            self.tap.close()

    def claim(self, *args: Any, **more: Any) -> Claim:
        return self.tracker.claim(ask(*args, **more)).claim

    def seen(self) -> Iterable[Provider]:
        return self.raw.read_tree(uuid_of(self.name))

    def check(self) -> None:
        """Memory, disk and placement agree; nothing of the cells is given twice or over what there is."""
        claims = self.tracker.claims()
        assert claims == self.journal.claims()
        tree = self.raw.read_tree(uuid_of(self.name))
        for each in tree:
            usages = self.raw.provider_usages(each.uuid)
            assert all(usages[name] <= inventory.capacity for name, inventory in each.inventories.items())
        host, cells = self.tracker.view.host_and_cells()
        for consumer, claim in claims.items():
            if claim.state is not ClaimState.CLAIMED:
                continue
            assert self.raw.allocations_of(consumer).allocations == claim.allocations
            if claim.cells and not claim.adopted:
                for uuid, amounts in cell_amounts(claim.cells, cells, host.tree).items():
                    mine = claim.allocations[uuid]
                    assert {name: mine[name] for name in amounts} == amounts, "placement and context agree"
        check_cells(claims.values(), self.driver.host.cells, self.driver.topology().dedicated_cpus)
