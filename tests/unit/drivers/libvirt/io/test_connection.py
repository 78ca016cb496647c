"""Deadlines; and work on a connection: one piece at a time, and a new session after one was lost."""

import threading
import time
from pathlib import Path

import pytest
from kits.libvirt_node import domain, write_node

from agent.errors import DriverDataError, DriverUnavailable
from drivers.libvirt.io.connection import CallDeadline, Connection, DeadlineRunner, PendingReads, Session


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
