"""Writes whose outcome is unknown: whenever Placement does them, nothing is lost, nothing is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.late_writes import ANY_ANSWER, LateWrites, late_writes
from kits.middlebox import Middlebox
from kits.moves import INSTANCE, MIGRATION, POOL, SMALL, World, asks
from kits.placements import OpenStack
from kits.tracker import HOST, Kit, checked_kit, guest, request, uuid_of
from kits.wire import Sent

from agent.backoff import BUSY_MAX_S
from agent.claims.claim import Claim, ClaimState
from agent.claims.doubt import BAR_GENERATION_MAX, BARRED, DoubtState
from agent.claims.request import ClaimRequest
from agent.errors import ClaimConflict, DoesNotFit, PlacementConflict, PlacementUnavailable, PlimsollError
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import Reply
from agent.tracker.context import is_allocation_of
from agent.tracker.guarded_write import (
    ANSWERED_KEPT_S,
    FORGET_EVERY_S,
    HALF_DONE_S,
    KEPT_S,
    REPEATED_GENERATION_MAX,
)
from agent.tree import Inventory, Provider

DONE, CONFLICT = 204, 409


def is_empty(kit: Kit) -> bool:
    return (kit.tracker.pending, kit.tracker.claims(), kit.placed_all()) == (0, {}, {})


def restarted(kit: Kit) -> None:
    kit.restart()
    kit.refresh()
    kit.tracker.admission.open()


@ANY_ANSWER
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_an_abandoned_claim_is_never_executed_late(kit: Kit, answer: str, *, killed: bool) -> None:
    asked = request(PCPU=4)
    with late_writes(kit, answer) as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.claim(asked)
    assert kit.tracker.pending == 1
    if killed:
        restarted(kit)
    assert kit.tracker.deliver() == 1
    assert is_empty(kit)
    assert late.execute() == CONFLICT
    assert is_empty(kit)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_an_abandoned_claim_that_is_executed_before_the_agent_looks_is_undone(
    kit: Kit, *, killed: bool
) -> None:
    with late_writes(kit, "502") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(request(PCPU=4))
    assert late.execute() == DONE
    if killed:
        restarted(kit)
    assert kit.tracker.deliver() == 1
    assert is_empty(kit)


def test_a_released_claim_that_was_never_answered_is_never_executed_late(kit: Kit) -> None:
    asked = request(PCPU=4)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit) and late.execute() == CONFLICT and is_empty(kit)


@pytest.mark.parametrize("wish", [{"PCPU": 4}, {"PCPU": 1}], ids=["the same", "another"])
def test_a_claim_repeated_after_one_that_was_not_answered_is_the_only_one(
    kit: Kit, wish: dict[str, int]
) -> None:
    """The late one conflicts while the repeated claim is there, and after the release of that."""
    asked = request(PCPU=4)
    with late_writes(kit, "reset") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.tracker.claim(request(asked.consumer, **wish))
    kit.check()
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit) and late.execute() == CONFLICT and is_empty(kit)


def test_the_allocation_of_somebody_else_proves_nothing_of_the_agents_own_write(kit: Kit) -> None:
    """The late write waits until the other's allocation is gone."""
    asked = request(VCPU=2)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.schedule(asked.consumer, host={"VCPU": 3})
    assert kit.tracker.claim(asked).claim.adopted
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit) and late.execute() == CONFLICT and is_empty(kit)


@pytest.mark.parametrize("barred_before", [False, True])
def test_a_placement_in_the_midst_of_a_first_write_is_waited_for(
    kit: Kit, caplog: pytest.LogCaptureFixture, barred_before: bool
) -> None:
    """Its record is there, its allocations are not yet: nothing can be told from that."""
    asked = request(VCPU=2)
    if barred_before:
        kit.raw.bar_first_write(asked.consumer).check()
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        if barred_before:
            late.lets_first_writes_conflict()
        kit.tracker.claim(asked)
    if not barred_before:
        kit.raw.bar_first_write(asked.consumer).check()
    assert (kit.tracker.deliver(), kit.tracker.pending) == (0, 1)
    assert f"did not answer the first write for {asked.consumer}" in caplog.text
    kit.later_s += HALF_DONE_S
    assert kit.tracker.deliver() == 1
    assert is_empty(kit)


def test_an_audit_gives_a_consumer_whose_first_write_is_barred_an_allocation(kit: Kit) -> None:
    consumer = request(VCPU=2).consumer
    kit.raw.bar_first_write(consumer).check()
    kit.tracker.heal(ConsumerAllocations(consumer, {uuid_of("host"): {"VCPU": 2}}))
    assert kit.placed(consumer) == {"host": {"VCPU": 2}}


def test_a_repair_that_another_client_overtook_is_a_conflict_and_says_nothing_of_room(kit: Kit) -> None:
    consumer = request(VCPU=2).consumer
    kit.schedule(consumer, host={"VCPU": 1})
    with pytest.raises(PlacementConflict):
        kit.tracker.heal(ConsumerAllocations(consumer, {uuid_of("host"): {"VCPU": 2}}))
    assert kit.placed(consumer) == {"host": {"VCPU": 1}}


