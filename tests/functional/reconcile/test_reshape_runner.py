"""Reshapes in the pass, on each placement: all or nothing, exactly once, and back again.

Whether Placement executed one that it did not answer, is read from what it holds.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.audit import CONSUMER, MIGRATION, a_move, claimed
from kits.examples import examples
from kits.placements import Placement
from kits.reshape import (
    BACK,
    FLAT,
    HOST,
    NESTED,
    ROOT,
    THERE,
    World,
    all_or_nothing,
    does,
    done_once,
    host,
    prepare,
    provider,
    to_gpu,
    to_gpus,
    uuid_of,
)
from kits.reshape_load import Load, loaded, reshaped
from kits.stalling_disk import StallingDisk
from kits.tracker import Death, dies, fast_directory, request

from agent.api.views import preview_view
from agent.cli.output import Style
from agent.cli.status import preview_lines
from agent.driver import Description, Guest, GuestState, MoveInstruction
from agent.errors import (
    ApplyError,
    DoesNotFit,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    ReshapeRefused,
    StateError,
    StateUnknown,
    UsageError,
)
from agent.moves.states import MoveState
from agent.placement.client import ConsumerAllocations
from agent.reconcile import reshape_runner
from agent.reconcile.reshape_runner import fence_and_check, was_executed
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.receipt import Receipt


@pytest.fixture
def held(world: World) -> World:
    """A scheduler gave one VGPU of the flat host to "a"."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    return world


def refusing(error: PlacementError) -> Callable[[str], None]:
    """For `World.tap.before`: what each reshape ends with."""

    def refuse(call: str) -> None:
        if call == "POST /reshaper":
            raise error

    return refuse


def test_vgpus_in_use_go_to_the_card_that_each_guest_holds(world: World) -> None:
    """Scenario 86: one atomic step, conserved; the second pass does nothing."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1, "VCPU": 2})
    world.hold("b", node1={"VGPU": 2})
    world.hold("bystander", node1={"VCPU": 4})
    world.tap.calls.clear()
    cards = [replace(card, traits=frozenset({"CUSTOM_CARD"})) for card in NESTED[1:]]
    report = world.see(host(), *cards, moves=to_gpus(gpu0={"b": 2}, gpu1={"a": 1}))
    assert (report.error, report.pending) == (None, None)
    assert world.tap.calls.count("POST /reshaper") == 1
    assert f"GET /allocations/{uuid_of('bystander')}" not in world.tap.calls
    until_sent = world.tap.calls[: world.tap.calls.index("POST /reshaper")]
    assert not [call for call in until_sent if call.startswith("GET") and world.uuid("gpu0") in call], "new"
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


def test_no_claim_gets_what_waits_to_move_where_the_rest_of_it_stays(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 3})
    world.hold("b", node1={"VGPU": 2})
    told = (to_gpu(0, a=3, b=2),)
    assert world.see(host(VGPU=4), provider("gpu0", VGPU=4), moves=told).pending is not None
    assert not world.tracker.explain(request(VGPU=1)).fits


def test_a_reshape_is_postponed_while_an_operation_on_what_moves_does_not_end(held: World) -> None:
    turns = held.tracker.turns
    turns.wait_s = 0.05
    with turns.take(uuid_of("a")):
        pending = held.see(*NESTED, moves=to_gpus()).pending
        assert f"operation on consumer {uuid_of('a')} has been under way" in str(pending)
        assert held.placed("a") == {"node1": {"VGPU": 1}}
    assert held.again().pending is None and "node1" not in held.placed("a")


def test_a_reshape_is_postponed_while_others_go_on_to_allocate_what_moves(held: World) -> None:
    """An operator's tool that lifts the reservation for each consumer that it lets in."""
    late: list[str] = []

    def allocate(call: str) -> None:
        vgpu = (root := held.tree()[ROOT]).inventories["VGPU"]
        if call == f"GET /resource_providers/{ROOT}/allocations" and vgpu.reserved:
            opened = {**root.inventories, "VGPU": replace(vgpu, reserved=0)}
            generation = held.raw.put_inventories(ROOT, root.generation or 0, opened)
            late.append(held.hold(f"late {len(late)}", node1={"VGPU": 1}))
            held.raw.put_inventories(ROOT, generation + 1, root.inventories)

    held.tap.before = allocate
    pending = held.see(*NESTED, moves=to_gpus()).pending
    held.tap.before = lambda _: None
    assert "other clients allocate what is to move" in str(pending) and len(late) == 4
    assert held.again().pending is None
    assert all("node1" not in held.placed(name) for name in ("a", "late 0", "late 3"))


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
    moves = to_gpus(gpu0={"stopped": 1}, gpu1={"leaving": 1})
    world.driver.description = Description(NESTED, moves)
    preview = world.reconciler.preview_reshape()
    targets = {each.consumer: preview.after[each.target].name for each in preview.relocations}
    assert targets == {uuid_of("b-migration"): "gpu1", uuid_of("stopped"): "gpu0"}
    report = world.see(*NESTED, moves=moves)
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


