"""Histories told by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from unittest.mock import patch

import pytest

from agent.backoff import MAX_S
from agent.claims.book import Book
from agent.errors import AnotherWriter, ClaimConflict, ClaimsClosed, DoesNotFit, PlacementUnavailable
from simulation.journal import RowMeets
from simulation.machine import uuid_of
from simulation.network import BECOMES, Fate
from simulation.oracle import Violation
from simulation.story import Story, _sum

WEB = {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1}
BOTH = {"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 2}
LARGE = {"VCPU": 2, "MEMORY_MB": 20000}
OUTCOMES = (
    Fate.RESET_BEFORE,
    Fate.RESET_AFTER,
    Fate.LATE,
    Fate.PROXY_BEFORE,
    Fate.PROXY_AFTER,
    Fate.PROXY_LATE,
    Fate.MADE_UP,
)


DOUBTS = [
    (fate, later_s)
    for fate in OUTCOMES
    for later_s in ((5.0, 50.0, 100.0, 250.0) if BECOMES[fate].done_later else (0.0,))
]
"""Each outcome that the agent does not learn of, and when the write is done if it is done later."""


def units(story: Story, host: str, consumer: str) -> list[str]:
    return sorted(unit for _, unit in story.claim_of(host, consumer).units)


def open_doubts(story: Story, host: str) -> int:
    rows = story.hosts[host].disk.rows("SELECT doubt FROM doubts")
    return sum(json.loads(doubt)["state"] == "open" for (doubt,) in rows)


# Simple ones


def test_a_claim_a_guest_a_move_and_a_release_leave_nothing() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        a.guest_moves("web1", "b")
        assert b.confirms("move1").granted
        story.waits(300)
        b.guest_goes("web1")
        assert b.releases("web1").granted
        story.comes_to_rest()
        assert not story.held("web1") and not story.held("move1")


@pytest.mark.parametrize("seconds", [3600, -3600, 4 * 365 * 86400])
def test_a_guest_that_starts_slowly_keeps_its_claim_while_the_clock_is_set(seconds: int) -> None:
    with Story() as story:
        story.waits(5)
        story.starts_guests_slowly(30)
        with story.meanwhile():
            story.gate_lets_in("a", "web1", **WEB)
            story.waits(3)
            story.sets_clock(seconds)
            story.looks("a")
            story.waits(40)
        story.comes_to_rest()
        assert story.held("web1")


def test_a_lost_answer_to_a_claim_is_found_out() -> None:
    with Story() as story:
        a = story.host("a")
        story.next_write("a", Fate.RESET_AFTER)
        answer = a.claims("web1", **WEB)
        story.comes_to_rest()
        assert answer.granted == bool(story.held("web1"))


# Exact units and reshapes


def test_the_last_of_five_claims_keeps_its_function_when_devices_get_providers() -> None:
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("flat")
        for number in range(4):
            assert a.claims(f"web{number}", **WEB).granted
        for number in range(3):
            assert a.releases(f"web{number}").granted
        told = units(story, "a", "web3")
        a.reshapes("nested")
        story.waits(300)
        assert units(story, "a", "web3") == told
        for number in range(3):
            assert a.claims(f"web{number}", **WEB).granted
        story.comes_to_rest()


def test_two_claims_keep_their_functions_through_a_reshape_there_and_back() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **BOTH).granted and a.claims("web3", **BOTH).granted
        a.reshapes("flat")
        story.waits(5)
        a.reshapes("nested")
        story.comes_to_rest()


@pytest.mark.parametrize("seen", [True, False], ids=["guest seen", "no guest"])
@pytest.mark.parametrize("end", ["confirms", "reverts"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_migration_keeps_its_function_through_a_reshape_at_the_source(
    side: str, end: str, *, seen: bool
) -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("flat")
        assert a.claims("web1", **WEB).granted and a.claims("web2", **WEB).granted
        told = units(story, "a", "web2")
        a.releases("web1")
        if seen:
            a.guest_starts("web2")
        assert b.begins_move("web2", "move1", "cold_migrate", **WEB).granted
        story.waits(130)
        a.reshapes("nested")
        story.waits(300)
        assert units(story, "a", "move1") == told
        if seen and end == "confirms":
            a.guest_moves("web2", "b")
        assert getattr(story.host(side), end)("move1").granted
        story.comes_to_rest()
        assert story.held("web2") == WEB and not story.held("move1")
        assert end == "confirms" or units(story, "a", "web2") == told


def test_a_reshape_in_a_resize_here_moves_what_the_old_guest_uses_and_not_the_new_claim() -> None:
    """The driver says that the guest has two dedicated CPUs; these are the migration's."""
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", PCPU=2, MEMORY_MB=1024).granted
        story.waits(5)
        told = units(story, "a", "web1")
        a.guest_starts("web1")
        assert a.begins_move("web1", "move1", "resize", VCPU=8, MEMORY_MB=9000).granted
        story.waits(300)
        assert units(story, "a", "move1") == told
        assert story.held("web1") == {"VCPU": 8, "MEMORY_MB": 9000}
        assert story.held("move1") == {"PCPU": 2, "MEMORY_MB": 1024}
        assert a.reverts("move1").granted
        story.comes_to_rest()
        assert units(story, "a", "web1") == told


def test_a_guest_that_was_not_restarted_after_its_resize_does_not_change_the_class_of_its_claim() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", PCPU=2, MEMORY_MB=1024).granted
        story.waits(5)
        a.guest_starts("web1")
        assert a.begins_move("web1", "move1", "resize", VCPU=8, MEMORY_MB=9000).granted
        assert a.confirms("move1").granted
        story.waits(300)
        assert story.held("web1")["VCPU"] == 8
        story.comes_to_rest()


# Counting


def test_what_a_stranger_uses_is_not_claimed_by_another() -> None:
    with Story("a") as story:
        a = story.host("a")
        a.stranger_starts("stranger1", **LARGE)
        story.waits(20)
        assert not a.claims("web1", **LARGE).granted
        story.comes_to_rest()


def test_a_guest_has_as_many_devices_as_units_also_of_a_claim_that_has_fewer() -> None:
    """Seed 880361: the cards lost a function each, of two that schedulers had given to web1 and to web2.

    The guest of web1 has the one that is left, loses it, and uses none: certainly not that of web2.
    """
    with Story("b") as story:
        b = story.host("b")
        b.schedules("web2", **BOTH)
        b.schedules("web1", **BOTH)
        b.loses_functions()
        story.waits(5)
        assert b.claims("web1", **WEB).granted
        b.guest_starts("web1")
        story.waits(1)
        assert b.releases("web1").granted
        b.guest_loses_a_device("web1")
        story.waits(1)
        assert b.claims("web1", **WEB).granted
        story.comes_to_rest()


@pytest.mark.parametrize("end", ["", "confirms", "reverts"])
def test_what_a_migration_lacks_of_a_claim_is_reserved_until_the_move_ends(end: str) -> None:
    """Seed 421091: an admin takes all but the function out of the allocation; the migration gets that."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web2", **WEB).granted
        story.narrows_allocation("web2")
        assert a.begins_move("web2", "move1", "resize", **WEB).granted
        story.gate_lets_in("b", "web1", PCPU=2, MEMORY_MB=1024)
        story.waits(300)
        assert story.held("move1") == {"SRIOV_NET_VF": 1}
        if end:
            assert getattr(a, end)("move1").granted
        story.comes_to_rest()


def test_a_guest_that_is_to_leave_has_no_place_in_the_migration_of_another() -> None:
    """Its own move was confirmed, and the other migration holds less than it uses."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", **BOTH).granted and b.claims("web2", **WEB).granted
        b.guest_starts("web1")
        story.narrows_allocation("web2")
        assert a.begins_move("web1", "move1", "resize", **BOTH).granted
        assert a.begins_move("web2", "move2", "resize", **WEB).granted
        story.waits(300)
        assert story.held("move2") == {"VCPU": 1, "MEMORY_MB": 1024}
        assert a.confirms("move1").granted
        story.comes_to_rest()


def test_a_guest_that_is_to_leave_has_no_place_in_the_migration_of_a_deleted_instance() -> None:
    """That one's guest is of its size, and Placement does not say that the migration is its own."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.schedules("web4", **WEB)
        a.stranger_starts("web4", **WEB)
        a.control_plane_moves("web4", "b", "foreign1")
        story.deletes_allocation("web4")
        assert b.claims("web1", **WEB).granted
        b.guest_starts("web1")
        assert a.begins_move("web1", "move1", "resize", **WEB).granted
        story.waits(300)
        story.deletes_allocation("web1")
        b.guest_moves("web1", "a")
        assert b.audits().granted and b.claims("web1", **WEB).granted
        story.comes_to_rest()
        assert story.held("foreign1") == WEB and story.unfinished_moves("a") == {"move1"}


def test_a_migration_is_found_that_has_what_a_late_write_gave_the_claim() -> None:
    """Seed 70255: the source learned the size of the disk, and extended the claim without an answer."""
    with Story(pooled=True) as story:
        b = story.host("b")
        story.gate_lets_in("a", "web1", VCPU=1, MEMORY_MB=1024, DISK_GB=40)
        story.answers_come()
        with story.meanwhile():
            story.next_write("a", Fate.LATE, 1.0)
            story.looks("a")
            story.waits(1)
            b.begins_move("web1", "move1", "live_migrate", **LARGE)
            story.answers_come()
        story.comes_to_rest()


def test_a_migration_is_kept_for_a_guest_that_uses_other_classes_than_it_was_allocated() -> None:
    """Seed 2445: the audit took what the guest uses for what its allocation would be."""
    with Story() as story:
        story.schedules("a", "web1", **WEB)
        story.stranger_starts("a", "web1", PCPU=1)
        story.control_plane_moves("a", "web1", "b", "foreign1")
        story.audits("a")
        story.comes_to_rest()
        assert story.held("foreign1")


def test_each_migration_holds_the_place_of_one_guest_whose_instance_left() -> None:
    """The third guest is twice as large, so both migrations together would be a place for it."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        story.schedules("b", "web1", **WEB)
        story.stranger_starts("b", "web1", **WEB)
        assert b.claims("web3", **WEB).granted
        b.guest_starts("web3")
        story.control_plane_moves("b", "web1", "a", "foreign1")
        assert a.begins_move("web3", "move1", "cold_migrate", **WEB).granted
        a.guest_moves("web3", "a")
        b.guest_goes("web3")
        story.schedules("a", "web2", **WEB)
        story.stranger_starts("b", "web2", **BOTH)
        story.comes_to_rest()


@pytest.mark.parametrize(("one", "two"), [("web1", "web2"), ("web2", "web1")])
def test_a_guest_takes_the_migration_that_holds_as_much_as_it_uses(one: str, two: str) -> None:
    """Seed 105717: neither guest has functions of the cards of which its scheduler gave it some."""
    with Story() as story:
        a = story.host("a")
        for web, amounts in ((two, BOTH), (one, WEB)):
            a.schedules(web, **amounts)
        for web, amounts in ((one, WEB), (two, BOTH)):
            a.stranger_starts(web, **amounts)
        for web in (one, two):
            a.control_plane_moves(web, "b", f"foreign {web}")
        story.comes_to_rest()


