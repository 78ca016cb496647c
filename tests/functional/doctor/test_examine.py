"""`plimsoll doctor` on a host that is well, and on each thing that may be wrong with one."""

import errno
import grp
import json
import os
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.agent import told
from kits.agent_process import Agent
from kits.cli_process import plimsoll
from kits.pci_tree import PciTree
from kits.placements import Embedded

from agent.cli.main import main
from agent.config.check import unusable_state_path
from agent.config.settings import Settings, load
from agent.doctor.check import CheckVerdict, DoctorCheck, good
from agent.doctor.examine import (
    NEW_DIRECTORY,
    agent_user,
    check_agent,
    check_databases,
    check_hypervisor,
    check_identity,
    check_placement,
    check_rights,
    check_state_directory,
    check_writable,
    checks_as,
    examine,
    examine_device,
)
from agent.durable import errors
from agent.errors import DaemonUnreachable, DriverSlow, ExitCode, Forbidden, PlimsollError, SettingsError
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from drivers.fake.driver import FakeDriver

NOBODY = 65534
HOST = "0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def nobody(socket: str) -> object:
    raise DaemonUnreachable(f"no agent listens at {socket}", socket=socket)


class Patient:
    """A configuration and a state directory, examined without an agent."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.state.mkdir(mode=0o700)
        self.file = directory / "plimsoll.conf"
        self.write()

    def write(self, more: str = "") -> None:
        self.file.write_text(
            f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {self.state}\n"
            f"[api]\nsocket = {self.state}/s\n{more}",
            encoding="utf-8",
        )

    def verdicts(self, name: str) -> list[tuple[str, str]]:
        """(verdict, sentence and remedy) of each check of that name."""
        return [
            (each.verdict.value, f"{each.sentence} {each.remedy}")
            for each in examine((self.file,), (), nobody)
            if each.name == name
        ]


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the agent's user")
def test_root_learns_that_the_agents_user_may_not_write(patient: Patient) -> None:
    """Root may write to any directory, whatever its mode."""
    os.chown(patient.state, NOBODY, NOBODY)
    patient.state.chmod(0o555)
    (refused,) = (text for verdict, text in patient.verdicts("state") if verdict == "bad")
    assert "nobody may not" in refused  # pytest's directories are closed to others: it may not enter them


def test_a_running_agent_is_well(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.start()
    try:
        done = agent("doctor", "--config-file", str(agent.file), "-o", "json")
    finally:
        agent.stop()
    found = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == ExitCode.DONE, done.stdout
    for name in (
        "versions",
        "settings",
        "state",
        "disk",
        "identity",
        "database",
        "agent",
        "placement",
        "driver",
    ):
        assert found[name]["verdict"] == "good", found[name]
    assert "node1" in found["identity"]["sentence"] and "is ready" in found["agent"]["sentence"]


def test_the_agent_is_asked_where_the_command_says(patient: Patient) -> None:
    named = patient.state / "elsewhere"
    done = plimsoll(patient.state / "s", "--socket", str(named), "doctor", "--config-file", str(patient.file))
    assert f"No agent answers at {named}." in done.stdout


def test_a_host_before_its_first_start_has_no_bad_thing(patient: Patient) -> None:
    patient.state.rmdir()
    verdicts = [each.verdict.value for each in examine((patient.file,), (), nobody)]
    assert "bad" not in verdicts
    assert not patient.state.exists(), "the doctor changes nothing"


def test_bad_settings_are_said_and_nothing_is_guessed_after_them(patient: Patient) -> None:
    patient.write("[log]\nlevle = debug\n")
    ((verdict, told),) = patient.verdicts("settings")
    assert verdict == "bad" and "levle" in told and "level" in told
    assert patient.verdicts("driver") == []


def test_a_state_directory_that_anybody_may_write(patient: Patient) -> None:
    patient.state.chmod(0o777)
    ((verdict, told),) = patient.verdicts("state")
    assert verdict == "bad" and f"chmod 0700 {patient.state}" in told


@pytest.mark.parametrize("mode", [0o750, 0o755])
def test_a_state_directory_that_others_may_look_into(patient: Patient, mode: int) -> None:
    patient.state.chmod(mode)
    ((verdict, told),) = patient.verdicts("state")
    assert verdict == "warning" and f"{mode:04o}" in told and f"chmod 0700 {patient.state}" in told


def test_a_damaged_database_is_named(patient: Patient) -> None:
    path = patient.state / "agent.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE one (value TEXT) STRICT")
        database.executemany("INSERT INTO one VALUES (?)", [("x" * 1000,)] * 50)
    database.close()
    path.chmod(0o600)
    assert [verdict for verdict, _ in patient.verdicts("database")] == ["good"]
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    ((verdict, told),) = patient.verdicts("database")
    assert verdict == "bad" and str(path) in told and "backup" in told


def test_no_database_at_all_is_named_too(patient: Patient) -> None:
    (patient.state / "placement.db").write_bytes(b"no database" * 1000)
    ((verdict, told),) = patient.verdicts("database")
    assert verdict == "bad" and "placement.db is damaged" in told


def test_a_database_that_others_may_read(patient: Patient) -> None:
    path = patient.state / "agent.db"
    sqlite3.connect(path).close()
    path.chmod(0o644)
    ((verdict, told),) = patient.verdicts("database")
    assert verdict == "warning" and f"chmod 0600 {path}" in told


def test_a_lost_uuid_file_is_told_before_the_agent_refuses_to_start(patient: Patient) -> None:
    (patient.state / "agent.db").touch(mode=0o600)
    ((verdict, told),) = patient.verdicts("identity")
    assert verdict == "bad" and "host_id is gone" in told


def test_a_renamed_host(patient: Patient) -> None:
    (patient.state / "host_id").write_text(f"{HOST}\n", encoding="utf-8")
    (patient.state / "host_name").write_text("node0\n", encoding="utf-8")
    ((verdict, told),) = patient.verdicts("identity")
    assert verdict == "bad" and "node0" in told and "plimsoll adopt" in told


def test_a_hypervisor_that_is_away(patient: Patient, tmp_path: Path) -> None:
    pytest.importorskip("libvirt", reason="libvirt's binding is not installed")
    patient.write(f"[libvirt]\nconnection_uri = qemu+unix:///system?socket={tmp_path}/none\n")
    text = patient.file.read_text("utf-8").replace("= fake", "= libvirt")
    patient.file.write_text(text, encoding="utf-8")
    ((verdict, told),) = patient.verdicts("driver")
    assert verdict == "bad" and "no connection to libvirt" in told


def test_the_memory_that_libvirt_counts_is_compared_with_the_kernels(patient: Patient) -> None:
    """libvirt's test driver has two cells of 3 GiB each, unlike this machine."""
    pytest.importorskip("libvirt", reason="libvirt's binding is not installed")
    patient.write("[libvirt]\nconnection_uri = test:///default\n")
    assert patient.verdicts("memory") == [], "the fake driver counts no memory of this machine"
    text = patient.file.read_text("utf-8").replace("= fake", "= libvirt")
    patient.file.write_text(text, encoding="utf-8")
    ((_, told),) = patient.verdicts("memory")
    assert told.startswith("libvirt counts 6144 MiB of memory, ")


