"""The documents of the command line and the local API name all that there is."""

import argparse
from collections.abc import Iterator

from kits.paths import CHECKOUT

from agent.api import app
from agent.api.routes import ROUTES
from agent.cli.client import SOCKET_DEFAULT
from agent.cli.parser import EXIT_CODES, INTERRUPTED, READER_GONE, build
from agent.config.options import all_options
from agent.errors import PlimsollError

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


def test_every_exit_code_is_documented() -> None:
    for code in (*EXIT_CODES, INTERRUPTED, READER_GONE):
        assert f"\n| {int(code)} | " in CLI


def test_every_route_is_documented_with_its_role() -> None:
    for route in ROUTES:
        rule = route.rule.replace("<", "{").replace(">", "}")
        assert f"| `{route.method} {rule}` | {route.role.name.lower()} |" in API


def test_every_error_of_the_api_itself_is_documented() -> None:
    for kind in vars(app).values():
        if isinstance(kind, type) and issubclass(kind, PlimsollError) and kind is not PlimsollError:
            assert f"| {kind.http_status} | `{kind.code}` |" in API


def test_the_command_line_looks_where_the_agent_listens() -> None:
    (option,) = (option for option in all_options({})["api"] if option.dest == "socket")
    assert option.default == SOCKET_DEFAULT
    assert SOCKET_DEFAULT in CLI and SOCKET_DEFAULT in API