def test_a_migration_that_holds_more_than_a_guest_uses_is_that_of_an_instance_without_one() -> None:
    """Seed 1243: the other instance was placed here, and moved on before it had a claim or a guest."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.schedules("web2", VCPU=8, MEMORY_MB=9000, DISK_GB=40)
        assert b.begins_move("web2", "move1", "cold_migrate", **BOTH).granted
        assert b.claims("web1", **WEB).granted
        a.stranger_starts("web1", **BOTH)
        story.comes_to_rest()


def test_an_empty_state_directory_beside_a_large_guest_does_not_offer_its_memory_again() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", VCPU=2, MEMORY_MB=30000).granted
        a.guest_starts("web1")
        story.waits(20)
        a.dies()
        a.loses_disk()
        story.deletes_allocation("web1")
        a.starts()
        story.waits(300)
        assert not a.claims("web2", **LARGE).granted
        story.comes_to_rest()


def test_a_disk_for_which_placement_has_no_room_is_not_asked_for_in_every_pass() -> None:
    """The guest uses its disk all the same, so the book gives it; Placement refuses the overcommitment."""
    with Story("a") as story:
        a = story.host("a")
        a.stranger_starts("stranger1", VCPU=1, MEMORY_MB=1024, DISK_GB=40)
        a.schedules("web2", DISK_GB=40)
        story.waits(130)
        a.gate_lets_in("web1", VCPU=1, MEMORY_MB=1024, DISK_GB=40)
        story.waits(10)
        before = story.network.requests
        story.waits(120)
        assert story.network.requests - before < 60
        story.comes_to_rest()


# Unknown writes


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_claim_whose_answer_is_lost_leaves_no_orphan(fate: Fate, later_s: float) -> None:
    with Story("a") as story:
        story.next_write("a", fate, later_s)
        story.host("a").claims("web1", **WEB)
        story.waits(200)
        story.comes_to_rest()


def test_a_claim_in_doubt_is_undone_where_its_guest_is_here_and_its_instance_elsewhere() -> None:
    """Seed 107669: Placement takes no claim for it on this host, and nothing of the lost one can come."""
    with Story() as story:
        a, claimed = story.host("a"), {"PCPU": 2, "MEMORY_MB": 1024}
        story.schedules("b", "web1", VCPU=1)
        a.stranger_starts("web1", VCPU=1, MEMORY_MB=1024)
        story.next_write("a", Fate.PROXY_BEFORE)
        assert not a.claims("web1", **claimed).granted
        story.waits(60)
        assert story.claim_of("a", "web1") is None
        assert a.claims("web2", **claimed).granted and a.claims("web3", **claimed).granted
        story.comes_to_rest()


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_claim_whose_answer_is_lost_before_a_restart_leaves_no_orphan(fate: Fate, later_s: float) -> None:
    with Story("a") as story:
        a = story.host("a")
        story.next_write("a", fate, later_s)
        a.claims("web1", **WEB)
        a.dies()
        a.starts()
        story.waits(200)
        story.comes_to_rest()


@pytest.mark.parametrize("places", [30, 36, 42, 48])
def test_a_claim_of_the_gate_in_which_the_agent_dies_leaves_no_orphan(places: int) -> None:
    """Also where an admin writes again what it holds, for the owner that it has."""
    with Story() as story:
        story.host("a").claims("web2", **BOTH)
        story.waits(70)
        story.will_die("a", places)
        story.gate_lets_in("a", "web1", **WEB)
        story.rewrites_allocation("web1", 20)
        story.comes_to_rest()


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_begin_whose_answer_is_lost_leaves_no_double_place(fate: Fate, later_s: float) -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        story.next_write("b", fate, later_s)
        b.begins_move("web1", "move1", "cold_migrate", **WEB)
        story.waits(200)
        story.comes_to_rest()


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_begin_whose_answer_is_lost_is_reverted_when_that_is_asked_for(fate: Fate, later_s: float) -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        story.next_write("b", fate, later_s)
        b.begins_move("web1", "move1", "cold_migrate", **WEB)
        assert b.reverts("move1").granted
        story.comes_to_rest()
        assert story.held("web1") == WEB and not story.held("move1")
        assert story.claim_of("a", "web1") is not None


def test_a_begin_in_which_the_agent_dies_is_undone_or_finished_after_its_restart() -> None:
    """At each place where the agent waits in it."""
    died, place = True, 0
    while died:
        place += 1
        with Story() as story:
            a, b = story.host("a"), story.host("b")
            assert a.claims("web1", **WEB).granted
            b.will_die(place)
            b.begins_move("web1", "move1", "cold_migrate", **WEB)
            died = story.hosts["b"].process.dead
            b.starts()
            story.comes_to_rest()
            begun = story.claim_of("b", "web1") is not None
            assert story.held("web1") == WEB
            assert story.held("move1") == (WEB if begun else {})
            assert (
                begun == (story.claim_of("a", "web1") is None) == (story.claim_of("a", "move1") is not None)
            )
    assert place > 20 and begun


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_late_release_does_not_take_a_later_claim(fate: Fate, later_s: float) -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        story.next_write("a", fate, later_s)
        a.releases("web1")
        story.waits(70)
        a.claims("web1", **WEB)
        story.waits(300)
        story.comes_to_rest()


def knows_one_of_two(story: Story, host: str, consumer: str) -> None:
    """Its claim takes over what a scheduler wrote while one of the functions is away.

    When that is away again, the card offers one, and Placement refuses to write what the consumer holds.
    """
    story.schedules(host, consumer, **BOTH)
    story.loses_functions(host)
    assert story.claims(host, consumer, **{**BOTH, "SRIOV_NET_VF": 1}).granted
    story.regains_functions(host)
    assert story.held(consumer) == BOTH


@pytest.mark.parametrize("times", [0, 20])
def test_what_a_release_gives_back_is_free_at_once_although_a_grow_was_in_doubt(times: int) -> None:
    """The guest's functions are gone, so nothing but the release can be written for it."""
    with Story("a") as story:
        a = story.host("a")
        knows_one_of_two(story, "a", "web1")
        a.guest_starts("web1")
        story.rewrites_allocation("web1", times)
        a.guest_grows("web1", MEMORY_MB=28000)
        story.waits(130)
        story.next_write("a", Fate.LATE, 250.0)
        a.audits()
        a.loses_functions()
        a.guest_goes("web1")
        assert a.releases("web1").granted
        assert a.claims("web2", VCPU=2, MEMORY_MB=30000).granted
        story.comes_to_rest()


def test_a_release_in_a_paused_process_does_not_take_a_later_claim() -> None:
    """Behind a balancer: the release waits in the paused process, the claim goes through the other."""
    with Story("a", servers=2) as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        with story.meanwhile():
            story.pauses(1)
            story.pauses(2)
            a.releases("web1")
            story.waits(10)
        story.resumes(2)
        story.waits(200)
        a.claims("web1", **WEB)
        story.resumes(1)
        story.comes_to_rest()


def test_an_answered_release_that_a_proxy_repeats_does_not_take_a_later_claim() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.next_write(Fate.TWICE, 100.0)
        assert a.releases("web1").granted
        assert a.claims("web1", **WEB).granted
        story.comes_to_rest()


def test_a_late_first_claim_does_not_come_true_after_another_host_released_the_consumer() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", **WEB).granted
        a.next_write(Fate.LATE, 150.0)
        a.claims("web1", **WEB)
        story.waits(60)
        b.releases("web1")
        story.comes_to_rest()


def test_a_bar_that_another_host_released_does_not_let_a_late_claim_through() -> None:
    """The other host claims the consumer at the bar's generation; its release deletes the consumer."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.next_write(Fate.PROXY_LATE, 250.0)
        a.claims("web1", **WEB)
        story.waits(20)
        assert b.claims("web1", **WEB).granted
        assert b.releases("web1").granted
        story.comes_to_rest()


def test_a_late_claim_is_taken_back_although_another_host_has_written_it_again() -> None:
    """That host does not know whether its own release may still come: it writes what the consumer holds."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.next_write(Fate.LATE, 60.0)
        a.claims("web1", **WEB)
        assert b.claims("web1", **WEB).granted
        story.waits(30)
        b.next_write(Fate.LATE, 1.0)
        b.releases("web1")
        story.comes_to_rest()


def test_a_release_gives_back_the_disk_space_of_a_pool_that_the_agent_never_learned_to_hold() -> None:
    with Story(pooled=True) as story:
        a = story.host("a")
        assert a.gate_lets_in("web1", VCPU=1, MEMORY_MB=1024, DISK_GB=40).granted
        a.next_write(Fate.RESET_AFTER)
        a.looks()
        assert story.held("web1")["DISK_GB"] == 40
        a.gate_sees_end("web1")
        story.comes_to_rest()
        assert not story.held("web1")


def test_a_late_release_does_not_take_the_later_claim_of_another_host() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        a.next_write(Fate.LATE, 250.0)
        a.releases("web1")
        story.waits(60)
        assert b.claims("web1", **WEB).granted
        story.waits(300)
        assert story.held("web1") == WEB
        story.comes_to_rest()


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("later_s", [30.0, 250.0])
def test_a_late_release_does_not_take_a_claim_that_was_made_before_its_bar(
    later_s: float, *, bound: bool
) -> None:
    with Story(bound=bound) as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        for fate in (Fate.PROXY_LATE, Fate.ANSWERED, Fate.ANSWERED, Fate.NOT_SENT):
            a.next_write(fate, later_s)  # the fence and the second release are answered, the bar is not sent
        a.releases("web1")
        for _ in range(10):  # seconds; the host asks for the bar again soon
            if story.held("web1"):
                story.waits(1)
        assert b.claims("web1", **WEB).granted
        story.waits(300)
        assert story.held("web1") == WEB
        story.comes_to_rest()


# The journal


def test_a_commit_that_stalls_during_a_claim_is_done_once_and_known() -> None:
    with Story("a") as story:
        a = story.host("a")
        a.journal_stalls(70.0)
        a.claims("web2", **WEB)
        story.comes_to_rest()


def test_a_unit_is_not_given_twice_around_a_commit_that_stalls() -> None:
    with Story("a") as story:
        a = story.host("a")
        a.journal_stalls(70.0)
        a.claims("web2", PCPU=2, MEMORY_MB=1024)
        story.waits(60)
        a.claims("web4", PCPU=2, MEMORY_MB=1024)
        story.comes_to_rest()


def test_a_commit_that_fails_between_two_claims_for_one_function_gives_it_to_one() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **BOTH).granted and a.claims("web2", **WEB).granted
        with story.meanwhile():
            a.journal_fails()
            a.claims("web3", **WEB)
            a.claims("web4", **WEB)
            story.lets(50)
            a.claims("web3", **WEB)
        story.answers_come()
        story.comes_to_rest()


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_claim_whose_commit_fails_is_made_when_it_is_asked_for_again(commits: int) -> None:
    with Story("a") as story:
        a = story.host("a")
        a.journal_fails_later(commits)
        assert not a.claims("web1", **WEB).granted
        story.waits(130)
        assert a.claims("web1", **WEB).granted
        a.dies()
        a.starts()
        story.comes_to_rest()
        assert story.held("web1") == WEB and story.claim_of("a", "web1").state == "claimed"


@pytest.mark.parametrize("commits", [1, 2, 3, 4])
def test_placement_holds_what_is_claimed_although_the_journal_did_not_take_a_new_claim(commits: int) -> None:
    with Story("a", pooled=True) as story:
        a, small = story.host("a"), {"VCPU": 1, "MEMORY_MB": 1024}
        assert a.gate_lets_in("web1", **small, DISK_GB=40).granted
        story.waits(130)
        a.gate_sees_end("web1")
        a.journal_fails_later(commits)
        a.gate_lets_in("web1", **small, DISK_GB=20)
        a.guest_goes("web1")
        a.guest_starts("web1")
        story.comes_to_rest()


def test_a_release_whose_commit_stalls_does_not_free_what_a_guest_uses() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.journal_stalls(70.0)
        a.releases("web1")
        a.dies()
        a.starts()
        story.comes_to_rest()


# Moves


@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_a_move_onward_does_not_confirm_the_one_before_it_under_the_guest_at_the_source(end: str) -> None:
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        assert a.claims("web2", **WEB).granted
        a.guest_starts("web2")
        assert b.begins_move("web2", "move2", "cold_migrate", **WEB).granted
        assert c.begins_move("web2", "move3", "cold_migrate", **WEB).granted
        story.waits(400)
        assert story.held("move2") == story.held("move3") == story.held("web2") == WEB
        if end == "reverts":
            assert c.reverts("move3").granted
            story.waits(400)
            assert story.held("web2") == story.held("move2") == WEB
            assert b.reverts("move2").granted
        else:
            a.guest_goes("web2")
            assert c.confirms("move3").granted
        story.comes_to_rest()
        assert story.held("web2") == WEB
        assert not story.held("move2") and not story.held("move3")


@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_a_same_host_resize_keeps_both_places_through_a_reshape(end: str) -> None:
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("flat")
        assert a.claims("web1", **WEB).granted and a.claims("web2", **WEB).granted
        told = units(story, "a", "web2")
        assert a.releases("web1").granted
        a.guest_starts("web2")
        assert a.begins_move("web2", "move1", "resize", **BOTH).granted
        grown = units(story, "a", "web2")
        a.reshapes("nested")
        story.waits(300)
        assert units(story, "a", "move1") == told
        assert units(story, "a", "web2") == grown
        if end == "confirms":
            a.guest_resizes("web2")
        assert getattr(a, end)("move1").granted
        story.comes_to_rest()
        assert units(story, "a", "web2") == (grown if end == "confirms" else told)


@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_two_moves_that_look_alike_end_at_the_source_after_a_reshape_there(end: str) -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("flat")
        told = {}
        for web in ("web1", "web2"):
            assert a.claims(web, **WEB).granted
            a.guest_starts(web)
            told[web] = units(story, "a", web)
        for number in (1, 2):
            assert b.begins_move(f"web{number}", f"move{number}", "cold_migrate", **WEB).granted
        a.reshapes("nested")
        story.waits(300)
        for number in (1, 2):
            if end == "confirms":
                a.guest_moves(f"web{number}", "b")
            assert getattr(a, end)(f"move{number}").granted
        story.comes_to_rest()
        for web, before in told.items():
            assert story.held(web) == WEB
            if end == "reverts":
                assert units(story, "a", web) == before


@pytest.mark.parametrize("memory_mb", [1024, 10_000])
@pytest.mark.parametrize("guests", [("web1",), ("web1", "web2")])
@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_two_moves_that_look_alike_end_at_the_source_after_a_reshape_to_its_cells(
    end: str, guests: tuple[str, ...], memory_mb: int
) -> None:
    """Seed 935034: the reshape led both migrations to one cell, or one to each. No claim is on one by choice.

    Else the source could not link it to its migration, or linked it to the other one: a revert of web1's move
    then took web2 back.
    """
    place = {"VCPU": 1, "MEMORY_MB": memory_mb}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        for web in ("web1", "web2"):
            assert a.claims(web, **place).granted
        for web in guests:
            a.guest_starts(web)
        with story.meanwhile():
            for number in (1, 2):
                b.begins_move(f"web{number}", f"move{number}", "resize", VCPU=2, MEMORY_MB=memory_mb)
            story.answers_come()
        a.reshapes("by cell")
        story.comes_to_rest()
        assert not story.unfinished_moves("a")
        for number in (1, 2):
            if end == "confirms":
                a.guest_goes(f"web{number}")
            assert getattr(a, end)(f"move{number}").granted
        story.comes_to_rest()
        for number in (1, 2):
            assert not story.held(f"move{number}")
            assert (story.claim_of("a", f"web{number}") is None) is (end == "confirms")


