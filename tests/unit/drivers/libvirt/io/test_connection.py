"""Deadlines; and work on a connection: one piece at a time, and a new session after one was lost."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import libvirt
import pytest
from kits.libvirt_node import domain, write_node

from agent.errors import DriverDataError, DriverUnavailable
from drivers.libvirt.io.connection import (
    CallDeadline,
    ChangeNotifier,
    Connection,
    DeadlineRunner,
    PendingReads,
    Session,
    Subscriptions,
    VcpuWatch,
)


def test_work_in_time_gives_its_result_or_its_error() -> None:
    runner = DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s=5, total_timeout_s=5)
    assert runner.run("count", lambda deadline: 3) == 3

    def fail(deadline: CallDeadline) -> None:
        raise DriverDataError("nonsense")

    with pytest.raises(DriverDataError, match="nonsense"):
        runner.run("fail", fail)


def test_a_call_that_hangs_is_left_behind_and_cleaned_up_when_it_comes_back() -> None:
    runner = DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s=0.05, total_timeout_s=5)
    go_on, late, went_on = threading.Event(), threading.Event(), threading.Event()

    def hang(deadline: CallDeadline) -> None:
        deadline.extend()
        go_on.wait(10)
        deadline.extend()
        went_on.set()

    with pytest.raises(DriverUnavailable, match=r"did not answer within 0\.\d s \(read the host\)"):
        runner.run("read the host", hang, late.set)
    assert not late.is_set()
    go_on.set()
    assert late.wait(5)
    assert not went_on.is_set(), "the work ends at its next call"


def test_many_short_calls_may_take_longer_than_one() -> None:
    runner = DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s=0.2, total_timeout_s=5)

    def work(deadline: CallDeadline) -> int:
        for _ in range(10):
            deadline.extend()
            time.sleep(0.03)
        return 10

    assert runner.run("many", work) == 10


def test_the_whole_has_a_deadline_too() -> None:
    runner = DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s=5, total_timeout_s=0.1)

    def work(deadline: CallDeadline) -> None:
        while True:
            deadline.extend()
            time.sleep(0.01)

    with pytest.raises(DriverUnavailable):
        runner.run("endless", work)


def test_one_call_may_be_given_more_time() -> None:
    runner = DeadlineRunner("libvirt", "look at libvirtd", call_timeout_s=0.05, total_timeout_s=5)

    def work(deadline: CallDeadline) -> bool:
        deadline.extend(5)
        time.sleep(0.2)
        return True

    assert runner.run("slow by nature", work)


def test_the_number_of_threads_left_behind_is_bounded() -> None:
    runner = DeadlineRunner(
        "libvirt", "look at libvirtd", call_timeout_s=0.01, total_timeout_s=5, stuck_max=2
    )
    go_on = threading.Event()
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(DriverUnavailable, match="did not answer"):
            runner.run("hang", lambda deadline: go_on.wait(10))
    with pytest.raises(
        DriverUnavailable,
        match=r"2 calls to libvirt are stuck, the agent starts no other \(more\): look at libvirtd",
    ):
        runner.run("more", lambda deadline: None)
    assert threading.active_count() == before + 2
    go_on.set()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert runner.run("again", lambda deadline: 1) == 1


class Watched:
    """A connection to libvirt's test driver, and what it reported."""

    def __init__(self, uri: str) -> None:
        self.opened: list[bool] = []
        self.disconnected: list[str] = []
        self.connection = Connection(
            uri,
            DeadlineRunner("libvirt", "look at libvirtd", 10, 10),
            PendingReads(),
            turn_timeout_s=0.05,
            changed=lambda why: None,
            opened=self.opened.append,
            disconnected=self.disconnected.append,
        )

    def count(self) -> int:
        return self.connection.run("count", lambda session: session.libvirt.numOfDomains(), lambda n: n)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(write_node(tmp_path / "node.xml", [domain(1)]))


def test_work_opens_the_session_and_the_next_work_uses_it(watched: Watched) -> None:
    sessions: list[Session] = []
    for _ in range(2):
        watched.connection.run("look", sessions.append, lambda nothing: nothing)
    assert sessions[0] is sessions[1]
    assert (watched.count(), watched.opened) == (1, [False])
    watched.connection.close()


def test_a_session_that_libvirt_reported_as_closed_is_replaced(watched: Watched) -> None:
    watched.count()
    watched.connection._connection_lost("the connection to libvirt was lost")
    assert watched.count() == 1
    assert watched.opened == [False, True]
    assert watched.disconnected == ["the connection to libvirt was lost"]
    watched.connection.close()


