"""Handles of a granted claim and of a begun move: context managers that undo it if their block raises."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from agent.claims.claim import Claim
from agent.errors import PlimsollError, UnknownConsumer
from agent.moves.states import Move


class UndoneOnError:
    """A context manager that calls `undo` if its block raises.

    If `undo` fails, the error of the block gets a note: `failure`, a clause, and the reason.
    """

    __slots__ = ("_failure", "_undo")

    def __init__(self, undo: Callable[[], object], failure: str) -> None:
        self._undo = undo
        self._failure = failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self._undo()
        except UnknownConsumer:
            return  # the block has undone it already
        except PlimsollError as failed:
            error.add_note(f"{self._failure}: {failed.message}")


class ClaimHandle(UndoneOnError):
    """A granted claim. As a context manager it releases the claim if the block raises, else keeps it."""

    __slots__ = ("claim",)

    def __init__(self, claim: Claim, release: Callable[[str], object]) -> None:
        super().__init__(lambda: release(claim.consumer), "Its claim was not released")
        self.claim = claim


class MoveHandle(UndoneOnError):
    """A move that has begun. As a context manager it reverts the move if the block raises, else keeps it."""

    __slots__ = ("move",)

    def __init__(self, move: Move, revert: Callable[[str], object]) -> None:
        super().__init__(lambda: revert(move.migration), "Its move was not reverted")
        self.move = move
