"""What is plugged into guests that run: a finding at once, and reserved; or claimed, and given back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import World, told, world_of
from kits.placements import Placement
from kits.tracker import VFS as CARD_VFS
from kits.tracker import Kit, guest, request, uuid_of

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import ClaimConflict, PlacementUnavailable
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations

VF, PGPU = "SRIOV_NET_VF", "0000:83:00.0"
VFS = tuple(f"0000:41:02.{number}" for number in range(8))


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with world_of(told(tmp_path, placement)) as world:
        yield world


def grow(world: World) -> None:
    world.agent.apply_settings(replace(world.agent.settings, claims_grow=True), None)


@pytest.fixture
def growing(world: World) -> World:
    """Its claims grow with what their guests use."""
    grow(world)
    return world


def runs(world: World, uuid: str, *vfs: str, state: GuestState = GuestState.RUNNING, **amounts: int) -> None:
    """A guest with these virtual functions, as the driver reports it now."""
    units = tuple(UsedUnit(VF, vf, "pci:0000:41:00.0") for vf in vfs)
    if vfs:
        amounts[VF] = len(vfs)
    world.driver.add_guest(Guest(uuid, "web", state, amounts, units))
    world.agent.reconcile("an event")


def findings(world: World) -> list[tuple[str, str]]:
    """What the agent knows by itself: nobody asked for an audit."""
    report = world.agent._auditor.last
    return [(finding.kind, finding.subject) for finding in report.findings]


def held(world: World, uuid: str) -> dict[str, dict[str, int]]:
    tree = world.operations.tree()[0]
    found = world.operations.client.allocations_of(uuid).allocations
    return {tree[provider].name: dict(amounts) for provider, amounts in found.items()}


def units(world: World, uuid: str) -> list[str]:
    claim = world.agent._tracker.claim_of(uuid)
    assert claim is not None
    return sorted(unit for _, _, unit in claim.exact)


def free(world: World, name: str, provider: str) -> int:
    """What Placement offers schedulers."""
    found = world.operations.tree()[0].by_name(provider)
    assert found is not None
    _, inventories = world.operations.client.provider_inventories(found.uuid)
    return inventories[name].capacity - world.operations.client.provider_usages(found.uuid)[name]


def claimed(world: World, **amounts: int) -> str:
    return world.operations.claim(request(**amounts)).consumer


# report


def test_what_is_plugged_is_a_finding_at_once_and_reserved(world: World) -> None:
    uuid = claimed(world, VCPU=2, MEMORY_MB=1024)
    runs(world, uuid, VCPU=2, MEMORY_MB=1024)
    assert findings(world) == []
    before = free(world, "VCPU", "node1"), free(world, VF, "node1_net_enp65s0f0")
    runs(world, uuid, VFS[3], VCPU=6, MEMORY_MB=1024)
    assert findings(world) == [("uses more", uuid)]
    assert held(world, uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    after = free(world, "VCPU", "node1"), free(world, VF, "node1_net_enp65s0f0")
    assert after == (before[0] - 4, before[1] - 1)
    runs(world, uuid, VCPU=1, MEMORY_MB=1024)
    assert findings(world) == [("uses less", uuid)]
    runs(world, uuid, VCPU=2, MEMORY_MB=1024)
    assert findings(world) == []
    assert (free(world, "VCPU", "node1"), free(world, VF, "node1_net_enp65s0f0")) == before


def test_while_nothing_changes_nothing_is_asked(world: World) -> None:
    uuid = claimed(world, VCPU=2)
    runs(world, uuid, VCPU=4)
    world.agent.reconcile("the reservation")
    before = world.wire.requests
    for _ in range(3):
        world.agent.reconcile("its interval")
    assert world.wire.requests == before


def test_without_audits_there_are_no_findings(world: World) -> None:
    world.agent.apply_settings(replace(world.agent.settings, audit_interval_s=0), None)
    uuid = claimed(world, VCPU=2)
    runs(world, uuid, VCPU=4)
    assert findings(world) == []
    assert any(uuid in problem for problem in world.agent._problems)


@pytest.mark.parametrize("grows", [False, True])
def test_a_difference_that_comes_or_goes_is_told_once_unless_the_claim_follows(
    world: World, *, grows: bool
) -> None:
    uuid, tracker = claimed(world, VCPU=2), world.agent._tracker
    runs(world, uuid, VCPU=2)
    for vcpus in (4, 4, 3, 2, 2):
        known = tracker.view.rows()[uuid].guest
        assert known is not None
        tracker.see_guests([replace(known, resources={"VCPU": vcpus})])
        told = not grows and known.resources["VCPU"] != vcpus
        assert tracker.use.follow(grow=grows) is told
    assert held(world, uuid) == {"node1": {"VCPU": 2}}


# grow


def test_what_comes_is_claimed_and_what_goes_is_given_back(growing: World) -> None:
    uuid = claimed(growing, VCPU=2, MEMORY_MB=1024)
    runs(growing, uuid, VCPU=2, MEMORY_MB=1024)
    before = free(growing, "VCPU", "node1"), free(growing, VF, "node1_net_enp65s0f0")
    runs(growing, uuid, VFS[3], VCPU=6, MEMORY_MB=2048)
    assert held(growing, uuid) == {"node1": {"VCPU": 6, "MEMORY_MB": 2048}, "node1_net_enp65s0f0": {VF: 1}}
    assert (units(growing, uuid), findings(growing)) == ([VFS[3]], [])
    growing.agent.reconcile("the next")
    assert (free(growing, "VCPU", "node1"), free(growing, VF, "node1_net_enp65s0f0")) == (
        before[0] - 4,
        before[1] - 1,
    ), "nothing of it is reserved as well"
    runs(growing, uuid, VCPU=3, MEMORY_MB=1024)
    assert held(growing, uuid) == {"node1": {"VCPU": 3, "MEMORY_MB": 1024}}
    assert (units(growing, uuid), findings(growing)) == ([], [])
    claim = growing.agent._tracker.claim_of(uuid)
    assert claim == growing.journal.claims()[uuid]


def test_what_the_guest_never_had_stays_claimed(growing: World) -> None:
    uuid = claimed(growing, VCPU=4, SRIOV_NET_VF=1)
    runs(growing, uuid, VCPU=2)
    runs(growing, uuid, VCPU=2, MEMORY_MB=512)
    assert held(growing, uuid)["node1"]["VCPU"] == 4 and len(units(growing, uuid)) == 1


def test_a_guest_that_starts_anew_with_less_gives_nothing_back(growing: World) -> None:
    """The claim is an operator's, and covers the domain; only what goes while it runs is given back."""
    uuid = claimed(growing, VCPU=4)
    runs(growing, uuid, VCPU=4)
    runs(growing, uuid, VCPU=4, state=GuestState.SHUTOFF)
    runs(growing, uuid, VCPU=2, state=GuestState.SHUTOFF)
    runs(growing, uuid, VCPU=2)
    assert held(growing, uuid) == {"node1": {"VCPU": 4}}


