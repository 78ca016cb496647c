"""The routes and commands of moves, over the local API, on two hosts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kits.api_client import ask, check
from kits.cli_process import one_line, plimsoll
from kits.gate import GatedHost, gated, guest
from kits.moves import INSTANCE, MIGRATION

from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import ExitCode

ASKED = ClaimRequest(INSTANCE, (RequestGroup("", {"VCPU": 1, "SRIOV_NET_VF": 1}),))
VF = "0000:81:02.0"
WANTED = ("--resources", "VCPU=1,SRIOV_NET_VF=1")


class Pair(NamedTuple):
    """The source, which has the claim, and the destination."""

    a: GatedHost
    b: GatedHost

    def state(self) -> object:
        """What both hosts know, and what Placement holds for the instance."""
        operations = [host.world.operations for host in self]
        known = [(each.tracker.claims(), each.tracker.moves()) for each in operations]
        return known, operations[0].client.allocations_of(INSTANCE)

    def arrives(self) -> None:
        self.b.driver.add_guest(guest(INSTANCE, VCPU=1))
        self.b.world.agent.reconcile("it arrived")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Pair]:
    with gated(tmp_path / "a") as a, gated(tmp_path / "b", "node2", a.world.wire) as b:
        a.world.operations.claim(ASKED)
        yield Pair(a, b)


@pytest.fixture
def path(world: Pair) -> Path:
    """The destination's socket."""
    return world.b.socket


def body(kind: str = "cold_migrate") -> dict[str, object]:
    return {"migration": MIGRATION, "kind": kind, "request": request_to_json(ASKED)}


def test_begin_show_list_and_confirm(world: Pair, path: Path) -> None:
    begun = ask(path, "POST", "/v1/moves", body())
    check("POST", "/v1/moves", begun)
    assert (begun.status, begun.body["state"]) == (201, "begun")
    assert begun.headers["Location"] == f"/v1/moves/{MIGRATION}"
    handed = [part["resources"] for part in begun.body["handed"]["allocations"].values()]
    assert sorted(handed, key=str) == [{"SRIOV_NET_VF": 1}, {"VCPU": 1}]
    assert begun.body["new"]["units"]
    shown = ask(path, "GET", f"/v1/moves/{MIGRATION}")
    check("GET", "/v1/moves/{migration}", shown)
    listed = ask(path, "GET", "/v1/moves")
    check("GET", "/v1/moves", listed)
    (seen,) = listed.body["moves"]
    assert seen.pop("providers").items() < shown.body.pop("providers").items(), "without another host's"
    assert seen == shown.body
    for _ in range(2):
        done = ask(path, "POST", f"/v1/moves/{MIGRATION}/confirm")
        check("POST", "/v1/moves/{migration}/confirm", done)
        assert (done.status, done.body["state"]) == (200, "confirmed")
    other = ask(path, "POST", f"/v1/moves/{MIGRATION}/revert")
    check("POST", "/v1/moves/{migration}/revert", other)
    assert (other.status, other.body["error"]["code"]) == (409, "plimsoll.claim.conflict")


def test_what_waits_is_accepted(world: Pair, path: Path) -> None:
    ask(path, "POST", "/v1/moves", body())
    world.arrives()
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
def test_a_wrong_body_changes_nothing(world: Pair, path: Path, wrong: object) -> None:
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


def test_the_commands(world: Pair, path: Path) -> None:
    assert plimsoll(path, "move", "list").stdout == "no moves\n"
    words = ("move", "begin", INSTANCE, "--kind", "resize", "--migration", MIGRATION, "--name", "web1")
    begun = plimsoll(path, *words, *WANTED)
    assert (begun.returncode, begun.stderr) == (ExitCode.DONE, "")
    assert begun.stdout.startswith(f"resize of {INSTANCE} (web1): begun, migration {MIGRATION}\n")
    assert f"the migration {MIGRATION} holds, of the instance's old place,\n" in begun.stdout
    assert f"the instance {INSTANCE} holds, as its new place,\n" in begun.stdout and VF in begun.stdout
    turn = "the service that began it: bring the guest to this host and confirm the move, or revert it"
    assert begun.stdout.endswith(f"next: {turn}, on either host\n")
    assert plimsoll(path, "move", "show", MIGRATION).stdout == begun.stdout
    (listed,) = plimsoll(path, "move", "list").stdout.splitlines()[1:]
    assert listed.split()[:7] == [
        *(MIGRATION, INSTANCE, "web1", "resize", "destination", "begun", "SRIOV_NET_VF=1,VCPU=1"),
    ]
    assert listed.endswith(f"{turn}, on either host")
    world.arrives()
    (arrived,) = plimsoll(path, "move", "list").stdout.splitlines()[1:]
    assert arrived.endswith("the guest is on this host; confirm the move, on either host")
    world.b.driver.remove_guest(INSTANCE)
    world.b.world.agent.reconcile("it went back")
    done = plimsoll(path, "move", "revert", MIGRATION)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert "reverted" in done.stdout
    refused = plimsoll(path, "move", "confirm", MIGRATION)
    assert refused.returncode == ExitCode.REFUSED and "reverted already" in one_line(refused)
    assert plimsoll(path, "move", "list").stdout == "no moves\n"
    told = json.loads(plimsoll(path, "move", "list", "--all", "-o", "json").stdout)
    assert [each["state"] for each in told["moves"]] == ["reverted"]


def test_the_source_shows_which_units_the_migration_holds(world: Pair, path: Path) -> None:
    ask(path, "POST", "/v1/moves", body())
    world.a.world.agent.verify()
    shown = plimsoll(world.a.socket, "move", "show", MIGRATION).stdout
    assert f"unknown of {INSTANCE}" in shown and VF in shown
    assert "`plimsoll move show` there shows it" in shown


def test_a_migration_uuid_is_made(path: Path) -> None:
    begun = plimsoll(path, "move", "begin", INSTANCE, "--kind", "cold-migrate", *WANTED, "-o", "json")
    assert json.loads(begun.stdout)["migration"] not in ("", INSTANCE)


def test_a_move_that_does_not_fit_is_refused(path: Path) -> None:
    done = plimsoll(path, "move", "begin", INSTANCE, "--kind", "resize", "--resources", "SRIOV_NET_VF=99")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert "SRIOV_NET_VF" in one_line(done)
