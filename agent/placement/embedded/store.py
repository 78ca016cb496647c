"""The model and placement.db, kept in step.

Each write runs on the file's writer thread. It is checked against a draft that includes the earlier writes of
the same group, committed together with them, and only then applied to the model and answered.

The file has a row per provider and a row per consumer; inventories, traits, aggregates and allocations are
JSON in it. So a claim writes one consumer row, and only the generation of each provider that it names.

A caller that stopped waiting for a write does not know its outcome. It repeats the write with the same
idempotency key: the core does not run it again, but waits for the first one and gives its outcome. Outcomes
are kept in memory only: after a restart no write of before is under way, so a read shows what became of it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import os_resource_classes
import os_traits

from agent.clock import HostClock
from agent.durable.errors import DatabaseDamaged, DatabaseTimeout, DiskFull
from agent.durable.group_commit import Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.placement.embedded.model import ConsumerRecord, Draft, InventoryRecord, Model, ProviderRecord

T = TypeVar("T")

KEPT_MAX = 1024


class KeyReused(Exception):
    """The key belongs to another write."""


class _Entry(NamedTuple):
    what: object
    ticket: Ticket[Any]


class KeyedWrites:
    """The tickets of the newest writes by key. Any thread may call."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def ticket(self, key: str, what: object, submit: Callable[[], Ticket[T]]) -> Ticket[T]:
        """The ticket of the write with that key; `submit` makes it where the key is new.

        `what` is the write, to be compared with the one that had the key before. Raises KeyReused.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.ticket.cancelled:
                if entry.what != what:
                    raise KeyReused
                return cast("Ticket[T]", entry.ticket)
            ticket = submit()
            self._entries[key] = _Entry(what, ticket)
            if len(self._entries) > self._kept_max:
                # A write that has not ended stays, as its outcome is to be told.
                oldest = next((key for key, entry in self._entries.items() if entry.ticket.answered), None)
                if oldest is not None:
                    del self._entries[oldest]
            return ticket


APPLICATION_ID = 0x504C5043
FILE_NAME = "placement.db"

MIGRATIONS = (
    """
    CREATE TABLE resource_providers (
        id INTEGER PRIMARY KEY,
        uuid TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        generation INTEGER NOT NULL,
        parent_provider_uuid TEXT,
        root_provider_uuid TEXT NOT NULL,
        inventories TEXT NOT NULL,  -- {class: [total, reserved, min, max, step, ratio, updated_at]}
        traits TEXT NOT NULL,       -- [name, ...]
        aggregates TEXT NOT NULL,   -- [uuid, ...]
        updated_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE consumers (
        uuid TEXT NOT NULL PRIMARY KEY,
        project_id TEXT NOT NULL,
        user_id TEXT NOT NULL,
        consumer_type TEXT,
        generation INTEGER NOT NULL,
        allocations TEXT NOT NULL,  -- {provider uuid: {class: amount}}
        updated_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE meta (created_at REAL NOT NULL) STRICT;
    INSERT INTO meta VALUES (unixepoch());
    CREATE TABLE traits (name TEXT NOT NULL PRIMARY KEY, created_at REAL NOT NULL) STRICT;
    CREATE TABLE resource_classes (name TEXT NOT NULL PRIMARY KEY, created_at REAL NOT NULL) STRICT;
    """,
)

_PUT_PROVIDER = """
    INSERT INTO resource_providers (uuid, name, generation, parent_provider_uuid, root_provider_uuid,
                                    inventories, traits, aggregates, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT (uuid) DO UPDATE SET name = ?2, generation = ?3, parent_provider_uuid = ?4,
        root_provider_uuid = ?5, inventories = ?6, traits = ?7, aggregates = ?8, updated_at = ?9
"""
_RAISE_GENERATION = "UPDATE resource_providers SET generation = ?, updated_at = ? WHERE uuid = ?"
_PUT_CONSUMER = """
    INSERT OR REPLACE INTO consumers (uuid, project_id, user_id, consumer_type, generation, allocations,
                                      updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)
"""

_dump = json.JSONEncoder(separators=(",", ":")).encode


def write_draft(transaction: Transaction, draft: Draft, before: Model) -> None:
    """Write the changes of the draft over the state `before`."""
    raised, put, gone_providers = [], [], []
    for uuid, provider in draft.providers.items():
        old = before.providers.get(uuid)
        if provider is None:
            gone_providers.append((uuid,))
        elif old is not None and provider.shares_contents(old):
            raised.append((provider.generation, provider.updated_at, uuid))
        else:
            inventories, traits, aggregates = provider.inventories, provider.traits, provider.aggregates
            parts = (inventories, sorted(traits), sorted(aggregates))
            put.append((*provider[:5], *map(_dump, parts), provider.updated_at))
    for statement, rows in (
        (_RAISE_GENERATION, raised),
        (_PUT_PROVIDER, put),
        ("DELETE FROM resource_providers WHERE uuid = ?", gone_providers),
    ):
        if rows:
            transaction.executemany(statement, rows)
    if draft.consumers:
        gone = [(uuid,) for uuid, consumer in draft.consumers.items() if consumer is None]
        if gone:
            transaction.executemany("DELETE FROM consumers WHERE uuid = ?", gone)
        kept = [
            (*consumer[:5], _dump(consumer.allocations), consumer.updated_at)
            for consumer in draft.consumers.values()
            if consumer is not None
        ]
        transaction.executemany(_PUT_CONSUMER, kept)
    _write_names(transaction, "traits", draft.traits)
    _write_names(transaction, "resource_classes", draft.resource_classes)


def _write_names(transaction: Transaction, table: str, names: Mapping[str, float | None]) -> None:
    for name, created_at in names.items():
        transaction.execute(f"DELETE FROM {table} WHERE name = ?", (name,))  # noqa: S608 - a constant table name
        if created_at is not None:
            transaction.execute(f"INSERT INTO {table} VALUES (?, ?)", (name, created_at))  # noqa: S608


def load_model(file: SqliteFile) -> Model:
    """The model of the file's contents. The standard names are as old as the file.

    Raises DatabaseDamaged where a row does not have the expected form, although SQLite finds the file intact.
    """
    try:
        created_at: float = file.read("SELECT created_at FROM meta")[0][0]
        model = Model(
            traits=dict.fromkeys(os_traits.get_traits(), created_at),
            resource_classes=dict.fromkeys(os_resource_classes.STANDARDS, created_at),
        )
        for table, names in (("traits", model.traits), ("resource_classes", model.resource_classes)):
            names.update(file.read(f"SELECT name, created_at FROM {table} ORDER BY rowid"))  # noqa: S608 - constants
        providers = file.read(
            "SELECT uuid, name, generation, parent_provider_uuid, root_provider_uuid, inventories, traits,"
            " aggregates, updated_at FROM resource_providers ORDER BY id"
        )
        consumers = file.read(
            "SELECT uuid, project_id, user_id, consumer_type, generation, allocations, updated_at"
            " FROM consumers"
        )
        model.load(
            (
                ProviderRecord._make(
                    (
                        *row[:5],
                        {name: InventoryRecord(*numbers) for name, numbers in json.loads(row[5]).items()},
                        frozenset(json.loads(row[6])),
                        frozenset(json.loads(row[7])),
                        row[8],
                    )
                )
                for row in providers
            ),
            (ConsumerRecord._make((*row[:5], json.loads(row[5]), row[6])) for row in consumers),
        )
        _keep_standard(model.traits, model.providers_by_trait, created_at)
        _keep_standard(model.resource_classes, model.providers_by_class, created_at)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DatabaseDamaged(file.path, f"a row cannot be read: {error!r}") from error
    return model


def _keep_standard(known: dict[str, float], used: Iterable[str], created_at: float) -> None:
    """Keep a standard name that something uses, even if the installed library no longer has it."""
    for name in used:
        if not name.startswith("CUSTOM_"):
            known.setdefault(name, created_at)


class WholeRequest(Generic[T]):
    """A request that the writer's thread runs, whose caller does not wait for it (`Store.submit_whole`)."""

    def __init__(self, ticket: Ticket[T], due: float, outcome: Callable[[Ticket[T], float], T]) -> None:
        self._ticket = ticket
        self._due = due
        self._outcome = outcome

    @property
    def is_over(self) -> bool:
        """Whether `result` is the last word: it is on disk, it has failed, or the disk's time is over."""
        return self._ticket.answered or time.monotonic() >= self._due

    def result(self) -> T:
        """What the request returned. Raises DatabaseError as `Store.write` does."""
        return self._outcome(self._ticket, math.inf)


Rule = Callable[[Draft], T]
WAIT_S = 60.0


class Store:
    """A placement.db and its model. `clock` stamps the records."""

    def __init__(self, state_dir: Path, clock: HostClock | None = None, *, wait_s: float = WAIT_S) -> None:
        """Open the file and load the model; a write waits at most `wait_s` seconds for the disk.

        Raises DatabaseError, see SqliteFile.open.
        """
        host_clock = clock or HostClock()
        self.clock = host_clock.now
        """Seconds since 1970."""
        self._wait_s = wait_s
        self._keyed = KeyedWrites()
        self._in_doubt: tuple[Ticket[Any], ...] = ()
        self._whole_on: int | None = None
        self.file = SqliteFile.open(
            state_dir / FILE_NAME,
            application_id=APPLICATION_ID,
            migrations=MIGRATIONS,
            name="placement",
        )
        try:
            self.model = load_model(self.file)
        except BaseException:
            self.file.close()
            raise
        self._group = Draft(self.model, self.clock(), host_clock.age_s)
        self.file.join(self)

    @contextmanager
    def reading(self) -> Iterator[Model]:
        """The committed state, which does not change inside the block. The block must be short."""
        with self.model.lock.reading():
            yield self.model

    def write(
        self, rule: Rule[T], *, releases: bool = False, key: str | None = None, what: object = None
    ) -> T:
        """Run the rule on a draft. When it returns, its changes are on disk and visible.

        `releases` marks a write that frees resources and must succeed on a full disk. `key` is the write's
        idempotency key, if it has one, and `what` the write: see `KeyedWrites`.

        Raises RequestRefused where the rule refuses, DatabaseError where the disk fails; then nothing has
        changed. Raises DatabaseTimeout where the disk does not answer within `wait_s`: if the write has
        begun, its outcome is unknown, and the same call with the same key waits for it. Raises KeyReused.
        """

        def job(_: Transaction | None) -> T:
            draft = self._group.next(self.clock())
            answer = rule(draft)
            self._group.merge(draft)
            return answer

        if self._whole_on == threading.get_ident():
            if self.file.disk_full and not releases:
                raise DiskFull(self.file.path)
            return job(None)

        def submit() -> Ticket[T]:
            return self.file.submit(job, releases=releases)

        return self._outcome(submit() if key is None else self._keyed.ticket(key, what, submit))

    def submit_whole(self, request: Callable[[], T], tell: Callable[[], None]) -> WholeRequest[T]:
        """Have the writer's thread run all of a request that writes once, without a key.

        `write` is done there at once, and is on disk when the request `is_over`. That `tell` says as well, on
        that thread, once for all requests of a group. Raises DatabaseClosed.
        """

        def job(_: Transaction) -> T:
            self._whole_on = threading.get_ident()
            try:
                return request()
            finally:
                self._whole_on = None

        # Only its rule shows whether it releases anything: `write` asks then.
        ticket = self.file.submit(job, releases=True, tell=tell)
        return WholeRequest(ticket, time.monotonic() + self._wait_s, self._outcome)

    def _outcome(self, ticket: Ticket[T], waited_s: float = 0.0) -> T:
        try:
            return ticket.result(self._wait_s, waited_s=waited_s)
        except DatabaseTimeout as error:
            if error.begun:
                self._in_doubt = (*(one for one in self._in_doubt if not one.answered), ticket)
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown: its caller waits no longer, and it may still be done."""
        return any(not ticket.answered for ticket in self._in_doubt)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    # -- Participant: called on the writer thread --

    def flush(self, transaction: Transaction) -> None:
        """Write the group's changes."""
        if not self._group.is_empty:
            write_draft(transaction, self._group, self.model)

    def publish(self) -> None:
        """Apply the group's changes to the model."""
        if not self._group.is_empty:
            with self.model.lock.writing():
                self.model.apply(self._group)
            self._group = Draft(self.model, self._group.now, self._group.age_s)

    def discard(self) -> None:
        """Discard the group's changes."""
        self._group = Draft(self.model, self._group.now, self._group.age_s)
