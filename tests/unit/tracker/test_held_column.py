"""The held column follows what the client reads and writes."""

from contextlib import closing
from pathlib import Path

from agent.placement.client import ConsumerAllocations
from agent.state.journal import Journal
from agent.tracker.held_column import HeldColumn
from agent.tracker.register import Register


def test_a_read_that_began_before_a_write_does_not_undo_it(tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)) as journal:
        register = Register(journal)
        column = HeldColumn(register)
        old, new = (ConsumerAllocations("web1", {"host": {"VCPU": amount}}) for amount in (1, 2))

        def ask() -> ConsumerAllocations:
            column.wrote([new])
            return old

        assert column.read("web1", ask) == old
        assert register.under_lock(lambda book: book.held_by("web1")) == new.allocations
        assert column.read("web1", lambda: old) == old
        assert register.under_lock(lambda book: book.held_by("web1")) == old.allocations
