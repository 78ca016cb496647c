"""The model and its journal, kept in step.

Each write runs on the writer's thread of the journal's home. It is checked against a draft that includes the
earlier writes of the same group, and the group's changes become one row of the journal; when the row is
durable, they are applied to the model and answered.

The row has the changed records whole, but of a provider that a claim names only the generation.
Rows are only added at the end and removed at the beginning; a home knows which one was added last, and each
row has the CRC-32 of the one before it. To keep the journal bounded, a group sweeps: its row takes over what
the model still has of the oldest rows, which go in the same write. So what any row has is either outdated by
a later row, or there.

A caller that stopped waiting for a write does not know its outcome. It repeats the write with the same
idempotency key: the core does not run it again, but waits for the first one and gives its outcome. The row
has the keys of its writes, so the newest are known after a restart as well. A write that changed nothing is
not in a row, and judged anew after a restart; but where servers share a journal it has a row, as a copy of
the request may still be on the way to another server.

The network may hold a copy until its key is forgotten. So a key says which row its maker knew, and is refused
where keys of later rows are forgotten: no clock is asked, and the caller makes a new key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import os_resource_classes
import os_traits

from agent.clock import HostClock
from agent.durable.errors import DatabaseClosed, DatabaseDamaged, DatabaseError, DatabaseTimeout, DiskFull
from agent.durable.group_commit import Job, Participant, Ticket, Transaction
from agent.durable.sqlite_file import SqliteFile
from agent.placement.embedded.model import (
    ConsumerRecord,
    CoreState,
    Draft,
    InventoryRecord,
    Model,
    ProviderRecord,
)
from agent.placement.embedded.problems import KEY_FORGOTTEN, KEY_REUSED, ProblemType, RequestRefused

T = TypeVar("T")

# Idempotency keys

KEPT_S = 120
"""For how long at least a client may repeat a write with its key, but for the two bounds below."""
KEPT_MAX = 1 << 18
KEPT_BYTES_MAX = 32 << 20
"""Of the keys and answers; with what Python adds to each, all of them take 130 MB at most."""
KEY_CHARACTERS_MAX = 255

RowId = tuple[int, int]
"""The epoch of a row, and its seq. Both only grow from row to row."""

_MADE_AFTER = re.compile(r"@([0-9]{1,19})\.([0-9]{1,19})$")
"""The end of a key whose maker says which row it knew (SEEN_HEADER) before it sent the write."""

KEY_BYTES = 20
"""What a key takes in a row beside its own text, its digest's and its answer's."""

DIGEST_BYTES = 12
KeyOutcome = tuple[str, str, float, RowId]
"""The digest of a write, its answer as JSON (`encode_answer`), when this server learned it (seconds), and
the row that has it."""


class KeyedWrites:
    """What became of the newest writes by key. No two threads call at once: each writes or reads rows."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._ended: dict[str, KeyOutcome] = {}
        self._order: deque[str] = deque()
        """The keys of `_ended`, the oldest first."""
        self.bytes = 0
        """What the keys take in rows."""
        self.forgotten: RowId = 0, 0
        """The newest row of whose keys one is no longer known."""

    def end(self, outcomes: Mapping[str, tuple[str, str]], row: RowId) -> None:
        """Know what became of these writes of the row, by their digests and answers as in `KeyOutcome`."""
        now = time.monotonic()
        for key, (digest, answer) in outcomes.items():
            if key not in self._ended:
                self._order.append(key)
                self.bytes += KEY_BYTES + len(key) + len(digest) + len(answer)
                self._ended[key] = digest, answer, now, row
        while self._order and (
            self._ended[self._order[0]][2] + KEPT_S < now
            or len(self._order) > self._kept_max
            or self.bytes > KEPT_BYTES_MAX
        ):
            key = self._order.popleft()
            digest, answer, _, row = self._ended.pop(key)
            self.forgotten = max(self.forgotten, row)
            self.bytes -= KEY_BYTES + len(key) + len(digest) + len(answer)

    def get(self, key: str) -> tuple[str, str] | None:
        """The digest and the answer of the write with that key, None where it is not known."""
        known = self._ended.get(key)
        return None if known is None else known[:2]

    def may_have_forgotten(self, key: str) -> bool:
        """Whether the key says that it is older than the newest row whose keys are not all known."""
        made = _MADE_AFTER.search(key)
        return made is not None and (int(made[1]), int(made[2])) < self.forgotten

    def __contains__(self, key: str) -> bool:
        return key in self._ended


