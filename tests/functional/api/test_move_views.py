"""The routes and commands of moves, over the local API, on the real trackers of two hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.api_client import ask, check, serving
from kits.api_host import SmallHost
from kits.cli_process import one_line, plimsoll
from kits.moves import INSTANCE, MIGRATION, Agent, World, asks

from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest
from agent.errors import ExitCode
from agent.moves.circumstances import Circumstances
from agent.moves.states import Move, MoveKind

WANTED = ("--resources", "VCPU=1,PCPU=2")


class MovingHost(SmallHost):
    """A small host whose moves are those of a real tracker."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent

    def circumstances(self) -> Circumstances:
        return self._agent.tracker.circumstances()

    def moves(self) -> dict[str, Move]:
        return dict(self._agent.tracker.moves())

    def begin_move(
        self, kind: MoveKind, migration: str, request: ClaimRequest, alternative: int | None = None
    ) -> Move:
        return self._agent.tracker.begin_move(request, kind, migration).move

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        return self._agent.tracker.confirm_move(migration, instance=instance)

    def revert_move(self, migration: str, instance: str | None) -> Move:
        return self._agent.tracker.revert_move(migration, instance=instance)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        world.a.tracker.claim(asks(VCPU=1, PCPU=2))
        yield world


@pytest.fixture
def path(world: World, tmp_path: Path) -> Iterator[Path]:
    """The destination's socket."""
    with serving(MovingHost(world.b), tmp_path / "s", threads=2):
        yield tmp_path / "s"


def body(kind: str = "cold_migrate") -> dict[str, object]:
    return {"migration": MIGRATION, "kind": kind, "request": request_to_json(asks(VCPU=1, PCPU=2))}


def test_begin_show_list_and_confirm(world: World, path: Path) -> None:
    begun = ask(path, "POST", "/v1/moves", body())
    check("POST", "/v1/moves", begun)
    assert (begun.status, begun.body["state"]) == (201, "begun")
    assert begun.headers["Location"] == f"/v1/moves/{MIGRATION}"
    assert list(begun.body["handed"]["allocations"].values()) == [{"resources": {"PCPU": 2, "VCPU": 1}}]
    assert begun.body["new"]["units"]
    shown = ask(path, "GET", f"/v1/moves/{MIGRATION}")
    check("GET", "/v1/moves/{migration}", shown)
    listed = ask(path, "GET", "/v1/moves")
    check("GET", "/v1/moves", listed)
    assert listed.body == {"moves": [shown.body]}
    for _ in range(2):
        done = ask(path, "POST", f"/v1/moves/{MIGRATION}/confirm")
        check("POST", "/v1/moves/{migration}/confirm", done)
        assert (done.status, done.body["state"]) == (200, "confirmed")
    other = ask(path, "POST", f"/v1/moves/{MIGRATION}/revert")
    check("POST", "/v1/moves/{migration}/revert", other)
    assert (other.status, other.body["error"]["code"]) == (409, "plimsoll.claim.conflict")


def test_what_waits_is_accepted(world: World, path: Path) -> None:
    ask(path, "POST", "/v1/moves", body())
    world.b.see(INSTANCE)
    waits = ask(path, "POST", f"/v1/moves/{MIGRATION}/revert")
    check("POST", "/v1/moves/{migration}/revert", waits)
    assert (waits.status, waits.body["state"]) == (202, "reverting")


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {**body(), "kind": "teleport"},
        {**body(), "kind": "unknown"},
        {**body(), "migration": "mine"},
        {**body(), "migration": INSTANCE},
        {**body(), "colour": "blue"},
        {**body(), "request": {}},
    ],
)
def test_a_wrong_body_changes_nothing(world: World, path: Path, wrong: object) -> None:
    before = world.state()
    reply = ask(path, "POST", "/v1/moves", json.dumps(wrong).encode(), {"Content-Type": "application/json"})
    check("POST", "/v1/moves", reply)
    assert reply.status == 400
    assert world.state() == before


def test_an_unknown_migration(path: Path) -> None:
    for method, rest in (("GET", ""), ("POST", "/confirm"), ("POST", "/revert")):
        reply = ask(path, method, f"/v1/moves/{MIGRATION}{rest}")
        check(method, f"/v1/moves/{{migration}}{rest}", reply)
        assert (reply.status, reply.body["error"]["code"]) == (404, "plimsoll.consumer.unknown")
    assert ask(path, "POST", f"/v1/moves/{MIGRATION}/confirm?instance=mine").status == 400
    assert ask(path, "GET", "/v1/moves/mine").status == 400


def test_the_commands(world: World, path: Path) -> None:
    assert plimsoll(path, "move", "list").stdout == "no moves\n"
    begun = plimsoll(
        path,
        "move",
        "begin",
        INSTANCE,
        "--kind",
        "resize",
        "--migration",
        MIGRATION,
        *WANTED,
        "--name",
        "web1",
    )
    assert (begun.returncode, begun.stderr) == (ExitCode.DONE, "")
    assert begun.stdout.startswith(f"resize of {INSTANCE} (web1): begun, migration {MIGRATION}\n")
    assert f"the migration {MIGRATION} holds, of the instance's old place,\n" in begun.stdout
    assert f"the instance {INSTANCE} holds, as its new place,\n" in begun.stdout and "b0,b1" in begun.stdout
    turn = "the service that began it: bring the guest to this host and confirm the move, or revert it"
    assert begun.stdout.endswith(f"next: {turn}, on either host\n")
    assert plimsoll(path, "move", "show", MIGRATION).stdout == begun.stdout
    (listed,) = plimsoll(path, "move", "list").stdout.splitlines()[1:]
    assert listed.split()[:7] == [
        *(MIGRATION, INSTANCE, "web1", "resize", "destination", "begun", "PCPU=2,VCPU=1"),
    ]
    assert listed.endswith(f"{turn}, on either host")
    world.b.see(INSTANCE)
    (arrived,) = plimsoll(path, "move", "list").stdout.splitlines()[1:]
    assert arrived.endswith("the guest is on this host; confirm the move, on either host")
    world.b.see()
    done = plimsoll(path, "move", "revert", MIGRATION)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert "reverted" in done.stdout
    refused = plimsoll(path, "move", "confirm", MIGRATION)
    assert refused.returncode == ExitCode.REFUSED and "reverted already" in one_line(refused)
    assert plimsoll(path, "move", "list").stdout == "no moves\n"
    told = json.loads(plimsoll(path, "move", "list", "--all", "-o", "json").stdout)
    assert [each["state"] for each in told["moves"]] == ["reverted"]


def test_the_source_shows_which_units_the_migration_holds(world: World, path: Path, tmp_path: Path) -> None:
    ask(path, "POST", "/v1/moves", body())
    world.settle()
    with serving(MovingHost(world.a), tmp_path / "a.sock", threads=2):
        shown = plimsoll(tmp_path / "a.sock", "move", "show", MIGRATION).stdout
    assert f"unknown of {INSTANCE}" in shown and "a0,a1" in shown
    assert "`plimsoll move show` there shows it" in shown


def test_a_migration_uuid_is_made(path: Path) -> None:
    begun = plimsoll(path, "move", "begin", INSTANCE, "--kind", "cold-migrate", *WANTED, "-o", "json")
    assert json.loads(begun.stdout)["migration"] not in ("", INSTANCE)


def test_a_move_that_does_not_fit_is_refused(path: Path) -> None:
    done = plimsoll(path, "move", "begin", INSTANCE, "--kind", "resize", "--resources", "PCPU=5")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert "PCPU" in one_line(done)
