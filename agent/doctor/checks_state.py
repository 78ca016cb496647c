"""What the doctor sees of the agent's files: the state directory, its databases, the host's identity."""

import os
import pwd
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.durable.files import OWNER_ONLY
from agent.errors import IdentityError
from agent.state.identity import ID_FILE, NAME_FILE, establish

FREE_MIN_BYTES = 256 * 1024 * 1024
FREE_BAD_BYTES = 16 * 1024 * 1024
DATABASES = ("agent.db", "placement.db")
MEBIBYTE = 1024 * 1024


def state_directory(path: Path) -> Iterator[DoctorCheck]:
    """The directory: there, nobody else's to write, with room. What is in it is looked at by the others."""
    try:
        found = path.stat()
    except FileNotFoundError:
        yield warning(
            "state", f"{path} is not there yet.", "It is made at the first start, by the service manager."
        )
        return
    except OSError as error:
        yield bad("state", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user.")
        return
    owner = _name_of(found.st_uid)
    if found.st_mode & stat.S_IWOTH:
        yield bad("state", f"Anybody may write into {path}.", f"chmod 0700 {path}")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield bad(
            "state",
            f"{path} is {owner}'s and cannot be read by {_name_of(os.geteuid())}.",
            "Run the doctor as root, or as the agent's user.",
        )
        return
    elif found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(found.st_mode)
        yield warning(
            "state", f"Others than {owner} may open {path} (mode {mode:04o}).", f"chmod 0700 {path}"
        )
    else:
        yield good("state", f"{path} is {owner}'s alone.")
    yield _room(path)


def _room(path: Path) -> DoctorCheck:
    free = shutil.disk_usage(path).free
    sentence = f"{free // MEBIBYTE} MiB are free on the file system of {path}."
    remedy = "Make room there: claims are refused when their journal cannot be written."
    if free < FREE_BAD_BYTES:
        return bad("disk", sentence, remedy)
    if free < FREE_MIN_BYTES:
        return warning("disk", sentence, remedy)
    return good("disk", sentence)


def identity(path: Path, host: str) -> DoctorCheck:
    """Writes nothing: a host without a uuid is given one at the agent's first start."""
    try:
        if not (path / ID_FILE).exists():
            if (path / "agent.db").exists():
                return bad(
                    "identity",
                    f"{path / ID_FILE} is gone, though the agent's records are there.",
                    "Put the file back, or start the agent: it names the uuid for `plimsoll adopt`.",
                )
            return good("identity", f"{host} has no uuid yet; the first start makes one.")
        if not (path / NAME_FILE).exists():
            return good("identity", f"{host}: a uuid was put there before the first start.")
        found = establish(path, host, None)
    except IdentityError as error:
        return bad("identity", error.message, "The sentence says what to do.")
    except OSError as error:
        return bad(
            "identity", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user."
        )
    return good("identity", f"This host is {found.name}, {found.uuid}.")


def databases(path: Path) -> Iterator[DoctorCheck]:
    """Each database, read only, also while the agent works with it."""
    for name in DATABASES:
        file = path / name
        if os.access(path, os.X_OK) and file.exists():
            yield _database(file)


def _database(file: Path) -> DoctorCheck:
    remedy = (
        "Stop the agent, keep the file for a look, and restore it from a backup "
        "(docs: upgrading, backups); what is left of it can be listed with `sqlite3 FILE .recover`."
    )
    mode = stat.S_IMODE(file.stat().st_mode)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=5)) as database:
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError as error:
        return warning(
            "database", f"{file} cannot be read: {error}.", "Run the doctor as root, or as the agent's user."
        )
    except sqlite3.DatabaseError as error:
        return bad("database", f"{file} is damaged: {error}.", remedy)
    if found != "ok":
        return bad("database", f"{file} is damaged: {found}.", remedy)
    if mode & ~OWNER_ONLY:
        return warning("database", f"{file} has mode {mode:04o}.", f"chmod 0600 {file}")
    return good("database", f"{file} is sound (schema {version}).")


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
