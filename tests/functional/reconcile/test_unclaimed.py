"""What is claimed or used is on offer to no scheduler, whoever uses it and whatever others write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.reshape import ROOT, World

from agent.claims.claim import Claim, ClaimState, ClaimStep
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Description,
    Guest,
    GuestState,
    MoveInstruction,
    UsedUnit,
)
from agent.errors import DoesNotFit, DriverUnavailable, PlacementConflict, PlacementFull
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transport import Reply
from agent.shapes import Allocations
from agent.tracker.claim_attempt import replace_claim
from agent.tree import Inventory, Provider

MEMORY, VCPU, VF = "MEMORY_MB", "VCPU", "SRIOV_NET_VF"
VFS = ("0000:41:02.0", "0000:41:02.1", "0000:41:02.2", "0000:41:02.3")
HOST = DescribedProvider(
    "node1",
    None,
    {
        VCPU: DescribedInventory(16, initial_allocation_ratio=4.0),
        MEMORY: DescribedInventory(32768, reserved=512),
    },
)
NIC = DescribedProvider("nic0", "node1", {VF: DescribedInventory(4)}, device="pci:nic0", units={VF: VFS})
GPU = DescribedProvider(
    "gpu0", "node1", {"PGPU": DescribedInventory(1)}, device="pci:gpu0", units={"PGPU": ("0000:84:00.0",)}
)
TREE = (HOST, NIC, GPU)


@pytest.fixture
def seen(world: World) -> World:
    """The host without guests is in Placement."""
    world.see(*TREE)
    return world


def guest(consumer: str, vcpus: int, memory_mb: int, *units: tuple[str, str]) -> Guest:
    used = tuple(UsedUnit(name, unit, "pci:") for name, unit in units)
    return Guest(consumer, "web1", GuestState.RUNNING, {VCPU: vcpus, MEMORY: memory_mb}, used)


def ask(consumer: str | None = None, **resources: int) -> ClaimRequest:
    return ClaimRequest(consumer or str(uuid4()), (RequestGroup("", resources),))


def offered(world: World, name: str, on: str = "node1") -> int:
    """What a scheduler can still be given, by Placement alone."""
    uuid = world.uuid(on)
    inventory = world.tree()[uuid].inventories[name]
    return inventory.capacity - world.raw.provider_usages(uuid)[name]


def schedule(world: World, consumer: str, on: str = "node1", **amounts: int) -> None:
    world.raw.write_allocations(ConsumerAllocations(consumer, {world.uuid(on): amounts}))


def test_beside_a_guest_that_an_empty_state_directory_does_not_know_nothing_of_it_is_offered(
    world: World,
) -> None:
    """Placement knows nothing of it either, and offers nothing of it at any moment."""
    runs = str(uuid4())
    world.driver.domains = (guest(runs, 8, 30000),)
    low: list[int] = []

    def look(call: str) -> None:
        if world.raw.find_provider(uuid=ROOT) and MEMORY in world.tree()[ROOT].inventories:
            low.append(offered(world, MEMORY))

    with world.taps(look):
        report = world.see(*TREE)
    assert report.error is None
    assert set(low) == {32768 - 512 - 30000}
    assert offered(world, VCPU) == 64 - 8
    lost, problem = report.problems
    assert "state directory is new, and 1 of the guests was here" in lost
    assert f"web1 ({runs})" in problem and "30000 MEMORY_MB, 8 VCPU on node1" in problem
    with pytest.raises(DoesNotFit, match="3000 MEMORY_MB asked, 2256 free on node1"):
        world.tracker.claim(ask(MEMORY_MB=3000))
    world.tracker.claim(ask(MEMORY_MB=2256))


def test_what_a_shut_off_guest_needs_counts_where_the_state_directory_was_lost(world: World) -> None:
    """What was claimed for it is not known. A guest that is defined later holds nothing while it is off."""
    runs, off = guest(str(uuid4()), 2, 8000), guest(str(uuid4()), 2, 12000, ("PGPU", "0000:84:00.0"))
    off = replace(off, name="web2", state=GuestState.SHUTOFF)
    world.driver.domains = (runs, off)
    lost, *others = world.see(*TREE).problems
    assert "state directory is new, and 2 of the guests" in lost and "state_path" in lost
    assert len(others) == 2 and any(f"web2 ({off.uuid})" in each for each in others)
    assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (32256 - 20000, 0)
    with pytest.raises(DoesNotFit, match="12500 MEMORY_MB asked, 12256 free on node1"):
        world.tracker.claim(ask(MEMORY_MB=12500))
    later = replace(guest(str(uuid4()), 2, 4000), state=GuestState.SHUTOFF)
    world.driver.domains = (runs, off, later)
    world.restart()
    world.again()
    assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (32256 - 20000, 0)
    assert world.tracker.view.found_guests() == {runs.uuid, off.uuid}
    world.tracker.claim(ask(off.uuid, VCPU=2, MEMORY_MB=12000, PGPU=1))
    world.tracker.claim(ask(runs.uuid, VCPU=2, MEMORY_MB=8000))
    assert world.again().problems == () and world.tracker.view.found_guests() == set()
    world.tracker.release(off.uuid)
    world.again()
    assert offered(world, MEMORY) == 32256 - 8000, "released, and off: it holds nothing"


@pytest.mark.parametrize("states", ["both run", "one runs", "both are off"])
def test_a_unit_that_two_guests_name_is_reserved_once_beside_a_new_state_directory(
    world: World, states: str
) -> None:
    """And once it is claimed for one of them, by its allocation alone."""
    one, other = (guest(str(uuid4()), 1, 1000, (VF, VFS[0]), ("PGPU", "0000:84:00.0")) for _ in range(2))
    other = replace(other, name="web2")
    off = {"both run": (), "one runs": (other,), "both are off": (one, other)}[states]
    world.driver.domains = tuple(
        replace(each, state=GuestState.SHUTOFF) if each in off else each for each in (one, other)
    )
    world.see(*TREE)
    assert (offered(world, VF, "nic0"), offered(world, "PGPU", "gpu0")) == (3, 0)
    assert world.tree()[world.uuid("nic0")].inventories[VF].reserved == 1
    world.tracker.claim(ask(SRIOV_NET_VF=3))
    if states == "one runs":
        world.tracker.claim(ask(one.uuid, VCPU=1, MEMORY_MB=1000, SRIOV_NET_VF=1, PGPU=1))
        world.again()
        for name, on in ((VF, "nic0"), ("PGPU", "gpu0")):
            assert world.tree()[world.uuid(on)].inventories[name].reserved == 0
        world.tracker.release(one.uuid)
    world.again()
    assert (offered(world, VF, "nic0"), offered(world, "PGPU", "gpu0")) == (0, 0)
    assert world.tree()[world.uuid("gpu0")].inventories["PGPU"].reserved == 1


def test_where_two_guests_run_with_one_unit_status_advises_to_stop_one_and_claim_for_the_other(
    world: World,
) -> None:
    """No claim fits for either of them before that."""
    one, other = (guest(str(uuid4()), 1, 1000, ("PGPU", "0000:84:00.0")) for _ in range(2))
    world.driver.domains = (one, replace(other, name="web2"))
    _, *problems = world.see(*TREE).problems
    assert len(problems) == 2
    for problem, label in zip(sorted(problems), (f"web2 ({other.uuid})", f"web1 ({one.uuid})"), strict=True):
        assert (
            f"The PGPU 0000:84:00.0 is in use by {label} as well: stop all but one of these guests, then "
            "claim for that one: `plimsoll gate claim-running`." in problem
        )
    with pytest.raises(
        DoesNotFit, match=f"0000:84:00.0 of its domain belongs to web2 .{other.uuid}. as well"
    ):
        world.tracker.claim(ask(one.uuid, VCPU=1, MEMORY_MB=1000, PGPU=1))
    world.driver.domains = (one,)
    world.again()
    world.tracker.claim(ask(one.uuid, VCPU=1, MEMORY_MB=1000, PGPU=1))
    assert world.again().problems == ()


def test_status_advises_no_claim_for_a_guest_that_does_not_fit(world: World) -> None:
    one, other = (guest(str(uuid4()), 1, 20_000) for _ in range(2))
    world.driver.domains = (one, replace(other, name="web2"))
    problems = [each for each in world.see(*TREE).problems if "The guest" in each]
    assert len(problems) == 2
    for problem in problems:
        assert (
            "No claim for it fits beside" in problem
            and "40000 MEMORY_MB of node1 are needed, of 32256" in problem
        )
        assert "Stop a guest, or release a claim, then claim for this one" in problem
    with pytest.raises(DoesNotFit):
        world.tracker.claim(ask(one.uuid, VCPU=1, MEMORY_MB=20_000))
    world.driver.domains = (one,)
    (problem,) = [each for each in world.again().problems if "The guest" in each]
    assert "Claim it (`plimsoll gate claim-running`)" in problem
    world.tracker.claim(ask(one.uuid, VCPU=1, MEMORY_MB=20_000))


def test_what_another_client_takes_away_is_reserved_while_the_driver_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that was reserved is offered before the driver says what has become of its guest."""
    stranger, runs = guest(str(uuid4()), 1, 3000), guest(str(uuid4()), 2, 8000, ("PGPU", "0000:84:00.0"))
    world.driver.domains = (stranger,)
    world.see(*TREE)
    world.tracker.claim(ask(runs.uuid, VCPU=2, MEMORY_MB=8000, PGPU=1))
    world.driver.domains = (stranger, runs)
    assert world.again().error is None
    free = 32256 - 3000 - 8000
    assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (free, 0)

    def away() -> Description:
        raise DriverUnavailable("libvirt does not answer.")

    put, tries = world.client.put_inventories, list[str]()

    def overtaken_once(uuid: str, generation: int, inventories: Mapping[str, Inventory]) -> int:
        tries.append(uuid)
        if len(tries) == 1:
            raise PlacementConflict("another client was faster")
        return put(uuid, generation, inventories)

    with monkeypatch.context() as patch:
        patch.setattr(world.driver, "describe", away)
        patch.setattr(world.client, "put_inventories", overtaken_once)
        patch.setattr("agent.placement.apply.ATTEMPTS_MAX", 1)
        world.raw.write_allocations(replace(world.raw.allocations_of(runs.uuid), allocations={}))
        for _ in range(2):
            world.tap.calls.clear()
            report = world.reconciler.verify("a verification")
            assert isinstance(report.error, DriverUnavailable)
            assert any(runs.uuid in problem for problem in report.problems)
            assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (free, 0)
        assert not [call for call in world.tap.calls if call.endswith("/allocations")], "its own write"
        world.reconciler.replace_driver(world.driver)
        assert isinstance(world.reconciler.verify("a reload").error, DriverUnavailable)
        assert offered(world, MEMORY) == free, "a driver that has described nothing yet changes nothing"
    world.driver.domains = ()
    assert world.again().error is None
    assert offered(world, MEMORY) == free + 3000, "the stranger has gone; the claim stays reserved"


