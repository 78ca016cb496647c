"""A unit stays the same unit in a reshape, with or without its guest, and while an instance leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.placements import Placement
from kits.reshape import uuid_of
from kits.reshape_hosts import VF, Hosts, asks, guest_of

from agent.audit.auditor import Auditor, AuditReader
from agent.claims.claim import Claim
from agent.errors import ClaimConflict, PlacementUnavailable
from agent.moves.states import MoveKind, MoveState

WEB, OTHER, MIGRATION, SECOND = (uuid_of(name) for name in ("web", "other", "web moves", "other moves"))


@pytest.fixture
def hosts(placement: Placement, tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(tmp_path, placement) as hosts:
        yield hosts


def last_of_five(hosts: Hosts) -> Claim:
    """On the second card: four claims before it had the first, and are released."""
    claims = [hosts.a.claim(uuid_of(f"c{number}"), VCPU=1, SRIOV_NET_VF=1) for number in range(5)]
    for claim in claims[:4]:
        hosts.a.tracker.release(claim.consumer)
    return claims[4]


def moved(hosts: Hosts, instance: str, migration: str, kind: MoveKind = MoveKind.COLD_MIGRATE) -> None:
    hosts.b.tracker.begin_move(asks(instance, VCPU=1, SRIOV_NET_VF=1), kind, migration)


def test_a_claim_whose_guest_is_not_seen_yet_keeps_the_vf_that_it_was_told(hosts: Hosts) -> None:
    fifth = last_of_five(hosts)
    told = hosts.a.units(fifth.consumer)
    assert told == {VF: {"0000:51:01.0"}}
    hosts.a.change(flat_devices=False)
    assert hosts.a.units(fifth.consumer) == told
    hosts.a.check()
    others = [hosts.a.claim(uuid_of(f"new{number}"), VCPU=1, SRIOV_NET_VF=1) for number in range(7)]
    assert all(hosts.a.units(each.consumer) != told for each in others)
    hosts.a.change(flat_devices=True)
    assert hosts.a.units(fifth.consumer) == told
    hosts.a.check()


def test_numa_on_and_off_keeps_the_unit(hosts: Hosts) -> None:
    fifth = last_of_five(hosts)
    told = hosts.a.units(fifth.consumer)
    for changes in ({"flat_devices": False, "report_numa": True}, {"report_numa": False}):
        hosts.a.change(**changes)
        assert hosts.a.units(fifth.consumer) == told
        hosts.a.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_same_host_resize_with_a_reshape_in_between(hosts: Hosts, end: str) -> None:
    fifth = last_of_five(hosts)
    told = hosts.a.units(fifth.consumer)
    hosts.a.guests(guest_of(fifth))
    grown = asks(fifth.consumer, VCPU=2, SRIOV_NET_VF=2)
    hosts.a.tracker.begin_move(grown, MoveKind.SAME_HOST_RESIZE, MIGRATION)
    new = hosts.a.units(fifth.consumer)
    assert hosts.a.units(MIGRATION) == told
    assert not new[VF] & told[VF]
    hosts.a.change(flat_devices=False)
    assert (hosts.a.units(MIGRATION), hosts.a.units(fifth.consumer)) == (told, new)
    hosts.a.check()
    getattr(hosts.a.tracker, f"{end}_move")(MIGRATION)
    assert hosts.a.units(fifth.consumer) == (new if end == "confirm" else told)
    hosts.a.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_source_that_was_down_at_the_begin_is_reshaped_at_its_start(
    hosts: Hosts, end: str, side: str
) -> None:
    fifth = last_of_five(hosts)
    told = hosts.a.units(fifth.consumer)
    hosts.a.close()
    moved(hosts, fifth.consumer, MIGRATION)
    hosts.a.driver.change(flat_devices=False)
    hosts.a.restart()
    hosts.a.look()
    named_here = {"instance": fifth.consumer} if side == "a" else {}
    getattr(getattr(hosts, side).tracker, f"{end}_move")(MIGRATION, **named_here)
    hosts.settle()
    if end == "revert":
        assert hosts.a.units(fifth.consumer) == told
    else:
        assert hosts.a.tracker.claims() == {}
    hosts.a.check()
    hosts.b.check()


def twins(hosts: Hosts, *, same_card: bool) -> tuple[Claim, Claim]:
    """Two claims that look alike, moved away while their host was down."""
    fillers = (
        [] if same_card else [hosts.a.claim(uuid_of(f"f{number}"), SRIOV_NET_VF=1) for number in range(3)]
    )
    first = hosts.a.claim(WEB, VCPU=1, SRIOV_NET_VF=1)
    second = hosts.a.claim(OTHER, VCPU=1, SRIOV_NET_VF=1)
    for filler in fillers:
        hosts.a.tracker.release(filler.consumer)
    hosts.a.close()
    moved(hosts, WEB, MIGRATION)
    moved(hosts, OTHER, SECOND)
    hosts.a.driver.change(flat_devices=False)
    hosts.a.restart()
    return first, second


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_two_moves_that_look_alike_on_one_card_follow_it(hosts: Hosts, end: str) -> None:
    first, second = twins(hosts, same_card=True)
    hosts.a.look()
    assert len(hosts.a.journal.reshapes(done=True)) == 1
    for claim, migration in ((first, MIGRATION), (second, SECOND)):
        getattr(hosts.a.tracker, f"{end}_move")(migration, instance=claim.consumer)
    hosts.settle()
    if end == "revert":
        for claim in (first, second):
            assert hosts.a.units(claim.consumer)[VF] == {unit for _, _, unit in claim.exact}
    else:
        assert hosts.a.tracker.claims() == {}
    hosts.a.check()
    hosts.b.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_two_moves_that_look_alike_on_two_cards_wait_for_an_operator(hosts: Hosts, end: str) -> None:
    """Which migration has which device nobody can know, so nothing moves until one of them is named."""
    first, second = twins(hosts, same_card=False)
    assert "it is not certain which of" in hosts.a.look(pending=True)
    assert hosts.a.units(WEB)[VF] | hosts.a.units(OTHER)[VF] == {"0000:50:01.3", "0000:51:01.0"}
    getattr(hosts.a.tracker, f"{end}_move")(SECOND, instance=OTHER)
    hosts.a.look()
    getattr(hosts.a.tracker, f"{end}_move")(MIGRATION, instance=WEB)
    hosts.settle()
    assert len(hosts.a.journal.reshapes(done=True)) == 1
    if end == "revert":
        for claim in (first, second):
            assert hosts.a.units(claim.consumer)[VF] == {unit for _, _, unit in claim.exact}
    else:
        assert hosts.a.tracker.claims() == {}
    hosts.a.check()
    hosts.b.check()


def test_a_claimed_unit_whose_card_is_gone_is_parked_with_its_claim(hosts: Hosts) -> None:
    fifth = last_of_five(hosts)
    told = hosts.a.units(fifth.consumer)
    nics = hosts.a.driver.host.nics
    hosts.a.change(flat_devices=False, nics=nics[:1])
    assert hosts.raw.allocations_of(fifth.consumer).allocations == {hosts.a.root: {"VCPU": 1, VF: 1}}
    assert hosts.a.units(fifth.consumer) == told
    for number in range(4):
        hosts.a.claim(uuid_of(f"new{number}"), SRIOV_NET_VF=1)
    hosts.a.change(nics=nics)
    assert hosts.a.units(fifth.consumer) == told
    hosts.a.check()


def test_a_claimed_unit_that_nothing_can_account_for_refuses_the_reshape(hosts: Hosts) -> None:
    """All eight were counted and eight are there, but not the one that was claimed."""
    fifth = last_of_five(hosts)
    nics = hosts.a.driver.host.nics
    strange = replace(nics[1], vfs=tuple(f"0000:51:02.{number}" for number in range(4)))
    hosts.a.driver.change(flat_devices=False, nics=(nics[0], strange))
    assert "are on no provider now" in hosts.a.look(pending=True)
    assert hosts.a.units(fifth.consumer) == {VF: {"0000:51:01.0"}}
    assert hosts.raw.allocations_of(fifth.consumer).allocations == {hosts.a.root: {"VCPU": 1, VF: 1}}


def test_a_guest_with_another_unit_than_its_claim_is_followed(hosts: Hosts) -> None:
    claim = hosts.a.claim(WEB, VCPU=1, SRIOV_NET_VF=1)
    (used,) = guest_of(claim).units
    other = replace(used, unit="0000:51:01.2", device="pci:0000:51:00.0")
    hosts.a.driver.change(guests=(replace(guest_of(claim), units=(other,)),))
    hosts.a.change(flat_devices=False)
    assert hosts.a.units(WEB) == {VF: {"0000:51:01.2"}}
    hosts.a.check()


def test_a_claim_that_takes_over_an_allocation_while_a_reshape_runs_records_where_it_is(hosts: Hosts) -> None:
    """A scheduler has placed it on the root; its claim comes when the reshape has read it already."""
    import threading

    held = {hosts.a.root: {"VCPU": 1, VF: 1}}
    hosts.raw.write_allocations(replace(hosts.raw.allocations_of(WEB), allocations=held))
    hosts.a.look()
    claiming = threading.Thread(target=hosts.a.claim, args=(WEB,), kwargs={"VCPU": 1, VF: 1})

    def before(call: str) -> None:
        if call == "POST /reshaper" and not claiming.is_alive():
            claiming.start()
            claiming.join(0.3)

    hosts.a.tap.before = before
    hosts.a.driver.change(flat_devices=False)
    assert hosts.a.reconciler.verify("a test").pending is None
    claiming.join()
    claim = hosts.a.tracker.claim_of(WEB)
    assert claim is not None and claim.allocations == hosts.raw.allocations_of(WEB).allocations
    assert claim.allocations[hosts.a.root] == {"VCPU": 1}
    hosts.a.check()


def test_a_consumer_made_anew_with_more_in_it_keeps_what_it_has(hosts: Hosts) -> None:
    claim = hosts.a.claim(WEB, VCPU=1, SRIOV_NET_VF=1)
    hosts.raw.delete_allocations(WEB)
    more = {**claim.allocations, hosts.b.root: {"VCPU": 3}}
    hosts.raw.write_allocations(replace(hosts.raw.allocations_of(WEB), allocations=more))
    hosts.a.driver.change(flat_devices=False)
    assert hosts.a.reconciler.verify("a test").pending is None
    now = hosts.raw.allocations_of(WEB).allocations
    assert now[hosts.b.root] == {"VCPU": 3} and now[hosts.a.root] == {"VCPU": 1}
    assert sum(amounts.get(VF, 0) for amounts in now.values()) == 1


def test_a_migration_that_nobody_named_is_not_given_to_another_instance(hosts: Hosts) -> None:
    first, _ = twins(hosts, same_card=False)
    hosts.a.look(pending=True)
    with pytest.raises(ClaimConflict):
        hosts.a.tracker.confirm_move(uuid_of("nothing"), instance=first.consumer)


AMOUNTS = {"VCPU": 1, "MEMORY_MB": 512}
PLACES = pytest.mark.parametrize(
    "place", [{**AMOUNTS, VF: 2}, AMOUNTS], ids=["a device stays on the root", "all of it moves"]
)
ENDS = pytest.mark.parametrize("end", ["confirm", "revert"])


def begin(hosts: Hosts, instance: str, migration: str, place: Mapping[str, int]) -> None:
    hosts.b.tracker.begin_move(asks(instance, **place), MoveKind.COLD_MIGRATE, migration)


def reshaped_while_down(hosts: Hosts, place: Mapping[str, int], **changes: Any) -> Claim:
    """The source is down at the begin; at its start it reshapes, and has not looked at its moves yet."""
    claim = hosts.a.claim(WEB, **place)
    hosts.a.close()
    begin(hosts, WEB, MIGRATION, place)
    hosts.a.driver.change(**(changes or {"report_numa": True}))
    hosts.a.restart()
    assert hosts.a.reconciler.verify("a test").pending is None
    assert len(hosts.a.journal.reshapes(done=True)) == 1
    hosts.a.tracker.recover(())
    hosts.a.tracker.admission.open()
    return claim


def two_alike(hosts: Hosts, place: Mapping[str, int]) -> list[Claim]:
    """Two instances of one size moved away while the source was down; it has reshaped and looked since."""
    claims = [hosts.a.claim(instance, **place) for instance in (WEB, OTHER)]
    hosts.a.close()
    begin(hosts, WEB, MIGRATION, place)
    begin(hosts, OTHER, SECOND, place)
    hosts.a.driver.change(report_numa=True)
    hosts.a.restart()
    hosts.a.look()
    return claims


def findings(hosts: Hosts) -> set[tuple[str, str]]:
    """{(kind, subject)} of the source's audit."""
    auditor = Auditor(AuditReader(hosts.a.tracker, hosts.a.client, hosts.a.root, hosts.a.driver.guests, dict))
    return {(finding.kind, finding.subject) for finding in auditor.audit().findings}


