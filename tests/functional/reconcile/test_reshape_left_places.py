"""A reshape of the source that does not know yet who holds the places of the instances that have left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kits.placements import Placement
from kits.reshape import uuid_of
from kits.reshape_hosts import VF, Hosts, asks

from agent.audit.auditor import Auditor
from agent.claims.claim import Claim
from agent.errors import ClaimConflict, PlacementUnavailable
from agent.moves.states import MoveKind, MoveState

WEB, OTHER, MIGRATION, SECOND = (uuid_of(name) for name in ("web", "other", "web moves", "other moves"))
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 512}
PLACES = pytest.mark.parametrize(
    "place", [{**AMOUNTS, VF: 2}, AMOUNTS], ids=["a device stays on the root", "all of it moves"]
)
ENDS = pytest.mark.parametrize("end", ["confirm", "revert"])


@pytest.fixture
def hosts(placement: Placement, tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(tmp_path, placement) as hosts:
        yield hosts


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
    auditor = Auditor(hosts.a.tracker, hosts.a.client, hosts.a.root, hosts.a.driver.guests, dict)
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


@pytest.mark.first_variant
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


@pytest.mark.first_variant
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