@pytest.mark.parametrize("moves", [("move1", "move3"), ("move3", "move1")])
def test_of_two_moves_that_look_alike_each_holds_one_place(moves: tuple[str, str]) -> None:
    """Seed 842814: a saw web1 beside the first migration, so that is of web3; the second may be of either."""
    place = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web3", **place).granted
        with story.meanwhile():
            b.begins_move("web3", moves[0], "live_migrate", **place)
            a.claims("web1", **place)
            story.answers_come()
        a.audits()
        a.guest_starts("web1")
        assert b.begins_move("web1", moves[1], "live_migrate", **place).granted
        story.comes_to_rest()
        assert not any(amount for (_, name), amount in story.reserved("a").items() if name == "PCPU")


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_two_moves_that_look_alike_keep_both_places_until_both_have_ended(confirmed: int) -> None:
    """The source did not look between the two begins, so it cannot know which migration is whose."""
    place = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        told = {}
        for web in ("web1", "web2"):
            assert a.claims(web, **place).granted
            told[web] = units(story, "a", web)
        for number in (1, 2):
            assert b.begins_move(f"web{number}", f"move{number}", "cold_migrate", **place).granted
        story.waits(400)
        for number in range(confirmed):
            assert b.confirms(f"move{number + 1}").granted
        story.comes_to_rest()
        for web, before in told.items():
            claim = story.claim_of("a", web)
            assert claim is None if confirmed == 2 else sorted(unit for _, unit in claim.units) == before


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_two_moves_that_look_alike_and_that_their_destination_forgot_end_at_the_source(
    end: str, runs: bool
) -> None:
    """Seed 883019: the source keeps a claim of both instances until an operator names the migrations."""
    place = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 20}
    with Story(pooled=runs) as story:
        a, b = story.host("a"), story.host("b")
        for web in ("web1", "web2"):
            assert a.claims(web, **place).granted
            if runs:
                a.guest_starts(web)
        with story.meanwhile():
            for number in (1, 2):
                b.begins_move(f"web{number}", f"move{number}", "resize", **{**place, "DISK_GB": 40})
            story.answers_come()
        b.dies()
        b.loses_disk()
        story.comes_to_rest()
        for number in (1, 2):
            assert story.claim_of("a", f"web{number}") is not None
            if runs and end == "confirms":
                a.guest_goes(f"web{number}")
            assert getattr(a, end)(f"move{number}").granted
        story.comes_to_rest()
        for number in (1, 2):
            assert not story.held(f"move{number}")
            assert (story.claim_of("a", f"web{number}") is None) is (end == "confirms")


def test_a_migration_that_is_left_may_be_that_of_a_guest_that_got_a_device() -> None:
    """Seed 16979: foreign3 is web4's, which is gone; it holds what web2 has, but for the device that came."""
    with Story() as story:
        a = story.host("a")
        with story.meanwhile():
            for web, migration in (("web2", "foreign2"), ("web4", "foreign3")):
                a.schedules(web, **WEB)
                a.stranger_starts(web, **WEB)
                a.control_plane_moves(web, "b", migration)
            story.deletes_allocation("foreign2")
            a.guest_grows("web2", SRIOV_NET_VF=1)
            a.guest_goes("web4")
        story.comes_to_rest()


def test_a_guest_is_claimed_for_beside_a_migration_that_may_be_one_of_its_own() -> None:
    """Seed 951173: what foreign1 holds may be web1's or web3's. web1's guest runs with what it is given."""
    alike = {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40}
    with Story() as story:
        a = story.host("a")
        with story.meanwhile():
            a.schedules("web1", **alike)
            a.stranger_starts("web1", **alike)
            a.control_plane_moves("web1", "b", "foreign1")
            a.stranger_starts("web3", **alike)
            story.deletes_allocation("web1")
            a.guest_goes("web1")
            a.schedules("web1", **LARGE)
            a.stranger_starts("web1", **LARGE)
        story.comes_to_rest()
        assert a.claim_of("web1") is not None and a.claim_of("web3") is None


@pytest.mark.parametrize("released_here", [False, True])
def test_a_move_that_its_destination_forgot_and_whose_instance_was_released_there_ends_at_the_source(
    released_here: bool,
) -> None:
    """The source has not looked before: its audit sees a claim without an allocation, and keeps it.

    So does a release there.
    """
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        given = units(story, "a", "web1")
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        b.dies()
        b.loses_disk()
        b.starts()
        assert b.claims("web1", **WEB).granted
        assert b.releases("web1").granted
        if released_here:
            assert "confirm or revert that first" in str(a.releases("web1").error)
        story.comes_to_rest()
        assert units(story, "a", "move1") == given
        assert a.confirms("move1").granted
        story.comes_to_rest()
        assert not story.held("move1")


@pytest.mark.parametrize("first", ["a", "c"])
def test_of_two_moves_alike_that_of_an_instance_which_was_released_there_keeps_its_claim(first: str) -> None:
    """The source had not looked. It takes no migration for the other one's, which a revert would move."""
    place = {"VCPU": 1, "MEMORY_MB": 1024}
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        assert a.claims("web1", **place).granted and a.claims("web2", **place).granted
        with story.meanwhile():
            b.begins_move("web1", "move1", "cold_migrate", **place)
            c.begins_move("web2", "move2", "cold_migrate", **place)
            story.answers_come()
        b.dies()
        b.loses_disk()
        b.starts()
        assert b.claims("web1", **place).granted and b.releases("web1").granted
        story.comes_to_rest()
        ends = [lambda: a.confirms("move1").granted, lambda: c.confirms("move2").granted]
        for end in ends if first == "a" else reversed(ends):
            assert "move1" not in story.unfinished_moves("a")
            assert end()
            story.comes_to_rest()
        assert not story.held("move1") and story.held("web2") == place
        assert story.claim_of("a", "web1") is None is story.claim_of("a", "web2")


def test_what_a_guest_uses_after_a_revert_at_both_hosts_is_not_offered() -> None:
    """The destination waits for its guest to go; meanwhile the source takes the instance back."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "live_migrate", **WEB).granted
        a.guest_moves("web1", "b")
        b.looks()
        assert b.reverts("move1").granted and a.reverts("move1").granted
        story.comes_to_rest()
        assert "move1" not in story.unfinished_moves("a")
        b.guest_goes("web1")
        story.comes_to_rest()
        assert story.claim_of("b", "web1") is None


@pytest.mark.parametrize("deleted", [False, True])
def test_moves_are_followed_while_a_reshape_cannot_be_done(deleted: bool) -> None:
    """No cell has so much memory, so the reshape waits; the migration takes the place over all the same."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **LARGE).granted
        a.reshapes("by cell")
        assert b.begins_move("web1", "move1", "cold_migrate", **LARGE).granted
        if deleted:
            assert b.releases("web1").granted
        story.comes_to_rest()
        assert story.claim_of("a", "web1") is None
        assert (story.claim_of("a", "move1") is None) == deleted


def test_a_revert_that_is_repeated_does_not_take_back_from_a_third_host() -> None:
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        assert a.claims("web1", **WEB).granted
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        story.next_write("a", Fate.PROXY_BEFORE)
        a.reverts("move1")
        assert c.begins_move("web1", "move2", "evacuate", **WEB).granted
        story.comes_to_rest()
        assert story.held("web1") == WEB and story.claim_of("c", "web1") is not None


@pytest.mark.parametrize("bound", [False, True])
def test_a_host_takes_no_place_of_another_for_the_one_that_its_late_revert_may_give_back(bound: bool) -> None:
    """Seed 882929: a late revert gave web3 back to c, which gave it to b. What move3 holds is on c."""
    with Story("abc", bound=bound) as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        assert c.claims("web3", **WEB).granted
        assert a.begins_move("web3", "move2", "resize", **WEB).granted
        assert a.claims("web2", **WEB).granted
        assert c.begins_move("web2", "move1", "resize", **WEB).granted
        story.next_write("a", Fate.LATE, 1.0)
        assert a.reverts("move2").value.state == "reverting"
        assert b.begins_move("web3", "move3", "live_migrate", **WEB).granted
        assert isinstance(a.reverts("move3").error, ClaimConflict)
        story.comes_to_rest()
        assert story.claim_of("b", "web3") is not None and story.held("move3") == WEB


@pytest.mark.parametrize("goes", [False, True])
def test_a_place_waits_for_a_guest_that_moved_away_and_of_which_is_unknown_what_it_had(goes: bool) -> None:
    """Seed 307584: move1 may be that of web3, whose guest is still here, until that is gone."""
    alone = {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", **BOTH).granted
        with story.meanwhile():
            b.schedules("web3", **alone)
            b.stranger_starts("web3", **alone)
            b.control_plane_moves("web3", "a", "foreign3")
        assert a.begins_move("web1", "move1", "live_migrate", **BOTH).granted
        story.waits(300)
        assert b.claim_of("web1") is not None
        if goes:
            b.guest_goes("web3")
            story.deletes_allocation("foreign3")
        story.comes_to_rest()
        assert b.claim_of("move1" if goes else "web1") is not None


def test_a_move_whose_instance_an_admin_deletes_before_the_answer_is_deleted_as_well() -> None:
    """Seed 302562: no answer can know of the deletion that came before it."""
    amounts = {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40}
    with Story("abc", seed=302562, restless=0.3) as story, story.meanwhile():
        a, c = story.host("a"), story.host("c")
        c.claims("web3", **amounts)
        story.answers_come()
        begun = a.begins_move("web3", "move1", "live_migrate", **amounts)
        story.lets(19)
        assert story.held("move1") == amounts and not begun.ended
        story.deletes_allocation("web3")
        story.comes_to_rest()
        assert begun.granted and not story.held("move1")


def test_a_guest_that_goes_back_by_itself_after_a_move_onward_is_found_to_have_moved_away() -> None:
    """Seed 201100: its host has not learned yet that both moves were confirmed."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", VCPU=1, PGPU=1).granted
        b.guest_starts("web1")
        assert a.begins_move("web1", "move1", "cold_migrate", VCPU=1, PGPU=1).granted
        b.guest_moves("web1", "a")
        assert b.confirms("move1").granted
        assert b.begins_move("web1", "move2", "resize", PCPU=2, MEMORY_MB=1024).granted
        a.guest_moves("web1", "b")
        assert b.confirms("move2").granted
        b.guest_moves("web1", "a")
        story.comes_to_rest()
        (finding,) = a.audits().value.findings
        assert finding.kind == "moved away" and story.held("web1") == {"PCPU": 2, "MEMORY_MB": 1024}


def test_a_resize_that_a_kill_interrupted_is_not_forgotten_after_a_move_onward() -> None:
    """The begin was executed; before the agent is back, another host takes the instance over."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        with story.meanwhile():
            story.next_write("a", Fate.LATE, 1.0)
            a.begins_move("web1", "move1", "resize", **WEB)
            story.waits(5)
        a.dies()
        assert story.held("move1") == WEB
        assert b.begins_move("web1", "move2", "cold_migrate", **WEB).granted
        a.starts()
        story.comes_to_rest()
        assert story.claim_of("a", "move1") is not None


def test_a_begin_that_a_kill_interrupted_frees_its_source_where_the_instance_is_deleted_since() -> None:
    with Story() as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        with story.meanwhile():
            story.next_write("a", Fate.LATE, 1.0)
            a.begins_move("web1", "move1", "resize", **WEB)
            story.waits(5)
        a.dies()
        assert story.held("move1") == WEB
        story.deletes_allocation("web1")
        a.starts()
        story.waits(30)
        assert not story.held("move1") and not story.unfinished_moves("a")
        story.comes_to_rest()


# The gate, and audits that heal


def test_a_guest_that_starts_on_a_claim_whose_allocation_is_gone_gets_it_again() -> None:
    """Another host evacuated and released it, and this one has not learned of that."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        assert b.begins_move("web1", "move1", "evacuate", **WEB).granted
        assert b.releases("web1").granted and not story.held("web1")
        assert a.gate_lets_in("web1", **WEB).granted
        assert story.held("web1") == WEB
        story.comes_to_rest()


def test_a_guest_does_not_start_on_a_claim_whose_place_went_to_another() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **LARGE).granted
        assert b.begins_move("web1", "move1", "evacuate", **LARGE).granted
        assert b.releases("web1").granted
        story.schedules("a", "web2", **LARGE)
        assert story.held("web2") == LARGE
        answer = a.gate_lets_in("web1", **LARGE)
        assert answer.error is not None and "other consumers hold" in answer.error.message
        a.guest_goes("web1")
        story.comes_to_rest()


@pytest.mark.parametrize("is_audited", [False, True], ids=["", "audited"])
@pytest.mark.parametrize("fate", [Fate.LATE, Fate.RESET_AFTER, Fate.PROXY_AFTER])
def test_a_claim_stays_as_it_is_where_its_replacement_is_unknown(fate: Fate, *, is_audited: bool) -> None:
    """Also where an audit that repairs something else is what ends the doubt."""
    with Story("a", pooled=True) as story:
        a, small = story.host("a"), {"VCPU": 1, "MEMORY_MB": 1024}
        assert a.gate_lets_in("web1", **small, DISK_GB=40).granted
        story.waits(130)
        a.gate_sees_end("web1")
        story.next_write("a", fate)
        assert not a.gate_lets_in("web1", **small, DISK_GB=20).granted
        if is_audited:
            a.stranger_starts("web1", VCPU=1, PGPU=1)
            a.audits()
        else:
            a.guest_goes("web1")
            a.guest_starts("web1")
        story.comes_to_rest()


def test_a_claim_is_held_again_although_placement_is_away_when_the_doubt_ends() -> None:
    with Story("a", pooled=True) as story:
        a, small = story.host("a"), {"VCPU": 1, "MEMORY_MB": 1024}
        assert a.gate_lets_in("web1", **small, DISK_GB=40).granted
        with story.meanwhile():
            story.next_write("a", Fate.RESET_AFTER)
            story.next_write("a", Fate.NOT_SENT)
            a.looks()
        story.waits(130)
        story.comes_to_rest()


def test_a_claim_that_is_asked_for_again_in_a_move_onward_is_not_confirmed() -> None:
    """The source confirmed the move and took the instance back, before this host learned of it."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **LARGE).granted
        assert b.begins_move("web1", "move1", "cold_migrate", **LARGE).granted
        assert a.confirms("move1").granted
        assert a.begins_move("web1", "move2", "live_migrate", **LARGE).granted
        answer = b.claims("web1", **LARGE)
        assert answer.error is not None and "moved away" in answer.error.message
        story.comes_to_rest()


def test_two_alike_moves_of_instances_with_a_disk_in_the_pool_keep_both_places() -> None:
    with_disk = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 40}
    with Story(pooled=True) as story:
        a, b = story.host("a"), story.host("b")
        for number in (1, 2):
            assert b.claims(f"web{number}", **with_disk).granted
        for number in (1, 2):
            assert a.begins_move(f"web{number}", f"move{number}", "resize", **with_disk).granted
        story.comes_to_rest()
        assert all(story.claim_of("b", f"web{number}") is not None for number in (1, 2))


