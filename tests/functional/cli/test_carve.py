"""`plimsoll devices plan`, `apply` and `assert` on a directory that looks like sysfs, in a process each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.carved_sysfs import CarvedSysfs, SysfsCard
from kits.cli_process import one_line, plimsoll

from agent.carving.carver import FILE, CarvingJournal
from agent.carving.carving import NeededUnit, Step, StepKind
from agent.carving.files import PLAN_NAME, write_plan_file
from agent.carving.kernel import Kernel
from agent.cli.parser import build, defaults
from agent.driver import CarvedUnit
from agent.errors import ExitCode

pytest.importorskip("libvirt")

NIC = SysfsCard("0000:41:00.0", "igb", 7, 0x80, 2, "igbvf")
GPU = SysfsCard("0000:84:00.0", "nvidia", 4, 1, 1, "nvidia", vf_mdev_type="nvidia-471")
MIXED_GPU = SysfsCard("0000:85:00.0", "nvidia", 2, 1, 1, "nvidia", vendor_vfio=True)
MIXED_OPTIONS = """
[devices]
sriov_vfs = 0000:41:00.0=2, 0000:84:00.0=4, 0000:85:00.0=2
enabled_mdev_types = nvidia-470, nvidia-471
mixed_size_cards = 0000:85:00.0=A100 40 GB
[mdev_nvidia-470]
mdev_class = CUSTOM_VGPU_8
[mdev_nvidia-471]
mdev_class = CUSTOM_VGPU_10
"""
MDEV = "00000000-0000-0000-0000-000000000001"
OPTIONS = """
[devices]
sriov_vfs = 0000:41:00.0=2, 0000:84:00.0=4
driver_overrides = 0000:41:00.0/vfs=vfio-pci
enabled_mdev_types = nvidia-471
"""


class Host:
    """A host's root with a sysfs, settings, and a state directory with a plan file."""

    def __init__(self, root: Path, sysfs: CarvedSysfs) -> None:
        self.root, self.sysfs = root, sysfs
        self.state = root / "state"
        self.state.mkdir(mode=0o700)
        self.config = root / "plimsoll.conf"
        self.configure(OPTIONS)
        self.need(MDEV, GPU.vf_address(1), "nvidia-471")

    def configure(self, options: str) -> None:
        self.config.write_text(f"[DEFAULT]\nhost = here\nstate_path = {self.state}\n{options}")
        self.config.chmod(0o640)

    def need(self, unit: str, parent: str, type_id: str) -> None:
        carved = CarvedUnit(unit, parent, parent, type_id)
        write_plan_file(self.state, [NeededUnit(carved, "instance gpu1 (a0)")])

    def words(self, *words: str) -> list[str]:
        return ["devices", *words, "--config-file", str(self.config), "--root", str(self.root)]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(self.root / "no-agent", *self.words(*words))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    tmp_path.chmod(0o700)
    with CarvedSysfs(tmp_path, NIC, GPU, MIXED_GPU) as sysfs:
        yield Host(tmp_path, sysfs)


def test_a_plan_is_shown_then_applied_then_there_is_nothing_to_do(host: Host) -> None:
    before = host.sysfs.shape()
    for words in (("plan",), ("apply", "--dry-run"), ("assert",)):
        shown = host.run(*words)
        assert shown.returncode == ExitCode.DRIFT_FOUND, shown.stderr
        assert "write 2 to sriov_numvfs of 0000:41:00.0" in shown.stdout
        assert f"create mediated device {MDEV} of type nvidia-471 on 0000:84:00.2" in shown.stdout
    assert host.sysfs.shape() == before
    done = host.run("apply")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert host.sysfs.mdevs() == {MDEV: ("0000:84:00.2", "nvidia-471")}
    assert [host.sysfs.driver(vf) for vf in host.sysfs.vfs(NIC.address)] == ["vfio-pci", "vfio-pci"]
    for words in (("plan",), ("apply",), ("assert",)):
        again = host.run(*words)
        assert (again.returncode, again.stdout) == (ExitCode.DONE, "nothing to do\n")