def test_a_lost_reply_is_resolved_by_reading_and_never_asked_twice(held: World) -> None:
    held.tap.calls.clear()
    with held.tap.away(after=True, only="POST /reshaper"):
        report = held.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    (sent,) = (number for number, call in enumerate(held.tap.calls) if call == "POST /reshaper")
    after = [call for call in held.tap.calls[sent + 1 :] if call.endswith("/inventories")]
    assert not any(call.startswith("PUT") for call in after), "what was executed needs no fence"
    assert held.placed("a") == {"gpu1": {"VGPU": 1}}
    assert len(held.journal.reshapes(done=True)) == 1 and not held.journal.reshapes(done=False)


@pytest.mark.parametrize("sent", [True, False], ids=["perhaps sent", "not sent"])
def test_a_request_that_never_arrived_is_asked_again_by_the_next_pass(held: World, *, sent: bool) -> None:
    with held.tap.away(sent=sent, only="POST /reshaper"):
        report = held.see(*NESTED, moves=THERE)
    assert isinstance(report.error, PlacementUnavailable)
    assert held.placed("a") == {HOST: {"VGPU": 1}}
    assert not held.journal.reshapes(done=False)
    assert held.again().pending is None
    assert held.placed("a") == {"gpu1": {"VGPU": 1}}


def test_a_refusal_of_placement_leaves_everything_as_it_was(held: World) -> None:
    """A service that does not let the agent reshape."""
    before = held.placed("a"), held.totals()[HOST]
    held.tap.before = refusing(PlacementError("You may not.", status=403))
    report = held.see(*NESTED, moves=THERE)
    assert isinstance(report.pending, ReshapeRefused) and "Placement refused" in report.pending.message
    assert (held.placed("a"), held.totals()[HOST]) == before
    assert held.totals()["gpu0"] == {}


