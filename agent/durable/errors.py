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

Every message is a sentence for an operator: what, where, and what to do. An `Obstacle` says why this process
cannot write a file, and what an operator does about it, in clauses for such a sentence.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import sqlite3
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from agent.durable.files import check_accepts_files
from agent.errors import LACK_OF_DESCRIPTORS, MORE_DESCRIPTORS, NO_DESCRIPTORS

_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
"""FS_IOC_GETFLAGS, _IOR('f', 1, long)"""
_IMMUTABLE = 0x10
"""FS_IMMUTABLE_FL"""


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

    def __init__(
        self, path: Path, timeout_s: float, *, begun: bool = True, cause: str = "the disk hangs"
    ) -> None:
        outcome = "the outcome is unknown" if begun else "the write was cancelled"
        super().__init__(
            path,
            f"{path} gave no answer within {timeout_s:g} s; {outcome}. Check whether {cause}.",
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


MOUNTS = Path("/proc/self/mountinfo")
READ_ONLY_REMEDY = "see in `dmesg` why, and mend that"
_ERROR_OPTIONS = frozenset({"emergency_ro", "shutdown"})


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of proc_pid_mountinfo(5): the options of the mount, and those of its file system (super)."""

    point: Path
    source: str
    options: frozenset[str]
    super_options: frozenset[str]

    @property
    def is_read_only(self) -> bool:
        """True also after an error of the file system, where ext4 leaves ST_RDONLY unset (`emergency_ro`)."""
        return "ro" in self.options | self.super_options or bool(self.super_options & _ERROR_OPTIONS)

    @property
    def remedy(self) -> str:
        """How to make the mount writable again."""
        if self.super_options & _ERROR_OPTIONS:
            return (
                f"see in `dmesg` what broke it, stop the agent, unmount {self.point}, check the file system "
                f"(fsck {self.source}), mount it and start the agent"
            )
        if "ro" in self.options and "ro" not in self.super_options:
            return f"see why it was mounted so, then: mount -o remount,bind,rw {self.point}"
        return f"see in `dmesg` why the kernel did that, mend it, then: mount -o remount,rw {self.point}"


def mount_of(path: Path) -> Mount | None:
    """The mount on which the path is: of the longest point, the last. None if the kernel does not say."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved, found = path.resolve(), None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, system = left.split(" "), right.split(" ")
        point = Path(_unescaped(fields[4]))
        if resolved.is_relative_to(point) and (found is None or len(point.parts) >= len(found.point.parts)):
            found = Mount(
                point,
                _unescaped(system[1]),
                frozenset(fields[5].split(",")),
                frozenset(system[2].split(",")),
            )
    return found


def _unescaped(field: str) -> str:
    for character in " \t\n\\":
        field = field.replace(f"\\{ord(character):03o}", character)
    return field


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a write fails, and what to do: two clauses."""

    reason: str
    remedy: str


def find_obstacle(file: Path) -> Obstacle | None:
    """What keeps this process from writing the file in its directory; None where nothing shows.

    Opens no descriptor of the file itself: closing one would drop the process's locks on it.
    """
    try:
        check_accepts_files(file.parent)
    except OSError as error:
        return obstacle_of(file.parent, error)
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return _denied(file, os.strerror(errno.EACCES), "0600")
    return None


def obstacle_of(directory: Path, error: OSError) -> Obstacle:
    """The reason and the remedy for an error that came of making or opening a file in the directory."""
    reason = error.strerror or str(error)
    if error.errno == errno.EROFS:
        mount = mount_of(directory)
        if mount is None:
            return Obstacle("its file system is read-only", READ_ONLY_REMEDY)
        return Obstacle(f"the file system at {mount.point} is read-only", mount.remedy)
    if error.errno in NO_DESCRIPTORS:
        return Obstacle(LACK_OF_DESCRIPTORS, MORE_DESCRIPTORS)
    if is_immutable(directory):
        return Obstacle(f"{reason}: {directory} is immutable", f"run `chattr -i {directory}`")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _denied(directory, reason, "0700")
    return Obstacle(reason, "check the disk")


def is_immutable(directory: Path) -> bool:
    """Whether an administrator has marked the directory so (`chattr +i`): root, too, makes no file there.

    Source: https://man7.org/linux/man-pages/man2/ioctl_iflags.2.html
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        flags = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(struct.calcsize("l")))
        return bool(struct.unpack("l", flags)[0] & _IMMUTABLE)
    except OSError:  # a file system without such marks
        return False
    finally:
        os.close(descriptor)


def _denied(path: Path, reason: str, mode: str) -> Obstacle:
    """Who may not write to the path, or to the parent in which it is to be made, or enter a parent."""
    seen = next(parent for parent in (path, *path.absolute().parents) if os.access(parent, os.F_OK))
    status, user = seen.stat(), user_name(os.geteuid())
    has = f"mode {stat.S_IMODE(status.st_mode):04o}, owned by {user_name(status.st_uid)}"
    if seen != path and not os.access(seen, os.X_OK):
        return Obstacle(f"{reason}: {user} may not enter {seen} ({has})", f"let {user} enter {seen}")
    command = f"chmod {mode} {seen}" if status.st_uid == os.geteuid() else f"chown {user} {seen}"
    return Obstacle(f"{reason}: {user} may not write to {seen} ({has})", f"run `{command}`")


def user_name(uid: int) -> str:
    """The name of the user, or `uid N`."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