def check_end(hosts: Hosts, end: str, claim: Claim, migration: str = MIGRATION) -> None:
    """Both hosts agree with Placement and with each other; the instance has the units that it was told."""
    assert hosts.raw.allocations_of(migration).allocations == {}
    if end == "revert":
        now = hosts.a.tracker.claim_of(claim.consumer)
        assert now is not None
        assert {unit for _, _, unit in now.exact} == {unit for _, _, unit in claim.exact}
        assert now.allocations.keys() - {hosts.a.root}, "the amounts are on a cell"
        assert hosts.b.tracker.claim_of(claim.consumer) is None
    else:
        assert hosts.a.tracker.claim_of(claim.consumer) is None
        assert hosts.b.tracker.claim_of(claim.consumer) is not None
    hosts.a.check()
    hosts.b.check()


@PLACES
@ENDS
@pytest.mark.parametrize("side", ["a", "a, named", "b"])
@pytest.mark.parametrize("looked", [True, False], ids=["a has looked", "a has not looked"])
def test_a_move_that_began_while_the_source_was_down_ends_on_both_hosts(
    hosts: Hosts, place: Mapping[str, int], end: str, side: str, looked: bool
) -> None:
    claim = reshaped_while_down(hosts, place)
    if looked:
        hosts.a.look()
        assert hosts.a.tracker.moves()[MIGRATION].state is MoveState.BEGUN
        hosts.a.check()
    tracker = hosts.b.tracker if side == "b" else hosts.a.tracker
    names = {"instance": WEB} if side == "a, named" else {}
    getattr(tracker, f"{end}_move")(MIGRATION, **names)
    hosts.settle()
    check_end(hosts, end, claim)


