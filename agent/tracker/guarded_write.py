"""One write of a journaled intent to Placement, of which the outcome may stay unknown."""

from collections.abc import Callable
from enum import StrEnum

from agent.errors import PlacementError, PlacementUnavailable, PlimsollError, StateError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tracker.unanswered_writes import may_still_execute


class Outcome(StrEnum):
    """What Placement did with a write."""

    DONE = "done"
    REFUSED = "refused"
    """Placement holds nothing of it and will not execute it: rejected, lost on the way, or not sent yet."""
    UNKNOWN = "unknown"
    """Placement did not answer, and it may hold the write now or execute it later."""


class GuardedWrite:
    """Writes the allocations of an intent, guarded by the consumers' generations.

    `subject` names the operation in sentences ("claim of web1"); `while_unknown` says what happens as long as
    the outcome is unknown. `outcome` is that of an earlier attempt at the same intent, if there was one.
    """

    def __init__(
        self,
        client: PlacementClient,
        subject: str,
        while_unknown: str,
        outcome: Outcome = Outcome.REFUSED,
    ) -> None:
        self.outcome = outcome
        """Of the last write; REFUSED before the first."""
        self._client = client
        self._subject = subject
        self._while_unknown = while_unknown
        self._unanswered: PlacementUnavailable | None = None

    def run(self, *consumers: ConsumerAllocations, read_outcome: Callable[[bool], Outcome]) -> Outcome:
        """Write; if Placement does not answer, one read decides. Returns DONE, or REFUSED after that read.

        `read_outcome` makes the read; its argument says whether Placement may still execute the write.
        Raises PlacementError where Placement rejects the write (REFUSED); PlacementUnavailable where the
        outcome stays UNKNOWN.
        """
        self.outcome = Outcome.UNKNOWN
        try:
            self._client.write_allocations(*consumers)
        except PlacementUnavailable as error:
            self._unanswered = error
            self.outcome = self._read_back(error, read_outcome)
        except PlacementError:
            self.outcome = Outcome.REFUSED
            raise
        else:
            self.outcome = Outcome.DONE
        return self.outcome

    def _read_back(self, error: PlacementUnavailable, read_outcome: Callable[[bool], Outcome]) -> Outcome:
        details = {key: error.details[key] for key in ("retry_after", "busy") if key in error.details}
        cause = error
        outcome = Outcome.UNKNOWN
        if "retry_after" not in details:  # else Placement asks for no request before then
            try:
                outcome = read_outcome(may_still_execute(error))
            except PlacementUnavailable as second:
                cause = second
        if outcome is Outcome.UNKNOWN:
            raise PlacementUnavailable(
                f"Placement did not answer the {self._subject}, and the outcome is not known yet: "
                f"{self._while_unknown}. ({error.message})",
                status=error.status,
                placement_code=error.placement_code,
                **details,
            ) from cause
        return outcome

    def not_executed(self) -> PlacementUnavailable:
        """The error for an unanswered write that the read found not executed; call it after REFUSED."""
        assert self._unanswered is not None
        error = PlacementUnavailable(
            f"Placement did not answer the {self._subject} and holds nothing of it: try again. "
            f"({self._unanswered.message})",
            status=self._unanswered.status,
            placement_code=self._unanswered.placement_code,
        )
        error.__cause__ = self._unanswered
        return error

    def undo_intent(self, error: PlimsollError, undo: Callable[[], object]) -> None:
        """Undo the journaled intent after `error`, unless Placement holds or may yet hold the write.

        If the journal fails, too, `error` gets a note.
        """
        if self.outcome is not Outcome.REFUSED:
            return
        try:
            undo()
        except StateError as unwritten:
            error.add_note(f"The intent could not be undone either: {unwritten.message}")
