import queue
import threading
import time

import pytest

from agent.errors import DriverUnavailable
from drivers.libvirt.io.change_notifier import ChangeNotifier


@pytest.fixture
def told() -> "queue.Queue[str]":
    return queue.Queue()


def no_connection() -> None:
    raise DriverUnavailable("there is none")


def test_a_burst_of_events_is_told_once(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.05, longest_s=5)
    notifier.start()
    try:
        for _ in range(5):
            notifier.report_change("domain a changed")
            notifier.report_change("domain b changed")
            time.sleep(0.01)
        assert told.get(timeout=5) == "domain a changed; domain b changed"
        time.sleep(0.1)
        assert told.empty()
    finally:
        notifier.close()


def test_events_without_end_are_told_after_a_while(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.1, longest_s=0.2)
    notifier.start()
    try:
        deadline = time.monotonic() + 5
        while told.empty() and time.monotonic() < deadline:
            notifier.report_change("domain a changed")
            time.sleep(0.01)
        assert told.get(timeout=1) == "domain a changed"
    finally:
        notifier.close()


def test_many_reasons_are_counted(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.01)
    for number in range(8):
        notifier.report_change(f"{number}")
    notifier.start()
    try:
        assert told.get(timeout=5) == "0; 1; 2; 3; 4; and 3 more"
    finally:
        notifier.close()


def test_a_lost_connection_is_told_and_made_again(told: "queue.Queue[str]") -> None:
    tries: list[float] = []
    connected = threading.Event()

    def connect() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise DriverUnavailable("not yet")
        connected.set()

    notifier = ChangeNotifier(told.put, connect, quiet_s=0.01, reconnect_first_s=0.02)
    notifier.start()
    try:
        notifier.report_disconnect("the connection broke")
        assert told.get(timeout=5) == "the connection broke"
        assert connected.wait(5)
        assert tries[2] - tries[1] > tries[1] - tries[0] > 0.03, "the pauses grow"
        time.sleep(0.2)
        assert len(tries) == 3, "a connection that is there is not made again"
    finally:
        notifier.close()


def test_a_connection_that_another_thread_opened_is_not_opened_again(told: "queue.Queue[str]") -> None:
    tries: list[int] = []
    notifier = ChangeNotifier(told.put, lambda: tries.append(1), quiet_s=0.01, reconnect_first_s=0.05)
    notifier.start_connecting()
    notifier.report_connect()
    notifier.start()
    try:
        time.sleep(0.15)
        assert tries == []
    finally:
        notifier.close()


def test_close_ends_the_thread() -> None:
    notifier = ChangeNotifier(lambda why: None, no_connection)
    before = threading.active_count()
    notifier.start()
    notifier.close()
    assert threading.active_count() == before
