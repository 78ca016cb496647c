"""What a consumer is called: by its guest, its claim, or the instance of its migration."""

from dataclasses import replace

from kits.move_values import INSTANCE, MIGRATION, NEW, OLD, claim, move

from agent.claims.claim import Claim
from agent.driver import Guest, GuestState
from agent.moves.consumer_names import consumer_names
from agent.moves.states import MoveRole

GUEST = Guest(INSTANCE, "web1-guest", GuestState.RUNNING, {})


def named(name: str) -> Claim:
    nameless = claim(NEW)
    return replace(nameless, request=replace(nameless.request, name=name))


def test_a_guest_has_its_own_name_before_that_of_its_claim() -> None:
    assert consumer_names([], [named("web1")], []) == {INSTANCE: "web1"}
    assert consumer_names([GUEST], [named("web1")], []) == {INSTANCE: "web1-guest"}
    assert consumer_names([], [claim(NEW)], []) == {}


def test_a_migration_is_called_as_its_instance() -> None:
    leaving = move(MoveRole.SOURCE, OLD, None)
    assert consumer_names([GUEST], [], [leaving])[MIGRATION] == "web1-guest"
    assert consumer_names([], [named("web1")], [leaving]) == {INSTANCE: "web1", MIGRATION: "web1"}
    known = replace(leaving, old=named("web1"))
    assert consumer_names([], [], [known]) == {INSTANCE: "web1", MIGRATION: "web1"}
    assert consumer_names([], [], [leaving]) == {MIGRATION: ""}
