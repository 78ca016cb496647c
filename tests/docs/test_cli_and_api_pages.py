"""The documents of the command line and the local API name all that there is."""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType

import pytest
from kits.paths import CHECKOUT

from agent.api import server
from agent.api.routes import ROUTES
from agent.cli.parser import EXIT_CODES, INTERRUPTED, READER_GONE, build
from agent.config.options import all_options
from agent.errors import ExitCode, PlimsollError, SettingsError, StateError
from plimsoll.wire import SOCKET_DEFAULT

DOCS = CHECKOUT / "docs"
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")
API = (DOCS / "api.md").read_text(encoding="utf-8")


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers that have no others below them."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in action.choices.values():
            yield from commands(each)


def test_every_command_and_option_is_documented() -> None:
    for parser in commands(build()):
        assert f"`{parser.prog}`" in CLI
        for action in parser._actions:
            for option in action.option_strings:
                assert f"`{option}" in CLI or option == "-h", f"{option} of {parser.prog}"


def test_the_commands_that_take_columns_are_named() -> None:
    (row,) = re.findall(r"^`-c`, `--column TITLE` \(of (.*?)\)", CLI, re.MULTILINE)
    taking = {
        parser.prog.removeprefix("plimsoll ")
        for parser in commands(build())
        if "--column" in parser._option_string_actions
    }
    assert set(re.findall(r"`(.*?)`", row)) == taking


def test_every_exit_code_is_documented() -> None:
    for code in (*EXIT_CODES, INTERRUPTED, READER_GONE):
        assert f"\n| {int(code)} | " in CLI


REFUSED_BY_THE_AGENT = {"claim", "release", "move begin", "move confirm", "move revert", "reshape"}
REFUSED_BY_THE_TARGET = {"placement import", "placement remove"}
"""What ends with 5 because of an error that a client of the agent, or of a Placement, raises."""


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (ExitCode.DRIFT_FOUND, set()),
        (ExitCode.DRIFT_HEALED, set()),
        (ExitCode.REFUSED, REFUSED_BY_THE_AGENT | REFUSED_BY_THE_TARGET),
    ],
)
def test_the_commands_of_an_exit_code_are_those_that_return_it(code: ExitCode, more: set[str]) -> None:
    names = {parser.prog.removeprefix("plimsoll "): parser for parser in commands(build())}
    returning = {name for name, parser in names.items() if code.name in _codes_of(parser.get_default("run"))}
    (row,) = re.findall(rf"^\| {int(code)} \| .* \| (.*) \|$", CLI, re.MULTILINE)
    documented = {
        next(name for name in names if f"{text} ".startswith(f"{name} "))
        for text in re.findall(r"`(.*?)`", row)
        if not text.startswith("--")
    }
    assert documented == returning | more


def _codes_of(function: FunctionType) -> set[str]:
    """The names of the exit codes in the function and in those of the command line that it calls."""
    codes: set[str] = set()
    waiting, known = [function], {function}
    while waiting:
        called = waiting.pop()
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(called)))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ExitCode":
                codes.add(node.attr)
            if not isinstance(node, ast.Name) or node.id in called.__code__.co_varnames:
                continue
            below = called.__globals__.get(node.id)
            of_the_cli = isinstance(below, FunctionType) and below.__module__.startswith("agent.cli")
            if of_the_cli and below not in known:
                known.add(below)
                waiting.append(below)
    return codes


def test_every_route_is_documented_with_its_role() -> None:
    for route in ROUTES:
        rule = route.rule.replace("<", "{").replace(">", "}")
        assert f"| `{route.method} {rule}` | {route.role.name.lower()} |" in API


def test_every_error_of_the_api_itself_is_documented() -> None:
    at_start = {PlimsollError, SettingsError, StateError}  # the last two keep the socket from being made
    for kind in vars(server).values():
        if isinstance(kind, type) and issubclass(kind, PlimsollError) and kind not in at_start:
            assert f"| {kind.http_status} | `{kind.code}` |" in API


def test_the_command_line_looks_where_the_agent_listens() -> None:
    (option,) = (option for option in all_options({})["api"] if option.dest == "socket")
    assert option.default == SOCKET_DEFAULT
    assert SOCKET_DEFAULT in CLI and SOCKET_DEFAULT in API
