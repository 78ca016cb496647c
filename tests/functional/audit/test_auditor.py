"""The audit against real placements: what it reads and leaves alone, and each finding seeded, found, healed
by the agent or on demand, gone; nothing false in between.
"""

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
from kits.audit import DEVICES, Audited, running
from kits.placements import Placement
from kits.tracker import CARD, CARDS, ELSEWHERE, HOST, UNITS, VFS, Kit, request, uuid_of

from agent.audit.auditor import Auditor, AuditReader
from agent.audit.findings.guests import AGENT_IDENTITY
from agent.driver import Guest, UsedUnit
from agent.errors import AnotherWriter, PlacementConflict, PlacementError, PlacementUnavailable, Refused
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tracker.guarded_write import HALF_DONE_S
from agent.tree import ProviderTree


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
    audited.kit.tap.calls.clear()
    monkeypatch.setattr("agent.audit.auditor.IN_TURN", 1)
    assert audited.auditor.audit().findings == ()
    assert set(read) <= set(audited.kit.tap.calls), "one that is asked for reads every consumer once"
    audited.kit.tap.calls.clear()
    audited.auditor.audit(readings=1, in_full=True)
    assert set(read) <= set(audited.kit.tap.calls)


def test_the_first_scheduled_audit_reads_twice_and_each_later_one_once(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readings have to agree, so that what is under way is no finding; each reads consumers in turn."""
    monkeypatch.setattr("agent.audit.auditor.IN_TURN", 1)
    for _ in range(4):
        audited.kit.tracker.claim(request(VCPU=1))
    readings = []
    for _ in range(3):
        calls = audited.kit.tap.calls
        calls.clear()
        audited.auditor.audit_on_schedule(heal_own=False)
        consumers = {call for call in calls if call.startswith("GET /allocations/")}
        readings.append((calls.count("GET /resource_providers"), len(consumers)))
    assert readings == [(2, 2), (1, 1), (1, 1)]


def test_what_another_client_released_is_free_once_the_audit_has_read_it(audited: Audited) -> None:
    """Its DELETE raises no generation, so a pass need not notice it."""
    consumer = str(uuid4())
    audited.kit.schedule(consumer, host={"VCPU": 10})
    audited.auditor.audit()
    audited.kit.raw.delete_allocations(consumer)
    assert not audited.kit.tracker.explain(request(VCPU=16)).fits
    audited.auditor.audit()
    assert audited.kit.tracker.explain(request(VCPU=16)).fits


def test_what_was_repaired_and_is_there_again_has_to_be_read_twice_as_anything_new(audited: Audited) -> None:
    consumer = audited.kit.tracker.claim(request(VCPU=1)).claim.consumer
    audited.guests = (running(consumer, VCPU=1),)
    audited.kit.raw.delete_allocations(consumer)
    audited.kit.tap.calls.clear()
    assert audited.heal(everything=True).healed
    assert audited.kit.tap.calls.count("GET /resource_providers") == 2, "nothing is left to be read for"
    audited.kit.raw.delete_allocations(consumer)
    assert audited.auditor.audit(readings=1).findings == ()
    assert [each.subject for each in audited.auditor.audit(readings=1).findings] == [consumer]


def test_nothing_is_compared_where_placement_lost_the_host_or_another_agent_writes(audited: Audited) -> None:
    def refuse(tree: ProviderTree) -> None:
        assert uuid_of("host") in tree
        raise AnotherWriter("Another agent writes as this host.")

    tracker, client = audited.kit.tracker, PlacementClient(audited.kit.tap)
    lost = Auditor(AuditReader(tracker, client, str(uuid4()), tuple, dict))
    assert lost.audit().findings == (), "a host that has no claims may be new"
    tracker.claim(request(VCPU=1))
    with pytest.raises(PlacementError, match=r"has no provider of this host .* database was lost"):
        lost.audit()
    contested = Auditor(AuditReader(tracker, client, uuid_of("host"), tuple, dict), check_writer=refuse)
    with pytest.raises(AnotherWriter):
        contested.audit()


@pytest.mark.counts_migrations
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


def test_a_migration_is_not_deleted_whose_guest_has_come_since_the_audit_looked(audited: Audited) -> None:
    """Its control plane took the move back, and starts the guest here before it ends the migration."""
    raw, consumer, migration = audited.kit.raw, str(uuid4()), str(uuid4())
    raw.create_provider(ELSEWHERE)
    raw.put_inventories(ELSEWHERE.uuid, 0, ELSEWHERE.inventories)
    audited.kit.schedule(consumer, elsewhere={"VCPU": 1})
    held = {uuid_of("host"): {"VCPU": 1}}
    raw.write_allocations(ConsumerAllocations(migration, held, None, "demo", "admin", "MIGRATION"))
    asked = f"GET /allocations/{migration}"
    assert audited.kinds() == [("stale migration", migration)]
    reads = audited.kit.tap.calls.count(asked)
    audited.kit.tap.calls.clear()

    def starts(call: str) -> None:
        if audited.kit.tap.calls.count(asked) > reads:
            audited.guests = (running(consumer, VCPU=1),)

    audited.kit.tap.before = starts
    report = audited.heal(everything=True)
    assert not report.healed and audited.guests
    assert raw.allocations_of(migration).allocations == held


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


@pytest.mark.counts_migrations
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


@pytest.mark.parametrize(("name", "device", "count"), [("SRIOV_NET_VF", "nic0", 2), ("PCPU", "host", 3)])
def test_old_claims_whose_guests_have_each_others_units_follow_them_together(
    audited: Audited, name: str, device: str, count: int
) -> None:
    """A restored journal: they were released, and claimed anew in another order."""
    claims = [audited.kit.tracker.claim(request(**{"VCPU": 1, name: 1})).claim for _ in range(count)]
    units = [[*claim.exact] for claim in claims]
    exchanged = {claim.consumer: units[number - 1] for number, claim in enumerate(claims)}
    audited.guests = tuple(
        running(consumer, *(UsedUnit(name, unit, device) for _, _, unit in exact), **{"VCPU": 1, name: 1})
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
    assert report.healed == frozenset() and not report.failed
    (told,) = (finding for finding in report.left if finding.kind == "another unit")
    assert not told.repair and f"while the claim of {two.consumer} has" in told.reason
    assert audited.kit.tracker.claim_of(one.consumer) == one


@pytest.mark.parametrize("own", [True, False], ids=["the agent's own", "all"])
def test_what_the_repairs_of_others_make_possible_is_repaired_or_counts_as_healed(
    audited: Audited, *, own: bool
) -> None:
    """A restored journal has a claim of a unit that another instance has by now."""
    former = audited.kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    ((_, _, unit),) = former.exact
    audited.kit.raw.delete_allocations(former.consumer)
    guest = running(str(uuid4()), UsedUnit("SRIOV_NET_VF", unit, "nic0"), SRIOV_NET_VF=1, VCPU=1)
    if own:
        places = {uuid_of("nic0"): {"SRIOV_NET_VF": 1}, uuid_of("host"): {"VCPU": 1}}
        audited.kit.raw.write_allocations(ConsumerAllocations(guest.uuid, places, None, *AGENT_IDENTITY))
    audited.guests = (guest,)
    assert ("shared unit", unit) in audited.kinds()
    report = audited.heal(everything=not own)
    healed = {report.findings[index].kind for index in report.healed}
    assert healed == {"leaked claim", "shared unit", "unclaimed instance"} and report.left == ()
    assert audited.kit.tracker.claim_of(guest.uuid) is not None


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


def reader_of(kit: Kit, *guests: Guest) -> AuditReader:
    devices = {uuid: device for device, uuid in DEVICES.items()}
    client = PlacementClient(kit.tap)
    return AuditReader(kit.tracker, client, uuid_of("host"), lambda: guests, lambda: devices)


def test_an_observation_has_all_three_sources_and_writes_nothing(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2, DISK_GB=10)).claim
        kit.tap.calls.clear()
        observation = reader_of(kit, running(held.consumer, VCPU=2)).observe()
        assert not [call for call in kit.tap.calls if not call.startswith("GET ")]
        assert observation.guests.keys() == observation.claims.keys() == {held.consumer}
        assert observation.claims[held.consumer] == held
        assert observation.allocations_here(held.consumer) == observation.own_part(held.allocations)
        assert observation.offered == UNITS and observation.devices == DEVICES
        assert observation.cells == kit.tracker.view.host_and_cells()[1]
        assert 0 <= observation.ages[held.consumer] < 60


def test_what_lost_claims_have_on_other_hosts_is_read_where_another_consumer_may_have_their_place(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, (*HOST, ELSEWHERE), placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        gone = kit.tracker.claim(request(VCPU=1)).claim
        kit.raw.delete_allocations(gone.consumer)
        kit.schedule(held.consumer, elsewhere={"VCPU": 2})
        assert reader_of(kit).observe().elsewhere == {}
        kit.schedule(str(uuid4()), host={"VCPU": 2})
        assert reader_of(kit).observe().elsewhere == {held.consumer: {ELSEWHERE.uuid: {"VCPU": 2}}}


def test_a_row_is_not_judged_while_an_operation_on_it_is_under_way(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        reader = reader_of(kit, running(held.consumer, VCPU=3))
        observation = reader.observe()
        assert [finding.kind for finding in reader.judge_row(observation, held.consumer)] == ["uses more"]
        kit.tracker._context.turns.wait_s = 0.0
        with kit.tracker.turns.take(held.consumer):
            assert reader.judge_row(observation, held.consumer) == ()


def test_a_consumer_with_an_operation_under_way_is_not_judged(tmp_path: Path, placement: Placement) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        kit.raw.delete_allocations(held.consumer)
        reader = reader_of(kit)
        observation = reader.observe()
        finding = reader.judge_consumer(observation, held.consumer)
        assert finding is not None and finding.kind == "leaked claim"
        kit.tracker._context.turns.wait_s = 0.0
        with kit.tracker.turns.take(held.consumer):
            assert reader.judge_consumer(observation, held.consumer) is None
            assert reader.judge_consumer_alone(observation, held.consumer) == finding


@pytest.mark.parametrize("always", [False, True])
def test_a_provider_that_is_deleted_between_its_list_and_its_read_is_no_error(
    tmp_path: Path, placement: Placement, always: bool
) -> None:
    """As by a reshape of this agent. Where that goes on, the audit ends with a conflict."""
    with Kit(tmp_path, (*HOST, CARD), placement=placement) as kit:
        asked = f"GET /resource_providers/{CARD.uuid}/allocations"

        def delete_it(call: str) -> None:
            if call == asked:
                kit.raw.delete_provider(CARD.uuid)

        def make_it_again(call: str) -> None:
            if call == asked and always:
                kit.raw.create_provider(CARD)
                kit.raw.put_inventories(CARD.uuid, 0, CARD.inventories)

        kit.tap.before, kit.tap.after = delete_it, make_it_again
        if always:
            with pytest.raises(PlacementConflict, match="deleted the provider since it was listed"):
                reader_of(kit).observe()
            assert kit.tap.calls.count(asked) == 3
        else:
            assert CARD.uuid not in reader_of(kit).observe().host.tree


def test_a_leaked_claim_is_dropped_by_itself(audited: Audited) -> None:
    """Scenario 112: deleted while the agent was away."""
    held = audited.kit.tracker.claim(request(VCPU=1, PCPU=1)).claim
    audited.kit.raw.delete_allocations(held.consumer)
    assert audited.auditor.audit(heal_own=True, readings=1).healed == frozenset()  # seen once only
    assert audited.kinds() == [("leaked claim", held.consumer)]
    assert audited.heal().healed == {0}
    assert audited.kit.tracker.claims() == {}
    assert audited.kinds() == []


def test_what_was_repaired_is_told_where_placement_does_not_answer_afterwards(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocation of another client is a finding as well, so the audit would read the host again."""
    held = audited.kit.tracker.claim(request(VCPU=1)).claim
    audited.kit.raw.delete_allocations(held.consumer)
    audited.kit.schedule(str(uuid4()), host={"VCPU": 1})
    drop = audited.kit.tracker.drop_claim

    def and_go_away(consumer: str, why: str) -> None:
        drop(consumer, why)
        audited.kit.tap.cut = True

    monkeypatch.setattr(audited.kit.tracker, "drop_claim", and_go_away)
    report = audited.heal()
    assert [report.findings[index].kind for index in report.healed] == ["leaked claim"]


@pytest.mark.counts_migrations
def test_what_others_may_own_is_only_healed_when_told(audited: Audited) -> None:
    consumer = str(uuid4())
    audited.kit.schedule(consumer, gpu1={"VGPU": 1}, host={"VCPU": 1})
    assert audited.kinds() == [("orphaned allocation", consumer)]
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
    audited.kit.tracker.see_guests(audited.guests)
    assert audited.kinds() == [("unclaimed instance", consumer)]
    assert audited.heal().healed == frozenset()
    report = audited.heal(everything=True)
    assert report.healed == {0}, report.failed
    assert audited.kit.placed(consumer) == {
        "gpu1": {"VGPU": 1},
        "nic0": {"SRIOV_NET_VF": 1},
        "host": {"PCPU": 1, "MEMORY_MB": 128},
    }
    claim = audited.kit.tracker.claim_of(consumer)
    assert claim is not None and claim.units[uuid_of("host")]["PCPU"] == ("6",)
    assert claim.units[uuid_of("nic0")]["SRIOV_NET_VF"] == (vf.unit,)
    assert audited.kinds() == []
    audited.kit.check()


def test_a_claim_whose_record_was_lost_is_recorded_anew(audited: Audited) -> None:
    """An allocation that a scheduler wrote needs no claim; one that this agent wrote had one."""
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
    audited.kit.tracker.see_guests(audited.guests)
    audited.kit.refresh()
    audited.kit.tracker.admission.open()
    audited = audited.anew()
    assert audited.kinds() == [("unclaimed instance", held.consumer)]
    assert audited.heal().healed == {0}
    again = audited.kit.tracker.claim_of(held.consumer)
    assert again is not None and again.allocations == held.allocations
    assert unit.unit in again.units[uuid_of("host")]["PCPU"]
    assert audited.kinds() == []


def test_a_guest_that_grew_gets_a_claim_and_an_allocation_of_what_it_uses(audited: Audited) -> None:
    tracker = audited.kit.tracker
    held = tracker.claim(request(VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)).claim
    functions = tuple(UsedUnit("SRIOV_NET_VF", vf, "nic0") for vf in VFS)
    audited.guests = (running(held.consumer, *functions, VCPU=8, MEMORY_MB=4000, SRIOV_NET_VF=2),)
    tracker.see_guests(audited.guests)
    assert audited.kinds() == [("uses more", held.consumer)]
    assert audited.heal().healed == frozenset()
    report = audited.heal(everything=True)
    assert report.healed == {0}, report.failed
    assert audited.kit.placed(held.consumer) == {
        "host": {"VCPU": 8, "MEMORY_MB": 4000},
        "nic0": {"SRIOV_NET_VF": 2},
    }
    claim = tracker.claim_of(held.consumer)
    assert claim is not None and set(claim.units[uuid_of("nic0")]["SRIOV_NET_VF"]) == set(VFS)
    assert audited.kinds() == []
    audited.kit.check()


def test_a_guest_with_the_unit_of_another_one_gets_no_claim_of_it(audited: Audited) -> None:
    tracker = audited.kit.tracker
    first, second = (tracker.claim(request(SRIOV_NET_VF=1)).claim for _ in range(2))
    functions = tuple(UsedUnit("SRIOV_NET_VF", vf, "nic0") for vf in VFS)
    audited.guests = (running(first.consumer, *functions, SRIOV_NET_VF=2),)
    (theirs,) = second.units[uuid_of("nic0")]["SRIOV_NET_VF"]
    assert audited.kinds() == [("uses more", first.consumer), ("shared unit", theirs)]
    report = audited.heal(everything=True)
    assert report.healed == frozenset() and not report.failed
    assert not report.left[0].repair
    assert f"Nothing is repaired while the claim of {second.consumer} has" in report.left[0].reason
    assert tracker.claim_of(first.consumer) == first
    audited.kit.check()


def test_a_function_that_a_guest_has_and_placement_does_not_is_written_again_for_a_migration_too(
    audited: Audited,
) -> None:
    tracker = audited.kit.tracker
    held = tracker.claim(request(VCPU=2, SRIOV_NET_VF=1)).claim
    unit = UsedUnit("SRIOV_NET_VF", held.units[uuid_of("nic0")]["SRIOV_NET_VF"][0], "nic0")
    audited.guests = (running(held.consumer, unit, VCPU=2, SRIOV_NET_VF=1),)
    tracker.see_guests(audited.guests)
    before = audited.kit.placed(held.consumer)
    audited.kit.schedule(held.consumer, host={"VCPU": 2})
    assert audited.kinds() == [("wrong provider", held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before
    migration = str(uuid4())
    tracker.begin_move(request(held.consumer, VCPU=3, SRIOV_NET_VF=1), MoveKind.SAME_HOST_RESIZE, migration)
    new = audited.kit.placed(held.consumer)
    assert audited.kinds() == []
    for consumer, has in ((migration, before), (held.consumer, new)):
        audited.kit.schedule(consumer, host=has["host"])
        assert audited.kinds() == [("wrong provider", consumer)]
        assert audited.heal(everything=True).healed == {0}
        assert audited.kit.placed(consumer) == has
    tracker.revert_move(migration)
    assert audited.kit.placed(held.consumer) == before and audited.kinds() == []
    audited.kit.check()


def test_an_allocation_that_was_changed_is_brought_back_when_told(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(VCPU=2, VGPU=1)).claim
    audited.guests = (running(held.consumer, VCPU=2, VGPU=1),)
    before = audited.kit.placed(held.consumer)
    audited.kit.schedule(held.consumer, host={"VCPU": 1}, **{_gpu(before): {"VGPU": 1}})
    assert audited.kinds() == [("amounts differ", held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before
    other = "gpu1" if _gpu(before) == "gpu0" else "gpu0"
    audited.kit.schedule(held.consumer, host={"VCPU": 2}, **{other: {"VGPU": 2}})
    assert audited.kinds() == [("wrong provider", held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before
    audited.kit.schedule(held.consumer, host={"VCPU": 2}, **{other: {"VGPU": 1}})
    moved = audited.kit.placed(held.consumer)
    (finding,) = audited.heal(everything=True).left
    assert finding.kind == "wrong provider" and "on a guess" in finding.reason
    assert audited.kit.placed(held.consumer) == moved, "the VGPU may have been there for long"
    audited.kit.raw.delete_allocations(held.consumer)
    assert audited.kinds() == [("amounts differ", held.consumer)]
    assert audited.heal(everything=True).healed == {0}
    assert audited.kit.placed(held.consumer) == before and audited.kinds() == []


def _gpu(placed: dict[str, dict[str, int]]) -> str:
    return next(name for name in placed if name.startswith("gpu"))


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
    carded.kit.tracker.see_guests(carded.guests)
    assert carded.kinds() == [("unclaimed instance", consumer)]
    assert carded.heal(everything=True).healed == {0}
    assert carded.kit.placed(consumer) == {"host": {"VCPU": 2}, "card0": {CUSTOM: 1}}
    claim = carded.kit.tracker.claim_of(consumer)
    assert claim is not None and claim.units[CARD.uuid][CUSTOM] == (CARDS[1],)
    assert carded.kinds() == []
    carded.kit.check()


@pytest.mark.counts_migrations
def test_what_differs_in_a_custom_class_is_found_and_healed(carded: Audited) -> None:
    held = carded.kit.tracker.claim(request(VCPU=1, **{CUSTOM: 2})).claim
    carded.guests = (running(held.consumer, VCPU=1, **{CUSTOM: 2}),)
    before = carded.kit.placed(held.consumer)
    for placed, kind in (
        ({"host": {"VCPU": 1}, "card0": {CUSTOM: 1}}, "amounts differ"),
        ({"host": {"VCPU": 1}}, "wrong provider"),
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
    assert carded.kinds() == [("orphaned allocation", orphan)]
    assert carded.heal(everything=True).healed == {0}
    assert carded.kit.placed_all() == {}


@pytest.mark.parametrize("there", [False, True], ids=["no guest", "guest there"])
def test_a_claim_of_which_nobody_heard_is_finished_or_undone(audited: Audited, there: bool) -> None:
    """Scenario 38: stuck between placement's claim and ours."""
    asked = request(VCPU=2, VGPU=1)
    with audited.kit.away(after=True), suppress(PlacementUnavailable):
        audited.kit.tracker.claim(asked)
    audited.guests = (running(asked.consumer, VCPU=2, VGPU=1),) if there else ()
    audited.kit.tracker.see_guests(audited.guests)
    assert audited.kinds() == [] and audited.heal().findings == ()  # for a minute the agent settles it itself
    audited.kit.later_s += HALF_DONE_S
    assert audited.kinds() == [("stuck consumer", asked.consumer)]
    assert audited.heal().healed == {0}
    claim = audited.kit.tracker.claim_of(asked.consumer)
    assert (claim is not None) is there is bool(audited.kit.placed(asked.consumer))
    assert audited.kinds() == [] and audited.kit.tracker.pending == 0
    audited.kit.check()


def test_a_release_that_was_not_delivered_is_delivered(audited: Audited) -> None:
    held = audited.kit.tracker.claim(request(VCPU=2)).claim
    with audited.kit.away():
        assert not audited.kit.tracker.release(held.consumer)
    assert audited.kinds() == [("stuck consumer", held.consumer)]
    assert audited.heal().healed == {0}
    assert audited.kit.placed_all() == {} and audited.kinds() == []


def test_a_repair_that_placement_refuses_is_told_and_tried_again(audited: Audited) -> None:
    """A stuck release while placement is away for writes: reported with the reason, not as healed."""
    held = audited.kit.tracker.claim(request(VCPU=2)).claim
    with audited.kit.away(only="PUT"):
        audited.kit.tracker.release(held.consumer)
        assert audited.kinds() == [("stuck consumer", held.consumer)]
        report = audited.heal()
        assert report.healed == frozenset() and report.failed is not None
        assert "not done yet" in report.failed[0]
    assert audited.heal().healed == {0}
