"""What the store promises on every home of its journal, on one that fails, and after a sweep."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.embedded_api import Api, new
from kits.journals import NEEDS_POSTGRESQL, fresh_journal, until
from kits.tracker import fast_directory
from simulation.journal import Database, MemoryHome

from agent.durable.errors import DatabaseError
from agent.durable.group_commit import Job, Ticket
from agent.placement.embedded import Core
from agent.placement.embedded import store as of_store
from agent.placement.embedded.model import (
    ConsumerRecord,
    Draft,
    InventoryRecord,
    Model,
    ProviderRecord,
)
from agent.placement.embedded.store import (
    Follower,
    Home,
    Row,
    SqliteHome,
    Store,
    decode,
    encode,
    encode_consumer,
)

T = TypeVar("T")
OpenHome = Callable[[], Home]


class AloneAtDatabase(MemoryHome):
    """The simulator's home, for a server that is active once it is open."""

    def join(self, store: Follower) -> None:
        super().join(store)
        self.take_over()


@pytest.fixture(params=["sqlite", "memory", pytest.param("postgresql", marks=NEEDS_POSTGRESQL)])
def open_home(request: pytest.FixtureRequest) -> Iterator[OpenHome]:
    if request.param == "postgresql":
        from agent.placement.embedded.postgres import PostgresHome

        with fresh_journal() as dsn:
            yield lambda: PostgresHome(dsn, "http://here")
        return
    if request.param == "memory":
        database = Database()
        yield lambda: AloneAtDatabase(database, is_shared=True)
        return
    with fast_directory() as folder:
        yield lambda: SqliteHome.at(Path(folder))


def opened(open_home: OpenHome) -> Core:
    core = Core(Store(open_home()))
    until(lambda: core.takes_writes)
    return core


def rows(core: Core) -> list[Row]:
    return in_writer(core, lambda: core._store.home.rows(0, 1 << 20))


def in_writer(core: Core, work: Callable[[], T]) -> T:
    return core._store.home.submit(lambda _: work()).result()


def busy(api: Api, chance: random.Random, steps: int) -> None:
    """Claims and releases, and now and then a change of everything else."""
    hosts = [api.provider(f"host{number}-{new()}", {"VCPU": 10**6}) for number in range(3)]
    held: list[str] = []
    for _ in range(steps):
        kind = chance.randrange(20)
        if kind < 12 or not held:
            held.append(new())
            assert api.claim(held[-1], {chance.choice(hosts): {"VCPU": 1}}).status == 204
        elif kind < 18:
            api.done("DELETE", f"/allocations/{held.pop(chance.randrange(len(held)))}")
        elif kind == 18:
            hosts.append(api.provider(f"host{new()}", {"VCPU": 10**6}))
            api.set_traits(hosts[0], *chance.sample(["HW_NUMA_ROOT", "COMPUTE_NODE", "CUSTOM_A"], 2))
        else:
            api.done("DELETE", f"/resource_providers/{api.provider(new())}")
            api.done("PUT", f"/traits/CUSTOM_T{chance.randrange(5)}")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is full soon."""
    monkeypatch.setattr(of_store, "SLACK_BYTES", 2000)
    monkeypatch.setattr(of_store, "ROWS_AT_ONCE", 5)


# Every home


def test_what_is_acknowledged_is_there_after_a_restart(open_home: OpenHome) -> None:
    with closing(opened(open_home)) as core:
        api = Api(core)
        api.done("PUT", "/traits/CUSTOM_A")
        busy(api, random.Random(1), 60)
        before, providers = api.whole(), list(core._store.model.providers)
    with closing(opened(open_home)) as core:
        assert Api(core).whole() == before
        assert list(core._store.model.providers) == providers


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("seed", range(4))
def test_a_swept_journal_is_short_and_says_the_same(open_home: OpenHome, seed: int) -> None:
    with closing(opened(open_home)) as core:
        api = Api(core)
        api.done("PUT", "/traits/CUSTOM_A")
        for _ in range(4):
            busy(api, random.Random(seed), 120)
            left = rows(core)
            assert [row.seq for row in left] == list(range(left[0].seq, core._store._seq + 1)), "dense"
            assert sum(row.bytes for row in left) == core._store._bytes
        assert left[0].seq > 200
        assert core._store._bytes < core._store._bytes_max + 4000
        before, providers = api.whole(), list(core._store.model.providers)
    with closing(opened(open_home)) as core:
        assert Api(core).whole() == before
        assert list(core._store.model.providers) == providers, "in the order in which they were made"


@pytest.mark.usefixtures("short")
def test_a_server_that_takes_over_sweeps_nothing_of_a_journal_that_is_all_content() -> None:
    """It was opened when the journal was empty; what it may have follows what it read since."""
    database = Database()
    with (
        closing(opened(lambda: AloneAtDatabase(database, is_shared=True))) as core,
        closing(Core(Store(MemoryHome(database, is_shared=True)))) as standby,
    ):
        for number in range(40):
            Api(core).provider(f"host{number}", {"VCPU": 1})
        home: Any = standby._store.home
        home.take_over()
        first = home.rows(0, 1)[0].seq
        Api(standby).provider("last")
        assert home.rows(0, 1)[0].seq == first


@pytest.mark.usefixtures("short")
def test_a_server_that_swept_has_its_role_again_without_another_one_between() -> None:
    """Its session ended for a moment, and no other server was there to take over."""
    database = Database()
    with closing(opened(lambda: AloneAtDatabase(database))) as core:
        Api(core).done("PUT", "/traits/CUSTOM_A")
    with closing(opened(lambda: AloneAtDatabase(database))) as core:
        api = Api(core)
        busy(api, random.Random(1), 240)
        assert rows(core)[0].seq > 1, "the first row, which it has read, is swept"
        before = api.whole()
        home: Any = core._store.home
        home.take_over()
        assert api.whole() == before
        api.done("PUT", "/traits/CUSTOM_LATER")


def test_a_repeated_request_is_answered_with_what_became_of_it_before_the_restart(
    open_home: OpenHome,
) -> None:
    def ask(core: Core, name: str, key: str) -> Any:
        answer = core.request("POST", "/resource_providers", {"name": name}, microversion="1.39", key=key)
        for error in (answer.body or {}).get("errors", ()):
            error.pop("request_id")
        return answer.status, answer.body

    with closing(opened(open_home)) as core:
        first = ask(core, "host", "key")
        refused = ask(core, "host", "other")
    assert (first[0], refused[0]) == (200, 409)
    with closing(opened(open_home)) as core:
        assert ask(core, "host", "key") == first
        assert ask(core, "else", "key")[0] == 422, "the key belongs to another write"
        again = ask(core, "host", "other")
        if core._store.home.is_shared:
            assert again == refused, "a copy of the request may have been on the way"
            core.request("DELETE", f"/resource_providers/{first[1]['uuid']}", microversion="1.39")
            assert ask(core, "host", "other")[0] == 409


@pytest.mark.usefixtures("short")
def test_a_sweep_keeps_the_newest_keys(open_home: OpenHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(open_home)) as core:
        core._store._keyed._kept_max = 20
        for number in range(100):
            assert core.request("PUT", f"/traits/CUSTOM_{number}", microversion="1.39", key=f"{number}")
        assert rows(core)[0].seq > 20
    with closing(opened(open_home)) as core:
        known = {key for row in rows(core) for key in json.loads(row.keys)}
        assert {f"{number}" for number in range(80, 100)} <= known
        assert len(known) < 60
        answer = core.request("PUT", "/traits/CUSTOM_90", microversion="1.39", key="90")
        assert answer.status == 201, "as the first time"


@pytest.mark.usefixtures("short")
def test_a_copy_that_comes_after_its_key_was_forgotten_is_refused(open_home: OpenHome) -> None:
    """The network held it while its write was repeated, done, and released."""

    def seen(core: Core) -> str:
        return core.request("GET", "/", microversion="1.39").headers["plimsoll-seen"]

    with closing(opened(open_home)) as core:
        core._store._keyed._kept_max = 20
        path, host = f"/allocations/{new()}", Api(core).provider("host", {"VCPU": 8})
        claim = {"allocations": {host: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u"}
        claim |= {"consumer_generation": None, "consumer_type": "INSTANCE"}
        of_claim = {"microversion": "1.39", "key": f"one@{seen(core)}"}
        assert [core.request("PUT", path, claim, **of_claim).status for _ in range(2)] == [204, 204]
        assert core.request("DELETE", path, microversion="1.39").status == 204
        for number in range(100):
            key = f"{number}@{seen(core)}" if number % 2 else f"{number}"
            assert core.request("PUT", f"/traits/CUSTOM_{number}", microversion="1.39", key=key).status == 201
        assert core.request("PUT", path, claim, **of_claim).status == 412
    with closing(opened(open_home)) as core:
        assert core.request("PUT", path, claim, **of_claim).status == 412
        assert core.request("GET", path, microversion="1.39").body["allocations"] == {}
        new_key = f"two@{seen(core)}"
        assert core.request("PUT", path, claim, microversion="1.39", key=new_key).status == 204


def test_a_long_row_is_read_as_it_was_written(open_home: OpenHome) -> None:
    with closing(opened(open_home)) as core:
        api = Api(core)
        host = api.provider("host", {"VCPU": 1000})
        claim = {"allocations": {host: {"resources": {"VCPU": 1}}}, "project_id": "p", "user_id": "u"}
        claim |= {"consumer_generation": None, "consumer_type": "INSTANCE"}
        api.done("POST", "/allocations", {new(): claim for _ in range(300)})
        before = api.whole()
    with closing(opened(open_home)) as core:
        assert Api(core).whole() == before


def three_providers_and_then_one(open_home: OpenHome, first: int) -> None:
    """With the last one the rows before the `first` are removed, of which no row tells."""
    with closing(opened(open_home)) as core:
        for name in "abc":
            Api(core).provider(name)
        append = core._store.home.append
        core._store.home.append = lambda row, _: append(row, first)  # type: ignore[method-assign]
        Api(core).provider("d")


def test_a_journal_without_its_first_rows_is_refused(open_home: OpenHome) -> None:
    three_providers_and_then_one(open_home, 3)
    with pytest.raises(DatabaseError, match=r"damaged \(its rows 1 to 2 are missing\).* backup"):
        opened(open_home)


def keep_rows(home: Home, last: int) -> None:
    """Remove those after it, as a person does by hand."""
    if isinstance(home, SqliteHome):
        home.run(lambda transaction: transaction.execute("DELETE FROM journal WHERE seq > ?", (last,)))
    elif isinstance(home, MemoryHome):
        for seq in [seq for seq in home.database.rows if seq > last]:
            del home.database.rows[seq]
    else:
        home._execute("DELETE FROM plimsoll_journal WHERE seq > %s", (last,))  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["[]", "[{}]", '[{"f":1}]'])
def test_a_row_that_has_lost_its_changes_is_not_taken_for_what_was_written(
    open_home: OpenHome, by: str
) -> None:
    with closing(opened(open_home)) as core:
        for name in "abcd":
            Api(core).provider(name)
        home = core._store.home
        if isinstance(home, SqliteHome):
            change = "UPDATE journal SET changes = ? WHERE seq = 2"
            home.run(lambda transaction: transaction.execute(change, (by,)))
        elif isinstance(home, MemoryHome):
            home.database.rows[2] = home.database.rows[2]._replace(changes=by)
        else:
            change = "UPDATE plimsoll_journal SET changes = %s WHERE seq = 2"
            home._execute(change, (by,))  # type: ignore[attr-defined]
    with pytest.raises(DatabaseError, match=r"damaged \(a row .*: row 2 is not as it was written"):
        opened(open_home)


@pytest.mark.parametrize("last", [0, 2, 3])
def test_a_journal_without_its_last_rows_is_refused(open_home: OpenHome, last: int) -> None:
    with closing(opened(open_home)) as core:
        for name in "abcd":
            Api(core).provider(name)
        keep_rows(core._store.home, last)
    for _ in range(2):
        with pytest.raises(DatabaseError, match=rf"damaged \(.*\b({last}|{last + 1})\b.*\)"):
            opened(open_home)


@pytest.mark.parametrize("newer_before", [False, True])
def test_a_journal_that_does_not_say_what_its_first_row_is_is_carried_over(
    open_home: OpenHome, monkeypatch: pytest.MonkeyPatch, *, newer_before: bool
) -> None:
    """A server of an older version wrote the newest row, and may have swept what earlier rows name."""
    if newer_before:
        with closing(opened(open_home)) as core:
            Api(core).provider("swept")
            Api(core).provider("kept")
    with monkeypatch.context() as patch:
        patch.setattr(of_store, "FIRST", "unknown to an older version")
        three_providers_and_then_one(open_home, 2 if newer_before else 1)
    with closing(opened(open_home)) as core:
        names = [provider.name for provider in core._store.model.providers.values()]
        assert names == [*["kept"] * newer_before, "a", "b", "c", "d"]
        Api(core).provider("e")
        assert f'{{"f":{1 + newer_before},"b":' in rows(core)[-1].changes, "from now on it says so"


def test_the_file_stays_within_twice_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_store, "SLACK_BYTES", 50_000)
    with fast_directory() as folder, closing(Core.open(Path(folder))) as core:
        api, held = Api(core), list[str]()
        host = api.provider("host", {"VCPU": 10**6, "MEMORY_MB": 10**6, "VGPU": 10**6})
        for number in range(9000):
            held.append(new())
            assert api.claim(held[-1], {host: {"VCPU": 1, "MEMORY_MB": 1, "VGPU": 1}}).status == 204
            if len(held) > 3000:
                api.done("DELETE", f"/allocations/{held.pop(number * 7919 % 3000)}")
        consumers = core._store.model.consumers.values()
        content = sum(len(json.dumps({one.uuid: encode_consumer(one)})) for one in consumers)
        size = (Path(folder) / "placement.db").stat().st_size
        assert size < 2 * content + (256 << 10) + 50_000 * 2, (size, content)


# A home that fails


class FailingHome:
    """Has nothing, and takes nothing."""

    epoch, created_at, disk_full, is_shared = 1, 0.0, False, False
    active_server, busy_s = None, 0.0
    told: Mapping[str, str] = {}

    @property
    def is_active(self) -> bool:
        return self._inner.is_active

    def load(self, work: Callable[[], T]) -> T:
        return self._inner.load(work)

    def extent(self) -> tuple[int, int]:
        return 1, 0

    def admit(self) -> None:
        self._inner.admit()

    def __init__(self, inner: Home) -> None:
        self._inner = inner
        self.path, self.place = inner.path, inner.place
        self.closed = False

    def submit(
        self, job: Job[T], *, releases: bool = False, tell: Callable[[], None] | None = None
    ) -> Ticket[T]:
        return self._inner.submit(job, releases=releases, tell=tell)

    def join(self, store: Follower) -> None:
        self._inner.join(store)

    def rows(self, after: int, limit: int) -> list[Row]:
        return []

    def append(self, row: Row, first: int) -> None:
        raise OSError("no")

    def damaged(self, finding: str) -> DatabaseError:
        return self._inner.damaged(finding)

    def close(self) -> None:
        self.closed = True
        self._inner.close()


def test_what_cannot_be_written_has_not_happened(open_home: OpenHome) -> None:
    home = FailingHome(open_home())
    with closing(Core(Store(home))) as core:
        until(lambda: core.takes_writes)
        for _ in range(2):
            answer = core.request("POST", "/resource_providers", {"name": "host"}, microversion="1.39")
            assert answer.status == 503 and answer.headers["x-openstack-request-id"]
            assert not core._store.model.providers
    assert home.closed


def test_rows_that_cannot_be_read_are_told_and_the_home_is_closed(open_home: OpenHome) -> None:
    home = FailingHome(open_home())
    home.rows = lambda after, limit: [Row(1, 1, '[{"p":{"u":7}}]', "{}")]  # type: ignore[method-assign]
    with pytest.raises(DatabaseError, match="cannot be read"):
        Store(home)
    assert home.closed


# What a row says

NAMES = st.sampled_from("abcdef")
TIMES = st.floats(0, 2e9)
NUMBERS = st.integers(0, 2**31)
INVENTORIES = st.dictionaries(
    NAMES, st.builds(InventoryRecord, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TIMES, TIMES), max_size=3
)
SETS = st.frozensets(NAMES, max_size=3)
ALLOCATIONS = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.integers(1, 2**31), min_size=1, max_size=2), max_size=2
)


@st.composite
def drafts(draw: st.DrawFn, below: Model) -> Draft:
    draft = Draft(below, draw(TIMES))
    for uuid in draw(SETS):
        kind, old = draw(st.sampled_from(["raise", "put", "drop"])), draft.provider(uuid)
        if kind == "drop":
            draft.drop_provider(uuid)
        elif kind == "raise" and old is not None:
            draft.put_provider(old.at_next_generation(draw(TIMES)))
        else:
            parent = draw(st.none() | NAMES)
            parts = draw(st.tuples(NAMES, NUMBERS, st.just(parent), NAMES, INVENTORIES, SETS, SETS, TIMES))
            draft.put_provider(ProviderRecord(uuid, *parts))
    for uuid in draw(SETS):
        parts = draw(st.tuples(NAMES, NAMES, st.none() | NAMES, NUMBERS, ALLOCATIONS, TIMES))
        draft.put_consumer(uuid, draw(st.none() | st.just(ConsumerRecord(uuid, *parts))))
    for names in (draft.traits, draft.resource_classes):
        names.update(draw(st.dictionaries(NAMES, st.none() | TIMES, max_size=2)))
    return draft


@given(st.data())
def test_a_decoded_draft_does_what_the_encoded_one_does(data: st.DataObject) -> None:
    one, other = Model({}, {}), Model({}, {})
    for _ in range(data.draw(st.integers(1, 4))):
        draft = data.draw(drafts(one))
        changes = json.loads(json.dumps(encode(draft, one, {})))
        other.apply(decode(changes, other))
        one.apply(draft)
        for name in vars(one).keys() - {"lock"}:
            assert getattr(one, name) == getattr(other, name), name