def test_an_audit_claims_for_a_guest_with_functions_of_two_cards() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.stranger_starts("web2", **BOTH)
        assert a.audits().granted
        assert story.claim_of("a", "web2") is not None and story.held("web2") == BOTH
        story.comes_to_rest()


def test_an_audit_while_claims_are_closed_leaves_no_allocation_without_a_claim() -> None:
    with Story("a") as story:
        a = story.host("a")
        story.next_write("a", Fate.RESET_AFTER)
        a.stranger_starts("web1", VCPU=1, PGPU=1)
        story.waits(1)
        a.stranger_starts("web2", **LARGE)
        a.audits()
        a.guest_goes("web2")
        story.comes_to_rest()


def test_a_claim_stays_as_it_is_where_placement_refuses_what_its_guest_uses() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        a.guest_grows("web1", PGPU=1)
        with story.meanwhile():
            a.audits()
            story.lets(6)
            story.schedules("a", "web2", PGPU=1)
        story.answers_come()
        story.comes_to_rest()


@pytest.mark.parametrize(("fate", "later_s"), DOUBTS)
def test_a_begin_without_an_answer_ends_also_where_the_source_lost_its_functions(
    fate: Fate, later_s: float
) -> None:
    """Placement refuses to write again what the instance holds, so no rewrite of that ends the doubt."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        knows_one_of_two(story, "b", "web1")
        b.loses_functions()
        story.waits(60)
        story.next_write("a", fate, later_s)
        a.begins_move("web1", "move1", "live_migrate", **BOTH)
        story.waits(300)
        story.comes_to_rest()
        assert not story.unfinished_moves("a") or story.held("move1")


# One writer a host


@pytest.mark.parametrize("turns", range(28, 40, 2))
def test_a_copy_of_the_disk_undoes_no_claim_that_its_original_goes_on_to_answer(turns: int) -> None:
    """The copy has the claim's intent, and cannot know that the first machine answered it."""
    with Story("a", seed=21388, restless=1.0) as story:
        a = story.host("a")
        with story.meanwhile():
            a.claims("web3", VCPU=2, MEMORY_MB=20000)
            story.lets(turns)
            a.is_cloned()
            story.waits(5)
            a.clone_audits()
            story.waits(1)
        assert story.held("web3")


def test_a_reshape_does_not_take_the_mark_of_a_copy_away_unseen() -> None:
    """Seed 352562: the copy starts between the two reads of a's tree, and a heals what the copy claims."""
    with Story("ab") as story:
        a = story.host("a")
        with story.meanwhile():
            a.reshapes("flat")
            a.is_cloned()
            story.waits(20)
            a.clone_claims("web3", VCPU=8, MEMORY_MB=9000, DISK_GB=40)
            story.waits(1)
            audit = a.audits()
            story.answers_come()
        assert isinstance(audit.error, AnotherWriter)
        assert story.held("web3 on the clone")


@pytest.mark.parametrize(("waits_s", "is_held"), [(500, True), (700, False)])
def test_a_copy_of_a_disk_takes_over_a_host_whose_agent_answers_its_mark_no_more(
    waits_s: float, is_held: bool
) -> None:
    """Seed 861005: two machines with one host uuid look like one machine after a reboot, if one is down."""
    with Story("a") as story:
        a = story.host("a")
        a.is_cloned()
        assert a.claims("web1", **WEB).granted
        a.dies()
        story.waits(waits_s)
        a.clone_audits()
        assert bool(story.held("web1")) is is_held


def test_two_machines_with_one_disk_heal_nothing_of_each_other_and_adopt_ends_it() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        a.is_cloned()
        assert a.claims("web2", **WEB).granted
        assert a.clone_claims("web3", VCPU=1).granted
        a.clone_audits()  # it cannot know yet whose web2 is
        assert story.held("web2")
        story.waits(700)
        for _ in range(3):
            for audit in (a.clone_audits(), a.audits()):
                assert isinstance(audit.error, AnotherWriter), "what differs may be the other one's"
        assert story.held("web1") and story.held("web2") and story.held("web3 on the clone")
        assert not a.claims("web4", VCPU=1).granted and not a.clone_claims("web4", VCPU=1).granted
        story.comes_to_rest()
        assert a.claims("web4", VCPU=1).granted


@pytest.mark.parametrize("fate", [Fate.RESET_AFTER, Fate.LATE, Fate.PROXY_LATE])
def test_a_repair_whose_answer_is_lost_is_followed_up_though_nobody_asks_again(fate: Fate) -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        story.deletes_allocation("web1")
        a.looks()
        story.next_write("a", fate)
        a.audits()
        story.comes_to_rest()
        assert a.audits().granted and story.held("web1") == WEB


def test_a_claim_in_doubt_for_its_guest_does_not_let_an_audit_delete_what_a_migration_holds_for_it() -> None:
    """An admin deleted the instance; the claim of the first audit does not fit beside its migration."""
    alone = {"VCPU": 1, "PGPU": 1}
    with Story() as story:
        a = story.host("a")
        story.schedules("a", "web1", **alone)
        a.stranger_starts("web1", **alone)
        story.control_plane_moves("a", "web1", "b", "foreign1")
        story.deletes_allocation("web1")
        with story.meanwhile():
            story.next_write("a", Fate.RESET_AFTER)
            a.audits()
            story.answers_come()
            a.audits()
        story.comes_to_rest()
        assert story.held("foreign1") == alone


@pytest.mark.parametrize("change", ["", "guest_grows", "guest_resizes", "guest_loses_a_device"])
@pytest.mark.parametrize("moves_back", [True, False])
def test_no_audit_deletes_what_a_migration_may_hold_for_a_guest_whose_allocation_an_admin_deleted(
    change: str, moves_back: bool
) -> None:
    """Seed 4996: a claim for a move back says nothing of foreign1; nor does what the guest uses since."""
    with Story() as story:
        b = story.host("b")
        story.schedules("b", "web2", **BOTH)
        b.stranger_starts("web2", **BOTH)
        story.control_plane_moves("b", "web2", "a", "foreign1")
        if moves_back:
            assert b.begins_move("web2", "move2", "resize", VCPU=2, MEMORY_MB=4096).granted
        if change:
            getattr(b, change)("web2", **({"MEMORY_MB": 100} if change == "guest_grows" else {}))
        b.looks()
        story.waits(1)
        story.deletes_allocation("web2")
        b.audits()
        assert story.held("foreign1") == BOTH
        story.comes_to_rest()


def test_no_second_audit_deletes_a_migration_because_the_first_gave_its_guest_a_place() -> None:
    """Whose the migration is, the first does not know; what it wrote is no evidence for the second."""
    with Story() as story:
        b = story.host("b")
        story.schedules("b", "web2", VCPU=1, MEMORY_MB=1024)
        b.stranger_starts("web2", VCPU=1, MEMORY_MB=1024)
        story.control_plane_moves("b", "web2", "a", "foreign1")
        b.looks()
        story.deletes_allocation("web2")
        for _ in range(2):
            b.audits()
            story.waits(60)
        assert story.held("foreign1") == {"VCPU": 1, "MEMORY_MB": 1024}
        story.comes_to_rest()


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("strangers", [1, 2])
def test_a_migration_of_an_unknown_instance_holds_the_place_of_one_guest_that_moved_away(
    strangers: int, returns: bool
) -> None:
    """Seeds 835339, 853920: a did not look before web4 had moved on, so move4 may as well be that of a guest.

    Nor does a learn whose move4 is where web4 comes back by another move.
    """
    alike = {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40}
    with Story() as story, story.meanwhile():
        a, b = story.host("a"), story.host("b")
        a.schedules("web4", **alike)
        for number in range(strangers):
            b.schedules(f"web{number}", VCPU=1)
        b.begins_move("web4", "move4", "cold_migrate", VCPU=1)
        for number in range(strangers):
            a.stranger_starts(f"web{number}", **alike)
        if returns:
            story.answers_come()
            a.begins_move("web4", "move5", "cold_migrate", VCPU=1)
        story.comes_to_rest()
        reserved = {name: amount for (_, name), amount in story.reserved("a").items()}
        assert reserved["DISK_GB"] == 40 * (strangers - 1)


@pytest.mark.parametrize("moves_again", [False, True])
def test_a_second_place_of_an_instance_looks_like_that_of_another_guest_which_moved_away(
    moves_again: bool,
) -> None:
    """Seed 202075: Placement shows neither that an admin deleted web1 in between nor whose foreign1 is."""
    alone = {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1}
    with Story() as story, story.meanwhile():
        a = story.host("a")
        for web in ("web1", "web2"):
            a.schedules(web, **alone)
            a.stranger_starts(web, **alone)
            a.control_plane_moves(web, "b", f"foreign{web[-1]}")
        story.deletes_allocation("foreign2")
        story.deletes_allocation("web1")
        a.schedules("web1", **alone)
        if moves_again:
            a.control_plane_moves("web1", "b", "foreign3")
        story.comes_to_rest()
        assert story.held("foreign1") == alone


def moves_two_guests_alike(story: Story, deleted: str) -> None:
    """Each uses a function of the card of which the other's migration holds one; `deleted` is a migration."""
    a = story.host("a")
    a.schedules("web1", **WEB)
    assert a.claims("web3", **WEB).granted
    a.schedules("web2", **WEB)
    for web in ("web2", "web1"):
        a.stranger_starts(web, **WEB)
    for web in ("web1", "web2"):
        a.control_plane_moves(web, "b", f"foreign{web[-1]}")
    if deleted:
        story.deletes_allocation(deleted)


@pytest.mark.parametrize("deleted", ["", "foreign1", "foreign2"])
def test_of_migrations_that_look_alike_the_sum_counts(deleted: str) -> None:
    """Seeds 921954, 952170: Placement does not say which migration is whose."""
    with Story() as story:
        moves_two_guests_alike(story, deleted)
        story.comes_to_rest()
        reserved: Counter[str] = Counter()
        for (_, name), amount in story.reserved("a").items():
            reserved[name] += amount
        lacking = 1 if deleted else 0
        assert reserved == {**reserved, "SRIOV_NET_VF": lacking, "MEMORY_MB": 512 + 1024 * lacking}


@pytest.mark.parametrize(
    ("taken", "law"),
    [
        (lambda book: dict.fromkeys(book.departed(), uuid_of("foreign2")), "what is needed is not offered"),
        (lambda book: {}, "what is free is offered"),
    ],
)
def test_a_migration_that_counts_for_two_guests_alike_or_for_none_is_noticed(
    taken: Callable[[Book], dict[str, str]], law: str
) -> None:
    with Story() as story, patch.object(Book, "_migrations", taken):
        moves_two_guests_alike(story, "foreign1")
        with pytest.raises(Violation) as noticed:
            story.comes_to_rest()
        assert noticed.value.law == law


def test_a_control_plane_moves_a_guest_that_the_gate_let_in_before_its_record_was_lost() -> None:
    """Seed 6698: the guest uses more by now; its migration has the project and user of the gate's claim."""
    with Story() as story:
        a = story.host("a")
        assert a.gate_lets_in("web1", VCPU=1, MEMORY_MB=1024).granted
        a.guest_goes("web1")
        a.dies()
        a.loses_disk()
        a.starts()
        a.stranger_starts("web1", **BOTH)
        a.looks()
        story.control_plane_moves("a", "web1", "b", "foreign1")
        a.audits()
        assert story.held("foreign1")
        story.comes_to_rest()


@pytest.mark.parametrize("waits_s", [0, 5])
def test_what_is_used_is_reserved_where_a_copy_of_the_host_has_put_the_devices(waits_s: float) -> None:
    """Seed 13914: an admin deleted the allocation, so no reshape has moved the claim."""
    with Story() as story:
        b = story.host("b")
        story.reshapes("b", "flat")
        story.waits(20)
        assert b.claims("web1", **BOTH).granted
        b.guest_starts("web1")
        story.is_cloned("b")
        story.waits(waits_s)
        story.deletes_allocation("web1")
        story.reshapes("b", "nested")
        story.waits(5)
        story.comes_to_rest()


def test_what_a_guest_uses_is_not_offered_beside_a_migration_with_other_cpus_and_memory() -> None:
    """Seed 8440: the host lost its record, so it does not know that move2 is web2's, on this host alone."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web2", **WEB).granted and b.claims("web3", **BOTH).granted
        assert b.begins_move("web2", "move2", "resize", PCPU=2, MEMORY_MB=1024).granted
        b.guest_starts("web3")
        b.dies()
        b.loses_disk()
        assert a.begins_move("web3", "move5", "resize", **WEB).granted
        a.confirms("move5")
        story.comes_to_rest()


def test_a_source_keeps_the_places_of_both_where_a_narrowed_migration_may_be_that_of_either() -> None:
    """And frees both when that has ended, too."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        for web in ("web0", "web1"):
            assert b.claims(web, **WEB).granted
        story.narrows_allocation("web1")
        for number in (0, 1):
            assert a.begins_move(f"web{number}", f"move{number}", "resize", **WEB).granted
        story.waits(300)
        a.confirms("move0")
        story.comes_to_rest()
        assert story.claim_of("b", "web0") and story.claim_of("b", "web1")
        a.confirms("move1")
        story.comes_to_rest()
        assert not story.claim_of("b", "web0") and not story.claim_of("b", "web1")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("guest", [True, False])
