"""The reshapes that operators have undone, as the journal lists them, and which of them can be undone."""

from collections.abc import Sequence

from agent.errors import UsageError
from agent.reshape.receipt import Receipt, UndoneReceipts
from agent.state.journal import Journal


class UndoneReshapes:
    """The journal's list of undone reshapes. Each method raises StateError."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def ids(self) -> tuple[str, ...]:
        """The ids of the receipts that are undone."""
        return self._journal.undone_reshapes()

    def with_ids(self, ids: Sequence[str]) -> UndoneReceipts:
        """The receipts with these ids; one that the journal no longer has is left out."""
        if not ids:
            return UndoneReceipts()
        done = self._journal.reshapes(done=True)
        return UndoneReceipts(tuple(done[receipt_id] for receipt_id in ids if receipt_id in done))

    def set_ids(self, ids: Sequence[str]) -> None:
        """Have exactly these reshapes undone."""
        if tuple(ids) != self._journal.undone_reshapes():
            self._journal.remember_undone_reshapes(ids)

    def receipts(self) -> tuple[Receipt, ...]:
        """The receipts of all executed reshapes, the oldest first."""
        return tuple(self._journal.reshapes(done=True).values())

    def ids_after(self, undo: str | None) -> tuple[str, ...]:
        """The ids of the undone reshapes once the receipt `undo` is undone, too; None: once all are redone.

        To undo the undoing of a reshape is to redo it. Raises UsageError where the receipt cannot be undone.
        """
        if undo is None:
            return ()
        done, undone = self._journal.reshapes(done=True), self._journal.undone_reshapes()
        receipt = done.get(undo)
        if receipt is None:
            raise UsageError(
                f"There is no receipt {undo!r}: `plimsoll reshape --dry-run` lists the receipts."
            )
        if receipt.undoes is not None:
            if receipt.undoes not in undone:
                raise UsageError(
                    f"The reshape {undo} undid {receipt.undoes}, which has been done again since: there is "
                    "nothing to undo."
                )
            return tuple(receipt_id for receipt_id in undone if receipt_id != receipt.undoes)
        if undo in undone:
            raise UsageError(f"The reshape {undo} is already undone; `plimsoll reshape` does it again.")
        _check_latest(receipt, list(done.values()), undone)
        return (*undone, undo)


def _check_latest(receipt: Receipt, done: Sequence[Receipt], undone: Sequence[str]) -> None:
    """Raises UsageError where a later reshape moved the same inventory."""
    slots = receipt.source_slots | receipt.target_slots
    ineffective = {other.undoes for other in done if other.undoes} | set(undone)
    for later in done[done.index(receipt) + 1 :]:
        if later.undoes is not None or later.id in ineffective:
            continue
        if slots & (later.source_slots | later.target_slots):
            raise UsageError(
                f"The reshape {later.id} has moved what {receipt.id} had moved: undo {later.id} first.",
                later=later.id,
            )
