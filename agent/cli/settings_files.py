"""The options `--config-file` and `--config-dir` of several commands, and the settings that they name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.grammar import not_empty

if TYPE_CHECKING:
    from agent.config.settings import Settings


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
    return _paths(args.config_file), _paths(args.config_dir)


def load_settings(args: argparse.Namespace) -> Settings:
    """The settings that the options name, else those that the agent reads. Raises SettingsError."""
    from agent.config.settings import load

    return load(*settings_paths(args))


def _paths(names: Sequence[str] | None) -> tuple[Path, ...]:
    return tuple(Path(name) for name in names or ())