@pytest.mark.parametrize("reshaped", [True, False])
@pytest.mark.parametrize("first", ["a", "b"])
def test_the_source_takes_back_an_instance_whose_migration_another_client_has_narrowed(
    first: str, reshaped: bool, guest: bool, is_known: bool
) -> None:
    """What the migration lacks is reserved at the source, and may be on other providers by now."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **BOTH).granted
        if guest:
            a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "resize", **BOTH).granted
        if is_known:
            story.waits(130)
        story.narrows_allocation("move1")
        story.waits(130)
        if reshaped:
            a.reshapes("flat")
            story.waits(130)
        if first == "b":
            refused = b.reverts("move1")
            assert refused is not None and refused.error is not None
            assert (
                "Revert at the source, whose agent may keep the place: `plimsoll move revert "
                in refused.error.message
            )
        reverted = a.reverts("move1")
        assert reverted is not None and reverted.granted, reverted and reverted.error
        assert (story.held("web1"), story.held("move1")) == (BOTH, {})
        story.comes_to_rest()
        assert not story.unfinished_moves("a") and not story.unfinished_moves("b")


def test_what_a_guest_uses_after_its_move_is_not_offered_beside_a_narrowed_migration() -> None:
    """Others took the functions from both, so the source learns of neither move, and drops web2's claim."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", **BOTH).granted and b.claims("web2", **WEB).granted
        b.guest_starts("web1")
        for web, move, amounts in (("web1", "move1", BOTH), ("web2", "move2", WEB)):
            story.narrows_allocation(web)
            assert a.begins_move(web, move, "resize", **amounts).granted
        story.waits(300)
        a.confirms("move1")
        story.comes_to_rest()


def test_what_is_reserved_for_one_guest_is_not_taken_back_for_the_claim_of_another() -> None:
    """A control plane's migration holds web1's place, so only what web2 uses is reserved beside it."""
    alone = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story() as story:
        a = story.host("a")
        story.schedules("a", "web1", **alone)
        a.stranger_starts("web1", **alone)
        story.control_plane_moves("a", "web1", "b", "foreign1")
        a.stranger_starts("web2", **alone)
        a.looks()
        story.deletes_allocation("web1")
        assert not a.claims("web1", **alone).granted, "its migration and web2 have all 4 CPUs"
        story.comes_to_rest()


@pytest.mark.parametrize("has_guest", [False, True])
def test_a_source_that_starts_again_reserves_nothing_beside_a_migration_that_it_did_not_know(
    has_guest: bool,
) -> None:
    """The migration holds the place; reserved beside it, Placement offered too little until a later pass."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **BOTH).granted
        if has_guest:
            a.guest_starts("web1")
        a.looks()
        before = story.reserved("a")
        assert b.begins_move("web1", "move1", "resize", **BOTH).granted
        a.dies()
        a.starts()
        assert story.reserved("a") == before
        story.comes_to_rest()


def test_a_claim_reserves_what_a_guest_uses_of_which_no_pass_has_told_placement() -> None:
    alone = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story() as story:
        a = story.host("a")
        story.schedules("a", "web1", **alone)
        a.stranger_starts("web1", **alone)
        story.control_plane_moves("a", "web1", "b", "foreign1")
        a.looks()
        with story.meanwhile():
            a.stranger_starts("web2", **alone)
            story.deletes_allocation("web1")
            a.claims("web1", **alone)
            story.answers_come()
        story.comes_to_rest()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("how", ["confirms", "reverts"])
def test_no_source_says_that_there_is_no_such_move_before_it_has_read_the_host(how: str, named: bool) -> None:
    """It cannot reach Placement while it starts, and has yet to learn of the move."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **BOTH).granted
        a.dies()
        assert b.begins_move("web1", "move1", "evacuate", **BOTH).granted
        story.is_cut("a")
        a.starts()
        cut = getattr(a, how)("move1", named=named)
        assert isinstance(cut.error, PlacementUnavailable | ClaimsClosed), cut.error
        story.is_joined("a")
        joined = getattr(a, how)("move1", named=named)
        assert joined.granted or isinstance(joined.error, ClaimsClosed), joined.error
        story.waits(60)
        assert getattr(a, how)("move1", named=named).granted
        story.comes_to_rest()


@pytest.mark.parametrize("named", [True, False])
def test_a_source_that_waits_for_placement_looks_for_a_move_that_it_does_not_know(named: bool) -> None:
    """It was asked during a back-off, after Placement had come back."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **BOTH).granted
        story.is_cut("a")
        a.looks()
        assert b.begins_move("web1", "move1", "evacuate", **BOTH).granted
        cut = a.confirms("move1", named=named)
        assert isinstance(cut.error, PlacementUnavailable), cut.error
        story.is_joined("a")
        assert a.confirms("move1", named=named).granted
        story.comes_to_rest()
        assert story.held("move1") == {}


def test_a_revert_whose_answer_is_lost_is_followed_up_though_its_guest_stays() -> None:
    alone = {"VCPU": 1, "PGPU": 1}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **alone).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "evacuate", **alone).granted
        a.guest_moves("web1", "b")
        story.next_write("b", Fate.PROXY_LATE, 20.0)
        b.reverts("move1")
        story.comes_to_rest()


@pytest.mark.parametrize("back", [True, False])
def test_an_extension_in_doubt_is_ended_when_the_vanished_devices_are_back_or_given_up(*, back: bool) -> None:
    """Until then Placement takes neither the late extension nor what the claim has."""
    with Story("a") as story:
        a = story.host("a")
        knows_one_of_two(story, "a", "web1")
        a.guest_starts("web1")
        a.guest_grows("web1", MEMORY_MB=8000)
        a.loses_functions()
        story.next_write("a", Fate.LOST)
        a.audits()
        if back:
            a.regains_functions()
        else:
            a.guest_stops("web1")
            assert a.releases("web1").granted
        story.comes_to_rest()
        assert not open_doubts(story, "a")


@pytest.mark.parametrize("stalls_s", [15.0, 30.0, 55.0])
def test_a_fence_that_waited_for_the_disk_takes_no_claim_of_another_host(stalls_s: float) -> None:
    """Seed 346346: the late release was done meanwhile, and the new claim has the generation of the old."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web3", **WEB).granted
        story.next_write("a", Fate.PROXY_LATE, 10.0)
        a.releases("web3")
        story.journal_stalls("a", stalls_s)
        story.waits(10.5)
        assert b.claims("web3", VCPU=1, PGPU=1).granted
        story.waits(60)
        story.comes_to_rest()
        assert story.held("web3") == {"VCPU": 1, "PGPU": 1}


def test_a_begin_that_waited_for_the_disk_moves_what_its_instance_holds_by_then() -> None:
    """Seed 301532: another client made the instance anew, and it has the generation that was read before."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        b.schedules("web2", **WEB)
        with story.meanwhile():
            story.journal_stalls("a", 30.0)
            begun = a.begins_move("web2", "move1", "cold_migrate", **WEB)
            story.waits(6)
            story.deletes_allocation("web2")
            b.schedules("web2", VCPU=1, PGPU=1)
            story.answers_come()
        assert begun.granted
        assert story.held("move1") == {"VCPU": 1, "PGPU": 1} and story.held("web2") == WEB
        story.comes_to_rest()


# Doubts of consumers whose allocations Placement does not take again

ONCE_OR_LATE = [(Fate.RESET_BEFORE, 0.0), (Fate.RESET_AFTER, 0.0), (Fate.PROXY_LATE, 100.0)]


@pytest.mark.parametrize("times", [0, 20])
@pytest.mark.parametrize(("fate", "later_s"), ONCE_OR_LATE)
def test_a_deletion_in_doubt_is_ended_although_devices_of_the_consumer_have_vanished(
    fate: Fate, later_s: float, times: int
) -> None:
    """Seed 904: what the consumer holds cannot be written again, so the deletion is."""
    with Story("a") as story:
        a = story.host("a")
        story.schedules("a", "web3", **BOTH)
        story.rewrites_allocation("web3", times)
        a.loses_functions()
        story.next_write("a", fate, later_s)
        a.audits()
        story.comes_to_rest()
        assert not story.held("web3")


@pytest.mark.parametrize("times", [0, 15, 16])
def test_a_repair_that_was_done_late_takes_nothing_that_its_consumer_holds_elsewhere_by_now(
    times: int,
) -> None:
    """Seed 839523: it was made anew, maybe with the very generation, and devices of it have vanished there.

    Where a write of that generation may come yet, the doubt ends once the devices are back.
    """
    with Story(bound=False) as story:
        a, b = story.host("a"), story.host("b")
        b.schedules("web2", **BOTH)
        story.rewrites_allocation("web2", times)
        story.next_write("b", Fate.LATE, 1.0)
        b.audits()
        assert not story.held("web2")
        with story.meanwhile():
            a.schedules("web2", **BOTH)
            a.loses_functions()
        story.comes_to_rest()
        assert story.held("web2") == BOTH and bool(open_doubts(story, "b")) is (times < 16)
        a.regains_functions()
        story.waits(MAX_S + 10)
        assert story.held("web2") == BOTH and not open_doubts(story, "b")


def test_a_release_ends_a_repair_in_doubt_whose_providers_are_gone() -> None:
    """Seed 200314: Placement takes neither what the consumer holds nor the repair."""
    with Story("a") as story:
        a = story.host("a")
        a.gate_lets_in("web2", **BOTH)
        a.gate_lets_in("web3", **BOTH)
        a.reshapes("by cell")
        story.narrows_allocation("web3")
        story.waits(5)
        story.next_write("a", Fate.LOST)
        with story.meanwhile():
            a.audits()
            a.reshapes("nested")
            story.answers_come()
        a.loses_functions()
        a.guest_goes("web3")
        story.comes_to_rest()
        assert not story.held("web3")


@pytest.mark.parametrize(("fate", "later_s"), ONCE_OR_LATE)
def test_the_release_of_a_moving_instance_is_ended_although_devices_have_vanished(
    fate: Fate, later_s: float
) -> None:
    """Seed 2864."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web2", **BOTH).granted
        assert a.begins_move("web2", "move1", "live_migrate", **BOTH).granted
        story.next_write("a", fate, later_s)
        a.releases("web2")
        a.loses_functions()
        story.comes_to_rest()
        assert not story.held("web2") and not story.held("move1")


@pytest.mark.parametrize(("verb", "loser"), [("confirms", "a"), ("confirms", "b"), ("reverts", "b")])
@pytest.mark.parametrize("ender", ["a", "b"])
def test_the_end_of_a_move_in_doubt_is_known_although_devices_have_vanished(
    verb: str, loser: str, ender: str
) -> None:
    with Story() as story:
        b = story.host("b")
        knows_one_of_two(story, "a", "web1")
        assert b.begins_move("web1", "move1", "cold_migrate", **BOTH).granted
        story.waits(130)
        story.next_write(ender, Fate.RESET_BEFORE)
        getattr(story, verb)(ender, "move1")
        story.loses_functions(loser)
        story.comes_to_rest()
        assert not story.held("move1") and story.held("web1") == BOTH


@pytest.mark.parametrize(("fate", "later_s"), ONCE_OR_LATE)
def test_a_fence_in_doubt_does_not_keep_a_begin_in_doubt(fate: Fate, later_s: float) -> None:
    """Seed 105527: neither the begin nor the fence was answered, and Placement takes neither."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        knows_one_of_two(story, "b", "web1")
        b.loses_functions()
        story.next_write("a", Fate.RESET_AFTER)
        story.next_write("a", fate, later_s)
        a.begins_move("web1", "move1", "cold_migrate", **BOTH)
        story.waits(60)
        story.comes_to_rest()
        assert story.held("web1") == BOTH and not story.held("move1")


def test_a_control_planes_move_is_left_alone_by_the_audits_of_both_hosts_until_it_is_over() -> None:
    alone = {"VCPU": 2, "MEMORY_MB": 1024}
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        story.schedules("a", "web1", **alone)
        a.stranger_starts("web1", **alone)
        story.control_plane_moves("a", "web1", "b", "foreign1")
        a.looks()
        for host in (b, a, b):
            report = host.audits()
            assert "moved away" not in {finding.kind for finding in report.value.findings}
            assert story.held("web1") == alone and story.held("foreign1") == alone
        story.deletes_allocation("foreign1")
        b.audits()
        assert story.held("web1") == {}, "no move is under way any more, and b has no such guest"


def test_a_database_is_not_called_lost_where_a_copy_of_the_host_has_reshaped_its_claims_away() -> None:
    """Seed 20988: the copy describes no cells, takes them down again, and is noticed after that."""
    alone = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("by cell")
        story.waits(20)
        assert a.claims("web1", **alone).granted
        with story.meanwhile():
            a.is_cloned()
            story.waits(20)
            story.answers_come()
        story.comes_to_rest()
        assert a.claims("web2", VCPU=1).granted and story.held("web1") == alone


def test_a_database_is_not_called_lost_where_the_host_is_still_in_it() -> None:
    """As before, and the instance was moved to another host and released there: it holds nothing."""
    alone = {"PCPU": 2, "MEMORY_MB": 1024}
    with Story("ab") as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("by cell")
        story.waits(20)
        assert a.claims("web2", **alone).granted
        with story.meanwhile():
            a.is_cloned()
            story.waits(20)
            b.begins_move("web2", "move3", "live_migrate", **alone)
            story.answers_come()
            b.releases("web2")
            story.answers_come()
        story.comes_to_rest()
        assert a.claims("web1", VCPU=1).granted


def test_a_guest_that_is_shut_off_beside_an_empty_state_directory_is_offered_neither_more_nor_less() -> None:
    """Seed 103072: it needs what its domain asks for, as a claim of the lost directory may have had it."""
    with Story("b") as story:
        b = story.host("b")
        b.stranger_starts("web2", VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=2)
        b.guest_stops("web2")
        b.dies()
        b.loses_disk()
        b.starts()
        story.comes_to_rest()
        assert b.claims("web1", VCPU=1, MEMORY_MB=1024).granted
        story.comes_to_rest()


def test_what_a_migration_may_hold_for_another_guest_is_not_offered_after_a_move_back() -> None:
    """Seeds 104052, 107204, 108554: before foreign1 is ended, another move brings its instance back."""
    with Story() as story:
        b = story.host("b")
        story.schedules("b", "web4", PCPU=2, MEMORY_MB=1024)
        b.stranger_starts("web4", PCPU=2, MEMORY_MB=1024)
        story.control_plane_moves("b", "web4", "a", "foreign1")
        assert b.begins_move("web4", "move2", "resize", VCPU=1, MEMORY_MB=1024, SRIOV_NET_VF=1).granted
        story.comes_to_rest()
        assert story.held("foreign1") == {"PCPU": 2, "MEMORY_MB": 1024}


@pytest.mark.parametrize(("stays", "goes"), [("web1", "web3"), ("web3", "web1")])
def test_what_a_guest_uses_after_its_move_is_not_offered_beside_the_move_of_one_alike(
    stays: str, goes: str
) -> None:
    """And of the claim that may be over nothing is demanded (seed 360106): no source can know which it is."""
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        for consumer in (stays, goes):
            assert a.claims(consumer, VCPU=1, MEMORY_MB=1024).granted
            a.guest_starts(consumer)
        assert b.begins_move(stays, "move1", "evacuate", VCPU=1, MEMORY_MB=1024).granted
        with story.meanwhile():  # no pass comes in between
            b.confirms("move1")
            c.begins_move(goes, "move2", "cold_migrate", VCPU=1, MEMORY_MB=1024)
            story.answers_come()
            a.guest_moves(goes, "c")
        story.comes_to_rest()


def test_a_guest_keeps_its_place_where_a_revert_took_its_instance_back_and_that_was_released() -> None:
    """Seed 3725: the guest had moved to `a` already, so `b` got an instance back that it has no guest of."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        with story.meanwhile():  # no pass of `b` sees the guest
            b.gate_lets_in("web1", VCPU=1, MEMORY_MB=1024)
            story.answers_come()
            a.begins_move("web1", "move1", "evacuate", **LARGE)
            story.answers_come()
            b.guest_moves("web1", "a")
            b.reverts("move1")
            story.answers_come()
        story.comes_to_rest()
        assert not story.held("web1")
        a.audits()
        assert story.held("web1") == LARGE