def test_what_does_not_fit_is_a_finding_and_the_rest_of_the_host_keeps_it(growing: World) -> None:
    uuid, other = claimed(growing, VCPU=2), claimed(growing, SRIOV_NET_VF=1)
    (taken,) = units(growing, other)
    runs(growing, uuid, taken, VCPU=2)
    assert ("uses more", uuid) in findings(growing)
    assert held(growing, uuid) == {"node1": {"VCPU": 2}} and units(growing, other) == [taken]
    too_much = sum(cell.memory_mb for cell in growing.driver.host.cells) + 1
    runs(growing, uuid, VCPU=2, MEMORY_MB=too_much)
    assert findings(growing) == [("uses more", uuid)]
    assert held(growing, uuid) == {"node1": {"VCPU": 2}}


def test_a_claim_that_cannot_follow_is_not_tried_at_each_pass(growing: World) -> None:
    """A consumer gets no more of one provider than its max_unit, although the host has more."""
    uuid = claimed(growing, VCPU=2)
    most = len(frozenset().union(*(cell.cpus for cell in growing.driver.host.cells)))
    runs(growing, uuid, VCPU=most + 1)
    assert findings(growing) == [("uses more", uuid)] and held(growing, uuid) == {"node1": {"VCPU": 2}}
    growing.agent.reconcile("the reservation")
    before = growing.wire.requests
    for _ in range(3):
        growing.agent.reconcile("its interval")
    assert growing.wire.requests == before


def test_what_was_refused_once_is_tried_at_once_after_the_claim_has_followed(growing: World) -> None:
    """The claim is another one by then; only what is refused time and again waits."""
    uuid, other = claimed(growing, VCPU=2), claimed(growing, SRIOV_NET_VF=1)
    (taken,) = units(growing, other)
    runs(growing, uuid, VCPU=2)
    runs(growing, uuid, taken, VCPU=2)
    assert ("uses more", uuid) in findings(growing) and units(growing, uuid) == []
    runs(growing, uuid, VCPU=3)
    runs(growing, uuid, VCPU=2)
    growing.operations.release(other)
    runs(growing, uuid, taken, VCPU=2)
    assert (units(growing, uuid), findings(growing)) == ([taken], [])