def test_a_second_piece_of_work_waits_for_its_turn_and_no_longer(watched: Watched) -> None:
    def second(session: Session) -> None:
        with pytest.raises(DriverUnavailable, match=r"earlier call yet, so the agent does not count"):
            watched.count()

    watched.connection.run("hold the turn", second, lambda nothing: nothing)
    watched.connection.close()


def test_a_closed_connection_refuses_work(watched: Watched) -> None:
    watched.count()
    watched.connection.close()
    watched.connection.close()
    with pytest.raises(DriverUnavailable, match="was closed"):
        watched.count()


def test_a_connection_that_cannot_be_opened_names_its_uri() -> None:
    with pytest.raises(DriverUnavailable, match="no connection to libvirt at test:///no/such/file"):
        Watched("test:///no/such/file").count()


# What must be read again, subscriptions to events that libvirt offers or not, and the threads that tell


def test_at_first_everything_is_out_of_date_and_then_what_was_named() -> None:
    pending_reads = PendingReads()
    assert pending_reads.take_domains() is None
    assert pending_reads.take_domains() == frozenset()
    pending_reads.add_domain("a")
    pending_reads.add_domain("a")
    assert pending_reads.take_domains() == {"a"}
    pending_reads.add_domain("b")
    pending_reads.add_everything()
    assert pending_reads.take_domains() is None


def test_devices_are_kept_apart_from_domains() -> None:
    pending_reads = PendingReads()
    pending_reads.take_devices()
    pending_reads.take_domains()
    pending_reads.add_device("pci_0000_41_00_0")
    assert pending_reads.take_domains() == frozenset()
    assert pending_reads.take_devices() == {"pci_0000_41_00_0"}
    pending_reads.add_all_devices()
    assert pending_reads.take_devices() is None
    pending_reads.add_all_domains()
    assert pending_reads.take_domains() is None


class Named:
    def name(self) -> str:
        return "thing"

    def UUIDString(self) -> str:
        return "uuid-1"


class FakeConnection:
    """Keeps the callbacks; refuses the kinds of events that are named."""

    def __init__(self, *refused: str) -> None:
        self.callbacks: dict[int, tuple[str, Callable[..., None]]] = {}
        self._refused = refused

    def _register(self, kind: str, callback: Callable[..., None]) -> int:
        if kind in self._refused:
            error = libvirt.libvirtError("not supported")
            error.err = (libvirt.VIR_ERR_NO_SUPPORT, 0, "not supported", 2, "", "", "", 0, 0)
            raise error
        self.callbacks[len(self.callbacks)] = (kind, callback)
        return len(self.callbacks) - 1

    def domainEventRegisterAny(self, _: Any, event: int, callback: Callable[..., None], opaque: Any) -> int:
        return self._register("domain", callback)

    def nodeDeviceEventRegisterAny(
        self, _: Any, event: int, callback: Callable[..., None], opaque: Any
    ) -> int:
        return self._register("device", callback)

    def storagePoolEventRegisterAny(
        self, _: Any, event: int, callback: Callable[..., None], opaque: Any
    ) -> int:
        return self._register("pool", callback)

    def registerCloseCallback(self, callback: Callable[..., None], opaque: Any) -> int:
        return self._register("close", callback)

    def _deregister(self, number: int) -> None:
        del self.callbacks[number]

    domainEventDeregisterAny = nodeDeviceEventDeregisterAny = storagePoolEventDeregisterAny = _deregister

    def unregisterCloseCallback(self) -> None:
        for number in [number for number, (kind, _) in self.callbacks.items() if kind == "close"]:
            del self.callbacks[number]

    def isAlive(self) -> bool:
        return True

    def fire(self, kind: str) -> None:
        callback = next(callback for name, callback in self.callbacks.values() if name == kind)
        callback(self, 0 if kind == "close" else Named(), None)


def subscribe(connection: FakeConnection) -> tuple[Subscriptions, PendingReads, list[str]]:
    pending_reads, reasons = PendingReads(), list[str]()
    pending_reads.take_domains()
    pending_reads.take_devices()
    return Subscriptions(connection, pending_reads, reasons.append, reasons.append), pending_reads, reasons


