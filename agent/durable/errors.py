"""What can go wrong with a durable SQLite file, as typed errors.

    DatabaseError
    ├─ DatabaseLocked      another process owns the file
    ├─ DatabaseBusy        another program holds an SQLite lock on it for too long
    ├─ DatabaseDamaged     the file is not a sound database
    ├─ DatabaseForeign     a sound database, of another application
    ├─ DatabaseOfAnother   root would write into another user's directory
    ├─ DatabaseNewer       written by a newer version
    ├─ DatabaseUnwritable  the disk refused a write or a sync
    │  └─ DiskFull         ... because no space is left
    ├─ DatabaseTimeout     no answer in time: the outcome is not known
    └─ DatabaseClosed      the file was closed before the job ran

Every message is a whole sentence for an operator: what, where, and what to do.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


class DatabaseError(Exception):
    """The durable store could not do what was asked; nothing was changed unless a subclass says otherwise.

    `path` is the database file.
    """

    def __init__(self, path: Path, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path


class DatabaseLocked(DatabaseError):
    """`holder_pid` is the owning process, None where its lock file does not tell."""

    def __init__(self, path: Path, holder_pid: int | None) -> None:
        who = "another process" if holder_pid is None else f"process {holder_pid}"
        super().__init__(path, f"{path} is in use by {who}; stop it, or use another state directory.")
        self.holder_pid = holder_pid


class DatabaseBusy(DatabaseError):
    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path} is held locked by another program; close whatever has it open.")


class DatabaseDamaged(DatabaseError):
    def __init__(self, path: Path, finding: str) -> None:
        super().__init__(
            path,
            f"{path} is damaged ({finding}); it was left as it is. Move it aside together with its -wal file "
            "and put a backup in its place, or start with an empty state directory.",
        )
        self.finding = finding


class DatabaseForeign(DatabaseError):
    def __init__(self, path: Path, found: int, wanted: int) -> None:
        super().__init__(
            path,
            f"{path} belongs to another application (application_id {found:#x}, expected {wanted:#x}); "
            "it was left as it is. Point the state directory elsewhere.",
        )


class DatabaseOfAnother(DatabaseError):
    def __init__(self, path: Path, owner: str) -> None:
        # runuser knows users by name only
        command = f"setpriv --reuid={owner} --clear-groups" if owner.isdecimal() else f"runuser -u {owner} --"
        super().__init__(
            path,
            f"{path.parent} is {owner}'s, who could not read what root writes there; nothing was changed. "
            f"Run this as that user: {command} plimsoll ...",
        )


class DatabaseNewer(DatabaseError):
    def __init__(self, path: Path, found: int, supported: int) -> None:
        super().__init__(
            path,
            f"{path} was written by a newer version (schema {found}, this one knows up to {supported}); "
            "upgrade, or restore the backup made before the upgrade.",
        )
        self.found = found
        self.supported = supported


class DatabaseUnwritable(DatabaseError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, f"{path} cannot be written ({reason}); nothing was changed. Check its disk.")


class DiskFull(DatabaseUnwritable):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "no space is left")


class DatabaseTimeout(DatabaseError):
    """`begun`: the write may be on disk or not; else it was taken back before it began."""

    def __init__(self, path: Path, timeout_s: float, *, begun: bool = True) -> None:
        outcome = "the outcome shows when it is read again" if begun else "the write was taken back"
        super().__init__(
            path,
            f"{path} gave no answer within {timeout_s:g} s; {outcome}. Is its disk stuck?",
        )
        self.begun = begun


class DatabaseClosed(DatabaseError):
    def __init__(self, path: Path) -> None:
        super().__init__(path, f"{path} is closed; nothing was changed.")


def typed(error: sqlite3.Error, path: Path) -> DatabaseError:
    """The typed form of an error that SQLite raised for the file as a whole."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    if name == "SQLITE_FULL":
        return DiskFull(path)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DatabaseDamaged(path, str(error))
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DatabaseBusy(path)
    if name.startswith(("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return DatabaseUnwritable(path, f"{error}, {name}")
    return DatabaseError(path, f"{path}: {error} ({name or type(error).__name__}).")


def concerns_the_file(error: sqlite3.Error) -> bool:
    """Whether the error is about the file, and not about one statement (a constraint, a typing mistake)."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    whole = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_LOCKED")
    return name.startswith((*whole, "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_NOMEM"))
