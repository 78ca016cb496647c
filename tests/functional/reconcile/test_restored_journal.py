"""The agent's journal, or Placement, is restored from a copy that is from before a reshape."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.placements import Embedded, Placement
from kits.reshape import uuid_of
from kits.reshape_hosts import VF, Hosts, asks, guest_of

from agent.audit.auditor import Auditor, AuditReport
from agent.claims.claim import Claim
from agent.driver import GuestState
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import PlacementClient
from agent.reconcile.pass_steps import PassSteps
from agent.shapes import Allocations

WEB, OTHER, NEXT, MIGRATION = (uuid_of(name) for name in ("web", "other", "next", "web moves"))
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 512}
PLACES: tuple[Mapping[str, int], ...] = ({**AMOUNTS, VF: 2}, {"VCPU": 2, "VGPU": 1}, AMOUNTS)
NESTED: Mapping[str, Any] = {"report_numa": True, "flat_devices": False}
FLAT: Mapping[str, Any] = {"report_numa": False, "flat_devices": True}


class Restored:
    """Two hosts; the state directory of the first one can be put back to what it was."""

    def __init__(self, directory: Path, placement: Placement, **changes: Any) -> None:
        self._directory = directory
        self.hosts = Hosts(directory, placement, **changes)
        self.a = self.hosts.a

    def save(self) -> None:
        self.a.close()
        shutil.copytree(self._directory / "a", self._directory / "copy")
        self.a.restart()

    def restore(self) -> None:
        """The journal of then, and one look with it."""
        self.a.close()
        shutil.rmtree(self._directory / "a")
        shutil.copytree(self._directory / "copy", self._directory / "a")
        self.a.restart()
        self.a.look()

    def findings(self, *, heal_own: bool = False) -> list[str]:
        a = self.a
        auditor = Auditor(
            a.tracker,
            a.client,
            a.root,
            a.driver.guests,
            dict,
            lambda: a.reconciler.tree,
            lambda: a.reconciler.leads,
        )
        return [finding.kind for finding in auditor.audit(heal_own=heal_own).findings]

    def heal(self) -> AuditReport:
        a = self.a
        return Auditor(
            a.tracker, a.client, a.root, a.driver.guests, a.journal.devices, lambda: a.reconciler.tree
        ).audit(heal_own=True, heal_all=True)


@pytest.fixture(params=["flat first", "nested first"])
def world(request: pytest.FixtureRequest, placement: Placement, tmp_path: Path) -> Iterator[Restored]:
    first = FLAT if request.param == "flat first" else NESTED
    restored = Restored(tmp_path, placement, **first)
    with restored.hosts:
        yield restored


def reshape(world: Restored) -> None:
    now = NESTED if world.a.driver.describe().providers[0].units else FLAT
    world.a.change(**now)
    assert len(world.a.journal.reshapes(done=True)) > 0


def claim_all(world: Restored) -> dict[str, Claim]:
    return {who: world.a.claim(who, **place) for who, place in zip((WEB, OTHER, NEXT), PLACES, strict=True)}


@pytest.mark.first_variant
@pytest.mark.parametrize("run", [False, True], ids=["no guests", "guests"])
def test_claims_of_before_a_reshape_follow_it_and_live_on(world: Restored, run: bool) -> None:
    claims = claim_all(world)
    if run:
        world.a.guests(*map(guest_of, claims.values()))
    world.save()
    units = {who: world.a.units(who) for who in claims}
    reshape(world)
    after = world.a.tracker.claims()
    world.restore()
    assert {who: claim.allocations for who, claim in world.a.tracker.claims().items()} == {
        who: claim.allocations for who, claim in after.items()
    }
    assert {who: world.a.units(who) for who in claims} == units
    world.a.check()
    assert world.findings() == []
    world.a.guests()
    for who in claims:
        assert world.a.tracker.release(who)
    assert world.hosts.raw.allocations_of(WEB).allocations == {}


def test_the_audit_repairs_what_a_pass_could_not_follow(
    world: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation on the consumer was under way at each pass so far."""
    claim_all(world)
    world.hosts.b.tracker.begin_move(asks(NEXT, **PLACES[2]), MoveKind.COLD_MIGRATE, MIGRATION)
    world.a.look()
    world.save()
    reshape(world)
    with monkeypatch.context() as patch:
        patch.setattr(PassSteps, "_follow_placement", lambda *_: False)
        world.restore()
    calls: list[str] = []
    world.a.tap.before = calls.append
    assert world.findings(heal_own=True) == ["wrong provider"] * 3
    assert not [call for call in calls if not call.startswith("GET ")], "nothing is written to Placement"
    world.a.check()
    assert world.findings() == []