# What a row says

Changes = dict[str, dict[str, Any]]
"""{p, c, t or r: {uuid or name: the record, None where it is removed}}

Beside them a row has {FIRST: the seq of the first row that the journal has since then, BEFORE: the `check` of
the row before it}.
"""
FIRST = "f"
BEFORE = "b"

Birth = tuple[int, int]
"""The row that made a provider, and the provider's place in it: what the model's order comes from."""

_dump = json.JSONEncoder(separators=(",", ":")).encode
_content = json.JSONEncoder(sort_keys=True, default=repr).encode


class Row(NamedTuple):
    """A group of writes: JSON of its changes, and of {idempotency key: [digest of the write, its answer]}."""

    seq: int
    epoch: int
    changes: str
    keys: str

    @property
    def bytes(self) -> int:
        """The size of its texts."""
        return len(self.changes) + len(self.keys)

    @property
    def check(self) -> int:
        """The CRC-32 of its texts."""
        return zlib.crc32(self.keys.encode(), zlib.crc32(self.changes.encode()))


def encode(draft: Draft, before: CoreState, births: Mapping[str, Birth]) -> Changes:
    """The changes of the draft over the state `before`."""
    providers: dict[str, Any] = {}
    for uuid, provider in draft.providers.items():
        old = before.provider(uuid)
        if provider is not None and old is not None and provider.shares_contents(old):
            providers[uuid] = [provider.generation, provider.updated_at]
        else:
            providers[uuid] = provider and encode_provider(provider, births.get(uuid))
    consumers = {uuid: consumer and encode_consumer(consumer) for uuid, consumer in draft.consumers.items()}
    changes = {"p": providers, "c": consumers, "t": draft.traits, "r": draft.resource_classes}
    return {kind: records for kind, records in changes.items() if records}


def decode(changes: Changes, below: CoreState) -> Draft:
    """The draft, over `below`, that `encode` was given.

    A generation of a provider that is not there is passed over: a later row removes the provider, or has it
    whole. Raises LookupError, TypeError, ValueError or AttributeError where the changes are malformed.
    """
    draft = Draft(below, 0.0)
    for uuid, entry in changes.get("p", {}).items():
        if entry is None:
            draft.providers[uuid] = None
        elif len(entry) > len(_RAISED):
            generation, updated_at, name, parent_uuid, root_uuid, inventories, traits, aggregates, _ = entry
            draft.providers[uuid] = ProviderRecord(
                uuid,
                name,
                generation,
                parent_uuid,
                root_uuid,
                {held: InventoryRecord(*numbers) for held, numbers in inventories.items()},
                frozenset(traits),
                frozenset(aggregates),
                updated_at,
            )
        else:
            provider = below.provider(uuid)
            if provider is not None:
                draft.providers[uuid] = provider._replace(**dict(zip(_RAISED, entry, strict=True)))
    for uuid, entry in changes.get("c", {}).items():
        consumer = None if entry is None else ConsumerRecord(uuid, *entry)
        if consumer is not None and not isinstance(consumer.allocations, dict):
            raise TypeError(f"the allocations of {uuid} are {consumer.allocations!r}")
        draft.consumers[uuid] = consumer
    draft.traits.update(changes.get("t", {}))
    draft.resource_classes.update(changes.get("r", {}))
    return draft


_RAISED = ("generation", "updated_at")


def encode_provider(provider: ProviderRecord, birth: Birth | None) -> list[Any]:
    """All of the provider but its uuid."""
    inventories = {name: list(inventory) for name, inventory in provider.inventories.items()}
    contents = [provider.name, provider.parent_uuid, provider.root_uuid, inventories]
    sets = [sorted(provider.traits), sorted(provider.aggregates)]
    return [provider.generation, provider.updated_at, *contents, *sets, birth]


def encode_consumer(consumer: ConsumerRecord) -> list[Any]:
    """All of the consumer but its uuid."""
    return list(consumer[1:])


