"""`plimsoll devices` on a real agent with cards, and its verbs that need no agent, on what looks like
sysfs.

The cordons are agent.tracker.cordons', the list is of agent.api.routes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.agent import world_of
from kits.api_client import serving
from kits.carved_sysfs import CarvedSysfs, SysfsCard
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import Sight
from kits.xe_debugfs import LAYOUTS, XeDebugfs

from agent.carving.carver import FILE, CarvingJournal
from agent.carving.carving import NeededUnit, Step, StepKind
from agent.carving.files import PLAN_NAME, write_plan_file
from agent.carving.kernel import Kernel
from agent.cli.parser import build, defaults
from agent.config.settings import load
from agent.driver import ROOT_SIGHT, CarvedUnit
from agent.errors import ExitCode
from agent.state.operators import Cordon
from drivers.fake.host import Gpu

VF = "0000:41:02.0"
WEB = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
NIC, VFS = "0000:41:00.0", [f"0000:41:02.{number}" for number in range(8)]
WHOLE_GPU = "0000:83:00.0"


def devices(path: Path) -> dict[str, dict[str, object]]:
    answer = json.loads(output_of(path, "devices", "list", "-o", "json"))
    return {device["unit"]: device for device in answer["devices"]}


def reserved(shown: Sight, name: str) -> int:
    shown.world.agent.reconcile("a test")
    tree, _ = shown.world.operations.tree()
    return sum(each.inventories[name].reserved for each in tree if name in each.inventories)


def claim(path: Path, *resources: str) -> list[str]:
    answer = json.loads(output_of(path, "claim", "--resources", ",".join(resources), "-o", "json"))
    return [unit for here in answer["units"].values() for units in here.values() for unit in units]


def test_devices_are_listed_with_who_has_them(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    assert devices(path)[VF]["holder"] is None
    assert devices(path)[VF]["holder_name"] == ""
    output_of(path, "claim", WEB, "--name", "web1", "--resources", "SRIOV_NET_VF=1")
    (unit,) = (unit for unit, device in devices(path).items() if device["holder"] == WEB)
    assert devices(path)[unit]["holder_name"] == "web1"
    columns = ("-c", "device", "-c", "holder", "-c", "name")
    assert f'"{unit}","{WEB}","web1"' in output_of(path, "devices", "list", *columns, "-o", "csv")
    assert "PCPU" not in output_of(path, "devices", "list")


def test_a_cordoned_device_is_offered_to_nobody_and_cleared_again(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    before = reserved(shown, "SRIOV_NET_VF")
    said = output_of(path, "devices", "cordon", VF, "--reason", "loses its link")
    assert said == f"cordoned: {VF} is given to no guest until `plimsoll devices clear`\n"
    assert reserved(shown, "SRIOV_NET_VF") == before + 1
    assert f"The device {VF} is cordoned by uid {os.getuid()}: loses its link." in output_of(path, "status")
    assert "cordoned: loses its link" in output_of(path, "devices", "list")
    explained = output_of(path, "explain", VF)
    assert "It is withheld: no claim has it" in explained and "is cordoned by uid" in explained
    given = [claim(path, "SRIOV_NET_VF=1") for _ in VFS[1:]]
    assert sorted(unit for (unit,) in given) == VFS[1:]
    refused = plimsoll(path, "claim", "--resources", "SRIOV_NET_VF=1")
    assert refused.returncode == ExitCode.REFUSED
    assert "1 more cordoned or unhealthy (`plimsoll devices list`)" in one_line(refused)
    output_of(path, "devices", "clear", VF)
    assert reserved(shown, "SRIOV_NET_VF") == before
    assert claim(path, "SRIOV_NET_VF=1") == [VF]


def test_a_cordon_holds_at_once_before_any_pass(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "devices", "cordon", WHOLE_GPU)
    refused = plimsoll(path, "claim", "--resources", "PGPU=1")
    assert refused.returncode == ExitCode.REFUSED
    output_of(path, "devices", "clear", WHOLE_GPU)
    assert claim(path, "PGPU=1") == [WHOLE_GPU]


def test_who_has_a_cordoned_device_keeps_it_and_nobody_gets_it_after(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    before = reserved(shown, "PGPU")
    output_of(path, "claim", "--name", "train", "--resources", "PGPU=1")
    output_of(path, "devices", "cordon", WHOLE_GPU)
    assert reserved(shown, "PGPU") == before, "its holder's allocation stays within the capacity"
    assert json.loads(output_of(path, "audit", "-o", "json"))["findings"] == []
    output_of(path, "release", "train")
    assert plimsoll(path, "claim", "--resources", "PGPU=1").returncode == ExitCode.REFUSED
    assert reserved(shown, "PGPU") == before + 1


def test_the_address_of_a_card_stands_for_all_that_it_offers(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.change(flat_devices=False)
    shown.world.agent.reconcile("a test")
    output_of(path, "devices", "cordon", NIC)
    assert plimsoll(path, "claim", "--resources", "SRIOV_NET_VF=1").returncode == ExitCode.REFUSED
    assert all(devices(path)[vf]["cordon"] for vf in VFS)


def test_a_cordon_outlives_the_agent(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    output_of(path, "devices", "cordon", WHOLE_GPU, "--reason", "sent in")
    shown.world.close()
    with (
        world_of(load([shown.directory / "plimsoll.conf"])) as again,
        serving(again.operations, shown.directory / "t"),
    ):
        refused = plimsoll(shown.directory / "t", "claim", "--resources", "PGPU=1")
        assert refused.returncode == ExitCode.REFUSED
        assert "sent in" in output_of(shown.directory / "t", "status")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cordon", "0000:ff:00.0"), "0000:ff:00.0 is no device that this host offers"),
        (("cordon", ""), "ADDRESS is an empty text"),
        (("clear", VF), f"{VF} is neither cordoned nor unhealthy"),
        (("cordon", VF, "--reason", "x" * 256), "reason"),
    ],
)
def test_what_cannot_be_cordoned_or_cleared_is_said(
    fresh: tuple[Sight, Path], words: tuple[str, ...], said: str
) -> None:
    refused = plimsoll(fresh[1], "devices", *words)
    assert refused.returncode == ExitCode.USAGE
    assert said in one_line(refused)


def test_a_card_without_exact_units_is_named_as_what_it_is(fresh: tuple[Sight, Path]) -> None:
    """The tree shows it, and `plimsoll devices list` does not."""
    shown, path = fresh
    card = Gpu("0000:85:00.0", "PGPU")
    shown.world.driver.change(flat_devices=False, gpus=(card, *shown.world.driver.host.gpus))
    shown.world.agent.reconcile("an event")
    refused = plimsoll(path, "devices", "cordon", "0000:85:00.0")
    assert refused.returncode == ExitCode.USAGE
    said = one_line(refused)
    assert "_pci_0000:85:00.0, but the driver names no exact units of its PGPU" in said
    assert "set [DEFAULT] cap = PGPU=N" in said


def test_two_devices_that_are_cordoned_at_once_are_both_cordoned(
    fresh: tuple[Sight, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, path = fresh
    journal, first_is_on_disk = shown.world.journal, threading.Event()
    write = journal.remember_cordons

    def write_slowly(cordons: Mapping[str, Cordon], event: str, detail: str) -> None:
        write(cordons, event, detail)
        first_is_on_disk.set()
        time.sleep(0.2)  # the other request comes before this one has ended

    monkeypatch.setattr(journal, "remember_cordons", write_slowly)
    with ThreadPoolExecutor(2) as threads:
        cordons = [Cordon(unit, "", 0, 1.0) for unit in VFS[:2]]
        first = threads.submit(shown.world.operations.cordon, cordons[0])
        assert first_is_on_disk.wait(10)
        second = threads.submit(shown.world.operations.cordon, cordons[1])
        first.result(10)
        second.result(10)
    assert journal.cordons() == {cordon.address: cordon for cordon in cordons}
    listed = devices(path)
    assert all(listed[unit]["cordon"] for unit in VFS[:2])


pytest.importorskip("libvirt")

CARD = SysfsCard("0000:41:00.0", "igb", 7, 0x80, 2, "igbvf")
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
CARD_VFS = [CARD.vf_address(number) for number in range(2)]
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
    with CarvedSysfs(tmp_path, CARD, GPU, MIXED_GPU) as sysfs:
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
    assert [host.sysfs.driver(vf) for vf in host.sysfs.vfs(CARD.address)] == ["vfio-pci", "vfio-pci"]
    for words in (("plan",), ("apply",), ("assert",)):
        again = host.run(*words)
        assert (again.returncode, again.stdout) == (ExitCode.DONE, "nothing to do\n")


def test_what_only_root_sees_of_devices_is_written_for_the_agent_to_read(host: Host) -> None:
    """Functions that VFIO has from this boot on are among it; a run after a claim writes nothing."""
    file, shown = host.root / ROOT_SIGHT, host.root / "sys" / "kernel" / "debug" / "vfio"
    assert host.run("apply", "--mixed-size").returncode == ExitCode.DONE and not file.exists()
    for address, migrates in zip(CARD_VFS, (True, False), strict=True):
        (shown / address / "migration" if migrates else shown / address).mkdir(parents=True)
    (shown / "0a1b-not-pci").mkdir()
    assert host.run("plan").returncode == ExitCode.DRIFT_FOUND and not file.exists()
    assert host.run("apply").returncode == ExitCode.DONE
    assert json.loads(file.read_text())["migrates"] == {
        address: {"vfio-pci": migrates} for address, migrates in zip(CARD_VFS, (True, False), strict=True)
    }
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o644, 0o755)
    file.unlink()
    file.mkdir()
    failed = host.run("apply")
    assert failed.returncode == ExitCode.FAILED and f"not done: {file} cannot be written" in failed.stdout


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
    assert host.sysfs.vfs(CARD.address) == []


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
    assert host.sysfs.vfs(CARD.address) == []


XE = SysfsCard("0000:03:00.0", "xe", 4, 1, 1, "xe")
XE_OPTIONS = """
[devices]
sriov_vfs = 0000:03:00.0={number}
driver_overrides = 0000:03:00.0/vfs=vfio-pci
context_quotas = 0000:03:00.0=8192/32
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_contexts_of_functions_are_planned_written_and_refused_where_debugfs_is_shut(
    tmp_path: Path, layout: str
) -> None:
    tmp_path.chmod(0o700)
    with CarvedSysfs(tmp_path, XE) as sysfs:
        host, debugfs = Host(tmp_path, sysfs), XeDebugfs(sysfs.sys, XE.address, layout)
        write_plan_file(host.state, [])
        host.configure(XE_OPTIONS.format(number=4))
        shown = host.run("plan")
        assert shown.returncode == ExitCode.DRIFT_FOUND
        assert shown.stdout.splitlines()[-1] == (
            "write 8192/32 to contexts_quota and doorbells_quota of 0000:03:00.4"
        )
        assert host.run("apply").returncode == ExitCode.DONE
        assert host.run("assert").returncode == ExitCode.DONE
        assert [debugfs.of(vf) for vf in (1, 4, 5)] == [("8192/32",) * 2, ("8192/32",) * 2, ("0/0",) * 2]
        lockdown = sysfs.sys / "kernel" / "security" / "lockdown"
        lockdown.parent.mkdir()
        lockdown.write_text("none [integrity] confidentiality\n")
        for words, code in (("plan", ExitCode.REFUSED), ("assert", ExitCode.DRIFT_FOUND)):
            refused = host.run(words)
            assert refused.returncode == code and "the kernel is locked down" in refused.stdout
        lockdown.unlink()
        host.configure(XE_OPTIONS.format(number=2))
        assert host.run("apply").returncode == ExitCode.DONE
        if layout == "6.19":
            assert (debugfs.root / "sriov" / "restore_auto_provisioning").read_text() == "1\n"


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
    assert carved.sysfs.mdevs() == {} and len(carved.sysfs.vfs(CARD.address)) == 2
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
    cut_off = Step(StepKind.OVERRIDE, CARD.address, CARD.vf_address(0), "vfio-pci")
    CarvingJournal(carved.root / FILE).write([cut_off])
    (carved.sysfs.at(CARD.vf_address(0)) / "driver_override").write_text("vfio-pci\n")
    write_plan_file(carved.state, [vgpu(0, "nvidia-470", 12)])
    done = carved.run("apply", "--mixed-size")
    assert done.returncode == ExitCode.DONE, done.stdout + done.stderr
    assert (carved.sysfs.at(CARD.vf_address(0)) / "driver_override").read_text().strip() == ""
    assert types(carved) == ["470", "0"]
