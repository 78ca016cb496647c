"""The real daemon while a preloaded library sets its wall clock, and leaves the monotonic clock alone."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.daemon_process import Daemon, eventually
from kits.paths import DATA

DAY_S = 86_400
SIZES_S = [1, 3600, 400 * DAY_S, 4 * 365 * DAY_S]
STEPS_S = [sign * size for size in SIZES_S for sign in (1, -1)]
SOON_S = 4.0


class ClockedDaemon(Daemon):
    """A daemon whose wall clock can be set."""

    def set_clock(self, ahead_s: int) -> None:
        """So many seconds ahead of the machine's."""
        made = self.directory / "clock.new"
        made.write_text(str(ahead_s))
        made.replace(self.directory / "clock")

    def steps(self) -> list[float]:
        """The seconds by which the clock was set, as the history tells it; the oldest first."""
        told = [
            event["detail"]
            for event in self.client.get("/v1/history")["events"]
            if event["event"] == "clock_set"
        ]
        found = [re.search(r"set (forward|back) by ([0-9.]+) s", detail) for detail in reversed(told)]
        return [float(one[2]) * (1 if one[1] == "forward" else -1) for one in found if one]

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
    options = {"DEFAULT": {"compute_driver": "fake", "update_resources_interval": 1}}
    daemon = ClockedDaemon(tmp_path, options)
    daemon.environment = {"LD_PRELOAD": str(shim), "CLOCK_FILE": str(tmp_path / "clock")}
    daemon.set_clock(0)
    yield daemon
    daemon.close()


def check_work_goes_on(daemon: ClockedDaemon) -> None:
    """Passes follow each other, a claim is answered at once, and no core is busy with the clock."""
    began, busy_s = time.monotonic(), daemon.cpu_s()
    consumer = daemon.claim({"VCPU": 1})["consumer"]
    assert time.monotonic() - began < SOON_S
    for _ in range(2):
        before = daemon.passed_at()
        eventually("a pass", lambda before=before: daemon.passed_at() != before, SOON_S)
    daemon.release(consumer)
    assert daemon.cpu_s() - busy_s < 2 * SOON_S


@pytest.mark.slow
def test_the_agent_works_on_while_its_clock_is_set_forward_and_back(daemon: ClockedDaemon) -> None:
    daemon.start()
    made = daemon.claim({"VCPU": 1})["consumer"]
    for number, step_s in enumerate(STEPS_S, start=1):
        daemon.set_clock(step_s if number % 2 else 0)
        eventually("the step's event", lambda number=number: len(daemon.steps()) == number, SOON_S)
        check_work_goes_on(daemon)
    assert daemon.steps() == [pytest.approx(step_s, abs=0.6) for step_s in STEPS_S]
    assert daemon.status()["state"] == "ready" and daemon.claims().keys() == {made}


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
def test_a_resume_is_a_step_of_the_wall_clock_and_a_stopped_process_is_only_late(
    daemon: ClockedDaemon,
) -> None:
    """The monotonic clock stands still while a host is suspended; a stopped process finds both moved on."""
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
