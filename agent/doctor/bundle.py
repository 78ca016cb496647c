"""Writes a support bundle: one file with all data about an agent, without its secrets, which a mask
removes.
"""

import io
import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent.config.settings import load
from agent.doctor.examine import examine
from agent.errors import PlimsollError, SettingsError, UsageError
from agent.log import is_ordinary

QUESTIONS = {
    **{name: name for name in ("status", "tree", "instances", "plan", "moves", "reshape", "audit", "config")},
    "history": "history?limit=1000",
}
"""{member of the archive: path below /v1}"""
LOG_LINES = 5000
COMMAND_TIMEOUT_S = 20
COMMANDS = {
    "log.txt": ("journalctl", "-u", "plimsoll-agent", "-n", str(LOG_LINES), "-o", "short-iso", "--no-pager"),
    "unit.txt": ("systemctl", "show", "plimsoll-agent", "--no-pager"),
    "kernel.txt": ("uname", "-a"),
    "cpus.txt": ("lscpu",),
}

Paths = tuple[Path, ...]
Ask = Callable[[str, str], Any]
"""ask(socket, path) is GET of a path; the socket "" is the default one. Raises PlimsollError."""


def gather(to: str | None, config_files: Paths, config_dirs: Paths, ask: Ask) -> tuple[Path, list[str]]:
    """Write the bundle, with mode 0600. Returns its path and its members.

    Raises UsageError where the file exists already or cannot be written.
    """
    secrets: frozenset[str] = frozenset()
    problem = ""
    try:
        secrets = load(config_files, config_dirs).secrets
    except SettingsError as error:
        problem = error.message
    name = f"plimsoll-{os.uname().nodename}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    path = Path(to or f"{name}.tar.gz")
    members = []
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists already; give another file with --to") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}; give a file in a directory that exists and that "
            "you may write with --to"
        ) from error
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, text in _members(config_files, config_dirs, ask, problem):
            content = mask(text, secrets).encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(content))
            members.append(member)
    return path, members


def _members(config_files: Paths, config_dirs: Paths, ask: Ask, problem: str) -> Iterator[tuple[str, str]]:
    for member, path in QUESTIONS.items():
        yield f"{member}.json", _answer(partial(ask, "", f"/v1/{path}"))

    def examination() -> object:
        checks = examine(config_files, config_dirs, lambda socket: ask(socket, "/v1/status"))
        return [check.to_json() for check in checks]

    yield "doctor.json", _answer(examination)
    for file, command in COMMANDS.items():
        yield file, _run(command)
    if problem:
        yield "settings-problem.txt", problem


def _answer(ask: Callable[[], Any]) -> str:
    try:
        return json.dumps(ask(), indent=2)
    except PlimsollError as error:
        return json.dumps({"error": {"code": error.code, "message": error.message}}, indent=2)


def _run(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # one of COMMANDS
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}\n"
    return done.stdout + done.stderr


MASK = "***"
_NAMED = re.compile(
    r"""(?ix) ( \b [\w.-]* (?: password | passwd | secret | token | api_?key ) [\w.-]* ["']? \s* [:=] \s* )
        (?: "[^"]*" | '[^']*' | [^\s,;"'{}\[\]]+ )"""
)
_HEADER = re.compile(r"(?i)(\b(?:x-auth-token|x-subject-token|authorization)\s*:\s*)[^\r\n]+")
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of keys such as `password` or `token`.

    A secret that is an ordinary word, or a part of one, is masked only as the value of such a key.
    """
    spellings = {
        spelling
        for secret in secrets
        if not is_ordinary(secret)
        for spelling in (secret, json.dumps(secret)[1:-1])
    }
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, MASK)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
