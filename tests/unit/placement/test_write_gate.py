"""The agent's own writes of allocations wait for a write of inventories, and never for long."""

import threading
import time

from agent.placement.write_gate import WriteGate


def test_a_write_on_a_held_provider_waits_and_one_elsewhere_passes() -> None:
    gate, passed = WriteGate(), threading.Event()

    def write() -> None:
        with gate.passing({"a", "b"}):
            passed.set()

    writer = threading.Thread(target=write)
    with gate.held({"a"}):
        writer.start()
        with gate.passing({"c"}):
            pass
        assert not passed.wait(0.05)
    writer.join()
    assert passed.is_set()


def test_a_hold_begins_when_the_writes_under_way_have_ended() -> None:
    gate, begun = WriteGate(), threading.Event()

    def hold() -> None:
        with gate.held({"a"}):
            begun.set()

    holder = threading.Thread(target=hold)
    with gate.passing({"a"}):
        holder.start()
        assert not begun.wait(0.05)
    holder.join()
    assert begun.is_set()


def test_nobody_waits_for_longer_than_the_bound() -> None:
    gate = WriteGate(hold_max_s=0.05)
    started = time.monotonic()
    with gate.held({"a"}), gate.passing({"a"}), gate.held({"a"}):
        assert 0.05 <= time.monotonic() - started < 5