def test_a_host_that_is_full_with_an_unclaimed_guest_is_not_said_to_be_over_capacity(seen: World) -> None:
    """Its inventory did not shrink: the problem is the guest, and names it."""
    seen.tracker.claim(ask(MEMORY_MB=20000))
    runs = str(uuid4())
    seen.driver.domains = (guest(runs, 2, 20000),)
    (problem,) = seen.reconciler.reconcile("a stranger starts").problems
    assert f"web1 ({runs})" in problem and "20000 MEMORY_MB" in problem
    (problem,) = seen.reconciler.verify("once more").problems
    assert f"web1 ({runs})" in problem


def test_a_guest_that_was_left_behind_by_a_move_is_not_to_be_claimed(world: World) -> None:
    """Status says in a sentence of its own that the guest is to be removed here."""
    runs = str(uuid4())
    world.driver.domains = (guest(runs, 2, 20000),)
    _, problem = world.see(*TREE).problems
    assert "claim-running" in problem and not world.reconciler.needs_pass
    world.tracker._context.guests.report_moved_away([runs])
    assert world.reconciler.needs_pass
    assert world.reconciler.reconcile("it had moved").problems == ()
    assert offered(world, MEMORY) == 32256 - 20000
    assert not world.reconciler.needs_pass


def test_what_is_reserved_for_a_guest_goes_with_it_and_is_back_when_it_is_back(world: World) -> None:
    runs = guest(str(uuid4()), 8, 30000)
    world.see(*TREE)
    for domains, free in (((runs,), 2256), ((), 32256), ((runs,), 2256)):
        world.driver.domains = domains
        assert world.reconciler.reconcile("a guest").error is None
        assert offered(world, MEMORY) == free
    off = replace(runs, state=GuestState.SHUTOFF)
    world.driver.domains = (off,)
    assert world.reconciler.reconcile("it stops").problems == ()
    assert offered(world, MEMORY) == 32256


