"""A host whose driver says that inventory moved: driver, placement, journal, tracker and pass together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Description,
    Driver,
    DriverSettings,
    Guest,
    MoveInstruction,
    Topology,
)
from agent.placement.client import PlacementClient
from agent.reconcile.pass_report import PassReport
from agent.reconcile.reconciler import Reconciler
from agent.reshape.receipt import Receipt
from agent.state.journal import Journal, PendingWrite
from agent.tracker.tracker import ResourceTracker
from agent.tree import ProviderTree
from kits.placements import Placement, usual_placement
from kits.restarted import Outside, Restarting
from kits.tracker import request
from kits.uuids import uuid_of
from kits.wire import Wire, nothing, telling

ROOT = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11"
HOST = "node1"


def provider(name: str, parent: str | None = HOST, **totals: int) -> DescribedProvider:
    inventories = {n: DescribedInventory(total) for n, total in totals.items()}
    return DescribedProvider(name, parent, inventories)


def host(**totals: int) -> DescribedProvider:
    return provider(HOST, None, **{"VCPU": 64, **totals})


FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))


def to_gpu(number: int, **owners: int) -> MoveInstruction:
    """Half of what `FLAT` has goes to a card of `NESTED`; owners {consumer: amount}."""
    shares = {uuid_of(who): {"VGPU": amount} for who, amount in owners.items()}
    return MoveInstruction(HOST, {"VGPU": 4}, f"gpu{number}", shares)


def to_gpus(**owners: dict[str, int]) -> tuple[MoveInstruction, ...]:
    """From `FLAT` to `NESTED`; owners {gpu: {consumer: amount}}."""
    return tuple(to_gpu(number, **owners.get(f"gpu{number}", {})) for number in (0, 1))


BACK = tuple(MoveInstruction(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1"))


class Told(Driver):
    """A driver that says what it is told to."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.domains: tuple[Guest, ...] = ()

    @classmethod
    def create(cls, settings: DriverSettings) -> Told:
        raise NotImplementedError

    def describe(self) -> Description:
        return self.description

    def guests(self) -> tuple[Guest, ...]:
        return self.domains

    def topology(self) -> Topology:
        return Topology((), frozenset())

    def watch(self, changed: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


class TappedJournal(Journal):
    """A journal that tells `before` and `after` of each of the reshape's writes; either may raise."""

    before: Callable[[str], None] = staticmethod(nothing)
    after: Callable[[str], None] = staticmethod(nothing)

    def _write(self, change: Any, note: Any, *, releases: bool = False) -> PendingWrite:
        self.before("journal")
        return _Told(super()._write(change, note, releases=releases), self)


class _Told(PendingWrite):
    def __init__(self, inner: PendingWrite, journal: TappedJournal) -> None:
        self._inner, self._journal = inner, journal

    def wait(self) -> None:
        self._inner.wait()
        self._journal.after("journal")


class World(Restarting, Outside):
    """`see` describes and runs a pass; `restart` leaves only the files. `pauses` in seconds take no time."""

    def __init__(self, directory: Path, placement: Placement | None = None) -> None:
        self.directory = directory
        self.placement = placement.anew(directory) if placement else usual_placement(directory)
        self.driver = Told(Description((host(),)))
        self.pauses: list[float] = []
        self._open()
        self.journal.remember_host(ROOT)

    def _open(self) -> None:
        transport = self.placement.transport()
        self.tap = Wire(transport)
        self.raw = PlacementClient(transport)
        self.client = client = PlacementClient(self.tap)
        self.journal = journal = TappedJournal.open(self.directory)
        self.tracker = ResourceTracker(journal, client, turn_wait_s=5.0)
        self.reconciler = Reconciler(
            self.driver, client, self.tracker, journal, ROOT, sleep=self.pauses.append
        )

    def close(self) -> None:
        self.journal.close()
        self.tap.close()

    def see(self, *providers: DescribedProvider, moves: tuple[MoveInstruction, ...] = ()) -> PassReport:
        self.driver.description = Description(providers, moves)
        return self.again()

    def again(self) -> PassReport:
        report = self.reconciler.verify("a test")
        if report.error is None:
            self.tracker.admission.open()
        return report

    def ask(self, undo: str | None = None) -> tuple[Receipt, ...]:
        """What `plimsoll reshape [--undo RECEIPT]` does."""
        return self.reconciler.reshape(undo)

    # What others do, and what is

    def hold(self, who: str, *, kind: str = "INSTANCE", **placed: Mapping[str, int]) -> str:
        """{provider name, `_` for `-`: {class: amount}}; the consumer's uuid."""
        consumer = uuid_of(who)
        self.schedule(consumer, kind, **placed)
        return consumer

    def tree(self) -> ProviderTree:
        return self.raw.read_tree(ROOT)

    seen = tree

    def placed(self, who: str) -> dict[str, dict[str, int]]:
        """What placement holds for the consumer (a name given to `hold`, or a uuid), by provider name."""
        return super().placed(who if who.count("-") == 4 else uuid_of(who))

    def totals(self) -> dict[str, dict[str, int]]:
        """{provider name: {class: total}}"""
        return {each.name: {n: i.total for n, i in each.inventories.items()} for each in self.tree()}

    def everything(self) -> tuple[object, object]:
        """All that placement holds here, without generations."""
        tree = self.tree()
        return {each.uuid: each for each in tree}, {
            each.uuid: self.raw.provider_allocations(each.uuid).consumers for each in tree
        }

    def check(self) -> None:
        """Memory and disk agree, and claims are what placement holds."""
        claims = self.tracker.claims()
        assert claims == self.journal.claims()
        for consumer, claim in claims.items():
            assert self.raw.allocations_of(consumer).allocations == claim.allocations

    def taps(self, told: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `told` before and after each request and each write to the journal."""
        return telling(told, self.tap, self.journal)


# A reshape there, back and undone, as tests cut it off


OWN = uuid_of("own")
ON_HOST = {"a": {HOST: {"VGPU": 1}}, OWN: {HOST: {"VGPU": 2, "VCPU": 1}}}
ON_CARDS = {"a": {"gpu1": {"VGPU": 1}}, OWN: {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}}
THERE = to_gpus(gpu1={"a": 1})


def prepare(world: World, operation: str) -> None:
    """A consumer of a scheduler's and one of the agent's own hold VGPU on the root, or on cards already."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.tracker.claim(request(OWN, VGPU=2, VCPU=1))
    if operation != "there":
        does(world, "there")


def does(world: World, operation: str) -> None:
    """The operation ("there", "back", "undo"), or what is left to do of it."""
    report = world.see(*FLAT, moves=BACK) if operation == "back" else world.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    receipts = world.journal.reshapes(done=True)
    if operation == "undo" and len(receipts) == 1:
        world.ask(*receipts)


def all_or_nothing(world: World) -> None:
    """The consumers are where they were, or where the operation leads them."""
    assert {who: world.placed(who) for who in ("a", OWN)} in (ON_HOST, ON_CARDS)


def done_once(world: World, operation: str) -> None:
    """Placement, memory and the journal have the operation, once, and nothing is left to do."""
    there = operation == "there"
    assert {who: world.placed(who) for who in ("a", OWN)} == (ON_CARDS if there else ON_HOST)
    assert set(world.totals()) == ({HOST} if operation == "back" else {HOST, "gpu0", "gpu1"})
    assert sum(each.get("VGPU", 0) for each in world.totals().values()) == 8
    assert all(each.reserved == 0 for p in world.tree() for each in p.inventories.values())
    assert not world.journal.reshapes(done=False) and world.journal.reserved_slots() == []
    assert len(world.journal.reshapes(done=True)) == (1 if there else 2)
    world.check()
    calls = len(world.tap.calls)
    assert world.again().operations == 0
    assert not any(call.startswith(("P", "D")) for call in world.tap.calls[calls:]), "a replay is nothing"
