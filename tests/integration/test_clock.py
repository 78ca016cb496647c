"""The real daemon while a preloaded library sets its wall clock, and leaves the monotonic clock alone."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.daemon_process import Daemon, eventually
from kits.paths import DATA
from kits.placements import OpenStack

from agent.http.unix_connection import UnixConnection

DAY_S = 86_400
SIZES_S = [1, 3600, 400 * DAY_S, 4 * 365 * DAY_S]
STEPS_S = [sign * size for size in SIZES_S for sign in (1, -1)]
SOON_S = 4.0
DELIVERED_S = 30.0
"""The agent delivers every ten seconds, and after a back-off while Placement does not answer."""
TOLD_S = 1.0 + 0.5
"""A step is noticed within a second; half a second is for the history, and for asking."""


class ClockedDaemon(Daemon):
    """A daemon whose wall clock can be set."""

    def set_clock(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's."""
        self._write("clock", ahead_s)

    def resume(self, slept_s: int) -> None:
        """After a suspension of so many seconds: two of the three clocks went on."""
        self._write("suspended", slept_s)
        self._write("clock", slept_s)

    def _write(self, name: str, seconds: int) -> None:
        made = self.directory / f"{name}.new"
        made.write_text(str(seconds))
        made.replace(self.directory / name)

    def steps(self) -> list[float]:
        """The seconds by which the clock was set, as the history tells it; the oldest first."""
        told = [
            event["detail"]
            for event in self.client.get("/v1/history")["events"]
            if event["event"] == "clock_set"
        ]
        found = [re.search(r"set (forward|back) by ([0-9.]+) s", detail) for detail in reversed(told)]
        return [float(one[2]) * (1 if one[1] == "forward" else -1) for one in found if one]

    def count(self, event: str) -> int:
        """How often the history has the event."""
        return sum(each["event"] == event for each in self.client.get("/v1/history")["events"])

    def reads(self) -> float:
        """How many requests have read from Placement."""
        with closing(UnixConnection(str(self.socket), SOON_S)) as connection:
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
        found = re.findall(r'^plimsoll_placement_requests_total{method="GET",.*} (.*)$', metrics, re.M)
        return sum(map(float, found))

    def cpu_s(self) -> float:
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def passed_at(self) -> str:
        return str(self.status()["last_pass"]["at"])


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("without a C compiler; ./dev test installs one")
    library = tmp_path_factory.mktemp("clock") / "set_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, DATA / "set_clock.c", "-ldl"], check=True)
    return library


@pytest.fixture
def daemon(tmp_path: Path, shim: Path) -> Iterator[ClockedDaemon]:
    options = {
        "DEFAULT": {"compute_driver": "fake", "update_resources_interval": 1},
        "compute": {"resource_provider_association_refresh": 1},
    }
    daemon = ClockedDaemon(tmp_path, options)
    daemon.environment = {
        "LD_PRELOAD": str(shim),
        "CLOCK_FILE": str(tmp_path / "clock"),
        "SUSPENDED_FILE": str(tmp_path / "suspended"),
    }
    daemon.set_clock(0)
    yield daemon
    daemon.close()


def check_work_goes_on(daemon: ClockedDaemon) -> None:
    """Passes and verifications follow each other, a claim is answered at once, and no core is busy."""
    began, busy_s = time.monotonic(), daemon.cpu_s()
    consumer = daemon.claim({"VCPU": 1})["consumer"]
    assert time.monotonic() - began < SOON_S / 2
    for _ in range(2):
        before = daemon.passed_at()
        eventually("a pass", lambda before=before: daemon.passed_at() != before, SOON_S)
    daemon.release(consumer)
    reads = daemon.reads()
    eventually("two verifications", lambda: daemon.reads() >= reads + 2, 2 * SOON_S)
    assert daemon.cpu_s() - busy_s < SOON_S / 2


@pytest.mark.slow
def test_the_agent_works_on_while_its_clock_is_set_forward_and_back(daemon: ClockedDaemon) -> None:
    daemon.start()
    made = daemon.claim({"VCPU": 1})["consumer"]
    for number, step_s in enumerate(STEPS_S, start=1):
        daemon.set_clock(step_s if number % 2 else 0)
        eventually("the step's event", lambda number=number: len(daemon.steps()) == number, TOLD_S)
        check_work_goes_on(daemon)
    assert daemon.steps() == [pytest.approx(step_s, abs=0.6) for step_s in STEPS_S]
    assert daemon.status()["state"] == "ready" and daemon.claims().keys() == {made}


@pytest.mark.slow
def test_a_release_that_waits_for_placement_is_delivered_after_the_clock_was_set_back(
    daemon: ClockedDaemon, openstack: OpenStack
) -> None:
    """No pass is due: the agent delivers by a job of its own, whose plan a step moves along."""
    openstack.empty()
    daemon.options["DEFAULT"]["update_resources_interval"] = 3600
    daemon.options["placement"] = {"kind": openstack.kind, **openstack.options}
    daemon.write()
    daemon.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    made = daemon.claim({"VCPU": 1})["consumer"]
    openstack.close_door()
    try:
        assert not daemon.client.request("DELETE", f"/v1/claims/{made}")["released"]
        daemon.set_clock(-SIZES_S[-1])
        eventually("the step's event", daemon.steps, TOLD_S)
    finally:
        openstack.open_door()
    eventually("the delivery", lambda: daemon.used() == {} and daemon.claims() == {}, DELIVERED_S)


@pytest.mark.slow
def test_a_start_with_the_clock_in_the_past_and_time_after_it(daemon: ClockedDaemon) -> None:
    daemon.start()
    made = daemon.claim({"VCPU": 1})["consumer"]
    daemon.kill()
    daemon.set_clock(-SIZES_S[-1])
    daemon.start()
    check_work_goes_on(daemon)
    daemon.set_clock(0)
    eventually("the step's event", daemon.steps, SOON_S)
    check_work_goes_on(daemon)
    assert daemon.claims().keys() == {made}


@pytest.mark.slow
def test_a_stopped_process_is_late_and_its_clock_may_have_been_set(daemon: ClockedDaemon) -> None:
    daemon.start()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    daemon.process.send_signal(signal.SIGCONT)
    check_work_goes_on(daemon)
    assert daemon.steps() == []
    daemon.process.send_signal(signal.SIGSTOP)
    daemon.set_clock(8 * 3600)
    daemon.process.send_signal(signal.SIGCONT)
    check_work_goes_on(daemon)
    assert daemon.steps() == [pytest.approx(8 * 3600, abs=0.6)]


@pytest.mark.slow
def test_after_a_suspension_the_agent_looks_at_once_and_tells_no_step(daemon: ClockedDaemon) -> None:
    """The monotonic clock stands still while a host is suspended, the others go on."""
    daemon.options["DEFAULT"]["update_resources_interval"] = 3600
    daemon.write()
    daemon.start()
    before = daemon.passed_at()
    daemon.resume(60)  # no pass is due yet
    eventually("it is told", lambda: daemon.count("resumed") == 1, 2 * TOLD_S)
    eventually("a pass", lambda: daemon.passed_at() != before, 2 * TOLD_S)
    assert daemon.steps() == []
    daemon.set_clock(0)
    eventually("the step's event", daemon.steps, TOLD_S)
    assert daemon.steps() == [pytest.approx(-60, abs=0.6)] and daemon.count("resumed") == 1