def test_a_repair_gives_a_claim_what_its_guest_uses_and_that_stays_the_same() -> None:
    """Seeds 100123 and 100293: the guest was started past the agent, with other units than its claim has."""
    for amounts in (WEB, {"PCPU": 2, "MEMORY_MB": 1024}):
        with Story("a") as story:
            a = story.host("a")
            assert a.claims("web1", **amounts).granted
            a.stranger_starts("web1", **amounts)
            uses = frozenset(story.hosts["a"].guests[uuid_of("web1")].units)
            assert not uses & a.claim_of("web1").units
            a.audits()
            assert a.claim_of("web1").units == uses
            a.reshapes("flat")
            a.reshapes("nested")
            story.comes_to_rest()
            assert a.claim_of("web1").units == uses


def test_a_function_that_two_guests_use_is_given_to_neither() -> None:
    """Seed 107957: web1 got it before the agent saw that web4 uses it, and is released beside its guest."""
    with Story("a") as story:
        a = story.host("a")
        with story.meanwhile():
            a.stranger_starts("web4", **WEB)
            a.claims("web1", **WEB)
            story.answers_come()
            a.guest_starts("web1")
        assert a.releases("web1").granted
        story.waits(130)
        assert a.claims("web4", **WEB).granted and a.claims("web1", **WEB).granted
        story.comes_to_rest()
        given = a.claim_of("web1").units | a.claim_of("web4").units
        assert not given & set(story.hosts["a"].guests[uuid_of("web4")].units)


@pytest.mark.parametrize("seed", range(3))
def test_a_release_frees_what_the_revert_of_a_move_onward_brings_back_meanwhile(seed: int) -> None:
    """Seed 14708: `a` does not know yet that move1 was confirmed, and reads on while `b` reverts move2."""
    with Story(seed=seed, restless=1.0) as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web1", **LARGE).granted
        with story.meanwhile():  # no pass comes in between
            a.begins_move("web1", "move1", "evacuate", **LARGE)
            story.answers_come()
            b.confirms("move1")
            story.answers_come()
            b.begins_move("web1", "move2", "cold_migrate", **LARGE)
            story.answers_come()
            b.reverts("move2")
            released = a.releases("web1")
            story.answers_come()
        story.comes_to_rest()
        assert released.granted and not story.held("web1")


def test_a_revert_that_waits_for_its_guest_is_done_later_beside_a_move_of_the_same_size() -> None:
    """Seed 104528: the source cannot know which migration is whose until the guest has left."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web3", **WEB).granted and a.claims("web1", **WEB).granted
        a.guest_starts("web3")
        assert b.begins_move("web3", "move3", "cold_migrate", **WEB).granted
        a.guest_moves("web3", "b")
        story.waits(5)
        assert b.begins_move("web1", "move1", "evacuate", **WEB).granted
        b.reverts("move3")
        story.comes_to_rest()
        assert story.unfinished_moves("b") == {"move1", "move3"}
        b.guest_goes("web3")
        story.comes_to_rest()
        assert story.unfinished_moves("b") == {"move1"}
        assert story.held("move3") == {} and story.held("web3") == WEB
        assert a.claim_of("web3") is not None


def test_a_revert_waits_for_its_guest_where_another_client_gave_the_instance_its_old_place() -> None:
    """No other migration is there: the instance is back, and the revert is done once the guest has gone."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        claimed = story.claim_of("a", "web1").allocations
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        b.guest_starts("web1")
        story.waits(1)
        assert b.reverts("move1").value.state == "reverting"
        place = {uuid: {"resources": dict(amounts)} for uuid, amounts in claimed.items()}
        story._do("PUT", f"/allocations/{uuid_of('web1')}", story._body(uuid_of("web1"), place))
        story.comes_to_rest()
        assert story.unfinished_moves("b") == {"move1"} and story.held("move1") == WEB
        b.guest_goes("web1")
        story.comes_to_rest()
        assert story.held("web1") == WEB and not story.held("move1")
        assert story.claim_of("a", "web1") is not None and not any(map(story.unfinished_moves, "ab"))


@pytest.mark.parametrize("end", ["confirms", "reverts"])
@pytest.mark.parametrize("onward", ["a", "b"])
def test_a_revert_that_waits_for_its_guest_is_over_once_another_host_moves_the_instance_on(
    onward: str, end: str
) -> None:
    """Seeds 825220, 921387: what the migration onward holds is the guest's place, and no audit deletes it.

    Also where the source takes the instance on, as a scheduler placed it there and it has no claim: the
    instance then holds just what the first migration does, and no client has reverted that.
    """
    with Story("abc") as story:
        a, c, target = story.host("a"), story.host("c"), story.host(onward)
        if onward == "a":
            a.schedules("web1", **WEB)
        else:
            assert a.claims("web1", **WEB).granted
            a.guest_starts("web1")
        assert c.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        c.guest_starts("web1")
        a.guest_moves("web1", "c")
        told = units(story, "c", "web1")
        story.waits(1)
        assert c.reverts("move1").value.state == "reverting"
        assert target.begins_move("web1", "move3", "evacuate", **WEB).granted
        c.audits()
        story.comes_to_rest()
        c.audits()
        assert story.held("move1") == story.held("move3") == story.held("web1") == WEB
        assert story.unfinished_moves("c") == {"move1"}
        if end == "reverts":
            assert target.reverts("move3").granted
            story.waits(130)
            assert units(story, "c", "web1") == told
            assert c.confirms("move1").granted
        else:
            c.guest_goes("web1")
            assert target.confirms("move3").granted
        story.comes_to_rest()
        assert story.held("web1") == WEB and not story.held("move1") and not story.held("move3")
        assert not any(map(story.unfinished_moves, "abc"))


def test_a_claim_that_is_asked_for_again_does_not_give_back_what_others_took_out_of_it() -> None:
    """Seed 321608: it is reserved, and a reshape moves what Placement holds."""
    with Story() as story:
        b = story.host("b")
        assert b.claims("web1", **WEB).granted
        story.narrows_allocation("web1")
        story.waits(130)
        with story.meanwhile():
            b.reshapes("flat")
            b.claims("web1", **WEB)
            story.answers_come()
        story.comes_to_rest()
        assert story.held("web1").items() < WEB.items()


@pytest.mark.parametrize("fate", [Fate.ANSWERED, Fate.RESET_AFTER, Fate.LATE, Fate.LOST])
def test_what_is_under_way_when_its_host_is_suspended_is_done_or_undone_after_that(fate: Fate) -> None:
    """Nothing is too old by the time that the host slept, and nothing waits by it for ever."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted and b.claims("web2", **WEB).granted
        with story.meanwhile():
            story.next_write("a", fate)
            a.releases("web1")
            a.claims("web3", **BOTH)
            a.begins_move("web2", "move1", "cold_migrate", **WEB)
            story.lets(20)
            a.is_suspended(900)
            b.releases("web2")
            story.waits(905)
            story.answers_come()
        assert all(answer.ended for answer in story.answers)
        story.comes_to_rest()


def test_after_a_suspension_the_agent_learns_soon_what_others_did_meanwhile() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        a.looks()
        a.is_suspended(3600)
        assert b.confirms("move1").granted
        story.waits(3605)
        assert story.hosts["a"].seen_at >= 3600
        assert a.claim_of("move1") is None and story.held("move1") == {}
        story.comes_to_rest()


def test_a_claim_is_judged_by_what_the_agent_had_seen_when_it_chose() -> None:
    """Seed 831073: the agent saw a guest between its choice and the commit of that.

    It was asleep, and began all that it had to do at its waking; here its disk is slow.
    """
    with Story("a") as story:
        a = story.host("a")
        with story.meanwhile():
            a.schedules("web1", **LARGE)
            a.stranger_starts("web1", **LARGE)
            story.waits(0.1)
            a.journal_stalls(30.0)
            claimed = a.claims("web2", **LARGE)
            story.waits(0.1)
            a.audits()
            story.waits(1.0)
            assert story.hosts["a"].seen_at > claimed.begun_at and a.claim_of("web2") is None
            story.answers_come()
        assert isinstance(claimed.error, DoesNotFit)
        story.comes_to_rest()


def test_what_guests_use_where_a_reshape_that_is_refused_would_move_units_is_reserved() -> None:
    """Seed 420938: VCPU of guests with pinned CPUs become PCPU, but two of them have no allocation."""
    with Story() as story:
        b = story.host("b")
        story.schedules("b", "web1", VCPU=2, MEMORY_MB=20000)
        b.stranger_starts("web2", VCPU=2, MEMORY_MB=20000)
        b.stranger_starts("beside web3", PCPU=2, MEMORY_MB=1024)
        b.stranger_starts("web1", PCPU=2, MEMORY_MB=1024)
        story.comes_to_rest()
        b.guest_goes("beside web3")
        story.comes_to_rest()


def test_what_another_client_takes_from_the_migration_of_a_claim_is_reserved() -> None:
    """Its instance is on another host, and so is its guest; the claim here is the place to revert to."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        assert b.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        story.waits(130)
        story.narrows_allocation("move1")
        story.comes_to_rest()
        assert a.audits()
        assert b.reverts("move1").granted
        story.comes_to_rest()
        assert story.held("web1") == WEB


def test_what_either_of_two_narrowed_migrations_lacks_of_a_guests_use_is_reserved() -> None:
    """Two moves to a whose allocations were narrowed before: the source cannot tell which is whose."""
    for larger in ("web1", "web2"):
        with Story() as story:
            a, b = story.host("a"), story.host("b")
            amounts = {who: BOTH if who == larger else WEB for who in ("web1", "web2")}
            for who in amounts:
                assert b.claims(who, **amounts[who]).granted
            b.guest_starts(larger)
            for who in amounts:
                story.narrows_allocation(who)
            for who in amounts:
                assert a.begins_move(who, f"move{who[-1]}", "resize", **amounts[who]).granted
            story.comes_to_rest()


@pytest.mark.parametrize(("stays", "goes"), [("web1", "web3"), ("web3", "web1")])
@pytest.mark.parametrize("amounts", [WEB, BOTH])
def test_a_narrowed_migration_of_one_instance_holds_nothing_for_the_guest_of_one_alike(
    stays: str, goes: str, amounts: dict[str, int]
) -> None:
    """The guest of `stays` still runs at a after its move; what the other migration holds is not its own."""
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        for consumer in (stays, goes):
            assert a.claims(consumer, **amounts).granted
            a.guest_starts(consumer)
            story.narrows_allocation(consumer)
        assert b.begins_move(stays, "move1", "evacuate", **amounts).granted
        assert c.begins_move(goes, "move2", "cold_migrate", **amounts).granted
        a.guest_moves(goes, "c")
        a.looks()
        assert b.confirms("move1").granted
        story.comes_to_rest()
        assert a.claim_of(goes) is not None, "its move can still be reverted"
        assert c.confirms("move2").granted
        story.comes_to_rest()
        a.guest_goes(stays)
        story.comes_to_rest()
        assert a.claim_of(goes) is None and a.claim_of(stays) is None


