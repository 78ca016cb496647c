"""The audit against real placements: each finding seeded, found, healed, gone; nothing false in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.audit import Audited, running
from kits.placements import Placement
from kits.tracker import Kit, request, uuid_of

from agent.driver import UsedUnit
from agent.errors import Refused
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations


@pytest.fixture
def audited(tmp_path: Path, placement: Placement) -> Iterator[Audited]:
    with Kit(tmp_path, placement=placement) as kit:
        yield Audited(kit)


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
        assert audited.auditor.audit(readings=1).findings == ()
        read += [call for call in audited.kit.tap.calls if call.startswith("GET /allocations/")]
        assert not [call for call in audited.kit.tap.calls if not call.startswith("GET ")]
    assert len(read) == len(set(read)) == 4


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


def test_an_ended_move_that_left_something_is_ours_and_an_unknown_one_is_not(audited: Audited) -> None:
    """Scenario 62: the migration's own uuid decides, not that there once was another one."""
    tracker = audited.kit.tracker
    held = tracker.claim(request(VCPU=2, VGPU=1)).claim
    audited.guests = (running(held.consumer, VCPU=2, VGPU=1),)
    tracker.see_guests(audited.guests)
    migration, unknown = str(uuid4()), str(uuid4())
    bigger = replace(
        held.request, groups=(replace(held.request.groups[0], resources={"VCPU": 3, "VGPU": 1}),)
    )
    move = tracker.begin_move(bigger, MoveKind.SAME_HOST_RESIZE, migration).move
    assert audited.kinds() == []  # under way
    tracker.confirm_move(migration)
    audited.guests = (running(held.consumer, VCPU=3, VGPU=1),)
    assert audited.kinds() == []
    raw = audited.kit.raw
    raw.write_allocations(ConsumerAllocations(migration, move.handed, None, consumer_type="MIGRATION"))
    raw.write_allocations(
        ConsumerAllocations(unknown, {uuid_of("host"): {"VCPU": 1}}, None, consumer_type="MIGRATION")
    )
    kinds = {("stale migration", each) for each in (migration, unknown)}
    assert set(audited.kinds()) == kinds
    audited.heal()
    assert audited.kinds() == [("stale migration", unknown)]


def test_an_inventory_that_shrank_is_told_with_its_holders(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(SRIOV_NET_VF=2)).claim
    nic = audited.kit.raw.read_tree(uuid_of("host")).get(uuid_of("nic0"))
    assert nic is not None and nic.generation is not None
    smaller = {"SRIOV_NET_VF": replace(nic.inventories["SRIOV_NET_VF"], total=1, max_unit=1)}
    audited.kit.raw.put_inventories(nic.uuid, nic.generation, smaller)
    (finding,) = audited.auditor.audit().findings
    assert finding.kind == "shrunk inventory"
    assert finding.evidence["consumers"] == {held.consumer: 2} and not finding.repair


