"""The book's held column follows all that the agent's client reads and writes of consumers' allocations."""

from collections.abc import Callable, Iterable

from agent.placement.client import AllocationObserver, ConsumerAllocations
from agent.tracker.register import Register


class HeldColumn(AllocationObserver):
    """Enters into the register what one client reads and writes. Any thread may call."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def read(self, consumer: str, ask: Callable[[], ConsumerAllocations]) -> ConsumerAllocations:
        """Enter what Placement says, unless the agent wrote the consumer while Placement answered."""
        with self._register.reading() as reading:
            held = ask()
            self._register.enter_held(consumer, held.allocations, reading)
        return held

    def wrote(self, writes: Iterable[ConsumerAllocations]) -> None:
        """Enter what Placement holds from now on."""
        self._register.enter_written({write.consumer: write.allocations for write in writes})

    def waited(self, consumers: Iterable[str], why: str) -> None:
        """Enter it into the history: who looks for the reason of a late answer finds it there."""
        self._register.note_wait(consumers, why)
