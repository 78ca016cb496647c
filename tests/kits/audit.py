"""What the audit judges, as values, and an auditor over a host on a real placement."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from agent.audit.auditor import Auditor, AuditReader, AuditReport
from agent.audit.cases import ConsumerCase, FindingKind, MoveCase, RowCase
from agent.audit.finding import Finding
from agent.audit.observation import Observation
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.driver import Guest, GuestState, UsedUnit
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.shapes import Allocations
from agent.tree import ProviderTree
from kits.tracker import CARD, HOST, POOL, UNITS, Kit, request, uuid_of

HOST_INDEX = ProviderIndex.of(ProviderTree([*HOST, POOL]), uuid_of("host"))
DEVICES = {each.name: each.uuid for each in (*HOST, CARD)}
CONSUMER = str(UUID(int=1))
MIGRATION = str(UUID(int=99))
ELSEWHERE = uuid_of("elsewhere")


def claimed(*wanted: Mapping[str, int], state: ClaimState = ClaimState.CLAIMED) -> dict[str, Claim]:
    """{consumer: claim}, as many of these as fit, one after the other; the first is CONSUMER's."""
    book = Book()
    book.refresh(HOST_INDEX, {}, UNITS)
    for number, resources in enumerate(wanted, start=1):
        asked = request(str(UUID(int=number)), **resources)
        result = book.fit(asked)
        if result.fits:
            book.put(Claim(asked.consumer, state, asked, result.allocations, result.units))
    return dict(book.claims)


def running(uuid: str, *units: UsedUnit, **resources: int) -> Guest:
    """A guest that runs, with these units and amounts; see `in_state` for another one."""
    return Guest(uuid, "guest", GuestState.RUNNING, resources, units)


def in_state(state: GuestState, guest: Guest) -> Guest:
    """The guest in another state, such as SHUTOFF."""
    return replace(guest, state=state)


def observe(
    claims: Mapping[str, Claim] | None = None,
    *,
    guests: Collection[Guest] = (),
    moves: Collection[Move] = (),
    placed: Mapping[str, Allocations] | None = None,
) -> Observation:
    """`placed` {consumer: allocations}, by default those of the claims."""
    claims = claims or {}
    if placed is None:
        placed = {consumer: claim.allocations for consumer, claim in claims.items()}
    holders: dict[str, dict[str, Mapping[str, int]]] = {}
    for consumer, allocations in placed.items():
        for uuid, amounts in allocations.items():
            if HOST_INDEX.is_own(uuid):
                holders.setdefault(uuid, {})[consumer] = amounts
    return Observation(
        host=HOST_INDEX,
        guests={guest.uuid: guest for guest in guests},
        claims=claims,
        moves=moves,
        holders=holders,
        devices=DEVICES,
        offered=UNITS,
    )


def consumer_case(
    observation: Observation,
    allocations: Allocations,
    consumer: str = CONSUMER,
    *,
    owner: tuple[str, str] = ("plimsoll", "plimsoll"),
    consumer_type: str = "INSTANCE",
) -> ConsumerCase:
    """The case of a consumer that has these allocations in Placement."""
    generation = 1 if allocations else None
    return ConsumerCase.of(
        observation, ConsumerAllocations(consumer, allocations, generation, *owner, consumer_type)
    )


def row_findings(kind: FindingKind, observation: Observation) -> list[Finding]:
    """What the kind reports about all rows."""
    return [finding for case in RowCase.all_of(observation) for finding in kind.judge_row(case)]


def a_move(state: MoveState, role: MoveRole = MoveRole.SOURCE, *, adopted: bool = False) -> Move:
    """A move of CONSUMER, which had 2 VCPU on this host."""
    (old,) = claimed({"VCPU": 2}).values()
    kind = MoveKind.COLD_MIGRATE
    return Move(MIGRATION, CONSUMER, kind, role, state, old, None, old.allocations, 0.0, adopted=adopted)


def move_case(
    move: Move, *, instance: Allocations, migration: Allocations, guests: Collection[Guest] = ()
) -> MoveCase:
    """The case of a move whose two consumers have these allocations."""
    return MoveCase(
        observe(guests=guests, moves=(move,)),
        move,
        ConsumerAllocations(move.instance, instance, 1),
        ConsumerAllocations(move.migration, migration, 1),
    )


class Audited:
    """A kit with an auditor over it, and the guests that its driver sees."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.guests: tuple[Guest, ...] = ()
        devices = {uuid: device for device, uuid in DEVICES.items()}
        client, root = PlacementClient(kit.tap), uuid_of("host")
        self.auditor = Auditor(AuditReader(kit.tracker, client, root, lambda: self.guests, lambda: devices))

    def anew(self) -> Audited:
        """After a restart, with the same guests."""
        audited = Audited(self.kit)
        audited.guests = self.guests
        return audited

    def kinds(self) -> list[tuple[str, str]]:
        return [(each.kind, each.subject) for each in self.auditor.audit().findings]

    def heal(self, *, everything: bool = False) -> AuditReport:
        return self.auditor.audit(heal_own=True, heal_all=everything)
