"""Check the places of the agent's files before it makes them: its state directory and its API socket.

The start and `plimsoll config validate` call the same functions, which make nothing. What another process
uses at this moment is not looked at.
"""

import errno
import os
import stat
from pathlib import Path

from agent.durable.errors import obstacle_of
from agent.durable.files import check_accepts_files
from agent.errors import NO_DESCRIPTORS, SettingsError, StateError
from agent.http import unix_socket
from agent.http.errors import NotASocket


def check_state_path(path: Path) -> None:
    """Raises StateError where `path` cannot be the state directory; it may be missing, its parent not."""
    try:
        mode = _check_directory(path)
    except OSError as error:
        raise unusable_state_path(path, error) from error
    if mode & stat.S_IWOTH:
        raise StateError(
            f"Every user may write to the state directory {path}; chmod it to 0700.", path=str(path)
        )


def unusable_state_path(path: Path, error: OSError) -> StateError:
    """The error for a state directory that cannot be made or used."""
    obstacle = obstacle_of(path, error)
    remedy = obstacle.remedy
    if error.errno == errno.ENOENT or (error.errno == errno.EACCES and not os.path.lexists(path)):
        remedy = "create it, owned by the agent's user"
    or_else = "" if error.errno in NO_DESCRIPTORS else ", or set [DEFAULT] state_path"
    return StateError(
        f"The state directory {path} cannot be used: {obstacle.reason}; {remedy}{or_else}.", path=str(path)
    )


def check_running_state_path(path: Path) -> str | None:
    """What keeps a running agent from making files in its state directory: a sentence, None if nothing does.

    Its databases are open, so it goes on working. Raises StateError where it does not: their file system is
    read-only, or the directory is gone.
    """
    try:
        check_accepts_files(path)
    except OSError as error:
        unusable = unusable_state_path(path, error)
        if error.errno in {errno.EROFS, errno.ENOENT}:
            raise unusable from error
        return unusable.message
    return None


def check_api_socket(path: Path) -> None:
    """Raises SettingsError where the agent cannot listen at `path`; its directory may be missing."""
    try:
        mode = _check_directory(path.parent)
        unix_socket.is_there(path)
    except NotASocket as error:
        raise SettingsError(
            f"{path} exists and is no socket; move it away or set another [api] socket"
        ) from error
    except OSError as error:
        raise unusable_socket_directory(path.parent, error) from error
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise SettingsError(
            f"Every user may write to {path.parent} and replace the agent's socket; chmod it to 0750",
            directory=str(path.parent),
        )


def unusable_socket_directory(path: Path, error: OSError) -> SettingsError:
    """The error for a directory of the API socket that cannot be made or used."""
    obstacle = obstacle_of(path, error)
    remedy = "make it (mode 0750, owned by the agent's user)"
    if path.is_dir() or error.errno in NO_DESCRIPTORS:
        remedy = obstacle.remedy
    return SettingsError(
        f"The socket's directory {path} cannot be used: {obstacle.reason}; {remedy} or set another [api] "
        "socket",
        directory=str(path),
    )


def _check_directory(path: Path) -> int:
    """The directory's mode; 0 where it is missing and can be made in its parent. Raises OSError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        check_accepts_files(path.parent)
        return 0
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    check_accepts_files(path)
    return mode