def test_the_reservation_gives_way_to_the_guests_own_claim(world: World) -> None:
    """All of a device, and nearly all of the memory: the claim fits, and no second guest gets it."""
    runs = str(uuid4())
    world.driver.domains = (guest(runs, 8, 32256, ("PGPU", "0000:84:00.0")),)
    world.see(*TREE)
    assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (0, 0)
    assert not world.tracker.view.rows()[runs].claimed
    claim = world.tracker.claim(ask(runs, VCPU=8, MEMORY_MB=32256, PGPU=1)).claim
    assert claim.units == {world.uuid("gpu0"): {"PGPU": ("0000:84:00.0",)}}
    assert world.reconciler.needs_pass
    assert world.reconciler.reconcile("a claim").problems == ()
    assert not world.reconciler.needs_pass
    assert (offered(world, MEMORY), offered(world, "PGPU", "gpu0")) == (0, 0)
    assert world.tree()[ROOT].inventories[MEMORY].reserved == 512
    world.check()


def test_no_scheduler_comes_between_the_end_of_a_reservation_and_the_claim(world: World) -> None:
    """One request ends the reservation and writes the claim: at no moment is any of it on offer."""
    runs = str(uuid4())
    world.driver.domains = (guest(runs, 8, 30000),)
    world.see(*TREE)
    refused: list[str] = []

    def steal(call: str) -> None:
        with pytest.raises(PlacementFull):
            schedule(world, str(uuid4()), MEMORY_MB=20000)
        refused.append(call)

    with world.taps(steal):
        world.tracker.claim(ask(runs, VCPU=8, MEMORY_MB=30000))
    assert "POST /reshaper" in refused
    assert offered(world, MEMORY) == 2256
    world.check()


def test_where_reshaping_is_not_allowed_the_reservation_ends_just_before_the_claim(world: World) -> None:
    runs = str(uuid4())
    world.driver.domains = (guest(runs, 8, 32256),)
    world.see(*TREE)
    forbidden = {"errors": [{"status": 403, "title": "Forbidden", "detail": "Not by you."}]}
    world.tap.answer = lambda sent: Reply(403, forbidden) if sent.path == "/reshaper" else None
    claim = world.tracker.claim(ask(runs, VCPU=8, MEMORY_MB=32256)).claim
    assert world.raw.allocations_of(runs).allocations == claim.allocations
    world.check()


