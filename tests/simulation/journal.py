"""Placement's journal: rows in memory, which one served core has for itself, or two share.

The stores, their rows and their models are the served core's own. What is simulated is the database: the
statement that adds a row if the server's epoch and seq are those of the journal, and what becomes of a server
meanwhile. A server that is loaded, or takes over, must know what the one before it had acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from agent.durable.errors import DatabaseDamaged, DatabaseError, DatabaseTimeout, DatabaseUnwritable
from agent.durable.group_commit import Job, Ticket
from agent.placement.embedded.core import Core
from agent.placement.embedded.model import Model
from agent.placement.embedded.store import KEPT_S, KEYS_HEADER, Follower, NotActive, Row, Store
from simulation.tasks import EPOCH, Process, Scheduler

T = TypeVar("T")

RESTART_S = 2.0
LEASE_S = 1.1
"""After so long the database ends the session of a server that is silent."""
_NO_STATEMENTS: Any = SimpleNamespace(_run=lambda job: job(None))


class RowMeets(StrEnum):
    """What the next row meets. The values complete the sentence "the server that writes the next row ..."."""

    DEATH_BEFORE = "is killed before it is written"
    DEATH_AFTER = "is killed after it is written, before it answers"
    TAKEOVER = "has lost its role to another one, and does not know it"


class ServerDied(BaseException):
    """The server was killed in a request, which may be done. No `except Exception` of the core catches it."""


class Database:
    """The rows, and the row of the writer."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.epoch = self.seq = 0

    def add(self, row: Row, first: int) -> bool:
        """Add the row and remove those before `first`; False where another server has the role."""
        if (row.epoch, row.seq) != (self.epoch, self.seq + 1):
            return False
        for seq in [seq for seq in self.rows if seq < first]:
            del self.rows[seq]
        self.rows[row.seq], self.seq = row, row.seq
        return True


class MemoryHome:
    """A server's session at the database; see `Home`. Each write is a group, and is done where it is asked.

    `meets` is called before a row is sent, and says what it meets.
    """

    disk_full = False
    busy_s = 0.0
    created_at = EPOCH
    path = place = Path("/placement")

    def __init__(
        self,
        database: Database,
        *,
        is_shared: bool = False,
        meets: Callable[[], RowMeets | None] = lambda: None,
    ) -> None:
        self.database = database
        self.is_shared = is_shared
        self.meets = meets
        self.epoch = 0
        self.active_server: str | None = None
        self.told: Mapping[str, str] = {KEYS_HEADER: str(KEPT_S)} if is_shared else {}
        self._has_role = False
        self._added: list[tuple[Row, int]] = []
        self._store: Follower | None = None

    @property
    def is_active(self) -> bool:
        return self._has_role and self.epoch == self.database.epoch

    def take_over(self) -> None:
        """Be the active server, also where another one is."""
        assert self._store is not None
        self.database.epoch += 1
        self.epoch = self.database.epoch
        self._store.take_over()
        self._has_role = True

    def load(self, work: Callable[[], T]) -> T:
        return work()

    def admit(self) -> None:
        if not self._has_role:
            raise NotActive(self.path, "This server is a standby.")

    def submit(
        self, job: Job[T], *, releases: bool = False, tell: Callable[[], None] | None = None
    ) -> Ticket[T]:
        self.admit()
        ticket = Ticket(job, releases, lambda wait_s, begun: DatabaseTimeout(self.path, wait_s, begun=begun))
        assert self._store is not None
        self._added.clear()
        ticket.run(_NO_STATEMENTS)
        try:
            self._store.flush(_NO_STATEMENTS)
        except Exception as error:  # noqa: BLE001 - as of the database
            self._store.discard()
            ticket.fail(DatabaseUnwritable(self.path, str(error)))
            return ticket
        met = self.meets() if self._added and self.is_active else None
        if met is RowMeets.DEATH_BEFORE or not all(self.database.add(*each) for each in self._added):
            self._store.discard()
            self._has_role = False
            if met is RowMeets.DEATH_BEFORE:
                raise ServerDied
            ticket.fail(NotActive(self.path, "Another server has taken over."))
            return ticket
        self._store.publish()
        if met is RowMeets.DEATH_AFTER:
            raise ServerDied
        ticket.answer()
        return ticket

    def join(self, store: Follower) -> None:
        self._store = store

    def rows(self, after: int, limit: int) -> list[Row]:
        return [row for seq, row in self.database.rows.items() if seq > after][:limit]

    def extent(self) -> tuple[int, int]:
        rows = self.database.rows
        if (last := max(rows, default=0)) != self.database.seq:
            raise self.damaged(f"row {last + 1} of the journal is missing")
        return next(iter(rows), 1), sum(row.bytes for row in rows.values())

    def append(self, row: Row, first: int) -> None:
        self._added.append((row, first))

    def damaged(self, finding: str) -> DatabaseError:
        return DatabaseDamaged(self.path, finding)

    def close(self) -> None:
        self._has_role = False


