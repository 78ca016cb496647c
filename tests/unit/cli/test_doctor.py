"""`plimsoll doctor` prints a remedy for each check that is not good, and fails if one is bad."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli.client import SOCKET_DEFAULT
from agent.cli.doctor import doctor
from agent.errors import ExitCode


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