def test_a_dedicated_cpu_that_is_offline_is_told_with_how_to_bring_it_online(
    patient: Patient, tmp_path: Path
) -> None:
    host = tmp_path / "host.yaml"
    host.write_text("cells: [{id: 0, cpus: '0-3', memory_mb: 4096}]\n", encoding="utf-8")
    patient.write(f"[compute]\ncpu_shared_set = 0-1\ncpu_dedicated_set = 2-4\n[fake]\nhost_file = {host}\n")
    ((verdict, told),) = patient.verdicts("options")
    assert verdict == "warning" and "cpu_dedicated_set names CPU 4, not online" in told
    assert "such a CPU is not offered, and all else is" in told
    assert "Bring it online (echo 1 > /sys/devices/system/cpu/cpu4/online)" in told


def test_a_remote_placement_that_is_away(patient: Patient) -> None:
    patient.write(
        "[placement]\nkind = remote\nauth_type = none\nendpoint_override = http://127.0.0.1:1\ntimeout = 1\n"
    )
    ((verdict, told),) = patient.verdicts("placement")
    assert verdict == "bad" and "127.0.0.1:1" in told


def test_nothing_but_the_checks_is_written_where_keystone_is_away(patient: Patient) -> None:
    patient.write(
        "[placement]\nkind = remote\nauth_url = http://127.0.0.1:1/v3\ntimeout = 1\n"
        "username = u\npassword = p\n"
    )
    patient.file.chmod(0o600)
    done = plimsoll(patient.state / "s", "doctor", "--config-file", str(patient.file))
    assert "bad      placement" in done.stdout and done.stderr == ""


