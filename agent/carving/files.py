"""The files in the state directory by which the agent tells a process of root what claims need.

The agent writes the plan file and the file of dedicated CPUs. The process of root checks both by itself, and
follows settings only if none but root and their owner can write them.
"""

import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from agent.carving.carving import NeededUnit, needs_to_json, read_needs
from agent.carving.cpus import CpuHold, CpuHolds, holds_to_json, read_holds
from agent.durable.files import write_atomically
from agent.errors import StateError, UsageError

T = TypeVar("T")

SIZE_MAX = 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "Remove the file; the agent writes it anew."


def check_owners(paths: Iterable[Path]) -> None:
    """Raises StateError where another user can write one of the files, or can put another in its place."""
    for path in paths:
        for place in (path, path.parent):
            try:
                found = place.stat()
            except OSError as error:
                raise StateError(f"{place} cannot be read: {error.strerror}.") from error
            # In a sticky folder, as /tmp is, the kernel lets each user replace only files of their own.
            is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.geteuid()) or (found.st_mode & _OTHERS_WRITE and not is_sticky):
                raise StateError(
                    f"{place} can be written by others than root, and says what is done to devices as root: "
                    f"run `chown root {place}; chmod go-w {place}`, or move [devices] and [mdev_...] into a "
                    "file of root, such as /etc/plimsoll/conf.d/devices.conf."
                )


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


PLAN_NAME = "carving.json"
_PLAN_LOSS = "after a reboot the devices of new guests are not made again"


def write_plan_file(folder: Path, needs: Iterable[NeededUnit]) -> None:
    """Replace the file, durably. Raises StateError."""
    write_kept(folder / PLAN_NAME, needs_to_json(needs), _PLAN_LOSS)


def read_plan_file(folder: Path) -> tuple[NeededUnit, ...]:
    """What claims and domains need; nothing where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / PLAN_NAME, read_needs) or ()


CPUS_NAME = "cpus.json"
_CPUS_LOSS = "the CPUs of new claims do not come up before their guests start"


def write_cpu_file(folder: Path, holds: CpuHolds) -> None:
    """Replace the file, durably; that starts the process of root. Raises StateError."""
    write_kept(folder / CPUS_NAME, holds_to_json(holds), _CPUS_LOSS)


def read_cpu_file(folder: Path) -> dict[str, CpuHold] | None:
    """What the agent wrote; None where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / CPUS_NAME, read_holds)
