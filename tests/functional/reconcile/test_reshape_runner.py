"""Reshapes in the pass, on each placement: all or nothing, exactly once, and back again.

Whether Placement executed one that it did not answer, is read from what it holds.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.examples import examples
from kits.placements import Placement
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.reshape_load import Load, loaded, reshaped
from kits.tracker import Crash, Death, fast_directory, request

from agent.driver import Description, MoveInstruction
from agent.errors import DoesNotFit, PlacementConflict, PlacementFull, PlacementUnavailable, ReshapeRefused
from agent.placement.client import ConsumerAllocations
from agent.reconcile import reshape_runner
from agent.reconcile.reshape_runner import fence_and_check, was_executed
from agent.reshape.receipt import Receipt

FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))


def to_gpus(**owners: dict[str, int]) -> tuple[MoveInstruction, ...]:
    """owners {gpu: {consumer: amount}}"""
    return tuple(
        MoveInstruction(
            HOST, {"VGPU": 4}, gpu, {uuid_of(who): {"VGPU": n} for who, n in owners.get(gpu, {}).items()}
        )
        for gpu in ("gpu0", "gpu1")
    )


def test_vgpus_in_use_go_to_the_card_that_each_guest_holds(world: World) -> None:
    """Scenario 86: one atomic step, conserved; the second pass does nothing."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1, "VCPU": 2})
    world.hold("b", node1={"VGPU": 2})
    world.hold("bystander", node1={"VCPU": 4})
    world.tap.calls.clear()
    report = world.see(*NESTED, moves=to_gpus(gpu0={"b": 2}, gpu1={"a": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.tap.calls.count("POST /reshaper") == 1
    assert f"GET /allocations/{uuid_of('bystander')}" not in world.tap.calls
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    assert world.placed("a") == {HOST: {"VCPU": 2}, "gpu1": {"VGPU": 1}}
    assert world.placed("b") == {"gpu0": {"VGPU": 2}}
    assert world.placed("bystander") == {HOST: {"VCPU": 4}}
    before = world.everything()
    world.tap.calls.clear()
    assert world.again().operations == 0
    assert not any(call.startswith(("P", "D")) for call in world.tap.calls)
    assert world.everything() == before


def test_what_does_not_fit_is_refused_as_a_whole_and_done_once_it_does(world: World) -> None:
    """Scenario 89: more used than the child has: refused as a whole, nothing changed, retried."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 3})
    world.hold("b", node1={"VGPU": 2})
    moves = to_gpus(gpu0={"a": 3, "b": 2})
    report = world.see(*NESTED, moves=moves)
    assert report.error is None
    assert (
        report.pending is not None and "gpu0 would hold 5 VGPU and has room for 4" in report.pending.message
    )
    assert world.placed("a") == {HOST: {"VGPU": 3}}
    assert world.totals()["gpu0"] == {}, "the card stands ready, and offers nothing"
    vgpu = world.tree()[ROOT].inventories["VGPU"]
    assert (vgpu.total, vgpu.reserved) == (8, 8), "nobody claims it meanwhile"
    with pytest.raises(DoesNotFit):
        world.tracker.claim(request(VGPU=1))
    world.tracker.claim(request(VCPU=1))
    world.raw.delete_allocations(uuid_of("b"))
    report = world.see(*NESTED, moves=to_gpus(gpu0={"a": 3}))
    assert (report.error, report.pending) == (None, None)
    assert world.placed("a") == {"gpu0": {"VGPU": 3}}
    world.tracker.claim(request(VGPU=4))
    world.check()


def test_a_pending_reshape_that_is_called_off_gives_the_inventory_back(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 5})
    assert world.see(*NESTED, moves=to_gpus()).pending is not None
    assert world.journal.reserved_slots() != []
    assert world.see(*FLAT).pending is None
    assert world.tree()[ROOT].inventories["VGPU"].reserved == 0
    assert world.journal.reserved_slots() == []


def test_claims_follow_with_their_units(world: World) -> None:
    """The journal has the claim's new provider and units in the same step."""
    vfs = ("0000:3b:02.0", "0000:3b:02.1")
    nic = replace(
        provider("nic0", SRIOV_NET_VF=2, NET_BW_EGR_KILOBIT_PER_SEC=1000), units={"SRIOV_NET_VF": vfs}
    )
    world.see(host(SRIOV_NET_VF=2, NET_BW_EGR_KILOBIT_PER_SEC=1000))
    claimed = world.tracker.claim(request(SRIOV_NET_VF=1, NET_BW_EGR_KILOBIT_PER_SEC=300, VCPU=1)).claim
    assert not claimed.units
    moved = {"SRIOV_NET_VF": 2, "NET_BW_EGR_KILOBIT_PER_SEC": 1000}
    assert world.see(host(), nic, moves=(MoveInstruction(HOST, moved, "nic0"),)).pending is None
    claim = world.tracker.claim_of(claimed.consumer)
    assert claim is not None
    nic0 = world.uuid("nic0")
    assert claim.allocations == {
        ROOT: {"VCPU": 1},
        nic0: {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 300},
    }
    assert claim.units == {nic0: {"SRIOV_NET_VF": vfs[:1]}}
    world.check()
    assert world.tracker.claim(claim.request).claim == claim, "asked again it is the very same"
    back = (MoveInstruction("nic0", moved, HOST),)
    report = world.see(host(SRIOV_NET_VF=2, NET_BW_EGR_KILOBIT_PER_SEC=1000), moves=back)
    assert (report.pending, report.error) == (None, None)
    known = {ROOT: {"SRIOV_NET_VF": vfs[:1]}}
    assert world.tracker.claim_of(claim.consumer) == replace(claimed, units=known), "it stays the same unit"
    assert world.totals() == {HOST: {"VCPU": 64, **moved}}, "what was emptied is gone"
    assert world.tracker.release(claim.consumer)


def test_pinned_guests_go_from_vcpu_to_pcpu_and_back(world: World) -> None:
    """Scenario 94: the class changes, on one and the same provider; who is not pinned stays."""
    world.see(host())
    world.hold("pinned", node1={"VCPU": 4})
    world.hold("shared", node1={"VCPU": 8})
    dedicated = provider(HOST, None, VCPU=32, PCPU=32)
    there = MoveInstruction(HOST, {"VCPU": 32}, HOST, {uuid_of("pinned"): {"VCPU": 4}}, {"VCPU": "PCPU"})
    for _ in range(2):
        report = world.see(dedicated, moves=(there,))
        assert (report.error, report.pending) == (None, None)
        assert world.placed("pinned") == {HOST: {"PCPU": 4}}
        assert world.placed("shared") == {HOST: {"VCPU": 8}}
    assert len(world.journal.reshapes(done=True)) == 1
    back = MoveInstruction(HOST, {"PCPU": 32}, HOST, None, {"PCPU": "VCPU"})
    assert world.see(host(), moves=(back,)).pending is None
    assert world.placed("pinned") == {HOST: {"VCPU": 4}}
    assert world.totals() == {HOST: {"VCPU": 64}}


def test_encryption_contexts_go_to_a_provider_of_their_own_and_back(world: World) -> None:
    """Scenario 94: MEM_ENCRYPTION_CONTEXT, the same engine: only touched consumers are in the body."""
    world.see(host(MEM_ENCRYPTION_CONTEXT=15))
    world.hold("a", node1={"MEM_ENCRYPTION_CONTEXT": 1, "VCPU": 2})
    claim = world.tracker.claim(request(MEM_ENCRYPTION_CONTEXT=1, VCPU=1)).claim
    world.hold("bystander", node1={"VCPU": 4})
    before = world.everything()
    moved = {"MEM_ENCRYPTION_CONTEXT": 15}
    world.tap.calls.clear()
    report = world.see(host(), provider("sev", **moved), moves=(MoveInstruction(HOST, moved, "sev"),))
    assert (report.error, report.pending) == (None, None)
    assert f"GET /allocations/{uuid_of('bystander')}" not in world.tap.calls
    assert world.placed("a") == {HOST: {"VCPU": 2}, "sev": {"MEM_ENCRYPTION_CONTEXT": 1}}
    assert world.placed(claim.consumer) == {HOST: {"VCPU": 1}, "sev": {"MEM_ENCRYPTION_CONTEXT": 1}}
    assert world.placed("bystander") == {HOST: {"VCPU": 4}}
    world.check()
    report = world.see(host(**moved), moves=(MoveInstruction("sev", moved, HOST),))
    assert (report.error, report.pending) == (None, None)
    assert world.everything() == before
    assert world.tracker.claim_of(claim.consumer) == claim


def test_flat_to_numa_and_back(world: World) -> None:
    flat = (host(MEMORY_MB=8192), provider("gpu0", VGPU=4))
    cells = tuple(provider(f"numa{n}", VCPU=32, MEMORY_MB=4096) for n in (0, 1))
    nested = (provider(HOST, None, DISK_GB=10), *cells, provider("gpu0", "numa1", VGPU=4))
    world.see(*flat)
    world.hold("a", node1={"VCPU": 22, "MEMORY_MB": 3000}, gpu0={"VGPU": 1})
    world.hold("b", node1={"VCPU": 20, "MEMORY_MB": 3000})
    moved = {"VCPU": 32, "MEMORY_MB": 4096}
    world.see(*nested, moves=tuple(MoveInstruction(HOST, moved, f"numa{n}") for n in (0, 1)))
    assert world.placed("a") == {"numa0": {"VCPU": 22, "MEMORY_MB": 3000}, "gpu0": {"VGPU": 1}}
    assert world.placed("b") == {"numa1": {"VCPU": 20, "MEMORY_MB": 3000}}
    assert (
        world.see(*flat, moves=tuple(MoveInstruction(f"numa{n}", moved, HOST) for n in (0, 1))).pending
        is None
    )
    assert world.placed("b") == {HOST: {"VCPU": 20, "MEMORY_MB": 3000}}
    assert set(world.totals()) == {HOST, "gpu0"}


def test_two_cards_change_places(world: World) -> None:
    """A->B and B->A in one: the totals say nothing, the owners do; done again it is nothing."""
    cards = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
    world.see(*cards)
    world.hold("a", gpu0={"VGPU": 4})
    world.hold("b", gpu1={"VGPU": 4})
    swap = (
        MoveInstruction("gpu0", {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 4}}),
        MoveInstruction("gpu1", {"VGPU": 4}, "gpu0", {uuid_of("b"): {"VGPU": 4}}),
    )
    for _ in range(2):
        report = world.see(*cards, moves=swap)
        assert (report.error, report.pending) == (None, None)
        assert (world.placed("a"), world.placed("b")) == ({"gpu1": {"VGPU": 4}}, {"gpu0": {"VGPU": 4}})
    assert len(world.journal.reshapes(done=True)) == 1


def test_migrations_and_stopped_guests_move_too(world: World) -> None:
    """A migration owns what its guest uses here; it lands on the card that the guest holds."""
    world.see(*FLAT)
    world.hold("b-migration", kind="MIGRATION", node1={"VGPU": 1})
    world.hold("stopped", node1={"VGPU": 1})
    elsewhere = uuid_of("another host")
    world.raw.create_provider(replace(world.tree()[ROOT], uuid=elsewhere, name="other"))
    world.raw.put_inventories(elsewhere, 0, {"VCPU": world.tree()[ROOT].inventories["VCPU"]})
    leaving = uuid_of("leaving")
    world.raw.write_allocations(ConsumerAllocations(leaving, {elsewhere: {"VCPU": 1}}, None, "demo", "admin"))
    report = world.see(*NESTED, moves=to_gpus(gpu0={"stopped": 1}, gpu1={"leaving": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.placed("b-migration") == {"gpu1": {"VGPU": 1}}
    assert world.raw.allocations_of(uuid_of("b-migration")).consumer_type == "MIGRATION"
    assert world.placed("stopped") == {"gpu0": {"VGPU": 1}}
    assert world.placed("leaving") == {elsewhere: {"VCPU": 1}}


def test_the_other_hosts_part_of_a_doubled_allocation_stays(world: World) -> None:
    """Scenario 95."""
    world.see(*FLAT)
    elsewhere = uuid_of("another host")
    world.raw.create_provider(replace(world.tree()[ROOT], uuid=elsewhere, name="other"))
    world.raw.put_inventories(elsewhere, 0, dict(world.tree()[ROOT].inventories))
    doubled = {ROOT: {"VGPU": 1, "VCPU": 1}, elsewhere: {"VGPU": 1, "VCPU": 1}}
    world.raw.write_allocations(ConsumerAllocations(uuid_of("a"), doubled, None, "demo", "admin"))
    assert world.see(*NESTED, moves=to_gpus()).pending is None
    assert world.placed("a") == {
        HOST: {"VCPU": 1},
        "gpu0": {"VGPU": 1},
        elsewhere: {"VGPU": 1, "VCPU": 1},
    }


def test_inventory_that_another_agent_left_on_the_root_moves_by_the_drivers_word(world: World) -> None:
    """A host that was reported by somebody else until now: the agent never wrote that VGPU."""
    world.see(host())
    root = world.tree()[ROOT]
    vgpu = replace(root.inventories["VCPU"], total=8, max_unit=8)
    world.raw.put_inventories(ROOT, root.generation or 0, {**root.inventories, "VGPU": vgpu})
    world.hold("a", node1={"VGPU": 2})
    assert world.see(*NESTED, moves=to_gpus(gpu1={"a": 2})).pending is None
    assert world.placed("a") == {"gpu1": {"VGPU": 2}}
    assert "VGPU" not in world.totals()[HOST]


def test_a_lost_reply_is_resolved_by_reading_and_never_asked_twice(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})

    def lost(call: str) -> None:
        if call == "POST /reshaper":
            raise PlacementUnavailable("the answer was lost, as it was told")

    world.tap.after = lost
    world.tap.calls.clear()
    report = world.see(*NESTED, moves=to_gpus(gpu1={"a": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.tap.calls.count("POST /reshaper") == 1
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    assert len(world.journal.reshapes(done=True)) == 1 and not world.journal.reshapes(done=False)


def test_a_request_that_never_arrived_is_asked_again_by_the_next_pass(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})

    def lost(call: str) -> None:
        if call == "POST /reshaper":
            raise PlacementUnavailable("placement is away, as it was told")

    world.tap.before = lost
    report = world.see(*NESTED, moves=to_gpus(gpu1={"a": 1}))
    assert isinstance(report.error, PlacementUnavailable)
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    assert not world.journal.reshapes(done=False)
    world.tap.before = lambda _: None
    assert world.again().pending is None
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}


def test_a_refusal_of_placement_leaves_everything_as_it_was(world: World) -> None:
    """A service that does not let the agent reshape."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    before = world.placed("a"), world.totals()[HOST]
    world.tap.before = _refuse
    report = world.see(*NESTED, moves=to_gpus(gpu1={"a": 1}))
    assert isinstance(report.pending, ReshapeRefused) and "Placement refused" in report.pending.message
    assert (world.placed("a"), world.totals()[HOST]) == before
    assert world.totals()["gpu0"] == {}


def _refuse(call: str) -> None:
    if call == "POST /reshaper":
        from agent.errors import PlacementError

        raise PlacementError("You may not.", status=403)


@pytest.mark.parametrize(
    ("due", "busy"), [(True, False), (False, False), (True, True)], ids=["there", "and back", "closed for it"]
)
def test_death_at_every_boundary(
    due: bool, busy: bool, any_placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 91: killed before, during and after each request and each write: done exactly once.

    Others that are `busy` have the agent close the root first.
    """
    monkeypatch.setattr(reshape_runner, "CLOSE_AFTER_S", 0.0 if busy else 10**6)
    for number in range(1, 120):
        with fast_directory() as directory, World(Path(directory), any_placement) as world:
            claim = _prepared(world, due)
            death, others = Death(number), iter(range(3 if busy else 0))

            def told(call: str, world: World = world, death: Death = death, others: Any = others) -> None:
                if call == "POST /reshaper" and next(others, None) is not None:
                    root = world.tree()[ROOT]
                    world.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)
                death(call)

            with world.taps(told):
                try:
                    _asked(world, due)
                    crashed = False
                except Crash:
                    crashed = True
            if not crashed:
                assert number > 20
                closings = world.tap.calls.count(f"PUT /resource_providers/{ROOT}/inventories")
                assert not due or closings == (3 if busy else 2), "as said"
                return
            world.restart()
            report = _asked(world, due)
            assert (report.error, report.pending) == (None, None)
            world.check()
            found = world.placed(claim)
            wanted = {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}} if due else {HOST: {"VCPU": 1, "VGPU": 2}}
            assert found == wanted
            assert world.placed("a") == ({"gpu1": {"VGPU": 1}} if due else {HOST: {"VGPU": 1}})
            assert set(world.totals()) == ({HOST, "gpu0", "gpu1"} if due else {HOST})
            assert world.tree()[ROOT].inventories["VCPU"].reserved == 0
            assert not world.journal.reshapes(done=False)
            assert len(world.journal.reshapes(done=True)) == (1 if due else 2)
    raise AssertionError("more boundaries than that")


def _prepared(world: World, due: bool) -> str:
    """The uuid of a claim of the agent's own, beside a consumer of a scheduler's."""
    world.see(*FLAT)
    claim = world.tracker.claim(request(VCPU=1, VGPU=2)).claim.consumer
    world.hold("a", node1={"VGPU": 1})
    if not due:
        _asked(world, True)
    return claim


def _asked(world: World, due: bool) -> object:
    if due:
        return world.see(*NESTED, moves=to_gpus(gpu1={"a": 1}))
    return world.see(*FLAT, moves=tuple(MoveInstruction(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1")))


def test_unrelated_claims_in_between_cost_a_narrow_look_each(world: World) -> None:
    """Somebody claims between every look and every request, five times over: it gets through all the same."""
    world.see(*FLAT)
    for number in range(4):
        world.hold(f"c{number}", node1={"VGPU": 1})
    claimed: list[str] = []

    def claim(call: str) -> None:
        if call == "POST /reshaper" and len(claimed) < 5:
            claimed.append(world.hold(f"unrelated {len(claimed)}", node1={"VCPU": 1}))

    world.tap.before = claim
    world.tap.calls.clear()
    report = world.see(*NESTED, moves=to_gpus(gpu0={"c0": 1, "c1": 1}, gpu1={"c2": 1, "c3": 1}))
    assert (report.error, report.pending) == (None, None)
    calls = world.tap.calls
    assert calls.count("POST /reshaper") == 6
    assert calls.count(f"GET /allocations/{uuid_of('c0')}") <= 2, "not read anew for each conflict"
    assert not any(f"GET /allocations/{uuid}" in calls for uuid in claimed)
    assert world.placed("unrelated 4") == {HOST: {"VCPU": 1}}


def test_a_consumer_that_changes_in_between_is_planned_anew(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.hold("gone", node1={"VGPU": 1})
    seen: list[str] = []

    def change(call: str) -> None:
        if call == "POST /reshaper" and not seen:
            seen.append(call)
            world.raw.delete_allocations(uuid_of("gone"))
            with pytest.raises(PlacementFull):
                world.hold("late", node1={"VGPU": 2})
            world.hold("a", node1={"VGPU": 1, "VCPU": 1})

    world.tap.before = change
    report = world.see(*NESTED, moves=to_gpus(gpu1={"a": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.placed("a") == {"gpu1": {"VGPU": 1}, HOST: {"VCPU": 1}}
    assert world.placed("gone") == {}


@pytest.mark.parametrize("fits", [True, False], ids=["done", "refused"])
def test_what_others_put_on_the_host_while_it_is_reshaped_stays(fits: bool, world: World) -> None:
    """Before each request of the pass in turn: an aggregate, a trait, a class, and a provider of theirs."""
    mine, theirs, late = 1 if fits else 5, "CUSTOM_THEIRS", uuid_of("their provider")
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": mine})
    world.raw.ensure_trait(theirs)
    world.raw.ensure_resource_class(theirs)
    stock = {theirs: world.tree()[ROOT].inventories["VCPU"]}
    for number in range(60):
        world.tap.calls.clear()

        def put(call: str, number: int = number) -> None:
            if len(world.tap.calls) == number + 1:
                root = world.tree()[ROOT]
                at = world.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates | {late})
                at = world.raw.put_traits(ROOT, at, root.traits | {theirs})
                world.raw.put_inventories(ROOT, at, {**root.inventories, **stock})
                world.raw.create_provider(replace(root, uuid=late, name="late", parent=ROOT))
                world.raw.put_inventories(late, 0, stock)

        world.tap.before = put
        report = world.see(*NESTED, moves=to_gpus(gpu1={"a": mine}))
        world.tap.before = lambda _: None
        if len(world.tap.calls) <= number:
            assert number > 6
            return
        when = world.tap.calls[number]
        assert report.error is None and (report.pending is None) is fits, when
        root = world.tree()[ROOT]
        assert late in root.aggregates and theirs in root.traits and theirs in root.inventories, when
        assert late in world.tree() and world.tree()[late].inventories, when
        # As it was before, for the next turn.
        at = world.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates - {late})
        at = world.raw.put_traits(ROOT, at, root.traits - {theirs})
        owned = {name: each for name, each in root.inventories.items() if name != theirs}
        world.raw.put_inventories(ROOT, at, owned)
        world.raw.delete_provider(late)
        back = tuple(MoveInstruction(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1")) if fits else ()
        assert world.see(*FLAT, moves=back).error is None and set(world.totals()) == {HOST}
    raise AssertionError("more requests than that")


def test_what_the_driver_says_of_a_guest_is_not_said_of_its_next_claim(world: World) -> None:
    """The guest is pinned; before the reshape it is released, and claimed anew for one that is not."""
    world.see(host())
    pinned = world.tracker.claim(request(uuid_of("guest"), VCPU=4)).claim
    there = {pinned.consumer: {"VCPU": 4}}
    seen: list[str] = []

    def change(call: str) -> None:
        if call.startswith("GET") and not seen:
            seen.append(call)
            world.tracker.release(pinned.consumer)
            world.tracker.claim(pinned.request)
            world.driver.description = Description(
                (dedicated,), (MoveInstruction(HOST, {"VCPU": 32}, HOST, {}, {"VCPU": "PCPU"}),)
            )

    dedicated = provider(HOST, None, VCPU=32, PCPU=32)
    world.tap.before = change
    report = world.see(dedicated, moves=(MoveInstruction(HOST, {"VCPU": 32}, HOST, there, {"VCPU": "PCPU"}),))
    assert seen and (report.error, report.pending) == (None, None)
    assert world.raw.allocations_of(pinned.consumer).allocations == {ROOT: {"VCPU": 4}}


def test_an_endless_conflict_is_put_off_to_the_next_pass(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})

    def write(call: str) -> None:
        """Aggregates, which no inventory that is closed keeps others from writing."""
        if call == "POST /reshaper":
            root = world.tree()[ROOT]
            world.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)

    world.tap.before = write
    report = world.see(*NESTED, moves=to_gpus())
    tries = world.tap.calls.count("POST /reshaper")
    assert report.pending is not None
    assert f"were written {tries} times by other clients of Placement; nothing" in report.pending.message
    assert world.tree()[ROOT].inventories["VCPU"].reserved == 0, "what was closed for it is open"
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    assert world.tree()[ROOT].inventories["VGPU"].reserved == 8
    world.tap.before = lambda _: None
    assert world.again().pending is None
    assert world.placed("a") == {"gpu0": {"VGPU": 1}}


def test_inventory_changed_by_an_operator_in_between_is_not_overwritten(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    seen: list[str] = []

    def change(call: str) -> None:
        if call == "POST /reshaper" and not seen:
            seen.append(call)
            root = world.tree()[ROOT]
            theirs = replace(root.inventories["VCPU"], total=1000, max_unit=10)
            world.raw.put_inventories(ROOT, root.generation or 0, {**root.inventories, "DISK_GB": theirs})

    world.tap.before = change
    report = world.see(*NESTED, moves=to_gpus())
    assert (report.error, report.pending) == (None, None)
    assert world.totals()[HOST] == {"VCPU": 64, "DISK_GB": 1000}
    assert world.placed("a") == {"gpu0": {"VGPU": 1}}


@pytest.mark.slow
def test_a_thousand_consumers_get_through_twenty_claims_a_second(tmp_path: Path) -> None:
    """10 of 10, each within its first pass."""
    for number in range(examples(10)):
        directory = tmp_path / str(number)
        directory.mkdir()
        with loaded(directory, 1000) as world, Load(world, 20) as load:
            while load.done < 3:
                time.sleep(0.01)
            assert reshaped(world, 1000).asked < 24


TO_GPU = MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}})


@pytest.fixture
def used(world: World) -> World:
    world.see(host(VGPU=4))
    world.hold("a", node1={"VGPU": 1})
    return world


def unanswered(world: World, *, executed: bool) -> Receipt:
    """The intent of a reshape whose request got no answer, `executed` or not."""
    with world.tap.gone_from("POST /reshaper", after=executed):
        report = world.see(host(), provider("gpu0", VGPU=4), moves=(TO_GPU,))
    assert isinstance(report.error, PlacementUnavailable)
    (receipt,) = world.journal.reshapes(done=False).values()
    return receipt


@pytest.mark.parametrize("executed", [True, False])
def test_the_outcome_is_read_from_placement(used: World, executed: bool) -> None:
    receipt = unanswered(used, executed=executed)
    assert was_executed(used.client, ROOT, receipt) is executed
    assert fence_and_check(used.client, ROOT, receipt) is executed


def test_after_the_fence_a_late_request_is_rejected(used: World) -> None:
    receipt = unanswered(used, executed=False)
    assert fence_and_check(used.client, ROOT, receipt) is False
    inventories = {
        uuid: (generation, used.tree()[uuid].inventories) for uuid, generation in receipt.generations.items()
    }
    with pytest.raises(PlacementConflict):
        used.client.reshape(inventories)
