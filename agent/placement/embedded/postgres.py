"""The journal in a PostgreSQL database, which several servers share: one is active, the others follow it.

Each server has one session. The active one's holds an advisory lock and does all writes, so server and
lock come and go together. PostgreSQL itself ends a session that says nothing for a second (`SESSION`): a
server that is stopped, or cut off, loses its role by the database's clock alone. A thread asks for the lock,
reads the rows of others and, once active, keeps the session alive.

The fence is in the write: a row is added by the statement that raises `seq`, for one epoch, and the server
that takes over raises the epoch first. So a server that does not know yet that it is no longer active adds
nothing. A SELECT of the epoch in the same transaction would not do.

A statement that does not come back is neither cancelled nor believed to have failed: the server leaves its
role, and the next active one finds the row in the journal or not, with the keys of its writes.

Source: https://www.postgresql.org/docs/current/runtime-config-client.html,
https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADVISORY-LOCKS.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from agent.durable.errors import DatabaseClosed, DatabaseError, DatabaseTimeout, DatabaseUnwritable
from agent.durable.files import LockHeld, check_accepts_files, make_directory, take_lock, write_atomically
from agent.durable.group_commit import GroupWriter, Job, Ticket, Transaction
from agent.errors import first_few
from agent.placement.embedded.store import (
    JOURNAL_HEADER,
    KEPT_S,
    KEYS_HEADER,
    RISK_HEADER,
    Follower,
    NotActive,
    Row,
)
from agent.placement.embedded.validation import Invalid, integer, record

LOG = logging.getLogger(__name__)
T = TypeVar("T")

FORMAT = 1
"""Of the tables. A journal of a higher one is refused."""
POLL_S = 0.1
PING_S = 0.25
AWAY_S = 0.5
REMEMBER_S = 1.0
SEEN_FILE = "journal_seen.json"
_SEEN = record(dict.fromkeys(("journal", "epoch", "seq"), integer(0, 2**63 - 1)), ignores_others=True)
ABOUT_SEEN = (
    "The newest write that a Plimsoll server has seen of its journal in PostgreSQL. At its next start it "
    "serves no journal that has less (--accept-loss)."
)
LEASE_S = 1.0
CLOSE_S = 30.0
ACTIVE_ONE = (
    "This server is a standby of %s; the active one: %s. If that is a server of another cluster, give each "
    "cluster a database of its own."
)
BEHIND_S = 5.0
BEHIND = (
    "it took so long to follow what the active one has written. See to the CPUs of this machine, and to its "
    "network to the database."
)
SILENT = "the database hangs, or a synchronous replica is silent"

SESSION = {
    "idle_session_timeout": "1013ms",  # which no database has by itself: what is set came through
    "idle_in_transaction_session_timeout": "1s",
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "1000",
    "statement_timeout": "0",
    "lock_timeout": "0",
}
CLIENT = {
    "connect_timeout": 2,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 1000,
}

TABLES = """
CREATE TABLE plimsoll_writer (
    format integer NOT NULL, id bigint NOT NULL, created_at double precision NOT NULL,
    epoch bigint NOT NULL, seq bigint NOT NULL, server text, accepted bigint NOT NULL DEFAULT 0
);
INSERT INTO plimsoll_writer
    SELECT 1, (random() * 9e18)::bigint, extract(epoch FROM now()), 0, 0, NULL;
CREATE TABLE plimsoll_journal (
    seq bigint PRIMARY KEY, epoch bigint NOT NULL, changes text NOT NULL, keys text NOT NULL
);
"""
TABLES_LOCK = 0x504C5043
APPEND = """
WITH w AS (
    UPDATE plimsoll_writer SET seq = seq + 1 WHERE epoch = %(epoch)s AND seq = %(seq)s - 1 RETURNING seq
), swept AS (
    DELETE FROM plimsoll_journal WHERE seq < %(first)s AND EXISTS (SELECT FROM w)
)
INSERT INTO plimsoll_journal SELECT seq, %(epoch)s, %(changes)s, %(keys)s FROM w
"""
POLL = """
SELECT pg_try_advisory_lock(id), id, seq, (SELECT coalesce(max(seq), 0) FROM plimsoll_journal), server,
    accepted FROM plimsoll_writer
