"""Help that teaches, documents that keep up with it, and what it costs to start."""

import resource
import sys
from pathlib import Path

import pytest
from kits.cli_process import plimsoll, plimsoll_started, python

from agent.cli.client import SOCKET_DEFAULT
from agent.cli.parser import EXIT_CODES
from agent.errors import ExitCode

COMMANDS = (
    *(
        ("status",),
        ("tree",),
        ("instances",),
        ("plan",),
        ("claim",),
        ("release",),
        ("agent",),
        ("adopt",),
        ("config",),
    ),
    ("move",),
    *(("move", verb) for verb in ("begin", "confirm", "revert", "list", "show")),
    *(("config", "show"), ("config", "validate"), ("config", "sample")),
)


def test_the_help_lists_every_exit_code(path: Path) -> None:
    assert set(EXIT_CODES) == set(ExitCode)
    shown = plimsoll(path, "--help").stdout
    for code, meaning in EXIT_CODES.items():
        assert f"  {code.value:>3}  {meaning}\n" in shown
    assert SOCKET_DEFAULT in shown and "PLIMSOLL_SOCKET" in shown


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_teaches_by_example(path: Path, words: tuple[str, ...]) -> None:
    done = plimsoll(path, *words, "--help")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert f"examples:\n  plimsoll {' '.join(words)}" in done.stdout


def test_the_version(path: Path) -> None:
    done = plimsoll(path, "--version")
    assert (done.returncode, done.stdout.split()[0]) == (ExitCode.DONE, "plimsoll")


HEAVY = (
    "oslo_config",
    "werkzeug",
    "cheroot",
    "jsonschema",
    "libvirt",
    "yaml",
    "requests",
    "keystoneauth1",
    "sqlite3",
)
ALSO_LATE = (
    # Python 3.14's argparse imports these two by itself.
    *(("dataclasses", "inspect") if sys.version_info < (3, 14) else ()),
    "logging",
    "importlib.metadata",
    "uuid",
    "agent.config.settings",
    "agent.api.views",
    "agent.api.routes",
    "agent.claims",
    "agent.driver",
    "drivers",
)


def test_status_imports_nothing_heavy(path: Path) -> None:
    script = "import sys; from agent.cli.main import main; main(['status']); "
    done = python(script + "print(*sys.modules, sep='\\n', file=sys.stderr)", path)
    loaded = set(done.stderr.split())
    assert "agent.cli.client" in loaded
    assert not loaded & {*HEAVY, *ALSO_LATE}


def test_status_starts_fast(path: Path) -> None:
    """Processor time, because other tests run at the same time; benchmarks/cli.py measures the wait."""
    fastest = min(processor_s(path) for _ in range(5))
    assert fastest < 0.5


def processor_s(path: Path) -> float:
    """Seconds of processor time of one `plimsoll status`, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert plimsoll_started(path, "status").returncode == ExitCode.DONE
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
