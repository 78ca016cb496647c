"""The lock of the model: exclusive, and fair to its writer."""

from __future__ import annotations

import threading
import time

from agent.placement.embedded.locks import WriterFirstLock


def test_busy_readers_do_not_keep_the_writer_out() -> None:
    lock = WriterFirstLock()
    stop = threading.Event()
    inside = 0
    together = 0

    def read() -> None:
        nonlocal inside, together
        while not stop.is_set():
            with lock.reading():
                inside += 1
                together = max(together, inside)
                time.sleep(0.005)
                inside -= 1

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    waits = []
    for _ in range(10):
        start = time.perf_counter()
        with lock.writing():
            waits.append(time.perf_counter() - start)
            assert inside == 0
        time.sleep(0.01)
    stop.set()
    for reader in readers:
        reader.join(10)
    assert together == 1
    assert sorted(waits)[5] < 0.5, "each reader that was there first holds it for 5 ms"


def test_a_writer_that_fails_leaves_the_lock_free() -> None:
    lock = WriterFirstLock()
    for enter in (lock.writing, lock.reading):
        try:
            with enter():
                raise LookupError
        except LookupError:
            pass
    with lock.reading():
        pass
