"""The register: its steps are those of the tables, and memory is what the disk is. The held column follows
what the client reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from agent.claims.claim import CLAIM_TRANSITIONS, Claim, ClaimState, ClaimStep
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.errors import StateError
from agent.moves.states import MOVE_TRANSITIONS, Move, MoveKind, MoveRole, MoveState, MoveStep
from agent.placement.client import ConsumerAllocations
from agent.state.journal import Journal, PendingWrite
from agent.tracker import register as register_module
from agent.tracker.register import HeldColumn, Register

CONSUMER, OTHER, MIGRATION, HOST = (str(uuid5(UUID(int=4), name)) for name in ("a", "b", "move", "host"))


def claim_of(consumer: str, state: ClaimState = ClaimState.CLAIMED, vcpus: int = 1) -> Claim:
    request = ClaimRequest(consumer, (RequestGroup("", {"VCPU": vcpus}),), name="web1")
    return Claim(consumer, state, request, {HOST: {"VCPU": vcpus}})


def move_of(state: MoveState = MoveState.BEGINNING) -> Move:
    old, new = claim_of(CONSUMER), claim_of(CONSUMER, vcpus=2)
    return Move(
        MIGRATION, CONSUMER, MoveKind.RESIZE, MoveRole.DESTINATION, state, old, new, old.allocations, 0.0
    )


class LostWrite(PendingWrite):
    """A write that the disk does not take."""

    def __init__(self) -> None:
        pass

    def wait(self) -> None:
        raise StateError("The disk is full.")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal.open(tmp_path)) as journal:
        yield journal


def put(register: Register, claim: Claim) -> None:
    register.under_lock(lambda book: book.put(claim))


def test_a_claim_step_that_is_not_in_the_table_is_refused_and_changes_nothing(journal: Journal) -> None:
    for state in (None, *ClaimState):
        for step in ClaimStep:
            if (state, step) in CLAIM_TRANSITIONS:
                continue
            register = Register(journal)
            if state is not None:
                put(register, claim_of(CONSUMER, state))
            before = register.claims()
            with pytest.raises(StateError, match=f"cannot {step} while"):
                register.step_claim(step, CONSUMER)
            assert register.claims() == before
            assert journal.claims() == {}


def test_a_move_step_that_is_not_in_the_table_is_refused_and_changes_nothing(journal: Journal) -> None:
    for step in MoveStep:
        if (None, step) in MOVE_TRANSITIONS:
            continue
        register = Register(journal)
        with pytest.raises(StateError, match=f"cannot {step} while"):
            register.step_move(step, move_of())
        assert (register.claims(), register.moves(), journal.moves()) == ({}, {}, {})


def test_of_several_claims_each_that_the_disk_refuses_is_unchanged(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write is lost and the second is not: memory and disk agree on both."""
    register = Register(journal)
    for consumer in (CONSUMER, OTHER):
        register.step_claim(ClaimStep.ADOPT, consumer, claim_of(consumer))
    real_put = journal.put_claim

    def lose_first(claim: Claim, event: str, detail: str = "") -> PendingWrite:
        return LostWrite() if claim.consumer == CONSUMER else real_put(claim, event, detail)

    monkeypatch.setattr(journal, "put_claim", lose_first)
    with pytest.raises(StateError, match="full"):
        register.step_chosen_claims(
            ClaimStep.FOUND, lambda _: [claim_of(CONSUMER, vcpus=2), claim_of(OTHER, vcpus=2)]
        )
    assert register.claims() == journal.claims()
    assert register.claims()[CONSUMER] == claim_of(CONSUMER)
    assert register.claims()[OTHER] == claim_of(OTHER, vcpus=2)