@pytest.mark.parametrize("claimed", ["neither", "one", "one that is off"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_function_that_two_guests_use_is_reserved_once(claimed: str, lost: bool) -> None:
    """It is one of four, and the other three are given to others."""
    with Story("a") as story:
        a = story.host("a")
        if claimed == "neither":
            a.stranger_starts("web1", **WEB)
        else:
            assert a.claims("web1", **WEB).granted
            a.guest_starts("web1")
        a.stranger_starts("web2", VCPU=1, MEMORY_MB=1024)
        a.guest_shares_a_device("web2", "web1")
        if claimed == "one that is off":
            a.guest_stops("web1")
        if lost:
            a.dies()
            a.loses_disk()
            a.starts()
        story.comes_to_rest()
        assert a.claims("web3", **BOTH).granted and a.claims("web4", **WEB).granted
        assert not a.claims("web5", **WEB).granted
        story.comes_to_rest()


def test_what_the_migration_of_one_instance_holds_keeps_no_claim_of_another_that_had_another_card() -> None:
    """Seed 16914: move7 has just the place that `d` claimed for web3, so it is none of web1's, which left."""
    with Story("cde") as story:
        c, d, e = story.host("c"), story.host("d"), story.host("e")
        with story.meanwhile():  # no pass comes in between
            d.claims("web1", **BOTH)
            e.claims("web3", **BOTH)
            story.answers_come()
            c.begins_move("web1", "move1", "live_migrate", **BOTH)
            d.begins_move("web3", "move6", "cold_migrate", **BOTH)
            story.answers_come()
            c.confirms("move1")
            story.answers_come()
            c.begins_move("web3", "move7", "evacuate", **BOTH)
            story.answers_come()
        story.comes_to_rest()
        assert d.claim_of("web1") is None
        assert d.claim_of("web3") is not None, "its move onward can still be reverted"
        assert c.confirms("move7").granted
        story.comes_to_rest()
        assert d.claim_of("web3") is None


@pytest.mark.parametrize("turns", range(39, 45))
def test_a_claim_whose_allocation_is_deleted_before_its_answer_is_a_leak_also_where_another_host_bars_it(
    turns: int,
) -> None:
    """Seed 15576: `b` bars its own late write of web3, by a record that holds nothing."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        story.next_write("b", Fate.LATE)
        b.claims("web3", **WEB)
        story.waits(60)
        with story.meanwhile():
            a.claims("web3", **WEB)
            story.lets(turns)
            a.journal_stalls(50.0)
            story.waits(20)
            assert story.held("web3")
            story.deletes_allocation("web3")
            b.looks()
            story.answers_come()
        story.comes_to_rest()
        assert bool(a.claim_of("web3")) == bool(story.held("web3"))


def test_no_reshape_takes_a_migration_of_a_claim_for_that_of_another_guest() -> None:
    """A guest that nobody claimed for uses what the migration holds; the reshape waits for that guest."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("flat")
        a.schedules("web2", **WEB)
        story.waits(5)
        a.stranger_starts("beside web2", **WEB)
        a.claims("web1", **WEB)
        a.reshapes("nested")
        story.waits(130)
        assert a.claims("web2", **WEB).granted
        assert b.begins_move("web2", "move1", "cold_migrate", **WEB).granted
        story.comes_to_rest()


def test_the_gate_lets_no_guest_in_on_a_move_whose_instance_was_deleted() -> None:
    """The move ends with the claim; the guest starts on a claim of its own after that."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        large = {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40}
        assert b.claims("web2", **large).granted
        assert a.begins_move("web2", "move2", "cold_migrate", **large).granted
        story.deletes_allocation("web2")
        story.starts_guests_slowly(30)
        let_in = a.gate_lets_in("web2", **large)
        assert let_in is not None
        assert not let_in.granted
        story.waits(130)
        let_in = a.gate_lets_in("web2", **large)
        assert let_in is not None
        assert let_in.granted
        story.comes_to_rest()
        assert story.held("web2") == large


# Claims that Placement does not hold, and reshapes

PINNED = {"VCPU": 3, "PCPU": 2, "MEMORY_MB": 10000}


def total_of(story: Story, host: str, consumer: str) -> dict[str, int]:
    """What the host's journal has for the consumer, by class."""
    return _sum(story.claim_of(host, consumer).allocations)


@pytest.mark.parametrize("guest", ["runs", "is shut off", "none"])
@pytest.mark.parametrize("there", ["by cell", "nested"])
def test_a_claim_that_placement_does_not_hold_follows_the_cpus_and_the_memory(guest: str, there: str) -> None:
    """Another client deleted the allocation before the cells got providers, or lost them."""
    with Story() as story:
        a = story.host("a")
        a.reshapes("nested" if there == "by cell" else "by cell")
        assert a.claims("web1", **PINNED, SRIOV_NET_VF=1).granted
        assert a.claims("web2", **WEB).granted
        units = story.claim_of("a", "web1").units
        if guest != "none":
            a.guest_starts("web1")
        if guest == "is shut off":
            a.guest_stops("web1")
        story.deletes_allocation("web1")
        story.waits(130)
        a.reshapes(there)
        story.offers_nothing_needed("a")
        story.waits(130)
        assert total_of(story, "a", "web1") == {**PINNED, "SRIOV_NET_VF": 1}
        assert story.claim_of("a", "web1").units == units
        assert not a.claims("web3", MEMORY_MB=22000).granted
        story.comes_to_rest()


def test_a_claim_whose_guest_stays_after_an_evacuation_follows_the_memory() -> None:
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **PINNED).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "evacuate", **PINNED).granted
        assert b.confirms("move1").granted
        story.waits(130)
        a.reshapes("by cell")
        story.offers_nothing_needed("a")
        story.waits(130)
        assert total_of(story, "a", "web1") == PINNED
        story.comes_to_rest()


