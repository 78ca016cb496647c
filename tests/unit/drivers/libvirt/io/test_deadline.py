import threading
import time

import pytest

from agent.errors import DriverDataError, DriverUnavailable
from drivers.libvirt.io.deadline import CallDeadline, DeadlineRunner


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