def test_an_agent_that_is_degraded_or_lets_nobody_in(patient: Patient) -> None:
    def degraded(_: str) -> object:
        return {"pid": 7, "version": "1", "state": "degraded", "reasons": ["libvirt is away."]}

    def forbidding(_: str) -> object:
        raise Forbidden("uid 7 may not ask")

    for ask, expected in ((degraded, ("bad", "libvirt is away")), (forbidding, ("warning", "uid 7"))):
        (found,) = (each for each in examine((patient.file,), (), ask) if each.name == "agent")
        assert found.verdict.value == expected[0] and expected[1] in found.sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody to whom all of it is closed")
def test_who_may_open_nothing_is_told_so_and_what_else_there_is(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "etc"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr("agent.config.settings.DEFAULT_FILE", closed / "plimsoll.conf")
    socket = patient.state / "s"
    read = load((patient.file,))
    monkeypatch.setattr("agent.doctor.examine.load", lambda *_: read)
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        with pytest.raises(SettingsError, match="as root or as the agent's user"):
            load()
        found = list(examine((patient.file,), (), nobody))
    finally:
        os.setresuid(0, 0, 0)
    told = {each.name: f"{each.sentence} {each.remedy}" for each in found}
    assert "Run the doctor as root" in told["state"] and "Run the doctor as root" in told["agent"]
    assert str(socket) in told["agent"] and "fake answers" in told["driver"]


def test_the_command_ends_with_1_where_something_is_bad(patient: Patient) -> None:
    patient.state.chmod(0o777)
    done = plimsoll(patient.state / "s", "doctor", "--config-file", str(patient.file))
    assert done.returncode == ExitCode.FAILED
    assert "bad      state" in done.stdout and "-> chmod 0700" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_what_the_agents_user_may_not_at_libvirt_is_told_to_root(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody_else = grp.struct_group(("libvirt", "x", 64055, []))
    monkeypatch.setattr(grp, "getgrnam", lambda _: nobody_else)

    def checks(more: str = "") -> list[DoctorCheck]:
        patient.file.write_text(
            f"[DEFAULT]\ncompute_driver = libvirt\nstate_path = {patient.state}\n{more}", encoding="utf-8"
        )
        return list(check_rights(load((patient.file,), ())))

    assert [each.verdict for each in checks()] == [CheckVerdict.GOOD], "it is root's"
    os.chown(patient.state, 65534, 65534)
    (found,) = checks()
    assert found.verdict is CheckVerdict.WARNING and "usermod -aG libvirt nobody" in found.remedy
    assert checks("[libvirt]\nfull_connection = false\n") == [], "it is not asked for"


def test_a_device_is_checked_without_an_agent(patient: Patient, tmp_path: Path) -> None:
    tree = PciTree(tmp_path / "root")
    tree.add("0000:83:00.0", "nouveau", 1, class_="0x030000", boot_vga="1", reset_method="bus", numa=0)
    tree.cells(node0="0-3")
    host = tmp_path / "host.yaml"
    host.write_text(f"cells: [{{id: 0, cpus: 0-3, memory_mb: 4096}}]\nroot_path: {tree.root}\n")
    patient.write(f"[fake]\nhost_file = {host}\n")
    done = plimsoll(patient.state / "s", "doctor", "--device", "83:00.0", "--config-file", str(patient.file))
    assert done.returncode == ExitCode.FAILED and done.stderr == ""
    lines = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if "->" not in line}
    assert lines == {
        "driver": "good",
        "holder": "bad",
        "group": "good",
        "interface": "good",
        "reset": "good",
        "cell": "good",
        "migration": "warning",
    }
    assert "-> Set another card as the primary one" in done.stdout
    assert (
        "The driver is fake, and its devices do not exist: --device looks at this machine's." in done.stdout
    )
    nowhere = plimsoll(patient.state / "s", "doctor", "--device", "x", "--config-file", str(patient.file))
    assert nowhere.returncode == ExitCode.USAGE and "no PCI address" in nowhere.stderr


def test_a_device_that_a_program_has_open_is_in_use(
    patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By iommufd here; the program is no guest, so no driver knows of it."""
    tree = PciTree(tmp_path / "root")
    device = tree.add("0000:83:00.0", "vfio-pci", 1, enable="1")
    (device / "vfio-dev" / "vfio3").mkdir(parents=True)
    files = tree.proc / "4711" / "fd"
    files.mkdir(parents=True)
    (files / "5").symlink_to("/dev/vfio/devices/vfio3")
    (files.parent / "comm").write_text("dpdk-testpmd\n")
    monkeypatch.setattr("agent.doctor.examine.PCI_DEVICES", tree.devices)
    monkeypatch.setattr("agent.doctor.examine.PROC", tree.proc)
    host = tmp_path / "host.yaml"
    host.write_text(f"cells: [{{id: 0, cpus: 0-3, memory_mb: 4096}}]\nroot_path: {tree.root}\n")
    patient.write(f"[fake]\nhost_file = {host}\n")
    (found,) = [each for each in examine_device((patient.file,), (), "83:00.0") if each.name == "holder"]
    assert found.verdict is CheckVerdict.BAD
    assert found.sentence == "0000:83:00.0 is in use: process 4711 (dpdk-testpmd) has it open."
    *_, absent = examine_device((patient.file,), (), "0000:83:00.7")
    assert absent.sentence == "There is no PCI device 0000:83:00.7 on this host."


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def whoami() -> Iterator[DoctorCheck]:
    yield good("user", f"{os.geteuid()} {os.getuid()}")


@needs_root
def test_root_makes_the_checks_as_the_agent_s_user(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, nobody.pw_uid, nobody.pw_gid)
    assert agent_user(state) == nobody
    (check,) = checks_as(nobody, whoami)
    assert check.sentence == f"{nobody.pw_uid} {nobody.pw_uid}"
    assert os.geteuid() == 0


@needs_root
def test_a_check_that_ends_its_process_is_told() -> None:
    def dies() -> Iterator[DoctorCheck]:
        os._exit(3)
        yield good("never", "")

    (check,) = checks_as(pwd.getpwnam("nobody"), dies)
    assert check.verdict is CheckVerdict.WARNING and "nobody" in check.sentence


def children() -> set[str]:
    """The processes that this thread started and that are not reaped."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def hangs() -> Iterator[DoctorCheck]:
    yield good("first", "This one was made.")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    yield good("never", "")


@needs_root
def test_a_child_that_hangs_is_ended_and_what_it_told_is_kept() -> None:
    before, others = time.monotonic(), children()
    first, late = checks_as(pwd.getpwnam("nobody"), hangs, within_s=0.5)
    assert time.monotonic() - before < 10.0
    assert first == good("first", "This one was made.")
    assert late.verdict is CheckVerdict.WARNING
    assert "nobody" in late.sentence and "did not end within 0.5 s" in late.sentence
    assert children() <= others, "no process is left"


@needs_root
def test_the_command_ends_though_its_child_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line: what was found is shown, and the command ends."""
    nobody = pwd.getpwnam("nobody")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, nobody.pw_uid, nobody.pw_gid)
    monkeypatch.setattr("agent.doctor.examine.check_placement", lambda settings: hangs())
    monkeypatch.setattr("agent.doctor.examine.checks_as", partial(checks_as, within_s=0.5))
    # The user may not enter pytest's directories.
    monkeypatch.setattr("agent.doctor.examine.check_writable", lambda *_: ())
    file = tmp_path / "plimsoll.conf"
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = vm\nstate_path = {state}\n[placement]\nkind = embedded\n"
    )
    code = main(["--socket", str(tmp_path / "none"), "doctor", "--config-file", str(file)])
    told = capsys.readouterr().out
    assert code == ExitCode.DONE, told
    assert "This one was made." in told
    assert "did not end within 0.5 s" in told and "runuser -u nobody -- plimsoll doctor" in told


def test_without_another_user_the_checks_are_made_here(tmp_path: Path) -> None:
    assert agent_user(tmp_path) is None or os.geteuid() != 0
    (check,) = checks_as(None, whoami)
    assert check.sentence.startswith(f"{os.geteuid()} ")


def test_a_hypervisor_that_is_busy_is_slow_and_need_not_be_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: FakeDriver) -> object:
        raise DriverSlow("libvirt did not answer within 10.0 s (read the host): try again")

    monkeypatch.setattr(FakeDriver, "topology", busy)
    (check,) = check_hypervisor(told(tmp_path, Embedded(tmp_path)))
    assert check.verdict is CheckVerdict.WARNING
    assert "slow" in check.sentence and "did not answer within 10.0 s" in check.sentence
    assert "restart" not in check.sentence + check.remedy


def test_the_command_says_slow_of_a_libvirtd_that_accepts_and_does_not_answer(tmp_path: Path) -> None:
    """As libvirtd while it probes QEMU's binaries, or one that was stopped with SIGSTOP."""
    pytest.importorskip("libvirt")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "libvirt-sock"))
        silent.listen()
        file = tmp_path / "plimsoll.conf"
        file.touch(mode=0o600)
        file.write_text(
            f"[DEFAULT]\ncompute_driver = libvirt\nhost = node1\nstate_path = {tmp_path}\n[libvirt]\n"
            f"connection_uri = qemu+unix:///system?socket={tmp_path / 'libvirt-sock'}\ncall_timeout = 1\n"
        )
        done = plimsoll(tmp_path / "s", "doctor", "--config-file", str(file), "-o", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    (check,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "driver")
    assert check["verdict"] == "warning"
    assert re.search(r"libvirt is slow: .* did not answer within [1-9]\.[0-9] s", check["sentence"])
    assert "restart" not in check["sentence"] + check["remedy"]


STATUS = {"pid": 7, "version": "1", "state": "ready", "reasons": [], "claims": {"count": 3}}


def agent_check(socket: Path, answer: Any) -> DoctorCheck:
    def ask(_: str) -> Any:
        if isinstance(answer, PlimsollError):
            raise answer
        return answer

    (check,) = check_agent(socket, ask)
    return check


def test_a_ready_agent_is_good(tmp_path: Path) -> None:
    check = agent_check(tmp_path / "s", STATUS)
    assert (check.verdict, check.sentence) == (
        CheckVerdict.GOOD,
        "The agent (pid 7, 1) is ready, with 3 claims.",
    )


def test_a_state_directory_that_is_younger_than_the_guests_is_a_warning(tmp_path: Path) -> None:
    reason = f"{NEW_DIRECTORY}, and 2 of the guests were here before it."
    ready, warned = check_agent(tmp_path / "s", lambda _: {**STATUS, "reasons": [reason, "Else."]})
    assert ready.verdict is CheckVerdict.GOOD
    assert (warned.verdict, warned.sentence) == (CheckVerdict.WARNING, reason)
    assert "state_path" in warned.remedy


@pytest.mark.parametrize(
    ("reasons", "shown"), [(["Libvirt is away."], "Libvirt is away."), ([], "no reason")]
)
def test_a_degraded_agent_is_bad_with_its_reasons(tmp_path: Path, reasons: list[str], shown: str) -> None:
    check = agent_check(tmp_path / "s", {**STATUS, "state": "degraded", "reasons": reasons})
    assert check.verdict is CheckVerdict.BAD and shown in check.sentence


def test_an_agent_that_does_not_run_or_refuses_is_a_warning(tmp_path: Path) -> None:
    away = agent_check(tmp_path / "s", DaemonUnreachable("No agent."))
    assert away.verdict is CheckVerdict.WARNING and "systemctl start plimsoll-agent" in away.remedy
    refused = agent_check(tmp_path / "s", Forbidden("Uid 7 may not."))
    assert refused.sentence == "Uid 7 may not." and "[api] readers" in refused.remedy


def test_the_embedded_placement_is_good_and_a_silent_one_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    base = f"[DEFAULT]\ncompute_driver = fake\nstate_path = {tmp_path}\n[placement]\n"
    file.write_text(f"{base}kind = embedded\n")
    (embedded,) = check_placement(load((file,)))
    assert embedded.verdict is CheckVerdict.GOOD and "embedded" in embedded.sentence
    file.write_text(f"{base}kind = remote\nauth_type = none\nendpoint_override = http://127.0.0.1:1\n")
    (silent,) = check_placement(load((file,)))
    assert silent.verdict is CheckVerdict.BAD and "placement ping" in silent.remedy


def test_each_server_of_a_placement_is_asked(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path / "core")) as core, Server(core, ["127.0.0.1:0"] * 2) as served:
        one, two = (f"http://{address}" for address in served.addresses)
        used, right, away, other = check_placement(_settings(tmp_path, f"{one},http://127.0.0.1:1,{two}"))
    assert (used.verdict, right.verdict) == (CheckVerdict.GOOD, CheckVerdict.WARNING)
    assert one in used.sentence and "reshape" in right.sentence
    assert away.verdict is CheckVerdict.WARNING and "http://127.0.0.1:1: connection refused" in away.sentence
    assert "Start that server" in away.remedy
    assert (other.verdict, other.sentence) == (CheckVerdict.GOOD, f"{two} answers as well.")