@pytest.mark.parametrize(
    ("operation", "busy"),
    [("there", False), ("back", False), ("undo", False), ("there", True)],
    ids=["there", "and back", "undone", "closed for it"],
)
def test_death_at_every_boundary(
    operation: str, busy: bool, any_placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 91: killed before, during and after each request and each write: done exactly once.

    Others that are `busy` have the agent close the root first.
    """
    monkeypatch.setattr(reshape_runner, "CLOSE_AFTER_S", 0.0 if busy else 10**6)
    for number in range(1, 120):
        with fast_directory() as directory, World(Path(directory), any_placement) as world:
            prepare(world, operation)
            world.tap.calls.clear()
            death, others = Death(number), iter(range(3 if busy else 0))

            def told(call: str, world: World = world, death: Death = death, others: Any = others) -> None:
                if call == "POST /reshaper" and next(others, None) is not None:
                    root = world.tree()[ROOT]
                    world.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)
                death(call)

            if not dies(world.taps(told), lambda world=world: does(world, operation)):
                assert number > 20
                closings = world.tap.calls.count(f"PUT /resource_providers/{ROOT}/inventories")
                assert operation != "there" or closings == (2 if busy else 1), "as said"
                return
            world.restart()
            all_or_nothing(world)
            does(world, operation)
            done_once(world, operation)
    raise AssertionError("more boundaries than that")


def test_unrelated_claims_in_between_cost_a_narrow_look_each(world: World) -> None:
    """Somebody claims between every look and every request, five times over: it gets through all the same."""
    world.see(*FLAT)
    for number in range(4):
        world.hold(f"c{number}", node1={"VGPU": 1})
    claimed: list[str] = []

    def claim(call: str) -> None:
        if call == "POST /reshaper" and len(claimed) < 5:
            if not claimed:
                world.hold("c0", node1={"VGPU": 1})  # the same again: it is read anew before long
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


def test_a_consumer_that_changes_in_between_is_planned_anew(held: World) -> None:
    held.hold("gone", node1={"VGPU": 1})

    def change() -> None:
        held.raw.delete_allocations(uuid_of("gone"))
        with pytest.raises(PlacementFull):
            held.hold("late", node1={"VGPU": 2})
        held.hold("a", node1={"VGPU": 1, "VCPU": 1})

    held.tap.once("POST /reshaper", change)
    report = held.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    assert held.placed("a") == {"gpu1": {"VGPU": 1}, HOST: {"VCPU": 1}}
    assert held.placed("gone") == {}


def test_a_consumer_that_comes_after_the_plan_goes_along_in_the_same_pass(held: World) -> None:
    held.tap.once("P", lambda: held.hold("late", node1={"VGPU": 1}))
    report = held.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    assert held.placed("a") == {"gpu1": {"VGPU": 1}}
    assert held.placed("late") in ({"gpu0": {"VGPU": 1}}, {"gpu1": {"VGPU": 1}})


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
        assert world.see(*FLAT, moves=BACK if fits else ()).error is None and set(world.totals()) == {HOST}
    raise AssertionError("more requests than that")


def test_what_the_driver_says_of_a_guest_is_not_said_of_its_next_claim(world: World) -> None:
    """The guest is pinned; before the reshape it is released, and claimed anew for one that is not."""
    world.see(host())
    pinned = world.tracker.claim(request(uuid_of("guest"), VCPU=4)).claim
    there = {pinned.consumer: {"VCPU": 4}}
    dedicated = provider(HOST, None, VCPU=32, PCPU=32)
    told = MoveInstruction(HOST, {"VCPU": 32}, HOST, there, {"VCPU": "PCPU"})

    def change() -> None:
        world.tracker.release(pinned.consumer)
        world.tracker.claim(pinned.request)
        world.driver.description = Description((dedicated,), (replace(told, consumers={}),))

    world.tap.once("GET", change)
    report = world.see(dedicated, moves=(told,))
    assert world.driver.description.moves != (told,), "it has changed in between"
    assert (report.error, report.pending) == (None, None)
    assert world.raw.allocations_of(pinned.consumer).allocations == {ROOT: {"VCPU": 4}}


def test_an_endless_conflict_is_put_off_to_the_next_pass(held: World) -> None:
    def write(call: str) -> None:
        """Aggregates, which no inventory that is closed keeps others from writing."""
        if call == "POST /reshaper":
            root = held.tree()[ROOT]
            held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)

    held.tap.before = write
    held.pauses.clear()
    report = held.see(*NESTED, moves=to_gpus())
    tries = held.tap.calls.count("POST /reshaper")
    assert tries == 24 + 8, "as the documentation says; the last ones with the providers closed"
    assert len(held.pauses) >= tries - 1 and 0 < max(held.pauses) <= 0.05, "between each two"
    assert report.pending is not None
    assert f"were written {tries} times by other clients of Placement; nothing" in report.pending.message
    assert held.tree()[ROOT].inventories["VCPU"].reserved == 0, "what was closed for it is open"
    assert held.placed("a") == {HOST: {"VGPU": 1}}
    assert held.tree()[ROOT].inventories["VGPU"].reserved == 8
    held.tap.before = lambda _: None
    assert held.again().pending is None
    assert held.placed("a") == {"gpu0": {"VGPU": 1}}


def test_where_placement_is_slow_the_providers_are_closed_after_the_second_conflict(
    held: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others may not have what the reshape is about to move, nor anything else there."""
    clock = itertools.count(step=1.6)
    monkeypatch.setattr(reshape_runner.time, "monotonic", lambda: next(clock))
    free: list[int] = []

    def write(call: str) -> None:
        if call == "POST /reshaper":
            root = held.tree()[ROOT]
            free.append(root.inventories["VCPU"].capacity)
            if len(free) < 4:
                held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)

    held.tap.before = write
    assert held.see(*NESTED, moves=THERE).pending is None
    assert free == [64, 64, 0, 0]
    assert held.tree()[ROOT].inventories["VCPU"].capacity == 64
    assert held.placed("a") == {"gpu1": {"VGPU": 1}}


@pytest.mark.parametrize("changes", ["generation", "inventories"])
def test_a_provider_that_another_client_writes_is_closed_from_a_fresh_read(
    held: World, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    """Unless its inventories changed: then the pass reads all anew and plans again."""
    clock = itertools.count(step=2.0)
    monkeypatch.setattr(reshape_runner.time, "monotonic", lambda: next(clock))
    seen: list[str] = []

    def write(call: str) -> None:
        seen.append(call)
        root = held.tree()[ROOT]
        if call == "POST /reshaper" and seen.count(call) < 3:
            held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)
        elif call == f"PUT /resource_providers/{ROOT}/inventories" and seen.count("POST /reshaper") == 2:
            if changes == "generation":
                held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)
            elif "DISK_GB" not in root.inventories:
                more = {**root.inventories, "DISK_GB": root.inventories["VCPU"]}
                held.raw.put_inventories(ROOT, root.generation or 0, more)
            if seen.count(call) > 9:
                held.tap.before = lambda _: None

    held.tap.before = write
    report = held.see(*NESTED, moves=THERE)
    held.tap.before = lambda _: None
    assert (report.error, report.pending) == (None, None)
    assert held.placed("a") == {"gpu1": {"VGPU": 1}}
    assert held.tree()[ROOT].inventories["VCPU"].capacity == 64
    assert ("DISK_GB" in held.tree()[ROOT].inventories) is (changes == "inventories")