def encode_answer(answer: Any) -> Any:
    """What a rule returned or raised, for the row's keys: a provider, a refusal, or a value of JSON."""
    if isinstance(answer, ProviderRecord):
        return {answer.uuid: encode_provider(answer, None)}
    if isinstance(answer, RequestRefused):
        return [answer.problem, answer.detail, answer.reasons, answer.headers]
    return answer


def decode_answer(entry: Any) -> Any:
    """What `encode_answer` was given. Raises as `decode`."""
    if isinstance(entry, dict):
        ((_, provider),) = decode({"p": entry}, Model({}, {})).providers.items()
        return provider
    if isinstance(entry, list):
        problem, detail, reasons, headers = entry
        return RequestRefused(ProblemType(*problem), detail, reasons=reasons, headers=headers)
    return entry


# Where the journal is


class NotActive(DatabaseClosed):
    """Another server writes to the journal, or none does."""

    def __init__(self, path: Path, sentence: str) -> None:
        DatabaseError.__init__(self, path, sentence)


class Follower(Participant, Protocol):
    """What a home needs of the store."""

    def follow(self, *, anew: bool = False) -> list[str]:
        """See `Store.follow`."""

    def take_over(self) -> None:
        """See `Store.take_over`."""


class Home(Protocol):
    """Where the rows of a journal are durable, with a thread of its own that writes them.

    `submit` and `join` are those of `SqliteFile`. `rows` and `extent` are called in `load` and in the store's
    `follow` and `flush`, `append` in its `flush`, once a group.
    """

    epoch: int
    """Rises with each server that takes the journal over from another one."""
    created_at: float
    is_shared: bool
    """Whether other servers may write to the journal, later or before."""
    active_server: str | None
    """The address of the other server that writes to the journal, as far as that is known."""
    path: Path
    """The database, for errors."""
    place: Path
    """The state directory, or the database."""

    @property
    def disk_full(self) -> bool:
        """Whether only releases run, for want of space."""

    @property
    def is_active(self) -> bool:
        """Whether this process writes to the journal: what it reads is not old."""

    @property
    def busy_s(self) -> float:
        """For how long the group of writes that is under way has been so, 0 for none."""

    @property
    def told(self) -> Mapping[str, str]:
        """The headers of each answer: what this home can do for clients, or what is wrong with it."""

    def load(self, work: Callable[[], T]) -> T:
        """Do the work, which reads all rows as they are at one moment."""

    def admit(self) -> None:
        """Raise DatabaseClosed where another server decides on writes, also on one that a row has."""

    def submit(
        self, job: Job[T], *, releases: bool = False, tell: Callable[[], None] | None = None
    ) -> Ticket[T]:
        """See `SqliteFile.submit`."""

    def join(self, store: Follower) -> None:
        """See `SqliteFile.join`."""

    def rows(self, after: int, limit: int) -> list[Row]:
        """The first `limit` rows after that seq."""

    def extent(self) -> tuple[int, int]:
        """The seq of the first row, and the bytes of all. Raises DatabaseError where the last are missing."""

    def append(self, row: Row, first: int) -> None:
        """Add the row and remove those before `first`, in the commit of the group."""

    def damaged(self, finding: str) -> DatabaseError:
        """The error for rows that cannot be read."""

    def close(self) -> None:
        """Run the queued jobs, and leave the journal to others."""


KEYS_HEADER = "plimsoll-keys"
"""Of a server that may share its journal: for how many seconds all of them know a key."""
JOURNAL_HEADER = "plimsoll-journal"
"""Of a server that may share its journal: which one that is."""
SEEN_HEADER = "plimsoll-seen"
"""The newest row that the server has, as EPOCH.SEQ: a key that is made then ends in @EPOCH.SEQ.

So a copy of a write that the network holds until its key is forgotten is refused, and not done again.
"""
RISK_HEADER = "plimsoll-risk"
"""How the journal can lose what is acknowledged, in words."""