def test_a_server_that_is_away_is_told_also_where_it_is_the_first(tmp_path: Path) -> None:
    with closing(Core.open(tmp_path / "core")) as core, Server(core, ["127.0.0.1:0"]) as served:
        (there,) = (f"http://{address}" for address in served.addresses)
        used, *_, away = check_placement(_settings(tmp_path, f"http://127.0.0.1:1,{there}"))
    assert used.verdict is CheckVerdict.GOOD and there in used.sentence
    assert away.verdict is CheckVerdict.WARNING and "http://127.0.0.1:1" in away.sentence


def test_a_server_that_does_not_accept_the_token_is_named(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("other service token-of-another-cluster\n")
    with (
        closing(Core.open(tmp_path / "core")) as core,
        Server(core, ["127.0.0.1:0"]) as first,
        Server(core, ["127.0.0.1:0"], tokens_file=tokens) as second,
    ):
        there, strange = (f"http://{address}" for server in (first, second) for address in server.addresses)
        used, *_, refused = check_placement(_settings(tmp_path, f"{strange},{there}"))
    assert used.verdict is CheckVerdict.GOOD and there in used.sentence
    assert refused.sentence.startswith(f"{strange}: Placement did not list the providers: it does not accept")


def test_servers_of_different_placements_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        closing(Core.open(tmp_path / "one")) as one,
        closing(Core.open(tmp_path / "two")) as two,
        Server(one, ["127.0.0.1:0"]) as first,
        Server(two, ["127.0.0.1:0"]) as second,
    ):
        for number, core in enumerate((one, two)):
            monkeypatch.setattr(core._store.home, "told", {"plimsoll-journal": str(number)})
        addresses = [f"http://{address}" for server in (first, second) for address in server.addresses]
        *_, last = check_placement(_settings(tmp_path, ",".join(addresses)))
    assert last.verdict is CheckVerdict.BAD
    assert f"{' and '.join(addresses)} serve different Placements" in last.sentence