@pytest.mark.parametrize("shape", [WEB, PINNED, {"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 1}])
@pytest.mark.parametrize("there", ["by cell", "nested"])
def test_a_claim_follows_a_reshape_after_a_revert_that_its_host_does_not_know_of(
    there: str, shape: dict[str, int]
) -> None:
    """Seed 961676: the instance was taken for confirmed away, as no provider of its old place was left."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("nested" if there == "by cell" else "by cell")
        assert a.claims("web1", **shape).granted
        units = story.claim_of("a", "web1").units
        assert b.begins_move("web1", "move1", "evacuate", **shape).granted
        a.looks()
        with story.meanwhile():
            b.reverts("move1")
            story.answers_come()
            a.reshapes(there)
        story.waits(130)
        row = story.claim_of("a", "web1")
        assert row.allocations == story.network.holdings()[uuid_of("web1")] and row.units == units
        story.comes_to_rest()


def test_the_memory_of_a_guest_goes_to_its_cell_after_a_revert_that_its_host_does_not_know_of() -> None:
    """The driver names the guest, and the migration, by which its host knows it, holds nothing any more."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **PINNED).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "evacuate", **PINNED).granted
        a.looks()
        with story.meanwhile():
            b.reverts("move1")
            story.answers_come()
            a.reshapes("by cell")
        story.waits(130)
        row = story.claim_of("a", "web1")
        assert list(row.allocations.values()) == [PINNED], "its CPUs are in one cell"
        assert row.allocations == story.network.holdings()[uuid_of("web1")]
        story.comes_to_rest()


@pytest.mark.parametrize("host", ["a", "b"])
def test_the_part_of_a_migrations_claim_that_placement_does_not_hold_follows(host: str) -> None:
    """On one of the hosts it is the host that is taken out, on the other one the card."""
    with Story() as story:
        source, target = story.host(host), story.host("b" if host == "a" else "a")
        assert source.claims("web1", **PINNED, SRIOV_NET_VF=1).granted
        assert target.begins_move("web1", "move1", "cold_migrate", **PINNED, SRIOV_NET_VF=1).granted
        story.waits(130)
        story.narrows_allocation("move1")
        story.waits(130)
        source.reshapes("by cell")
        story.waits(130)
        assert total_of(story, host, "move1") == {**PINNED, "SRIOV_NET_VF": 1}
        story.comes_to_rest()


def test_several_claims_that_placement_does_not_hold_find_room_beside_those_that_it_holds() -> None:
    with Story() as story:
        a = story.host("a")
        for number, memory in enumerate((9000, 9000, 5000, 5000), start=1):
            assert a.claims(f"web{number}", VCPU=1, MEMORY_MB=memory).granted
            if number % 2:
                a.guest_starts(f"web{number}")
        for number in (1, 2, 3):
            story.deletes_allocation(f"web{number}")
        story.waits(130)
        a.reshapes("by cell")
        story.offers_nothing_needed("a")
        story.waits(130)
        for number, memory in enumerate((9000, 9000, 5000, 5000), start=1):
            assert total_of(story, "a", f"web{number}") == {"VCPU": 1, "MEMORY_MB": memory}
        assert not a.claims("web5", MEMORY_MB=2600).granted
        story.comes_to_rest()


@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("there", ["by cell", "nested"])
def test_a_part_of_an_allocation_that_others_took_follows_with_the_rest(host: str, there: str) -> None:
    """On one of the hosts it is the host that is taken out, on the other one the card."""
    with Story() as story:
        here = story.host(host)
        here.reshapes("nested" if there == "by cell" else "by cell")
        assert here.claims("web1", **PINNED, SRIOV_NET_VF=1).granted
        here.guest_starts("web1")
        story.narrows_allocation("web1")
        story.waits(130)
        here.reshapes(there)
        story.waits(130)
        story.offers_nothing_needed(host)
        assert total_of(story, host, "web1") == {**PINNED, "SRIOV_NET_VF": 1}
        story.comes_to_rest()


@pytest.mark.parametrize("released", [False, True])
def test_a_pinned_guest_without_an_allocation_does_not_stop_a_reshape(released: bool) -> None:
    """What it uses is reserved on its cell; its allocation can be written again there."""
    with Story() as story:
        a = story.host("a")
        assert a.claims("web1", **PINNED).granted
        a.guest_starts("web1")
        story.deletes_allocation("web1")
        story.waits(130)
        if released:
            assert a.releases("web1").granted
        a.reshapes("by cell")
        story.offers_nothing_needed("a")
        story.waits(130)
        audit = a.audits()
        assert audit.granted
        assert not audit.value.failed
        assert story.held("web1") == PINNED
        story.comes_to_rest()


def test_a_claim_follows_the_migration_that_holds_a_part_of_its_place_before_its_host_knows() -> None:
    """Seed 900298: the allocation was narrowed before the begin, so the source does not learn of the move."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("by cell")
        assert a.claims("web3", **WEB).granted
        a.guest_starts("web3")
        story.narrows_allocation("web3")
        story.waits(130)
        assert b.begins_move("web3", "move1", "resize", PCPU=2, MEMORY_MB=1024).granted
        a.reshapes("nested")
        story.waits(130)
        assert total_of(story, "a", "web3") == WEB
        story.comes_to_rest()


@pytest.mark.parametrize("with_guest", [True, False])
@pytest.mark.parametrize("deleted_before", [True, False])
def test_a_claim_without_an_allocation_follows_the_reshape_of_a_copy_of_its_host(
    deleted_before: bool, with_guest: bool
) -> None:
    """Seeds 9473 and 12721: nothing in Placement says where the claim's amounts went."""
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("by cell")
        assert a.claims("web1", **PINNED).granted
        story.waits(60)
        if with_guest:
            a.guest_starts("web1")
        if deleted_before:
            story.deletes_allocation("web1")
        with story.meanwhile():
            a.is_cloned()
            a.reshapes("nested")
            story.waits(300)
            story.answers_come()
        if not deleted_before:
            story.deletes_allocation("web1")
        story.comes_to_rest()
        if with_guest:
            assert total_of(story, "a", "web1") == PINNED


@pytest.mark.parametrize("amounts", [WEB, {**PINNED, "SRIOV_NET_VF": 1}], ids=["shared", "pinned"])
@pytest.mark.parametrize("narrowed_before", [True, False])
def test_a_claim_that_holds_a_part_follows_the_reshape_of_a_copy_of_its_host(
    narrowed_before: bool, amounts: dict[str, int]
) -> None:
    """Seed 18559: another client took the card out of the allocation; the rest is where the copy moved it."""
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("by cell")
        story.waits(20)
        assert a.claims("web1", **amounts).granted
        a.guest_starts("web1")
        story.waits(60)
        if narrowed_before:
            story.narrows_allocation("web1")
        with story.meanwhile():
            a.is_cloned()
            a.reshapes("nested")
            story.waits(300)
            story.answers_come()
        if not narrowed_before:
            story.narrows_allocation("web1")
        assert "SRIOV_NET_VF" not in story.held("web1")
        story.comes_to_rest()
        assert total_of(story, "a", "web1") == amounts
        story.offers_nothing_needed("a")


@pytest.mark.parametrize("amounts", [WEB, PINNED], ids=["shared", "pinned"])
def test_a_claim_follows_the_reshape_of_a_copy_beside_an_instance_of_the_same_size(
    amounts: dict[str, int],
) -> None:
    """Seed 831680: what the copy claimed for its own instance could be held by a migration of web1."""
    with Story("a") as story:
        a = story.host("a")
        a.reshapes("by cell")
        assert a.claims("web1", **amounts).granted
        a.guest_starts("web1")
        story.waits(60)
        with story.meanwhile():
            a.is_cloned()
            story.waits(5)
            a.clone_claims("web2", **amounts)
            a.reshapes("nested")
            story.waits(1)
        story.deletes_allocation("web1")
        story.comes_to_rest()
        assert total_of(story, "a", "web1") == amounts
        story.offers_nothing_needed("a")
        assert a.audits().granted and story.held("web1") == amounts


@pytest.mark.parametrize(("end", "amounts"), [("confirms", WEB), ("reverts", WEB), ("reverts", PINNED)])
def test_a_claim_goes_back_to_where_placement_has_it_while_its_reshape_is_refused(
    end: str, amounts: dict[str, int]
) -> None:
    """Seed 834323: a copy took the cells' providers down, and gave more memory away than a cell has.

    It stayed on a provider without memory. The audit found it there, and the host missed its move. Once the
    large instance is gone, the claim is on a cell again.
    """
    with Story("ab") as story:
        a, b = story.host("a"), story.host("b")
        a.reshapes("by cell")
        assert a.claims("web1", **amounts).granted
        units = story.claim_of("a", "web1").units
        a.guest_starts("web1")
        with story.meanwhile():
            a.is_cloned()
            story.waits(5)
            a.clone_claims("web2", **LARGE)
            story.waits(1)
        story.comes_to_rest()
        assert {finding.kind for finding in a.audits().value.findings} == {"orphaned allocation"}
        assert b.begins_move("web1", "move1", "cold_migrate", **amounts).granted
        story.waits(130)
        assert story.unfinished_moves("a") == {"move1"}
        if end == "confirms":
            a.guest_moves("web1", "b")
        assert getattr(a, end)("move1").granted
        story.deletes_allocation("web2 on the clone")
        story.comes_to_rest()
        if end == "reverts":
            row = story.claim_of("a", "web1")
            assert row.units == units and uuid_of("host a") not in row.allocations


def test_a_claim_follows_the_reshape_of_a_copy_back_although_a_device_is_gone() -> None:
    """Seed 400464: the card had `max_unit` 1 then, and Placement refused two functions, as the claim has."""
    with Story("b") as story:
        b = story.host("b")
        assert b.claims("web3", **BOTH).granted
        b.reshapes("by cell")
        story.waits(60)
        b.is_cloned()
        story.waits(5)
        b.loses_functions()
        story.comes_to_rest()
        assert story.held("web3") == BOTH


@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_an_instance_can_be_moved_away_although_a_device_of_it_is_gone(end: str) -> None:
    """Its migration gets what it holds, in one request: as many functions as the claim has."""
    with Story("ab") as story:
        a, b = story.host("a"), story.host("b")
        assert b.claims("web3", **BOTH).granted
        b.loses_functions()
        assert a.begins_move("web3", "move1", "cold_migrate", **BOTH).granted
        assert story.held("move1") == story.held("web3") == BOTH
        assert getattr(a, end)("move1").granted
        story.comes_to_rest()
        assert story.held("web3") == BOTH and bool(story.claim_of("b", "web3")) == (end == "reverts")


def test_a_guest_that_is_moved_on_before_a_revert_of_its_instance_is_delivered_is_found() -> None:
    """Seed 401645: the source answered "reverting" without Placement, and took the instance back later."""
    with Story("abc") as story:
        a, b, c = story.host("a"), story.host("b"), story.host("c")
        assert a.claims("web2", **WEB).granted
        a.guest_starts("web2")
        assert b.begins_move("web2", "move2", "live_migrate", **WEB).granted
        a.looks()
        a.guest_moves("web2", "b")
        a.is_cut()
        assert str(a.reverts("move2").value.state) == "reverting"
        assert c.begins_move("web2", "move3", "evacuate", **WEB).granted
        b.guest_moves("web2", "c")
        a.is_joined()
        story.comes_to_rest()
        assert total_of(story, "a", "web2") == story.held("web2") == WEB
        assert "moved away" in {finding.kind for finding in c.audits().value.findings}
        story.offers_nothing_needed("c")


def test_functions_that_a_scheduler_gave_twice_follow_their_cards_to_the_host() -> None:
    """Seed 400953: web3 was given those of a guest without a claim, and others took the other card's."""
    with Story("ab") as story:
        b = story.host("b")
        b.stranger_starts("web4", **BOTH)
        b.schedules("web3", **BOTH)
        b.is_suspended(900.0)
        b.reshapes("flat")
        b.claims("beside web1", **WEB)
        story.answers_come()
        b.loses_functions()
        b.claims("web1", **WEB)
        b.claims("web3", **WEB)
        story.answers_come()
        b.regains_functions()
        story.comes_to_rest()


def test_the_claim_of_a_guest_that_starts_where_its_instance_has_left_follows_the_memory() -> None:
    """Seed 7286: the cells got providers after the move was confirmed, and before the guest came."""
    with Story("ac") as story:
        a, c = story.host("a"), story.host("c")
        assert a.claims("web1", **WEB).granted
        story.waits(20)
        assert c.begins_move("web1", "move1", "cold_migrate", **WEB).granted
        with story.meanwhile():
            a.reshapes("by cell")
            story.waits(1)
            a.reshapes("nested")
            story.waits(20)
            c.confirms("move1")
            a.reshapes("by cell")
            story.waits(20)
            story.answers_come()
            a.guest_starts("web1")
        story.comes_to_rest()
        assert total_of(story, "a", "web1") == WEB


def test_a_claim_keeps_its_class_beside_a_guest_that_still_uses_dedicated_cpus() -> None:
    """Seed 901349: the claim was released and made anew, and then the cells got providers."""
    with Story() as story:
        a = story.host("a")
        assert a.claims("web1", **PINNED).granted
        a.guest_starts("web1")
        assert a.releases("web1").granted
        assert a.claims("web1", VCPU=6, MEMORY_MB=9000).granted
        a.reshapes("by cell")
        assert total_of(story, "a", "web1") == {"VCPU": 6, "MEMORY_MB": 9000}
        story.comes_to_rest()


def test_a_claim_that_no_cell_has_room_for_has_a_way_out_while_its_guest_runs() -> None:
    """No repair is offered that Placement must refuse, and the reshape says what to do."""
    with Story() as story:
        a = story.host("a")
        assert a.claims("web1", VCPU=2, MEMORY_MB=20000).granted
        a.guest_starts("web1")
        story.deletes_allocation("web1")
        story.waits(130)
        a.reshapes("by cell")
        pending = story.hosts["a"].agent.assembled.reconciler._last.pending
        assert pending is not None
        assert "has a claim of" in pending.message
        assert "release the claim (`plimsoll release " in pending.message
        (finding,) = a.audits().value.findings
        assert finding.repair == ()
        assert "Placement cannot give it 20000 MEMORY_MB on a" in finding.reason
        story.offers_nothing_needed("a")
        assert a.releases("web1").granted
        story.waits(130)
        assert story.hosts["a"].agent.assembled.reconciler._last.pending is None
        assert not a.claims("web2", MEMORY_MB=9000).granted


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_guest_whose_instance_was_released_where_it_had_moved_to_has_its_claim_again(
    *, confirmed: bool
) -> None:
    """By Placement it is on no host then: it has not moved away, and a repair gives it its place back."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        assert a.claims("web1", **WEB).granted
        a.guest_starts("web1")
        assert b.begins_move("web1", "move1", "evacuate", **WEB).granted
        story.waits(300)
        assert story.unfinished_moves("a") == {"move1"}
        if confirmed:
            assert b.confirms("move1").granted
            story.waits(300)
            assert story.unfinished_moves("a") == {"move1"}
        assert b.releases("web1").granted
        story.waits(300)
        assert not story.unfinished_moves("a") and not story.held("web1")
        assert story.claim_of("a", "web1").state == "claimed"
        report = a.audits().value
        assert [finding.kind for finding in report.findings] == ["amounts differ"] and not report.left
        assert story.held("web1") == WEB
        story.comes_to_rest()


def test_an_allocation_is_taken_over_although_devices_of_it_have_vanished() -> None:
    """Seed 9020: a scheduler wrote more than is there now, and the claim takes nothing from others."""
    with Story("a") as story:
        a = story.host("a")
        story.schedules("a", "web1", **BOTH)
        a.loses_functions()
        story.waits(300)
        assert a.claims("web1", **WEB).granted
        assert len(units(story, "a", "web1")) == 1
        assert story.held("web1") == BOTH
        audit = a.audits()
        assert [finding.kind for finding in audit.value.findings] == ["shrunk inventory"]
        assert not a.claims("web2", SRIOV_NET_VF=2).granted
        a.regains_functions()
        story.waits(130)
        assert not a.claims("web2", SRIOV_NET_VF=3).granted
        story.offers_nothing_needed("a")
        story.comes_to_rest()


@pytest.mark.parametrize("reshaped", [False, True])
def test_an_allocation_from_before_a_new_state_directory_is_taken_over_although_a_device_is_gone(
    reshaped: bool,
) -> None:
    """Seed 18710: the agent wrote it itself, and cannot know that any more."""
    with Story("b", pooled=True) as story:
        b = story.host("b")
        assert b.claims("web3", **BOTH).granted
        b.dies()
        b.loses_disk()
        b.starts()
        if reshaped:
            b.reshapes("by cell")
            story.waits(130)
        b.loses_functions()
        story.waits(130)
        b.gate_lets_in("web3", VCPU=1, MEMORY_MB=1024, DISK_GB=40)
        assert len(units(story, "b", "web3")) == 1
        assert "shrunk inventory" in {finding.kind for finding in b.audits().value.findings}
        assert not b.claims("web2", SRIOV_NET_VF=2).granted
        story.offers_nothing_needed("b")
        story.comes_to_rest()


# The served core's journal


@pytest.mark.parametrize("met", RowMeets)
def test_a_claim_is_made_once_although_the_server_that_makes_it_goes(met: RowMeets) -> None:
    """Of two that share a journal: the other one answers the repeated request by its key."""
    with Story("a", servers=2, shared=True) as story:
        a = story.host("a")
        story.next_row(met)
        claim = a.claims("web1", **WEB)
        assert claim.granted and story.held("web1") == WEB
        assert story.network.cluster.active == 1
        rows = [row for row in story.network.cluster.database.rows.values() if uuid_of("web1") in row.changes]
        assert len(rows) == 1, "it is in the journal once"
        assert rows[0].epoch == (1 if met is RowMeets.DEATH_AFTER else 2)
        assert a.releases("web1").granted
        story.comes_to_rest()
        assert not story.held("web1")


def test_a_server_that_stood_still_does_nothing_of_what_it_was_asked_before() -> None:
    """It believes that it is the active one when it goes on."""
    with Story("a", servers=2, shared=True) as story:
        a = story.host("a")
        story.pauses(1)
        with story.meanwhile():
            claim = a.claims("web1", **WEB)
            story.waits(10)
        assert claim.granted and a.releases("web1").granted
        story.resumes(1)
        story.waits(1)
        assert not story.held("web1")
        story.comes_to_rest()


@pytest.mark.parametrize("met", [RowMeets.DEATH_BEFORE, RowMeets.DEATH_AFTER])
def test_a_server_alone_knows_after_a_restart_what_it_wrote_before_it_was_killed(met: RowMeets) -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        story.next_row(met)
        lost = a.claims("web2", **WEB)
        story.waits(5)
        assert story.held("web1") == WEB
        story.comes_to_rest()
        assert lost.granted == bool(story.held("web2"))


def test_no_row_is_forgotten_although_the_oldest_are_swept() -> None:
    with Story("a") as story:
        a = story.host("a")
        assert a.claims("web1", **WEB).granted
        made = story.network.cluster.database.seq
        for _ in range(40):
            assert a.claims("web2", VCPU=1).granted and a.releases("web2").granted
        assert min(story.network.cluster.database.rows) > made
        story.placement_dies()
        story.comes_to_rest()
        assert story.held("web1") == WEB


@pytest.mark.parametrize("verb", ["guest_goes", "guest_loses_a_device"])
def test_a_claim_follows_a_guest_that_changes_while_the_disk_is_slow(verb: str) -> None:
    """The pass saw the guest with another function than was claimed; its commit came after the guest left,
    or lost that."""
    with Story() as story:
        b = story.host("b")
        b.reshapes("flat")
        assert b.claims("web1", **WEB).granted
        with story.meanwhile():
            b.journal_stalls(30.0)
            b.stranger_starts("web1", **WEB)
            b.reshapes("nested")
            story.waits(2)
            getattr(b, verb)("web1")
        story.comes_to_rest()


def test_nothing_is_given_away_beside_a_migration_that_is_less_than_a_claim_left_over() -> None:
    """Seed 100847: the instance is another one by now than that which was claimed, moved and released."""
    with Story() as story:
        b = story.host("b")
        assert b.claims("web3", VCPU=8, MEMORY_MB=9000).granted
        assert story.host("a").begins_move("web3", "move4", "resize", VCPU=8, MEMORY_MB=9000).granted
        story.waits(300)
        assert story.releases("a", "web3").granted
        with story.meanwhile():
            b.schedules("web3", **BOTH)
            b.stranger_starts("web3", **BOTH)
            b.control_plane_moves("web3", "a", "foreign5")
        story.comes_to_rest()


@pytest.mark.parametrize("end", ["confirms", "reverts"])
def test_a_claim_and_a_guest_of_the_same_size_that_leave_at_once_are_not_mixed_up(end: str) -> None:
    """Only the control plane's migration is left when the source looks: the claim is that of neither."""
    with Story() as story:
        a, b = story.host("a"), story.host("b")
        a.schedules("web1", VCPU=2, MEMORY_MB=2048)
        a.stranger_starts("web1", VCPU=2, MEMORY_MB=2048)
        assert a.claims("web4", VCPU=2, MEMORY_MB=2048).granted
        a.looks()
        a.control_plane_moves("web1", "b", "foreign1")
        assert b.begins_move("web4", "move6", "resize", VCPU=2, MEMORY_MB=2048).granted
        getattr(b, end)("move6")
        story.comes_to_rest()
        assert not story.unfinished_moves("a")
        story.deletes_allocation("foreign1")
        a.guest_goes("web1")
        story.comes_to_rest()
        assert bool(story.claim_of("a", "web4")) == (end == "reverts")


@pytest.mark.parametrize("beside", [True, False], ids=["card full", "two cards"])
def test_a_claim_beside_a_late_write_of_fewer_devices_is_refused_or_held(beside: bool) -> None:
    """Seed 54741: the functions are back, and then Placement does what the agent wrote without them."""
    with Story() as story:
        b = story.host("b")
        if beside:
            assert b.claims("web1", **BOTH).granted
        story.waits(20)
        with story.meanwhile():
            story.next_write("b", Fate.LATE, 50.0)
            b.loses_functions()
            story.waits(5)
            b.regains_functions()
            story.waits(48)
        answer = b.claims("web2", **BOTH)
        assert answer.granted or isinstance(answer.error, DoesNotFit)
        story.comes_to_rest()
        assert story.held("web2") == (BOTH if answer.granted else {})
        assert answer.granted or b.claims("web2", **BOTH).granted
