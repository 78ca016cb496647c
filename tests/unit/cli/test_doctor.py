"""What `plimsoll doctor` and `plimsoll support-bundle` print, and with which exit codes they end."""

import json
import tarfile
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli.client import SOCKET_DEFAULT
from agent.cli.doctor import doctor, support_bundle
from agent.doctor.examine import gather
from agent.errors import ExitCode, UsageError


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