def test_an_unknown_device_is_told(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    unit = UsedUnit("SRIOV_NET_VF", "0000:99:00.1", "nic9")
    audited.guests = (running(held.consumer, unit, SRIOV_NET_VF=1),)
    assert audited.kinds() == [("another unit", held.consumer), ("unknown device", "0000:99:00.1")]


def test_every_difference_is_listed_beside_every_other(audited: Audited) -> None:
    """Placement was restored from an older backup: a claim is lost, a deleted instance is back."""
    tracker = audited.kit.tracker
    lost = tracker.claim(request(VCPU=2)).claim
    running_one = tracker.claim(request(VCPU=1, MEMORY_MB=64)).claim
    audited.guests = (running(running_one.consumer, VCPU=1, MEMORY_MB=64),)
    for claim in (lost, running_one):
        audited.kit.raw.delete_allocations(claim.consumer)
    back = [str(uuid4()) for _ in range(2)]
    audited.kit.schedule(back[0], host={"VCPU": 2})
    audited.kit.schedule(back[1], gpu0={"VGPU": 1})
    assert set(audited.kinds()) == {
        ("leaked claim", lost.consumer),
        ("amounts differ", running_one.consumer),
        *(("orphaned allocation", consumer) for consumer in back),
    }
    assert audited.heal(everything=True).healed == {0, 1, 2, 3}
    assert audited.kinds() == []
    audited.kit.check()


@pytest.mark.parametrize(
    ("then", "uses"),
    [({"VCPU": 4}, {"VCPU": 4}), ({"VCPU": 1, "MEMORY_MB": 64}, {"VCPU": 1, "MEMORY_MB": 64})],
    ids=["more", "less and more"],
)
def test_a_claim_older_than_its_guest_and_placement_follows_them(
    audited: Audited, then: dict[str, int], uses: dict[str, int]
) -> None:
    """A restored journal: the instance was resized since."""
    held = audited.kit.tracker.claim(request(VCPU=2, SRIOV_NET_VF=1)).claim
    ((nic, _, unit),) = held.exact
    vf = UsedUnit("SRIOV_NET_VF", unit, "nic0")
    audited.guests = (running(held.consumer, vf, SRIOV_NET_VF=1, **uses),)
    audited.kit.schedule(held.consumer, host=then, nic0={"SRIOV_NET_VF": 1})
    before = audited.kit.raw.allocations_of(held.consumer).allocations
    assert ("amounts differ", held.consumer) in audited.kinds()
    report = audited.heal(everything=True)
    assert report.left == () and not report.failed
    assert audited.kit.raw.allocations_of(held.consumer).allocations == before, (
        "the past is not written again"
    )
    now = audited.kit.tracker.claim_of(held.consumer)
    assert now is not None and now.allocations == before and list(now.exact) == [(nic, "SRIOV_NET_VF", unit)]
    assert audited.kinds() == []
    audited.kit.check()


def test_old_claims_whose_guests_have_each_others_units_follow_them_together(audited: Audited) -> None:
    """A restored journal: both were released, and claimed anew in another order."""
    one, two = (audited.kit.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1)).claim for _ in range(2))
    units = {claim.consumer: [*claim.exact] for claim in (one, two)}
    exchanged = {one.consumer: units[two.consumer], two.consumer: units[one.consumer]}
    audited.guests = tuple(
        running(consumer, *(UsedUnit(name, unit, "nic0") for _, name, unit in exact), VCPU=1, SRIOV_NET_VF=1)
        for consumer, exact in exchanged.items()
    )
    assert {kind for kind, _ in audited.kinds()} == {"another unit", "shared unit"}
    report = audited.heal(everything=True)
    assert report.left == () and not report.failed
    assert {who: [*claim.exact] for who, claim in audited.kit.tracker.claims().items()} == exchanged
    assert audited.kinds() == []
    audited.kit.check()


def test_a_claim_does_not_follow_its_guest_to_a_unit_of_another_that_stays(audited: Audited) -> None:
    """The other one has no guest, so nothing tells that its record is old."""
    one, two = (audited.kit.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1)).claim for _ in range(2))
    units = (UsedUnit(name, unit, "nic0") for _, name, unit in two.exact)
    audited.guests = (running(one.consumer, *units, VCPU=1, SRIOV_NET_VF=1),)
    report = audited.heal(everything=True)
    assert report.healed == frozenset() and two.consumer in str(report.failed)
    assert audited.kit.tracker.claim_of(one.consumer) == one


def test_what_the_repairs_of_others_put_right_counts_as_healed(audited: Audited) -> None:
    """A restored journal has a claim of a unit that another instance has by now."""
    former = audited.kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    ((_, _, unit),) = former.exact
    audited.kit.raw.delete_allocations(former.consumer)
    audited.guests = (running(str(uuid4()), UsedUnit("SRIOV_NET_VF", unit, "nic0"), SRIOV_NET_VF=1, VCPU=1),)
    assert ("shared unit", unit) in audited.kinds()
    report = audited.heal(everything=True)
    healed = {report.findings[index].kind for index in report.healed}
    assert {"leaked claim", "shared unit"} <= healed
    assert "shared unit" not in {finding.kind for finding in report.left}


def test_what_one_guest_differs_in_is_listed_in_full(audited: Audited) -> None:
    """It lost a function, it grew, and somebody changed its allocation."""
    held = audited.kit.tracker.claim(request(VCPU=2, SRIOV_NET_VF=1)).claim
    audited.guests = (running(held.consumer, VCPU=4),)
    audited.kit.schedule(held.consumer, host={"VCPU": 1}, nic0={"SRIOV_NET_VF": 1})
    assert {kind for kind, _ in audited.kinds()} == {"uses more", "uses less", "amounts differ"}


def test_audits_in_a_loop_find_nothing_false_while_claims_and_moves_come_and_go(audited: Audited) -> None:
    """Scenarios 37 and 52."""
    found: list[object] = []
    stop = threading.Event()

    def auditing() -> None:
        while not stop.is_set():
            found.extend(audited.auditor.audit(heal_own=True, readings=1).findings)

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
            for end in (audited.kit.tracker.revert_move, audited.kit.tracker.confirm_move):
                migration = str(uuid4())
                bigger = request(held.consumer, MEMORY_MB=32)
                audited.kit.tracker.begin_move(bigger, MoveKind.SAME_HOST_RESIZE, migration)
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
    assert audited.kinds() == [] and audited.kit.tracker.claim_of(kept.consumer) == kept
    audited.kit.check()