def test_the_flag_before_the_verb_keeps_apply_from_writing(host: Host) -> None:
    before = host.sysfs.shape()
    shown = plimsoll(host.root / "no-agent", "devices", "--dry-run", *host.words("apply")[1:])
    assert shown.returncode == ExitCode.DRIFT_FOUND
    assert host.sysfs.shape() == before
    missing = plimsoll(host.root / "no-agent", "devices")
    assert missing.returncode == ExitCode.USAGE and "a command is missing" in one_line(missing)


def test_programs_get_the_steps(host: Host) -> None:
    found = json.loads(host.run("plan", "-o", "json").stdout)
    assert found["refusals"] == []
    assert found["steps"][0] == {
        "kind": "autoprobe",
        "card": "0000:41:00.0",
        "function": "0000:41:00.0",
        "value": "0",
        "unit": "",
        "text": "write 0 to sriov_drivers_autoprobe of 0000:41:00.0",
    }


def test_a_change_of_the_number_is_refused_with_who_holds_one(host: Host) -> None:
    assert host.run("apply").returncode == ExitCode.DONE
    host.configure(OPTIONS.replace("0000:84:00.0=4", "0000:84:00.0=2"))
    for words in (("plan",), ("apply",)):
        refused = host.run(*words)
        assert refused.returncode == ExitCode.REFUSED
        assert f"instance gpu1 (a0) has {MDEV} on 0000:84:00.2" in refused.stdout
    assert host.run("assert").returncode == ExitCode.DRIFT_FOUND
    assert len(host.sysfs.vfs(GPU.address)) == 4


@pytest.mark.parametrize(
    ("parent", "type_id"), [("0000:84:00.2", "nvidia-472"), ("0000:41:10.0", "nvidia-473")]
)
def test_the_agents_file_gives_no_more_than_the_options(host: Host, parent: str, type_id: str) -> None:
    host.need(MDEV, parent, type_id)
    refused = host.run("apply")
    assert refused.returncode == ExitCode.REFUSED and f"type {type_id}" in refused.stdout
    assert host.sysfs.mdevs() == {}


def test_a_file_that_others_can_write_stops_it_before_any_step(host: Host) -> None:
    (host.state / PLAN_NAME).chmod(0o666)
    failed = host.run("apply")
    assert failed.returncode == ExitCode.FAILED and "others than the owner" in one_line(failed)
    assert host.sysfs.vfs(NIC.address) == []


