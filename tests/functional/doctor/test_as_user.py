"""The doctor's checks as the agent's user, and of a hypervisor that is slow."""

import json
import os
import pwd
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kits.agent import told
from kits.cli_process import plimsoll
from kits.placements import Embedded

from agent.cli.main import main
from agent.doctor import checks_host
from agent.doctor.as_user import agent_user, checks_as
from agent.doctor.check import CheckVerdict, DoctorCheck, good
from agent.errors import DriverSlow, ExitCode
from drivers.fake import FakeDriver

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
    monkeypatch.setattr("agent.doctor.examine.checks_service.placement", lambda settings: hangs())
    monkeypatch.setattr("agent.doctor.examine.checks_as", partial(checks_as, within_s=0.5))
    # The user may not enter pytest's directories.
    monkeypatch.setattr("agent.doctor.examine.checks_state.accepts_files", lambda *_: ())
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
    (check,) = checks_host.hypervisor(told(tmp_path, Embedded(tmp_path)))
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
    assert "libvirt is slow" in check["sentence"] and "did not answer within 1.0 s" in check["sentence"]
    assert "restart" not in check["sentence"] + check["remedy"]