def test_the_guest_of_a_claim_in_doubt_keeps_what_was_chosen_for_it(kit: Kit) -> None:
    asked = request(PCPU=4)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.restart()
    kit.refresh()
    assert kit.tracker.recover([guest(asked.consumer)]) == 1
    assert late.execute() == CONFLICT
    claim = kit.tracker.claims()[asked.consumer]
    assert is_allocation_of(kit.raw.allocations_of(asked.consumer), claim)
    kit.check()


# Releases


def released_in_doubt(kit: Kit, claim: Claim, answer: str) -> int:
    """Release with an unknown outcome; the generation of the late release."""
    generation = kit.raw.allocations_of(claim.consumer).generation
    with late_writes(kit, answer) as late:
        assert kit.tracker.release(claim.consumer) is False
    kit.late = late  # type: ignore[attr-defined]
    assert generation is not None
    return generation


@ANY_ANSWER
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_release_done_late_never_takes_a_later_claim_of_the_same_consumer(
    kit: Kit, answer: str, *, killed: bool
) -> None:
    """One of two Placement processes behind a balancer was paused with it, and goes on."""
    asked = request(PCPU=4)
    generation = released_in_doubt(kit, kit.tracker.claim(asked).claim, answer)
    if killed:
        restarted(kit)
    assert kit.tracker.deliver() == 1
    assert is_empty(kit)
    kit.tracker.claim(asked)
    assert (kit.raw.allocations_of(asked.consumer).generation or 0) > generation
    assert kit.late.execute() == CONFLICT  # type: ignore[attr-defined]
    kit.check()
    assert kit.tracker.release(asked.consumer) and is_empty(kit)


def test_a_claim_right_after_a_release_that_was_not_answered_is_safe_from_it(kit: Kit) -> None:
    asked = request(PCPU=4)
    released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    kit.tracker.claim(asked)
    assert kit.late.execute() == CONFLICT  # type: ignore[attr-defined]
    kit.check()


def test_a_late_release_that_comes_while_the_consumer_is_claimed_anew_takes_nothing(kit: Kit) -> None:
    """It comes right after the first write, at the same generation as before."""
    asked = request(PCPU=4)
    released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    kit.tracker.deliver()
    came: list[int] = []

    def comes(call: str) -> None:
        if call.startswith("PUT") and kit.placed(asked.consumer) and not came:
            came.append(kit.late.execute())  # type: ignore[attr-defined]

    kit.tap.after = comes
    kit.tracker.claim(asked)
    kit.tap.after = lambda _: None
    assert came == [DONE]
    kit.check()


def test_what_somebody_else_made_anew_is_safe_from_a_late_release_once_it_is_adopted(kit: Kit) -> None:
    asked = request(VCPU=2)
    released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    kit.tracker.deliver()
    kit.raw.write_allocations(ConsumerAllocations(asked.consumer, {uuid_of("host"): {"VCPU": 2}}, BARRED))
    assert kit.tracker.claim(asked).claim.adopted
    assert kit.late.execute() == CONFLICT  # type: ignore[attr-defined]
    kit.check()


def test_no_write_is_sent_for_a_consumer_in_doubt_while_placement_cannot_end_the_doubt(kit: Kit) -> None:
    asked = request(PCPU=4)
    claim = kit.tracker.claim(asked).claim
    released_in_doubt(kit, claim, "timeout")
    kit.tap.calls.clear()
    with kit.away(only="GET", sent=True):
        kit.tracker.deliver()
        with suppress(PlimsollError):
            kit.tracker.claim(asked)
    assert kit.tracker.pending == 1
    assert not [call for call in kit.tap.calls if not call.startswith("GET")]


# Bars of other hosts


def barred_by_another_host(kit: Kit) -> ClaimRequest:
    """The request of a consumer of which another host cannot tell whether its write still comes."""
    asked = request(PCPU=4)
    kit.raw.bar_first_write(asked.consumer).check()
    return asked


def test_a_claim_over_the_bar_of_another_host_is_past_the_writes_that_may_come(kit: Kit) -> None:
    asked = barred_by_another_host(kit)
    kit.tap.calls.clear()
    kit.tracker.claim(asked)
    writes = requests(kit).count("PUT allocations")
    assert kit.raw.allocations_of(asked.consumer).generation == BAR_GENERATION_MAX + 1
    assert writes == 1 + BAR_GENERATION_MAX + 1, "one meets the bar, then one for each generation"
    kit.check()


def test_the_bar_of_another_host_outlasts_the_claim(kit: Kit) -> None:
    asked = barred_by_another_host(kit)
    kit.tracker.claim(asked)
    restarted(kit)
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit)
    with pytest.raises(PlacementConflict, match="expected 0"):
        kit.raw.write_allocations(ConsumerAllocations(asked.consumer, {uuid_of("host"): {"VCPU": 1}}))


