"""The agent's journal: what is put in comes back, and what makes no sense is not taken for state."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest
from kits.paths import TESTS

from agent.claims.claim import Claim, ClaimState
from agent.claims.doubt import Doubt, DoubtfulWrite, DoubtKind, DoubtState
from agent.claims.guest_cells import PlacedCell
from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.durable.sqlite_file import Ballast, SqliteFile
from agent.errors import StateError
from agent.moves.states import MoveRole, MoveState
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.state import journal as module
from agent.state import journal as sql
from agent.state.journal import FILE_NAME, MIGRATIONS, Journal
from agent.state.operators import Caller, acting_for

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
OTHER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b02"
PROVIDER = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"

CLAIM = Claim(
    CONSUMER,
    ClaimState.CLAIMING,
    ClaimRequest(
        CONSUMER,
        (RequestGroup("", {"PCPU": 2}, (frozenset({"CUSTOM_A", "CUSTOM_B"}),)),),
        topology=TopologyRequest("dedicated"),
        name="web1",
    ),
    {PROVIDER: {"PCPU": 2}},
    {PROVIDER: {"PCPU": ("4", "5")}},
    1_700_000_000.25,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path, clock=lambda: 12.5)
    yield journal
    journal.close()


def execute(state_dir: Path, statement: str, *values: object) -> list[Any]:
    """The rows of a statement on the file of a closed journal."""
    with closing(sqlite3.connect(state_dir / FILE_NAME)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def reopened(journal: Journal, state_dir: Path) -> Journal:
    journal.close()
    return Journal.open(state_dir)


def test_claims_come_back_as_they_were_put(journal: Journal, tmp_path: Path) -> None:
    adopted = replace(CLAIM, consumer=OTHER, state=ClaimState.CLAIMED, adopted=True)
    journal.put_claim(CLAIM, "claiming").wait()
    journal.put_claim(adopted, "adopted").wait()
    journal.set_claim_state(CONSUMER, ClaimState.RELEASING, "releasing").wait()
    again = reopened(journal, tmp_path)
    assert again.claims() == {CONSUMER: replace(CLAIM, state=ClaimState.RELEASING), OTHER: adopted}
    again.remove_claim(CONSUMER, "released").wait()
    assert list(again.claims()) == [OTHER]
    again.close()


def test_the_chosen_cells_come_back(journal: Journal, tmp_path: Path) -> None:
    cells = (
        PlacedCell(0, 1, {0: 4, 2: 5}, frozenset({20}), 2048, 512, frozenset({1})),
        PlacedCell(1, 0, {}, frozenset(), 4, 512, frozenset({3})),
    )
    journal.put_claim(replace(CLAIM, cells=cells), "begin").wait()
    with closing(reopened(journal, tmp_path)) as again:
        assert again.claims() == {CONSUMER: replace(CLAIM, cells=cells)}


def test_claims_that_were_written_before_there_were_cells_are_read(tmp_path: Path) -> None:
    before = sql.MIGRATIONS[:3]
    name = tmp_path / FILE_NAME
    SqliteFile.open(name, application_id=module.APPLICATION_ID, migrations=before, name="journal").close()
    row = (CONSUMER, "claimed", json.dumps(request_to_json(CLAIM.request)), json.dumps(CLAIM.allocations))
    units = json.dumps(CLAIM.units)
    execute(tmp_path, "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?, 0)", *row, units, CLAIM.since)
    with closing(Journal.open(tmp_path)) as journal:
        assert journal.claims() == {CONSUMER: replace(CLAIM, state=ClaimState.CLAIMED)}


def test_the_history_tells_what_happened_and_forgets_what_is_old(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.put_claim(CLAIM, "claiming", "2 PCPU").wait()
    journal.remove_claim(CONSUMER, "refused", "placement is full").wait()
    newest, oldest = journal.history(CONSUMER)
    assert (newest.event, newest.detail, oldest.event, oldest.at) == (
        "refused",
        "placement is full",
        "claiming",
        12.5,
    )
    monkeypatch.setattr(module, "HISTORY_MAX", 3)
    monkeypatch.setattr(module, "HISTORY_SLACK", 5)
    for number in range(20):
        journal.remove_claim(OTHER, f"event {number}").wait()
    events = [each.event for each in journal.history()]
    assert events[0] == "event 19"
    assert len(events) <= 8


def test_the_history_knows_the_last_name_of_what_is_gone(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.put_claim(CLAIM, "begin").wait()
    journal.remove_claim(CONSUMER, "gone").wait()
    journal.record_event(OTHER, "refused", "too much", "web2").wait()
    assert [(event.consumer, event.event, event.name) for event in journal.history()] == [
        (OTHER, "refused", "web2"),
        (CONSUMER, "gone", "web1"),
        (CONSUMER, "begin", "web1"),
    ]
    assert [event.consumer for event in journal.last_events("web1")] == [CONSUMER]
    assert [event.event for event in journal.last_events(CONSUMER[:13].upper())] == ["refused", "gone"]
    journal.remember_names({CONSUMER: "web9"}).wait()
    assert journal.last_events("web1") == () and journal.history(CONSUMER)[0].name == "web9"
    monkeypatch.setattr(module, "HISTORY_MAX", 2)
    monkeypatch.setattr(module, "HISTORY_SLACK", 5)
    for number in range(5):
        journal.record_event(OTHER, f"event {number}").wait()
    assert journal.last_events("web9") == (), "the name goes with the last event"
    journal.record_event(CONSUMER, "refused").wait()
    assert journal.history(CONSUMER)[0].name == ""


def test_facts_come_back(journal: Journal, tmp_path: Path) -> None:
    assert (journal.host_uuid(), journal.owned(), journal.devices()) == (None, OwnedProviders(), {})
    owned = OwnedProviders({PROVIDER: OwnedProvider(frozenset({"PCPU"}), frozenset({"CUSTOM_A"}))})
    journal.remember_host(PROVIDER)
    journal.remember_owned(owned)
    journal.remember_devices({PROVIDER: "pci:0000:84:00.0"})
    with closing(reopened(journal, tmp_path)) as again:
        assert again.host_uuid() == PROVIDER
        assert again.owned() == owned
        assert again.devices() == {PROVIDER: "pci:0000:84:00.0"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("request", "{"),
        ("request", json.dumps({"consumer": CONSUMER, "groups": []})),
        ("allocations", json.dumps({PROVIDER: {"PCPU": -2}})),
        ("allocations", json.dumps({"no uuid": {"PCPU": 2}})),
        ("units", json.dumps({PROVIDER: {"PCPU": [4]}})),
        ("consumer", "no uuid"),
    ],
)
def test_a_row_that_makes_no_sense_is_told_and_left(
    journal: Journal, tmp_path: Path, column: str, value: Any
) -> None:
    journal.put_claim(CLAIM, "claiming").wait()
    journal.close()
    execute(tmp_path, f"UPDATE claims SET {column} = ?", value)
    with closing(Journal.open(tmp_path)) as again, pytest.raises(StateError, match="no sense") as caught:
        again.claims()
    assert FILE_NAME in caught.value.message
    assert execute(tmp_path, f"SELECT {column} FROM claims") == [(value,)]


@pytest.mark.parametrize(
    ("name", "read"),
    [("host_uuid", Journal.host_uuid), ("owned", Journal.owned), ("devices", Journal.devices)],
)
@pytest.mark.parametrize("value", ["{", "7"])
def test_a_fact_that_makes_no_sense_is_told(
    journal: Journal, tmp_path: Path, name: str, read: Callable[[Journal], object], value: str
) -> None:
    journal.remember_host(PROVIDER)
    journal.close()
    execute(tmp_path, "INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)
    said = f"the fact '{name}' makes no sense"
    with closing(Journal.open(tmp_path)) as again, pytest.raises(StateError, match=said):
        read(again)


def test_a_damaged_database_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 32)
    before = path.read_bytes()
    with pytest.raises(StateError, match="damaged"):
        Journal.open(tmp_path)
    assert path.read_bytes() == before


def test_only_one_process_has_it(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="in use by"):
        Journal.open(tmp_path)


def test_on_a_full_disk_no_claim_begins_but_what_is_there_can_go(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.put_claim(replace(CLAIM, state=ClaimState.CLAIMED), "grant").wait()
    monkeypatch.setattr(Ballast, "load", lambda _: False)
    monkeypatch.setattr(journal._file, "_disk_full", True)
    with pytest.raises(StateError, match="no space is left"):
        journal.put_claim(replace(CLAIM, consumer=OTHER), "begin").wait()
    journal.set_claim_state(CONSUMER, ClaimState.RELEASING, "release").wait()
    journal.remove_claim(CONSUMER, "gone").wait()
    assert journal.claims() == {}


def test_after_the_end_nothing_is_taken_for_written(journal: Journal) -> None:
    journal.close()
    with pytest.raises(StateError, match="closed"):
        journal.put_claim(CLAIM, "claiming").wait()
    with pytest.raises(StateError, match="closed"):
        journal.claims()


def test_doubts_come_back_as_they_were_put_the_oldest_first(journal: Journal, tmp_path: Path) -> None:
    write = DoubtfulWrite(CONSUMER, None, {PROVIDER: {"PCPU": 2}}, "demo", "admin", "INSTANCE")
    late = Doubt(OTHER, DoubtKind.CLAIM, (write,), 20.0)
    early = Doubt(CONSUMER, DoubtKind.RELEASE, (replace(write, generation=3, allocations={}),), 10.0)
    gone = Doubt(PROVIDER, DoubtKind.RELEASE, (write,), 5.0)
    for doubt in (late, early, gone):
        journal.put_doubt(doubt).wait()
    journal.put_doubt(replace(early, state=DoubtState.FENCED)).wait()
    journal.remove_doubts([gone.id, "not there"]).wait()
    again = reopened(journal, tmp_path)
    assert list(again.doubts().items()) == [
        (early.id, replace(early, state=DoubtState.FENCED)),
        (late.id, late),
    ]
    again.close()


SAMPLES = TESTS / "data" / "journal"
VERSIONS = (1, 2, 3, 5)
IN_EVERY_ONE = {
    "claimed": ClaimState.CLAIMED,
    "claiming": ClaimState.CLAIMING,
    "releasing": ClaimState.RELEASING,
}
ROLES = {"resized": MoveRole.BOTH, "moved away": MoveRole.SOURCE, "came here": MoveRole.DESTINATION}


def uuid_of(name: str) -> str:
    """The uuid of what the samples, which were recorded once, have by this name."""
    return str(uuid5(UUID(int=7), name))


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
    with acting_for(Caller(1000, 4242)):
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