@PLACES
@ENDS
def test_a_move_that_begins_while_the_reshape_is_unanswered_ends_at_the_source(
    hosts: Hosts, place: Mapping[str, int], end: str
) -> None:
    claim = hosts.a.claim(WEB, **place)

    def cut(call: str) -> None:
        if call == "POST /reshaper":
            hosts.a.tap.before = lambda _: None
            begin(hosts, WEB, MIGRATION, place)
            raise PlacementUnavailable("the connection was reset", sent=True)

    hosts.a.tap.before = cut
    hosts.a.driver.change(report_numa=True)
    hosts.a.reconciler.verify("a test")
    hosts.a.look()
    getattr(hosts.a.tracker, f"{end}_move")(MIGRATION)
    hosts.settle()
    check_end(hosts, end, claim)


@PLACES
@ENDS
def test_two_places_that_look_alike_wait_for_an_operator(
    hosts: Hosts, place: Mapping[str, int], end: str
) -> None:
    claims = two_alike(hosts, place)
    assert hosts.a.tracker.moves() == {}
    assert hosts.a.tracker.claims().keys() == {WEB, OTHER}, "nothing is freed"
    assert findings(hosts) == {("unlinked move", WEB), ("unlinked move", OTHER)}
    for claim, migration in zip(claims, (MIGRATION, SECOND), strict=True):
        getattr(hosts.a.tracker, f"{end}_move")(migration, instance=claim.consumer)
    hosts.settle()
    for claim, migration in zip(claims, (MIGRATION, SECOND), strict=True):
        check_end(hosts, end, claim, migration)
    assert findings(hosts) == set()


