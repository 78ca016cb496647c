"""`plimsoll config` on files, for which no agent has to run."""

import json
from pathlib import Path

import pytest
from kits.cli_process import one_line, plimsoll

from agent.errors import ExitCode

HOST = "0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"
FAKE = "[DEFAULT]\ncompute_driver = fake\n"


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    return tmp_path / "no-agent"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plimsoll.conf"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_good_settings_are_good(nowhere: Path, tmp_path: Path) -> None:
    file = written(tmp_path, FAKE + "host = here\n")
    done = plimsoll(nowhere, "config", "validate", "--config-file", file)
    assert (done.returncode, done.stdout) == (ExitCode.DONE, f"the settings are good: {file}\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FAKE + "hots = here\n", "hots"),
        (FAKE + "update_resources_interval = often\n", "update_resources_interval"),
        (FAKE + "[api]\nclaimers = no-such-user\n", "no-such-user"),
        ("no section\n", "plimsoll.conf"),
    ],
)
@pytest.mark.parametrize("command", [("config", "validate"), ("config", "show")])
def test_bad_settings_are_one_line_and_2(
    nowhere: Path, tmp_path: Path, command: tuple[str, ...], text: str, complaint: str
) -> None:
    done = plimsoll(nowhere, *command, "--config-file", written(tmp_path, text))
    assert done.returncode == ExitCode.USAGE
    assert complaint in one_line(done)


def test_a_file_that_is_not_there(nowhere: Path, tmp_path: Path) -> None:
    done = plimsoll(nowhere, "config", "validate", "--config-file", str(tmp_path / "none.conf"))
    assert done.returncode == ExitCode.USAGE
    assert "none.conf" in one_line(done)


def test_the_sample_is_a_file_that_is_good_and_changes_nothing(nowhere: Path, tmp_path: Path) -> None:
    sample = plimsoll(nowhere, "config", "sample")
    assert sample.returncode == ExitCode.DONE
    empty = plimsoll(nowhere, "config", "show", "--config-file", written(tmp_path, ""), "-o", "json")
    file = written(tmp_path, sample.stdout)
    assert plimsoll(nowhere, "config", "validate", "--config-file", file).returncode == ExitCode.DONE
    filled = plimsoll(nowhere, "config", "show", "--config-file", file, "-o", "json")
    assert json.loads(filled.stdout) == json.loads(empty.stdout)


def test_show_masks_secrets_and_tells_origins(nowhere: Path, tmp_path: Path) -> None:
    file = written(tmp_path, FAKE + "[placement]\npassword = canary\n")
    done = plimsoll(nowhere, "config", "show", "--config-file", file)
    assert "canary" not in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "compute_driver" in line)
    assert line.split()[2] == "fake" and file in line


def test_adopt_makes_this_host_the_one_that_is_told(nowhere: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    file = written(tmp_path, f"{FAKE}host = here\nstate_path = {tmp_path / 'state'}\n")
    done = plimsoll(nowhere, "adopt", HOST.upper(), "--config-file", file)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert HOST in done.stdout
    assert (tmp_path / "state" / "host_id").read_text().strip() == HOST
    wrong = plimsoll(nowhere, "adopt", "web1", "--config-file", file)
    assert wrong.returncode == ExitCode.USAGE
    assert "'web1' is not a uuid" in one_line(wrong)
    assert (tmp_path / "state" / "host_id").read_text().strip() == HOST


def test_without_files_show_asks_the_agent(nowhere: Path) -> None:
    assert plimsoll(nowhere, "config", "show").returncode == ExitCode.UNREACHABLE


def test_config_show_asks_the_agent(path: Path) -> None:
    assert plimsoll(path, "config", "show").stdout == (
        "GROUP      OPTION    VALUE       ORIGIN\n"
        "[DEFAULT]  host      host1       default\n"
        "[api]      claimers  alice,@ops  /etc/plimsoll/plimsoll.conf\n"
    )