@pytest.mark.first_variant
@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("kind", [MoveKind.COLD_MIGRATE, MoveKind.SAME_HOST_RESIZE])
def test_a_move_of_before_a_reshape_follows_it_and_ends(world: Restored, kind: MoveKind, end: str) -> None:
    a, place = world.a, PLACES[0]
    before = a.claim(WEB, **place)
    begins = a if kind is MoveKind.SAME_HOST_RESIZE else world.hosts.b
    begins.tracker.begin_move(asks(WEB, **{**place, "VCPU": 2}), kind, MIGRATION)
    a.look()
    world.save()
    reshape(world)
    world.restore()
    assert a.tracker.moves()[MIGRATION].state is MoveState.BEGUN
    a.check()
    getattr(begins.tracker, f"{end}_move")(MIGRATION)
    world.hosts.settle()
    a.check()
    world.hosts.b.check()
    assert world.hosts.raw.allocations_of(MIGRATION).allocations == {}
    if end == "revert":
        now = a.tracker.claim_of(WEB)
        assert now is not None
        assert {unit for _, _, unit in now.exact} == {unit for _, _, unit in before.exact}
    assert world.findings() == []


@pytest.mark.first_variant
@pytest.mark.parametrize("end", ["confirm", "revert"])
@pytest.mark.parametrize("twin", [False, True], ids=["alone", "beside another one"])
def test_a_move_of_after_a_reshape_is_known_to_a_journal_from_before_both(
    world: Restored, end: str, twin: bool
) -> None:
    """The claim is on providers that are gone; a migration has its place where the reshape led it."""
    a, b, place = world.a, world.hosts.b, PLACES[0]
    before = a.claim(WEB, **place)
    moving = {WEB: MIGRATION, **({OTHER: uuid_of("other moves")} if twin else {})}
    if twin:
        a.claim(OTHER, **PLACES[1])
    world.save()
    reshape(world)
    for who, migration in moving.items():
        b.tracker.begin_move(asks(who, **AMOUNTS), MoveKind.COLD_MIGRATE, migration)
    world.restore()
    a.look()
    assert {move.migration: move.instance for move in a.tracker.moves().values()} == {
        migration: who for who, migration in moving.items()
    }
    assert world.findings() == []
    a.check()
    for migration in moving.values():
        getattr(b.tracker, f"{end}_move")(migration)
    world.hosts.settle()
    for host in (a, b):
        host.check()
    now = a.tracker.claim_of(WEB)
    if end == "revert":
        assert now is not None
        assert {unit for *_, unit in now.exact} == {unit for *_, unit in before.exact}
    else:
        assert now is None
    assert world.findings() == []


@pytest.mark.first_variant
def test_a_claim_can_be_resized_and_moved_away_afterwards(world: Restored) -> None:
    a, b = world.a, world.hosts.b
    a.claim(WEB, **PLACES[0])
    world.save()
    reshape(world)
    world.restore()
    a.tracker.begin_move(asks(WEB, **{**PLACES[0], "VCPU": 2}), MoveKind.SAME_HOST_RESIZE, MIGRATION)
    a.tracker.confirm_move(MIGRATION)
    b.tracker.begin_move(asks(WEB, **PLACES[0]), MoveKind.COLD_MIGRATE, OTHER)
    b.tracker.confirm_move(OTHER)
    world.hosts.settle()
    a.check()
    b.check()
    assert a.tracker.claims() == {} and set(b.tracker.claims()) == {WEB}


WITH_CARD, WITH_VF, BOTH = {"VCPU": 1, "VGPU": 1}, {"VCPU": 1, VF: 1}, {"VGPU": 2, VF: 1, "VCPU": 3}
CARD_AND_VF = {"VCPU": 1, "VGPU": 2, VF: 1}


@pytest.mark.first_variant
@pytest.mark.parametrize(
    ("then", "since", "runs"),
    [
        ({WEB: WITH_CARD, OTHER: WITH_CARD}, {OTHER: WITH_CARD, WEB: WITH_CARD}, (WEB, OTHER)),
        ({WEB: BOTH, OTHER: WITH_VF}, {NEXT: WITH_CARD, OTHER: BOTH, WEB: WITH_VF}, (WEB, OTHER, NEXT)),
        ({WEB: WITH_VF, OTHER: WITH_CARD}, {NEXT: WITH_VF, OTHER: WITH_CARD}, (OTHER, NEXT)),
        ({WEB: {**WITH_CARD, VF: 1}, OTHER: WITH_CARD}, {OTHER: WITH_VF}, (OTHER,)),
        (
            {WEB: WITH_VF, OTHER: {"VGPU": 1, VF: 1}},
            {NEXT: {"VGPU": 1, VF: 1}, OTHER: WITH_CARD},
            (NEXT, OTHER),
        ),
    ],
    ids=["exchanged", "three, resized", "one left", "one left its unit to one resized", "two anew"],
)
def test_claims_of_before_they_were_released_and_made_anew_follow_the_guests_in_one_repair(
    world: Restored,
    then: Mapping[str, Mapping[str, int]],
    since: Mapping[str, Mapping[str, int]],
    runs: tuple[str, ...],
) -> None:
    now, held = restore_from_before(world, then, since, runs)
    report = world.heal()
    assert not report.failed and not report.left
    check_follows(world, now, held)