@pytest.mark.parametrize("how", ["DELETE", "PUT {}"])
@pytest.mark.parametrize("state", [GuestState.RUNNING, GuestState.SHUTOFF, None])
def test_a_claim_whose_allocation_another_client_took_away_is_reserved_until_one_heal(
    seen: World, how: str, state: GuestState | None
) -> None:
    """Scenario N1: a claimed guest runs, is shut off, or is yet to start."""
    claim = seen.tracker.claim(ask(VCPU=8, MEMORY_MB=30000, PGPU=1)).claim
    if state is not None:
        runs = guest(claim.consumer, 8, 30000, ("PGPU", "0000:84:00.0"))
        seen.driver.domains = (replace(runs, state=state),)
    seen.again()
    held = seen.raw.allocations_of(claim.consumer)
    if how == "DELETE":
        seen.raw.delete_allocations(claim.consumer)
    else:
        seen.raw.write_allocations(replace(held, allocations={}))
    foreseen = seen.reconciler.next_plan().operations
    report = seen.again()
    assert report.operations == len(foreseen) > 0
    (problem,) = report.problems
    assert claim.consumer in problem and "1 PGPU on gpu0" in problem and "audit --heal" in problem
    assert (offered(seen, MEMORY), offered(seen, "PGPU", "gpu0")) == (2256, 0)
    before = seen.tree()
    assert seen.again().problems == (problem,) and seen.tree() == before, "no flapping"
    with pytest.raises(PlacementFull):
        schedule(seen, str(uuid4()), "gpu0", PGPU=1)

    def steal(_: str) -> None:
        with pytest.raises(PlacementFull):
            schedule(seen, str(uuid4()), "gpu0", PGPU=1)

    with seen.taps(steal), seen.tracker.turns.take(claim.consumer):
        seen.tracker.heal(replace(held, generation=None))
    assert seen.raw.allocations_of(claim.consumer).allocations == claim.allocations
    assert seen.again().problems == ()
    assert seen.tree()[ROOT].inventories[MEMORY].reserved == 512
    seen.check()


def test_a_guest_that_grew_beyond_its_claim_has_the_excess_reserved(seen: World) -> None:
    claim = seen.tracker.claim(ask(VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)).claim
    has = claim.units[seen.uuid("nic0")][VF][0]
    more = next(unit for unit in VFS if unit != has)
    units = ((VF, has), (VF, more), ("PGPU", "0000:84:00.0"))
    seen.driver.domains = (guest(claim.consumer, 8, 16384, *units),)
    report = seen.reconciler.reconcile("it grew")
    (problem,) = report.problems
    assert "14336 MEMORY_MB, 6 VCPU on node1" in problem
    assert "1 PGPU on gpu0" in problem and f"1 {VF} on nic0" in problem
    assert offered(seen, MEMORY) == 32256 - 16384
    assert offered(seen, VCPU) == 64 - 2 - 2 * 4, "6 VCPU at the ratio 4 are 2 CPUs"
    assert (offered(seen, VF, "nic0"), offered(seen, "PGPU", "gpu0")) == (2, 0)
    for asked in ({"PGPU": 1}, {VF: 3}, {MEMORY: 32256 - 16383}):
        with pytest.raises(DoesNotFit):
            seen.tracker.claim(ask(**asked))
    given = seen.tracker.claim(ask(SRIOV_NET_VF=2)).claim.units[seen.uuid("nic0")][VF]
    assert not {has, more} & set(given)
    assert set(seen.tracker.view.unclaimed()) == {claim.consumer}


def test_a_scheduler_cannot_place_anything_on_what_a_guest_uses(world: World) -> None:
    world.driver.domains = (guest(str(uuid4()), 8, 30000),)
    world.see(*TREE)
    with pytest.raises(PlacementFull):
        schedule(world, str(uuid4()), MEMORY_MB=3000)


def test_what_is_held_is_not_reserved_again_by_an_agent_that_starts_anew(world: World) -> None:
    """Its state directory is empty, and Placement still has the guest's allocation: one look suffices."""
    runs = str(uuid4())
    world.see(*TREE)
    schedule(world, runs, VCPU=8, MEMORY_MB=30000)
    world.driver.domains = (guest(runs, 8, 30000),)
    assert world.again().problems == ()
    world.close()
    for file in world.directory.glob("agent.db*"):
        file.unlink()
    world._open()
    world.journal.remember_host(ROOT)
    low: list[int] = []
    with world.taps(lambda call: low.append(offered(world, MEMORY))):
        assert world.again().problems == ()
    assert set(low) == {2256}


def test_a_guest_of_all_memory_is_read_at_one_glance_in_the_next_plan(world: World) -> None:
    world.driver.domains = (guest(str(uuid4()), 8, 30000),)
    world.see(*TREE)
    assert world.reconciler.next_plan().empty


def test_an_allocation_on_the_memory_of_an_evacuated_guest_that_still_runs_is_not_taken_over(
    seen: World,
) -> None:
    """Its claim is left, Placement holds nothing of it here, and a scheduler uses the memory again."""
    claim = seen.tracker.claim(ask(VCPU=8, MEMORY_MB=30000)).claim
    seen.driver.domains = (guest(claim.consumer, 8, 30000),)
    seen.again()
    seen.raw.delete_allocations(claim.consumer)
    other = str(uuid4())
    schedule(seen, other, VCPU=2, MEMORY_MB=4096)
    with pytest.raises(DoesNotFit, match="4096 MEMORY_MB asked, 2256 free on node1"):
        seen.tracker.claim(ask(other, VCPU=2, MEMORY_MB=4096))
    seen.again()
    with pytest.raises(DoesNotFit, match="4096 MEMORY_MB asked, 2256 free on node1"):
        seen.tracker.claim(ask(other, VCPU=2, MEMORY_MB=4096))
    fits = str(uuid4())
    seen.raw.delete_allocations(other)
    schedule(seen, fits, MEMORY_MB=2256)
    assert seen.tracker.claim(ask(fits, MEMORY_MB=2256)).claim.adopted


