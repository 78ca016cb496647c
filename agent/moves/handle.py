"""A move that has begun, as what is done under it holds it."""

from collections.abc import Callable

from agent.claims.handle import UndoneOnError
from agent.moves.table import Move


class MoveHandle(UndoneOnError):
    """A move that has begun. As a context manager it reverts the move if the block raises, else keeps it."""

    __slots__ = ("move",)

    def __init__(self, move: Move, revert: Callable[[str], object]) -> None:
        super().__init__(lambda: revert(move.migration), "Its move was not reverted")
        self.move = move