def test_a_provider_that_others_write_each_time_is_not_closed_and_nothing_is_sent(
    held: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reshape_runner, "CLOSE_AFTER_S", 0.0)
    seen: list[str] = []

    def write(call: str) -> None:
        seen.append(call)
        closes = call == f"PUT /resource_providers/{ROOT}/inventories" and "POST /reshaper" in seen
        if closes or call == "POST /reshaper":
            root = held.tree()[ROOT]
            held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)

    held.tap.before = write
    report = held.see(*NESTED, moves=THERE)
    held.tap.before = lambda _: None
    assert isinstance(report.error, PlacementConflict), report.sentence
    assert held.placed("a") == {HOST: {"VGPU": 1}} and not held.journal.reshapes(done=False)
    assert held.again().pending is None and held.placed("a") == {"gpu1": {"VGPU": 1}}


@pytest.mark.parametrize(
    ("now", "own", "elsewhere", "closings", "told"),
    [
        (9, 2, 1, 0, "were written 1 time by other clients of Placement and 3 times by the agent's own"),
        (9, 2, 1, 1, "were written 3 times by the agent's own claims and releases"),
        (9, 0, 0, 0, "were written 4 times by other clients of Placement"),
        (6, 2, 1, 0, "were written 1 time by the agent's own claims and releases"),
        (5, 0, 0, 0, "but no client wrote to what it touches"),
        (5, 2, 0, 1, "but no client wrote to what it touches"),
        (None, 2, 0, 0, "but no client wrote to what it touches"),
    ],
)
def test_who_was_faster_is_told(now: int | None, own: int, elsewhere: int, closings: int, told: str) -> None:
    """`own` writes to the provider, which was at 5, and `elsewhere` those of which that is not known."""
    client: Any = SimpleNamespace(
        generations=lambda root: {} if now is None else {"p": now},
        gate=SimpleNamespace(passed=Counter({"p": 7 + own, "": 3 + elsewhere, "other": 50})),
    )
    unused: Any = None
    runner = reshape_runner.ReshapeRunner(client, unused, unused, ROOT)
    first: Any = SimpleNamespace(
        allocated=SimpleNamespace(generations={"p": 5}), passed={"p": 7, "": 3, "other": 1}
    )
    assert told in runner._whose_writes(first, closings)


def test_what_was_closed_is_open_again_where_the_request_got_lost(held: World) -> None:
    """Nothing is in doubt any more then, so nothing has to wait for the next pass."""

    def disturb(call: str) -> None:
        root = held.tree()[ROOT]
        if call == "POST /reshaper" and root.inventories["VCPU"].reserved == 64:
            raise PlacementUnavailable("Placement did not answer.")
        if call == "POST /reshaper":
            held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)

    held.tap.before = disturb
    report = held.see(*NESTED, moves=to_gpus())
    held.tap.before = lambda _: None
    assert isinstance(report.error, PlacementUnavailable)
    assert held.tree()[ROOT].inventories["VCPU"].reserved == 0
    assert held.again().pending is None and held.placed("a") == {"gpu0": {"VGPU": 1}}


@pytest.mark.parametrize("number", [1, 4])
def test_inventory_changed_by_an_operator_in_between_is_not_overwritten(held: World, number: int) -> None:
    """Before the first request, or before one after which the consumers are read anew."""

    def change(call: str) -> None:
        root, sent = held.tree()[ROOT], held.tap.calls.count("POST /reshaper")
        if call == "POST /reshaper" and sent < number:
            held.raw.put_aggregates(ROOT, root.generation or 0, root.aggregates)
        elif call == "POST /reshaper" and sent == number:
            theirs = replace(root.inventories["VCPU"], total=1000, max_unit=10)
            held.raw.put_inventories(ROOT, root.generation or 0, {**root.inventories, "DISK_GB": theirs})

    held.tap.calls.clear()
    held.tap.before = change
    report = held.see(*NESTED, moves=to_gpus())
    assert (report.error, report.pending) == (None, None)
    assert held.totals()[HOST] == {"VCPU": 64, "DISK_GB": 1000}
    assert held.placed("a") == {"gpu0": {"VGPU": 1}}


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


@pytest.fixture
def used(world: World) -> World:
    world.see(host(VGPU=4))
    world.hold("a", node1={"VGPU": 1})
    return world


def unanswered(world: World, *, executed: bool) -> Receipt:
    """The intent of a reshape whose request got no answer, `executed` or not."""
    with world.tap.gone_from("POST /reshaper", after=executed):
        report = world.see(host(), provider("gpu0", VGPU=4), moves=(to_gpu(0, a=1),))
    assert isinstance(report.error, PlacementUnavailable)
    (receipt,) = world.journal.reshapes(done=False).values()
    return receipt


@pytest.mark.parametrize("executed", [True, False])
def test_the_outcome_is_read_from_placement(used: World, executed: bool) -> None:
    receipt = unanswered(used, executed=executed)
    assert was_executed(used.client, ROOT, receipt) is executed
    assert fence_and_check(used.client, ROOT, receipt) is executed
    used.raw.delete_allocations(uuid_of("a"))
    assert was_executed(used.client, ROOT, receipt) is executed, (
        "also where its consumers have other allocations since"
    )