def test_an_allocation_on_claimed_memory_is_not_taken_over_after_placement_was_restored(seen: World) -> None:
    """From a backup that is older than the claim; the claimed guest does not run yet."""
    claim = seen.tracker.claim(ask(MEMORY_MB=30000, SRIOV_NET_VF=3)).claim
    seen.raw.delete_allocations(claim.consumer)
    other = str(uuid4())
    schedule(seen, other, "nic0", SRIOV_NET_VF=2)
    with pytest.raises(DoesNotFit, match=f"2 {VF} asked, 1 free on nic0"):
        seen.tracker.claim(ask(other, SRIOV_NET_VF=2))


def test_a_running_guest_is_recorded_on_an_over_committed_host(world: World) -> None:
    """To record what it uses and holds gives nothing away."""
    first, second = str(uuid4()), str(uuid4())
    world.see(*TREE)
    for consumer in (first, second):
        schedule(world, consumer, MEMORY_MB=16000)
    smaller = {MEMORY: DescribedInventory(20000)}
    world.driver.domains = tuple(guest(consumer, 0, 16000) for consumer in (first, second))
    world.see(replace(HOST, inventories={**HOST.inventories, **smaller}), NIC, GPU)
    for consumer in (first, second):
        assert world.tracker.claim(ask(consumer, MEMORY_MB=16000)).claim.adopted


def test_the_reservation_gives_way_to_an_extension_of_the_guests_claim(seen: World) -> None:
    """Of memory that is all in use with it: Placement has room for it only once."""
    claim = seen.tracker.claim(ask(MEMORY_MB=16256)).claim
    seen.driver.domains = (guest(claim.consumer, 0, 32256),)
    seen.again()
    assert offered(seen, MEMORY) == 0
    assert seen.tracker.extend(claim, ask(claim.consumer, MEMORY_MB=32256)) is not None
    assert seen.again().problems == ()
    assert seen.tree()[ROOT].inventories[MEMORY].reserved == 512
    seen.check()


def test_the_reservation_gives_way_to_a_claim_in_place_of_the_guests_former_one(seen: World) -> None:
    claim = seen.tracker.claim(ask(MEMORY_MB=16256)).claim
    seen.driver.domains = (guest(claim.consumer, 0, 32256),)
    seen.again()
    assert offered(seen, MEMORY) == 0
    with seen.tracker.turns.take(claim.consumer):
        replace_claim(seen.tracker._context, ask(claim.consumer, MEMORY_MB=32256))
    assert seen.again().problems == ()
    assert seen.tree()[ROOT].inventories[MEMORY].reserved == 512
    seen.check()


def test_what_a_guest_that_was_left_behind_uses_is_reserved_until_it_is_gone(seen: World) -> None:
    """Another host took its instance over and released it: Placement holds nothing, the guest still runs."""
    claim = seen.tracker.claim(ask(VCPU=2, MEMORY_MB=30000)).claim
    seen.driver.domains = (guest(claim.consumer, 2, 30000),)
    seen.again()
    leaves = replace(claim, state=ClaimState.RELEASING)
    seen.tracker._register.step_claim(ClaimStep.RELEASE, claim.consumer, leaves)
    seen.raw.write_allocations(replace(seen.raw.allocations_of(claim.consumer), allocations={}))
    seen.again()
    assert offered(seen, MEMORY) == 2256
    seen.driver.domains = ()
    seen.again()
    assert offered(seen, MEMORY) == 32256


def test_a_guest_that_came_back_after_an_evacuation_is_not_said_to_have_lost_its_allocation(
    seen: World,
) -> None:
    """It is on another host by now, from the first look on: nothing is to be healed here."""
    claim = seen.tracker.claim(ask(VCPU=2, MEMORY_MB=30000)).claim
    seen.raw.create_provider(Provider(elsewhere := str(uuid4()), "node2", None))
    seen.raw.put_inventories(elsewhere, 0, {VCPU: Inventory(8), MEMORY: Inventory(30000)})
    left = replace(seen.raw.allocations_of(claim.consumer), allocations={elsewhere: {VCPU: 2, MEMORY: 30000}})
    seen.raw.write_allocations(left)
    seen.driver.domains = (guest(claim.consumer, 2, 30000),)
    for _ in range(2):
        assert seen.again().problems == ()
        assert offered(seen, MEMORY) == 2256
    seen.driver.domains = ()
    seen.again()
    assert offered(seen, MEMORY) == 32256


CARD_HOST = DescribedProvider("node1", None, {"VCPU": DescribedInventory(16)})


def left(*units: str) -> DescribedProvider:
    return replace(NIC, inventories={VF: DescribedInventory(len(units))}, units={VF: units})


def vfs_claimed(world: World, amount: int) -> Claim:
    return world.tracker.claim(ClaimRequest(str(uuid4()), (RequestGroup("", {VF: amount}),))).claim


def vfs_offered(world: World) -> int:
    """What a scheduler can still be given, by Placement alone."""
    uuid = world.uuid("nic0")
    return int(world.tree()[uuid].inventories[VF].capacity) - world.raw.provider_usages(uuid)[VF]


