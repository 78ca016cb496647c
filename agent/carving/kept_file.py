"""A file of JSON in the state directory that the agent keeps, and that a process of root checks by itself."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.durable.files import write_atomically
from agent.errors import StateError, UsageError

T = TypeVar("T")

SIZE_MAX = 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "Remove the file; the agent writes it anew."


def write_kept(path: Path, content: Any, loss: str) -> None:
    """Replace the file, durably. Raises StateError, with `loss`: a clause on what does not happen then."""
    try:
        write_atomically(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}; {loss}.") from error


def read_kept(path: Path, read: Callable[[object], T]) -> T | None:
    """What `read` makes of the file's JSON; None where there is no file.

    Raises StateError where the file is not what the agent writes: another user's, writable for others, a
    link, too large, no JSON, or refused by `read` with UsageError. The error shows nothing of the file's
    content but what is wrong in it.
    """
    try:
        return read(json.loads(_text(path, path.parent.stat())))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}; run this as root.") from error
    except UsageError as error:
        raise StateError(f"{path}: {error.message} {_REMEDY}") from error
    except ValueError as error:
        raise StateError(f"{path} is not JSON. {_REMEDY}") from error


def _text(path: Path, folder: os.stat_result) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > SIZE_MAX:
            raise UsageError(f"it is no file of at most {SIZE_MAX} bytes.")
        if found.st_uid not in (0, folder.st_uid) or (found.st_mode | folder.st_mode) & _OTHERS_WRITE:
            raise UsageError("others than the owner of the directory may write it.")
        return file.read(SIZE_MAX)