def test_what_was_refused_is_tried_again_later(growing: World, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, other = claimed(growing, VCPU=2), claimed(growing, SRIOV_NET_VF=1)
    (taken,) = units(growing, other)
    runs(growing, uuid, taken, VCPU=2)
    growing.operations.release(other)
    growing.agent.reconcile("its interval")
    assert units(growing, uuid) == []
    monkeypatch.setattr("agent.tracker.follow_guest.RETRY_S", 0.0)
    growing.agent.reconcile("its interval")
    assert (units(growing, uuid), findings(growing)) == ([taken], [])


def test_an_allocation_that_another_client_wrote_is_not_overwritten(growing: World) -> None:
    uuid = claimed(growing, VCPU=2)
    runs(growing, uuid, VCPU=2)
    client = growing.operations.client
    there = client.allocations_of(uuid)
    (root,) = there.allocations
    client.write_allocations(replace(there, allocations={root: {"VCPU": 3}}))
    runs(growing, uuid, VCPU=5)
    assert held(growing, uuid) == {"node1": {"VCPU": 3}}


def test_a_guest_in_a_move_is_left_alone(growing: World) -> None:
    """A resize on the same host: the migration has the old claim, the instance the new one."""
    uuid = claimed(growing, VCPU=2)
    runs(growing, uuid, VCPU=2)
    migration = str(uuid4())
    wish = ClaimRequest(uuid, (RequestGroup("", {"VCPU": 3}),))
    growing.agent._tracker.begin_move(wish, MoveKind.RESIZE, migration)
    runs(growing, uuid, VFS[0], VCPU=8)
    assert held(growing, uuid) == {"node1": {"VCPU": 3}}
    assert held(growing, migration) == {"node1": {"VCPU": 2}}
    growing.agent._tracker.revert_move(migration)
    runs(growing, uuid, VFS[1], VCPU=8)
    assert held(growing, uuid) == {"node1": {"VCPU": 8}, "node1_net_enp65s0f0": {VF: 1}}


def test_a_claim_that_another_operation_works_on_follows_after_it(
    growing: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = claimed(growing, VCPU=2)
    runs(growing, uuid, VCPU=2)
    tracker = growing.agent._tracker
    follow = tracker.use.follow

    def beside_another(*, grow: bool) -> bool:
        with tracker.turns.take(uuid):
            return follow(grow=grow)

    with monkeypatch.context() as patch:
        patch.setattr(tracker.use, "follow", beside_another)
        runs(growing, uuid, VCPU=3)
    assert held(growing, uuid) == {"node1": {"VCPU": 2}}
    growing.agent.reconcile("the next")
    assert held(growing, uuid) == {"node1": {"VCPU": 3}}


def test_a_claim_that_is_left_alone_keeps_what_its_guest_had_to_give_back(
    growing: World,
) -> None:
    """Another operation works on the claim while something is taken from its guest."""
    uuid = claimed(growing, VCPU=3)
    runs(growing, uuid, VCPU=3)
    tracker = growing.agent._tracker
    with tracker.turns.take(uuid):
        growing.driver.add_guest(Guest(uuid, "web", GuestState.RUNNING, {"VCPU": 2}))
        tracker.see_guests(growing.driver.guests())
        tracker.use.follow(grow=True)
    tracker.use.follow(grow=True)
    assert held(growing, uuid) == {"node1": {"VCPU": 2}}


def test_a_guest_that_moved_away_unknown_to_this_host_is_left_alone(growing: World) -> None:
    uuid = claimed(growing, VCPU=2)
    runs(growing, uuid, VCPU=2)
    there = growing.operations.client.allocations_of(uuid)
    migration = str(uuid4())
    growing.operations.client.write_allocations(
        ConsumerAllocations(migration, there.allocations, None, "p", "u", "MIGRATION")
    )
    growing.operations.client.write_allocations(replace(there, allocations={}))
    runs(growing, uuid, VCPU=5)
    assert held(growing, uuid) == {} and held(growing, migration) == {"node1": {"VCPU": 2}}


def test_while_placement_is_away_it_waits(growing: World) -> None:
    uuid = claimed(growing, VCPU=2, MEMORY_MB=512)
    runs(growing, uuid, VFS[0], VCPU=2, MEMORY_MB=512)
    growing.wire.cut = True
    runs(growing, uuid, VFS[1], VCPU=1, MEMORY_MB=512)
    growing.wire.cut = False
    growing.retry()
    growing.agent.reconcile("the next")
    assert held(growing, uuid) == {
        "node1": {"VCPU": 1, "MEMORY_MB": 512},
        "node1_net_enp65s0f0": {VF: 1},
    }
    assert (units(growing, uuid), findings(growing)) == ([VFS[1]], [])


def test_while_placement_is_away_one_claim_asks_it_and_no_refusal_is_remembered(growing: World) -> None:
    both = [claimed(growing, VCPU=2) for _ in range(2)]
    for uuid in both:
        runs(growing, uuid, VCPU=2)
    for uuid in both:
        growing.driver.add_guest(Guest(uuid, "web", GuestState.RUNNING, {"VCPU": 3}))
    tracker, wire = growing.agent._tracker, growing.wire
    tracker.see_guests(growing.driver.guests())
    wire.calls.clear()
    wire.cut = True
    with pytest.raises(PlacementUnavailable):
        tracker.use.follow(grow=True)
    wire.cut = False
    assert len(wire.calls) == 1
    tracker.use.follow(grow=True)
    assert [held(growing, uuid) for uuid in both] == 2 * [{"node1": {"VCPU": 3}}]


def test_an_answer_that_is_lost_is_asked_for_again(growing: World) -> None:
    uuid = claimed(growing, VCPU=2)
    runs(growing, uuid, VCPU=2)
    growing.driver.add_guest(Guest(uuid, "web", GuestState.RUNNING, {"VCPU": 6}))
    growing.wire.lost = True
    growing.agent.reconcile("an event")
    growing.wire.lost = False
    growing.retry()
    growing.agent.reconcile("the next")
    claim = growing.agent._tracker.claim_of(uuid)
    assert claim is not None and claim.request.resources == {"VCPU": 6}
    assert held(growing, uuid) == {"node1": {"VCPU": 6}}
    assert findings(growing) == []


# What an audit found


def with_vf(claim: Claim, unit: str) -> Claim:
    """The claim with this virtual function."""
    nic = uuid_of("nic0")
    asked = replace(claim.request, groups=(RequestGroup("", {**claim.request.resources, VF: 1}),))
    return replace(
        claim,
        request=asked,
        allocations={**claim.allocations, nic: {VF: 1}},
        units={**claim.units, nic: {VF: (unit,)}},
    )


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        ("nothing", ""),
        ("the claim was made anew", "has changed: audit again"),
        ("another client wrote", "has changed: audit again"),
        ("the guest left", "has changed: audit again"),
        ("another claim got the unit", "which belongs to"),
    ],
)
def test_a_claim_gets_what_its_guest_uses_unless_that_has_changed(kit: Kit, meanwhile: str, why: str) -> None:
    before = kit.tracker.claim(request(VCPU=1)).claim
    kit.tracker.see_guests([guest(before.consumer)])
    unit = (
        kit_units(kit.tracker.claim(request(SRIOV_NET_VF=1)).claim)[0] if "unit" in meanwhile else CARD_VFS[1]
    )
    after = with_vf(before, unit)
    if meanwhile == "the claim was made anew":
        kit.tracker.release(before.consumer)
        kit.tracker.claim(request(before.consumer, VCPU=2))
    elif meanwhile == "another client wrote":
        kit.schedule(before.consumer, host={"VCPU": 2})
    elif meanwhile == "the guest left":
        kit.tracker.see_guests([])
    state = kit.state()
    if why:
        with pytest.raises(ClaimConflict, match=why):
            kit.tracker.use.record(before, after)
        assert kit.state() == state
        kit.tracker.release(before.consumer)
    else:
        kit.tracker.use.record(before, after)
        assert kit.tracker.claim_of(before.consumer) == after
        kit.check()