def test_two_of_four_vanish_while_claimed_and_the_two_that_are_there_can_be_given(world: World) -> None:
    world.see(CARD_HOST, NIC)
    claimed = vfs_claimed(world, 2)
    gone = claimed.units[world.uuid("nic0")][VF]
    there = tuple(unit for unit in VFS if unit not in gone)
    (problem,) = world.see(CARD_HOST, left(*there)).problems
    assert claimed.consumer in problem and "nic0" in problem
    assert all(unit in problem for unit in gone) and not any(unit in problem for unit in there)
    assert vfs_offered(world) == 2
    assert sorted(vfs_claimed(world, 2).units[world.uuid("nic0")][VF]) == sorted(there)
    with pytest.raises(DoesNotFit):
        vfs_claimed(world, 1)
    world.check()


def test_what_is_gone_is_counted_for_its_holder_alone(world: World) -> None:
    """Once its holder has released it, the agent offers it to no consumer, and the sentence ends."""
    world.see(CARD_HOST, NIC)
    first, second = vfs_claimed(world, 1), vfs_claimed(world, 1)
    there = [unit for unit in VFS if unit not in first.units[world.uuid("nic0")][VF]]
    world.see(CARD_HOST, left(*there))
    assert (world.totals()["nic0"], vfs_offered(world)) == ({VF: 4}, 2)
    assert not world.reconciler.needs_pass, "nothing has changed since"
    assert world.tracker.release(first.consumer)
    assert world.reconciler.needs_pass
    assert world.reconciler.reconcile("a release").problems == ()
    assert (world.totals()["nic0"], vfs_offered(world)) == ({VF: 3}, 2)
    assert not world.reconciler.needs_pass
    assert world.tracker.release(second.consumer)
    assert not world.reconciler.needs_pass, "what it had is there"


def test_what_comes_back_is_its_holders(world: World) -> None:
    world.see(CARD_HOST, NIC)
    claimed = vfs_claimed(world, 2)
    there = [unit for unit in VFS if unit not in claimed.units[world.uuid("nic0")][VF]]
    world.see(CARD_HOST, left(*there))
    assert world.see(CARD_HOST, NIC).problems == ()
    assert (world.totals()["nic0"], vfs_offered(world)) == ({VF: 4}, 2)
    assert world.tracker.claim_of(claimed.consumer) == claimed


CPU_RATIO = 4.0
OFFERING_HOST = DescribedProvider(
    "node1",
    None,
    {
        "VCPU": DescribedInventory(16, initial_allocation_ratio=CPU_RATIO),
        "MEMORY_MB": DescribedInventory(32768, reserved=512),
    },
)
CARDS = tuple(
    DescribedProvider(
        f"gpu{n}",
        "node1",
        {"PGPU": DescribedInventory(1)},
        device=f"pci:gpu{n}",
        units={"PGPU": (f"0000:8{n}:00.0",)},
    )
    for n in range(3)
)
CAPACITY = {
    ("node1", "VCPU"): 64,
    ("node1", "MEMORY_MB"): 32256,
    **{(f"gpu{n}", "PGPU"): 1 for n in range(3)},
}
ELSEWHERE = str(uuid4())


