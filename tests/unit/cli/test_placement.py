"""`plimsoll placement export` writes what `check` reads; each verb works on the Placement that is named."""

import argparse
import json
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli.grammar import CommandAdder, Parser, common_options
from agent.cli.placement import (
    add_placement_command,
    add_source_options,
    check,
    counts_text,
    export,
    is_state_dir,
    opened,
    read_text_file,
)
from agent.errors import ExitCode, UsageError
from agent.placement.embedded import Core

ROOT = "11111111-1111-4111-8111-111111111111"


def arguments(**given: object) -> Namespace:
    common = {"state_dir": None, "url": None, "config_file": None, "token_file": None, "cafile": None}
    return Namespace(**{**common, "root": None, "output": "table", "timeout": 5.0, **given})


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    core = Core.open(tmp_path / "state")
    created = core.request(
        "POST", "/resource_providers", {"name": "host1", "uuid": ROOT}, microversion="1.39"
    )
    core.close()
    assert created.status == 200
    return tmp_path / "state"


def test_an_export_is_well_and_a_broken_one_is_drift(
    state_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host1.json"
    assert export(arguments(state_dir=state_dir, file=str(file))) is ExitCode.DONE
    assert check(arguments(file=str(file))) is ExitCode.DONE
    assert "all is well with 1 provider and 0 consumers" in capsys.readouterr().out

    document = json.loads(file.read_text())
    (provider,) = document["resource_providers"]
    provider["parent_provider_uuid"] = "22222222-2222-4222-8222-222222222222"
    file.write_text(json.dumps(document))
    assert check(arguments(file=str(file))) is ExitCode.DRIFT_FOUND
    assert "missing_parent" in capsys.readouterr().out


def test_a_check_takes_a_file_or_a_placement(state_dir: Path) -> None:
    with pytest.raises(UsageError, match="either a file or a Placement"):
        check(arguments(file="host1.json", state_dir=state_dir))


def test_the_verbs_lead_to_their_functions() -> None:
    common = common_options()
    parser = Parser(prog="plimsoll", parents=[common])
    add_placement_command(CommandAdder(parser.add_subparsers(), common))
    assert parser.parse_args(["placement", "check", "host1.json"]).run is check
    assert parser.parse_args(["placement", "export", "--url", "unix:/s"]).run is export


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_source_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("words", [(), ("--state-dir", "d", "--url", "http://p"), ("--url", "ftp://p")])
def test_exactly_one_placement_must_be_named(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"Say which Placement|--url takes"), opened(parsed(*words)):
        pass


def test_a_state_directory_alone_is_read_from_its_files() -> None:
    assert is_state_dir(parsed("--state-dir", "d"))
    assert not is_state_dir(parsed("--state-dir", "d", "--url", "http://p"))


def test_counts() -> None:
    assert counts_text({"resource_providers": 2, "consumers": 7}) == "2 providers and 7 consumers"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "document"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"document cannot be read: it is not UTF-8 text"):
        read_text_file(str(file))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_text_file(str(tmp_path / "missing"))
