"""The options that name a Placement."""

import argparse
from pathlib import Path

import pytest

from agent.cli.placement import add_source_options, counts_text, is_state_dir, opened, read_text_file
from agent.errors import UsageError


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
