"""`plimsoll doctor` on a host that is well, and on each thing that may be wrong with one."""

import grp
import json
import os
import sqlite3
from pathlib import Path

import pytest
from kits.agent_process import Agent
from kits.cli_process import plimsoll
from kits.pci_tree import PciTree

from agent.config.settings import load
from agent.doctor.check import CheckVerdict, DoctorCheck
from agent.doctor.checks_host import libvirt_rights
from agent.doctor.examine import examine
from agent.errors import DaemonUnreachable, ExitCode, Forbidden, SettingsError

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
        return list(libvirt_rights(load((patient.file,), ())))

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
        "reset": "good",
        "cell": "good",
        "migration": "warning",
    }
    assert "-> Set another card as the primary one" in done.stdout
    nowhere = plimsoll(patient.state / "s", "doctor", "--device", "x", "--config-file", str(patient.file))
    assert nowhere.returncode == ExitCode.USAGE and "no PCI address" in nowhere.stderr