def test_a_repair_over_the_bar_of_another_host_is_past_the_writes_that_may_come(kit: Kit) -> None:
    consumer = barred_by_another_host(kit).consumer
    kit.tracker.heal(ConsumerAllocations(consumer, {uuid_of("host"): {"VCPU": 2}}))
    assert kit.raw.allocations_of(consumer).generation == BAR_GENERATION_MAX + 1


def test_a_consumer_that_is_released_while_an_earlier_write_may_come_stays_barred(kit: Kit) -> None:
    """So another host that claims it is warned; and where that host deletes it, it is barred again."""
    asked = request(PCPU=4)
    released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    kit.tracker.deliver()
    there = {uuid_of("elsewhere"): {"VCPU": 2}}
    first = ConsumerAllocations(asked.consumer, there)
    for _ in range(2):
        with pytest.raises(PlacementConflict, match="expected 0"):
            kit.raw.write_allocations(first)
        kit.raw.write_allocations(replace(first, generation=BARRED))
        kit.raw.delete_allocations(asked.consumer)
        assert kit.tracker.watch_doubts() == 0
    assert is_empty(kit)


def test_a_repair_that_deletes_a_consumer_bars_it_while_an_earlier_write_may_come(kit: Kit) -> None:
    asked = request(PCPU=4)
    released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    kit.tracker.deliver()
    kit.raw.write_allocations(ConsumerAllocations(asked.consumer, {uuid_of("host"): {"VCPU": 1}}, BARRED))
    kit.tracker.heal(replace(kit.raw.allocations_of(asked.consumer), allocations={}))
    with pytest.raises(PlacementConflict, match="expected 0"):
        kit.raw.write_allocations(ConsumerAllocations(asked.consumer, {uuid_of("elsewhere"): {"VCPU": 2}}))
    assert is_empty(kit)


# Growing, and what a release gives back


@pytest.mark.parametrize("executed", [False, True], ids=["not done yet", "done"])
def test_a_release_while_a_grow_is_unanswered_gives_the_pools_gigabytes_back(
    kit: Kit, *, executed: bool
) -> None:
    asked = request(VCPU=1)
    claim = kit.tracker.claim(asked).claim
    wanted = ClaimRequest(asked.consumer, (request(VCPU=1, DISK_GB=400).groups[0],))
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.extend(claim, wanted)
    if executed:
        assert late.execute() == DONE
        assert kit.placed(asked.consumer) == {"host": {"VCPU": 1}, "pool": {"DISK_GB": 400}}
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit)
    if not executed:
        assert late.execute() == CONFLICT and is_empty(kit)


@pytest.mark.parametrize("reads", [1, 2])
def test_a_grow_that_is_executed_while_its_doubt_is_ended_leaves_what_the_claim_has(
    kit: Kit, reads: int
) -> None:
    asked = request(VCPU=1)
    claim = kit.tracker.claim(asked).claim
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.extend(claim, ClaimRequest(asked.consumer, (request(VCPU=2).groups[0],)))
    left = reads

    def comes(call: str) -> None:
        nonlocal left
        left -= call.startswith("GET /allocations")
        if left == 0:
            left = -9
            assert late.execute() == DONE

    kit.tap.after = comes
    kit.tracker.deliver()
    assert left < 0 and kit.placed(asked.consumer) == {"host": {"VCPU": 1}}
    kit.check()


def shrink(kit: Kit, most: int = 1) -> None:
    """Placement takes no allocation of more VCPU than that any more, be it one that is there."""
    root = kit.raw.find_provider(uuid=HOST[0].uuid)
    assert root is not None
    fewer = replace(HOST[0].inventories["VCPU"], max_unit=most)
    kit.raw.put_inventories(root.uuid, root.generation or 0, {**HOST[0].inventories, "VCPU": fewer})


@pytest.mark.parametrize("writes", [1, BAR_GENERATION_MAX + 1], ids=["written once", "written often"])
def test_where_the_host_shrank_the_release_itself_ends_an_unanswered_grow(kit: Kit, writes: int) -> None:
    """Placement refuses to write again what the consumer holds, so nothing else ends the doubt before."""
    asked = request(VCPU=2)
    claim = kit.tracker.claim(asked).claim
    for _ in range(1, writes):
        kit.raw.write_allocations(kit.raw.allocations_of(asked.consumer))
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.extend(claim, ClaimRequest(asked.consumer, (request(VCPU=4).groups[0],)))
    shrink(kit)
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit), "nothing of it is counted or followed up any more"
    assert late.execute() == CONFLICT and is_empty(kit)


