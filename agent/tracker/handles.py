"""A granted claim, as what is done under it holds it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from agent.claims.claim import Claim
from agent.errors import PlimsollError, UnknownConsumer
from agent.moves.states import Move


class UndoneOnError:
    """A context manager that undoes what it stands for if its block raises, and else keeps it.

    What cannot be undone just then is said in a note of the block's own error: `left` is its first half.
    """

    __slots__ = ("_left", "_undo")

    def __init__(self, undo: Callable[[], object], left: str) -> None:
        self._undo = undo
        self._left = left

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
            return  # somebody undid it inside the block
        except PlimsollError as still_there:
            error.add_note(f"{self._left}: {still_there.message}")


class ClaimHandle(UndoneOnError):
    """A granted claim. As a context manager it releases the claim if the block raises, and else keeps it."""

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
