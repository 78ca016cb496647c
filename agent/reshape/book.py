"""Where intents and receipts of reshapes are kept durably; the journal is one."""

from collections.abc import Iterable
from typing import Any, Protocol

from agent.journal import Written
from agent.reshape.receipt import Receipt


class Book(Protocol):
    """See `agent.journal.Journal`; each method raises StateError."""

    def put_reshape(self, receipt: Receipt) -> Written: ...

    def drop_reshape(self, receipt_id: str) -> Written: ...

    def reshapes(self, *, done: bool) -> dict[str, Receipt]: ...

    def withheld(self) -> tuple[str, ...]: ...

    def remember_withheld(self, ids: Iterable[str]) -> None: ...

    def reserved_slots(self) -> list[Any]: ...

    def remember_reserved_slots(self, slots: list[Any]) -> None: ...