def test_the_release_itself_ends_an_unanswered_repair_that_named_a_provider_that_is_gone(kit: Kit) -> None:
    """Placement refuses what the consumer holds, and the repair as well: a provider of it is gone."""
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    kit.raw.create_provider(Provider(uuid_of("card"), "card"))
    kit.raw.put_inventories(uuid_of("card"), 0, {"SRIOV_NET_VF": Inventory(4)})
    held = kit.raw.allocations_of(asked.consumer)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        both = {**held.allocations, uuid_of("card"): {"SRIOV_NET_VF": 1}}
        kit.tracker.heal(replace(held, allocations=both))
    shrink(kit)
    kit.raw.delete_provider(uuid_of("card"))
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit), "nothing of it is counted or followed up any more"
    kit.raw.create_provider(Provider(uuid_of("card"), "card"))
    assert late.execute() == CONFLICT and is_empty(kit)


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_where_the_host_shrank_a_repair_that_was_not_answered_is_sent_again(
    kit: Kit, *, killed: bool
) -> None:
    consumer = uuid_of("orphan")
    kit.raw.write_allocations(ConsumerAllocations(consumer, {uuid_of("host"): {"VCPU": 2}}))
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.heal(replace(kit.raw.allocations_of(consumer), allocations={}))
    shrink(kit)
    if killed:
        restarted(kit)
    assert kit.tracker.pending == 1, "what no claim and no move resolves"
    kit.tap.calls.clear()
    kit.tracker.deliver()
    fence, again, bar = 3 * ["PUT allocations"]
    assert requests(kit) == ["GET allocations", fence, again, "GET allocations", bar]
    assert is_empty(kit) and late.execute() == CONFLICT and is_empty(kit)


def test_where_the_host_shrank_a_repair_that_is_sent_again_is_sent_once_in_a_delivery(kit: Kit) -> None:
    consumer = uuid_of("orphan")
    kit.raw.write_allocations(ConsumerAllocations(consumer, {uuid_of("host"): {"VCPU": 2}}))
    with late_writes(kit, "timeout"), pytest.raises(PlacementUnavailable):
        kit.tracker.heal(replace(kit.raw.allocations_of(consumer), allocations={}))
    shrink(kit)
    kit.tap.calls.clear()

    def says_nothing_again(sent: Sent) -> Reply | None:
        if sent.method == "PUT" and not (sent.body or {}).get("allocations"):
            raise PlacementUnavailable("Placement did not answer in time.", busy=True)
        return None

    kit.tap.answer = says_nothing_again
    kit.tracker.deliver()
    assert requests(kit) == ["GET allocations", "PUT allocations", "PUT allocations"]
    assert kit.tracker.pending == 1
    kit.tap.answer = None
    kit.later_s += BUSY_MAX_S
    kit.tracker.deliver()
    assert is_empty(kit)


def test_a_release_gives_back_what_is_held_here_and_not_what_the_record_remembers(kit: Kit) -> None:
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.schedule(asked.consumer, host={"VCPU": 2}, nic0={"SRIOV_NET_VF": 1}, pool={"DISK_GB": 7})
    assert kit.tracker.release(asked.consumer)
    assert is_empty(kit)


def test_a_release_takes_nothing_of_somebody_elses_that_is_not_here(kit: Kit) -> None:
    """The consumer was deleted, and somebody made it anew with more in it."""
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.raw.delete_allocations(asked.consumer)
    kit.schedule(asked.consumer, host={"VCPU": 1}, elsewhere={"VCPU": 4}, pool={"DISK_GB": 7})
    assert kit.tracker.release(asked.consumer)
    assert kit.placed(asked.consumer) == {"elsewhere": {"VCPU": 4}, "pool": {"DISK_GB": 7}}


# Answered writes that a proxy has executed once more


@contextmanager
def repeated_release(kit: Kit, consumer: str) -> Iterator[Callable[[], int]]:
    """Release in the block's place; the block gets what executes the same request once more."""
    assert kit.tracker.release(consumer)
    write = [sent for sent in kit.tap.asked if sent.call.startswith("PUT /allocations")][-1]
    yield lambda: write.to(kit.tap.inner).status


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_an_answered_release_that_is_repeated_does_not_take_the_next_claim(kit: Kit, *, killed: bool) -> None:
    asked = request(PCPU=4)
    kit.tracker.claim(asked)
    with repeated_release(kit, asked.consumer) as repeat:
        kit.journal.record_event("", "what is written later is on disk").wait()
        if killed:
            restarted(kit)
        kit.tap.calls.clear()
        kit.tracker.claim(asked)
        assert requests(kit) == ["PUT allocations"] * 2
        assert repeat() == CONFLICT
        kit.check()


def test_a_claim_that_cannot_be_written_past_a_release_because_the_host_shrank_leaves_nothing(
    kit: Kit,
) -> None:
    asked = request(PCPU=4)
    kit.tracker.claim(asked)
    assert kit.tracker.release(asked.consumer)

    def shrinks(call: str) -> None:
        if call.startswith("PUT"):
            kit.tap.after = lambda _: None
            generation, inventories = kit.raw.provider_inventories(uuid_of("host"))
            inventories = {**inventories, "PCPU": Inventory(2, max_unit=2)}
            kit.raw.put_inventories(uuid_of("host"), generation, inventories)

    kit.tap.after = shrinks
    with pytest.raises(DoesNotFit):
        kit.tracker.claim(asked)
    assert is_empty(kit)


