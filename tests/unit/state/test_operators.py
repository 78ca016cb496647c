"""What operators have said, and the journal keeps: cordons and pauses."""

from pathlib import Path

import pytest

from agent.codec import decode, encode
from agent.errors import UsageError
from agent.state.journal import Journal
from agent.state.operators import Cordon, Pause, PauseRequest

CORDON = Cordon("0000:83:00.0", "fell off the bus", 1000, 1_790_000_000.5)


def test_cordons_are_on_the_disk_with_events_in_the_history(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    assert journal.cordons() == {}
    journal.remember_cordons({CORDON.address: CORDON}, "cordon", "0000:83:00.0: fell off the bus")
    journal.close()
    journal = Journal.open(tmp_path)
    assert journal.cordons() == {CORDON.address: CORDON}
    journal.remember_cordons({}, "clear", CORDON.address)
    assert journal.cordons() == {}
    assert [(event.event, event.detail) for event in journal.history()] == [
        ("clear", "0000:83:00.0"),
        ("cordon", "0000:83:00.0: fell off the bus"),
    ]
    journal.close()


def test_the_sentence_says_how_the_cordon_ends() -> None:
    assert "by uid 1000: fell off the bus." in CORDON.sentence
    assert "`plimsoll devices clear 0000:83:00.0`" in CORDON.sentence


PAUSE = Pause("new memory", 1000, 1_790_000_000.5, schedulers=True, drains=True)


def test_a_pause_is_on_the_disk_with_an_event_in_the_history(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    assert journal.pause() is None
    journal.remember_pause(PAUSE)
    journal.close()
    journal = Journal.open(tmp_path)
    assert journal.pause() == PAUSE
    journal.remember_pause(None)
    assert journal.pause() is None
    assert [(event.event, event.detail) for event in journal.history()] == [
        ("resume", ""),
        ("drain", "new memory"),
    ]
    journal.close()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((Cordon, value) for value in ([], {"address": 1})),
        *((Cordon, encode(Cordon, CORDON) | change) for change in ({"at": True}, {"uid": -1})),
        *((Pause, value) for value in ([], {"reason": 1}, {"reason": ""})),
        (Pause, encode(Pause, PAUSE) | {"at": True}),
    ],
)
def test_what_is_no_cordon_and_no_pause_is_refused(kind: type, value: object) -> None:
    with pytest.raises(UsageError):
        decode(kind, value)


def test_the_clause_names_who_and_why() -> None:
    assert PAUSE.clause == "the host is drained by uid 1000: new memory"
    assert Pause("", 0, 0.0).clause == "the host is paused by uid 0"


def test_a_request_changes_what_it_names() -> None:
    first = PauseRequest(1000, 1.0, "disks", True).after(None)
    assert first == Pause("disks", 1000, 1.0, schedulers=True)
    assert PauseRequest(0, 2.0).after(first) == first
    assert PauseRequest(0, 2.0, drains=True).after(first) == Pause("disks", 0, 2.0, True, drains=True)
    assert PauseRequest(0, 2.0, "", False).after(first) == Pause("", 0, 2.0)
    drained = PauseRequest(0, 2.0, drains=True).after(first)
    assert PauseRequest(0, 3.0).after(drained) == drained
    assert PauseRequest(0, 3.0, drains=False).after(drained) == Pause("disks", 0, 3.0, True)
