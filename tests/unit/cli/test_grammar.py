"""Common options stand before or after the command, and wrong arguments are an error like any other."""

import argparse
from pathlib import Path

import pytest

from agent.cli.client import Client
from agent.cli.grammar import CommandAdder, Parser, add_settings_options, common_options, settings_paths
from agent.cli.parser import build, defaults
from agent.errors import ExitCode, UsageError


def run(args: argparse.Namespace) -> ExitCode:
    return ExitCode.DONE


def parser() -> Parser:
    common = common_options()
    whole = Parser(prog="plimsoll", parents=[common])
    add = CommandAdder(whole.add_subparsers(), common)
    add("lost", run, "list what is lost", "Lists it.", "  plimsoll lost")
    return whole


@pytest.mark.parametrize("words", [("-o", "json", "lost"), ("lost", "-o", "json")])
def test_an_option_stands_before_or_after_the_command(words: tuple[str, ...]) -> None:
    args = parser().parse_args(words, argparse.Namespace(output="table"))
    assert (args.output, args.run) == ("json", run)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", "86401"])
def test_a_timeout_is_a_number_of_seconds_within_a_day(seconds: str) -> None:
    with pytest.raises(UsageError, match="is not a number of seconds above 0, at most 86400"):
        parser().parse_args(["lost", "--timeout", seconds])


def test_an_unknown_option_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="plimsoll lost has no option '--lots'"):
        parser().parse_args(["lost", "--lots"])


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--socket", ""),
        ("config", "validate", "--config-file", ""),
        ("config", "validate", "--config-dir", " "),
        ("doctor", "--device", ""),
        ("init", "--host", ""),
        ("domain", "web1", "--connect", ""),
    ],
)
def test_an_empty_text_is_no_value(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{words[-2]}: the value is an empty text"):
        build().parse_args(words)


def test_a_socket_whose_path_is_too_long() -> None:
    with pytest.raises(UsageError, match=r"is too long; .* at most 107 bytes"):
        Client(f"/tmp/{'s' * 200}", 1.0)


def test_another_libvirt_is_for_a_domain() -> None:
    args = build().parse_args(["claim", "--resources", "VCPU=1", "--connect", "xen:///"], defaults())
    with pytest.raises(UsageError, match="--connect needs --domain"):
        args.run(args)


def test_files_and_directories_may_be_repeated_and_may_be_missing() -> None:
    parser = argparse.ArgumentParser()
    add_settings_options(parser)
    words = ["--config-file", "a.conf", "--config-dir", "d", "--config-file", "b.conf"]
    assert settings_paths(parser.parse_args(words)) == ((Path("a.conf"), Path("b.conf")), (Path("d"),))
    assert settings_paths(parser.parse_args([])) == ((), ())