@ENDS
def test_two_places_that_look_alike_end_at_their_destination(hosts: Hosts, end: str) -> None:
    claims = two_alike(hosts, AMOUNTS)
    for migration in (MIGRATION, SECOND):
        getattr(hosts.b.tracker, f"{end}_move")(migration)
        hosts.settle()
    for claim, migration in zip(claims, (MIGRATION, SECOND), strict=True):
        check_end(hosts, end, claim, migration)


def test_two_places_that_look_alike_follow_the_undoing_of_a_reshape_once_they_are_back(hosts: Hosts) -> None:
    """The driver still leads onto the cells: only the receipt says that the places went to the root."""
    hosts.a.change(report_numa=True)
    (receipt,) = hosts.a.journal.reshapes(done=True)
    for instance, migration in ((WEB, MIGRATION), (OTHER, SECOND)):
        hosts.a.claim(instance, **AMOUNTS)
        begin(hosts, instance, migration, AMOUNTS)
    hosts.a.reconciler.reshape(receipt)
    for migration in (MIGRATION, SECOND):
        hosts.b.tracker.revert_move(migration)
    hosts.settle()
    for instance in (WEB, OTHER):
        claim = hosts.a.tracker.claim_of(instance)
        assert claim is not None and claim.allocations == {hosts.a.root: AMOUNTS}
    hosts.a.check()
    assert findings(hosts) == set()