def test_a_process_that_is_killed_leaves_what_the_next_one_finishes(host: Host) -> None:
    command = [sys.executable, "-m", "agent.cli.main", *host.words("apply")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("bind 0000:41:10.0"):
                process.send_signal(signal.SIGKILL)
                break
    time.sleep(0.1)
    assert host.run("assert").returncode == ExitCode.DRIFT_FOUND
    assert host.run("apply").returncode == ExitCode.DONE
    assert host.run("assert").returncode == ExitCode.DONE
    assert host.sysfs.mdevs() == {MDEV: ("0000:84:00.2", "nvidia-471")}


def test_a_remote_placement_without_its_password_is_no_hindrance(host: Host) -> None:
    host.configure(OPTIONS + "[placement]\nkind = remote\nauth_url = http://k.example\nusername = u\n")
    assert host.run("plan").returncode == ExitCode.DRIFT_FOUND


def test_settings_that_the_agent_can_write_say_nothing_to_root(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    secrets = host.root / "secrets.conf"
    secrets.write_text("[placement]\nowner_trait = CUSTOM_OURS\n")
    secrets.chmod(0o600)
    os.chown(secrets, 12345, 12345)
    assert host.run("plan", "--config-file", str(secrets)).returncode == ExitCode.DRIFT_FOUND
    secrets.write_text("[devices]\nvgpu_types = 0000:84:00.1=nvidia-471\n")
    failed = host.run("apply", "--config-file", str(secrets))
    assert failed.returncode == ExitCode.FAILED and "others than root" in one_line(failed)
    assert host.sysfs.vfs(NIC.address) == []


def vgpu(number: int, type_id: str, place: int) -> NeededUnit:
    """What a claim needs of the card in mixed-size mode."""
    function = MIXED_GPU.vf_address(number)
    return NeededUnit(
        CarvedUnit(function, MIXED_GPU.address, function, type_id, place), f"instance vm{number}"
    )


def types(host: Host) -> list[str]:
    return [
        (host.sysfs.at(function) / "nvidia" / "current_vgpu_type").read_text().strip()
        for function in host.sysfs.vfs(MIXED_GPU.address)
    ]


@pytest.fixture
def carved(host: Host) -> Host:
    """A host whose functions are made, without any vGPU or mediated device."""
    host.configure(MIXED_OPTIONS)
    write_plan_file(host.state, [])
    assert host.run("apply").returncode == ExitCode.DONE
    return host


def test_after_a_claim_only_vgpus_of_cards_in_mixed_size_mode_are_made_and_taken_away(carved: Host) -> None:
    mdev = NeededUnit(CarvedUnit(MDEV, GPU.vf_address(1), GPU.vf_address(1), "nvidia-471"), "instance gpu1")
    write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12), mdev])
    carved.configure(MIXED_OPTIONS.replace("0000:41:00.0=2", "0000:41:00.0=4"))
    before = carved.sysfs.shape()
    shown = carved.run("plan", "--mixed-size")
    assert shown.returncode == ExitCode.DRIFT_FOUND
    assert carved.sysfs.shape() == before
    done = carved.run("apply", "--mixed-size")
    assert (done.returncode, done.stdout.splitlines()) == (
        ExitCode.DONE,
        ["write 470 to current_vgpu_type of 0000:85:00.1, at placement_id 12"],
    )
    assert types(carved) == ["470", "0"]
    assert carved.sysfs.mdevs() == {} and len(carved.sysfs.vfs(NIC.address)) == 2
    write_plan_file(carved.state, [vgpu(1, "nvidia-471", 20)])
    assert carved.run("apply", "--mixed-size").returncode == ExitCode.DONE
    assert types(carved) == ["0", "471"]


def test_a_claim_that_comes_while_the_vgpu_of_another_is_made_gets_its_own(
    carved: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12)])
    do = Kernel.do

    def claim_beside(kernel: Kernel, step: Step) -> None:
        write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12), vgpu(1, "nvidia-471", 20)])
        do(kernel, step)

    monkeypatch.setattr(Kernel, "do", claim_beside)
    args = build().parse_args(carved.words("apply", "--mixed-size"), defaults())
    assert args.run(args) is ExitCode.DONE
    assert types(carved) == ["470", "471"]


def test_a_run_waits_for_the_one_under_way(carved: Host) -> None:
    write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12)])
    with CarvingJournal(carved.root / FILE).alone():
        command = [sys.executable, "-m", "agent.cli.main", *carved.words("apply", "--mixed-size")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert types(carved) == ["0", "0"]
    assert process.wait(10) == ExitCode.DONE
    assert types(carved) == ["470", "0"]


def test_a_run_that_was_killed_is_finished_as_a_whole_before_claims_get_their_vgpus(carved: Host) -> None:
    cut_off = Step(StepKind.OVERRIDE, NIC.address, NIC.vf_address(0), "vfio-pci")
    CarvingJournal(carved.root / FILE).write([cut_off])
    (carved.sysfs.at(NIC.vf_address(0)) / "driver_override").write_text("vfio-pci\n")
    write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12)])
    done = carved.run("apply", "--mixed-size")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert (carved.sysfs.at(NIC.vf_address(0)) / "driver_override").read_text().strip() == ""
    assert types(carved) == ["470", "0"]