def kit_units(claim: Claim) -> list[str]:
    return [unit for _, _, unit in claim.exact]


@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        ("nothing", ""),
        ("one was made anew", "has changed: audit again"),
        ("another client wrote", "has changed: audit again"),
        ("both have one unit", "Two guests use the SRIOV_NET_VF"),
    ],
)
def test_claims_exchange_their_units_as_their_guests_use_them(kit: Kit, meanwhile: str, why: str) -> None:
    """In one step, and Placement is not written."""
    one, other = (kit.tracker.claim(request(SRIOV_NET_VF=1)).claim for _ in range(2))
    swapped = [
        (one, replace(one, units=one.units if meanwhile.startswith("both") else other.units)),
        (other, replace(other, units=one.units)),
    ]
    if meanwhile == "one was made anew":
        kit.tracker.release(one.consumer)
        kit.tracker.claim(replace(one.request, name="web1"))
    elif meanwhile == "another client wrote":
        kit.schedule(one.consumer, nic0={VF: 1}, host={"VCPU": 1})
    state = kit.state()
    kit.tap.calls.clear()
    if why:
        with pytest.raises(ClaimConflict, match=why):
            kit.tracker.use.follow_records(swapped)
        assert kit.state() == state
        kit.tracker.release(one.consumer)
    else:
        kit.tracker.use.follow_records(swapped)
        assert kit_units(kit.tracker.claims()[one.consumer]) == kit_units(other)
        kit.check()
        assert not [call for call in kit.tap.calls if not call.startswith("GET")]