def test_an_event_names_what_must_be_read_again() -> None:
    connection = FakeConnection()
    subscriptions, pending_reads, reasons = subscribe(connection)
    assert subscriptions.has_domain_events and subscriptions.has_device_events
    for kind in ("domain", "device", "pool", "close"):
        connection.fire(kind)
    assert reasons == [
        "domain thing changed its state or definition",
        "device thing changed",
        "storage pool thing changed",
        "the connection to libvirt was lost",
    ]
    assert (pending_reads.take_domains(), pending_reads.take_devices()) == ({"uuid-1"}, {"thing"})


@pytest.mark.parametrize("kind", ["domain", "device"])
def test_events_that_libvirt_does_not_offer_are_known_to_be_missing(kind: str) -> None:
    subscriptions, _, _ = subscribe(FakeConnection(kind))
    assert subscriptions.has_domain_events == (kind != "domain")
    assert subscriptions.has_device_events == (kind != "device")


def test_cancelling_deregisters_every_callback() -> None:
    connection = FakeConnection()
    subscriptions, _, _ = subscribe(connection)
    assert connection.callbacks
    subscriptions.cancel()
    assert not connection.callbacks


def test_it_looks_again_after_a_failure_until_it_is_closed() -> None:
    looks = threading.Semaphore(0)

    def look() -> None:
        looks.release()
        raise DriverUnavailable("libvirtd is away")

    watch = VcpuWatch(look, interval_s=0.01)
    watch.start()
    for _ in range(3):
        assert looks.acquire(timeout=5)
    watch.close()
    while looks.acquire(blocking=False):
        pass
    assert not looks.acquire(timeout=0.05)


def test_after_the_close_of_the_watch_nothing_looks_any_more() -> None:
    """A look that is under way is waited for: the driver closes its connection next."""
    looking, looked = threading.Event(), threading.Event()

    def look() -> None:
        looking.set()
        time.sleep(0.1)
        looked.set()

    watch = VcpuWatch(look, interval_s=0.01)
    watch.start()
    assert looking.wait(5)
    watch.close()
    assert looked.is_set()


def test_the_watch_may_be_closed_by_its_own_look_before_its_start_and_twice() -> None:
    failures: list[Exception] = []

    def look() -> None:
        try:
            watch.close()
        except RuntimeError as error:
            failures.append(error)
        closed.set()

    closed = threading.Event()
    watch = VcpuWatch(look, interval_s=0.01)
    watch.start()
    assert closed.wait(5)
    watch.close()
    assert failures == []
    VcpuWatch(look).close()


@pytest.fixture
def told() -> "queue.Queue[str]":
    return queue.Queue()


def no_connection() -> None:
    raise DriverUnavailable("there is none")


def test_a_burst_of_events_is_told_once(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.05, longest_s=5)
    notifier.start()
    with closing(notifier):
        for _ in range(5):
            notifier.report_change("domain a changed")
            notifier.report_change("domain b changed")
            time.sleep(0.01)
        assert told.get(timeout=5) == "domain a changed; domain b changed"
        time.sleep(0.1)
        assert told.empty()


def test_events_without_end_are_told_after_a_while(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.1, longest_s=0.2)
    notifier.start()
    with closing(notifier):
        deadline = time.monotonic() + 5
        while told.empty() and time.monotonic() < deadline:
            notifier.report_change("domain a changed")
            time.sleep(0.01)
        assert told.get(timeout=1) == "domain a changed"


def test_many_reasons_are_counted(told: "queue.Queue[str]") -> None:
    notifier = ChangeNotifier(told.put, no_connection, quiet_s=0.01)
    for number in range(8):
        notifier.report_change(f"{number}")
    notifier.start()
    with closing(notifier):
        assert told.get(timeout=5) == "0; 1; 2; 3; 4; and 3 more"


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
    with closing(notifier):
        notifier.report_disconnect("the connection broke")
        assert told.get(timeout=5) == "the connection broke"
        assert connected.wait(5)
        assert tries[2] - tries[1] > tries[1] - tries[0] > 0.03, "the pauses grow"
        time.sleep(0.2)
        assert len(tries) == 3, "a connection that is there is not made again"


def test_a_connection_that_another_thread_opened_is_not_opened_again(told: "queue.Queue[str]") -> None:
    tries: list[int] = []
    notifier = ChangeNotifier(told.put, lambda: tries.append(1), quiet_s=0.01, reconnect_first_s=0.05)
    notifier.start_connecting()
    notifier.report_connect()
    notifier.start()
    with closing(notifier):
        time.sleep(0.15)
        assert tries == []


def test_close_ends_the_thread() -> None:
    notifier = ChangeNotifier(lambda why: None, no_connection)
    before = threading.active_count()
    notifier.start()
    notifier.close()
    assert threading.active_count() == before
