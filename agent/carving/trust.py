"""Whether a file that tells a process of root what to do is its own user's or root's alone to write."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from agent.errors import StateError


def check_owners(paths: Iterable[Path]) -> None:
    """Raises StateError where another user can write one of the files, or can put another in its place."""
    for path in paths:
        for place in (path, path.parent):
            try:
                found = place.stat()
            except OSError as error:
                raise StateError(f"{place} cannot be read: {error.strerror}.") from error
            others = stat.S_IWGRP | stat.S_IWOTH
            if found.st_uid not in (0, os.geteuid()) or (found.st_mode & others and not _is_sticky(found)):
                raise StateError(
                    f"{place} can be written by others than root, and says what is done to devices as root: "
                    f"run `chown root {place}; chmod go-w {place}`, or move [devices] and [mdev_...] into a "
                    "file of root, such as /etc/plimsoll/conf.d/devices.conf."
                )


def _is_sticky(found: os.stat_result) -> bool:
    """Whether the kernel lets each user replace only files of their own there, as in /tmp."""
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
