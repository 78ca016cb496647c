"""Texts that commands take from a file or from standard input."""

import sys
from pathlib import Path

from agent.errors import UsageError

CHARS_MAX = 2**20
STANDARD_INPUT = "-"


def read_text_file(command: str, name: str) -> str:
    """The text of a file, or of standard input for `-`; `command` is for errors. Raises UsageError."""
    where = "standard input" if name == STANDARD_INPUT else name
    try:
        if name == STANDARD_INPUT:
            text = sys.stdin.read(CHARS_MAX + 1)
        else:
            with Path(name).open(encoding="utf-8", newline="") as file:
                text = file.read(CHARS_MAX + 1)
    except OSError as error:
        raise UsageError(f"{command}: {where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{command}: {where} is not UTF-8: {error.reason}") from error
    if len(text) > CHARS_MAX:
        raise UsageError(f"{command}: {where} is longer than the {CHARS_MAX} characters that the agent takes")
    return text