@pytest.mark.parametrize("executed", [True, False])
def test_where_the_totals_stay_the_owners_tell_the_outcome(world: World, executed: bool) -> None:
    cards = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
    world.see(*cards)
    world.hold("a", gpu0={"VGPU": 4})
    swap = (
        MoveInstruction("gpu0", {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 4}}),
        MoveInstruction("gpu1", {"VGPU": 4}, "gpu0", {}),
    )
    with world.tap.gone_from("POST /reshaper", after=executed):
        world.see(*cards, moves=swap)
    (receipt,) = world.journal.reshapes(done=False).values()
    for uuid in receipt.generations:  # so that it is not the generations that tell it
        generation, inventories = world.raw.provider_inventories(uuid)
        world.raw.put_inventories(uuid, generation, inventories)
    assert was_executed(world.client, ROOT, receipt) is executed


@pytest.mark.parametrize(("conflicts", "is_told"), [(0, True), (7, True), (8, False)])
def test_a_fence_that_others_overtake_is_written_again_and_not_for_ever(
    used: World, conflicts: int, *, is_told: bool
) -> None:
    receipt = unanswered(used, executed=False)
    writes: list[str] = []

    def overtake(call: str) -> None:
        if call.startswith("PUT /resource_providers/") and call.endswith("/inventories"):
            writes.append(call)
            if len(writes) <= conflicts:
                raise PlacementConflict("another client was faster")

    used.tap.before = overtake
    if is_told:
        assert fence_and_check(used.client, ROOT, receipt) is False
    else:
        with pytest.raises(PlacementConflict):
            fence_and_check(used.client, ROOT, receipt)
    assert len(writes) == min(conflicts + 1, 8)


def test_after_the_fence_a_late_request_is_rejected(used: World) -> None:
    receipt = unanswered(used, executed=False)
    assert fence_and_check(used.client, ROOT, receipt) is False
    inventories = {
        uuid: (generation, used.tree()[uuid].inventories) for uuid, generation in receipt.generations.items()
    }
    with pytest.raises(PlacementConflict):
        used.client.reshape(inventories)


def done(world: World) -> str:
    """A reshape with one consumer of a scheduler's and one of the agent's own; its receipt."""
    prepare(world, "there")
    assert world.see(*NESTED, moves=THERE).pending is None
    (receipt,) = world.journal.reshapes(done=True)
    return receipt


def test_an_undone_reshape_stays_undone_until_it_is_asked_for(world: World) -> None:
    receipt = done(world)
    late = world.hold("late", gpu0={"VGPU": 1})
    (undone,) = world.ask(receipt)
    assert undone.undoes == receipt
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 8}, "gpu0": {}, "gpu1": {}}
    assert world.tree()[ROOT].inventories["VGPU"].reserved == 0
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    assert world.placed(late) == {HOST: {"VGPU": 1}}, "who came later goes back, too"
    world.check()
    for _ in range(2):
        report = world.see(*NESTED, moves=THERE)
        assert (report.operations, report.pending, report.error) == (0, None, None)
        assert any(receipt in problem for problem in report.problems), "it is said"
    before = world.everything()
    assert world.see(*NESTED).error is None
    assert world.everything() == before, "also where the driver does not repeat its instructions"
    world.see(*NESTED, moves=THERE)
    world.restart()
    assert world.again().operations == 0
    world.tracker.claim(request(VGPU=2))
    (again,) = world.ask()
    assert again.undoes is None
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    world.check()
    assert world.ask() == ()


def test_a_host_that_counted_more_than_its_cards_have_is_as_it_was_when_that_is_undone(world: World) -> None:
    """Seen on a hypervisor: 40 on the root, by whoever put them there, and cards that have 36."""
    world.see(host(VGPU=11))
    world.hold("a", node1={"VGPU": 1})
    world.see(*NESTED, moves=THERE)
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 11}, "gpu0": {}, "gpu1": {}}
    assert world.placed("a") == {HOST: {"VGPU": 1}}
    world.ask()
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}


def test_what_undid_a_reshape_is_undone_by_its_own_receipt(world: World) -> None:
    receipt = done(world)
    (undone,) = world.ask(receipt)
    with pytest.raises(UsageError, match="already undone"):
        world.ask(receipt)
    (again,) = world.ask(undone.id)
    assert world.placed("a") == {"gpu1": {"VGPU": 1}}
    with pytest.raises(UsageError, match="has been done again since"):
        world.ask(undone.id)
    with pytest.raises(UsageError, match=f"The reshape {again.id} has moved what"):
        world.ask(receipt)
    with pytest.raises(UsageError, match="There is no receipt 'nonsense'"):
        world.ask("nonsense")