def _settings(directory: Path, addresses: str) -> Settings:
    file = directory / "plimsoll.conf"
    file.touch(mode=0o600)
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nstate_path = {directory}\n[placement]\nkind = remote\n"
        f"auth_type = admin_token\ntoken = admin\nendpoint_override = {addresses}\n"
    )
    return load((file,))


GOOD, WARNING, BAD = CheckVerdict.GOOD, CheckVerdict.WARNING, CheckVerdict.BAD
HOST_UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
Usage = namedtuple("Usage", ["total", "used", "free"])


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, GOOD), (0o755, WARNING), (0o777, BAD)])
def test_the_directory_is_for_its_owner_alone(tmp_path: Path, mode: int, verdict: CheckVerdict) -> None:
    tmp_path.chmod(mode)
    directory, _ = check_state_directory(tmp_path)
    assert directory.verdict is verdict and str(tmp_path) in directory.sentence
    assert bool(directory.remedy) is (verdict is not GOOD)


def test_a_missing_directory_is_no_fault(tmp_path: Path) -> None:
    (check,) = check_state_directory(tmp_path / "missing")
    assert check.verdict is WARNING and "first start" in check.remedy


@pytest.mark.parametrize(("free_mib", "verdict"), [(1024, GOOD), (100, WARNING), (10, BAD)])
def test_the_free_space_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, verdict: CheckVerdict
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free_mib << 20))
    *_, disk = check_state_directory(tmp_path)
    assert disk.verdict is verdict and f"{free_mib} MiB free" in disk.sentence


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("1 0 8:1 / {0} ro,relatime - ext4 /dev/sda1 ro", "mount -o remount,rw {0}"),
        ("1 0 8:1 / {0} ro,relatime - ext4 /dev/sda1 rw", "mount -o remount,bind,rw {0}"),
        ("1 0 8:1 / {0} rw,relatime - ext4 /dev/sda1 rw,emergency_ro", "fsck /dev/sda1"),
    ],
)
def test_a_read_only_file_system_is_named_with_its_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, remedy: str
) -> None:
    """Also where statvfs does not say so: ext4 after an error. A bind mount is no mount of its parents."""
    state = tmp_path / "state"
    state.mkdir()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"9 0 8:9 / / rw - ext4 /dev/sda9 rw\n{line.format(state)}\n")
    monkeypatch.setattr(errors, "MOUNTS", mounts)
    *_, disk = check_state_directory(state)
    assert disk.verdict is BAD and "read-only" in disk.sentence
    assert remedy.format(state) in disk.remedy and disk.remedy.startswith("See ")
    refused = unusable_state_path(state, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    assert remedy.format(state) in refused.message and "create it" not in refused.message


def test_a_file_system_that_statvfs_calls_read_only_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    *_, disk = check_state_directory(tmp_path)
    assert disk.verdict is BAD and "dmesg" in disk.remedy


def test_an_immutable_directory_is_bad_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("agent.doctor.examine.is_immutable", lambda _: True)
    checks = [*check_state_directory(tmp_path), *check_writable(tmp_path, os.geteuid())]
    state = next(check for check in checks if check.name == "state")
    assert state.verdict is BAD and "chattr -i" in state.remedy
    assert [check.name for check in checks].count("state") == 1


def test_a_directory_in_which_its_owner_may_make_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(check_writable(tmp_path, os.geteuid()))
    assert not list(check_writable(tmp_path / "missing", os.geteuid()))

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    tmp_path.chmod(0o555)
    monkeypatch.setattr("agent.doctor.examine.check_accepts_files", refuse)
    (check,) = check_writable(tmp_path, os.geteuid())
    assert check.verdict is BAD and "mode 0555" in check.sentence
    assert check.remedy == f"Run `chmod 0700 {tmp_path}`"
    refused = unusable_state_path(tmp_path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    assert "create it" not in refused.message and f"chmod 0700 {tmp_path}" in refused.message
    missing = unusable_state_path(tmp_path / "none", FileNotFoundError(errno.ENOENT, "No such file"))
    assert "create it" in missing.message


def test_the_identity_before_and_after_the_first_start(tmp_path: Path) -> None:
    assert "has no uuid yet" in check_identity(tmp_path, "node1").sentence
    (tmp_path / "host_id").write_text(f"{HOST_UUID}\n")
    assert "was provided before" in check_identity(tmp_path, "node1").sentence
    (tmp_path / "host_name").write_text("node1\n")
    assert HOST_UUID in check_identity(tmp_path, "node1").sentence
    assert check_identity(tmp_path, "node2").verdict is BAD


def test_each_database_is_checked(tmp_path: Path) -> None:
    assert list(check_databases(tmp_path)) == []
    with closing(sqlite3.connect(tmp_path / "agent.db")) as database:
        database.execute("CREATE TABLE t (a)")
    (tmp_path / "agent.db").chmod(0o600)
    (tmp_path / "placement.db").write_bytes(b"no database" * 100)
    intact, damaged = check_databases(tmp_path)
    assert intact.verdict is GOOD and "agent.db is intact" in intact.sentence
    assert damaged.verdict is BAD and "placement.db is damaged" in damaged.sentence
