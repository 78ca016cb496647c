"""Journals as earlier schemas wrote them open, are taken to this one, and say what they said.

tests/data/journal/v<n>.sql is the dump of a journal that the code of schema n wrote, with something of all
that it knew.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from kits.paths import TESTS
from kits.tracker import uuid_of

from agent.claims.claim import ClaimState
from agent.errors import StateError
from agent.moves.states import MoveRole, MoveState
from agent.state.journal import FILE_NAME, MIGRATIONS, Journal
from agent.state.operators import acting_for

SAMPLES = TESTS / "data" / "journal"
VERSIONS = (1, 2, 3, 5)
IN_EVERY_ONE = {
    "claimed": ClaimState.CLAIMED,
    "claiming": ClaimState.CLAIMING,
    "releasing": ClaimState.RELEASING,
}
ROLES = {"resized": MoveRole.BOTH, "moved away": MoveRole.SOURCE, "came here": MoveRole.DESTINATION}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path: Path) -> int:
    """The sample of that version lies in `tmp_path` as the agent's journal."""
    number: int = request.param
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.executescript((SAMPLES / f"v{number}.sql").read_text())
    connection.close()
    return number


def test_there_is_a_sample_of_each_earlier_schema() -> None:
    found = {int(re.sub(r"\D", "", path.name)) for path in SAMPLES.glob("v*.sql")}
    assert set(VERSIONS) == found <= set(range(1, len(MIGRATIONS) + 1))


def test_what_an_earlier_schema_holds_is_read(version: int, tmp_path: Path) -> None:
    for _ in range(2):  # once taken to the present schema, once as that
        journal = Journal.open(tmp_path)
        claims, moves, receipts = journal.claims(), journal.moves(), journal.reshapes(done=True)
        for name, state in IN_EVERY_ONE.items():
            assert claims[uuid_of(name)].state is state
        assert claims[uuid_of("claimed")].units
        named = {uuid: claim.request.name for uuid, claim in claims.items() if claim.request.name}
        assert named
        assert all(
            event.name == named[event.consumer] for event in journal.history() if event.consumer in named
        )
        assert journal.devices()
        assert all((event.uid, event.pid) == (None, None) for event in journal.history())
        assert journal.history()
        assert bool(moves) is (version >= 2)
        assert bool(receipts) is (version >= 3)
        if version >= 2:
            roles = {uuid_of(f"migration of {name}"): role for name, role in ROLES.items()}
            assert {move.migration: move.role for move in moves.values() if not move.ended} == roles
            assert moves[uuid_of("migration of reverted")].state is MoveState.REVERTED
            assert uuid_of("migration of moved away") in claims
            assert claims[uuid_of("reverted")].state is ClaimState.CLAIMED
        if version >= 5:
            assert [each.page_kib for each in claims[uuid_of("with cells")].cells] == [2048]
            assert claims[uuid_of("with cells")].makings
        if version >= 3:
            (done,), (intent,) = receipts.values(), journal.reshapes(done=False).values()
            assert journal.undone_reshapes() == (done.id,)
            assert intent.relocations == done.relocations != ()
        journal.close()


def test_the_earlier_code_refuses_the_present_file_and_takes_the_backup(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal.open(tmp_path).close()
    present = (tmp_path / FILE_NAME).read_bytes()
    (backup,) = tmp_path.glob(f"{FILE_NAME}.backup-*")
    monkeypatch.setattr("agent.state.journal.MIGRATIONS", MIGRATIONS[:version])
    with pytest.raises(StateError, match="newer"):
        Journal.open(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == present
    backup.rename(tmp_path / FILE_NAME)
    Journal.open(tmp_path).close()


def test_who_asked_is_kept(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    with acting_for(1000, 4242):
        journal.record_event("", "asked for").wait()
    journal.record_event("", "by itself").wait()
    told = [(event.event, event.uid, event.pid) for event in journal.history()]
    assert told == [("by itself", None, None), ("asked for", 1000, 4242)]
    journal.close()


def test_the_earlier_file_is_kept_as_a_backup(version: int, tmp_path: Path) -> None:
    Journal.open(tmp_path).close()
    copies = [path for path in tmp_path.iterdir() if path.name.startswith(f"{FILE_NAME}.")]
    kept = [path for path in copies if f"{version}" in path.name]
    assert kept, [path.name for path in copies]
    with sqlite3.connect(kept[0]) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    connection.close()