def test_the_writes_of_a_claim_after_many_releases_are_bounded(kit: Kit) -> None:
    asked = request(PCPU=4)
    for _ in range(2 * REPEATED_GENERATION_MAX):
        kit.tracker.claim(asked)
        assert kit.tracker.release(asked.consumer)
    kit.tap.calls.clear()
    kit.tracker.claim(asked)
    assert requests(kit) == ["PUT allocations"] * (REPEATED_GENERATION_MAX + 1)
    kit.later_s += ANSWERED_KEPT_S + FORGET_EVERY_S
    assert kit.tracker.release(asked.consumer)
    kit.tap.calls.clear()
    kit.tracker.claim(asked)
    assert requests(kit) == ["PUT allocations"]


# First writes whose consumer is another client's for a while


def in_doubt_beside_another_client(kit: Kit) -> tuple[ClaimRequest, LateWrites]:
    """A first write without an answer, while another client holds the consumer; the agent drops its claim."""
    asked = request(VCPU=2)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.schedule(asked.consumer, elsewhere={"VCPU": 3})
    kit.tracker.deliver()
    assert (kit.tracker.pending, kit.tracker.claims()) == (0, {})
    return asked, late


def test_a_first_write_is_barred_once_the_other_client_has_deleted_the_consumer(kit: Kit) -> None:
    asked, late = in_doubt_beside_another_client(kit)
    kit.tap.calls.clear()
    assert kit.tracker.watch_doubts() == 0
    assert requests(kit) == ["PUT allocations", "GET allocations"], "it exists, and is another client's"
    kit.raw.delete_allocations(asked.consumer)
    assert kit.tracker.watch_doubts() == 0
    assert late.execute() == CONFLICT
    assert is_empty(kit)


def test_a_bar_that_another_host_took_away_is_written_again(kit: Kit) -> None:
    """It claimed the consumer at the generation of the bar; its release deleted the consumer and the bar."""
    asked = request(VCPU=2)
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    assert kit.tracker.deliver() == 1
    there = {uuid_of("elsewhere"): {"VCPU": 2}}
    kit.raw.write_allocations(ConsumerAllocations(asked.consumer, there, BARRED))
    kit.raw.write_allocations(ConsumerAllocations(asked.consumer, {}, BARRED + 1))
    assert kit.tracker.watch_doubts() == 0
    assert late.execute() == CONFLICT
    assert is_empty(kit)


def test_an_abandoned_claim_is_looked_at_a_bounded_number_of_times(kit: Kit) -> None:
    """At each verification for some minutes, then at each doubling of its age, for a day."""
    with late_writes(kit, "timeout"), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(request(VCPU=2))
    assert kit.tracker.deliver() == 1
    kit.tap.cut = True
    with pytest.raises(PlacementUnavailable):
        kit.tracker.watch_doubts()
    kit.tap.cut = False
    kit.tap.calls.clear()
    verification_s = 60.0
    for _ in range(int((KEPT_S + FORGET_EVERY_S) / verification_s) + 2):
        kit.later_s += verification_s
        kit.tracker.watch_doubts()
    calls = requests(kit)
    assert set(calls) == {"PUT allocations"} and 10 <= len(calls) <= 20
    assert not kit.journal.doubts()


def test_a_first_write_that_came_before_it_was_barred_is_taken_back(kit: Kit) -> None:
    """No other client has written it again, so no instance was moved here, even if its owner moves others."""
    asked, late = in_doubt_beside_another_client(kit)
    kit.raw.delete_allocations(asked.consumer)
    assert late.execute() == DONE
    restarted(kit)
    there = {uuid_of("elsewhere"): {"VCPU": 3}}
    kit.raw.write_allocations(ConsumerAllocations(uuid_of("move"), there, consumer_type="MIGRATION"))
    assert kit.tracker.watch_doubts() == 1
    kit.raw.delete_allocations(uuid_of("move"))
    assert is_empty(kit)


@pytest.mark.parametrize("moved", [False, True], ids=["written again by another host", "moved here"])
def test_a_first_write_that_another_host_has_written_again_is_taken_back(kit: Kit, *, moved: bool) -> None:
    """Not what a control plane gives the instance here: then the migration holds what it had elsewhere."""
    asked, late = in_doubt_beside_another_client(kit)
    owner = {"project_id": asked.project_id, "user_id": asked.user_id}
    before = replace(kit.raw.allocations_of(asked.consumer), **owner)
    if moved:
        migration = replace(before, consumer=uuid_of("move"), generation=None, consumer_type="MIGRATION")
        there = replace(before, allocations={uuid_of("host"): {"VCPU": 2}})
        kit.raw.write_allocations(migration, there)
    else:
        kit.raw.delete_allocations(asked.consumer)
        assert late.execute() == DONE
        kit.raw.write_allocations(kit.raw.allocations_of(asked.consumer))
    assert kit.tracker.watch_doubts() == (not moved)
    assert kit.placed(asked.consumer) == ({"host": {"VCPU": 2}} if moved else {})


