"""The agent's own durable state: claims and intents, what it wrote to placement, who this host is.

One SQLite file, `agent.db` in the state directory. What is put in is on disk once `Written.wait` returns;
writes that arrive together share one sync. What is read back is checked: a file that is damaged, foreign or
newer, or a row that makes no sense, is a StateError, and the file is left as it is.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.caller import current_caller
from agent.claims.claim import Claim, ClaimState
from agent.claims.claim_json import cells_to_json, read_allocations, read_cells, read_makings, read_units
from agent.claims.parse_request import parse_claim, request_to_json
from agent.durable.errors import DatabaseError
from agent.durable.group_commit import Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.errors import PlimsollError, StateError
from agent.json_checks import read_choice, read_uuid
from agent.moves.move_json import move_to_json, read_move
from agent.moves.states import Move, MoveState
from agent.providers.resolve import OwnedProviders
from agent.reshape.receipt import Receipt, read_receipt
from agent.state import schema as sql

APPLICATION_ID = 0x504C4147
FILE_NAME = "agent.db"
HISTORY_MAX = 10_000
HISTORY_SLACK = 500
ENDED_MOVES_MAX = 256
RECEIPTS_MAX = 64
RESHAPE_EVENT = "reshape"
WAIT_S = 60.0

_dump = json.JSONEncoder(separators=(",", ":")).encode


class Written:
    """A write under way."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: Ticket[None]) -> None:
        self._ticket = ticket

    def wait(self) -> None:
        """Return once it is on disk. Raises StateError: it is not, and nothing was changed by it."""
        try:
            self._ticket.result(WAIT_S)
        except (DatabaseError, sqlite3.Error) as error:
            raise StateError(f"The agent's journal was not written: {error}") from error


@dataclass(frozen=True, slots=True)
class Event:
    """One step in the life of a consumer, "" for the host; `at` is seconds since the epoch, UTC.

    `uid` and `pid` are of the process that asked for it over the local API, None: nobody did.
    """

    at: float
    consumer: str
    event: str
    detail: str
    uid: int | None = None
    pid: int | None = None


