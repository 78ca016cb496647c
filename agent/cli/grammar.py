"""What the grammars of the commands share: how a command and its verbs are added, and common options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agent.cli.output import FORMATS
from agent.errors import UsageError
from plimsoll.wire import SOCKET_DEFAULT

if TYPE_CHECKING:
    from agent.config.settings import Settings

TIMEOUT_DEFAULT_S = 30.0
TIMEOUT_MAX_S = 86400.0


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError for wrong arguments."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError, which ends the command with one line and the exit code 2."""
        raise UsageError(f"{message}; `{self.prog} --help` shows the usage")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Raises UsageError for an option or argument that this command does not have, with the nearest."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and not unknown[0].startswith("-"):
            self.error(f"{self.prog} takes no further argument {unknown[0]!r}")
        if unknown:
            self._refuse("option", unknown[0].partition("=")[0], self._option_string_actions)
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises UsageError for a command that does not exist, with the nearest one that does."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self._refuse(str(action.metavar).lower(), str(value), action.choices)
        super()._check_value(action, value)

    def _refuse(self, what: str, given: str, known: Iterable[str]) -> NoReturn:
        from difflib import get_close_matches

        near = get_close_matches(given, list(known), n=1, cutoff=0.7)
        is_option = what == "option"
        meant = near[0] if near and is_option else f"{self.prog} {near[0]}" if near else None
        hint = f"did you mean `{meant}`?" if meant else f"`{self.prog} --help` lists them"
        raise UsageError(f"{self.prog} has no {what} {given!r}: {hint}")


class CommandAdder:
    """Adds the commands of `plimsoll`, or the verbs of a command."""

    def __init__(self, subparsers: Any, common: argparse.ArgumentParser) -> None:
        """`subparsers` as `ArgumentParser.add_subparsers` returns it; `common` has the options of all."""
        self._subparsers = subparsers
        self._common = common

    def __call__(
        self, name: str, run: Callable[..., int] | None, short: str, text: str, examples: str
    ) -> argparse.ArgumentParser:
        """A command and its help. `run` is None for a command that has verbs."""
        command: argparse.ArgumentParser = self._subparsers.add_parser(
            name,
            help=short,
            description=f"{short[0].upper()}{short[1:]}.\n\n{text}",
            epilog=f"examples:\n{examples}",
            parents=[self._common],
        )
        command.set_defaults(**({"run": run} if run else {"missing": command}))
        return command


def add_verbs(command: argparse.ArgumentParser) -> CommandAdder:
    """The adder of the verbs of a command."""
    return CommandAdder(command.add_subparsers(title="verbs", metavar="VERB"), common_options())


def common_options() -> argparse.ArgumentParser:
    """The options that stand before or after any command. Parsing sets only those that are given."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False)
    group = common.add_argument_group("options of every command")
    group.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        help="table (default), json, yaml, or csv where the answer is one table",
    )
    group.add_argument(
        "--socket", metavar="PATH", type=not_empty, help=f"the agent's socket (default {SOCKET_DEFAULT})"
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_timeout,
        help=f"give up when a request takes longer (default {TIMEOUT_DEFAULT_S:g})",
    )
    return common


def add_column_option(command: argparse.ArgumentParser) -> None:
    """Add the option that chooses the columns, of a command whose answer is one table.

    Only such a command has `has_table` among its arguments, and can answer in csv.
    """
    command.set_defaults(has_table=True)
    command.add_argument(
        "-c",
        "--column",
        metavar="TITLE",
        action="append",
        default=[],
        help="only this column of the table or csv; may be repeated, and sets the order",
    )


def complete_instances(argument: argparse.Action) -> None:
    """Have the shell complete the argument with the instances of the running agent."""
    _complete(argument, "instances", "instances -o csv -c name -c uuid")


def complete_migrations(argument: argparse.Action) -> None:
    """Have the shell complete the argument with the migrations of the running agent."""
    _complete(argument, "migrations", "move list -o csv -c name -c migration")


def _complete(argument: argparse.Action, what: str, command: str) -> None:
    """What shtab reads of an argument: the shell's function that completes it, and its source.

    A name that the shell could take for more than a word is not offered: a guest may be called `$(reboot)`.
    """
    function = f"_plimsoll_{what}"
    source = f"""{function}() {{
  local line
  plimsoll --timeout 1 {command} 2>/dev/null | tail -n +2 | tr -d '"' | tr , '\\n' | sort -u |
    grep -E '^[A-Za-z0-9][A-Za-z0-9._-]*$' | while IFS= read -r line; do
      if [[ "$line" == "$1"* ]]; then printf '%s\\n' "$line"; fi
    done
}}"""
    argument.complete = {"bash": function, "preamble": {"bash": source}}  # type: ignore[attr-defined]


def not_empty(text: str) -> str:
    """The type of an argument that cannot be an empty text."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is an empty text")
    return text


def seconds_or_zero(text: str) -> float:
    """A number of seconds; 0 where the text is no number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _timeout(text: str) -> float:
    seconds = seconds_or_zero(text)
    if not 0.0 < seconds <= TIMEOUT_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds above 0, at most {TIMEOUT_MAX_S:g}"
        )
    return seconds


def add_settings_options(command: argparse.ArgumentParser) -> None:
    """Add the options that name settings files."""
    command.add_argument(
        "--config-file", metavar="FILE", action="append", type=not_empty, help="settings; may be repeated"
    )
    command.add_argument(
        "--config-dir",
        metavar="DIR",
        action="append",
        type=not_empty,
        help="a directory of *.conf files; may be repeated",
    )


def settings_paths(args: argparse.Namespace) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """(files, directories) of the options."""
    files, directories = args.config_file or (), args.config_dir or ()
    return tuple(map(Path, files)), tuple(map(Path, directories))


def load_settings(args: argparse.Namespace) -> Settings:
    """The settings that the options name, else those that the agent reads. Raises SettingsError."""
    from agent.config.settings import load

    return load(*settings_paths(args))
