"""A host on a real placement with a tracker over it, and a tap on every request and journal write."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self
from uuid import uuid4

from agent.claims.claim import Claim, ClaimState
from agent.claims.host_cells import HostLayout
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Cell, Guest, GuestState, Topology, UsedUnit
from agent.moves.states import Move
from agent.placement.client import PlacementClient
from agent.shapes import Units
from agent.state.journal import Journal, PendingWrite
from agent.tracker.tracker import ResourceTracker
from agent.tree import Inventory, Provider, ProviderTree
from kits.cell_check import check_cells
from kits.placements import Placement, usual_placement
from kits.restarted import Outside, Restarting
from kits.uuids import uuid_of
from kits.wire import Wire, nothing, telling

VFS = ("0000:41:02.0", "0000:41:02.1")
SHARING = "MISC_SHARES_VIA_AGGREGATE"
RACK = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"


class Crash(BaseException):
    """The process is gone: nothing in the product may catch it."""


class Death:
    """Raises Crash at the boundary with that number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0

    def __call__(self, _: str) -> None:
        self.seen += 1
        if self.seen == self.number:
            raise Crash


def dies(taps: AbstractContextManager[None], operation: Callable[[], object]) -> bool:
    """Whether the operation ends by a Crash that the taps raise."""
    with taps:
        try:
            operation()
        except Crash:
            return True
    return False


def provider(
    name: str, parent: str | None = None, traits: tuple[str, ...] = (), rack: bool = False, **classes: int
) -> Provider:
    return Provider(
        uuid_of(name),
        name,
        uuid_of(parent) if parent else None,
        {
            key: Inventory(total, allocation_ratio=2.0 if key == "VCPU" else 1.0)
            for key, total in classes.items()
        },
        frozenset(traits),
        frozenset({RACK} if rack else ()),
    )


HOST = (
    provider("host", VCPU=8, PCPU=4, MEMORY_MB=4096, DISK_GB=100, rack=True),
    provider("gpu0", "host", VGPU=4),
    provider("gpu1", "host", VGPU=4),
    provider("nic0", "host", SRIOV_NET_VF=2),
)
CARD = provider("card0", "host", CUSTOM_PCI_10DE_1EB8=2)
POOL = provider("pool", traits=(SHARING,), rack=True, DISK_GB=1000)
ELSEWHERE = provider("elsewhere", VCPU=8, MEMORY_MB=4096)
CARDS = ("0000:84:00.0", "0000:85:00.0")
UNITS = {
    uuid_of("host"): {"PCPU": ("4", "5", "6", "7")},
    uuid_of("nic0"): {"SRIOV_NET_VF": VFS},
    uuid_of("card0"): {"CUSTOM_PCI_10DE_1EB8": CARDS},
}
NAMES = {each.uuid: each.name for each in (*HOST, CARD, POOL, ELSEWHERE)}
CELLS = tuple(
    Cell(number, frozenset(cpus), 2048, (frozenset(cpus[:2]), frozenset(cpus[2:])), {2048: 256})
    for number, cpus in enumerate(((0, 1, 4, 5), (2, 3, 6, 7)))
)
"""Of each, two CPUs are shared and two siblings dedicated; 512 MiB of 2048 are in large pages."""
LAYOUT = HostLayout(
    Topology(CELLS, frozenset(range(4)), frozenset(range(4, 8))),
    {uuid_of("gpu0"): 0, uuid_of("gpu1"): 1, uuid_of("nic0"): 1},
)


def request(
    consumer: str | None = None, *, name: str = "", suffixed: int = 0, **resources: int
) -> ClaimRequest:
    """One unsuffixed group; or `suffixed` groups, each with these resources."""
    groups = (
        tuple(RequestGroup(str(n), resources) for n in range(suffixed))
        if suffixed
        else (RequestGroup("", resources),)
    )
    return ClaimRequest(consumer or str(uuid4()), groups, "none" if suffixed > 1 else None, name=name)


def guest(uuid: str, **units: str) -> Guest:
    """Running; units {class: exact unit}."""
    used = tuple(UsedUnit(name, unit, "host") for name, unit in units.items())
    return Guest(uuid, "guest", GuestState.RUNNING, {}, used)


def check_units(claims: Mapping[str, Claim], offered: Units) -> None:
    """Each claim has as many exact units as it holds, and each unit one owner."""
    owners: dict[tuple[str, str, str], str] = {}
    for consumer, claim in claims.items():
        for uuid, amounts in claim.allocations.items():
            for name in amounts.keys() & offered.get(uuid, {}).keys():
                assert len(set(claim.units[uuid][name])) == amounts[name], (consumer, claim)
        for uuid, name, unit in claim.exact:
            owner = owners.setdefault((uuid, name, unit), consumer)
            assert owner == consumer, (unit, owner, consumer)


class TappedJournal(Journal):
    """A journal that tells `before` of each write, and `after` once it is on disk; either may raise."""

    before: Callable[[str], None] = staticmethod(nothing)
    after: Callable[[str], None] = staticmethod(nothing)

    def put_claim(self, claim: Claim, event: str, detail: str = "") -> PendingWrite:
        self.before(event)
        return _Tapped(super().put_claim(claim, event, detail), self, event)

    def set_claim_state(self, consumer: str, state: ClaimState, event: str, detail: str = "") -> PendingWrite:
        self.before(event)
        return _Tapped(super().set_claim_state(consumer, state, event, detail), self, event)

    def remove_claim(self, consumer: str, event: str, detail: str = "") -> PendingWrite:
        self.before(event)
        return _Tapped(super().remove_claim(consumer, event, detail), self, event)

    def put_move(self, move: Move, claims: Iterable[Claim], gone: Iterable[str], event: str) -> PendingWrite:
        self.before(event)
        return _Tapped(super().put_move(move, claims, gone, event), self, event)


