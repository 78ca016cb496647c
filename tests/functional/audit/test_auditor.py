"""The audit against real placements: each finding seeded, found, healed, gone; nothing false in between."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import CARD, CARDS, HOST, UNITS, Kit, request, uuid_of

from agent.audit.auditor import Auditor, AuditReport
from agent.audit.finding import FindingKind
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import PlacementUnavailable, Refused
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations, PlacementClient

DEVICES = {uuid_of(each.name): each.name for each in (*HOST, CARD)}


class Audited:
    """A kit with an auditor over it, and the guests that its driver sees."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.guests: tuple[Guest, ...] = ()
        self.auditor = Auditor(
            kit.tracker,
            PlacementClient(kit.tap),
            uuid_of("host"),
            lambda: self.guests,
            lambda: DEVICES,
        )

    def anew(self) -> Audited:
        """After a restart, with the same guests."""
        audited = Audited(self.kit)
        audited.guests = self.guests
        return audited

    def kinds(self) -> list[tuple[FindingKind, str]]:
        return [(each.kind, each.subject) for each in self.auditor.audit().findings]

    def heal(self, *, everything: bool = False) -> AuditReport:
        return self.auditor.audit(heal_own=True, heal_all=everything)


@pytest.fixture
def audited(tmp_path: Path, placement: Placement) -> Iterator[Audited]:
    with Kit(tmp_path, placement=placement) as kit:
        yield Audited(kit)


def running(uuid: str, *units: UsedUnit, **resources: int) -> Guest:
    return Guest(uuid, "guest", GuestState.RUNNING, resources, units)