class Journal:
    """See the module's docstring. Any thread may call; each method raises StateError."""

    def __init__(self, file: SqliteFile, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._noted = 0

    @classmethod
    def open(cls, state_dir: Path, *, clock: Callable[[], float] = time.time) -> "Journal":
        """The journal of that state directory, made if it is not there; only one process may have it."""
        try:
            file = SqliteFile.open(
                state_dir / FILE_NAME,
                application_id=APPLICATION_ID,
                migrations=sql.MIGRATIONS,
                name="journal",
            )
        except DatabaseError as error:
            raise StateError(str(error), path=str(error.path)) from error
        return cls(file, clock)

    def close(self) -> None:
        """Finish the writes under way and give the file up; idempotent."""
        try:
            self._file.close()
        except DatabaseError as error:
            raise StateError(str(error), path=str(error.path)) from error

    def measure(self, committed: Callable[[float], None]) -> None:
        """Tell `committed`, from now on, how many seconds each commit took; on the writer's thread."""
        self._file.committed = committed

    # Claims

    def put(self, claim: Claim, event: str, detail: str = "") -> Written:
        """Put the claim in, in the place of the one that its consumer had."""
        row = _row(claim)
        # An intent takes space that nobody needs yet; what finishes or undoes one must get through.
        return self._write(
            lambda transaction: transaction.execute(sql.PUT_CLAIM, row),
            (claim.consumer, event, detail),
            releases=claim.state is not ClaimState.CLAIMING,
        )

    def set_state(self, consumer: str, state: ClaimState, event: str, detail: str = "") -> Written:
        """Only the state of a claim that is in."""
        return self._write(
            lambda transaction: transaction.execute(sql.SET_STATE, (state.value, consumer)),
            (consumer, event, detail),
            releases=True,
        )

    def remove(self, consumer: str, event: str, detail: str = "") -> Written:
        """Take the consumer's claim out, if it has one."""
        return self._write(
            lambda transaction: transaction.execute("DELETE FROM claims WHERE consumer = ?", (consumer,)),
            (consumer, event, detail),
            releases=True,
        )

    def claims(self) -> dict[str, Claim]:
        """{consumer: claim}, each as it was put."""
        return {row[0]: self._claim(row) for row in self._read(sql.CLAIMS)}

    # Moves

    def put_move(self, move: Move, claims: Iterable[Claim], gone: Iterable[str], event: str) -> Written:
        """Put the move in, and with it the claims that it makes; take out the claims of those `gone`."""
        row = (move.migration, move.since, int(move.ended), _dump(move_to_json(move)))
        rows = [_row(claim) for claim in claims]
        consumers = [(consumer,) for consumer in gone]

        def change(transaction: Transaction) -> None:
            transaction.execute(sql.PUT_MOVE, row)
            for consumer in consumers:
                transaction.execute("DELETE FROM claims WHERE consumer = ?", consumer)
            for claim in rows:
                transaction.execute(sql.PUT_CLAIM, claim)
            if move.ended:
                transaction.execute(sql.FORGET_ENDED, (ENDED_MOVES_MAX,))

        detail = f"migration {move.migration}, {move.kind}, {move.role}"
        return self._write(
            change, (move.instance, event, detail), releases=move.state is not MoveState.BEGINNING
        )

    def moves(self) -> dict[str, Move]:
        """{migration: move}, each as it was put; of those that ended only the newest."""
        found = {}
        for migration, text in self._read("SELECT migration, move FROM moves ORDER BY since, migration"):
            try:
                found[migration] = read_move(json.loads(text))
            except (PlimsollError, ValueError) as error:
                raise self._broken(f"the move {migration}", error) from error
        return found

    # Reshapes

    def put_reshape(self, receipt: Receipt) -> Written:
        """Put the intent of a reshape in, in the place of the one with its id."""
        return self._put_reshape(receipt, done=False, claims=(), moves=())

    def finish_reshape(self, receipt: Receipt, claims: Iterable[Claim], moves: Iterable[Move]) -> Written:
        """The intent is done, and these claims and moves have followed it: all of that or nothing."""
        return self._put_reshape(receipt, done=True, claims=claims, moves=moves)

    def drop_reshape(self, receipt_id: str) -> Written:
        """The intent came to nothing."""
        row = (receipt_id,)
        return self._write(
            lambda transaction: transaction.execute("DELETE FROM reshapes WHERE id = ?", row),
            None,
            releases=True,
        )

    def reshapes(self, *, done: bool) -> dict[str, Receipt]:
        """{id: receipt}, the oldest first: what was done, or the intents of which it is not known."""
        found = {}
        for receipt_id, at, text in self._read(
            "SELECT id, at, receipt FROM reshapes WHERE done = ? ORDER BY at, id", (int(done),)
        ):
            try:
                found[receipt_id] = read_receipt(receipt_id, at, json.loads(text))
            except (PlimsollError, LookupError, TypeError, ValueError) as error:
                raise self._broken(f"the reshape {receipt_id}", error) from error
        return found

    def withheld(self) -> tuple[str, ...]:
        """The ids of the reshapes that were undone and shall not be done again until somebody asks."""
        return tuple(str(each) for each in self._fact("withheld", list) or ())

    def remember_withheld(self, ids: Iterable[str]) -> None:
        self._remember("withheld", list(ids))

    def reserved_slots(self) -> list[Any]:
        """As `remember_reserved_slots` was told."""
        found: list[Any] | None = self._fact("reserved_slots", list)
        return found or []

    def remember_reserved_slots(self, slots: list[Any]) -> None:
        """What was in the slots that are only reserved because a reshape of them is due, JSON-ready."""
        self._remember("reserved_slots", slots)

    def _put_reshape(
        self, receipt: Receipt, *, done: bool, claims: Iterable[Claim], moves: Iterable[Move]
    ) -> Written:
        row = (receipt.id, receipt.at, int(done), _dump(receipt.to_json()))
        claim_rows = [_row(claim) for claim in claims]
        move_rows = [(m.migration, m.since, int(m.ended), _dump(move_to_json(m))) for m in moves]
        told = f"receipt {receipt.id}, {len(receipt.relocations)} allocations moved"

        def change(transaction: Transaction) -> None:
            transaction.execute(sql.PUT_RESHAPE, row)
            for move in move_rows:
                transaction.execute(sql.PUT_MOVE, move)
            for claim in claim_rows:
                transaction.execute(sql.PUT_CLAIM, claim)
            if done:
                transaction.execute(sql.FORGET_RESHAPES, (RECEIPTS_MAX,))

        return self._write(change, ("", RESHAPE_EVENT, told) if done else None, releases=done)

    def note(self, consumer: str, event: str, detail: str = "") -> Written:
        """Only an event, which changes nothing; `consumer` is "" where it is the host's own."""
        return self._write(lambda transaction: None, (consumer, event, detail))

    def history(self, consumer: str | None = None, limit: int = 100, since: float = 0.0) -> tuple[Event, ...]:
        """The latest events, of all consumers or of one, the newest first; `since` as `Event.at`."""
        return tuple(Event(*row) for row in self._read(sql.HISTORY, (since, consumer, limit)))

    # Facts

    def host_uuid(self) -> str | None:
        """The uuid of the root provider, as last remembered."""
        found: str | None = self._fact("host_uuid", str)
        return found

    def remember_host(self, uuid: str) -> None:
        self._remember("host_uuid", uuid)

    def owned(self) -> OwnedProviders:
        """What the agent wrote to placement."""
        return OwnedProviders.from_json(self._fact("owned", dict) or {})

    def remember_owned(self, owned: OwnedProviders) -> None:
        self._remember("owned", owned.to_json())

    def devices(self) -> Mapping[str, str]:
        """{provider uuid: device behind it}, as `DescribedProvider.device` says."""
        return {str(uuid): str(device) for uuid, device in (self._fact("devices", dict) or {}).items()}

    def remember_devices(self, devices: Mapping[str, str]) -> None:
        self._remember("devices", dict(devices))

    # Below

    def _fact(self, name: str, kind: type) -> Any:
        """None if it was never remembered. Raises StateError for anything but a `kind`."""
        rows = self._read("SELECT value FROM facts WHERE name = ?", (name,))
        if not rows:
            return None
        try:
            fact = json.loads(rows[0][0])
            if not isinstance(fact, kind):
                raise ValueError(f"a {kind.__name__} was expected")
        except ValueError as error:
            raise self._broken(f"the fact {name!r}", error) from error
        return fact

    def _remember(self, name: str, value: object) -> None:
        row = (name, _dump(value))
        self._write(
            lambda transaction: transaction.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row), None
        ).wait()

    def _write(
        self,
        change: Callable[[Transaction], object],
        note: tuple[str, str, str] | None,
        *,
        releases: bool = False,
    ) -> Written:
        now, who = self._clock(), current_caller()
        by = (who.uid, who.pid) if who else (None, None)

        def job(transaction: Transaction) -> None:
            change(transaction)
            if note is not None:
                transaction.execute(sql.NOTE, (now, *note, *by))
                self._noted += 1
                if self._noted % HISTORY_SLACK == 0:
                    transaction.execute(sql.FORGET_OLD, (HISTORY_MAX,))

        try:
            return Written(self._file.submit(job, releases=releases))
        except DatabaseError as error:
            raise StateError(f"The agent's journal was not written: {error}") from error

    def _read(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._file.read(query, parameters, timeout_s=WAIT_S)
        except (DatabaseError, sqlite3.Error) as error:
            raise StateError(f"The agent's journal was not read: {error}") from error

    def _claim(self, row: tuple[Any, ...]) -> Claim:
        consumer, state, request, allocations, units, since, adopted, cells, makings = row
        try:
            return Claim(
                read_uuid(consumer, "consumer"),
                ClaimState(read_choice(state, "state", list(ClaimState))),
                parse_claim(json.loads(request)),
                read_allocations(json.loads(allocations)),
                read_units(json.loads(units)),
                since,
                bool(adopted),
                read_cells(json.loads(cells)),
                read_makings(json.loads(makings)),
            )
        except (PlimsollError, ValueError) as error:
            raise self._broken(f"the claim of {consumer}", error) from error

    def _broken(self, what: str, error: Exception) -> StateError:
        return StateError(
            f"{self._file.path}: {what} makes no sense ({error}); the file was left as it is. "
            "Restore a backup of it, or move it aside to start without any claims.",
            path=str(self._file.path),
        )


def _row(claim: Claim) -> tuple[object, ...]:
    return (
        claim.consumer,
        claim.state.value,
        _dump(request_to_json(claim.request)),
        _dump(claim.allocations),
        _dump(claim.units),
        claim.since,
        int(claim.adopted),
        _dump(cells_to_json(claim.cells)),
        _dump(claim.makings),
    )
