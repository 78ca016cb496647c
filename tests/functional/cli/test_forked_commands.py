"""`plimsoll` of the tests, whose process is forked, is for its caller what a process of its own is."""

import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from kits.cli_process import ENVIRONMENT, plimsoll, plimsoll_started
from kits.forked_commands import run_forked

BODY = '{"groups": [{"suffix": "", "resources": {"VCPU": 1}}]}'
INHERITED = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "Threads",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapEff",
    "Cpus_allowed",
)
OF_GLIBC = 0b11 << 31
"""Signals 32 and 33, which glibc keeps for its threads; what becomes of them in a child is its affair."""


@pytest.mark.parametrize(
    ("words", "stdin", "environment"),
    [
        (("status",), "", {}),
        (("tree", "--traits"), "", {"TZ": "Asia/Kolkata"}),
        (("claim", "--file", "-", "--dry-run"), BODY, {}),
        (("claim", "--file", "-", "--dry-run"), "no body", {}),
        (("claim", "--help"), "", {"COLUMNS": "40"}),
        (("bogus",), "", {}),
        (("instances", "--socket", "/nowhere"), "", {}),
        (("config", "show", "--config-file", "/nowhere"), "", {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_command_says_and_ends_with(
    path: Path, words: tuple[str, ...], stdin: str, environment: dict[str, str]
) -> None:
    forked = plimsoll(path, *words, stdin=stdin, environment=environment)
    started = plimsoll_started(path, *words, stdin=stdin, environment=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def process_state(pid: int) -> dict[str, object]:
    """What is seen of a process from outside."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        status[name] = f"{int(status[name], 16) & ~OF_GLIBC:x}"
    return {
        **{name: status[name] for name in INHERITED},
        "descriptors": sorted(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208  # names of links that lead nowhere
        "directory": Path(f"/proc/{pid}/cwd").readlink(),
        "group": os.getpgid(pid),
        "session": os.getsid(pid),
    }


Seen = TypeVar("Seen")


def while_it_waits(
    run: Callable[[Path], subprocess.CompletedProcess[str]], at: Path, look: Callable[[int], Seen]
) -> tuple[Seen, subprocess.CompletedProcess[str]]:
    """What `look` sees of the command's process while its agent does not answer; then the agent hangs up."""
    seen: list[Seen] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            asker = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            seen.append(look(struct.unpack("3i", asker)[0]))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at))
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        done = run(at)
        thread.join()
    return seen[0], done


def test_nothing_of_the_server_is_seen_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked, _ = while_it_waits(lambda at: plimsoll(at, "status"), tmp_path / "forked", process_state)
    started, _ = while_it_waits(
        lambda at: plimsoll_started(at, "status"), tmp_path / "started", process_state
    )
    assert forked == started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_as_it_ends_a_process(tmp_path: Path, number: signal.Signals) -> None:
    def strike(pid: int) -> None:
        process = os.pidfd_open(pid)
        os.kill(pid, number)
        select.select([process], [], [])  # the agent must not hang up before the command ends
        os.close(process)

    _, forked = while_it_waits(lambda at: plimsoll(at, "status"), tmp_path / "forked", strike)
    _, started = while_it_waits(lambda at: plimsoll_started(at, "status"), tmp_path / "started", strike)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_command_that_takes_too_long_is_killed(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        environment = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(tmp_path / "silent")}
        with pytest.raises(subprocess.TimeoutExpired):
            run_forked(("status",), environment, "", 0.1)
    assert plimsoll(path, "status").returncode == 0, "the next one runs"


def test_what_python_reads_at_its_start_needs_a_start(path: Path) -> None:
    with pytest.raises(AssertionError, match="plimsoll_started"):
        plimsoll(path, "status", environment={"PYTHONUTF8": "0"})
