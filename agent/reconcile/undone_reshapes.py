"""Where intents and receipts of reshapes are kept durably; the journal is one."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from agent.errors import UsageError
from agent.reshape.receipt import Receipt
from agent.reshape.withheld import Withheld
from agent.state.journal import Written


class ReshapeStore(Protocol):
    """See `agent.state.journal.Journal`; each method raises StateError."""

    def put_reshape(self, receipt: Receipt) -> Written: ...

    def drop_reshape(self, receipt_id: str) -> Written: ...

    def reshapes(self, *, done: bool) -> dict[str, Receipt]: ...

    def withheld(self) -> tuple[str, ...]: ...

    def remember_withheld(self, ids: Iterable[str]) -> None: ...

    def reserved_slots(self) -> list[Any]: ...

    def remember_reserved_slots(self, slots: list[Any]) -> None: ...


class UndoneReshapes:
    """What operators asked for, in the journal; each method raises StateError."""

    def __init__(self, book: ReshapeStore) -> None:
        self._book = book

    def ids(self) -> tuple[str, ...]:
        return self._book.withheld()

    def of(self, ids: Sequence[str]) -> Withheld:
        if not ids:
            return Withheld()
        done = self._book.reshapes(done=True)
        return Withheld(tuple(done[each] for each in ids if each in done))

    def keep(self, ids: Sequence[str]) -> None:
        """Withhold these and no others."""
        if tuple(ids) != self._book.withheld():
            self._book.remember_withheld(ids)

    def receipts(self) -> tuple[Receipt, ...]:
        """What was done, the oldest first."""
        return tuple(self._book.reshapes(done=True).values())

    def asked(self, undo: str | None) -> tuple[str, ...]:
        """The ids to withhold where `undo` is to be undone; without it, where all is to be done.

        To undo what undid another is to do that one again. Raises UsageError where it cannot be undone.
        """
        if undo is None:
            return ()
        done, before = self._book.reshapes(done=True), self._book.withheld()
        receipt = done.get(undo)
        if receipt is None:
            raise UsageError(
                f"There is no receipt {undo!r}: `plimsoll reshape --dry-run` lists those that there are."
            )
        if receipt.undoes is not None:
            if receipt.undoes not in before:
                raise UsageError(
                    f"The reshape {undo} undid {receipt.undoes}, which has been done again since: nothing is "
                    "to be undone."
                )
            return tuple(each for each in before if each != receipt.undoes)
        if undo in before:
            raise UsageError(f"The reshape {undo} is undone already: `plimsoll reshape` does it again.")
        self._check_latest(receipt, list(done.values()), before)
        return (*before, undo)

    def _check_latest(self, receipt: Receipt, done: Sequence[Receipt], undone: Sequence[str]) -> None:
        mine = receipt.source_slots | receipt.target_slots
        gone = {each.undoes for each in done if each.undoes} | set(undone)
        for later in done[done.index(receipt) + 1 :]:
            if later.undoes is not None or later.id in gone:
                continue
            if mine & (later.source_slots | later.target_slots):
                raise UsageError(
                    f"What the reshape {receipt.id} moved was moved again by {later.id}: undo that first.",
                    later=later.id,
                )
