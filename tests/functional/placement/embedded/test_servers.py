"""Three servers of one core on PostgreSQL: one is active, and when it ends another takes over."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

psycopg = pytest.importorskip("psycopg")

from kits.agent_process import Agent  # noqa: E402
from kits.fleet import Fleet, Island, ask, check  # noqa: E402
from kits.journals import END_SESSIONS, NEEDS_POSTGRESQL, fresh_journal, until  # noqa: E402

pytestmark = NEEDS_POSTGRESQL

FAULTS = int(os.environ.get("PLIMSOLL_TEST_FAULTS", "12"))
UNITS = 24
CLIENTS = 16


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fresh_journal() as dsn, Fleet(dsn, tmp_path).running() as fleet:
        yield fleet


def killed(fleet: Fleet) -> Callable[[], None]:
    """The active server is killed, and started again later."""
    server = fleet.active or fleet.servers[0]
    server.end()
    return server.start


def stopped(fleet: Fleet) -> Callable[[], None]:
    """The active server is stopped, and goes on later."""
    server = fleet.active or fleet.servers[0]
    server.send(signal.SIGSTOP)
    return lambda: server.send(signal.SIGCONT)


def session_ended(fleet: Fleet) -> Callable[[], None]:
    """The database ends the active server's session."""
    with psycopg.connect(fleet.dsn, autocommit=True) as connection:
        connection.execute(END_SESSIONS)
    return lambda: None


def database_restarted(_: Fleet) -> Callable[[], None]:
    """The database is killed, and recovers."""
    if "PLIMSOLL_TEST_PG_CTL" in os.environ:
        command = [*shlex.split(os.environ["PLIMSOLL_TEST_PG_CTL"]), "-m", "immediate", "restart"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return lambda: None


def replica_silent(fleet: Fleet) -> Callable[[], None]:
    """The synchronous replica does not answer, and the session that waits for it is ended."""
    with psycopg.connect(fleet.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.3)
        connection.execute(END_SESSIONS)
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")
    return lambda: None


KINDS = (killed, stopped, session_ended, database_restarted, replica_silent)


def test_faults_lose_nothing_and_sell_nothing_twice(fleet: Fleet) -> None:
    provider, back, chance = fleet.provider(UNITS), [], random.Random(1)
    with fleet.clients(CLIENTS, provider):
        time.sleep(0.5)
        for number in range(FAULTS):
            fault = KINDS[number % len(KINDS)]
            moment = time.monotonic()
            mend = fault(fleet)
            if fault in (database_restarted, replica_silent):  # the time without a database is not ours
                moment = time.monotonic()
            back.append((fleet.back_after(moment), fault.__name__))
            time.sleep(chance.random())
            mend()
            for server in fleet.servers:
                server.revive()
            until(lambda: fleet.active is not None)
    check(fleet, provider, UNITS)
    back.sort()
    print(f"{len(fleet.history)} answers; back after {back[len(back) // 2]}, at worst {back[-1]}")
    assert back[int(len(back) * 0.99)][0] < 2.0 * PATIENCE


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="only root can cut a network")
def test_a_server_that_is_cut_off_from_the_database_is_followed(tmp_path: Path) -> None:
    with (
        fresh_journal() as dsn,
        closing(Island(dsn)) as island,
        Fleet(dsn, tmp_path, (island, None)).running() as fleet,
    ):
        provider, back = fleet.provider(UNITS), []
        with fleet.clients(CLIENTS, provider):
            for _ in range(max(1, FAULTS // 6)):
                if fleet.active is not fleet.servers[0]:
                    fleet.servers[1].end()
                    until(lambda: fleet.active is fleet.servers[0])
                    fleet.servers[1].start()
                    until(lambda: fleet.servers[1].answers)
                moment = time.monotonic()
                island.cut()
                back.append(fleet.back_after(moment))
                until(lambda: fleet.active is fleet.servers[1])
                island.mend()
        check(fleet, provider, UNITS)
        print(f"{len(fleet.history)} answers; cut off: back after {sorted(back)}")
        assert max(back) < 2.0 * PATIENCE


PATIENCE = 3.0
"""The bound of two seconds is for an idle machine."""


def test_a_standby_answers_reads_and_names_the_active_server(fleet: Fleet) -> None:
    active = fleet.active
    assert active is not None
    provider = fleet.provider(1)
    standby = next(server for server in fleet.servers if server is not active)
    until(lambda: ask(standby.address, "GET", f"/resource_providers/{provider}").status == 200)
    read = ask(standby.address, "GET", f"/resource_providers/{provider}")
    assert read.headers["plimsoll-stale"] == "true"
    assert ask(standby.address, "GET", "/traits/CUSTOM_A").headers["plimsoll-stale"] == "true", (
        "an error may be old, too"
    )
    refused = ask(standby.address, "PUT", "/traits/CUSTOM_A")
    assert refused.status == 503 and refused.headers["plimsoll-active"] == f"http://{active.address}"
    assert "standby" in refused.body["errors"][0]["detail"]
    assert "plimsoll-stale" not in ask(active.address, "GET", "/traits").headers
    assert active.end(signal.SIGTERM) == 0
    until(lambda: fleet.active is not None, 5)


def test_an_agent_goes_on_with_the_server_that_took_over(fleet: Fleet, tmp_path: Path) -> None:
    """No caller sees that the active server was killed or stopped, or had no database."""
    (tmp_path / "agent").mkdir()
    addresses = ",".join(f"http://{address}" for address in fleet.addresses)
    options = "kind = remote\nauth_type = admin_token\ntoken = admin\n"
    agent = Agent(tmp_path / "agent", more=f"[placement]\n{options}endpoint_override = {addresses}\n")
    agent.start()
    claimed, back = list[str](), list[float]()

    def claim() -> bool:
        said = agent("claim", "--resources", "VCPU=1", "-o", "json")
        claimed.extend([json.loads(said.stdout)["consumer"]] if said.returncode == 0 else [])
        return said.returncode == 0

    try:
        for fault in (killed, stopped, killed, session_ended):
            assert claim()
            mend, moment = fault(fleet), time.monotonic()
            assert claim(), fault
            back.append(time.monotonic() - moment)
            mend()
            until(lambda: all(server.answers for server in fleet.servers))
        assert agent("audit", "-o", "json").returncode == 0
        print(f"an agent's claim after each fault: {back}")
        assert max(back) < 2.0 * PATIENCE, "no answer was waited for as long as [placement] timeout"
    finally:
        assert agent.stop() == 0
    active = fleet.active
    assert active is not None
    for consumer in claimed:
        assert ask(active.address, "GET", f"/allocations/{consumer}").body["allocations"]