"""
LOOK = """
SELECT FALSE, id, seq, (SELECT coalesce(max(seq), 0) FROM plimsoll_journal), CASE WHEN EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND classid::bigint << 32 | objid::bigint = id
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) THEN server END, accepted FROM plimsoll_writer
"""
"""As POLL, for a server that does not want the lock."""
PING = "SELECT epoch, seq, id FROM plimsoll_writer"
TAKE_OVER = """
UPDATE plimsoll_writer SET epoch = greatest(epoch, %(lost)s) + 1 + (random() * 1e6)::bigint,
    accepted = CASE WHEN %(lost)s > 0 THEN greatest(epoch, %(lost)s) + 1 ELSE accepted END,
    server = %(server)s
RETURNING epoch, seq
"""
"""By chance, so that no other takeover is of the same epoch where a replica took over that lacks this one.

`accepted` tells servers that have seen lost writes, of epochs below it, that the journal goes on without
them.
"""
EXTENT = """
SELECT coalesce(min(seq), 1), coalesce(sum(octet_length(changes) + octet_length(keys)), 0)::bigint,
    coalesce(max(seq), 0), (SELECT seq FROM plimsoll_writer)
FROM plimsoll_journal
"""
LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
REPLICAS = """
SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication
"""
REPLICAS_S = 30.0
RISK = (
    "replicas, none of them synchronous (synchronous_standby_names): if one takes over, the last claims can "
    "be lost"
)
LISTED_MAX = 5
UNKNOWN = ("08", "57")
"""Classes of SQLSTATE after which a commit may have been done: the connection or the server ended."""

PATIENT = (
    "SET idle_session_timeout = '10s'",
    "SET idle_in_transaction_session_timeout = '10s'",
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
)
"""Before the whole journal is loaded, which may take longer than the session may be idle."""
AGAIN_STRICT = (
    "COMMIT",
    "RESET idle_session_timeout",
    "RESET idle_in_transaction_session_timeout",
)
POOLED = (
    "a pooler stands before it, which does not pass the session's settings on, so the lock of a server that "
    "is stopped or cut off would stay; in transaction mode it even gives the lock to several servers",
    "connect to PostgreSQL itself",
)
WITHDRAWN = "canceling wait for synchronous replication"
PUT_BACK = "another server has taken over, or a backup was restored under this one"


class Role(Enum):
    """What a server does. LOST: the database has less than the server has seen of it."""

    STANDBY = "standby"
    ACTIVE = "active"
    LOST = "lost"


class UnknownOutcome(DatabaseTimeout):
    """PostgreSQL did not say whether the write is committed."""

    def __init__(self, path: Path, reason: str) -> None:
        DatabaseError.__init__(
            self,
            path,
            f"{path} did not say whether the write is committed ({reason}); the outcome is unknown.",
        )
        self.begun = True


class _NoStatements(Transaction):
    """What the jobs of the core get in place of a transaction: they work on drafts."""

    def __init__(self) -> None:
        pass

    def _run(self, job: Job[T]) -> T:
        return job(self)


class PostgresHome:
    """See `Home` and the module. `server` is the address at which clients reach this server."""

    disk_full = False
    is_shared = True

    def __init__(
        self,
        dsn: str,
        server: str,
        *,
        accept_loss: bool = False,
        state_dir: Path | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Connect, and make the tables if they are missing.

        The server asks for the role of the active one once it `leads`. What it sees of the journal is in
        SEEN_FILE in the `state_dir`, for its next start. Raises DatabaseError, with a remedy, where this
        database or the directory cannot be used.
        """
        self._dsn = dsn
        self._server = server
        self._accept_loss = accept_loss
        self._leads = leads
        self.path = self.place = path_of(dsn)
        self.epoch = 0
        self.role = Role.STANDBY
        self.active_server: str | None = None
        self._seen = (0, 0)
        """Epoch and seq of the newest row that this server has written or followed."""
        self._read = (0, 0)
        """Those of the newest row that it has read, which it may have to compare with `_seen` yet."""
        self._has_followed = False
        self._told_active: str | None = None
        """The address of the active server that the log named last."""
        self._risk = ""
        self._replicas_due = 0.0
        self._lost_epoch = 0
        """That of the newest write that the journal has lost, until this server goes on without it."""
        self._reason = "it has just started"
        self._alive_at = 0.0
        self._pending: list[tuple[Row, int]] = []
        self._withdrawn = False
        self._loss = ""
        self._mutex = threading.RLock()
        """Held while the role changes, and by a group of writes."""
        self._speaking = threading.Lock()
        """Held by a statement, so that no other thread closes the connection meanwhile."""
        self._ending = threading.Event()
        self._store: Follower | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._seen_file = None if state_dir is None else state_dir / SEEN_FILE
        self._lock: int | None = None
        self._id = 0
        """That of the journal that this server has seen, 0 for none."""
        try:
            self._recall()
            self._connect()
            identity, self.created_at = self._of_writer("SELECT id, created_at FROM plimsoll_writer")
        except psycopg.Error as error:
            self._unlock()
            raise self._unusable(error) from error
        except BaseException:
            self._disconnect()
            self._unlock()
            raise
        self._id = self._id or identity
        self._writer = GroupWriter("journal", self._run_group)
        self._thread = threading.Thread(target=self._keep, name="journal-role", daemon=True)
        self._memory = threading.Thread(target=self._remember, name="journal-seen", daemon=True)

    # -- Home --

    @property
    def is_active(self) -> bool:
        """Whether no other server can be active now: an answer of this one is not old."""
        if self.role is not Role.ACTIVE or time.monotonic() >= self._alive_at + LEASE_S:
            return False
        # PostgreSQL says something unasked when it ends the session.
        if not self._speaking.acquire(blocking=False):
            return True  # the answer to the statement under way will say if it has
        try:
            if self._connection is None:
                return False
            session = select.poll()
            session.register(self._connection, select.POLLIN)
            return not session.poll(0)
        except psycopg.OperationalError:
            return False  # psycopg knows it already
        finally:
            self._speaking.release()

    @property
    def busy_s(self) -> float:
        """See `Home.busy_s`."""
        return self._writer.busy_s

    @property
    def told(self) -> Mapping[str, str]:
        """See `Home.told`."""
        risk = {RISK_HEADER: f"the database has {self._risk}"} if self._risk else {}
        return {KEYS_HEADER: str(KEPT_S), JOURNAL_HEADER: str(self._id), **risk}

    def load(self, work: Callable[[], T]) -> T:
        """See `Home.load`."""
        # All of it as of one moment: the active server sweeps rows meanwhile.
        try:
            for statement in PATIENT:
                self._execute(statement, None)
            loaded = work()
            for statement in AGAIN_STRICT:
                self._execute(statement, None)
        except psycopg.Error as error:
            self._disconnect()
            raise self._unusable(error) from error
        except BaseException:
            self._disconnect()
            raise
        return loaded

    def admit(self) -> None:
        """See `Home.admit`. Raises NotActive."""
        if self.role is not Role.ACTIVE:
            raise self._not_active()

    def submit(
        self, job: Job[T], *, releases: bool = False, tell: Callable[[], None] | None = None
    ) -> Ticket[T]:
        """See `SqliteFile.submit`. Raises NotActive."""
        if self._ending.is_set():
            raise DatabaseClosed(self.path)
        self.admit()
        epoch = self.epoch

        def of_this_epoch(transaction: Transaction) -> T:
            # Another server may have done the request meanwhile, and this one be active again: the key of the
            # request was looked for before.
            if self.epoch != epoch:
                raise self._not_active()
            return job(transaction)

        ticket = Ticket(
            of_this_epoch,
            releases,
            lambda wait_s, begun: DatabaseTimeout(self.path, wait_s, begun=begun, cause=SILENT),
            tell,
        )
        self._writer.put(ticket)
        return ticket

    def join(self, store: Follower) -> None:
        """Let the store take part, and begin to ask for the role of the active server."""
        self._store = store
        self._thread.start()
        self._memory.start()

    def rows(self, after: int, limit: int) -> list[Row]:
        """See `Home.rows`."""
        columns = (
            "SELECT seq, epoch, changes, keys FROM plimsoll_journal WHERE seq > %s ORDER BY seq LIMIT %s"
        )
        found = [Row._make(row) for row in self._query(columns, after, limit)]
        if found and found[-1].seq > self._read[1]:
            self._read = found[-1].epoch, found[-1].seq
        return found

    def extent(self) -> tuple[int, int]:
        """See `Home.extent`."""
        ((first, size, last, written),) = self._query(EXTENT)
        self._check_last(last, written)
        return first, size

    def append(self, row: Row, first: int) -> None:
        """See `Home.append`; `_run_group` sends it."""
        self._pending.append((row, first))

    def damaged(self, finding: str) -> DatabaseError:
        """See `Home.damaged`."""
        return DatabaseError(
            self.path, f"The journal in {self.path} is damaged ({finding}): restore a backup of the database."
        )

    def close(self) -> None:
        """Run the queued jobs, and leave the role to another server; idempotent.

        Raises DatabaseTimeout where a statement does not come back: it is not cancelled, and ends with the
        process.
        """
        if self._ending.is_set():
            return
        self._ending.set()
        until = time.monotonic() + CLOSE_S
        is_idle = self._writer.stop(CLOSE_S)
        for thread in (self._thread, self._memory):
            if thread.is_alive():
                thread.join(max(until - time.monotonic(), PING_S))
        if self._thread.is_alive() or not is_idle:
            raise DatabaseTimeout(self.path, CLOSE_S, cause=SILENT)
        self._disconnect()
        self._unlock()

    # -- the session --

    def _connect(self) -> None:
        given = conninfo_to_dict(self._dsn)
        settings = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
        options = f"{given.get('options') or ''} {settings}".strip()
        defaults = {"target_session_attrs": "read-write", "application_name": "plimsoll", **CLIENT}
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            options=options,
            **{name: value for name, value in defaults.items() if name not in given},  # type: ignore[arg-type]
        )
        connection.add_notice_handler(self._notice)
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        """Make the tables if need be. Raises DatabaseError where the database keeps no promise."""

        def shown(name: str) -> str:
            row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            return str(row[0]) if row else ""

        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise self._refused(f"its encoding is {encoding}", "make one with ENCODING 'UTF8'")
        if shown("idle_session_timeout") != SESSION["idle_session_timeout"]:
            raise self._refused(*POOLED)
        for name, wrong in (("fsync", ("off",)), ("synchronous_commit", ("off", "local"))):
            if shown(name) in wrong:
                raise self._refused(
                    f"it has {name} = {shown(name)}, and so loses acknowledged claims", f"set {name} = on"
                )
        connection.execute("SET synchronous_commit = on")  # also after a reload
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (TABLES_LOCK,))
            made = connection.execute("SELECT to_regclass('plimsoll_writer')").fetchone()
            if made is None or made[0] is None:
                connection.execute(TABLES)
        newer = connection.execute("SELECT 1 FROM plimsoll_writer WHERE format > %s", (FORMAT,))
        if newer.fetchone() is not None:
            raise self._refused("a newer version wrote its journal", "upgrade this server")

    def _refused(self, reason: str, remedy: str) -> DatabaseError:
        return DatabaseError(self.path, f"{self.path} cannot have the journal: {reason}; {remedy}.")

    def _unusable(self, error: psycopg.Error) -> DatabaseError:
        """The error for a database that cannot be used at the start."""
        reason = " ".join(str(error).split())
        if "unsupported startup parameter" in reason:
            return self._refused(*POOLED)
        if "idle_session_timeout" in reason:  # the one setting of the session that came with 14
            return self._refused("it is older than PostgreSQL 14", "upgrade it")
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            return self._refused(
                reason,
                "let its user create tables there, or own plimsoll_writer and plimsoll_journal",
            )
        return self._refused(reason, "check the address after --journal, the user's rights, and the database")

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if WITHDRAWN in (notice.message_primary or ""):
            self._withdrawn = True

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._execute(statement, parameters or None).fetchall()

    def _of_writer(self, statement: str, parameters: Any = None) -> tuple[Any, ...]:
        """What the statement says of the row of plimsoll_writer. Raises DatabaseError if it is not one."""
        found = self._execute(statement, parameters).fetchall()
        if len(found) != 1:
            rows = f"{len(found)} rows" if found else "no row"
            raise self.damaged(f"plimsoll_writer has {rows}, not one")
        return tuple(found[0])

    def _check_last(self, last: int, written: int) -> None:
        """Raises DatabaseError where the row that was written last is not the last one that is there."""
        if last != written:
            raise self.damaged(f"plimsoll_writer is at write {written}, and the last row is {last}")

    def _execute(self, statement: str, parameters: Any, **how: bool) -> psycopg.Cursor[Any]:
        sent_at = time.monotonic()
        with self._speaking:
            if self._connection is None:
                raise psycopg.OperationalError("there is no connection")
            cursor = self._connection.execute(statement, parameters, **how)
        self._alive_at = sent_at
        return cursor

    def _disconnect(self) -> None:
        with self._speaking:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- what this server has seen --

    def _recall(self) -> None:
        """Know what this server had seen before its start."""
        if self._seen_file is None:
            LOG.warning(
                "What this server sees of %s is in its memory alone: if the database loses writes and this "
                "server is restarted, it does not know. Give it a --state-dir.",
                self.path,
            )
            return
        try:
            make_directory(self._seen_file.parent)
            check_accepts_files(self._seen_file.parent)
            self._lock = take_lock(self._seen_file.with_suffix(".lock"))
            if self._seen_file.exists():
                seen = _SEEN(json.loads(self._seen_file.read_text()), "it")
                self._id, self._seen = seen["journal"], (seen["epoch"], seen["seq"])
        except LockHeld as error:
            raise DatabaseError(
                self._seen_file,
                f"Another server (process {error.pid}) has the directory {self._seen_file.parent}: give each "
                "server a --state-dir of its own.",
            ) from error
        except OSError as error:
            raise DatabaseUnwritable(self._seen_file, str(error.strerror), "see to its directory") from error
        except (ValueError, RecursionError, Invalid) as error:
            raise DatabaseError(
                self._seen_file,
                f"{self._seen_file} does not say what this server has seen of its journal ({error}). "
                f"Remove it if nothing is missing in {self.path}.",
            ) from error

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remember(self) -> None:
        """Save what this server has seen, on a thread of its own, since the disk may be slow."""
        saved, is_ending = self._seen, False
        while self._seen_file is not None and not is_ending:
            is_ending = self._ending.wait(REMEMBER_S)
            seen, identity = self._seen, self._id
            # The role is read last: a server that waits for --accept-loss does so after a restart, too.
            if seen != saved and self.role is not Role.LOST:
                told = {"journal": identity, "epoch": seen[0], "seq": seen[1]}
                text = json.dumps({"about": ABOUT_SEEN, "database": str(self.path), **told}, indent=1)
                try:
                    write_atomically(self._seen_file, f"{text}\n")
                except OSError as error:
                    LOG.warning("%s cannot be written: %s.", self._seen_file, error.strerror)
                saved = seen

    # -- the role, on a thread of its own --

    def _keep(self) -> None:
        pause_s = 0.0
        while not self._ending.wait(pause_s):
            connection = self._connection
            try:
                if self.role is Role.ACTIVE:
                    # Without the mutex: the rules of a group may take longer than the session may be idle.
                    self._ping()
                    pause_s = PING_S
                    continue
                with self._mutex:
                    if self._connection is None:
                        self._connect()
                    self._follow()
                pause_s = POLL_S
            except Exception as error:
                if not isinstance(error, psycopg.Error | DatabaseError):
                    LOG.exception("The role of this server failed")  # the thread must go on
                with self._mutex:
                    if self._connection is connection or connection is None:
                        self._leave(" ".join(str(error).split()))
                pause_s = AWAY_S if connection is None else 0.0

    def _follow(self) -> None:
        """Read what others wrote, and take over if no server is active."""
        assert self._store is not None
        is_lost = self.role is Role.LOST
        locked, identity, seq, last, server, accepted = self._of_writer(
            LOOK if is_lost or not self._leads() else POLL
        )
        # Another session than a server's may have the lock: then this one's name is that of the last one.
        self.active_server = None if locked or server == self._server else server
        if is_lost and (self._accept_loss or accepted > self._lost_epoch):
            self.role = Role.STANDBY
            if accepted > self._lost_epoch:
                self._lost_epoch = 0
                LOG.warning(
                    "Another server went on without the lost writes of %s; this one follows it.", self.path
                )
        epoch, seen = self._seen
        of_seen = self._query("SELECT epoch FROM plimsoll_journal WHERE seq = %s", seen)
        if identity != self._id or seq < seen or of_seen not in ([], [(epoch,)]):
            what, remedy = _loss_text(self.path, seq, seen, is_other=identity != self._id)
            told, self._loss = self._loss, f"{what} {remedy}"
            self.role, self._lost_epoch = Role.LOST, max(epoch, self._lost_epoch)
            self._id, self._seen, self._read = identity, (0, 0), (0, 0)
            # Another server may have been told to go on: it needs the lock, if this one has it.
            self._query("SELECT pg_advisory_unlock_all()")
            missing = self._store.follow(anew=True)
            self._seen = self._read
            none = "none" if self._has_followed else "not known, as this server has been started since"
            self._loss = f"{what} Missing claims: {first_few(missing, LISTED_MAX) or none}. {remedy}"
            if self._loss != told:
                LOG.error("%s Missing claims: %s. %s", what, ", ".join(missing) or none, remedy)
            return
        self._check_last(last, seq)
        began = time.monotonic()
        self._store.follow()
        if (took_s := time.monotonic() - began) >= BEHIND_S:
            LOG.warning("Reads at this server were up to %.0f s old: %s", took_s, BEHIND)
        self._has_followed, self._seen = True, max(self._seen, self._read, key=itemgetter(1))
        if not locked:
            if self.active_server not in (None, self._told_active):
                self._told_active = self.active_server
                LOG.info(ACTIVE_ONE, self.path, self.active_server)
            return
        if self._query(LOCKS) != [(1,)]:
            raise self._refused("another session has the lock of this one", "connect without a pooler")
        self._withdrawn = False
        # What is lost may be newer than what this server saw before it was started to go on without it.
        taking = {"lost": self._lost_epoch or int(self._accept_loss), "server": self._server}
        self.epoch, seq = self._of_writer(TAKE_OVER, taking)
        if self._withdrawn:  # what it found in the database may be in no replica
            raise UnknownOutcome(self.path, WITHDRAWN)
        self._store.take_over()
        self._seen = max(self._seen, self._read, key=itemgetter(1))
        if self._seen[1] != seq:
            raise self.damaged(f"write {seq} is missing")
        self.role, self._lost_epoch, self._told_active = Role.ACTIVE, 0, None
        LOG.info("This server is active now, at write %d of %s.", seq, self.path)
        self._replicas_due = 0.0
        gc.freeze()  # as at the start of a server: what it has followed as a standby is there to stay

    def _ping(self) -> None:
        """Keep the session alive, see that the journal is what it was, and what a failover would lose.

        Raises DatabaseError where the journal is that of another server, or has less than before.
        """
        epoch, seen = self.epoch, self._seen[1]
        found, seq, identity = self._of_writer(PING)
        if self.role is Role.ACTIVE and (found != epoch or seq < seen or identity != self._id):
            raise DatabaseError(self.path, PUT_BACK)
        if time.monotonic() < self._replicas_due:
            return
        self._replicas_due = time.monotonic() + REPLICAS_S
        ((replicas, synchronous),) = self._query(REPLICAS)
        risk = RISK if replicas and not synchronous else ""
        if risk and not self._risk:
            LOG.warning("%s has %s.", self.path, RISK)
        self._risk = risk

    def _leave(self, reason: str) -> None:
        """Be a standby until the database says otherwise; the mutex is held."""
        reason = reason.rstrip(".")
        if self.role is Role.ACTIVE:
            self.role = Role.STANDBY
        if reason != self._reason:
            LOG.warning("This server is a standby of %s: %s.", self.path, reason)
        self._reason, self.active_server = reason, None
        self._disconnect()

    def _not_active(self) -> NotActive:
        if self.role is Role.LOST:
            return NotActive(self.path, self._loss)
        there = f"none is active now ({self._reason})"
        if self.active_server:
            there = f"the active one is at {self.active_server}"
        return NotActive(self.path, f"This server is a standby of {self.path}, and {there}; try again.")

    # -- on the writer thread --

    def _run_group(self, tickets: list[Ticket[Any]]) -> None:
        with self._mutex:
            error = self._not_active() if self.role is not Role.ACTIVE else self._try_group(tickets)
        for ticket in tickets:
            if error is None:
                ticket.answer()
            else:
                ticket.fail(error)

    def _try_group(self, tickets: list[Ticket[Any]]) -> DatabaseError | None:
        """Run the tickets, add their row; after an error nothing has changed, or the outcome is unknown."""
        assert self._store is not None
        self._pending.clear()
        failure: DatabaseError
        try:
            for ticket in tickets:
                ticket.run(_NoStatements())
            self._store.flush(_NoStatements())
            for row, first in self._pending:
                self._send(row, first)
        except DatabaseError as error:
            failure = error
        except psycopg.Error as error:  # in a read before the write
            self._leave(" ".join(str(error).split()))
            failure = self._not_active()
        except Exception as error:  # noqa: BLE001 - a mistake in a rule must not end the writer thread
            failure = DatabaseError(self.path, f"{self.path}: the write failed unexpectedly ({error!r}).")
            failure.__cause__ = error
        else:
            self._store.publish()
            return None
        self._store.discard()
        return failure

    def _send(self, row: Row, first: int) -> None:
        """Raises UnknownOutcome, NotActive and DatabaseUnwritable."""
        self._withdrawn = False
        try:
            added = self._execute(APPEND, {**row._asdict(), "first": first}, prepare=True).rowcount
        except psycopg.Error as error:
            reason = " ".join(str(error).split())
            has_ended = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
            if has_ended or error.sqlstate is None or error.sqlstate[:2] in UNKNOWN:
                self._leave(reason)
                raise UnknownOutcome(self.path, reason) from error
            is_full = isinstance(error, psycopg.errors.DiskFull)
            remedy = "make space on the database's disk" if is_full else "see to the database"
            raise DatabaseUnwritable(self.path, reason, remedy) from error
        if self._withdrawn:
            self._leave(WITHDRAWN)
            raise UnknownOutcome(self.path, WITHDRAWN)
        if not added:
            self._leave(PUT_BACK)
            raise self._not_active()
        self._seen = row.epoch, row.seq


