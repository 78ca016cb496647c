"""Why this process cannot write a file, and what an operator does about it: in clauses for a sentence."""

from __future__ import annotations

import errno
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.durable.files import check_accepts_files
from agent.errors import LACK_OF_DESCRIPTORS, MORE_DESCRIPTORS, NO_DESCRIPTORS

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
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _denied(directory, reason, "0700")
    return Obstacle(reason, "check the disk")


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