def test_providers_that_went_away_come_back_when_that_is_undone(world: World) -> None:
    """Nested to flat, undone: the cards are made again, and each owner is back on its own."""
    world.see(*NESTED)
    world.hold("a", gpu1={"VGPU": 1})
    world.hold("b", gpu0={"VGPU": 4})
    before = world.placed("a"), world.placed("b"), world.totals()
    world.see(*FLAT, moves=BACK)
    assert set(world.totals()) == {HOST}
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert (world.placed("a"), world.placed("b"), world.totals()) == before
    assert world.again().operations == 0
    assert world.see(*FLAT).operations == 0, "also once the driver no longer mentions it"
    with pytest.raises(ApplyError, match="says that it moved there"):
        world.ask()
    assert world.again().operations == 0, "nobody says any more where it went: it stays"
    assert (world.placed("a"), world.placed("b"), world.totals()) == before


def test_an_undo_that_is_refused_changes_nothing(held: World) -> None:
    more = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4), provider("gpu2", VGPU=4))
    held.see(*NESTED, moves=THERE)
    (receipt,) = held.journal.reshapes(done=True)
    held.see(*more, moves=THERE)
    held.raw.put_inventories(  # an operator lowered what the root may give to one
        ROOT, held.tree()[ROOT].generation or 0, dict(held.tree()[ROOT].inventories)
    )
    big = held.hold("big", gpu0={"VGPU": 4}, gpu1={"VGPU": 3}, gpu2={"VGPU": 4})
    held.hold("z", node1={"VCPU": 1})
    before = held.totals(), held.placed(big), held.placed("a")
    held.tap.before = refusing(PlacementFull("it does not fit, as it was told", status=409))
    with pytest.raises(ReshapeRefused):
        held.ask(receipt)
    held.tap.before = lambda _: None
    assert (held.totals(), held.placed(big), held.placed("a")) == before
    assert all(i.reserved == 0 for each in held.tree() for i in each.inventories.values())
    assert held.journal.undone_reshapes() == ()
    assert held.again().operations == 0


@pytest.mark.parametrize("state", [MoveState.BEGUN, MoveState.CONFIRMING, MoveState.CONFIRMED])
def test_a_refusal_names_its_consumers_and_the_moves_that_hold_two_places(state: MoveState) -> None:
    claim = replace(claimed({"VCPU": 2})[CONSUMER], request=request(CONSUMER, name="web1", VCPU=2))
    move, unknown = replace(a_move(state), old=claim), uuid_of("unknown")
    guest = Guest(uuid_of("guest"), "vm2", GuestState.RUNNING, {})
    records = HostRecords({CONSUMER: claim}, {MIGRATION: move}, ExactUnits(guests=(guest,)))
    raw = [f"consumer {each} has no place" for each in (CONSUMER, MIGRATION, guest.uuid, unknown)]
    refused = ReshapeRefused("; ".join(raw), reasons=raw)
    told = reshape_runner._for_people(refused, records, [MIGRATION])
    of_move = f"migration {MIGRATION} of {move.label}"
    ended = state is MoveState.CONFIRMED
    named = [f"web1 ({CONSUMER})", f"consumer {MIGRATION}" if ended else of_move, f"vm2 ({guest.uuid})"]
    reasons = [f"{each} has no place" for each in (*named, f"consumer {unknown}")]
    hint = f"It may wait for the move of {move.label}, which holds two places: end it with `plimsoll move "
    hints = [f"{hint}confirm {MIGRATION}` or `plimsoll move revert {MIGRATION}`."]
    begun = state is MoveState.BEGUN
    assert told.details["reasons"] == [*reasons, *(hints if begun else [])]
    assert told.message == "; ".join(reasons) + (f". {hints[0]}" if begun else "")
    elsewhere = reshape_runner._for_people(refused, records, [unknown])
    assert elsewhere.details["reasons"] == reasons, "a move that holds nothing there is not in the way"


def test_an_undo_for_which_there_is_no_room_any_more_is_refused_with_who_it_is(world: World) -> None:
    """A card grew since, and is full: more is held now than was ever counted where it came from."""
    receipt = done(world)
    grown = (host(), provider("gpu0", VGPU=8), provider("gpu1", VGPU=4))
    world.see(*grown, moves=THERE)
    big = world.hold("big", gpu0={"VGPU": 6})
    before = world.totals(), world.placed(big), world.placed("a")
    preview = world.reconciler.preview_reshape(receipt)
    assert preview.refused is not None and preview.relocations == ()
    with pytest.raises(ReshapeRefused, match=f"{big} holds 6 VGPU of gpu0.*free on node1: 5 VGPU"):
        world.ask(receipt)
    assert (world.totals(), world.placed(big), world.placed("a")) == before
    assert world.journal.undone_reshapes() == () and len(world.journal.reshapes(done=True)) == 1
    assert world.again().operations == 0
    world.raw.delete_allocations(big)
    (undone,) = world.ask(receipt)
    assert undone.undoes == receipt and world.placed("a") == {HOST: {"VGPU": 1}}