class _Tapped(PendingWrite):
    def __init__(self, inner: PendingWrite, journal: TappedJournal, event: str) -> None:
        self._inner, self._journal, self._event = inner, journal, event

    def wait(self) -> None:
        self._inner.wait()
        self._journal.after(self._event)


class Kit(Restarting, Outside):
    """The host: its placement, its journal in `directory`, and a tracker that may be restarted."""

    def __init__(
        self,
        directory: Path,
        providers: tuple[Provider, ...] = HOST,
        placement: Placement | None = None,
    ) -> None:
        self._start(directory, providers, placement)
        for each in providers:
            self.create(each)
        self.journal.remember_host(uuid_of("host"))
        self.refresh()
        self.tracker.admission.open()

    @classmethod
    def after_kill(cls, directory: Path, providers: tuple[Provider, ...], placement: Placement) -> Self:
        """The host that a killed process left in `directory`, as the next one starts: claims are closed."""
        kit = cls.__new__(cls)
        kit._start(directory, providers, placement)
        return kit

    def _start(self, directory: Path, providers: tuple[Provider, ...], placement: Placement | None) -> None:
        self.directory = directory
        self.placement = placement.anew(directory) if placement else usual_placement(directory)
        self.providers = providers
        self.later_s = 0.0
        self.tracker: ResourceTracker
        self._open()

    def close(self) -> None:
        self.journal.close()
        self.tap.close()

    def _open(self) -> None:
        transport = self.placement.transport()
        self.raw = PlacementClient(transport)
        self.tap = Wire(transport)
        self.journal = TappedJournal.open(self.directory)
        self.tracker = ResourceTracker(
            self.journal,
            PlacementClient(self.tap),
            clock=lambda: time.time() + self.later_s,
            monotonic=lambda: time.monotonic() + self.later_s,
            turn_wait_s=10.0,
        )

    def refresh(self) -> None:
        tree = ProviderTree(
            each
            for root in ("host", "pool")
            if uuid_of(root) in self._made
            for each in self.raw.read_tree(uuid_of(root))
        )
        held = {each.uuid: self.raw.provider_allocations(each.uuid).consumers for each in tree}
        self.tracker.refresh(tree, held, UNITS, LAYOUT)

    @property
    def _made(self) -> set[str]:
        return {each.uuid for each in self.providers}

    # What is

    def seen(self) -> Iterable[Provider]:
        return self.providers

    def uuid(self, name: str) -> str:
        return uuid_of(name)

    def used(self, name: str, resource_class: str) -> int:
        return self.raw.provider_usages(uuid_of(name))[resource_class]

    def state(self) -> tuple[object, Mapping[str, Claim], Mapping[str, Claim]]:
        """All there is: in placement, in memory, on disk."""
        return self.placed_all(), self.tracker.claims(), self.journal.claims()

    def check(self) -> None:
        """Memory, disk and placement agree; nothing is over-committed; every unit has one owner."""
        claims = self.tracker.claims()
        assert claims == self.journal.claims()
        everything = self.placed_all()
        for consumer, claim in claims.items():
            if claim.state is ClaimState.CLAIMED:
                mine = {NAMES[uuid]: dict(amounts) for uuid, amounts in claim.allocations.items()}
                assert everything.get(consumer) == mine
                self._check_sums(claim)
        check_units(claims, UNITS)
        check_cells(claims.values(), CELLS, LAYOUT.topology.dedicated_cpus)
        for each in self.providers:
            for name, inventory in each.inventories.items():
                assert self.used(each.name, name) <= inventory.capacity

    @staticmethod
    def _check_sums(claim: Claim) -> None:
        totals: dict[str, int] = {}
        for amounts in claim.allocations.values():
            for name, amount in amounts.items():
                totals[name] = totals.get(name, 0) + amount
        if not claim.adopted:
            withheld = sum(len(cell.withheld) for cell in claim.cells)
            asked = claim.request.resources
            assert totals == (asked | {"PCPU": asked["PCPU"] + withheld} if withheld else asked)

    # Faults

    def away(
        self, *, after: bool = False, only: str = "", sent: bool = False
    ) -> AbstractContextManager[None]:
        """Placement does not answer; see `Wire.away`."""
        return self.tap.away(after=after, only=only, sent=sent)

    def taps(self, told: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `told` before and after each request and each journal write."""
        return telling(told, self.tap, self.journal)


def fast_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory where a sync costs nothing, for tests that do very many."""
    shm = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)


@contextmanager
def checked_kit(directory: Path, placement: Placement) -> Iterator[Kit]:
    """A kit with the host, the pool and another host; no request is sent while the tracker's lock is held."""
    with Kit(directory, (*HOST, POOL, ELSEWHERE), placement) as kit:
        lock = kit.tracker._register._lock

        def check_lock_is_free(call: str) -> None:
            assert not lock.locked(), f"the lock is held during {call}"

        kit.tap.before = check_lock_is_free
        yield kit
        kit.check()
