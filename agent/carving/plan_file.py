"""The plan file in the state directory: the agent writes it; the carver, which runs as root, checks it."""

import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from agent.carving.carving import NeededUnit
from agent.carving.needs import needs_to_json, read_needs
from agent.durable.files import write_atomically
from agent.errors import StateError, UsageError

NAME = "carving.json"
SIZE_MAX = 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_plan_file(folder: Path, needs: Iterable[NeededUnit]) -> None:
    """Replace the file, durably. Raises StateError."""
    path = folder / NAME
    try:
        write_atomically(path, json.dumps(needs_to_json(needs), indent=1) + "\n")
    except OSError as error:
        raise StateError(
            f"{path} cannot be written: {error.strerror}; after a reboot the devices of new guests are not "
            "made again."
        ) from error


def read_plan_file(folder: Path) -> tuple[NeededUnit, ...]:
    """What claims and domains need; nothing where there is no file.

    Raises StateError where the file is not what the agent writes: another user's, writable for others, a
    link, too large, or malformed. The error shows nothing of the file's content but what is wrong in it.
    """
    return read_checked(folder / NAME, read_needs) or ()


_T = TypeVar("_T")
_REMEDY = "Remove the file; the agent writes it anew."


def read_checked(path: Path, read: Callable[[object], _T]) -> _T | None:
    """What `read` makes of the JSON in a file that the agent keeps; None where there is no file.

    Raises StateError as `read_plan_file`, also for a UsageError of `read`.
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