def test_a_healthy_host_has_no_findings_and_reads_a_few_consumers_in_turn(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.audit.auditor.IN_TURN", 2)
    for _ in range(3):
        audited.kit.tracker.claim(request(VCPU=1, PCPU=1, VGPU=1, MEMORY_MB=64))
    consumer = str(uuid4())
    audited.kit.schedule(consumer, host={"VCPU": 1})
    audited.guests = (running(consumer, VCPU=1),)
    read: list[str] = []
    for _ in range(2):
        audited.kit.tap.calls.clear()
        assert audited.auditor.audit(looks=1).findings == ()
        read += [call for call in audited.kit.tap.calls if call.startswith("GET /allocations/")]
        assert not [call for call in audited.kit.tap.calls if not call.startswith("GET ")]
    assert len(read) == len(set(read)) == 4


def test_a_leaked_claim_is_dropped_by_itself(audited: Audited) -> None:
    """Scenario 112: deleted while the agent was away."""
    held = audited.kit.tracker.claim(request(VCPU=1, PCPU=1)).claim
    audited.kit.raw.delete_allocations(held.consumer)
    assert audited.auditor.audit(heal_own=True, looks=1).healed == frozenset()  # seen once only
    assert audited.kinds() == [(FindingKind.LEAKED_CLAIM, held.consumer)]
    assert audited.heal().healed == {0}
    assert audited.kit.tracker.claims() == {}
    assert audited.kinds() == []


def test_what_others_may_own_is_only_healed_when_told(audited: Audited) -> None:
    consumer = str(uuid4())
    audited.kit.schedule(consumer, gpu1={"VGPU": 1}, host={"VCPU": 1})
    assert audited.kinds() == [(FindingKind.ORPHANED_ALLOCATION, consumer)]
    report = audited.heal()
    assert report.healed == frozenset() and audited.kit.placed(consumer)
    assert audited.heal(everything=True).healed == {0}
    assert not audited.kit.placed(consumer)
    assert audited.kinds() == []


def test_a_guest_without_allocation_is_claimed_where_its_devices_are(audited: Audited) -> None:
    """Scenario 109."""
    consumer = str(uuid4())
    units = (UsedUnit("VGPU", "mdev", "gpu1"), UsedUnit("PCPU", "6", "host"))
    vf = UsedUnit("SRIOV_NET_VF", UNITS[uuid_of("nic0")]["SRIOV_NET_VF"][1], "nic0")
    resources = {"VGPU": 1, "PCPU": 1, "SRIOV_NET_VF": 1, "MEMORY_MB": 128}
    audited.guests = (running(consumer, *units, vf, **resources),)
    audited.kit.tracker.saw(audited.guests)
    assert audited.kinds() == [(FindingKind.UNCLAIMED_INSTANCE, consumer)]
    assert audited.heal().healed == frozenset()
    report = audited.heal(everything=True)
    assert report.healed == {0}, report.failed
    assert audited.kit.placed(consumer) == {
        "gpu1": {"VGPU": 1},
        "nic0": {"SRIOV_NET_VF": 1},
        "host": {"PCPU": 1, "MEMORY_MB": 128},
    }
    claim = audited.kit.tracker.get(consumer)
    assert claim is not None and claim.units[uuid_of("host")]["PCPU"] == ("6",)
    assert claim.units[uuid_of("nic0")]["SRIOV_NET_VF"] == (vf.unit,)
    assert audited.kinds() == []
    audited.kit.check()


def test_a_claim_whose_record_was_lost_is_recorded_anew(audited: Audited) -> None:
    """What somebody else placed needs no claim; what this agent placed had one."""
    held = audited.kit.tracker.claim(request(PCPU=2, VGPU=1)).claim
    others = str(uuid4())
    audited.kit.schedule(others, host={"VCPU": 1})
    unit = UsedUnit("PCPU", held.units[uuid_of("host")]["PCPU"][0], "host")
    audited.guests = (running(held.consumer, unit, PCPU=2, VGPU=1), running(others, VCPU=1))
    audited.kit.restart()
    with sqlite3.connect(audited.kit.directory / "agent.db") as journal:
        journal.execute("DELETE FROM claims")
    journal.close()
    audited.kit.restart()
    audited.kit.tracker.saw(audited.guests)
    audited.kit.refresh()
    audited.kit.tracker.open()
    audited = audited.anew()
    assert audited.kinds() == [(FindingKind.UNCLAIMED_INSTANCE, held.consumer)]
    assert audited.heal().healed == {0}
    again = audited.kit.tracker.get(held.consumer)
    assert again is not None and again.allocations == held.allocations
    assert unit.unit in again.units[uuid_of("host")]["PCPU"]
    assert audited.kinds() == []


def test_a_dry_run_writes_nothing(audited: Audited) -> None:
    """Scenario 113."""
    audited.kit.schedule(str(uuid4()), host={"MEMORY_MB": 64})
    held = audited.kit.tracker.claim(request(VCPU=1)).claim
    audited.kit.raw.delete_allocations(held.consumer)
    before = audited.kit.state()
    assert len(audited.auditor.audit().findings) == 2
    assert audited.kit.state() == before


def test_a_guest_that_could_not_be_read_is_not_compared(audited: Audited) -> None:
    """Scenario 110."""
    consumer = str(uuid4())
    audited.guests = (replace(running(consumer, VCPU=1), problem="its definition is odd"),)
    assert audited.kinds() == []


def test_an_allocation_that_was_changed_is_brought_back_when_told(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(VCPU=2, VGPU=1)).claim
    audited.guests = (running(held.consumer, VCPU=2, VGPU=1),)
    before = audited.kit.placed(held.consumer)
    audited.kit.schedule(held.consumer, host={"VCPU": 1}, **{_gpu(before): {"VGPU": 1}})
    assert audited.kinds() == [(FindingKind.AMOUNTS_DIFFER, held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before
    other = "gpu1" if _gpu(before) == "gpu0" else "gpu0"
    audited.kit.schedule(held.consumer, host={"VCPU": 2}, **{other: {"VGPU": 1}})
    assert audited.kinds() == [(FindingKind.WRONG_PROVIDER, held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before
    audited.kit.raw.delete_allocations(held.consumer)
    assert audited.kinds() == [(FindingKind.AMOUNTS_DIFFER, held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before and audited.kinds() == []


def _gpu(placed: dict[str, dict[str, int]]) -> str:
    return next(name for name in placed if name.startswith("gpu"))


def test_an_ended_move_that_left_something_is_ours_and_an_unknown_one_is_not(audited: Audited) -> None:
    """Scenario 62: the migration's own uuid decides, not that there once was another one."""
    tracker = audited.kit.tracker
    held = tracker.claim(request(VCPU=2, VGPU=1)).claim
    audited.guests = (running(held.consumer, VCPU=2, VGPU=1),)
    tracker.saw(audited.guests)
    migration, unknown = str(uuid4()), str(uuid4())
    bigger = replace(
        held.request, groups=(replace(held.request.groups[0], resources={"VCPU": 3, "VGPU": 1}),)
    )
    move = tracker.move(bigger, MoveKind.SAME_HOST_RESIZE, migration).move
    assert audited.kinds() == []  # under way
    tracker.mover.confirm(migration)
    assert audited.kinds() == []
    raw = audited.kit.raw
    raw.write_allocations(ConsumerAllocations(migration, move.handed, None, consumer_type="MIGRATION"))
    raw.write_allocations(
        ConsumerAllocations(unknown, {uuid_of("host"): {"VCPU": 1}}, None, consumer_type="MIGRATION")
    )
    kinds = {(FindingKind.STALE_MIGRATION, each) for each in (migration, unknown)}
    assert set(audited.kinds()) == kinds
    audited.heal()
    assert audited.kinds() == [(FindingKind.STALE_MIGRATION, unknown)]


def test_an_inventory_that_shrank_is_told_with_its_holders(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(SRIOV_NET_VF=2)).claim
    nic = audited.kit.raw.read_tree(uuid_of("host")).get(uuid_of("nic0"))
    assert nic is not None and nic.generation is not None
    smaller = {"SRIOV_NET_VF": replace(nic.inventories["SRIOV_NET_VF"], total=1, max_unit=1)}
    audited.kit.raw.put_inventories(nic.uuid, nic.generation, smaller)
    (finding,) = audited.auditor.audit().findings
    assert finding.kind is FindingKind.SHRUNK_INVENTORY
    assert finding.evidence["consumers"] == {held.consumer: 2} and not finding.repair


def test_an_unknown_device_is_told(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    unit = UsedUnit("SRIOV_NET_VF", "0000:99:00.1", "nic9")
    audited.guests = (running(held.consumer, unit, SRIOV_NET_VF=1),)
    assert audited.kinds() == [(FindingKind.UNKNOWN_DEVICE, "0000:99:00.1")]


CUSTOM = "CUSTOM_PCI_10DE_1EB8"


@pytest.fixture
def carded(tmp_path: Path, placement: Placement) -> Iterator[Audited]:
    """A host with devices of a custom class on a provider of their own."""
    with Kit(tmp_path, (*HOST, CARD), placement) as kit:
        yield Audited(kit)


def test_a_guest_with_a_device_of_a_custom_class_is_claimed_with_that_very_device(carded: Audited) -> None:
    """Scenario 109: real providers, also where the class is the operator's own."""
    consumer = str(uuid4())
    carded.guests = (running(consumer, UsedUnit(CUSTOM, CARDS[1], "card0"), VCPU=2, **{CUSTOM: 1}),)
    carded.kit.tracker.saw(carded.guests)
    assert carded.kinds() == [(FindingKind.UNCLAIMED_INSTANCE, consumer)]
    assert carded.heal(everything=True).healed == {0}
    assert carded.kit.placed(consumer) == {"host": {"VCPU": 2}, "card0": {CUSTOM: 1}}
    claim = carded.kit.tracker.get(consumer)
    assert claim is not None and claim.units[CARD.uuid][CUSTOM] == (CARDS[1],)
    assert carded.kinds() == []
    carded.kit.check()


def test_what_differs_in_a_custom_class_is_found_and_healed(carded: Audited) -> None:
    held = carded.kit.tracker.claim(request(VCPU=1, **{CUSTOM: 2})).claim
    carded.guests = (running(held.consumer, VCPU=1),)
    before = carded.kit.placed(held.consumer)
    for placed, kind in (
        ({"host": {"VCPU": 1}, "card0": {CUSTOM: 1}}, FindingKind.AMOUNTS_DIFFER),
        ({"host": {"VCPU": 1}}, FindingKind.WRONG_PROVIDER),
    ):
        carded.kit.schedule(held.consumer, **placed)
        assert carded.kinds() == [(kind, held.consumer)]
        assert carded.heal().healed == frozenset()
        assert carded.heal(everything=True).healed == {0}
        assert carded.kit.placed(held.consumer) == before
    orphan = str(uuid4())
    carded.kit.tracker.release(held.consumer)
    carded.guests = ()
    carded.kit.schedule(orphan, card0={CUSTOM: 1})
    assert carded.kinds() == [(FindingKind.ORPHANED_ALLOCATION, orphan)]
    assert carded.heal(everything=True).healed == {0}
    assert carded.kit.placed_all() == {}


@pytest.mark.parametrize("there", [False, True], ids=["no guest", "guest there"])
def test_a_claim_of_which_nobody_heard_is_finished_or_undone(audited: Audited, there: bool) -> None:
    """Scenario 38: stuck between placement's claim and ours."""
    asked = request(VCPU=2, VGPU=1)
    with audited.kit.away(after=True), suppress(PlacementUnavailable):
        audited.kit.tracker.claim(asked)
    audited.guests = (running(asked.consumer, VCPU=2, VGPU=1),) if there else ()
    audited.kit.tracker.saw(audited.guests)
    assert audited.kinds() == [(FindingKind.STUCK_CONSUMER, asked.consumer)]
    assert audited.heal().healed == {0}
    claim = audited.kit.tracker.get(asked.consumer)
    assert (claim is not None) is there is bool(audited.kit.placed(asked.consumer))
    assert audited.kinds() == [] and audited.kit.tracker.pending == 0
    audited.kit.check()


def test_a_release_that_was_not_delivered_is_delivered(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(VCPU=2)).claim
    with audited.kit.away():
        assert not audited.kit.tracker.release(held.consumer)
    assert audited.kinds() == [(FindingKind.STUCK_CONSUMER, held.consumer)]
    assert audited.heal().healed == {0}
    assert audited.kit.placed_all() == {} and audited.kinds() == []


def test_a_repair_that_placement_refuses_is_told_and_tried_again(audited: Audited) -> None:
    """A stuck release while placement is away for writes: reported with the reason, not as healed."""
    held = audited.kit.tracker.claim(request(VCPU=2)).claim
    with audited.kit.away(only="PUT"):
        audited.kit.tracker.release(held.consumer)
        assert audited.kinds() == [(FindingKind.STUCK_CONSUMER, held.consumer)]
        report = audited.heal()
        assert report.healed == frozenset() and report.failed is not None
        assert "not done yet" in report.failed[0]
    assert audited.heal().healed == {0}


def test_audits_in_a_loop_find_nothing_false_while_claims_and_moves_come_and_go(audited: Audited) -> None:
    """Scenarios 37 and 52."""
    found: list[object] = []
    stop = threading.Event()

    def auditing() -> None:
        while not stop.is_set():
            found.extend(audited.auditor.audit(heal_own=True, looks=1).findings)

    def claiming() -> None:
        for _ in range(25):
            try:
                held = audited.kit.tracker.claim(request(VCPU=1, VGPU=1))
            except Refused:
                continue
            audited.kit.tracker.claim(held.claim.request)
            audited.kit.tracker.release(held.claim.consumer)

    def resizing() -> None:
        for _ in range(8):
            held = audited.kit.tracker.claim(request(MEMORY_MB=16)).claim
            for end in (audited.kit.tracker.mover.revert, audited.kit.tracker.mover.confirm):
                migration = str(uuid4())
                bigger = request(held.consumer, MEMORY_MB=32)
                audited.kit.tracker.move(bigger, MoveKind.SAME_HOST_RESIZE, migration)
                end(migration)
            audited.kit.tracker.release(held.consumer)

    with ThreadPoolExecutor(4) as pool:
        auditor = pool.submit(auditing)
        clients = [pool.submit(each) for each in (claiming, claiming, resizing)]
        try:
            for client in clients:
                client.result()
        finally:
            stop.set()
        auditor.result()
    assert found == []
    kept = audited.kit.tracker.claim(request(VCPU=1)).claim
    assert audited.kinds() == [] and audited.kit.tracker.get(kept.consumer) == kept
    audited.kit.check()