def test_a_preview_shows_all_and_writes_nothing(held: World) -> None:
    """Scenario 92: each move with class, amount, consumer, from and to; the trees before and after."""
    held.driver.description = type(held.driver.description)(NESTED, THERE)
    before = held.everything(), held.journal.reshapes(done=False)
    held.tap.calls.clear()
    preview = held.reconciler.preview_reshape()
    assert not any(call.startswith(("P", "D")) for call in held.tap.calls)
    assert (held.everything(), held.journal.reshapes(done=False)) == before
    assert preview.refused is None
    (move,) = preview.relocations
    gpu1 = preview.after.by_name("gpu1")
    assert gpu1 is not None
    assert (move.consumer, move.resource_class, move.amount) == (uuid_of("a"), "VGPU", 1)
    assert (move.source, move.target) == (ROOT, gpu1.uuid)
    assert preview.used_before[ROOT]["VGPU"] == 1 and preview.used_after[gpu1.uuid] == {"VGPU": 1}
    held.again()
    assert held.reconciler.preview_reshape().moves == ()
    (receipt,) = held.journal.reshapes(done=True)
    back = held.reconciler.preview_reshape(receipt)
    assert [(each.source, each.target) for each in back.relocations] == [(gpu1.uuid, ROOT)]


def test_while_placement_is_away_an_undo_stays_asked_for(world: World) -> None:
    receipt = done(world)
    with world.tap.away(sent=True), pytest.raises(PlacementUnavailable):
        world.ask(receipt)
    assert world.again().error is None
    assert world.placed("a") == {HOST: {"VGPU": 1}}


WAIT_S = 0.2
WRITES_MAX = 20


def at_write(number: int, then: Callable[[], None]) -> Callable[[str], None]:
    """For `World.journal.before`: calls `then` once, at the write with this number."""
    left = [number]

    def before(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            then()

    return before


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "starts again"])
def test_each_write_that_the_disk_refuses_is_made_up_for(restarts: bool) -> None:
    refused = 0
    for number in range(1, WRITES_MAX):
        with fast_directory() as directory, World(Path(directory)) as world:
            prepare(world, "there")
            disk = StallingDisk(world.journal._file)
            world.journal.before = at_write(number, disk.fail_next)
            error = world.see(*NESTED, moves=THERE).error
            world.journal.before = lambda _: None
            assert world.tracker.claims() == world.journal.claims()
            if error is not None:
                assert isinstance(error, StateError) and not isinstance(error, StateUnknown)
                refused += 1
            if restarts:
                world.restart()
            if error is not None or restarts:
                report = world.see(*NESTED, moves=THERE)
                assert (report.error, report.pending) == (None, None)
            done_once(world, "there")
    assert refused >= 3, "the reservation, the intent, the end"


@pytest.mark.parametrize("restarts", [False, True], ids=["goes on", "starts again"])
def test_after_each_write_that_stalls_the_agent_continues_with_what_is_on_disk(restarts: bool) -> None:
    stalled = 0
    for number in range(1, WRITES_MAX):
        with fast_directory() as directory, World(Path(directory)) as world:
            prepare(world, "there")
            disk = StallingDisk(world.journal._file)
            world.journal.wait_s = WAIT_S
            world.journal.before = at_write(number, disk.stall)
            error = world.see(*NESTED, moves=THERE).error
            world.journal.before = lambda _: None
            if error is not None:
                assert isinstance(error, StateUnknown)
                with pytest.raises(StateUnknown):
                    world.tracker.read_back()
                stalled += 1
            disk.go_on()
            world.journal.wait_s = 30
            world.journal.history()  # behind the stalled write
            if restarts:
                world.restart()
            world.tracker.read_back()
            assert world.tracker.claims() == world.journal.claims()
            report = world.see(*NESTED, moves=THERE)
            assert (report.error, report.pending) == (None, None)
            done_once(world, "there")
    assert stalled >= 3, "the reservation, the intent, the end"


ONE_LEFT = (host(), provider("gpu0", VGPU=4))
LEFT_NESTED = (*ONE_LEFT, provider("gpu1", VGPU=4))


def gone(**owners: int) -> MoveInstruction:
    """These use units of which no device is there."""
    shares = {uuid_of(who): {"VGPU": amount} for who, amount in owners.items()}
    return MoveInstruction(HOST, {"VGPU": sum(owners.values())}, HOST, shares)


