"""csv is refused before a command runs, unless the command's answer is one table."""

import argparse
from collections.abc import Iterator

import pytest

from agent.cli.main import main
from agent.cli.parser import build
from agent.errors import ExitCode

TABLES = {"instances", "history", "move list", "devices list"}
"""The commands whose answer is one table."""


def commands(
    parser: argparse.ArgumentParser, *words: str
) -> Iterator[tuple[str, list[str], argparse.ArgumentParser]]:
    """Each command: its name, a command line with a value for all that it must have, and its parser."""
    if parser.get_default("run") is not None:
        yield " ".join(words), [*words, *_required(parser)], parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, verb in action.choices.items():
                yield from commands(verb, *words, name)


def _required(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.required and not isinstance(action, argparse._SubParsersAction):
            yield from action.option_strings[-1:]
            yield next(iter(action.choices)) if action.choices else "7"


@pytest.mark.parametrize("before", [True, False])
def test_csv_is_refused_before_a_command_runs_that_has_no_table(
    before: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    parser = build()
    monkeypatch.setattr("agent.cli.parser.build", lambda: parser)
    names = set()
    for name, line, command in commands(parser):
        command.set_defaults(run=lambda args, name=name: ran.append(name) or ExitCode.DONE)
        names.add(name)
        words = ["-o", "csv", *line] if before else [*line, "-o", "csv"]
        expected = ExitCode.DONE if name in TABLES else ExitCode.USAGE
        assert main(words) == expected, line
        refused = "cannot be csv: take json or yaml" in capsys.readouterr().err
        assert refused is (name not in TABLES), line
    assert set(ran) == TABLES
    assert {"claim", "release", "drain", "devices cordon", "placement import", "gate enable"} <= names
