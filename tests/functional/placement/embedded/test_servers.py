"""Three servers of one core on PostgreSQL: one is active, and when it ends another takes over."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import pytest

psycopg = pytest.importorskip("psycopg")

from kits.agent_process import Agent  # noqa: E402
from kits.fleet import (  # noqa: E402
    Answer,
    Client,
    Done,
    Fleet,
    Island,
    Server,
    ask,
    check,
    check_history,
    check_lost,
)
from kits.journals import END_SESSIONS, NEEDS_POSTGRESQL, fresh_journal, until  # noqa: E402
from kits.replicas import Replicas  # noqa: E402

pytestmark = NEEDS_POSTGRESQL

FAULTS = int(os.environ.get("PLIMSOLL_TEST_FAULTS", "12"))
LOSS_AFTER = 25
UNITS = 24
CLIENTS = 16
CUTS = os.geteuid() == 0 and shutil.which("ip") is not None
"""Whether a network can be cut."""
CHANCE = random.Random(1)
REFUSED = "To go on without them, start the servers with --accept-loss"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fresh_journal() as dsn:
        servers = [Server(dsn, tmp_path / f"server{number}.log") for number in range(3)]
        with Fleet(dsn, servers).running() as fleet:
            yield fleet


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with Replicas().running() as replicas:
        yield replicas


@pytest.fixture
def replicated(replicas: Replicas, tmp_path: Path) -> Iterator[Fleet]:
    """Three servers on a journal with replicas; where that is possible, each at a cable of its own."""
    replicas.primary.ask("DROP TABLE IF EXISTS plimsoll_writer, plimsoll_journal")
    with ExitStack() as stack:
        islands: list[Island | None] = [None] * 3
        if CUTS:
            islands = [stack.enter_context(closing(Island(number))) for number in range(3)]
        servers = [
            Server(replicas.dsn(island and island.host), tmp_path / f"server{number}.log", island)
            for number, island in enumerate(islands)
        ]
        yield stack.enter_context(Fleet(replicas.dsn(), servers).running())


class Fault(NamedTuple):
    """`moment`: of the monotonic clock, from which on claims are to be granted. `mend` ends it."""

    moment: float
    mend: Callable[[], object] = lambda: None


def killed(fleet: Fleet, _: Replicas | None = None) -> Fault:
    """The active server is killed, and started again later."""
    server = fleet.active or fleet.servers[0]
    moment = time.monotonic()
    server.end()
    return Fault(moment, server.start)


def stopped(fleet: Fleet, _: Replicas | None = None) -> Fault:
    """The active server is stopped, and goes on later."""
    server = fleet.active or fleet.servers[0]
    moment = time.monotonic()
    server.send(signal.SIGSTOP)
    return Fault(moment, lambda: server.send(signal.SIGCONT))


def cut_off(fleet: Fleet, _: Replicas) -> Fault:
    """The active server does not reach the database: each packet is dropped."""
    island = (fleet.active or fleet.servers[0]).island
    assert island is not None
    moment = time.monotonic()
    island.cut()
    return Fault(moment, island.mend)


def session_ended(fleet: Fleet, _: Replicas | None = None) -> Fault:
    """The database ends the active server's session."""
    with psycopg.connect(fleet.dsn, autocommit=True) as connection:
        moment = time.monotonic()
        connection.execute(END_SESSIONS)
    return Fault(moment)


def database_restarted(_: Fleet, replicas: Replicas) -> Fault:
    """The database is killed, and recovers."""
    replicas.primary.restart()
    return Fault(time.monotonic())


def replica_silent(_: Fleet, replicas: Replicas) -> Fault:
    """The synchronous replica says nothing for a while."""
    with replicas.silent():
        time.sleep(CHANCE.uniform(0.1, 2))
    return Fault(time.monotonic())


def session_ended_while_a_replica_is_silent(fleet: Fleet, replicas: Replicas) -> Fault:
    """The commit under way is in the database then, but not in the replica."""
    with replicas.silent():
        time.sleep(0.2)
        session_ended(fleet)
        time.sleep(CHANCE.uniform(0, 0.5))
    return Fault(time.monotonic())


def replica_promoted(_: Fleet, replicas: Replicas) -> Fault:
    """The primary is lost, and the synchronous replica takes over."""
    replicas.promote_synchronous()
    return Fault(time.monotonic(), replicas.attach)


def replica_promoted_while_it_was_silent(_: Fleet, replicas: Replicas) -> Fault:
    """The primary is lost with commits that no server acknowledged."""
    with replicas.silent():
        time.sleep(0.2)
        replicas.primary.stop()
    return replica_promoted(_, replicas)


OFTEN = (killed, stopped, cut_off, session_ended, replica_silent)
SELDOM = (
    replica_promoted,
    database_restarted,
    session_ended_while_a_replica_is_silent,
    replica_promoted_while_it_was_silent,
)
"""One of them after each round of the others."""
PATIENCE = 3.0
"""The bound of two seconds is for an idle machine."""