@PLACES
def test_a_move_that_was_reverted_and_begun_again_is_known_after_two_reshapes(
    hosts: Hosts, place: Mapping[str, int]
) -> None:
    """The source never looked in between: the place went root, cell, root, under two migrations."""
    claim = reshaped_while_down(hosts, place)
    hosts.b.tracker.revert_move(MIGRATION)
    begin(hosts, WEB, SECOND, place)
    hosts.a.driver.change(report_numa=False)
    assert hosts.a.reconciler.verify("a test").pending is None
    assert len(hosts.a.journal.reshapes(done=True)) == 2
    hosts.a.look()
    assert hosts.a.tracker.moves()[SECOND].state is MoveState.BEGUN
    hosts.a.tracker.revert_move(SECOND)
    hosts.settle()
    now = hosts.a.tracker.claim_of(WEB)
    assert now is not None and now.allocations == claim.allocations
    hosts.a.check()
    hosts.b.check()


@ENDS
def test_a_place_on_a_cell_that_is_gone_is_followed_to_the_root(hosts: Hosts, end: str) -> None:
    hosts.a.change(report_numa=True)
    hosts.a.claim(WEB, **AMOUNTS)
    hosts.a.close()
    begin(hosts, WEB, MIGRATION, AMOUNTS)
    hosts.a.driver.change(report_numa=False)
    hosts.a.restart()
    hosts.a.look()
    assert hosts.a.tracker.moves()[MIGRATION].state is MoveState.BEGUN
    getattr(hosts.a.tracker, f"{end}_move")(MIGRATION)
    hosts.settle()
    assert (hosts.a.tracker.claim_of(WEB) is not None) == (end == "revert")
    hosts.a.check()
    hosts.b.check()


def test_a_migration_of_another_size_is_not_taken_for_the_one_that_moved(hosts: Hosts) -> None:
    reshaped_while_down(hosts, AMOUNTS)
    hosts.a.claim(OTHER, VCPU=2, MEMORY_MB=512)
    begin(hosts, OTHER, SECOND, {"VCPU": 2, "MEMORY_MB": 512})
    with pytest.raises(ClaimConflict, match="does not hold"):
        hosts.a.tracker.revert_move(SECOND, instance=WEB)
    hosts.a.look()
    moves = hosts.a.tracker.moves()
    assert {migration: move.instance for migration, move in moves.items()} == {MIGRATION: WEB, SECOND: OTHER}


@PLACES
def test_no_audit_tells_of_a_revert_that_the_source_has_yet_to_learn_of(
    hosts: Hosts, place: Mapping[str, int]
) -> None:
    """The instance has its old place where the reshape put it; the claim follows at the next look."""
    claim = reshaped_while_down(hosts, place)
    assert findings(hosts) == set()
    hosts.b.tracker.revert_move(MIGRATION)
    hosts.b.tracker.deliver()
    assert findings(hosts) == set()
    hosts.settle()
    check_end(hosts, "revert", claim)
    assert findings(hosts) == set()
