"""Each repair against real placements: the finding seeded, repaired by the agent or on demand, gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from kits.audit import Audited, running
from kits.placements import Placement
from kits.tracker import CARD, CARDS, HOST, UNITS, VFS, Kit, request, uuid_of

from agent.driver import UsedUnit
from agent.errors import PlacementUnavailable
from agent.moves.states import MoveKind
from agent.tracker.guarded_write import HALF_DONE_S


@pytest.fixture
def audited(tmp_path: Path, placement: Placement) -> Iterator[Audited]:
    with Kit(tmp_path, placement=placement) as kit:
        yield Audited(kit)


def test_a_leaked_claim_is_dropped_by_itself(audited: Audited) -> None:
    """Scenario 112: deleted while the agent was away."""
    held = audited.kit.tracker.claim(request(VCPU=1, PCPU=1)).claim
    audited.kit.raw.delete_allocations(held.consumer)
    assert audited.auditor.audit(heal_own=True, readings=1).healed == frozenset()  # seen once only
    assert audited.kinds() == [("leaked claim", held.consumer)]
    assert audited.heal().healed == {0}
    assert audited.kit.tracker.claims() == {}
    assert audited.kinds() == []


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
    audited.kit.tracker.open()
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
    assert report.healed == frozenset() and report.failed is not None
    assert f"belongs to {second.consumer}" in report.failed[0]
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
