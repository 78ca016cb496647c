"""A cordon survives the way to the disk and back; anything else in its place is refused."""

from pathlib import Path

import pytest

from agent.codec import decode, encode
from agent.errors import UsageError
from agent.state.journal import Journal
from agent.state.operators import Cordon

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


@pytest.mark.parametrize(
    "value",
    [[], {"address": 1}, {**encode(Cordon, CORDON), "at": True}, {**encode(Cordon, CORDON), "uid": -1}],
)
def test_what_is_no_cordon_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        decode(Cordon, value)


def test_the_sentence_says_how_the_cordon_ends() -> None:
    assert "by uid 1000: fell off the bus." in CORDON.sentence
    assert "`plimsoll devices clear 0000:83:00.0`" in CORDON.sentence
