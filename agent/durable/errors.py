"""The errors of a durable SQLite file.

    DatabaseError
    ├─ DatabaseLocked      another process owns the file
    ├─ DatabaseBusy        another program keeps an SQLite lock on the file
    ├─ DatabaseDamaged     the file is not an intact database
    ├─ DatabaseForeign     the database belongs to another application
    ├─ DatabaseOfAnother   the directory belongs to another user, and this process is root
    ├─ DatabaseNewer       a newer version wrote the file
    ├─ DatabaseUnwritable  a write or a sync failed
    │  └─ DiskFull         ... because no space is left
    ├─ DatabaseTimeout     no answer in time: the outcome is unknown
    └─ DatabaseClosed      the file was closed before the job ran

Every message is a sentence for an operator: what, where, and what to do.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agent.durable.obstacles import find_obstacle, obstacle_of


class DatabaseError(Exception):
    """The operation failed, and nothing was changed unless a subclass says otherwise.

    `path` is the database file.
    """

    def __init__(self, path: Path, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path


class DatabaseLocked(DatabaseError):
    """Another process, `holder_pid`, owns the file; None if the lock file does not name it."""

    def __init__(self, path: Path, holder_pid: int | None) -> None:
        self.holder = "another process" if holder_pid is None else f"process {holder_pid}"
        self.holder_pid = holder_pid
        super().__init__(path, f"{path} is in use by {self.holder}; stop it, or use another state directory.")


class DatabaseBusy(DatabaseError):
    """Another program keeps an SQLite lock on the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"Another program keeps a lock on {path}; close that program.")


class DatabaseDamaged(DatabaseError):
    """The file is not an intact database; `finding` is SQLite's."""

    def __init__(self, path: Path, finding: str) -> None:
        super().__init__(
            path,
            f"{path} is damaged ({finding}); it was not changed. Move it aside together with its -wal file "
            "and put a backup in its place, or start with an empty state directory.",
        )
        self.finding = finding


class DatabaseForeign(DatabaseError):
    """The database belongs to another application."""

    def __init__(self, path: Path, application_id: int, wanted: int) -> None:
        super().__init__(
            path,
            f"{path} belongs to another application (application_id {application_id:#x}, not {wanted:#x}); "
            "it was not changed. Use another state directory.",
        )


class DatabaseOfAnother(DatabaseError):
    """The directory belongs to another user, and this process is root."""

    def __init__(self, path: Path, owner: str) -> None:
        # runuser knows users by name only
        command = f"setpriv --reuid={owner} --clear-groups" if owner.isdecimal() else f"runuser -u {owner} --"
        super().__init__(
            path,
            f"{path.parent} belongs to {owner}, who could not read files that root writes there; nothing was "
            f"changed. Run the command as that user: {command} plimsoll ...",
        )


class DatabaseNewer(DatabaseError):
    """A newer version wrote the file."""

    def __init__(self, path: Path, version: int, supported: int) -> None:
        super().__init__(
            path,
            f"{path} was written by a newer version (schema {version}, this one supports {supported}); "
            "upgrade, or restore the backup made before the upgrade.",
        )
        self.version = version
        self.supported = supported


class DatabaseUnwritable(DatabaseError):
    """A write or a sync failed. `remedy` is a clause."""

    def __init__(self, path: Path, reason: str, remedy: str = "check the disk") -> None:
        super().__init__(
            path,
            f"{path} cannot be written ({reason}); nothing was changed. {remedy[0].upper()}{remedy[1:]}.",
        )


class DiskFull(DatabaseUnwritable):
    """The disk has no space left."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "no space is left")


class DatabaseTimeout(DatabaseError):
    """No answer in time. With `begun`, the write may be on disk or not; else it will not take place."""

    def __init__(self, path: Path, timeout_s: float, *, begun: bool = True) -> None:
        outcome = "the outcome is unknown" if begun else "the write was cancelled"
        super().__init__(
            path,
            f"{path} gave no answer within {timeout_s:g} s; {outcome}. Check whether the disk hangs.",
        )
        self.begun = begun


class DatabaseClosed(DatabaseError):
    """The file was closed before the job ran."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path} is closed; nothing was changed.")


def typed(error: sqlite3.Error, path: Path) -> DatabaseError:
    """The error of this module for an SQLite error that concerns the whole file."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    if name == "SQLITE_FULL":
        return DiskFull(path)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DatabaseDamaged(path, str(error))
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DatabaseBusy(path)
    if name.startswith(("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        obstacle = find_obstacle(path)  # SQLite says "disk I/O error" and "unable to open" for any of them
        if obstacle is None:
            return DatabaseUnwritable(path, f"{error}, {name}")
        return DatabaseUnwritable(path, obstacle.reason, obstacle.remedy)
    return DatabaseError(path, f"{path}: {error} ({name or type(error).__name__}).")


def unwritable(error: OSError, path: Path) -> DatabaseUnwritable:
    """The error for a file beside the database that could not be made, opened or extended."""
    obstacle = obstacle_of(path.parent, error)
    return DatabaseUnwritable(path, obstacle.reason, obstacle.remedy)


def concerns_the_file(error: sqlite3.Error) -> bool:
    """True if the error concerns the whole file, not one statement (a constraint, a syntax error)."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    whole = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_LOCKED")
    return name.startswith((*whole, "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_NOMEM"))
