"""The doubts of a host: in memory, in the journal, and as the book is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.claims.doubt import DoubtfulWrite, DoubtKind
from agent.state.journal import Journal
from agent.tracker.doubts import KEPT_S, Doubts

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
    doubts.fence(doubt)
    _, before = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    assert before is not None and before.fenced
    doubts.restore(before)
    assert doubts.open() == () and doubts.fenced() == (before,)
    journal.record_event("", "a write after it").wait()
    assert journal.doubts() == {before.id: before}


def test_a_fenced_doubt_is_kept_for_a_day(journal: Journal) -> None:
    now = [100.0]
    doubts = Doubts(journal, lambda: now[0])
    doubt, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=True)
    doubts.fence(doubt)
    assert doubts.open() == () and [each.id for each in doubts.of([INSTANCE])] == [doubt.id]
    now[0] += KEPT_S + 1
    doubts.begin(DoubtKind.CLAIM, (HANDED,), durable=True)
    assert doubts.of([INSTANCE]) == ()


def test_the_book_is_told_the_open_doubts_of_all_consumers_of_a_write(journal: Journal) -> None:
    told: list[tuple[set[str], list[str]]] = []
    doubts = Doubts(journal, lambda: 1.0, lambda who, what: told.append((set(who), [d.kind for d in what])))
    claim, _ = doubts.begin(DoubtKind.CLAIM, (FIRST,), durable=False)
    begin, _ = doubts.begin(DoubtKind.BEGIN, (HANDED, FIRST), durable=False)
    doubts.fence(claim)
    doubts.end(begin)
    both = {INSTANCE, MIGRATION}
    assert told == [
        ({INSTANCE}, ["claim"]),
        (both, ["claim", "begin"]),
        (both, ["begin"]),
        (both, []),
    ]
