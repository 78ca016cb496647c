"""A granted claim, as what is done under it holds it."""

from collections.abc import Callable
from types import TracebackType

from agent.claims.claim import Claim
from agent.errors import PlimsollError, UnknownConsumer


class ClaimHandle:
    """A granted claim. As a context manager it releases the claim if the block raises, and else keeps it."""

    __slots__ = ("_release", "claim")

    def __init__(self, claim: Claim, release: Callable[[str], object]) -> None:
        self._release = release
        self.claim = claim

    def __enter__(self) -> "ClaimHandle":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        try:
            self._release(self.claim.consumer)
        except UnknownConsumer:
            return  # somebody released it inside the block
        except PlimsollError as unreleased:
            error.add_note(f"Its claim was not released: {unreleased.message}")
