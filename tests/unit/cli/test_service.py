"""`plimsoll agent`: the settings that it cannot use, and a reload that comes before it is ready.

What `plimsoll doctor` and `plimsoll support-bundle` print, and with which exit codes they end.
"""

import json
import signal
import tarfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.daemon import agent
from agent.cli.main import main
from agent.cli.service import doctor, support_bundle
from agent.doctor.examine import gather
from agent.errors import ExitCode, UsageError
from plimsoll.wire import SOCKET_DEFAULT


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


# The doctor and the support bundle


def arguments(file: Path, output: str) -> Namespace:
    return Namespace(
        config_file=[str(file)],
        config_dir=None,
        socket=SOCKET_DEFAULT,
        timeout=1.0,
        output=output,
        device=None,
    )


def test_bad_settings_fail_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text("[DEFAULT]\nno_such_option = 1\n")
    assert doctor(arguments(file, "json")) is ExitCode.FAILED
    checks = json.loads(capsys.readouterr().out)["checks"]
    (bad,) = (check for check in checks if check["verdict"] == "bad")
    assert "no_such_option" in bad["sentence"] and bad["remedy"]
    assert doctor(arguments(file, "table")) is ExitCode.FAILED
    assert f"-> {bad['remedy']}" in capsys.readouterr().out


def test_without_an_agent_the_bundle_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "plimsoll.conf"
    settings.write_text(f"[DEFAULT]\ncompute_driver = fake\nstate_path = {tmp_path / 'state'}\n")
    file = tmp_path / "bundle.tar.gz"
    args = Namespace(
        to=str(file),
        config_file=[str(settings)],
        config_dir=None,
        socket=SOCKET_DEFAULT,
        timeout=1.0,
        output="json",
    )
    assert support_bundle(args) is ExitCode.DONE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["file"], file.stat().st_mode & 0o777) == (str(file), 0o600)
    with tarfile.open(file) as bundle:
        assert len(bundle.getnames()) == len(answer["members"])


def test_a_file_that_cannot_be_written_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file.*; give a file in a directory that exists"):
        gather(str(tmp_path / "none" / "x.tgz"), (), (), lambda socket, path: None)
