"""`plimsoll claim --exec` with a real agent: a claim lasts as long as its program.

Also where the command, the program or the agent is killed.
"""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kits.agent_process import Agent
from kits.cli_process import COMMAND, DEADLINE_S, ENVIRONMENT, one_line, plimsoll, plimsoll_started
from kits.daemon_process import eventually

from agent.cli.client import Client
from agent.cli.program import ClaimedProgram, environment_of
from agent.errors import ExitCode, PlimsollError, UsageError
from agent.http.owner_process import OwnerProcess

ASKED = ("--resources", "VCPU=1,MEMORY_MB=64")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(
        tmp_path_factory.mktemp("agent"), more="[compute]\ncpu_shared_set = 0-3\ncpu_dedicated_set = 4-7\n"
    )
    agent.start()
    yield agent
    agent.stop()


def claims(agent: Agent) -> dict[str, str]:
    """{consumer: name} of the claims."""
    listed = Client(str(agent.socket), DEADLINE_S).get("/v1/instances")["instances"]
    return {each["uuid"]: each["name"] for each in listed if each["claim"]}


@contextmanager
def running(agent: Agent, directory: Path, *words: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A command whose program has begun, and the pid of the program, which sleeps."""
    said = directory / "pid"
    script = f"echo $$ > {said}.part; mv {said}.part {said}; exec sleep 300"
    # Under nohup, or in the background of a shell, the tests ignore signals that the command then would.
    default = ["env", "--default-signal=HUP,INT,QUIT"]
    command = [*default, *COMMAND, "claim", *words, "--exec", "sh", "-c", script]
    environment = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(agent.socket)}
    with subprocess.Popen(command, env=environment) as process:
        try:
            eventually("the program's start", said.exists)
            program = int(said.read_text())
            yield process, program
        finally:
            for pid in (program, process.pid):
                if process.poll() is None or pid != process.pid:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue


def test_the_program_has_its_devices_in_its_environment_and_the_claim_ends_with_it(agent: Agent) -> None:
    shown = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'PLIMSOLL' in k}))"
    done = plimsoll_started(
        agent.socket,
        *("claim", "--flavor", "vcpus=2,memory_mb=512", "--spec", "hw:cpu_policy=dedicated"),
        *("--spec", "resources_gpu:PGPU=1", "--spec", "resources_my-nic:SRIOV_NET_VF=2"),
        *("--spec", "group_policy=none", "--exec", sys.executable, "-c", f"{shown}; raise SystemExit(9)"),
    )
    assert (done.returncode, done.stderr) == (9, "")
    told = json.loads(done.stdout)
    functions = told["PLIMSOLL_UNITS_MY_NIC"].split(",")
    assert told["PLIMSOLL_UNITS_GPU"] == "0000:83:00.0"
    assert len(functions) == 2 and sorted(told["PLIMSOLL_PCI_ADDRESSES"].split(",")) == sorted(
        ["0000:83:00.0", *functions]
    )
    assert told["PLIMSOLL_CPUS"] in {"4-5", "6-7", "4,6", "4,7", "5-6", "5,7"} and told["PLIMSOLL_CONSUMER"]
    assert told["PLIMSOLL_MDEV_UUIDS"] == ""
    assert told["PLIMSOLL_CONSUMER"] not in claims(agent)


def test_a_mediated_device_is_made_for_the_program_and_removed_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agent.cli.program.SYS", tmp_path)
    mdev, card = str(uuid4()), "0000:84:00.0"
    kinds, made = (
        tmp_path / f"bus/pci/devices/{card}/mdev_supported_types/nvidia-11",
        tmp_path / "bus/mdev/devices" / mdev,
    )
    kinds.mkdir(parents=True)
    made.mkdir(parents=True)
    released: list[str] = []
    of_now: dict[str, Any] = {}
    client: Any = SimpleNamespace(
        request=lambda method, path: released.append(f"{method} {path}"),
        get=lambda path: {"request": of_now},
    )
    claim: Any = {
        "consumer": "c",
        "units": {"p": {"VGPU": [mdev]}, "q": {"CUSTOM_VGPU_8": ["0000:85:00.0/CUSTOM_VGPU_8@4"]}},
        "to_make": {
            mdev: {"parent": card, "type": "nvidia-11"},
            "0000:85:00.0/CUSTOM_VGPU_8@4": {
                "parent": "0000:85:00.4", "type": "nvidia-999", "placement": "4"
            },
        },
        "cells": [],
        "mappings": [],
    }  # fmt: skip
    assert environment_of(claim) == {
        "PLIMSOLL_CONSUMER": "c",
        "PLIMSOLL_PCI_ADDRESSES": "0000:85:00.4",
        "PLIMSOLL_MDEV_UUIDS": mdev,
        "PLIMSOLL_CPUS": "",
    }
    check = f'test "$PLIMSOLL_MDEV_UUIDS" = {mdev} && test ! -e {made}/remove'
    script = f"{check} && cat {kinds}/create > {tmp_path}/o"
    with ClaimedProgram(["sh", "-c", script]) as program:
        of_now["process"] = program.process.to_json()
        assert program.run(client, claim) == 0
    assert (tmp_path / "o").read_text() == mdev and (made / "remove").read_text() == "1"
    (kinds / "create").unlink()
    kinds.rmdir()
    with ClaimedProgram(["false"]) as program, pytest.raises(PlimsollError, match="run the command as root"):
        of_now["process"] = program.process.to_json()
        program.run(client, claim)
    assert released == ["DELETE /v1/claims/c"] * 2, "also where the device cannot be made"


def test_a_program_that_is_refused_does_not_run(agent: Agent, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for words, code, sentence in (
        (("--resources", "VCPU=9999", "--exec", "touch", str(ran)), ExitCode.REFUSED, "9999 VCPU asked"),
        ((*ASKED, "--exec", "no-such-program"), ExitCode.USAGE, "no program 'no-such-program' is found"),
        ((*ASKED, "--exec"), ExitCode.USAGE, "--exec needs a program"),
        ((*ASKED, "--dry-run", "--exec", "touch", str(ran)), ExitCode.USAGE, "cannot go with"),
        (("--domain", "x.xml", "--exec", "touch", str(ran)), ExitCode.USAGE, "cannot go with"),
    ):
        done = plimsoll_started(agent.socket, "claim", *words)
        assert done.returncode == code and sentence in one_line(done)
    assert not ran.exists() and not claims(agent)


def test_a_file_that_is_no_program_leaves_no_claim(agent: Agent, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF no program")
    broken.chmod(0o755)
    done = plimsoll_started(agent.socket, "claim", *ASKED, "--exec", str(broken))
    assert done.returncode == 126 and "cannot be run" in one_line(done)
    assert not claims(agent)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_the_command_goes_to_the_program(agent: Agent, tmp_path: Path, number: int) -> None:
    with running(agent, tmp_path, *ASKED, "--name", "job") as (command, program):
        assert list(claims(agent).values()) == ["job"]
        assert "claim --exec (uid" in plimsoll(agent.socket, "instances").stdout
        command.send_signal(number)
        assert command.wait(DEADLINE_S) == 128 + number
        assert not Path(f"/proc/{program}").exists() and not claims(agent)


def test_a_killed_command_leaves_the_claim_to_the_agent(agent: Agent, tmp_path: Path) -> None:
    with running(agent, tmp_path, *ASKED, "--name", "job") as (command, program):
        command.kill()
        command.wait(DEADLINE_S)
        again = plimsoll(agent.socket, "claim", *ASKED, "--name", "job", "--exec", "true")
        assert again.returncode == ExitCode.REFUSED, "the program runs on, and another one is not its owner"
        assert list(claims(agent).values()) == ["job"], "the program runs on with what it claimed"
        os.kill(program, signal.SIGKILL)
        eventually("the release", lambda: not claims(agent))


def test_a_command_that_stands_still_keeps_no_claim_of_a_program_that_ended(
    agent: Agent, tmp_path: Path
) -> None:
    with running(agent, tmp_path, *ASKED) as (command, program):
        command.send_signal(signal.SIGSTOP)
        os.kill(program, signal.SIGTERM)
        eventually("the release", lambda: not claims(agent))
        command.send_signal(signal.SIGCONT)
        assert command.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_ctrl_c_reaches_the_program_once(agent: Agent, tmp_path: Path) -> None:
    script = "trap 'echo once' INT; echo begun; sleep 1; sleep 0.2; exit 4"
    words = [*COMMAND, "claim", *ASKED, "--exec", "sh", "-c", script]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(words[0], words, {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(agent.socket)})
    said = b""
    with contextlib.suppress(OSError):  # the terminal goes with its last process
        while chunk := os.read(terminal, 1024):
            said += chunk
            if chunk.strip().endswith(b"begun"):
                os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4 and said.count(b"once") == 1
    assert not claims(agent)


def test_a_claim_that_its_program_has_is_released_by_force_alone(agent: Agent, tmp_path: Path) -> None:
    with running(agent, tmp_path, *ASKED, "--name", "job") as (command, program):
        refused = plimsoll(agent.socket, "release", "job")
        assert refused.returncode == ExitCode.REFUSED and f"process {program} runs with" in one_line(refused)
        (consumer,) = claims(agent)
        assert plimsoll(agent.socket, "release", "--force", "job").returncode == ExitCode.DONE
        assert plimsoll(agent.socket, "claim", consumer, *ASKED).returncode == ExitCode.DONE
        os.kill(program, signal.SIGTERM)
        assert command.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert list(claims(agent)) == [consumer], "it is another program's now"
        assert plimsoll(agent.socket, "release", consumer).returncode == ExitCode.DONE


def test_what_ends_while_the_agent_is_away_is_released_at_its_start(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.start()
    with running(agent, tmp_path, *ASKED) as (command, program):
        agent.signal(signal.SIGKILL)
        agent.stop()
        command.kill()
        os.kill(program, signal.SIGKILL)
    agent.start()
    eventually("the release", lambda: not claims(agent))
    assert "as its process" in agent.log()
    agent.stop()


def test_a_claim_ends_only_with_a_process_that_the_agent_sees(agent: Agent) -> None:
    client = Client(str(agent.socket), DEADLINE_S)
    own = OwnerProcess.of(os.getpid()).to_json()
    body = {"consumer": str(uuid4()), "groups": [{"resources": {"VCPU": 1}}]}
    for process, sentence in (
        ({**own, "started": own["started"] + 1}, "sees no process"),
        ({**own, "boot": str(uuid4())}, "sees no process"),
        ({**own, "pid": 2**22}, "sees no process"),
        ({**own, "pid": 0}, "process.pid"),
        ({"pid": 1}, "process.started"),
    ):
        with pytest.raises(UsageError, match=sentence):
            client.request("POST", "/v1/claims", {**body, "process": process})
    assert not claims(agent)
    claim = client.request("POST", "/v1/claims", {**body, "process": own})
    assert claim["request"]["process"] == own
    assert client.request("POST", "/v1/claims", {**body, "process": own})["since"] == claim["since"]
    client.request("DELETE", f"/v1/claims/{body['consumer']}?force=true")


def test_another_users_process_is_no_owner() -> None:
    mine = OwnerProcess.of(os.getpid())
    mine.check_owner(os.getuid())
    mine.check_owner(0)
    with pytest.raises(UsageError, match="of its own user only"):
        mine.check_owner(os.getuid() + 1)


def test_a_process_that_cannot_be_seen_has_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine, gone = OwnerProcess.of(os.getpid()), OwnerProcess(2**22, 1, str(uuid4()))
    reused = OwnerProcess(mine.pid, mine.started + 1, mine.boot)
    assert [each.has_ended() for each in (mine, gone, reused)] == [False, True, True]
    monkeypatch.setattr("agent.http.owner_process.PROC", tmp_path)  # as /proc with hidepid is for others
    assert not mine.has_ended()
    assert gone.has_ended()