APPLICATION_ID = 0x504C5043
FILE_NAME = "placement.db"
COMPRESSED_FROM = 1000

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
    """
    CREATE TABLE journal (
        seq INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        changes ANY NOT NULL,   -- [{p, c, t or r: {uuid or name: [...] or null}}, ...]; long ones by zlib
        keys TEXT NOT NULL,     -- {idempotency key: [digest of the write, its answer]}
        size INTEGER NOT NULL   -- characters of changes and keys
    ) STRICT;
    INSERT INTO journal (epoch, changes, keys, size)
        SELECT 1, json_array(json_object(kind, json_object(
            name, json(printf('%!.17g', created_at))))), '{}', 0
        FROM (SELECT 't' AS kind, name, created_at FROM traits
              UNION ALL SELECT 'r', name, created_at FROM resource_classes);
    INSERT INTO journal (epoch, changes, keys, size)
        SELECT 1, json_array(json_object('p', json_object(uuid, json_array(
            generation, json(printf('%!.17g', updated_at)), name, parent_provider_uuid, root_provider_uuid,
            json(inventories), json(traits), json(aggregates), NULL)))), '{}', 0
        FROM resource_providers ORDER BY id;
    INSERT INTO journal (epoch, changes, keys, size)
        SELECT 1, json_array(json_object('c', json_object(uuid, json_array(
            project_id, user_id, consumer_type, generation, json(allocations),
            json(printf('%!.17g', updated_at)))))), '{}', 0
        FROM consumers;
    UPDATE journal SET size = length(changes) + length(keys);
    DROP TABLE resource_providers;
    DROP TABLE consumers;
    DROP TABLE traits;
    DROP TABLE resource_classes;
    """,
    """
    INSERT INTO journal SELECT coalesce(max(seq), 0) + 1, 0, '', '', 0 FROM journal;
    """,
)

EXTENT = """
SELECT coalesce(min(seq), 1), coalesce(sum(size), 0),
    coalesce(max(CASE WHEN epoch > 0 THEN seq END), 0), max(CASE epoch WHEN 0 THEN seq END) FROM journal
"""
APPEND = "INSERT OR REPLACE INTO journal VALUES (?1, ?2, ?3, ?4, ?5), (?1 + 1, 0, '', '', 0)"
"""The row takes the place of the empty one, of epoch 0, which is the last: without it the last are missing.

A table of its own for the newest seq would be one more page to write in each commit.
"""


class SqliteHome(SqliteFile):
    """The journal in the placement.db of a state directory; see `Home`."""

    epoch = 1
    created_at: float
    is_active = True
    is_shared = False
    active_server: str | None = None
    told: Mapping[str, str] = {}
    place: Path

    @classmethod
    def at(cls, state_dir: Path) -> Self:
        """The home in the directory. Raises DatabaseError, see SqliteFile.open."""
        home = cls.open(
            state_dir / FILE_NAME, application_id=APPLICATION_ID, migrations=MIGRATIONS, name="placement"
        )
        home.place = state_dir
        try:
            ((home.created_at,),) = home.read("SELECT created_at FROM meta")
        except (ValueError, sqlite3.Error) as error:
            home.close()
            raise home.damaged("a row cannot be read: it is not said when the file was made") from error
        return home

    def admit(self) -> None:
        """See `Home.admit`."""

    def load(self, work: Callable[[], T]) -> T:
        """See `Home.load`."""
        try:
            return self.run(lambda _: work(), releases=True, timeout_s=LOAD_S)
        except sqlite3.Error as error:
            raise self.damaged(f"a row cannot be read: {error}") from error

    def rows(self, after: int, limit: int) -> list[Row]:
        """See `Home.rows`."""
        columns = (
            "SELECT seq, epoch, changes, keys FROM journal WHERE seq > ? AND epoch > 0 ORDER BY seq LIMIT ?"
        )
        return [
            Row(
                seq, epoch, zlib.decompress(changes).decode() if isinstance(changes, bytes) else changes, keys
            )
            for seq, epoch, changes, keys in self.transaction.query(columns, (after, limit))
        ]

    def extent(self) -> tuple[int, int]:
        """See `Home.extent`."""
        ((first, size, last, empty),) = self.transaction.query(EXTENT)
        if empty is None:
            raise self.damaged(f"its rows from {last + 1} on are missing")
        if empty > last + 1:
            raise self.damaged(f"its rows {last + 1} to {empty - 1} are missing")
        return first, size

    def append(self, row: Row, first: int) -> None:
        """See `Home.append`."""
        if first:
            self.transaction.execute("DELETE FROM journal WHERE seq < ?", (first,))  # its pages are free now
        # A page of the file has one or two long rows, and so is half empty, but several short ones.
        is_long = len(row.changes) > COMPRESSED_FROM
        changes = zlib.compress(row.changes.encode(), 1) if is_long else row.changes
        values = (row.seq, row.epoch, changes, row.keys, row.bytes)
        self.transaction.execute(APPEND, values)

    def damaged(self, finding: str) -> DatabaseError:
        """See `Home.damaged`."""
        return DatabaseDamaged(self.path, finding)


