"""`plimsoll agent` ends at once, with the exit code for settings, where its settings cannot be used."""

from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli.agent import agent
from agent.errors import ExitCode


def test_settings_that_cannot_be_used_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text("[DEFAULT]\ncompute_driver = fake\nno_such_option = 1\n")
    assert agent(Namespace(config_file=[str(file)], config_dir=None)) is ExitCode.USAGE
    assert "no_such_option" in capsys.readouterr().err
