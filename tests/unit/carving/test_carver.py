"""`plimsoll cpus` on a directory like a host's root: CPUs come up for claims, and down at a boot."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from agent.carving.carver import CpuPower
from agent.carving.cpus import CpuHold
from agent.carving.files import CPUS_NAME, read_cpu_file, write_cpu_file
from agent.carving.kernel import CpuKernel
from agent.cli.main import main
from agent.driver import HostSettings
from agent.errors import ExitCode, StateError

WEB = str(UUID(int=1))
OPTIONS = (
    "[compute]\ncpu_dedicated_set = 0-4\ncpu_power_management = {}\ncpu_power_management_strategy = {}\n"
)


class Host:
    """A host's root: CPUs 0 to 4, of which 0 cannot go offline, and a state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for cpu in range(5):
            folder = root / "sys/devices/system/cpu" / f"cpu{cpu}"
            (folder / "cpufreq").mkdir(parents=True)
            (folder / "cpufreq" / "scaling_governor").write_text("schedutil\n")
            if cpu:
                (folder / "online").write_text("1\n")
        self.state = root / "state"
        self.state.mkdir(mode=0o700)
        self.config = root / "plimsoll.conf"
        self.configure()

    def configure(self, management: str = "true", strategy: str = "cpu_state") -> None:
        options = OPTIONS.format(management, strategy)
        self.config.write_text(f"[DEFAULT]\nhost = here\nstate_path = {self.state}\n{options}")

    def holds(self, *cpus: int, awaited: bool = False) -> None:
        write_cpu_file(self.state, {WEB: CpuHold(frozenset(cpus), awaited)} if cpus else {})

    def libvirt_starts(self) -> None:
        (self.root / "run").mkdir()
        (self.root / "run/libvirtd.pid").write_text("1\n")

    def online(self) -> set[int]:
        return {0} | {cpu for cpu in range(1, 5) if self._cpu(cpu, "online") == "1"}

    def governors(self) -> list[str]:
        return [self._cpu(cpu, "cpufreq/scaling_governor") for cpu in range(5)]

    def run(self, *words: str) -> int:
        return main(["cpus", *words, "--config-file", str(self.config), "--root", str(self.root)])

    def _cpu(self, cpu: int, name: str) -> str:
        return (self.root / f"sys/devices/system/cpu/cpu{cpu}" / name).read_text().strip()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    tmp_path.chmod(0o700)
    return Host(tmp_path)


def test_a_boot_takes_idle_cpus_down_and_a_claim_brings_its_own_up(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.holds(2)
    assert host.run("plan") == ExitCode.DRIFT_FOUND
    assert host.online() == {0, 1, 2, 3, 4}
    assert host.run("apply") == ExitCode.DONE
    planned, applied = capsys.readouterr().out.split("take CPU 1 offline\n")[1:]
    assert planned == applied == "take CPU 3 offline\ntake CPU 4 offline\n"
    assert host.online() == {0, 2}
    host.libvirt_starts()
    host.holds(3, awaited=True)
    assert host.run("apply") == ExitCode.DONE
    assert host.online() == {0, 2, 3}, "CPU 2 is left to libvirt's hook: its guest may be starting"
    assert host.run("apply") == host.run("plan") == ExitCode.DONE
    assert capsys.readouterr().out == "bring CPU 3 online\nnothing to do\nnothing to do\n"


@pytest.mark.parametrize("sign", ["run/virtqemud.pid", "run/libvirt/qemu/vm1.xml"])
def test_nothing_goes_down_where_libvirt_or_a_guest_of_it_runs(host: Host, sign: str) -> None:
    (host.root / sign).parent.mkdir(parents=True)
    (host.root / sign).touch()
    host.holds()
    assert host.run("plan") == ExitCode.DONE


def test_nothing_goes_down_before_the_agent_said_who_has_what(host: Host) -> None:
    assert host.run("apply") == ExitCode.DONE
    assert host.online() == {0, 1, 2, 3, 4}


def test_governors(host: Host) -> None:
    host.configure(strategy="governor")
    host.holds(1, awaited=True)
    assert host.run("apply") == ExitCode.DONE
    assert host.governors() == ["schedutil", "performance", "powersave", "powersave", "powersave"]
    assert host.online() == {0, 1, 2, 3, 4}


def test_a_cpu_that_the_kernel_refuses_is_told_and_keeps_no_other_from_its_step(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.holds(1, 2, awaited=True)
    for cpu in (1, 2):
        (host.root / f"sys/devices/system/cpu/cpu{cpu}/online").write_text("0\n")

    class Stubborn(CpuKernel):
        def do(self, step: object) -> None:
            if getattr(step, "cpu", None) == 1:
                raise OSError(5, "Input/output error")
            super().do(step)  # type: ignore[arg-type]

    settings = HostSettings(cpu_dedicated_set=frozenset({1, 2}), cpu_power_management=True)
    taken, failures = CpuPower(Stubborn(host.root), settings, host.state).apply(lambda step: None)
    assert [step.cpu for step in taken] == [1, 2]
    assert failures == ("cannot bring CPU 1 online: Input/output error.",)
    assert 2 in host.online()


def test_a_claim_that_comes_during_a_run_is_seen_by_it(host: Host) -> None:
    host.libvirt_starts()
    for cpu in (1, 2):
        (host.root / f"sys/devices/system/cpu/cpu{cpu}/online").write_text("0\n")
    host.holds(1, awaited=True)
    settings = HostSettings(cpu_dedicated_set=frozenset({1, 2}), cpu_power_management=True)
    power = CpuPower(CpuKernel(host.root), settings, host.state)
    power.apply(lambda step: host.holds(1, 2, awaited=True))
    assert {1, 2} <= host.online()


def test_libvirt_that_starts_during_a_run_ends_what_goes_down(host: Host) -> None:
    host.holds()
    settings = HostSettings(cpu_dedicated_set=frozenset({1, 2}), cpu_power_management=True)
    power = CpuPower(CpuKernel(host.root), settings, host.state)
    taken, _ = power.apply(lambda step: host.libvirt_starts())
    assert [step.cpu for step in taken] == [1]


def test_a_file_that_others_may_write_is_refused(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.holds(1, awaited=True)
    (host.state / CPUS_NAME).chmod(0o666)
    with pytest.raises(StateError, match="others than the owner"):
        read_cpu_file(host.state)
    assert host.run("apply") == ExitCode.FAILED
    assert CPUS_NAME in capsys.readouterr().err


def test_the_answer_for_programs(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.libvirt_starts()
    (host.root / "sys/devices/system/cpu/cpu1/online").write_text("0\n")
    host.holds(1, awaited=True)
    for verb, more in (("plan", {}), ("apply", {"failures": []})):
        host.run(verb, "--output", "json")
        assert json.loads(capsys.readouterr().out) == {
            "steps": [{"cpu": 1, "state": "online", "text": "bring CPU 1 online"}],
            **more,
        }