def test_a_unit_whose_device_is_gone_is_told_and_parked_and_the_rest_moves(world: World) -> None:
    """Scenario 88: reported and parked, the rest moved; it follows when its device is back."""
    world.see(*FLAT)
    for who, amount in (("a", 2), ("b", 1), ("untold", 1)):
        world.hold(who, node1={"VGPU": amount, "VCPU": 1})
    moves = (to_gpu(0, a=2), gone(b=1))
    for _ in range(2):
        report = world.see(*ONE_LEFT, moves=moves)
        assert (report.error, report.pending) == (None, None)
        (problem,) = report.problems
        assert uuid_of("b") in problem and "1 VGPU of node1 whose device is not there" in problem
        assert world.placed("a") == {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}
        assert world.placed("b") == {HOST: {"VCPU": 1, "VGPU": 1}}
        assert world.placed("untold") == {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 1}}
        assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 1}, "gpu0": {"VGPU": 4}}
    assert len(world.journal.reshapes(done=True)) == 1
    assert world.again().operations == 0
    world.tracker.claim(request(VGPU=1))
    with pytest.raises(DoesNotFit):
        world.tracker.claim(request(VGPU=1))
    report = world.see(*LEFT_NESTED, moves=(to_gpu(0, a=2), to_gpu(1, b=1)))
    assert (report.error, report.pending, report.problems) == (None, None, ())
    assert world.placed("b") == {HOST: {"VCPU": 1}, "gpu1": {"VGPU": 1}}
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}, "gpu1": {"VGPU": 4}}
    world.check()


def test_what_was_parked_goes_with_its_consumer(world: World) -> None:
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 2})
    world.hold("b", node1={"VGPU": 1})
    moves = (to_gpu(0, a=2), gone(a=0, b=1))
    world.see(*ONE_LEFT, moves=moves)
    world.raw.delete_allocations(uuid_of("b"))
    report = world.see(*ONE_LEFT, moves=(to_gpu(0, a=2),))
    assert (report.error, report.problems) == (None, ())
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}}


def test_a_unit_that_a_card_there_must_be_good_for_is_placed_as_any_that_nobody_tells_of(
    world: World,
) -> None:
    """Eight were counted, and eight are on the cards: to park one as well would offer it twice."""
    world.see(*FLAT)
    world.hold("b", node1={"VGPU": 1})
    report = world.see(*LEFT_NESTED, moves=(to_gpu(0), to_gpu(1), gone(b=1)))
    assert (report.error, report.pending, report.problems) == (None, None, ())
    assert world.placed("b") == {"gpu0": {"VGPU": 1}}


def test_what_is_parked_does_not_stop_a_refusal_of_the_rest(world: World) -> None:
    """Scenario 89 beside 88: what cannot be placed is named and stops the whole, nothing half."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 5})
    world.hold("b", node1={"VGPU": 1})
    before = world.placed("a"), world.placed("b")
    report = world.see(*ONE_LEFT, moves=(to_gpu(0, a=5), gone(b=1)))
    assert report.pending is not None and "gpu0 would hold 5 VGPU" in report.pending.message
    assert (world.placed("a"), world.placed("b")) == before
    assert world.totals() == {HOST: {"VCPU": 64, "VGPU": 8}, "gpu0": {}}
    assert world.tree()[ROOT].inventories["VGPU"].capacity <= 6


def test_what_travels_together_is_parked_together_and_an_undo_finds_it(world: World) -> None:
    """A virtual function that is gone keeps its bandwidth."""
    nic = {"SRIOV_NET_VF": 4, "NET_BW_EGR_KILOBIT_PER_SEC": 1000}
    both = {name: 2 * total for name, total in nic.items()}
    world.see(host(**both))
    for who in ("a", "b"):
        world.hold(who, node1={"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 300})
    vf = {"SRIOV_NET_VF": 1}
    moves = (
        MoveInstruction(HOST, nic, "nic0", {uuid_of("a"): vf}),
        MoveInstruction(HOST, vf, HOST, {uuid_of("b"): vf}),
    )
    report = world.see(host(), provider("nic0", **nic), moves=moves)
    assert (report.error, report.pending) == (None, None)
    held = {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 300}
    assert world.placed("a") == {"nic0": held} and world.placed("b") == {HOST: held}
    assert world.totals() == {HOST: {"VCPU": 64, **held}, "nic0": nic}
    (receipt,) = world.journal.reshapes(done=True)
    world.ask(receipt)
    assert world.placed("a") == world.placed("b") == {HOST: held}
    assert world.totals()[HOST] == {"VCPU": 64, **both}
    world.ask()
    assert world.placed("a") == {"nic0": held} and world.placed("b") == {HOST: held}


def test_a_preview_shows_what_is_parked(held: World) -> None:
    held.hold("b", node1={"VGPU": 1})
    held.driver.description = type(held.driver.description)(ONE_LEFT, (to_gpu(0, a=1), gone(b=1)))
    preview = held.reconciler.preview_reshape()
    assert preview.refused is None
    (sentence,) = preview.parked
    assert uuid_of("b") in sentence and "parked, and no other consumer gets it" in sentence
    lines = list(preview_lines(preview_view(preview), Style()))
    assert lines[lines.index("parked:") + 1] == sentence
    assert [each.consumer for each in preview.relocations] == [uuid_of("a")]
    assert preview.after[ROOT].inventories["VGPU"].total == preview.used_after[ROOT]["VGPU"] == 1
    held.again()
    done = held.reconciler.preview_reshape()
    assert (done.moves, done.parked) == ((), (sentence,)), "done, it is told still"