def _loss_text(path: Path, seq: int, seen: int, *, is_other: bool) -> tuple[str, str]:
    """Two sentences: that the journal is not the one that this server has seen, and what to do."""
    if is_other:
        return (
            f"{path} has another journal than this server has seen before ({SEEN_FILE} in its --state-dir).",
            "Check the address after --journal; if the database was made anew, start the servers with "
            "--accept-loss.",
        )
    found = f"is at write {seq}" if seq < seen else f"has another write {seen}"
    return (
        f"{path} {found}, and this server has seen write {seen}: a replica without the last writes took "
        "over, or a backup was restored.",
        "To go on without them, start the servers with --accept-loss.",
    )


def path_of(dsn: str) -> Path:
    """The database without its secrets, for sentences. Raises DatabaseError where it is no DSN."""
    try:
        given = conninfo_to_dict(dsn)
        if not given:
            raise psycopg.ProgrammingError("it is empty")
    except psycopg.Error as error:
        reason = " ".join(str(error).split())
        raise DatabaseError(
            Path("postgresql"),
            f"--journal is no address of a PostgreSQL database ({reason}); write postgresql://USER@HOST/DATABASE.",
        ) from error
    port = f":{given['port']}" if given.get("port") else ""
    return Path(f"postgresql:/{given.get('host') or ''}{port}/{given.get('dbname') or ''}")
