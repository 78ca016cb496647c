"""A move survives its JSON, and JSON that is no move is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from kits.move_values import (
    NEW,
    OLD,
    move,
)

from agent.errors import UsageError
from agent.moves.move_json import move_to_json, read_move
from agent.moves.states import MoveRole


@pytest.mark.parametrize("role", MoveRole)
def test_what_is_written_comes_back(role: MoveRole) -> None:
    written = replace(
        move(role, OLD, None if role is MoveRole.SOURCE else NEW),
        since=1.5,
        adopted=True,
        instance_generation=3,
    )
    assert read_move(json.loads(json.dumps(move_to_json(written)))) == written


@pytest.mark.parametrize("key", ["migration", "kind", "role", "state", "old", "handed", "since"])
def test_what_makes_no_sense_is_refused(key: str) -> None:
    broken = move_to_json(move(MoveRole.DESTINATION, OLD, NEW))
    with pytest.raises(UsageError):
        read_move({**broken, key: "?"})


def test_a_move_that_an_older_agent_wrote_is_read() -> None:
    """It wrote no generation of the instance: then it is not known."""
    written = {**move_to_json(move(MoveRole.SOURCE, OLD, None))}
    del written["instance_generation"]
    assert read_move(written) == move(MoveRole.SOURCE, OLD, None)
