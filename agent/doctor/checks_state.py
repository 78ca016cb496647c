"""The doctor's checks of the agent's files: the state directory, its databases, the host's identity."""

import errno
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.durable.errors import READ_ONLY_REMEDY, mount_of, obstacle_of, user_name
from agent.durable.files import OWNER_ONLY, check_accepts_files, is_there
from agent.errors import IdentityError
from agent.state.identity import ID_FILE, NAME_FILE, establish_identity

FREE_MIN_BYTES = 256 * 1024 * 1024
FREE_BAD_BYTES = 16 * 1024 * 1024
DATABASES = ("agent.db", "placement.db")
MEBIBYTE = 1024 * 1024


def state_directory(path: Path) -> Iterator[DoctorCheck]:
    """The state directory: its existence, its mode, and whether its file system can be written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        yield warning(
            "state", f"{path} does not exist yet.", "The service manager creates it at the first start."
        )
        return
    except OSError as error:
        yield bad("state", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user.")
        return
    owner = user_name(status.st_uid)
    if status.st_mode & stat.S_IWOTH:
        yield bad("state", f"Every user may write to {path}.", f"chmod 0700 {path}")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield bad(
            "state",
            f"{path} belongs to {owner}; {user_name(os.geteuid())} may not read it.",
            "Run the doctor as root, or as the agent's user.",
        )
        return
    elif status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        yield warning(
            "state", f"Other users than {owner} may open {path} (mode {mode:04o}).", f"chmod 0700 {path}"
        )
    else:
        yield good("state", f"Only {owner} may open {path}.")
    yield _free_space(path)


def _free_space(path: Path) -> DoctorCheck:
    mount = mount_of(path)
    if os.statvfs(path).f_flag & os.ST_RDONLY or (mount is not None and mount.is_read_only):
        remedy = READ_ONLY_REMEDY if mount is None else mount.remedy
        return bad(
            "disk",
            f"The file system of {path} is read-only: the agent cannot start, nor take a claim.",
            f"{remedy[0].upper()}{remedy[1:]}",
        )
    free = shutil.disk_usage(path).free
    sentence = f"The file system of {path} has {free // MEBIBYTE} MiB free."
    remedy = "Free some space: the agent refuses claims when it cannot write its journal."
    if free < FREE_BAD_BYTES:
        return bad("disk", sentence, remedy)
    if free < FREE_MIN_BYTES:
        return warning("disk", sentence, remedy)
    return good("disk", sentence)


def accepts_files(path: Path, uid: int) -> Iterator[DoctorCheck]:
    """What keeps the agent's user, if this process is its, from making files in the state directory.

    Nothing if all is well. Other checks tell a missing directory and a read-only file system.
    """
    if os.geteuid() != uid:
        return
    try:
        check_accepts_files(path)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.ENOENT}:
            obstacle = obstacle_of(path, error)
            yield bad(
                "state",
                f"{path} cannot be used: {obstacle.reason}. The agent cannot start again.",
                f"{obstacle.remedy[0].upper()}{obstacle.remedy[1:]}",
            )


def identity(path: Path, host: str) -> DoctorCheck:
    """The host's uuid and name. Writes nothing: the agent makes a missing uuid at its first start."""
    try:
        if not is_there(path / ID_FILE):
            if is_there(path / "agent.db"):
                recorded = _recorded_uuid(path / "agent.db") or "UUID"
                return bad(
                    "identity",
                    f"{path / ID_FILE} is gone, but the agent's database exists.",
                    f"Put the file back, or run `plimsoll adopt {recorded}`.",
                )
            return good("identity", f"{host} has no uuid yet; the first start makes one.")
        if not is_there(path / NAME_FILE):
            return good("identity", f"{host} has a uuid that was provided before the first start.")
        known = establish_identity(path, host, _recorded_uuid(path / "agent.db"))
    except IdentityError as error:
        return bad("identity", error.message, "Follow the sentence.")
    except OSError as error:
        return bad(
            "identity", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user."
        )
    return good("identity", f"This host is {known.name}, {known.uuid}.")


def _recorded_uuid(journal: Path) -> str | None:
    """The host's uuid in the journal, None if it cannot be read; another check says why."""
    if not journal.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(journal))}?mode=ro", uri=True, timeout=5)) as database:
            row = database.execute("SELECT value FROM facts WHERE name = 'host_uuid'").fetchone()
        return str(json.loads(row[0])) if row else None
    except (sqlite3.Error, ValueError):
        return None


def databases(path: Path) -> Iterator[DoctorCheck]:
    """Each database, opened read-only; the agent may be running."""
    for name in DATABASES:
        file = path / name
        if os.access(path, os.X_OK) and file.exists():
            yield _database(file)


def _database(file: Path) -> DoctorCheck:
    remedy = (
        "Stop the agent, keep a copy of the file, and restore it from a backup (documentation: upgrading, "
        "backups). `sqlite3 FILE .recover` lists the readable data."
    )
    mode = stat.S_IMODE(file.stat().st_mode)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=5)) as database:
            (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        return warning(
            "database", f"{file} cannot be read: {error}.", "Run the doctor as root, or as the agent's user."
        )
    except sqlite3.DatabaseError as error:
        return bad("database", f"{file} is damaged: {error}.", remedy)
    if result != "ok":
        return bad("database", f"{file} is damaged: {result}.", remedy)
    if mode & ~OWNER_ONLY:
        return warning("database", f"{file} has mode {mode:04o}.", f"chmod 0600 {file}")
    return good("database", f"{file} is intact (schema {version}).")
