"""Handles undo what they stand for if their block raises, and only then."""

from __future__ import annotations

import pytest

from agent.errors import PlacementUnavailable, UnknownConsumer
from agent.tracker.tracker import UndoneOnError


def test_nothing_is_undone_where_the_block_succeeds() -> None:
    undone: list[str] = []
    with UndoneOnError(lambda: undone.append("it"), "It was not undone"):
        pass
    assert undone == []


def test_it_is_undone_where_the_block_raises() -> None:
    undone: list[str] = []
    with pytest.raises(KeyboardInterrupt), UndoneOnError(lambda: undone.append("it"), "It was not undone"):
        raise KeyboardInterrupt
    assert undone == ["it"]


def test_what_cannot_be_undone_is_noted_on_the_error_of_the_block() -> None:
    def undo() -> None:
        raise PlacementUnavailable("Placement is away.")

    with pytest.raises(OSError, match="no such image") as error, UndoneOnError(undo, "It was not undone"):
        raise OSError("no such image")
    assert error.value.__notes__ == ["It was not undone: Placement is away."]


def test_what_the_block_has_undone_already_is_no_failure() -> None:
    def undo() -> None:
        raise UnknownConsumer("It has no claim.")

    with pytest.raises(OSError, match="no such image") as error, UndoneOnError(undo, "It was not undone"):
        raise OSError("no such image")
    assert not hasattr(error.value, "__notes__")