def test_a_first_write_of_a_consumer_that_is_claimed_here_is_left_to_its_release(kit: Kit) -> None:
    asked, late = in_doubt_beside_another_client(kit)
    kit.raw.delete_allocations(asked.consumer)
    kit.tracker.claim(asked)
    assert kit.tracker.watch_doubts() == 0
    kit.check()
    assert kit.tracker.release(asked.consumer)
    assert late.execute() == CONFLICT
    assert is_empty(kit)


def test_a_first_write_that_comes_between_a_release_and_its_bar_is_released_as_well(kit: Kit) -> None:
    asked, late = in_doubt_beside_another_client(kit)
    kit.raw.delete_allocations(asked.consumer)
    kit.tracker.claim(asked)
    writes: list[Any] = []

    def comes_before_the_bar(sent: Sent) -> Reply | None:
        if sent.method == "PUT":
            if len(writes) == 1:
                assert late.execute() == DONE
            writes.append((sent.body or {}).get("allocations"))
        return None

    kit.tap.answer = comes_before_the_bar
    assert kit.tracker.release(asked.consumer)
    assert writes == 4 * [{}], "each release with its bar"
    assert is_empty(kit)


@pytest.mark.parametrize("writes", [1, 2], ids=["from its generation", "from a former one"])
def test_a_late_release_does_not_take_what_another_client_gave_the_consumer_since(
    kit: Kit, writes: int
) -> None:
    """That client writes over the bar, and knows nothing of what the bar is for."""
    asked = request(PCPU=4)
    generation = released_in_doubt(kit, kit.tracker.claim(asked).claim, "timeout")
    assert kit.tracker.deliver() == 1
    there = {uuid_of("elsewhere"): {"VCPU": 2}}
    for at in range(BARRED, writes):
        kit.raw.write_allocations(ConsumerAllocations(asked.consumer, there, at))
    kit.tap.calls.clear()
    assert kit.tracker.watch_doubts() == 0
    protects = ["PUT allocations"] if writes == generation else []
    assert requests(kit) == ["PUT allocations", "GET allocations", *protects]
    assert kit.late.execute() == CONFLICT  # type: ignore[attr-defined]
    assert kit.raw.allocations_of(asked.consumer).allocations == there


def test_a_write_that_names_a_barred_consumers_generation_is_taken_back_when_it_comes(kit: Kit) -> None:
    """The bar that rejects the first of two late writes has the generation that the second one names."""
    asked = request(VCPU=2)
    with late_writes(kit, "timeout"), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    assert kit.tracker.deliver() == 1
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        late.lets_first_writes_conflict()
        kit.tracker.claim(asked)
    assert kit.tracker.deliver() == 1
    assert late.execute() == DONE
    assert kit.tracker.watch_doubts() == 1
    assert is_empty(kit)


# How many requests the fences cost


def requests(kit: Kit) -> list[str]:
    names = [call.split("/")[0] + call.split("/")[1] for call in kit.tap.calls]
    kit.tap.calls.clear()
    return names


def test_the_requests_of_each_fence_are_bounded(kit: Kit) -> None:
    asked = request(PCPU=4)
    with late_writes(kit, "timeout"), pytest.raises(PlacementUnavailable):
        kit.tracker.claim(asked)
    kit.tap.calls.clear()
    kit.tracker.deliver()
    assert requests(kit) == ["GET allocations", "PUT allocations"], "an abandoned claim is barred"
    other = request(PCPU=4)
    released_in_doubt(kit, kit.tracker.claim(other).claim, "timeout")
    kit.tap.calls.clear()
    kit.tracker.deliver()
    assert requests(kit) == ["GET allocations"] + 3 * ["PUT allocations"], "raised, released, and barred"
    kit.tracker.claim(other)
    meets_bar, anew = ["PUT allocations", "GET allocations"], ["PUT allocations"]
    raised = 2 * ["PUT allocations"]
    assert requests(kit) == meets_bar + anew + raised, "one for each generation up to the releases'"


def test_no_doubt_costs_no_request(kit: Kit) -> None:
    asked = request(PCPU=4)
    kit.tap.calls.clear()
    kit.tracker.claim(asked)
    kit.tracker.release(asked.consumer)
    assert requests(kit) == ["PUT allocations", "GET allocations", "PUT allocations"]
    assert all(doubt.state is DoubtState.ANSWERED for doubt in kit.journal.doubts().values())


