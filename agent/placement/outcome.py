"""The outcome of a write to Placement, as a value: done, refused, or unknown.

A write is known to be done or refused only by an answer that Placement itself gave: such an answer has
Placement's request id. All else leaves the outcome unknown, and Placement may still do the write later.
"""

from dataclasses import dataclass

from agent.errors import PlacementError, PlacementUnavailable


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Placement did the write."""

    def check(self) -> None:
        """Do nothing; see `WriteRefused.check`."""


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """Placement rejected the write, or it was not sent: nothing of it is done, now or later."""

    error: PlacementError

    def check(self) -> None:
        """Raises the error, for a caller that treats all errors alike."""
        raise self.error


@dataclass(frozen=True, slots=True)
class WriteUnknown:
    """No answer of Placement tells what became of the write.

    `late`: Placement may still do it, at any time. Otherwise its work on the write has ended, and a read
    shows the result.
    """

    error: PlacementUnavailable
    late: bool = True

    def check(self) -> None:
        """Raises the error, for a caller that treats all errors alike."""
        raise self.error


WriteOutcome = WriteDone | WriteRefused | WriteUnknown
