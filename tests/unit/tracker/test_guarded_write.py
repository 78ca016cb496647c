"""The doubts of a host: in memory, in the journal, and as the book is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.claims.doubt import BAR_GENERATION_MAX, DoubtfulWrite, DoubtKind, DoubtState
from agent.state.journal import Journal
from agent.tracker.guarded_write import ANSWERED_KEPT_S, FORGET_EVERY_S, KEPT_S, Doubts

INSTANCE = "c0ffee00-0000-4000-8000-0000000000c1"
MIGRATION = "c0ffee00-0000-4000-8000-0000000000c2"
HOST = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
FIRST = DoubtfulWrite(INSTANCE, None, {HOST: {"VCPU": 1}}, "p", "u", "INSTANCE")
HANDED = DoubtfulWrite(MIGRATION, None, {HOST: {"VCPU": 1}}, "p", "u", "MIGRATION")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path)
    yield journal
    journal.close()


def test_a_write_is_in_doubt_on_disk_before_it_is_sent_and_gone_once_it_is_answered(journal: Journal) -> None:
    doubts = Doubts(journal, lambda: 100.0)
    doubt, repeated = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    assert not repeated and journal.doubts() == {doubt.id: doubt}
    assert doubts.of([INSTANCE]) == (doubt,) and doubts.open() == (), "it is under way"
    doubts.end(doubt)
    assert doubts.of([INSTANCE]) == ()
    journal.record_event("", "a write after it").wait()
    assert journal.doubts() == {}


def test_a_repeated_write_is_the_same_doubt_and_survives_a_restart(journal: Journal) -> None:
    doubts = Doubts(journal, lambda: 100.0)
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.keep(doubt)
    again = Doubts(journal, lambda: 130.0)
    assert again.open() == (doubt,)
    repeated, before = again.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    assert before and repeated.id == doubt.id
    again.keep(repeated)
    assert again.age_s(repeated) == 0.0 and len(again.open()) == 1
    assert not again.begin(DoubtKind.RELEASE, (FIRST,), durable=True)[1]


def test_a_fenced_write_that_is_rejected_when_it_is_sent_again_is_still_fenced(journal: Journal) -> None:
    doubts = Doubts(journal, lambda: 100.0)
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.settle(doubt, DoubtState.FENCED)
    _, before = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    assert before is not None and before.fenced
    doubts.restore(before)
    assert doubts.open() == () and doubts.of([INSTANCE]) == (before,)
    journal.record_event("", "a write after it").wait()
    assert journal.doubts() == {before.id: before}


@pytest.mark.parametrize(
    ("state", "kept_s"),
    [
        (DoubtState.FENCED, KEPT_S),
        (DoubtState.BARRED, KEPT_S),
        (DoubtState.ANSWERED, ANSWERED_KEPT_S),
    ],
)
def test_a_doubt_is_kept_until_its_write_is_too_old_to_come(
    journal: Journal, state: DoubtState, kept_s: float
) -> None:
    now = [100.0]
    doubts = Doubts(journal, lambda: now[0])
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.settle(doubt, state)
    now[0] += kept_s
    doubts.forget_old()
    assert doubts.open() == () and [each.id for each in doubts.of([INSTANCE])] == [doubt.id]
    now[0] += FORGET_EVERY_S
    doubts.forget_old()
    journal.record_event("", "a write after it").wait()
    assert doubts.of([INSTANCE]) == () and journal.doubts() == {}


def test_an_open_doubt_is_kept_for_ever(journal: Journal) -> None:
    now = [100.0]
    doubts = Doubts(journal, lambda: now[0])
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.keep(doubt)
    now[0] += 100 * KEPT_S
    doubts.begin(DoubtKind.CLAIM, (HANDED,), durable=True)
    assert doubts.of([INSTANCE]) == (doubt,)


@pytest.mark.parametrize("state", [DoubtState.FENCED, DoubtState.BARRED])
def test_a_first_write_is_watched_closely_at_first_and_then_at_each_doubling_of_its_age(
    journal: Journal, state: DoubtState
) -> None:
    now = [100.0]
    doubts = Doubts(journal, lambda: now[0])
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    assert doubts.watched() == ()
    doubts.settle(doubt, state)
    for age_s, is_due in ((30, True), (590, True), (600, False), (1179, False), (1180, True), (2359, False)):
        now[0] = 100.0 + age_s
        assert bool(doubts.watched()) is is_due, age_s
        doubts.looked(doubts.watched())


@pytest.mark.parametrize(
    ("generation", "state", "is_watched"),
    [
        (3, DoubtState.FENCED, True),
        (3, DoubtState.BARRED, True),
        (3, DoubtState.ANSWERED, False),
        (BAR_GENERATION_MAX + 1, DoubtState.FENCED, False),
    ],
)
def test_a_release_is_watched_that_may_meet_the_consumer_made_anew(
    journal: Journal, generation: int, state: DoubtState, *, is_watched: bool
) -> None:
    doubts = Doubts(journal, lambda: 100.0)
    release, _ = doubts.begin(DoubtKind.RELEASE, (replace(FIRST, generation=generation),), durable=True)
    doubts.settle(release, state)
    assert bool(doubts.watched()) is is_watched


def test_what_a_bar_tells_is_kept_over_a_restart(journal: Journal) -> None:
    Doubts(journal, lambda: 100.0).expect(FIRST)
    (doubt,) = Doubts(journal, lambda: 100.0).of([FIRST.consumer])
    assert doubt.is_of_another_host and doubt.fenced and doubt.meets_next_life
    assert doubt.guard.generation == BAR_GENERATION_MAX


def test_the_book_is_told_the_open_doubts_of_all_consumers_of_a_write(journal: Journal) -> None:
    told: list[tuple[set[str], list[str]]] = []
    doubts = Doubts(journal, lambda: 1.0, lambda who, what: told.append((set(who), [d.kind for d in what])))
    claim, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=False)
    begin, _ = doubts.begin(DoubtKind.BEGIN, (HANDED, FIRST), durable=False)
    doubts.settle(claim, DoubtState.FENCED)
    doubts.end(begin)
    both = {INSTANCE, MIGRATION}
    assert told == [
        ({INSTANCE}, ["claim"]),
        (both, ["claim", "begin"]),
        (both, ["begin"]),
        (both, []),
    ]
    told.clear()
    again, _ = doubts.begin(DoubtKind.BEGIN, (HANDED, FIRST), durable=True)
    doubts.keep(again)
    told.clear()
    Doubts(journal, lambda: 1.0, lambda who, what: told.append((set(who), [d.kind for d in what])))
    assert (both, ["begin"]) in told, "after a restart as before it"


@pytest.mark.parametrize("known", [DoubtState.OPEN, DoubtState.FENCED, DoubtState.BARRED])
def test_a_write_that_is_not_under_way_any_more_is_as_it_was_known_before(
    journal: Journal, known: DoubtState
) -> None:
    doubts = Doubts(journal, lambda: 100.0)
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.restore(replace(doubt, state=known))
    assert [each.state for each in doubts.of([INSTANCE])] == [known]
    assert [each.id for each in doubts.open()] == [doubt.id] * (known is DoubtState.OPEN)
