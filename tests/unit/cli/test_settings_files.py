"""The options that name settings files."""

import argparse
from pathlib import Path

from agent.cli.grammar import add_settings_options, settings_paths


def test_files_and_directories_may_be_repeated_and_may_be_missing() -> None:
    parser = argparse.ArgumentParser()
    add_settings_options(parser)
    words = ["--config-file", "a.conf", "--config-dir", "d", "--config-file", "b.conf"]
    assert settings_paths(parser.parse_args(words)) == ((Path("a.conf"), Path("b.conf")), (Path("d"),))
    assert settings_paths(parser.parse_args([])) == ((), ())
