"""The command line as a process."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from agent.errors import ExitCode
from kits.forked_commands import ENVIRONMENT, run_forked

COMMAND = (sys.executable, "-m", "agent.cli.main")
DEADLINE_S = 30


def plimsoll(
    socket_path: Path, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command against the agent at `socket_path`, in a process that was forked for it."""
    whole = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(socket_path), **(environment or {})}
    return run_forked(words, whole, stdin, DEADLINE_S)


def plimsoll_started(
    socket_path: Path, *words: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same with an interpreter of its own: for what happens before a command runs, and what it costs."""
    return subprocess.run(
        [*COMMAND, *words],
        env={**ENVIRONMENT, "PLIMSOLL_SOCKET": str(socket_path), **(environment or {})},
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )


def output_of(socket_path: Path, *words: str) -> str:
    """The output of a command that succeeds."""
    done = plimsoll(socket_path, *words)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    return done.stdout


def python(script: str, socket_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that calls the command line's `main` itself."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**ENVIRONMENT, "PLIMSOLL_SOCKET": str(socket_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error, which is one line and the only output."""
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("plimsoll: ")
    return line
