"""Two hosts on one placement with a shared storage pool, a tracker over each, and taps on all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from agent.audit.auditor import Auditor, AuditReader
from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.moves.states import Move, MoveState
from agent.placement.client import DEFAULT_MICROVERSION, PlacementClient
from agent.placement.transport import Transport
from agent.reconcile.placement_memory import SharingProvidersCache
from agent.shapes import Units
from agent.tracker.tracker import ResourceTracker
from agent.tree import Provider, ProviderTree
from kits.placements import Placement, usual_placement
from kits.restarted import Closing, Outside, Restarting
from kits.tracker import SHARING, TappedJournal, check_units, provider, uuid_of
from kits.wire import Wire, telling

POOL = provider("pool", traits=(SHARING,), rack=True, DISK_GB=1000)


def host(name: str) -> tuple[Provider, ...]:
    return (
        provider(name, rack=True, VCPU=16, PCPU=4, MEMORY_MB=8192, DISK_GB=100),
        provider(f"{name}-nic", name, SRIOV_NET_VF=2),
    )


A, B = host("a"), host("b")
PROVIDERS = (*A, *B, POOL)
NEW_CARD = provider("a-new", "a", SRIOV_NET_VF=2)
"""Where `World.reshape_card` puts what is on the card of the host "a"."""
INSTANCE, MIGRATION = uuid_of("the instance"), uuid_of("the migration")
OTHER, OTHER_MIGRATION = uuid_of("the other instance"), uuid_of("the other migration")


def asks(consumer: str = INSTANCE, **resources: int) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup("", resources),), name=f"vm-{consumer[:4]}")


SMALL = {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 200, "SRIOV_NET_VF": 1}
"""Its disk fits into the pool only."""
ON_A = {"a": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024}, "a-nic": {"SRIOV_NET_VF": 1}}
ON_B = {"b": {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024}, "b-nic": {"SRIOV_NET_VF": 1}}
DISK = {"pool": {"DISK_GB": 200}}
"""SMALL on the host "a" or "b", and its disk"""


def units_of(name: str) -> Units:
    return {
        uuid_of(name): {"PCPU": tuple(f"{name}{number}" for number in range(4))},
        uuid_of(f"{name}-nic"): {"SRIOV_NET_VF": (f"{name}:vf0", f"{name}:vf1")},
    }


def devices_of(name: str) -> Mapping[str, str]:
    return {each.uuid: each.name for each in host(name)}


class Agent(Restarting):
    """One host's tracker over its journal; it may be restarted. `later_s` puts its clocks forward.

    `guests` are what its driver sees, `uses` {guest: {class: amount}} what they use, as far as it sees that.
    """

    def __init__(
        self, name: str, directory: Path, transport: Transport, microversion: str = DEFAULT_MICROVERSION
    ) -> None:
        self.name = name
        self._microversion = microversion
        self.directory = directory
        self._transport = transport
        self.guests: set[str] = set()
        self.later_s = 0.0
        self.uses: dict[str, Mapping[str, int]] = {}
        self.tracker: ResourceTracker
        self._known = ProviderTree()
        self._sharing = SharingProvidersCache(PlacementClient(transport))
        self._open()
        self.journal.remember_host(uuid_of(name))
        self.refresh()
        self.tracker.admission.open()

    def _open(self) -> None:
        self.raw = PlacementClient(self._transport)
        self.tap = Wire(self._transport)
        self.journal = TappedJournal.open(self.directory)
        client = PlacementClient(self.tap, microversion=self._microversion)
        self.tracker = ResourceTracker(
            self.journal,
            client,
            clock=lambda: time.time() + self.later_s,
            monotonic=lambda: time.monotonic() + self.later_s,
            turn_wait_s=10.0,
        )
        reads = self.tracker, client, uuid_of(self.name), self.running, lambda: devices_of(self.name)
        self.auditor = Auditor(AuditReader(*reads))

    def running(self) -> tuple[Guest, ...]:
        return tuple(
            Guest(uuid, "guest", GuestState.RUNNING, self.uses.get(uuid, {})) for uuid in sorted(self.guests)
        )

    def close(self) -> None:
        self.journal.close()

    def restart(self) -> None:
        """Then it has seen its host once."""
        super().restart()
        self.refresh()

    def refresh(self) -> None:
        """A verification: the tracker learns what placement holds here."""
        own = self.raw.read_tree(uuid_of(self.name), self._known)
        self._known = self._sharing.add_to(own, reread=True)
        held = {each.uuid: self.raw.provider_allocations(each.uuid).consumers for each in self._known}
        self.tracker.refresh(self._known, held, units_of(self.name))

    def see(self, *guests: str) -> None:
        self.guests = set(guests)
        self.tracker.see_guests(self.running())

    def look(self) -> None:
        """What the agent does by itself from time to time."""
        self.see(*self.guests)
        self.tracker.deliver()
        self.refresh()
        self.tracker.follow_moves()

    def come_back(self) -> None:
        """After `restart`: finish or undo what was interrupted."""
        self.tracker.recover(self.running())
        self.refresh()
        self.tracker.follow_moves()
        self.tracker.admission.open()

    def move(self, migration: str = MIGRATION) -> Move | None:
        return self.tracker.moves().get(migration)

    def moving(self) -> MoveState | None:
        move = self.move()
        return move.state if move else None


class World(Closing, Outside):
    """Agents "a" and "b", and what somebody else sees and does; what is in the directory is taken up.

    `microversion` is what the agents speak: below 1.38 no consumer that they write has a type.
    """

    owner = ("plimsoll", "plimsoll")

    def __init__(
        self,
        directory: Path,
        placement: Placement | None = None,
        microversion: str = DEFAULT_MICROVERSION,
    ) -> None:
        self.placement = placement.anew(directory) if placement else usual_placement(directory)
        self._transport = self.placement.transport()
        self.raw = PlacementClient(self._transport)
        self._providers = {each.uuid: each for each in PROVIDERS}
        if self.raw.find_provider(name="pool") is None:
            for each in PROVIDERS:
                self.create(each)
        elif self.raw.find_provider(uuid=NEW_CARD.uuid) is not None:
            self._providers[NEW_CARD.uuid] = NEW_CARD
        self.a, self.b = (
            Agent(name, _made(directory / name), self._transport, microversion) for name in ("a", "b")
        )

    def seen(self) -> Iterable[Provider]:
        return self._providers.values()

    def uuid(self, name: str) -> str:
        return uuid_of(name)

    def create(self, wanted: Provider) -> None:
        super().create(wanted)
        self._providers[wanted.uuid] = wanted

    def close(self) -> None:
        for agent in (self.a, self.b):
            agent.close()
        self._transport.close()

    @property
    def agents(self) -> tuple[Agent, Agent]:
        return self.a, self.b

    def settle(self) -> None:
        """Each agent looks twice: once for itself, once for what the other one did."""
        for _ in range(2):
            for agent in self.agents:
                agent.look()

    def reshape_card(self, consumer: str) -> None:
        """What the consumer holds on a's card is on another provider of a now, as a reshape there does it."""
        if self.raw.find_provider(uuid=NEW_CARD.uuid) is None:
            self.create(NEW_CARD)
        held = self.raw.allocations_of(consumer)
        card = {uuid_of("a-nic"): NEW_CARD.uuid}
        moved = {card.get(uuid, uuid): amounts for uuid, amounts in held.allocations.items()}
        self.raw.write_allocations(replace(held, allocations=moved))

    def state(self) -> object:
        """All there is: in placement, and in each agent's memory and on its disk."""
        return (
            self.placed_all(),
            [(dict(each.tracker.claims()), dict(each.tracker.moves())) for each in self.agents],
            [(each.journal.claims(), each.journal.moves()) for each in self.agents],
        )

    def check(self) -> None:
        """Memory and disk agree; nothing is over-committed; every unit has at most one owner."""
        for each in PROVIDERS:
            usages = self.raw.provider_usages(each.uuid)
            for name, inventory in each.inventories.items():
                assert usages[name] <= inventory.capacity
        for agent in self.agents:
            claims = agent.tracker.claims()
            assert claims == agent.journal.claims()
            assert agent.tracker.moves() == agent.journal.moves()
            check_units(claims, units_of(agent.name))

    def check_settled(self) -> None:
        """Both sides and placement agree, too: each claim is held, and nobody else holds anything."""
        self.check()
        everything = self.placed_all()
        names = {each.uuid: each.name for each in self.seen()}
        for agent in self.agents:
            assert agent.tracker.pending == 0, agent.tracker.moves()
            mine = {each.name for each in (*host(agent.name),)}
            for consumer, claim in agent.tracker.claims().items():
                assert claim.state is ClaimState.CLAIMED
                wanted = {names[uuid]: dict(each) for uuid, each in claim.allocations.items()}
                assert everything[consumer] == wanted, (agent.name, consumer)
            for consumer, held in everything.items():
                if mine & held.keys():
                    assert consumer in agent.tracker.claims(), (agent.name, consumer, held)

    # Faults

    @contextmanager
    def away(self, *agents: Agent, after: bool = False, only: str = "") -> Iterator[None]:
        """Placement does not answer these agents; `after`: although it did what was asked."""
        with ExitStack() as stack:
            for agent in agents or self.agents:
                stack.enter_context(agent.tap.away(after=after, only=only, sent=True))
            yield

    def taps(self, agent: Agent, told: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `told` before and after each request and each journal write of the agent."""
        return telling(told, agent.tap, agent.journal)


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory
