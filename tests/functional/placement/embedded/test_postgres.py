"""The journal in PostgreSQL: what is refused, what is unknown, and what a server does about lost writes."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

psycopg = pytest.importorskip("psycopg")

from kits.embedded_api import Api, new  # noqa: E402
from kits.journals import END_SESSIONS, NEEDS_POSTGRESQL, fresh_journal, until  # noqa: E402
from kits.replicas import RUN, Cluster  # noqa: E402
from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: E402

from agent.durable.errors import DatabaseError, DatabaseTimeout  # noqa: E402
from agent.placement.embedded import Core, CoreResponse  # noqa: E402
from agent.placement.embedded.postgres import SESSION, PostgresHome, Role, path_of  # noqa: E402
from agent.placement.embedded.store import Row  # noqa: E402


def test_the_place_of_a_database_has_no_password() -> None:
    assert str(path_of("postgresql://u:secret@db.example:5433/core")) == "postgresql:/db.example:5433/core"
    for dsn in ("db.example", ""):
        with pytest.raises(DatabaseError, match="--journal is no address of a PostgreSQL database"):
            path_of(dsn)


pytestmark = NEEDS_POSTGRESQL


@pytest.fixture
def dsn() -> Iterator[str]:
    with fresh_journal() as dsn:
        yield dsn


def server(dsn: str, name: str = "one", *, accept_loss: bool = False, state_dir: Path | None = None) -> Core:
    return Core.open_shared(dsn, f"http://{name}", accept_loss=accept_loss, state_dir=state_dir)


def home(core: Core) -> PostgresHome:
    found = core._store.home
    assert isinstance(found, PostgresHome)
    return found


def run(dsn: str, *statements: str) -> int:
    """Returns how many rows the last one has."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [connection.execute(statement).rowcount for statement in statements][-1]


def end_sessions(dsn: str) -> None:
    run(dsn, END_SESSIONS)


# Refused


def refused(dsn: str, sentence: str) -> None:
    with pytest.raises(DatabaseError, match=sentence):
        server(dsn).close()


def test_a_database_that_is_away_is_refused_at_the_start(dsn: str) -> None:
    away = make_conninfo(dsn, host="/nowhere")
    refused(away, "cannot have the journal: .*/nowhere.*check the address after --journal")


def test_a_database_that_does_not_know_the_sessions_time_out_is_too_old(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came with PostgreSQL 14; this one does not know the name either."""
    monkeypatch.setitem(SESSION, "idle_session_timeout_of_14", "1s")
    refused(dsn, "it is older than PostgreSQL 14; upgrade it")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("synchronous_commit = off", "synchronous_commit = off, and so loses"),
        ("synchronous_commit = local", "synchronous_commit = local, and so loses"),
    ],
)
def test_a_setting_that_loses_claims_is_refused(dsn: str, setting: str, sentence: str) -> None:
    database = conninfo_to_dict(dsn)["dbname"]
    run(dsn, f"ALTER DATABASE {database} SET {setting}")
    try:
        refused(dsn, sentence)
    finally:
        run(dsn, f"ALTER DATABASE {database} RESET {setting.split()[0]}")


def test_a_reload_that_lets_commits_be_lost_concerns_no_server_that_runs(dsn: str) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        run(dsn, "ALTER SYSTEM SET synchronous_commit = off", "SELECT pg_reload_conf()")
        try:
            until(lambda: shown(dsn, "synchronous_commit") == "off")
            Api(core).provider("host")
            assert home(core)._query("SHOW synchronous_commit") == [("on",)]
        finally:
            run(dsn, "ALTER SYSTEM RESET synchronous_commit", "SELECT pg_reload_conf()")


def shown(dsn: str, setting: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
    return str(row[0]) if row else ""


def test_a_pooler_is_named_also_where_the_database_ends_idle_sessions_by_itself(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In transaction mode it gives the lock to several servers."""
    connect, database = psycopg.connect, conninfo_to_dict(dsn)["dbname"]

    def pooler(*arguments: object, options: str, **more: object) -> object:
        return connect(*arguments, **more)  # type: ignore[arg-type, call-overload]

    run(dsn, f"ALTER DATABASE {database} SET idle_session_timeout = '1s'")
    try:
        with monkeypatch.context() as patch:
            patch.setattr("agent.placement.embedded.postgres.psycopg.connect", pooler)
            refused(dsn, "a pooler stands before it")
    finally:
        run(dsn, f"ALTER DATABASE {database} RESET idle_session_timeout")


@pytest.mark.parametrize("is_told", [False, True])
def test_a_pooler_that_swallows_the_sessions_settings_or_refuses_them_is_named(
    dsn: str, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """PgBouncer, in either mode, with and without ignore_startup_parameters = options."""
    connect = psycopg.connect

    def pooler(*arguments: object, options: str, **more: object) -> object:
        if is_told:
            raise psycopg.OperationalError("FATAL: unsupported startup parameter: options")
        return connect(*arguments, **more)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr("agent.placement.embedded.postgres.psycopg.connect", pooler)
    refused(
        dsn, "a pooler stands before it, which does not pass the session's settings on.*PostgreSQL itself"
    )


POOLER = """
[databases]
{database} = host={folder} dbname={database} user=plimsoll
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
{hides}
"""


@pytest.mark.parametrize("hides", ["", "ignore_startup_parameters = options"])
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pgbouncer_is_refused_in_each_of_its_modes(dsn: str, mode: str, hides: str) -> None:
    given = conninfo_to_dict(dsn)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Path(given["host"], "pooler.ini")
    place = {"database": given["dbname"], "folder": given["host"], "port": port}
    settings.write_text(POOLER.format(**place, mode=mode, hides=hides))
    settings.chmod(0o644)
    run(dsn, f"ALTER DATABASE {given['dbname']} SET idle_session_timeout = '1s'")
    pooler = subprocess.Popen([*RUN, "/usr/sbin/pgbouncer", "-q", settings], stderr=subprocess.DEVNULL)
    try:
        until(lambda: not _is_closed(port))
        refused(
            make_conninfo(dsn, host="127.0.0.1", port=port),
            "a pooler stands before it, which does not pass the session's settings on",
        )
    finally:
        pooler.terminate()
        pooler.wait(10)
        settings.unlink()
        run(dsn, f"ALTER DATABASE {given['dbname']} RESET idle_session_timeout")


def _is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return bool(probe.connect_ex(("127.0.0.1", port)))


def test_a_server_without_its_database_says_why_it_takes_no_writes(dsn: str) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        home(core)._dsn = make_conninfo(dsn, host="/nowhere")
        end_sessions(dsn)
        until(lambda: "/nowhere" in str(Api(core).ask("PUT", "/traits/CUSTOM_A").body))
        told = Api(core).ask("PUT", "/traits/CUSTOM_A").body["errors"][0]["detail"]
        assert "none is active now (connection is bad: " in told, told


def test_a_newer_journal_is_refused(dsn: str) -> None:
    server(dsn).close()
    run(dsn, "UPDATE plimsoll_writer SET format = 99")
    refused(dsn, "a newer version wrote its journal; upgrade this server")


def test_a_user_without_rights_is_refused(dsn: str) -> None:
    run(
        dsn,
        "DROP ROLE IF EXISTS plimsoll_poor",
        "CREATE ROLE plimsoll_poor LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM public",
    )
    refused(make_conninfo(dsn, user="plimsoll_poor"), "let its user create tables there")


def test_rows_that_are_missing_are_told(dsn: str) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        for name in "abc":
            Api(core).provider(name)
    run(dsn, "DELETE FROM plimsoll_journal WHERE seq = 2")
    refused(dsn, "is damaged .*row 2 of the journal is missing.*restore a backup")
    run(dsn, "DELETE FROM plimsoll_journal")
    refused(dsn, "damaged .plimsoll_writer is at write 3, and the last row is 0.: restore a backup")


@pytest.mark.parametrize("last", [0, 2])
def test_no_server_is_active_over_a_journal_without_its_last_rows(
    dsn: str, tmp_path: Path, last: int
) -> None:
    """Neither one that has them in memory, nor one that has seen them before its restart."""
    sentence = f"is damaged (plimsoll_writer is at write 3, and the last row is {last}): restore a backup"
    with closing(server(dsn, state_dir=tmp_path)) as core:
        until(lambda: core.takes_writes)
        for name in "abc":
            Api(core).provider(name)
        with home(core)._mutex:
            end_sessions(dsn)
            run(dsn, f"DELETE FROM plimsoll_journal WHERE seq > {last}")
        until(lambda: sentence in str(Api(core).ask("PUT", "/traits/CUSTOM_A").body))
        read = Api(core).ask("GET", "/resource_providers")
        assert read.headers["plimsoll-stale"] == "true" and len(read.body["resource_providers"]) == 3
    assert '"seq": 3' in (tmp_path / "journal_seen.json").read_text()
    for _ in range(2):
        with pytest.raises(DatabaseError, match=re.escape(sentence)):
            server(dsn, state_dir=tmp_path).close()


TWO_WRITERS = "INSERT INTO plimsoll_writer SELECT * FROM plimsoll_writer"


@pytest.mark.parametrize("is_active", [False, True])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (TWO_WRITERS, "plimsoll_writer has 2 rows, not one"),
        ("DELETE FROM plimsoll_writer", "plimsoll_writer has no row, not one"),
        ("UPDATE plimsoll_writer SET seq = 7", "plimsoll_writer is at write 7, and the last row is 1"),
        ("UPDATE plimsoll_writer SET seq = 0", "plimsoll_writer is at write 0, and the last row is 1"),
    ],
)
def test_a_writer_that_was_changed_by_hand_is_told(
    dsn: str, change: str, sentence: str, *, is_active: bool
) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        Api(core).provider("a")
        if is_active:
            run(dsn, change)
            sentence = "this server has seen write 1" if "seq = 0" in change else sentence
            until(lambda: sentence in str(Api(core).ask("PUT", "/traits/CUSTOM_A").body))
    if is_active:
        return
    run(dsn, change)
    refused(dsn, f"is damaged .{sentence}.: restore a backup")


# A full disk


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("log", [False, True])
def test_a_full_disk_under_postgresql_loses_nothing(log: bool) -> None:
    """Where its log has no space PostgreSQL ends, and what its last commit was is unknown."""
    cluster = Cluster("full")
    with cluster.with_a_small_disk(log=log) as enlarge, closing(server(cluster.address)) as core:
        until(lambda: core.takes_writes)
        api, told = Api(core), ""
        held, doubtful = set[str](), set[str]()
        host = api.provider("host", {"VCPU": 10**6})
        while "No space left on device" not in told:
            many = {new(): request_for(host) for _ in range(500)}
            answer = api.ask("POST", "/allocations", many)
            told = "" if answer.status == 204 else answer.body["errors"][0]["detail"]
            held |= many.keys() if answer.status == 204 else set()
            doubtful |= many.keys() if answer.status == 504 else set()
        assert answer.status == (504 if log else 503)
        assert log or told.endswith("Make space on the database's disk.")
        enlarge()
        if log:
            cluster.restart()
        until(lambda: core.takes_writes)
        assert held <= core._store.model.consumers.keys() <= held | doubtful
        for consumer in list(held)[:10]:
            api.done("DELETE", f"/allocations/{consumer}")


# Two servers


@contextmanager
def two(dsn: str) -> Iterator[tuple[Core, Core]]:
    """The active server, and a standby."""
    with closing(server(dsn, "one")) as one:
        until(lambda: one.takes_writes)
        with closing(server(dsn, "two")) as other:
            yield one, other


def request_for(host: str) -> dict[str, object]:
    return {
        "allocations": {host: {"resources": {"VCPU": 1}}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
        "consumer_type": "INSTANCE",
    }


def claim(core: Core, host: str, consumer: str, key: str) -> CoreResponse:
    path = f"/allocations/{consumer}"
    return core.request("PUT", path, request_for(host), microversion="1.39", key=key)


def test_a_standby_names_the_active_server_in_its_log_once(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where that one is of another cluster, which was given the same database."""
    with caplog.at_level(logging.INFO), two(dsn) as (_, other):
        until(lambda: "is a standby of" in caplog.text)
        time.sleep(0.5)
        said = f"This server is a standby of {home(other).path}; the active one: http://one. If that is a "
        assert caplog.text.count(said) == 1


def test_when_a_server_ends_the_other_takes_over_with_its_keys(dsn: str) -> None:
    with two(dsn) as (one, other):
        host, consumer = Api(one).provider("host", {"VCPU": 4}), new()
        assert claim(one, host, consumer, "key").status == 204
        until(lambda: home(other).active_server == "http://one")
        behind = claim(other, host, new(), "other")
        assert (behind.status, behind.headers["plimsoll-active"]) == (503, "http://one")
        one.close()
        until(lambda: other.takes_writes)
        assert claim(other, host, consumer, "key").status == 204, "as the first time"
        assert claim(other, host, new(), "key").status == 422
        assert Api(other).usage(host) == {"VCPU": 1}


def test_a_server_that_does_not_know_yet_writes_nothing(dsn: str) -> None:
    with two(dsn) as (one, other):
        host = Api(one).provider("host", {"VCPU": 4})
        until(lambda: bool(other._store.model.providers))
        run(dsn, "UPDATE plimsoll_writer SET epoch = epoch + 1, server = 'http://three'")
        consumer = new()
        answer = claim(one, host, consumer, "key")
        assert answer.status == 503 and answer.headers["x-openstack-request-id"]
        until(lambda: one.takes_writes or other.takes_writes)
        assert one._store.model.consumers == other._store.model.consumers == {}
        other.close()
        until(lambda: one.takes_writes)
        assert claim(one, host, consumer, "key").status == 204, "no answer of before stands for it"


def test_a_server_says_at_once_that_its_session_ended(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.placement.embedded.postgres.PING_S", 0.9)
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        time.sleep(0.1)
        with home(core)._mutex:
            end_sessions(dsn)
            until(lambda: not core.takes_writes, 0.4)
            assert home(core).role is Role.ACTIVE, "it does not know why yet"


def test_a_commit_that_does_not_come_back_is_unknown_and_the_next_active_knows_it(dsn: str) -> None:
    with two(dsn) as (one, other):
        host, consumer = Api(one).provider("host", {"VCPU": 4}), new()
        answers: list[CoreResponse] = []
        ask = threading.Thread(target=lambda: answers.append(claim(one, host, consumer, "key")))
        run(dsn, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
        try:
            time.sleep(0.2)
            ask.start()
            time.sleep(0.5)
            assert not answers, "the commit waits for the replica"
            end_sessions(dsn)
            ask.join(10)
        finally:
            run(dsn, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        assert answers[0].status == 504 and "x-openstack-request-id" not in answers[0].headers
        until(lambda: one.takes_writes or other.takes_writes)
        active = one if one.takes_writes else other
        assert claim(active, host, consumer, "key").status == 204
        assert Api(active).usage(host) == {"VCPU": 1}


def test_a_server_ends_although_a_commit_does_not_come_back(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.placement.embedded.postgres.CLOSE_S", 0.5)
    core = server(dsn)
    until(lambda: core.takes_writes)
    core._store._wait_s = 0.5
    run(dsn, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
    try:
        time.sleep(0.2)
        answer = core.request("PUT", "/traits/CUSTOM_A", microversion="1.39")
        assert answer.status == 504
        assert "whether the database hangs, or a synchronous replica" in answer.body["errors"][0]["detail"]
        with pytest.raises(DatabaseTimeout, match="a synchronous replica is silent"):
            core.close()
    finally:
        end_sessions(dsn)
        run(dsn, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    core.close()


def test_a_standby_answers_no_write_that_it_has_read_of(dsn: str) -> None:
    """The database may have it where no replica does, if its wait for them was ended: it may yet be lost."""
    with two(dsn) as (one, other):
        host, consumer = Api(one).provider("host", {"VCPU": 4}), new()
        assert claim(one, host, consumer, "key").status == 204
        until(lambda: "key" in other._store._keyed)
        again = claim(other, host, consumer, "key")
        assert (again.status, again.headers["plimsoll-active"]) == (503, "http://one")


def test_a_standby_refuses_no_write_by_what_it_knows(dsn: str) -> None:
    with two(dsn) as (one, other), home(other)._mutex:  # it does not follow meanwhile
        provider = Api(one).provider("host")
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 4}}}
        path = f"/resource_providers/{provider}/inventories"
        assert other.request("PUT", path, body, microversion="1.39").status == 503
        assert other.request("POST", "/resource_providers", {}, microversion="1.39").status == 503


def test_a_takeover_that_no_replica_has_is_none(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        run(dsn, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
        try:
            time.sleep(0.2)
            with caplog.at_level(logging.WARNING):
                end_sessions(dsn)
                until(lambda: run(dsn, waits) > 0)
                until(lambda: "canceling wait for synchronous replication" in caplog.text)
            assert not core.takes_writes
        finally:
            run(dsn, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        until(lambda: core.takes_writes)


def test_a_standby_that_is_behind_the_swept_rows_loads_all(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.placement.embedded.store.SLACK_BYTES", 1000)
    with two(dsn) as (one, other):
        api = Api(one)
        with home(other)._mutex:  # it does not follow meanwhile
            host = api.provider("host", {"VCPU": 1000})
            for _ in range(200):
                consumer = new()
                assert api.claim(consumer, {host: {"VCPU": 1}}).status == 204
                api.done("DELETE", f"/allocations/{consumer}")
            api.claim(new(), {host: {"VCPU": 1}})
            assert one._store._first > 10
        until(lambda: Api(other).whole() == api.whole())


def test_a_standby_says_how_old_its_answers_were(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.placement.embedded.postgres.BEHIND_S", 0.2)
    with two(dsn) as (core, standby):
        rows = home(standby).rows

        def slow(after: int, limit: int) -> list[Row]:
            time.sleep(0.25)
            return rows(after, limit)

        monkeypatch.setattr(home(standby), "rows", slow)
        Api(core).provider("host")
        until(lambda: "Reads at this server were up to" in caplog.text)


def test_a_load_that_is_interrupted_is_done_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.placement.embedded.store.ROWS_AT_ONCE", 3)
    with two(dsn) as (one, other):
        for number in range(10):
            Api(one).provider(f"host{number}")
        until(lambda: len(other._store.model.providers) == 10)
        rows, portions = home(other).rows, [0]

        def interrupted(after: int, limit: int) -> list[Row]:
            portions[0] += 1
            if portions[0] == 3:
                raise psycopg.OperationalError("the session ended")
            return rows(after, limit)

        with home(other)._mutex:
            Api(one).provider("last")
            monkeypatch.setattr(home(other), "rows", interrupted)
            with pytest.raises(DatabaseError, match="the session ended"):
                other._store.follow(anew=True)
            assert len(other._store.model.providers) == 10, "readers see the former state meanwhile"
        until(lambda: Api(other).whole() == Api(one).whole())
        assert portions[0] > 6, "all of it was read again"


def test_rows_that_are_swept_while_a_server_loads_are_not_missed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.placement.embedded.store.SLACK_BYTES", 1000)
    monkeypatch.setattr("agent.placement.embedded.store.ROWS_AT_ONCE", 5)
    extent = PostgresHome.extent
    with closing(server(dsn, "one")) as one:
        until(lambda: one.takes_writes)
        api = Api(one)
        host = api.provider("host", {"VCPU": 1000})

        def sweep() -> None:
            first = one._store._first
            while one._store._first <= first + 10:
                consumer = new()
                api.claim(consumer, {host: {"VCPU": 1}})
                api.done("DELETE", f"/allocations/{consumer}")

        def slow(home: PostgresHome) -> tuple[int, int]:
            found = extent(home)
            monkeypatch.setattr(PostgresHome, "extent", extent)
            sweep()
            return found

        sweep()
        monkeypatch.setattr(PostgresHome, "extent", slow)
        with closing(server(dsn, "two")) as other:
            until(lambda: Api(other).whole() == api.whole())


def test_replicas_none_of_which_is_synchronous_are_told_to_clients_until_one_is(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.placement.embedded.postgres.REPLICAS_S", 0.0)
    monkeypatch.setattr("agent.placement.embedded.postgres.REPLICAS", "SELECT 2, ''")

    def risk() -> str | None:
        return core.request("GET", "/").headers.get("plimsoll-risk")

    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes and risk() is not None)
        assert "the database has replicas, none of them synchronous" in (risk() or "")
        monkeypatch.setattr("agent.placement.embedded.postgres.REPLICAS", "SELECT 2, 'one'")
        until(lambda: risk() is None)
    assert caplog.text.count("none of them synchronous") == 1


# Lost writes


def roll_back(dsn: str, seq: int, epoch: int) -> None:
    run(
        dsn,
        f"DELETE FROM plimsoll_journal WHERE seq > {seq}",
        f"UPDATE plimsoll_writer SET seq = {seq}, epoch = {epoch}",
    )


@pytest.mark.parametrize("accept_loss", [False, True])
def test_lost_writes_are_told_and_not_served_until_they_are_accepted(
    dsn: str, accept_loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(server(dsn, accept_loss=accept_loss)) as core, caplog.at_level(logging.ERROR):
        until(lambda: core.takes_writes)
        api, consumer = Api(core), new()
        host = api.provider("host", {"VCPU": 4})
        seq = core._store._seq
        api.claim(consumer, {host: {"VCPU": 1}})
        with home(core)._mutex:
            end_sessions(dsn)
            roll_back(dsn, seq, home(core).epoch)
        until(lambda: "this server has seen write" in caplog.text)
        assert f"Missing claims: {consumer}." in caplog.text
        if accept_loss:
            until(lambda: core.takes_writes)
            assert api.claim(new(), {host: {"VCPU": 1}}).status == 204
            return
        time.sleep(0.5)
        answer = api.claim(new(), {host: {"VCPU": 1}})
        assert answer.status == 503 and "--accept-loss" in answer.body["errors"][0]["detail"]
        assert home(core).role is Role.LOST and not core.takes_writes
        with closing(server(dsn, "two", accept_loss=True)) as other:
            until(lambda: other.takes_writes)
            until(
                lambda: api.claim(new(), {host: {"VCPU": 1}}).headers.get("plimsoll-active") == "http://two"
            )
            until(lambda: home(core).role is Role.STANDBY and Api(other).whole() == api.whole())


def test_all_lost_claims_are_in_the_log(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(server(dsn)) as core, caplog.at_level(logging.ERROR):
        until(lambda: core.takes_writes)
        api, consumers = Api(core), [new() for _ in range(12)]
        host = api.provider("host", {"VCPU": 12})
        seq = core._store._seq
        for consumer in consumers:
            api.claim(consumer, {host: {"VCPU": 1}})
        with home(core)._mutex:
            end_sessions(dsn)
            roll_back(dsn, seq, home(core).epoch)
        until(lambda: f"Missing claims: {', '.join(sorted(consumers))}. To go on" in caplog.text)
        answer = api.claim(new(), {host: {"VCPU": 1}})
        assert " and 7 more. To go on" in answer.body["errors"][0]["detail"]


def test_other_writes_in_the_place_of_those_that_it_has_seen_are_told(dsn: str) -> None:
    """The replica that took over lacked the takeover before them, too; another server made one there."""
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        seq, before = core._store._seq, home(core).epoch - 1
        Api(core).provider("host")
        with home(core)._mutex:
            end_sessions(dsn)
            roll_back(dsn, seq, before)
            with closing(server(dsn, "two")) as other:
                until(lambda: other.takes_writes)
                Api(other).provider("another")
        until(lambda: home(core).role is Role.LOST, 5)


def test_a_loss_over_which_the_journal_has_grown_is_known_after_a_restart(dsn: str, tmp_path: Path) -> None:
    """Another server, which had seen nothing of the lost writes, wrote more than these were."""
    with closing(server(dsn, state_dir=tmp_path)) as one:
        until(lambda: one.takes_writes)
        host = Api(one).provider("host", {"VCPU": 40})
        seq = one._store._seq
        for _ in range(5):
            Api(one).claim(new(), {host: {"VCPU": 1}})
    roll_back(dsn, seq, home(one).epoch - 1)
    with closing(server(dsn, "two")) as two:
        until(lambda: two.takes_writes)
        for _ in range(15):
            Api(two).claim(new(), {host: {"VCPU": 1}})
    with closing(server(dsn, state_dir=tmp_path)) as one:
        until(lambda: home(one).role is Role.LOST)
        assert "--accept-loss" in Api(one).claim(new(), {host: {"VCPU": 1}}).body["errors"][0]["detail"]


def test_an_active_server_notices_without_a_write_that_a_backup_was_restored(dsn: str) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        seq = core._store._seq
        Api(core).provider("host")
        roll_back(dsn, seq, home(core).epoch)
        until(lambda: home(core).role is Role.LOST, 5)
        read = core.request("GET", "/resource_providers", microversion="1.39")
        assert read.headers["plimsoll-stale"] == "true"
        assert home(core).active_server is None, "no server is active, and this one least of all"


def test_a_database_of_another_encoding_is_refused_as_such(dsn: str) -> None:
    run(dsn, "DROP DATABASE IF EXISTS ascii")
    run(dsn, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(DatabaseError, match="its encoding is SQL_ASCII; make one with ENCODING 'UTF8'"):
        server(make_conninfo(dsn, dbname="ascii")).close()
    run(dsn, "DROP DATABASE ascii")


def test_a_server_that_was_restarted_knows_what_it_had_seen(dsn: str, tmp_path: Path) -> None:
    """It refuses as often as it is started; once a server has accepted the loss, the others follow it."""
    with closing(server(dsn, state_dir=tmp_path / "one")) as one:
        until(lambda: one.takes_writes)
        host = Api(one).provider("host", {"VCPU": 4})
        seq = one._store._seq
        with closing(server(dsn, "two", state_dir=tmp_path / "two")) as two:
            Api(one).claim(new(), {host: {"VCPU": 1}})
            until(lambda: two._store._seq == seq + 1)
    roll_back(dsn, seq, home(one).epoch)
    for _ in range(2):
        with closing(server(dsn, state_dir=tmp_path / "one")) as one:
            until(lambda: "not known, as this server has been started since" in home(one)._loss)
            refused = Api(one).claim(new(), {host: {"VCPU": 1}})
            assert refused.status == 503 and "--accept-loss" in refused.body["errors"][0]["detail"]
    with (
        closing(server(dsn, state_dir=tmp_path / "one")) as one,
        closing(server(dsn, "two", state_dir=tmp_path / "two", accept_loss=True)) as two,
    ):
        until(lambda: two.takes_writes)
        Api(two).claim(new(), {host: {"VCPU": 1}})
        until(lambda: home(one).role is Role.STANDBY and Api(one).whole() == Api(two).whole())
    with closing(server(dsn, state_dir=tmp_path / "one")) as one:
        until(lambda: one.takes_writes)  # its file knows no loss any more
        Api(one).provider("more")
        lost = one._store._seq
    roll_back(dsn, lost - 1, home(one).epoch)  # another loss, of which the former word says nothing
    with closing(server(dsn, state_dir=tmp_path / "one")) as one:
        until(lambda: home(one).role is Role.LOST)
        time.sleep(0.5)
        assert home(one).role is Role.LOST


def test_a_loss_is_not_forgotten_where_the_database_goes_away_meanwhile(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        Api(core).provider("host")
        follow, failures = core._store.follow, [1]

        def interrupted(*, anew: bool = False) -> list[str]:
            if anew and failures:
                failures.pop()
                raise psycopg.OperationalError("the session ended")
            return follow(anew=anew)

        monkeypatch.setattr(core._store, "follow", interrupted)
        with home(core)._mutex:
            end_sessions(dsn)
            roll_back(dsn, 0, home(core).epoch)
        until(lambda: not failures)
        time.sleep(0.5)
        assert home(core).role is Role.LOST
        answer = core.request("PUT", "/traits/CUSTOM_A", microversion="1.39")
        assert answer.status == 503 and "--accept-loss" in answer.body["errors"][0]["detail"]


def test_a_server_is_active_only_once_it_listens(dsn: str) -> None:
    """One whose start fails, again and again, takes the role from no other."""
    listens = threading.Event()
    with closing(Core.open_shared(dsn, "http://one", leads=listens.is_set)) as core:
        time.sleep(0.5)
        assert not core.takes_writes and home(core).role is Role.STANDBY
        with closing(server(dsn, "two")) as other:
            until(lambda: other.takes_writes)
        listens.set()
        until(lambda: core.takes_writes)


def test_two_servers_do_not_share_a_directory(dsn: str, tmp_path: Path) -> None:
    own = "give each server a --state-dir of its own"
    with closing(server(dsn, state_dir=tmp_path)), pytest.raises(DatabaseError, match=own):
        server(dsn, "two", state_dir=tmp_path)
    server(dsn, state_dir=tmp_path).close()


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"journal": "x"}', "null", "[" * 100_000, '{"journal": 1, "epoch": true, "seq": -9}'],
    ids=["empty", "no keys", "text", "null", "deep", "negative"],
)
def test_a_file_of_what_was_seen_that_says_nothing_is_refused(dsn: str, tmp_path: Path, content: str) -> None:
    (tmp_path / "journal_seen.json").write_text(content)
    with pytest.raises(DatabaseError, match=r"journal_seen\.json does not say what this server has seen"):
        server(dsn, state_dir=tmp_path).close()


def test_a_directory_that_cannot_be_written_is_refused(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match=r"journal_seen\.json cannot be written"):
        server(dsn, state_dir=tmp_path / "file").close()


@pytest.mark.parametrize("is_connected", [False, True])
def test_another_journal_in_its_place_is_told(dsn: str, *, is_connected: bool) -> None:
    with closing(server(dsn)) as core:
        until(lambda: core.takes_writes)
        Api(core).provider("host")
        with home(core)._mutex:
            if not is_connected:
                end_sessions(dsn)
            run(dsn, "UPDATE plimsoll_writer SET id = id + 1")
        until(lambda: home(core).role is Role.LOST)
        refused = Api(core).claim(new(), {}).body["errors"][0]["detail"]
        assert "has another journal than this server has seen" in refused
        assert "Check the address after --journal" in refused