@pytest.fixture
def offering(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as offering:
        offering.see(OFFERING_HOST, *CARDS)
        offering.raw.create_provider(Provider(ELSEWHERE, "node2", None))
        offering.raw.put_inventories(
            ELSEWHERE, 0, {"VCPU": Inventory(64), "MEMORY_MB": Inventory(64000), "PGPU": Inventory(4)}
        )
        yield offering


def claimed(offering: World, **resources: int) -> Claim:
    return offering.tracker.claim(ClaimRequest(str(uuid4()), (RequestGroup("", resources),))).claim


Slots = dict[tuple[str, str], int]
"""{(provider uuid, class): amount}"""


def capacity(offering: World) -> Slots:
    return {(offering.uuid(on), name): amount for (on, name), amount in CAPACITY.items()}


def offered_slots(offering: World, slots: Iterable[tuple[str, str]]) -> Slots:
    """What a scheduler can still be given, by Placement alone."""
    found = {}
    for uuid in dict.fromkeys(uuid for uuid, _ in slots):
        _, inventories = offering.raw.provider_inventories(uuid)
        used = offering.raw.provider_usages(uuid)
        found |= {(uuid, name): max(0, each.capacity - used[name]) for name, each in inventories.items()}
    return found


def free(offering: World, slots: Slots, *claims: Claim) -> Slots:
    """The capacity without what these claims or Placement has for each consumer."""
    left = dict(slots)
    for each in claims:
        held = offering.raw.allocations_of(each.consumer).allocations
        for uuid, name in slots:
            left[uuid, name] -= max(
                held.get(uuid, {}).get(name, 0), each.allocations.get(uuid, {}).get(name, 0)
            )
    return left


def rewrite(offering: World, has: Claim, allocations: Allocations) -> None:
    offering.raw.write_allocations(
        replace(offering.raw.allocations_of(has.consumer), allocations=allocations)
    )


def card_of(has: Claim) -> str:
    return next(uuid for uuid in has.allocations if uuid != ROOT)


def lowers_memory(offering: World, has: Claim) -> None:
    rewrite(offering, has, {**has.allocations, ROOT: {"VCPU": 3, "MEMORY_MB": 1000}})


def drops_the_card(offering: World, has: Claim) -> None:
    rewrite(offering, has, {ROOT: has.allocations[ROOT]})


def drops_the_root(offering: World, has: Claim) -> None:
    rewrite(offering, has, {card_of(has): {"PGPU": 1}})


def takes_another_card(offering: World, has: Claim) -> None:
    other = next(
        offering.uuid(f"gpu{n}") for n in (2, 1, 0) if offering.uuid(f"gpu{n}") not in has.allocations
    )
    rewrite(offering, has, {ROOT: has.allocations[ROOT], other: {"PGPU": 1}})


def deletes(offering: World, has: Claim) -> None:
    offering.raw.delete_allocations(has.consumer)


def empties(offering: World, has: Claim) -> None:
    rewrite(offering, has, {})


def moves_it_away(offering: World, has: Claim) -> None:
    rewrite(offering, has, {ELSEWHERE: {"VCPU": 8, "MEMORY_MB": 30000, "PGPU": 1}})


def writes_it_anew_without_the_card(offering: World, has: Claim) -> None:
    deletes(offering, has)
    offering.raw.write_allocations(ConsumerAllocations(has.consumer, {ROOT: has.allocations[ROOT]}))


WAYS = (
    deletes,
    empties,
    lowers_memory,
    drops_the_card,
    drops_the_root,
    takes_another_card,
    writes_it_anew_without_the_card,
    moves_it_away,
)


def check(offering: World, slots: Slots, *claims: Claim) -> None:
    """All that is free is offered, but for the rounding of an overcommitted class, and nothing else is."""
    offers = offered_slots(offering, slots)
    for slot, left in free(offering, slots, *claims).items():
        ratio = CPU_RATIO if slot[1] == "VCPU" else 1
        assert left - ratio < offers[slot] <= left, slot


def test_a_verification_has_the_rest_of_a_claim_reserved(offering: World) -> None:
    """Whatever another client did: a DELETE raises no generation, and some PUTs not that of the card."""
    slots, beside = capacity(offering), claimed(offering, VCPU=1, MEMORY_MB=64, PGPU=1)
    for takes in WAYS:
        has = claimed(offering, VCPU=8, MEMORY_MB=20000, PGPU=1)
        (unit,) = has.units[card_of(has)]["PGPU"]
        used = {"VCPU": 8, "MEMORY_MB": 20000, "PGPU": 1}
        runs = Guest(has.consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", unit, "pci:"),))
        offering.driver.domains = (runs,)
        offering.again()
        takes(offering, has)
        assert offering.again().error is None
        check(offering, slots, has, beside)
        offering.raw.delete_allocations(has.consumer)
        offering.driver.domains = ()
        offering.tracker.release(has.consumer)
        offering.again()
        assert offered_slots(offering, slots) == free(offering, slots, beside)


CELLS = tuple(
    DescribedProvider(
        f"cell{n}",
        "node1",
        {"VCPU": DescribedInventory(16), "MEMORY_MB": DescribedInventory(16384)},
        device=f"numa:{n}",
    )
    for n in range(2)
)


@pytest.mark.parametrize("typed", [True, False], ids=["MIGRATION", "no types"])
@pytest.mark.parametrize("claimed", [False, True], ids=["unclaimed", "claimed"])
def test_the_place_of_a_guest_that_a_control_plane_moves_is_held_once(
    offering: World, typed: bool, claimed: bool
) -> None:
    """Of two cells, where nothing but the migration's allocation says in which the guest is.

    With it nothing is reserved a second time, in either cell; without it, all that the guest uses.
    """
    offering.see(DescribedProvider("node1", None, {}), *CELLS, *CARDS)
    client = offering.raw if typed else PlacementClient(offering.tap.inner, microversion="1.36")
    slots = [(offering.uuid(cell), name) for cell in ("cell0", "cell1") for name in ("VCPU", "MEMORY_MB")]
    place = {offering.uuid("cell1"): {"VCPU": 2, "MEMORY_MB": 4096}, offering.uuid("gpu0"): {"PGPU": 1}}
    used = {"VCPU": 2, "MEMORY_MB": 4096, "PGPU": 1}
    consumer, migration = str(uuid4()), str(uuid4())
    client.write_allocations(ConsumerAllocations(consumer, place))
    if claimed:
        assert offering.tracker.claim(ClaimRequest(consumer, (RequestGroup("", used),))).claim.adopted
    offering.driver.domains = (
        Guest(consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", "0000:80:00.0", "pci:"),)),
    )
    assert offering.again().problems == ()
    base = offered_slots(offering, [*slots, (offering.uuid("gpu0"), "PGPU")])
    held = client.allocations_of(consumer)
    client.write_allocations(
        ConsumerAllocations(migration, place, consumer_type="MIGRATION"),
        replace(held, allocations={ELSEWHERE: used}),
    )
    for _ in range(2):
        offering.again()
        assert offered_slots(offering, base) == base
    offering.raw.delete_allocations(migration)
    offering.again()
    after = offered_slots(offering, base)
    for name in ("VCPU", "MEMORY_MB"):
        assert sum(after[slot] for slot in slots if slot[1] == name) == sum(
            base[slot] for slot in slots if slot[1] == name
        )
    assert after[offering.uuid("gpu0"), "PGPU"] == 0


@pytest.mark.parametrize("runs", [True, False], ids=["running", "no guest"])
def test_a_part_of_a_claim_that_a_migration_does_not_hold_is_reserved(offering: World, runs: bool) -> None:
    """Another client takes the card out of the allocation; then a control plane moves what is left."""
    slots, has = capacity(offering), claimed(offering, VCPU=1, MEMORY_MB=1000, PGPU=1)
    used = {"VCPU": 1, "MEMORY_MB": 1000, "PGPU": 1}
    (unit,) = has.units[card_of(has)]["PGPU"]
    guest = Guest(has.consumer, "web1", GuestState.RUNNING, used, (UsedUnit("PGPU", unit, "pci:"),))
    offering.driver.domains = (guest,) if runs else ()
    drops_the_card(offering, has)
    offering.again()
    check(offering, slots, has)
    held = offering.raw.allocations_of(has.consumer)
    offering.raw.write_allocations(
        ConsumerAllocations(str(uuid4()), held.allocations, consumer_type="MIGRATION"),
        replace(held, allocations={ELSEWHERE: used}),
    )
    for _ in range(2):
        offering.again()
        offers = offered_slots(offering, slots)
        assert offers[card_of(has), "PGPU"] == 0
        assert offers[ROOT, "MEMORY_MB"] == slots[ROOT, "MEMORY_MB"] - 1000


CPUS = ("4", "5")


def flat_cpus() -> tuple[DescribedProvider, ...]:
    inventories = {
        VCPU: DescribedInventory(4),
        "PCPU": DescribedInventory(4),
        MEMORY: DescribedInventory(32768),
    }
    return (
        DescribedProvider("node1", None, inventories, device="host", units={"PCPU": ("4", "5", "6", "7")}),
    )


def cpus_on_cells() -> tuple[DescribedProvider, ...]:
    """Each has half; both claimed CPUs are on the first one."""
    inventories = {
        VCPU: DescribedInventory(2),
        "PCPU": DescribedInventory(2),
        MEMORY: DescribedInventory(16384),
    }
    return (
        DescribedProvider("node1", None, {}, device="host"),
        *(
            DescribedProvider(
                f"node1_numa{number}",
                "node1",
                inventories,
                device=f"numa:{number}",
                units={"PCPU": cpus},
                cell=number,
            )
            for number, cpus in ((0, CPUS), (1, ("6", "7")))
        ),
    )


def to_cells(*consumers: str) -> tuple[MoveInstruction, ...]:
    amounts = {VCPU: 2, "PCPU": 2, MEMORY: 16384}
    shares = {consumer: {VCPU: 1, "PCPU": 1, MEMORY: 10000} for consumer in consumers}
    return (
        MoveInstruction("node1", amounts, "node1_numa0", shares),
        MoveInstruction("node1", amounts, "node1_numa1", {}),
    )


def two_pinned(world: World) -> tuple[Claim, Claim]:
    """Two guests with a dedicated CPU of the first cell and more than half of its memory each."""
    world.see(*flat_cpus())
    amounts = {VCPU: 1, "PCPU": 1, MEMORY: 10000}
    claims = [world.tracker.claim(replace(ask(**amounts), name=name)).claim for name in ("a", "b")]
    world.driver.domains = tuple(
        Guest(
            claim.consumer,
            claim.request.name,
            GuestState.RUNNING,
            amounts,
            tuple(UsedUnit("PCPU", unit, "host") for _, _, unit in claim.exact),
        )
        for claim in claims
    )
    assert world.see(*flat_cpus()).problems == ()
    first, second = claims
    return first, second


def test_beside_a_reshape_that_waits_the_status_is_true_of_a_claim_that_placement_does_not_hold(
    world: World,
) -> None:
    """It is on the host as Placement has it, and what is to move is reserved as a whole."""
    first, second = two_pinned(world)
    world.raw.delete_allocations(second.consumer)
    report = world.see(*cpus_on_cells(), moves=to_cells(first.consumer, second.consumer))
    assert report.pending is not None
    a, b = f"a ({first.consumer})", f"b ({second.consumer})"
    for share in (f"10000 of {a}", f"10000 of {b} that Placement does not hold"):
        assert share in report.pending.message
    (problem,) = report.problems
    assert problem.startswith(f"{b} has a claim of 10000 MEMORY_MB, 1 PCPU, 1 VCPU on node1 that Placement")
    assert "The agent reserves it, so that no scheduler is offered it" in problem
    assert [offered(world, name) for name in (VCPU, "PCPU", MEMORY)] == [-1, -1, -10000], "all is reserved"
    assert world.again().problems == (problem,)


def test_what_is_unheld_beside_an_undone_reshape_is_reserved_where_placement_has_the_inventory(
    world: World,
) -> None:
    """The driver describes the cells, and Placement keeps the host as it was before them."""
    claim, other = two_pinned(world)
    world.tracker.release(other.consumer)
    world.driver.domains = world.driver.domains[:1]
    moves = to_cells(claim.consumer)
    assert world.see(*cpus_on_cells(), moves=moves).pending is None
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    world.raw.delete_allocations(claim.consumer)
    report = world.see(*cpus_on_cells(), moves=moves)
    assert [offered(world, name) for name in (VCPU, "PCPU", MEMORY)] == [3, 3, 22768]
    (problem,) = (each for each in report.problems if claim.consumer in each)
    assert "1 PCPU, 1 VCPU on node1 that Placement does not hold" in problem
    assert "The agent reserves it, so that no scheduler is offered it" in problem