def test_another_operation_of_the_consumer_ends_the_doubt_first(kit: Kit) -> None:
    asked = request(VCPU=1)
    claim = kit.tracker.claim(asked).claim
    wanted = ClaimRequest(asked.consumer, (request(VCPU=2).groups[0],))
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable):
        kit.tracker.extend(claim, wanted)
    assert kit.tracker.pending == 1
    assert kit.tracker.extend(claim, wanted) is not None
    assert late.execute() == CONFLICT
    assert kit.tracker.pending == 0 and kit.tracker.claims()[asked.consumer].state is ClaimState.CLAIMED
    kit.check()
    with suppress(ClaimConflict):
        kit.tracker.claim(request(str(uuid4()), VCPU=1))


# Steps of moves: whenever Placement does them, each instance has one place


def moved(kit: Kit) -> MoveState:
    return kit.tracker.moves()[MIGRATION].state


@ANY_ANSWER
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_begin_that_nobody_answered_is_never_executed_late(kit: Kit, answer: str, *, killed: bool) -> None:
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, answer) as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    assert (moved(kit), kit.tracker.pending) == (MoveState.BEGINNING, 1)
    if killed:
        restarted(kit)
    kit.tap.calls.clear()
    assert kit.tracker.deliver() == 1
    assert len([call for call in kit.tap.calls if not call.startswith("GET")]) == 1, "one fence"
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert late.execute() == CONFLICT
    assert kit.placed_all() == before
    kit.check()
    move = kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION).move
    assert move.state is MoveState.BEGUN


def test_a_begin_that_nobody_answered_ends_where_the_host_is_over_committed_meanwhile(kit: Kit) -> None:
    """Placement refuses to write again what the instance holds, so only a bar of the migration ends it."""
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, "502") as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=1), MoveKind.RESIZE, MIGRATION)
    shrink(kit)
    assert kit.tracker.deliver() == 1
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert late.execute() == CONFLICT
    assert kit.placed_all() == before
    kit.tracker.release(asked.consumer)
    assert kit.placed_all() == {}


def test_a_begin_that_is_executed_just_before_it_is_barred_is_undone_at_once(kit: Kit) -> None:
    asked = request(VCPU=2)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, "502") as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=1), MoveKind.RESIZE, MIGRATION)
    shrink(kit)

    def comes_before_the_bar(sent: Sent) -> Reply | None:
        if (sent.body or {}).get("consumer_type") == "BARRED":
            kit.tap.answer = None
            shrink(kit, most=2)
            assert late.execute() == DONE
        return None

    kit.tap.answer = comes_before_the_bar
    assert kit.tracker.deliver() == 1
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert kit.placed_all() == before
    kit.check()


@pytest.mark.parametrize("executed", [False, True], ids=["not done yet", "done"])
@pytest.mark.parametrize("step", ["confirm", "revert"])
def test_who_ends_a_move_whose_begin_nobody_answered_learns_at_once_what_became_of_it(
    kit: Kit, step: str, *, executed: bool
) -> None:
    """Its guest is not here, so the begin is undone; an operator does not wait for the next delivery."""
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    before = kit.placed_all()
    with late_writes(kit, "timeout") as late, pytest.raises(PlacementUnavailable, match="not known yet"):
        kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    if executed:
        assert late.execute() == DONE
    if step == "revert":
        assert kit.tracker.revert_move(MIGRATION).state is MoveState.REVERTED
    else:
        with pytest.raises(ClaimConflict, match="was reverted already"):
            kit.tracker.confirm_move(MIGRATION)
    assert (moved(kit), kit.tracker.pending) == (MoveState.REVERTED, 0)
    assert kit.placed_all() == before
    assert executed or late.execute() == CONFLICT
    kit.check()


@pytest.mark.parametrize("step", ["confirm", "revert"])
@pytest.mark.parametrize("executed", [False, True], ids=["not done yet", "done"])
def test_the_end_of_a_move_that_nobody_answered_is_executed_once(
    kit: Kit, step: str, *, executed: bool
) -> None:
    asked, grown = request(VCPU=1), {"VCPU": 2}
    kit.tracker.claim(asked)
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    with late_writes(kit, "502") as late:
        getattr(kit.tracker, f"{step}_move")(MIGRATION)
    assert kit.tracker.pending == 1
    if executed:
        assert late.execute() == DONE
    assert kit.tracker.deliver() == 1
    assert (moved(kit).value, kit.tracker.pending) == (f"{step}ed", 0)
    if not executed:
        assert late.execute() == CONFLICT
    assert kit.placed_all() == {asked.consumer: {"host": grown if step == "confirm" else {"VCPU": 1}}}
    kit.check()


def test_a_late_confirm_takes_nothing_of_a_later_move_with_the_same_uuid(kit: Kit) -> None:
    """The migration is made anew, at the generation that the late write names."""
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    with late_writes(kit, "timeout") as late:
        kit.tracker.revert_move(MIGRATION)
    kit.tracker.deliver()
    assert moved(kit) is MoveState.REVERTED
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    assert late.execute() == CONFLICT
    assert kit.placed(MIGRATION) == {"host": {"VCPU": 1}}
    assert kit.placed(asked.consumer) == {"host": {"VCPU": 2}}
    assert kit.tracker.claims()[asked.consumer].state is ClaimState.CLAIMED