def test_a_move_that_the_disk_refuses_is_not_in_memory(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Register(journal)
    monkeypatch.setattr(journal, "put_move", lambda *_: LostWrite())
    with pytest.raises(StateError, match="full"):
        register.step_move(MoveStep.BEGIN, move_of())
    assert (register.claims(), register.moves()) == ({}, {})


def test_a_reservation_lasts_as_long_as_its_block_succeeds(journal: Journal) -> None:
    register = Register(journal)
    register.step_claim(ClaimStep.ADOPT, CONSUMER, claim_of(CONSUMER))
    larger = claim_of(CONSUMER, vcpus=4)
    with pytest.raises(StateError), register.reserved(lambda _: (larger, larger)):
        assert register.claim_of(CONSUMER) == larger
        raise StateError("Placement has taken it, and the disk is full.")
    assert register.claim_of(CONSUMER) == claim_of(CONSUMER)
    with register.reserved(lambda _: (larger, larger)):
        pass
    assert register.claim_of(CONSUMER) == larger


def test_pending_are_claims_in_doubt_and_moves_to_be_finished(journal: Journal) -> None:
    register = Register(journal)
    register.step_claim(ClaimStep.BEGIN, OTHER, claim_of(OTHER))
    register.step_claim(ClaimStep.ADOPT, "done", claim_of("done"))
    move = register.step_move(MoveStep.BEGIN, move_of())
    pending = register.pending(lambda _: False)
    assert ([claim.consumer for claim in pending.claims], pending.moves) == ([OTHER], (move,))
    assert register.pending(lambda consumer: consumer == OTHER).claims == ()
    register.step_move(MoveStep.GRANT, move)
    assert register.pending(lambda _: False).moves == ()


def test_a_consumer_is_known_by_its_claim_and_its_move(journal: Journal) -> None:
    register = Register(journal)
    move = register.step_move(MoveStep.BEGIN, move_of())
    for consumer in (CONSUMER, MIGRATION):
        assert register.claim_and_move_of(consumer) == (register.claim_of(consumer), move)
        assert register.move_of(consumer) == register.move_by_migration(MIGRATION) == move
    assert register.claim_and_move_of(OTHER) == (None, None)


def test_what_a_new_state_directory_finds_is_remembered_until_it_is_claimed_or_gone(journal: Journal) -> None:
    here, off, late = (
        Guest(str(uuid5(UUID(int=4), name)), name, GuestState.RUNNING, {}) for name in ("h", "o", "l")
    )
    register = Register(journal)
    put(register, claim_of(CONSUMER))
    register.enter_guests([here, off, Guest(CONSUMER, "claimed", GuestState.RUNNING, {})])
    found = {here.uuid, off.uuid}
    assert register.found_guests() == journal.found_guests() == found
    register.enter_guests([here, off, late])
    assert register.found_guests() == found, "what comes later came past the agent"
    again = Register(journal)
    assert again.found_guests() == found, "before the driver has answered"
    again.enter_guests([here, late])
    assert again.found_guests() == journal.found_guests() == {here.uuid}
    put(again, claim_of(here.uuid))
    again.enter_guests([here, late])
    assert again.found_guests() == journal.found_guests() == set()
    none_left = Register(journal)
    none_left.enter_guests([here, late])
    assert none_left.found_guests() == set(), "it is no new state directory any more"


def test_what_a_restored_placement_lost_is_remembered_until_placement_has_it_again(journal: Journal) -> None:
    register = Register(journal)
    releasing = str(uuid5(UUID(int=4), "releasing"))
    for claim in (claim_of(CONSUMER), claim_of(OTHER), claim_of(releasing, ClaimState.RELEASING)):
        put(register, claim)

    def holds(consumer: str) -> None:
        register.under_lock(lambda book: book.enter_held(consumer, {HOST: {"VCPU": 1}}))

    assert register.note_lost() == set(), "no database was restored"
    holds(OTHER)
    assert register.note_lost(restored=True) == journal.lost_claims() == {CONSUMER}
    assert Register(journal).note_lost() == set(), "its journal has no claim of it"
    assert register.note_lost() == {CONSUMER}
    holds(CONSUMER)
    assert register.note_lost() == journal.lost_claims() == set()
    register.under_lock(lambda book: book.enter_held(OTHER, {}))
    assert register.note_lost() == set(), "what is deleted later was not lost"


def test_a_snapshot_gives_up_where_the_lock_is_never_free(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = Register(journal)
    put(register, claim_of(CONSUMER))
    assert register.snapshot().claims == register.claims()
    monkeypatch.setattr(register_module, "SNAPSHOT_WAIT_S", 0.01)
    with register.condition(), pytest.raises(StateError, match="have been locked"):
        register.snapshot()


def test_each_step_is_reported_to_the_observer(journal: Journal) -> None:
    steps: list[tuple[str, MoveKind | None]] = []
    register = Register(journal, lambda step, kind: steps.append((step, kind)))
    register.step_claim(ClaimStep.BEGIN, OTHER, claim_of(OTHER))
    register.step_move(MoveStep.BEGIN, move_of())
    assert steps == [(ClaimStep.BEGIN, None), (MoveStep.BEGIN, MoveKind.RESIZE)]


def test_a_read_that_began_before_a_write_does_not_undo_it(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        register = Register(journal)
        column = HeldColumn(register)
        old, new = (ConsumerAllocations("web1", {"host": {"VCPU": amount}}) for amount in (1, 2))

        def ask() -> ConsumerAllocations:
            column.wrote([new])
            return old

        assert column.read("web1", ask) == old
        assert register.under_lock(lambda book: book.held_by("web1")) == new.allocations
        assert column.read("web1", lambda: old) == old
        assert register.under_lock(lambda book: book.held_by("web1")) == old.allocations