@pytest.mark.first_variant
def test_a_claim_whose_guest_is_shut_off_follows_its_definition_where_placement_has_just_that(
    world: Restored,
) -> None:
    """Two guests have each other's card and function, and one of them does not run.

    Placement tells that by the card's provider, or, where all units are on one provider, by other amounts.
    """
    then = {WEB: CARD_AND_VF, OTHER: CARD_AND_VF}
    place = {**CARD_AND_VF, "VCPU": 2} if world.a.driver.describe().providers[0].units else CARD_AND_VF
    now, held = restore_from_before(world, then, {OTHER: place, WEB: place}, (WEB,), off=(OTHER,))
    report = world.heal()
    assert not report.failed and not report.left
    check_follows(world, now, held)


@pytest.mark.first_variant
def test_no_repair_is_offered_that_a_claim_which_does_not_follow_would_refuse(world: Restored) -> None:
    """Placement tells functions of one card not apart, so a definition alone does not say who has which."""
    since = {NEXT: WITH_VF, OTHER: WITH_VF, WEB: WITH_VF}
    then = {OTHER: WITH_VF, WEB: WITH_VF, NEXT: WITH_VF}
    now, held = restore_from_before(world, then, since, (WEB, NEXT), off=(OTHER,))
    a = world.a
    assert {who: claim.allocations for who, claim in a.tracker.claims().items()} == held
    report = world.heal()
    assert not report.failed and not report.healed
    told = {finding.subject: finding for finding in report.left if finding.kind == "another unit"}
    assert told.keys() == {WEB, NEXT}
    for finding in told.values():
        assert not finding.repair
        assert f"Nothing is repaired while the claim of {OTHER} has the {VF}" in finding.reason
        assert "plimsoll release" in finding.reason
    assert a.tracker.release(OTHER)
    assert not world.heal().failed
    a.claim(OTHER, **WITH_VF)
    check_follows(world, now, held)


def restore_from_before(
    world: Restored,
    then: Mapping[str, Mapping[str, int]],
    since: Mapping[str, Mapping[str, int]],
    runs: tuple[str, ...],
    off: tuple[str, ...] = (),
) -> tuple[dict[str, Claim], dict[str, Allocations]]:
    """A journal of when `then` was claimed, beside guests of `since`; the claims and allocations of now."""
    a = world.a
    for who, place in then.items():
        a.claim(who, **place)
    world.save()
    a.look()
    for who in then:
        a.tracker.release(who)
    for who, place in since.items():
        a.claim(who, **place)
    now = dict(a.tracker.claims())
    idle = (replace(guest_of(now[who]), state=GuestState.SHUTOFF) for who in off)
    a.guests(*(guest_of(now[who]) for who in runs), *idle)
    held = {who: world.hosts.raw.allocations_of(who).allocations for who in since}
    world.restore()
    return now, held


def check_follows(world: Restored, now: Mapping[str, Claim], held: Mapping[str, Allocations]) -> None:
    assert {who: world.hosts.raw.allocations_of(who).allocations for who in held} == held
    claims = world.a.tracker.claims()
    assert {who: (claim.allocations, sorted(claim.exact)) for who, claim in claims.items()} == {
        who: (claim.allocations, sorted(claim.exact)) for who, claim in now.items()
    }
    world.a.look()
    world.a.check()
    assert world.findings() == []


@pytest.mark.parametrize("first", [FLAT, NESTED], ids=["flat first", "nested first"])
def test_placement_of_before_a_reshape_is_reshaped_to_where_the_claims_are(
    tmp_path: Path, first: Mapping[str, Any]
) -> None:
    """Nothing but the claims knows who is on which card: a plan by uuid would exchange them."""
    placement = Embedded(tmp_path)
    world = Restored(tmp_path, placement, **first)
    a, hosts = world.a, world.hosts
    with hosts:
        hosts.b.close()
        for name in sorted((uuid_of(f"web{number}") for number in range(4)), reverse=True):
            a.claim(name, **PLACES[0])
        a.close()
        hosts._transport.close()
        files = [file for file in tmp_path.glob("placement.db*") if not file.name.endswith(".lock")]
        for file in files:
            shutil.copy(file, tmp_path / f"copy of {file.name}")
        reopen(hosts, placement)
        reshape(world)
        claims = a.tracker.claims()
        a.close()
        hosts._transport.close()
        for file in tmp_path.glob("placement.db*"):
            file.unlink()
        for file in files:
            shutil.copy(tmp_path / f"copy of {file.name}", file)
        reopen(hosts, placement)
        a.look()
        assert a.tracker.claims() == claims
        a.check()
        assert world.findings() == []
        hosts.b._transport = hosts._transport
        hosts.b._open()


def reopen(hosts: Hosts, placement: Placement) -> None:
    hosts._transport = hosts.a._transport = placement.transport()
    hosts.raw = PlacementClient(hosts._transport)
    hosts.a._open()