def test_a_migration_that_another_client_makes_anew_right_after_its_end_is_freed_as_well(kit: Kit) -> None:
    """The earlier end may come late, so the migration is barred again: the bar meets the other client."""
    asked = request(VCPU=1)
    kit.tracker.claim(asked)
    kit.tracker.begin_move(request(asked.consumer, VCPU=2), MoveKind.RESIZE, MIGRATION)
    with late_writes(kit, "timeout") as late:
        kit.tracker.confirm_move(MIGRATION)

    def makes_it_anew(_: str) -> None:
        if not kit.placed(MIGRATION):
            kit.tap.after = lambda _: None
            kit.schedule(MIGRATION, "MIGRATION", host={"VCPU": 1})

    kit.tap.after = makes_it_anew
    assert kit.tracker.deliver() == 1
    assert moved(kit) is MoveState.CONFIRMED
    assert kit.placed_all() == {asked.consumer: {"host": {"VCPU": 2}}}
    assert late.execute() == CONFLICT
    kit.check()


NOTHING_HELD = {"allocations": {}}
CONFLICT_BODY = {"errors": [{"status": 409, "code": "placement.concurrent_update", "detail": "It changed."}]}
MADE_UP = pytest.mark.parametrize(
    ("status", "body"),
    [(200, NOTHING_HELD), (204, None), (404, {"errors": []}), (409, CONFLICT_BODY)],
    ids=["nothing is held", "204", "404", "409"],
)


@pytest.fixture
def middlebox(openstack: OpenStack) -> Iterator[Middlebox]:
    openstack.empty()
    with closing(Middlebox(openstack.options["endpoint_override"])) as box:
        yield box


@pytest.fixture
def cut_kit(tmp_path: Path, middlebox: Middlebox) -> Iterator[Kit]:
    with checked_kit(tmp_path, middlebox.placement) as cut_kit:
        yield cut_kit


@pytest.fixture
def cut_world(tmp_path: Path, middlebox: Middlebox) -> Iterator[World]:
    with World(tmp_path, middlebox.placement) as cut_world:
        yield cut_world


@MADE_UP
def test_a_release_forgets_no_claim_that_placement_holds(
    cut_kit: Kit, middlebox: Middlebox, status: int, body: Any
) -> None:
    asked = request(VCPU=1, SRIOV_NET_VF=1)
    cut_kit.tracker.claim(asked)
    held = cut_kit.placed_all()
    with middlebox.answering(f"GET /allocations/{asked.consumer}", status, body):
        cut_kit.tracker.release(asked.consumer)
    assert middlebox.asked, "the release reads what the consumer holds"
    assert cut_kit.placed_all() == held
    assert cut_kit.tracker.claims()[asked.consumer].state is ClaimState.RELEASING
    assert cut_kit.tracker.pending == 1
    assert cut_kit.tracker.deliver() == 1
    assert (cut_kit.placed_all(), dict(cut_kit.tracker.claims()), cut_kit.tracker.pending) == (
        {},
        {},
        0,
    )


@MADE_UP
@pytest.mark.parametrize("consumer", [INSTANCE, MIGRATION], ids=["instance", "migration"])
def test_a_revert_leaves_the_instance_at_the_source(
    cut_world: World, middlebox: Middlebox, consumer: str, status: int, body: Any
) -> None:
    before = cut_world.a.tracker.claim(asks(**SMALL)).claim
    held = cut_world.placed_all()
    cut_world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    cut_world.settle()
    begun = cut_world.placed_all()
    with middlebox.answering(f"GET /allocations/{consumer}", status, body):
        cut_world.b.tracker.revert_move(MIGRATION)
    assert middlebox.asked, "the revert reads what both hold"
    assert cut_world.placed_all() == begun
    cut_world.settle()
    assert cut_world.b.moving() is MoveState.REVERTED
    assert cut_world.placed_all() == held
    assert cut_world.a.tracker.claim_of(INSTANCE) == before
    assert cut_world.b.tracker.claims() == {}
    cut_world.check_settled()


@MADE_UP
def test_a_verification_takes_no_claim_for_gone(
    cut_world: World, middlebox: Middlebox, status: int, body: Any
) -> None:
    """The source of a move looks for what became of it: nothing, as far as it knows."""
    cut_world.a.tracker.claim(asks(**SMALL))
    cut_world.b.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, MIGRATION)
    cut_world.settle()
    begun, move = cut_world.placed_all(), cut_world.a.move()
    with middlebox.answering("GET /allocations/", status, body), pytest.raises(PlacementUnavailable):
        cut_world.a.tracker.follow_moves()
    assert cut_world.placed_all() == begun and cut_world.a.move() == move
    assert POOL.uuid in cut_world.raw.allocations_of(INSTANCE).allocations
    cut_world.settle()
    assert cut_world.a.move() == move
