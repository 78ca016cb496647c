"""docs/moves.md says what the code does."""

from __future__ import annotations

import re

from kits.paths import CHECKOUT

from agent.moves.states import MOVE_TRANSITIONS, MoveKind, MoveState

TEXT = (CHECKOUT / "docs" / "moves.md").read_text(encoding="utf-8")


def test_the_table_of_a_moves_life_is_the_codes() -> None:
    table = TEXT.split("| state | step | next |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (-|\w+) \| (\w+) \| (\w+) \|", table, re.MULTILINE)
    assert rows == [
        (str(state or "-"), str(step).removeprefix("move_"), str(after))
        for (state, step), after in MOVE_TRANSITIONS.items()
    ]


def test_every_kind_and_state_is_told() -> None:
    for kind in set(MoveKind) - {MoveKind.UNKNOWN}:
        assert f"`{kind}`" in TEXT
    for state in MoveState:
        assert f"\n| {state} | " in TEXT