class Cluster:
    """The served cores over one database. `forgot`: what a server did not know that another had answered."""

    def __init__(self, scheduler: Scheduler, addresses: Iterable[str], trace: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._addresses = tuple(addresses)
        self._trace = trace
        self._supervisor = Process("the supervisor")
        self.database = Database()
        self.meets: deque[RowMeets] = deque()
        self.spared = False
        """Whether rows meet nothing now."""
        self.forgot: list[str] = []
        self.is_silent = [False for _ in self._addresses]
        self.is_dead = [False for _ in self._addresses]
        self._keys: dict[str, float] = {}
        """{idempotency key of a write that was answered: when it was first asked for}

        From then on a client repeats it for `KEPT_S` at most. The servers count from its row, which may be
        older than the answer: one that is killed between them leaves the answer to another server.
        """
        self._asked: dict[str, float] = {}
        self.active: int | None = None
        self._latest = 0
        """The last one that was active: what it knows is acknowledged."""
        self.cores: list[Core] = []
        for number in range(len(self._addresses)):
            self.cores.append(Core(self._store()))
            if number == 0:
                self._take_over(0)

    def _store(self) -> Store:
        def now() -> float:
            return EPOCH + self._scheduler.now

        clock: Any = SimpleNamespace(now=now, age_s=lambda stamp: now() - stamp)
        return Store(
            MemoryHome(self.database, is_shared=len(self._addresses) > 1, meets=self._next_meets), clock
        )

    def _next_meets(self) -> RowMeets | None:
        if self.spared or not self.meets:
            return None
        met = self.meets.popleft()
        other = self._other()
        if met is RowMeets.TAKEOVER and other is None:
            return None
        self._trace(f"the server of Placement that writes the next row {met.value}")
        if met is RowMeets.TAKEOVER and other is not None:
            self._take_over(other)
        return met

    @property
    def model(self) -> Model:
        """What is acknowledged."""
        return self.cores[self._latest]._store.model

    def request(self, at: int, method: str, *asked: Any, key: str | None = None, **how: Any) -> Any:
        """An answer of that server. Raises ServerDied where it is killed meanwhile."""
        core = self.cores[at]
        if key is not None:
            self._asked.setdefault(key, self._scheduler.now)
        if method == "GET" and not core._home.is_active:
            self._follow(core._store)  # as it does each 100 ms
        try:
            answer = core.request(method, *asked, key=key, **how)
        except ServerDied:
            self.kill(at)
            raise
        if key is not None and core._home.is_active:
            self._keys[key] = self._asked[key]
        return answer

    # Who is active

    def kill(self, at: int) -> None:
        """The server is started again soon."""
        if self.is_dead[at]:
            return
        self._trace(f"server {at + 1} of Placement is killed")
        self.is_dead[at], self.is_silent[at] = True, False
        if self.active == at:
            self.active = None
            self._soon(0.1, self.replace)
        self._soon(RESTART_S, lambda: self.start(at))

    def start(self, at: int) -> None:
        """It loads the journal, and is active if no other one is."""
        if self.is_dead[at]:
            store = self._store()
            self._compare(at, store)
            self.cores[at], self.is_dead[at] = Core(store), False
            self.replace()

    def silence(self, at: int) -> None:
        """The server is stopped; the database ends its session."""
        self.is_silent[at] = True

        def replaced() -> None:
            if self.is_silent[at] and self.active == at:
                self.active = None
                self.replace()

        self._soon(LEASE_S, replaced)

    def resume(self, at: int) -> None:
        self.is_silent[at] = False
        self.replace()

    def replace(self) -> None:
        """A server takes over if none is active."""
        other = self._other()
        if self.active is None and other is not None:
            self._take_over(other)

    def settle(self) -> None:
        """Each server runs, and one is active."""
        for at in range(len(self.cores)):
            self.start(at)
            self.resume(at)

    def _other(self) -> int | None:
        there = range(len(self.cores))
        return next(
            (at for at in there if at != self.active and not self.is_dead[at] | self.is_silent[at]), None
        )

    def _take_over(self, at: int) -> None:
        core = self.cores[at]
        home: Any = core._home
        home.take_over()
        self._compare(at, core._store)
        self.active = self._latest = at
        for each in self.cores:
            if each is not core:
                each._home.active_server = self._addresses[at]
        home.active_server = None

    def _follow(self, store: Store) -> None:
        store.follow()
        self._compare(self.cores.index(next(each for each in self.cores if each._store is store)), store)

    def _compare(self, at: int, store: Store) -> None:
        """The server knows what the latest active one has acknowledged, and nothing else."""
        of_latest = self.cores[self._latest]._store
        if store is of_latest:
            return
        was, now = of_latest.model, store.model
        old = self._scheduler.now - KEPT_S
        keys = [key for key, asked_at in self._keys.items() if asked_at > old]
        for what, differs in (
            ("the providers", list(was.providers.items()) != list(now.providers.items())),
            ("the consumers", was.consumers != now.consumers),
            ("the traits", was.traits != now.traits),
            ("the resource classes", was.resource_classes != now.resource_classes),
            ("the keys", any(store._keyed.get(key) != of_latest._keyed.get(key) for key in keys)),
        ):
            if differs:
                self.forgot.append(f"server {at + 1} does not know {what} that were acknowledged")

    def check(self) -> None:
        """As if a server were started now."""
        self._compare(self._latest, self._store())

    def _soon(self, seconds: float, do: Callable[[], None]) -> None:
        def happen() -> None:
            self._scheduler.sleep(seconds)
            do()

        self._scheduler.spawn("a server of Placement", self._supervisor, happen)