# The store

Rule = Callable[[Draft], T]
WAIT_S = 60.0
LOAD_S = 600.0
NOWHERE = -1
ROWS_AT_ONCE = 256
CONTENT_SAMPLE = 200
UUID_BYTES = 40

FULL_AT = 1.6
"""The journal may have so many times the bytes of the model; a group that finds more of them sweeps."""

SLACK_BYTES = 1 << 20
SWEEP_FACTOR = 4
"""A group sweeps so many bytes for each one that it writes, so that the journal becomes shorter."""

SWEEP_BYTES_ON_FULL_DISK = 256 << 10


class WholeRequest(Generic[T]):
    """A request that the writer's thread runs, whose caller does not wait for it (`Store.submit_whole`)."""

    def __init__(self, ticket: Ticket[T], due: float, wait: Callable[[], T]) -> None:
        self._ticket = ticket
        self._due = due
        self._wait = wait

    @property
    def is_over(self) -> bool:
        """Whether `result` is the last word: it is on disk, it has failed, or the disk's time is over."""
        return self._ticket.answered or time.monotonic() >= self._due

    def result(self) -> T:
        """What the request returned. Raises DatabaseError as `Store.write` does."""
        return self._wait()


class Store:
    """A journal and its model. `clock` stamps the records."""

    def __init__(self, home: Home, clock: HostClock | None = None, *, wait_s: float = WAIT_S) -> None:
        """Load the model; a write waits at most `wait_s` seconds for the disk.

        Raises DatabaseError where the journal cannot be read; then it is closed.
        """
        host_clock = clock or HostClock()
        self.clock = host_clock.now
        """Seconds since 1970."""
        self._wait_s = wait_s
        self._keyed = KeyedWrites()
        self._in_doubt: tuple[Ticket[Any], ...] = ()
        self._whole_on: int | None = None
        self.home = home
        self._seq = 0
        self.newest: RowId = 0, 0
        """The newest row that was read or written, for the answers' SEEN_HEADER; from any thread."""
        self._first = 1
        self._told_first: int | None = None
        """What the newest row says of it; None where an older version wrote that."""
        self._check: int | None = None
        """That of the row `_seq`; None where it was not read."""
        self._bytes = 0
        self._births: dict[str, Birth] = {}
        self._oldest: deque[Row] = deque()
        """Of the first rows, those that are read already."""
        self._keys: dict[str, tuple[str, str]] = {}
        """The keys of the group for its row, each with the digest of its write, and its answer as JSON."""
        self._judged: dict[str, tuple[str, str]] = {}
        """Those of writes that changed nothing, which need no row."""
        self._unmeasured, self._bytes_max = 0, 0.0
        self._written: tuple[Row, Changes, int, int] | None = None
        try:
            self.model = home.load(self._load)
        except BaseException:
            home.close()
            raise
        self._measure()
        self._group = Draft(self.model, self.clock(), host_clock.age_s)
        home.join(self)

    def _load(self) -> Model:
        """The model of the journal's contents. The standard names are as old as the journal.

        Raises DatabaseError where a row does not have the expected form.
        """
        whole, created_at = Draft(Model({}, {}), 0.0), self.home.created_at
        with self._legible():
            self._births.clear()
            self._told_first = self._check = None
            self._first, self._bytes = self.home.extent()
            self._seq, self.newest = self._first - 1, (0, 0)
            while rows := self.home.rows(self._seq, ROWS_AT_ONCE):
                if rows[0].seq == self._first > 1:
                    # A sweep takes those keys over that it knows.
                    self._keyed.forgotten = rows[0].epoch, self._first - 1
                for row in rows:
                    whole.merge(self._read(row, whole))
            self._check_first()
            model = Model(
                traits=dict.fromkeys(os_traits.get_traits(), created_at),
                resource_classes=dict.fromkeys(os_resource_classes.STANDARDS, created_at),
            )
            for known, changed in (
                (model.traits, whole.traits),
                (model.resource_classes, whole.resource_classes),
            ):
                existing = [(name, at) for name, at in changed.items() if at is not None]
                known.update(sorted(existing, key=lambda item: item[1]))
            providers = [provider for provider in whole.providers.values() if provider is not None]
            providers.sort(key=lambda provider: self._births[provider.uuid])
            model.load(providers, (consumer for consumer in whole.consumers.values() if consumer is not None))
            _keep_standard(model.traits, model.providers_by_trait, created_at)
            _keep_standard(model.resource_classes, model.providers_by_class, created_at)
        return model

    @contextmanager
    def _legible(self) -> Iterator[None]:
        """Raise DatabaseError where the block meets a row that does not have the expected form."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, zlib.error) as error:
            raise self.home.damaged(f"a row cannot be read: row {self._seq + 1} or a later one") from error

    def _check_first(self) -> None:
        """Raises DatabaseError where the first rows were removed, other than by a sweep."""
        if self._told_first is not None and self._told_first < self._first:
            raise self.home.damaged(f"its rows {self._told_first} to {self._first - 1} are missing")

    def _read(self, row: Row, below: CoreState) -> Draft:
        """The changes of the next row; it counts as one that the store has."""
        if row.seq != self._seq + 1:
            raise self.home.damaged(f"row {self._seq + 1} of the journal is missing")
        draft = Draft(below, 0.0)
        self._told_first = None
        for part in json.loads(row.changes):
            draft.merge(decode(part, draft))
            self._note_births(row.seq, part)
            self._told_first = part.get(FIRST, self._told_first)
            if self._check is not None and part.get(BEFORE, self._check) != self._check:
                raise self.home.damaged(f"a row cannot be read: row {self._seq} is not as it was written")
        keys = json.loads(row.keys).items()
        self._seq, self._check, self.newest = row.seq, row.check, (row.epoch, row.seq)
        self._keyed.end({key: (digest, _dump(answer)) for key, (digest, answer) in keys}, self.newest)
        return draft

    def follow(self, *, anew: bool = False) -> list[str]:
        """Apply the rows that another server has added, or load all of them `anew`.

        Returns the consumers that are no longer there then. Called while no group runs.
        """
        if not anew:
            while rows := self.home.rows(self._seq, ROWS_AT_ONCE):
                if rows[0].seq != self._seq + 1:
                    anew = True  # what was between was swept
                    break
                for row in rows:
                    with self._legible():
                        draft = self._read(row, self.model)
                    with self.model.lock.writing():
                        self.model.apply(draft)
            else:
                return []
        before = self.model
        self._keyed = KeyedWrites()  # those of lost writes stand for nothing
        try:
            self.model = self.home.load(self._load)
        except BaseException:
            self._seq = NOWHERE  # the next time all again
            raise
        self._begin_group()
        return sorted(before.consumers.keys() - self.model.consumers.keys())

    def take_over(self) -> None:
        """Apply the last rows of others: from now on this process writes."""
        self.follow()
        self._first, self._bytes = self.home.extent()
        self._check_first()
        self._oldest.clear()
        self._measure()

    def _note_births(self, seq: int, changes: Changes) -> None:
        for place, (uuid, entry) in enumerate(changes.get("p", {}).items()):
            if entry is None:
                self._births.pop(uuid, None)
            elif len(entry) > len(_RAISED):
                self._births.setdefault(uuid, tuple(entry[-1] or (seq, place)))

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
        idempotency key, if it has one, and `what` the write: one that comes again with its key is not done
        again, but has the answer of the first, whose commit it waits for.

        Raises RequestRefused where the rule or the key refuses, DatabaseError where the disk fails; then
        nothing has changed. Raises DatabaseTimeout where the disk does not answer within `wait_s`: if the
        write has begun, its outcome is unknown, and the same call with the same key waits for it.
        """
        digest = ""
        if key is not None:
            digest = hashlib.blake2b(_content(what).encode(), digest_size=DIGEST_BYTES).hexdigest()

        def job(_: Transaction | None) -> T:
            if key is not None and (known := self._outcome_of(key, digest)) is not None:
                return cast(T, known[0])
            draft = self._group.next(self.clock())
            try:
                answer = rule(draft)
            except RequestRefused as refusal:
                self._note(key, digest, refusal, is_change=False)
                raise
            self._group.merge(draft)
            self._note(key, digest, answer, is_change=not draft.is_empty)
            return answer

        if self._whole_on == threading.get_ident():
            if self.home.disk_full and not releases:
                raise DiskFull(self.home.path)
            return job(None)

        return self._outcome(self.home.submit(job, releases=releases), key)

    def _known(self, key: str) -> tuple[str, str] | None:
        """The write that had the key before, in this group or an earlier one, as `KeyedWrites.get`."""
        return self._keys.get(key) or self._judged.get(key) or self._keyed.get(key)

    def _outcome_of(self, key: str, digest: str) -> tuple[Any] | None:
        """The answer to the write that had the key before; None for none.

        Raises RequestRefused where it was refused or was another write, or where the key is so old that it
        may be forgotten.
        """
        known = self._known(key)
        if known is None:
            if self._keyed.may_have_forgotten(key):
                raise RequestRefused(
                    KEY_FORGOTTEN,
                    f"The write was not done now: its idempotency key {key!r} is so old that the server may "
                    "have forgotten it. Read whether the write was done before; if it was not, send it with "
                    "a new key.",
                )
            return None
        if known[0] != digest:
            raise RequestRefused(KEY_REUSED, f"Another request had the idempotency key {key!r}.")
        answer = decode_answer(json.loads(known[1]))
        if isinstance(answer, RequestRefused):
            raise answer
        return (answer,)

    def _note(self, key: str | None, digest: str, answer: Any, *, is_change: bool) -> None:
        """Keep the answer to a write of the group with its key."""
        if key is not None:
            kept = self._keys if is_change or self.home.is_shared else self._judged
            kept[key] = digest, _dump(encode_answer(answer))

    def submit_whole(
        self, request: Callable[[], T], tell: Callable[[], None], key: str | None
    ) -> WholeRequest[T]:
        """Have the writer's thread run all of a request that writes once, with that idempotency key if any.

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
        ticket = self.home.submit(job, releases=True, tell=tell)
        wait = partial(self._outcome, ticket, key, math.inf)
        return WholeRequest(ticket, time.monotonic() + self._wait_s, wait)

    def _outcome(self, ticket: Ticket[T], key: str | None, waited_s: float = 0.0) -> T:
        try:
            return ticket.result(self._wait_s, waited_s=waited_s)
        except DatabaseTimeout as error:
            if error.begun:
                self._in_doubt = (*(one for one in self._in_doubt if not one.answered), ticket)
            elif key is not None and self._known(key):
                # This copy was cancelled, and an earlier one is in the group that hangs, or done just now.
                raise DatabaseTimeout(self.home.path, self._wait_s) from error
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether the outcome of a write is unknown: its caller waits no longer, and it may still be done."""
        return any(not ticket.answered for ticket in self._in_doubt)

    def close(self) -> None:
        """Close the journal."""
        self.home.close()

    # -- Participant: called on the writer thread --

    def flush(self, _: Transaction) -> None:
        """Write the group's changes as a row, which sweeps old ones if there are too many."""
        self._written = None
        if self._group.is_empty and not self._keys:
            return
        changes = encode(self._group, self.model, self._births)
        parts = [_dump(changes)]
        first, freed = self._first, 0
        keys = _dump_keys(self._keys)
        if self.home.disk_full or self._bytes > self._bytes_max:
            own_bytes = len(parts[0]) + len(keys)
            budget = SWEEP_BYTES_ON_FULL_DISK if self.home.disk_full else SWEEP_FACTOR * own_bytes
            known: dict[str, tuple[str, str]] = {}
            left: Changes = {}
            while freed < budget:
                if not self._oldest:  # they are read ahead
                    self._oldest.extend(self.home.rows(first - 1, ROWS_AT_ONCE))
                    if not self._oldest:
                        break
                row = self._oldest.popleft()
                first, freed = row.seq + 1, freed + row.bytes
                for part in json.loads(row.changes):
                    self._keep_current(part, left)
                for key, (digest, answer) in json.loads(row.keys).items():
                    if key in self._keyed:
                        known[key] = digest, _dump(answer)
            keys = _dump_keys(known | self._keys)
            if left:
                parts.insert(0, _dump(left))
        before = "" if self._check is None else f',"{BEFORE}":{self._check}'
        parts.append(f'{{"{FIRST}":{first}{before}}}')
        row = Row(self._seq + 1, self.home.epoch, f"[{','.join(parts)}]", keys)
        self.home.append(row, first if freed else 0)
        self._written = row, changes, first, freed

    def publish(self) -> None:
        """Apply the group's changes to the model."""
        if self._written is not None:
            self.newest = self._written[0].epoch, self._written[0].seq
        self._keyed.end(self._keys | self._judged, self.newest)
        self._judged = {}
        if self._written is not None:
            row, changes, self._first, freed = self._written
            self._told_first = self._first
            self._seq, self._check = row.seq, row.check
            self._bytes += row.bytes - freed
            self._note_births(row.seq, changes)
            with self.model.lock.writing():
                self.model.apply(self._group)
            self._unmeasured += row.bytes
            if self._unmeasured > SLACK_BYTES:
                self._measure()
            self._begin_group()

    def discard(self) -> None:
        """Discard the group's changes."""
        self._oldest.clear()  # some were taken from it
        self._begin_group()

    def _begin_group(self) -> None:
        self._group = Draft(self.model, self._group.now, self._group.age_s)
        self._keys, self._judged = {}, {}

    def _measure(self) -> None:
        """Decide how long the journal may be, by a sample of the model's records and what the keys take."""
        providers = [encode_provider(record, None) for record in _sample(self.model.providers)]
        consumers = [encode_consumer(record) for record in _sample(self.model.consumers)]
        content = float(self._keyed.bytes)
        for sample, number in (
            (providers, len(self.model.providers)),
            (consumers, len(self.model.consumers)),
        ):
            content += (len(_dump(sample)) / max(len(sample), 1) + UUID_BYTES) * number
        self._bytes_max = FULL_AT * content + SLACK_BYTES
        self._unmeasured = 0

    def _keep_current(self, old: Changes, left: Changes) -> None:
        """Add to `left` what the model still has of the old changes.

        A provider whose generation alone changed need not be added: the row that has it whole was before, and
        when that was swept, its row took the generation over.
        """
        for uuid, entry in old.get("p", {}).items():
            provider = self.model.providers.get(uuid)
            if provider is not None and entry is not None and len(entry) > len(_RAISED):
                current = encode_provider(provider, self._births[uuid])
                if entry[len(_RAISED) : -1] == current[len(_RAISED) : -1]:
                    left.setdefault("p", {})[uuid] = current
        for uuid, entry in old.get("c", {}).items():
            consumer = self.model.consumers.get(uuid)
            if consumer is not None and entry == encode_consumer(consumer):
                left.setdefault("c", {})[uuid] = entry
        for kind, names in (("t", self.model.traits), ("r", self.model.resource_classes)):
            for name, created_at in old.get(kind, {}).items():
                if created_at is not None and names.get(name) == created_at:
                    left.setdefault(kind, {})[name] = created_at


def _dump_keys(keys: Mapping[str, tuple[str, str]]) -> str:
    """The keys of a row, whose answers are JSON already."""
    entries = (f'{_dump(key)}:["{digest}",{answer}]' for key, (digest, answer) in keys.items())
    return f"{{{','.join(entries)}}}"


def _sample(records: Mapping[str, T]) -> Iterator[T]:
    return islice(records.values(), 0, None, 1 + len(records) // CONTENT_SAMPLE)


def _keep_standard(known: dict[str, float], used: Iterable[str], created_at: float) -> None:
    """Keep a standard name that something uses, even if the installed library no longer has it."""
    for name in used:
        if not name.startswith("CUSTOM_"):
            known.setdefault(name, created_at)
