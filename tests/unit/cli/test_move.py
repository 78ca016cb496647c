"""What `plimsoll move` prints of a move on its source."""

import argparse
from typing import cast

import pytest
from samples import INSTANCES

from agent.api.shapes.instance import ClaimShape, MoveShape
from agent.cli import move
from agent.cli.client import Client

CLAIM = cast(ClaimShape, INSTANCES["instances"][0]["claim"])
MIGRATION = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"
MOVE: MoveShape = {
    "migration": MIGRATION,
    "instance": CLAIM["consumer"],
    "name": "web1",
    "kind": "cold_migrate",
    "role": "source",
    "state": "begun",
    "next": "the destination confirms or reverts",
    "ended": False,
    "adopted": False,
    "since": CLAIM["since"],
    "handed": {"allocations": CLAIM["allocations"], "units": CLAIM["units"], "cells": []},
    "old": CLAIM,
    "new": None,
    "providers": {},
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {
        "/v1/moves?look=true": {"moves": [MOVE, {**MOVE, "ended": True, "state": "reverted"}]},
        f"/v1/moves/{MIGRATION}": MOVE,
        "/v1/tree": {"resource_providers": []},
    }
    monkeypatch.setattr(Client, "request", lambda _client, _method, path, _body=None: paths[path])


def arguments(**given: object) -> argparse.Namespace:
    return argparse.Namespace(socket="", timeout=1.0, output="table", **given)


@pytest.mark.usefixtures("answers")
def test_the_list_shows_moves_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    move.list_moves(arguments(all=False, column=[]))
    titles, line = capsys.readouterr().out.splitlines()
    assert titles.split()[:3] == ["MIGRATION", "INSTANCE", "NAME"]
    assert "begun" in line and "MEMORY_MB=4096,VCPU=2,VGPU=1" in line


@pytest.mark.usefixtures("answers")
def test_a_move_on_its_source_refers_to_the_destination(capsys: pytest.CaptureFixture[str]) -> None:
    move.show_move(arguments(migration=MIGRATION))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"cold_migrate of {CLAIM['consumer']} (web1): begun, migration {MIGRATION}"
    assert "  the allocation at the destination: `plimsoll move show` there shows it" in lines
    assert lines[-1] == "next: the destination confirms or reverts"
