"""Texts from files and from standard input, with a bound."""

import io
from pathlib import Path

import pytest

from agent.cli.claim_request import CHARS_MAX, STANDARD_INPUT, read_text_file
from agent.errors import UsageError


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "web.xml"
    file.write_bytes(b"<domain>\r\n</domain>")
    assert read_text_file("domain", str(file)) == "<domain>\r\n</domain>", "byte for byte"
    monkeypatch.setattr("sys.stdin", io.StringIO("text"))
    assert read_text_file("domain", STANDARD_INPUT) == "text"


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "web.xml"
    for content, said in ((b"\xff", "not UTF-8"), (b"x" * (CHARS_MAX + 1), "longer than")):
        file.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            read_text_file("domain", str(file))
    with pytest.raises(UsageError, match=r"claim: .* cannot be read"):
        read_text_file("claim", str(tmp_path))
