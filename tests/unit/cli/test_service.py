"""`plimsoll agent`: the settings that it cannot use, and a reload that comes before it is ready."""

import signal
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.main import main
from agent.cli.service import agent
from agent.errors import ExitCode


def test_settings_that_cannot_be_used_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text("[DEFAULT]\ncompute_driver = fake\nno_such_option = 1\n")
    assert agent(Namespace(config_file=[str(file)], config_dir=None)) is ExitCode.USAGE
    assert "no_such_option" in capsys.readouterr().err


@pytest.fixture
def hang_ups() -> Iterator[list[int]]:
    """The SIGHUPs that this process has handled; afterwards it takes them as before."""
    handled: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: handled.append(number))
    yield handled
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, before)


def test_a_reload_before_the_service_runs_is_held_back(
    hang_ups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default SIGHUP ends a process."""

    def run(*_: object) -> int:
        signal.raise_signal(signal.SIGHUP)
        return len(hang_ups)

    monkeypatch.setattr("agent.daemon.service.run", run)
    assert main(["agent"]) == 0
    assert signal.SIGHUP in signal.sigpending()


def test_another_command_does_not_hold_it_back(
    hang_ups: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it has the word among its arguments."""
    main(["--socket", str(tmp_path / "none"), "release", "agent"])
    signal.raise_signal(signal.SIGHUP)
    assert hang_ups == [signal.SIGHUP]
