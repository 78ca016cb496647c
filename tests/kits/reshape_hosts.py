"""Two hosts with the fake driver on one placement: each is reshaped, and instances move between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import DriverSettings, Guest, GuestState, HostSettings, UsedUnit
from agent.placement.client import PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.reconciler import Reconciler
from agent.state.journal import Journal
from agent.tracker.tracker import ResourceTracker
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from kits.placements import Placement, usual_placement
from kits.reshape import uuid_of
from kits.restarted import Closing, Restarting
from kits.wire import Wire

VF = "SRIOV_NET_VF"


def fake_host(name: str, cards: int = 2, vfs: int = 4, **changes: Any) -> FakeHost:
    """Cards with VFs, one in each cell in turn; a GPU in each of the two cells."""
    host = FakeHost(
        tuple(cell(n, frozenset(range(8 * n, 8 * n + 8)), 8192) for n in (0, 1)),
        100,
        gpus=tuple(
            Gpu(f"0000:4{n}:00.0", "VGPU", 2, tuple(f"{name}-mdev-{n}-{i}" for i in (0, 1)), numa=n)
            for n in (0, 1)
        ),
        nics=tuple(
            Nic(
                f"ens{n}",
                f"0000:5{n}:00.0",
                tuple(f"0000:5{n}:01.{i}" for i in range(vfs)),
                f"net{n}",
                1000,
                2000,
                numa=n % 2,
            )
            for n in range(cards)
        ),
        flat_devices=True,
    )
    return replace(host, **changes)


def asks(consumer: str, **resources: int) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup("", resources),), name=f"vm-{consumer[:4]}")


def guest_of(claim: Claim, uuid: str | None = None) -> Guest:
    """The guest of a claim, with exactly its units; a VF says which card it is on."""
    units = tuple(UsedUnit(name, unit, _device(name, unit)) for _, name, unit in claim.exact)
    return Guest(uuid or claim.consumer, "guest", GuestState.RUNNING, dict(claim.request.resources), units)


def _device(name: str, unit: str) -> str:
    if name == VF:
        return f"pci:{unit[:7]}:00.0"
    return f"pci:0000:4{unit.split('-')[-2]}:00.0" if name == "VGPU" else "host"


class Node(Restarting):
    """One host: driver, tracker, passes. `restart` leaves only the files."""

    def __init__(self, name: str, directory: Path, transport: Transport, host: FakeHost) -> None:
        self.name, self.root = name, uuid_of(name)
        self._directory, self._transport = directory / name, transport
        self._directory.mkdir()
        self.driver = FakeDriver(host, DriverSettings(name, HostSettings(reserved_host_memory_mb=0)))
        self._open()
        self.journal.remember_host(self.root)
        self.look()

    def _open(self) -> None:
        self.tap = Wire(self._transport)
        self.client = PlacementClient(self.tap)
        self.journal = Journal.open(self._directory)
        self.tracker = ResourceTracker(self.journal, self.client, turn_wait_s=5.0)
        self.reconciler = Reconciler(
            self.driver, self.client, self.tracker, self.journal, self.root, sleep=lambda _: None
        )

    def close(self) -> None:
        self.journal.close()

    def change(self, **fields: Any) -> None:
        """The driver describes something else, and the agent carries it out."""
        self.driver.change(**fields)
        self.look()

    def look(self, *, pending: bool = False) -> str:
        """A verification, whose `problems` are kept, and what follows from it; what is pending."""
        report = self.reconciler.verify("a test")
        assert report.error is None, report.error
        self.problems = report.problems
        assert (report.pending is not None) == pending, report.pending
        self.tracker.recover(self.driver.guests())
        self.tracker.admission.open()
        self.tracker.follow_moves()
        return report.pending.message if report.pending else ""

    def guests(self, *guests: Guest) -> None:
        self.change(guests=guests)

    def claim(self, consumer: str, **resources: int) -> Claim:
        return self.tracker.claim(asks(consumer, **resources)).claim

    def units(self, consumer: str) -> Mapping[str, set[str]]:
        """{class: exact units} of the consumer's claim."""
        claim = self.tracker.claim_of(consumer)
        units: dict[str, set[str]] = {}
        for _, name, unit in claim.exact if claim else ():
            units.setdefault(name, set()).add(unit)
        return units

    def check(self) -> None:
        """Claims are what Placement holds, with each unit where the driver has it, and one owner each."""
        owners: dict[tuple[str, str], str] = {}
        offered = {provider.name: provider.units for provider in self.driver.describe().providers}
        names = {each.uuid: each.name for each in self.client.read_tree(self.root)}
        assert self.tracker.claims() == self.journal.claims()
        for consumer, claim in self.tracker.claims().items():
            assert self.client.allocations_of(consumer).allocations == claim.allocations, consumer
            for uuid, name, unit in claim.exact:
                assert owners.setdefault((name, unit), consumer) == consumer, "one owner"
                assert unit in offered[names[uuid]].get(name, ()), (unit, names[uuid])
            for uuid, amounts in claim.allocations.items():
                for name in amounts.keys() & offered.get(names.get(uuid, ""), {}).keys():
                    assert len(claim.units[uuid][name]) == amounts[name], claim


class Hosts(Closing):
    """Nodes "a" and "b" on one placement."""

    def __init__(self, directory: Path, placement: Placement | None = None, **changes: Any) -> None:
        self.placement = placement.anew(directory) if placement else usual_placement(directory)
        self._transport = self.placement.transport()
        self.raw = PlacementClient(self._transport)
        self.a, self.b = (
            Node(name, directory, self._transport, fake_host(name, **changes)) for name in ("a", "b")
        )

    def close(self) -> None:
        for node in (self.a, self.b):
            node.close()
        self._transport.close()

    def settle(self) -> None:
        """Each looks twice: once for itself, once for what the other one did."""
        for _ in range(2):
            for node in (self.a, self.b):
                node.look()