def test_faults_lose_nothing_and_sell_nothing_twice(replicated: Fleet, replicas: Replicas) -> None:
    fleet, back = replicated, list[tuple[float, str]]()
    often = [fault for fault in OFTEN if CUTS or fault is not cut_off]
    kinds = cycle(kind for seldom in SELDOM for kind in (*often, seldom))
    faults, answers, lost = 0, 0, list[int]()
    while faults < FAULTS:
        provider = fleet.provider(UNITS)
        with fleet.clients(CLIENTS, provider):
            time.sleep(0.5)
            for kind in islice(kinds, min(LOSS_AFTER, FAULTS - faults) - 1):
                moment, mend = kind(fleet, replicas)
                back.append((fleet.back_after(moment), kind.__name__))
                time.sleep(CHANCE.random())
                mend()
                until(lambda: revived(fleet))
        check(fleet, provider, UNITS)
        answers += len(fleet.history)
        lost.append(lose(fleet, replicas))
        faults = len(back) + len(lost)
        show(back, f"{faults} faults, {answers} answers; {sum(lost)} claims lost and named: {lost}")
    assert percentile(back, 0.99) < 2.0 * PATIENCE


def test_writes_wait_for_a_replica_that_is_silent(replicated: Fleet, replicas: Replicas) -> None:
    fleet, answers = replicated, list[Answer | None]()
    provider, active = fleet.provider(1), fleet.active
    assert active is not None and ask(active.address, "GET", "/healthz/active").status == 200
    body = {"resource_provider_generation": 1, "inventories": {"VGPU": {"total": 2}}}
    path = f"/resource_providers/{provider}/inventories"
    client = Client(fleet.addresses)
    write = threading.Thread(target=lambda: answers.append(client.write("PUT", path, body)))
    with replicas.silent():
        write.start()
        until(lambda: ask(active.address, "GET", "/healthz/active").status == 503, 3)
        time.sleep(2)
        assert ask(active.address, "GET", path).headers["plimsoll-stale"] == "true"
        assert not answers and fleet.active is None
    write.join()
    until(lambda: fleet.active is active)
    assert "canceling" not in active.log
    (done,) = answers
    assert done is not None and done.status == 200 and done.body["resource_provider_generation"] == 2, "once"


def revived(fleet: Fleet) -> bool:
    """Whether all answer. One that starts ends where the database is away, and systemd starts it again."""
    for server in fleet.servers:
        server.revive()
    return fleet.active is not None and all(server.answers for server in fleet.servers)


def test_the_checker_knows_what_one_counter_of_units_can_answer() -> None:
    first, second = Done("claim", "a", True, 0, 1), Done("claim", "b", True, 2, 3)
    released, refused = Done("release", "a", True, 1, 2), Done("claim", "c", False, 2, 3)
    check_history([first, second, refused], 2)
    check_history([first, released, second], 1)
    check_history([first, released, refused], 1)  # the release may be done last
    with pytest.raises(AssertionError, match="sold twice"):
        check_history([first, second], 1)
    with pytest.raises(AssertionError, match="was refused, and there were 1 units"):
        check_history([first, refused], 2)


def lose(fleet: Fleet, replicas: Replicas) -> int:
    """Servers do not serve a replica without the last claims, until one is told to; returns their number."""
    provider = fleet.provider(UNITS)
    logs = [len(server.log) for server in fleet.servers]
    with fleet.clients(CLIENTS, provider):
        until(lambda: any(done.granted for done in fleet.history))
        replicas.leave_behind()
        time.sleep(0.5)
        replicas.promote_asynchronous()
        until(lambda: all(REFUSED in server.log[at:] for server, at in zip(fleet.servers, logs, strict=True)))
        assert fleet.active is None
        assert any(REFUSED in ask_to_write(server) for server in fleet.servers)
        fleet.given_up.set()
    lost = check_lost(fleet, provider, UNITS)
    told = CHANCE.choice(fleet.servers)
    told.end()
    told.start("--accept-loss")
    until(lambda: fleet.active is told)
    until(lambda: all(REFUSED not in ask_to_write(server) for server in fleet.servers))
    replicas.attach()
    told.end()  # the next loss is not accepted
    until(lambda: revived(fleet))
    return lost


def ask_to_write(server: Server) -> str:
    answer = ask(server.address, "PUT", "/traits/CUSTOM_A")
    return str(answer.body)


def percentile(back: list[tuple[float, str]], part: float) -> float:
    return sorted(back)[int(len(back) * part)][0] if back else 0.0


def show(back: list[tuple[float, str]], title: str) -> None:
    print(f"\n{title}\n{'seconds to the first claim':45} {'n':>4} {'median':>7} {'p99':>7} {'worst':>7}")
    for name in ("", *sorted({name for _, name in back})):
        of = [each for each in back if name in ("", each[1])]
        figures = " ".join(f"{percentile(of, part):7.2f}" for part in (0.5, 0.99, 1 - 1e-9))
        print(f"{name.replace('_', ' ') or 'all':45} {len(of):4} {figures}", flush=True)


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
            moment, mend = fault(fleet)
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
