"""Histories told by hand: each was once told wrongly by the agent."""

from __future__ import annotations

from simulation.network import Fate
from simulation.story import Story

WEB = {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1}


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


def test_a_lost_answer_to_a_claim_is_found_out() -> None:
    with Story() as story:
        a = story.host("a")
        story.next_write("a", Fate.RESET_AFTER)
        answer = a.claims("web1", **WEB)
        story.comes_to_rest()
        assert answer.granted == bool(story.held("web1"))
