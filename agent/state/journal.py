"""The agent's durable state: claims and intents, what it owns in Placement, and which host this is.

One SQLite file, `agent.db`, in the state directory. A write is on disk once `PendingWrite.wait` returns.
Where that raises StateUnknown, it is there or not; where it raises another StateError, it is not. Writes that
arrive together share one sync. Every read is checked: a damaged, foreign or newer file, or a row that cannot
be parsed, raises StateError, and the file stays as it is.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, cast

from agent.claims.claim import Claim, ClaimState
from agent.claims.doubt import Doubt, doubt_to_json, read_doubt
from agent.codec import Form, decode, encode
from agent.durable.errors import DatabaseError, DatabaseTimeout, DatabaseUnwritable
from agent.durable.group_commit import Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.errors import PlimsollError, StateError, StateUnknown, counted
from agent.moves.states import MIGRATION_TYPE, Move, MoveState
from agent.providers.device_health import DeviceHealth
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.receipt import Receipt, read_receipt
from agent.state.identity import WriterRecord
from agent.state.operators import Cordon, Pause, current_caller

APPLICATION_ID = 0x504C4147
FILE_NAME = "agent.db"
HISTORY_MAX = 10_000
HISTORY_SLACK = 500
ENDED_MOVES_MAX = 256
RECEIPTS_MAX = 64
RESHAPE_EVENT = "reshape"
WAIT_EVENT = "waited"
RESERVED_SLOTS = "reserved_slots"
WAIT_S = 60.0

MIGRATIONS = (
    """
    CREATE TABLE claims (
        consumer TEXT NOT NULL PRIMARY KEY,
        state TEXT NOT NULL CHECK (state IN ('claiming', 'claimed', 'releasing')),
        request TEXT NOT NULL,      -- as the local API takes it
        allocations TEXT NOT NULL,  -- {provider uuid: {class: amount}}
        units TEXT NOT NULL,        -- {provider uuid: {class: [exact unit, ...]}}
        since REAL NOT NULL,
        adopted INTEGER NOT NULL CHECK (adopted IN (0, 1))
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        consumer TEXT NOT NULL,
        event TEXT NOT NULL,
        detail TEXT NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE moves (
        migration TEXT NOT NULL PRIMARY KEY,
        since REAL NOT NULL,
        ended INTEGER NOT NULL CHECK (ended IN (0, 1)),
        move TEXT NOT NULL          -- the migration context: agent.claims.claim
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE reshapes (
        id TEXT NOT NULL PRIMARY KEY,
        at REAL NOT NULL,
        done INTEGER NOT NULL CHECK (done IN (0, 1)),
        receipt TEXT NOT NULL       -- agent.reshape.receipt
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE claims ADD COLUMN cells TEXT NOT NULL DEFAULT '[]';  -- the guest's topology as it was chosen
    """,
    """
    ALTER TABLE claims ADD COLUMN makings TEXT NOT NULL DEFAULT '{}';  -- {unit that was not there: making}
    """,
    """
    ALTER TABLE history ADD COLUMN uid INTEGER;  -- who asked for it; null: the agent did it by itself
    ALTER TABLE history ADD COLUMN pid INTEGER;
    """,
    """
    CREATE TABLE doubts (
        id TEXT NOT NULL PRIMARY KEY,
        since REAL NOT NULL,
        doubt TEXT NOT NULL         -- agent.claims.doubt
    ) STRICT, WITHOUT ROWID;
    """,
    """
    -- {suffix: {class: [exact unit, ...]}}
    ALTER TABLE claims ADD COLUMN group_units TEXT NOT NULL DEFAULT '{}';
    """,
    """
    -- the name that each consumer had last; it outlives the claim as long as the history has an event of it
    CREATE TABLE names (consumer TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT, WITHOUT ROWID;
    INSERT INTO names
        SELECT consumer, json_extract(request, '$.name') FROM claims
        WHERE CASE WHEN json_valid(request) THEN json_type(request, '$.name') = 'text' ELSE 0 END;
    """,
    """
    ALTER TABLE claims ADD COLUMN maker TEXT NOT NULL DEFAULT 'null';  -- {"uid": ..., "program": ...}
    """,
)

CLAIM_FIELDS = (
    "consumer",
    "state",
    "request",
    "allocations",
    "units",
    "since",
    "adopted",
    "cells",
    "makings",
    "group_units",
    "maker",
)
"""The fields of a claim, which its columns and its keys in JSON are named after."""
JSON_COLUMNS = frozenset({"request", "allocations", "units", "cells", "makings", "group_units", "maker"})
PUT_CLAIM = """
    INSERT OR REPLACE INTO claims
    (consumer, state, request, allocations, units, since, adopted, cells, makings, group_units, maker)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT_CLAIMS = """
    SELECT consumer, state, request, allocations, units, since, adopted, cells, makings, group_units, maker
    FROM claims ORDER BY consumer
"""
PUT_MOVE = "INSERT OR REPLACE INTO moves (migration, since, ended, move) VALUES (?, ?, ?, ?)"
DELETE_OLD_MOVES = """
    DELETE FROM moves WHERE ended = 1 AND migration NOT IN
        (SELECT migration FROM moves WHERE ended = 1 ORDER BY since DESC, migration DESC LIMIT ?)
"""
PUT_RESHAPE = "INSERT OR REPLACE INTO reshapes (id, at, done, receipt) VALUES (?, ?, ?, ?)"
DELETE_OLD_RESHAPES = """
    DELETE FROM reshapes WHERE done = 1 AND id NOT IN
        (SELECT id FROM reshapes WHERE done = 1 ORDER BY at DESC, id DESC LIMIT ?)
"""
PUT_FACT = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
PUT_DOUBT = "INSERT OR REPLACE INTO doubts (id, since, doubt) VALUES (?, ?, ?)"
SET_CLAIM_STATE = "UPDATE claims SET state = ? WHERE consumer = ?"
INSERT_EVENT = "INSERT INTO history (at, consumer, event, detail, uid, pid) VALUES (?, ?, ?, ?, ?, ?)"
SELECT_EVENTS = """
    SELECT at, consumer, event, detail, uid, pid, ifnull(name, ''), id
    FROM history LEFT JOIN names USING (consumer)
    WHERE at >= ? AND consumer = ifnull(?, consumer) ORDER BY id DESC LIMIT ?
"""
SELECT_EVENTS_FROM = """
    SELECT at, consumer, event, detail, uid, pid, ifnull(name, ''), id
    FROM history LEFT JOIN names USING (consumer) WHERE id >= ? ORDER BY id LIMIT ?
"""
SELECT_LAST_EVENTS = """
    SELECT at, consumer, event, detail, uid, pid, ifnull(name, ''), id
    FROM history LEFT JOIN names USING (consumer)
    WHERE id IN (SELECT max(id) FROM history WHERE consumer != '' GROUP BY consumer)
        AND (name = ?1 OR substr(consumer, 1, length(?2)) = ?2)
    ORDER BY id DESC
"""
PUT_NAME = "INSERT OR REPLACE INTO names (consumer, name) VALUES (?, ?)"
DELETE_OLD_NAMES = "DELETE FROM names WHERE consumer NOT IN (SELECT consumer FROM history)"
DELETE_OLD_EVENTS = "DELETE FROM history WHERE id <= (SELECT max(id) FROM history) - ?"

_OptionalPause = Annotated[
    Pause | None,
    Form(
        lambda pause: {} if pause is None else encode(Pause, pause),
        lambda value, path: None if value == {} else decode(Pause, value, path),
    ),
]
"""The pause; no pause is an empty object."""

T = TypeVar("T")
_dump = json.JSONEncoder(separators=(",", ":")).encode


class PendingWrite:
    """A write that is queued, and on disk once `wait` returns."""

    __slots__ = ("_journal", "_ticket")

    def __init__(self, journal: "Journal", ticket: Ticket[None]) -> None:
        self._journal = journal
        self._ticket = ticket

    def wait(self) -> None:
        """Wait until the write is on disk.

        Raises StateUnknown where the disk did not answer in time: then the write may be done or not. Raises
        StateError where it failed; then it changed nothing, and never will.
        """
        try:
            self._ticket.result(self._journal.wait_s)
        except DatabaseTimeout as error:
            if error.begun:
                raise self._journal.doubt(self._ticket, error) from error
            raise StateError(f"The agent's journal was not written: {error}") from error
        except (DatabaseError, sqlite3.Error) as error:
            raise StateError(f"The agent's journal was not written: {error}") from error


@dataclass(frozen=True, slots=True)
class Event:
    """A step in the life of a consumer, "" for the host; `at` is seconds since the epoch, UTC.

    `uid` and `pid` are of the process that requested it over the local API, None where the agent did it.
    `name` is the one that the consumer had last, "" if it had none. `number` counts the journal's events.
    """

    at: float
    consumer: str
    event: str
    detail: str
    uid: int | None = None
    pid: int | None = None
    name: str = ""
    number: int = 0

    @property
    def id(self) -> str:
        """No event of another journal has it, nor one of this journal after an older copy was restored."""
        return f"{self.number}-{self.at * 1000:.0f}"


class Journal:
    """The journal of one host. Any thread may call; each method raises StateError.

    A write that the disk does not answer within `wait_s` seconds is unknown. After it the journal takes no
    writes, until the caller has read back what is on disk: see `unknown_writes`.
    """

    def __init__(self, file: SqliteFile, clock: Callable[[], float], wait_s: float = WAIT_S) -> None:
        self.wait_s = wait_s
        self._file = file
        self._clock = clock
        self._events_written = 0
        self._unknown_lock = threading.Lock()
        self._unknown: tuple[Ticket[None], ...] = ()
        self._unknown_reason = ""

    @classmethod
    def open(cls, state_dir: Path, *, clock: Callable[[], float] = time.time, wait_s: float = WAIT_S) -> Self:
        """Open the journal of the state directory, created if missing; one process at a time can have it."""
        try:
            file = SqliteFile.open(
                state_dir / FILE_NAME,
                application_id=APPLICATION_ID,
                migrations=MIGRATIONS,
                name="journal",
            )
        except DatabaseError as error:
            raise StateError(str(error), path=str(error.path)) from error
        return cls(file, clock, wait_s)

    def close(self) -> None:
        """Finish the queued writes and close the file; idempotent."""
        try:
            self._file.close()
        except DatabaseError as error:
            raise StateError(str(error), path=str(error.path)) from error

    def observe_commits(self, committed: Callable[[float], None]) -> None:
        """Have `committed` called after each commit with its seconds, on the writer's thread."""
        self._file.committed = committed

    # Writes of which the agent does not know whether they are done

    @property
    def unknown_reason(self) -> str | None:
        """Why the journal takes no writes, a clause; None while it takes them."""
        return self._unknown_reason if self._unknown else None

    def doubt(self, ticket: Ticket[None], error: DatabaseTimeout) -> StateUnknown:
        """Take no more writes after this one, which the disk did not answer; the error for its caller."""
        with self._unknown_lock:
            self._unknown = (*self._unknown, ticket)
            self._unknown_reason = (
                f"the disk does not answer, so it is unknown whether the last changes are on it ({error})"
            )
        return self._unknown_error()

    def unknown_writes(self) -> tuple[Ticket[None], ...]:
        """The writes whose callers did not learn the outcome; empty if the journal takes writes.

        All of them have ended now: read what is on disk, then call `take_writes` with them. Raises
        StateUnknown while one has not ended.
        """
        with self._unknown_lock:
            if not all(ticket.answered for ticket in self._unknown):
                raise self._unknown_error()
            return self._unknown

    def take_writes(self, read_back: tuple[Ticket[None], ...]) -> None:
        """Take writes again: what became of these is known. Raises StateUnknown if others came to them."""
        with self._unknown_lock:
            self._unknown = tuple(ticket for ticket in self._unknown if ticket not in read_back)
            if self._unknown:
                raise self._unknown_error()

    def _unknown_error(self) -> StateUnknown:
        reason = self._unknown_reason
        return StateUnknown(f"The agent decides nothing: {reason}. It goes on once the disk answers.")

    # Claims

    def put_claim(self, claim: Claim, event: str, detail: str = "") -> PendingWrite:
        """Write the claim, in place of an earlier one of its consumer."""
        row = _claim_row(claim)
        request = claim.request
        named = request.name and request.consumer_type != MIGRATION_TYPE

        def change(transaction: Transaction) -> None:
            transaction.execute(PUT_CLAIM, row)
            if named:
                transaction.execute(PUT_NAME, (claim.consumer, request.name))

        # On a full disk an intent fails; a write that ends one may use the space that is held back for it.
        return self._write(
            change,
            (claim.consumer, event, detail),
            releases=claim.state is not ClaimState.CLAIMING,
        )

    def set_claim_state(self, consumer: str, state: ClaimState, event: str, detail: str = "") -> PendingWrite:
        """Write the state of a claim that the journal has."""
        return self._write(
            lambda transaction: transaction.execute(SET_CLAIM_STATE, (state.value, consumer)),
            (consumer, event, detail),
            releases=True,
        )

    def remove_claim(self, consumer: str, event: str, detail: str = "") -> PendingWrite:
        """Remove the consumer's claim, if there is one."""
        return self._write(
            lambda transaction: transaction.execute("DELETE FROM claims WHERE consumer = ?", (consumer,)),
            (consumer, event, detail),
            releases=True,
        )

    def claims(self) -> dict[str, Claim]:
        """All claims, by consumer."""
        return {
            row[0]: self._parsed(f"the claim of {row[0]}", _read_claim, *row)
            for row in self._read(SELECT_CLAIMS)
        }

    # Moves

    def put_move(self, move: Move, claims: Iterable[Claim], gone: Iterable[str], event: str) -> PendingWrite:
        """Write the move and the claims that it makes, and remove the claims of the consumers in `gone`."""
        row = _move_row(move)
        claim_rows = [_claim_row(claim) for claim in claims]
        consumers = [(consumer,) for consumer in gone]
        names = [claim.request.name for claim in (move.old, move.new) if claim and claim.request.name]

        def change(transaction: Transaction) -> None:
            transaction.execute(PUT_MOVE, row)
            transaction.executemany("DELETE FROM claims WHERE consumer = ?", consumers)
            transaction.executemany(PUT_CLAIM, claim_rows)
            if names:
                transaction.execute(PUT_NAME, (move.instance, names[-1]))
            if move.ended:
                transaction.execute(DELETE_OLD_MOVES, (ENDED_MOVES_MAX,))

        detail = f"migration {move.migration}, {move.kind}, {move.role}"
        return self._write(
            change, (move.instance, event, detail), releases=move.state is not MoveState.BEGINNING
        )

    def moves(self) -> dict[str, Move]:
        """The moves by migration, of those that have ended only the newest."""
        return {
            migration: self._parsed(
                f"the move {migration}", lambda text: decode(Move, json.loads(text)), text
            )
            for migration, text in self._read("SELECT migration, move FROM moves ORDER BY since, migration")
        }

    # Writes to Placement whose outcome is unknown

    def put_doubt(self, doubt: Doubt) -> PendingWrite:
        """Write the doubt, in place of an earlier one with its id."""
        row = (doubt.id, doubt.since, _dump(doubt_to_json(doubt)))
        return self._write(lambda transaction: transaction.execute(PUT_DOUBT, row), None, releases=True)

    def remove_doubts(self, ids: Iterable[str]) -> PendingWrite:
        """Remove the doubts with these ids, as far as they are there."""
        rows = [(doubt_id,) for doubt_id in ids]
        return self._write(
            lambda transaction: transaction.executemany("DELETE FROM doubts WHERE id = ?", rows),
            None,
            releases=True,
        )

    def doubts(self) -> dict[str, Doubt]:
        """All doubts, by id, the oldest first."""
        return {
            doubt_id: self._parsed(f"the doubt {doubt_id}", lambda text: read_doubt(json.loads(text)), text)
            for doubt_id, text in self._read("SELECT id, doubt FROM doubts ORDER BY since, id")
        }

    # Reshapes

    def put_reshape(self, receipt: Receipt) -> PendingWrite:
        """Write the intent of a reshape, in place of an earlier one with its id."""
        return self._put_reshape(receipt, done=False, claims=(), moves=())

    def finish_reshape(
        self, receipt: Receipt, claims: Iterable[Claim], moves: Iterable[Move]
    ) -> PendingWrite:
        """Write that the intent was executed, together with the claims and the moves that it relocated.

        No slot is reserved for a pending reshape then.
        """
        return self._put_reshape(receipt, done=True, claims=claims, moves=moves)

    def drop_reshape(self, receipt_id: str) -> PendingWrite:
        """Remove the intent: it was not executed."""
        row = (receipt_id,)
        return self._write(
            lambda transaction: transaction.execute("DELETE FROM reshapes WHERE id = ?", row),
            None,
            releases=True,
        )

    def reshapes(self, *, done: bool) -> dict[str, Receipt]:
        """{id: receipt}, the oldest first: of executed reshapes, or the intents whose outcome is unknown."""
        query = "SELECT id, at, receipt FROM reshapes WHERE done = ? ORDER BY at, id"
        return {
            row[0]: self._parsed(
                f"the reshape {row[0]}", lambda id_, at, text: read_receipt(id_, at, json.loads(text)), *row
            )
            for row in self._read(query, (int(done),))
        }

    def undone_reshapes(self) -> tuple[str, ...]:
        """The ids of the reshapes that stay undone until the operator requests them again."""
        return self._fact("withheld", tuple[str, ...], ())

    def remember_undone_reshapes(self, ids: Iterable[str]) -> None:
        """Have exactly these reshapes stay undone."""
        self._remember("withheld", tuple[str, ...], ids)

    def found_guests(self) -> frozenset[str] | None:
        """The guests that this state directory found when it was new; None before the first look."""
        return self._fact("found guests", frozenset[str], None)

    def remember_found_guests(self, uuids: Iterable[str]) -> None:
        """Write these guests, which were here before the state directory was."""
        self._remember("found guests", frozenset[str], uuids)

    def lost_claims(self) -> frozenset[str]:
        """What `remember_lost_claims` wrote."""
        return self._fact("lost claims", frozenset[str], frozenset())

    def remember_lost_claims(self, consumers: Iterable[str]) -> None:
        """Write whose claims a restored or replaced database of Placement does not have."""
        self._remember("lost claims", frozenset[str], consumers)

    def reserved_slots(self) -> list[Any]:
        """What `remember_reserved_slots` wrote."""
        return self._fact(RESERVED_SLOTS, list[Any], [])

    def remember_reserved_slots(self, slots: list[Any]) -> None:
        """Write the inventories, JSON-ready, of slots that are reserved only while a reshape is pending."""
        self._remember(RESERVED_SLOTS, list[Any], slots)

    def put_relocated(self, claims: Collection[Claim], moves: Iterable[Move]) -> PendingWrite:
        """Write these claims and moves, which follow a reshape that the journal does not have."""
        rows = [_claim_row(claim) for claim in claims]
        move_rows = [_move_row(move) for move in moves]
        detail = f"of before this journal was restored, {counted(len(rows), 'claim')} moved"

        def change(transaction: Transaction) -> None:
            transaction.executemany(PUT_MOVE, move_rows)
            transaction.executemany(PUT_CLAIM, rows)

        return self._write(change, ("", RESHAPE_EVENT, detail))

    def _put_reshape(
        self, receipt: Receipt, *, done: bool, claims: Iterable[Claim], moves: Iterable[Move]
    ) -> PendingWrite:
        row = (receipt.id, receipt.at, int(done), _dump(receipt.to_json()))
        claim_rows = [_claim_row(claim) for claim in claims]
        move_rows = [_move_row(move) for move in moves]
        undid = f", an undo of {receipt.undoes}" if receipt.undoes else ""
        detail = f"receipt {receipt.id}{undid}, {counted(len(receipt.relocations), 'allocation')} moved"

        def change(transaction: Transaction) -> None:
            transaction.execute(PUT_RESHAPE, row)
            transaction.executemany(PUT_MOVE, move_rows)
            transaction.executemany(PUT_CLAIM, claim_rows)
            if done:
                transaction.execute(PUT_FACT, (RESERVED_SLOTS, "[]"))
                transaction.execute(DELETE_OLD_RESHAPES, (RECEIPTS_MAX,))

        return self._write(change, ("", RESHAPE_EVENT, detail) if done else None, releases=done)

    def record_event(self, consumer: str, event: str, detail: str = "", name: str = "") -> PendingWrite:
        """Write an event alone; `consumer` is "" for one of the host, `name` where it is not known."""
        names = [(consumer, name)] if name else []
        return self._write(
            lambda transaction: transaction.executemany(PUT_NAME, names), (consumer, event, detail)
        )

    def remember_names(self, names: Mapping[str, str]) -> PendingWrite:
        """Write the names that these consumers have now, {consumer: name}."""
        rows = list(names.items())
        return self._write(lambda transaction: transaction.executemany(PUT_NAME, rows), None)

    def history(self, consumer: str | None = None, limit: int = 100, since: float = 0.0) -> tuple[Event, ...]:
        """The latest events, of all consumers or of one, the newest first; `since` as `Event.at`."""
        return tuple(Event(*row) for row in self._read(SELECT_EVENTS, (since, consumer, limit)))

    def events_from(self, number: int, limit: int) -> tuple[Event, ...]:
        """The events with this number or a higher one, the oldest first."""
        return tuple(Event(*row) for row in self._read(SELECT_EVENTS_FROM, (number, limit)))

    def last_events(self, text: str) -> tuple[Event, ...]:
        """The last event of each consumer of that name or beginning of a uuid, the newest first."""
        rows = self._read(SELECT_LAST_EVENTS, (text, text.lower()))
        return tuple(Event(*row) for row in rows)

    # Facts

    def host_uuid(self) -> str | None:
        """The uuid of the host's root provider, None before the first start."""
        return self._fact("host_uuid", str, None)

    def remember_host(self, uuid: str) -> None:
        """Write the uuid of the host's root provider."""
        self._remember("host_uuid", str, uuid)

    def writer(self) -> WriterRecord:
        """What this agent knows of the marks of writers on the host's root provider."""
        return self._fact("writer", WriterRecord, WriterRecord())

    def remember_writer(self, record: WriterRecord) -> None:
        """Write what this agent knows of the marks of writers."""
        self._remember("writer", WriterRecord, record)

    def pause(self) -> Pause | None:
        """The operator's pause, None while the host takes claims."""
        return self._fact("pause", _OptionalPause, None)

    def remember_pause(self, pause: Pause | None) -> None:
        """Write the pause, or that there is none, with an event in the history."""
        event = "resume" if pause is None else "drain" if pause.drains else "pause"
        self._remember(
            "pause", _OptionalPause, pause, ("", event, pause.reason if pause else ""), releases=True
        )

    def cordons(self) -> Mapping[str, Cordon]:
        """{address: cordon} of the devices that an operator has cordoned."""
        known: tuple[Cordon, ...] = self._fact("cordons", tuple[Cordon, ...], ())
        return {cordon.address: cordon for cordon in known}

    def remember_cordons(self, cordons: Mapping[str, Cordon], event: str, detail: str) -> None:
        """Write these cordons in place of the former ones, with an event in the history."""
        self._remember("cordons", tuple[Cordon, ...], cordons.values(), ("", event, detail), releases=True)

    def device_health(self) -> Mapping[str, DeviceHealth]:
        """{address: health} of the devices that are unhealthy, or that an operator has cleared since."""
        known: tuple[DeviceHealth, ...] = self._fact("device health", tuple[DeviceHealth, ...], ())
        return {health.address: health for health in known}

    def remember_device_health(self, known: Collection[DeviceHealth], detail: str) -> None:
        """Write these in place of the former ones, with an event in the history unless `detail` is empty."""
        event = ("", "device health", detail) if detail else None
        self._remember("device health", tuple[DeviceHealth, ...], known, event, releases=True)

    def owned(self) -> OwnedProviders:
        """What the agent owns in Placement."""
        return OwnedProviders(self._fact("owned", Mapping[str, OwnedProvider], {}))

    def remember_owned(self, owned: OwnedProviders) -> None:
        """Write what the agent owns in Placement."""
        self._remember("owned", Mapping[str, OwnedProvider], owned.providers)

    def devices(self) -> Mapping[str, str]:
        """{provider uuid: the device behind it}, as in `DescribedProvider.device`."""
        return self._fact("devices", Mapping[str, str], {})

    def remember_devices(self, devices: Mapping[str, str]) -> None:
        """Write the device behind each provider."""
        self._remember("devices", Mapping[str, str], devices)

    # Reads and writes

    def _fact(self, name: str, kind: Any, missing: T) -> T:
        """The remembered `kind`, `missing` if there is none. Raises StateError for any other value."""
        rows = self._read("SELECT value FROM facts WHERE name = ?", (name,))
        if not rows:
            return missing
        return self._parsed(
            f"the fact {name!r}", lambda text: cast(T, decode(kind, json.loads(text), name)), rows[0][0]
        )

    def _remember(
        self,
        name: str,
        kind: Any,
        value: object,
        event: tuple[str, str, str] | None = None,
        *,
        releases: bool = False,
    ) -> None:
        row = (name, _dump(encode(kind, value)))
        self._write(lambda transaction: transaction.execute(PUT_FACT, row), event, releases=releases).wait()

    def _write(
        self,
        change: Callable[[Transaction], object],
        event: tuple[str, str, str] | None,
        *,
        releases: bool = False,
    ) -> PendingWrite:
        now, caller = self._clock(), current_caller()
        by = (caller.uid, caller.pid) if caller else (None, None)

        def job(transaction: Transaction) -> None:
            change(transaction)
            if event is not None:
                transaction.execute(INSERT_EVENT, (now, *event, *by))
                self._events_written += 1
                if self._events_written % HISTORY_SLACK == 0:
                    transaction.execute(DELETE_OLD_EVENTS, (HISTORY_MAX,))
                    transaction.execute(DELETE_OLD_NAMES)

        try:
            # Under the lock, so that what is read back after a doubt has all that was written before it.
            with self._unknown_lock:
                if self._unknown:
                    raise self._unknown_error()
                return PendingWrite(self, self._file.submit(job, releases=releases))
        except DatabaseError as error:
            raise StateError(f"The agent's journal was not written: {error}") from error

    def _read(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._file.read(query, parameters, timeout_s=self.wait_s)
        except (DatabaseError, sqlite3.Error) as error:
            # A read waits for the overwriting of what a failed write left: that fails as the write did.
            done = "written" if isinstance(error, DatabaseUnwritable) else "read"
            raise StateError(f"The agent's journal was not {done}: {error}") from error

    def _parsed(self, what: str, parse: Callable[..., T], *stored: Any) -> T:
        """What `parse` makes of the stored values. Raises StateError where they make no sense."""
        try:
            return parse(*stored)
        except (PlimsollError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"{self._file.path}: {what} makes no sense ({error}); the file was left as it is. "
                "Restore a backup of it, or move it aside to start without any claims.",
                path=str(self._file.path),
            ) from error


def _read_claim(*row: Any) -> Claim:
    record = dict(zip(CLAIM_FIELDS, row, strict=True))
    texts = {name: json.loads(record[name]) for name in JSON_COLUMNS}
    return decode(Claim, {**record, **texts, "adopted": bool(record["adopted"])})


def _move_row(move: Move) -> tuple[object, ...]:
    return (move.migration, move.since, int(move.ended), _dump(encode(Move, move)))


def _claim_row(claim: Claim) -> tuple[object, ...]:
    record = encode(Claim, claim)
    return tuple(_dump(record[name]) if name in JSON_COLUMNS else record[name] for name in CLAIM_FIELDS)
