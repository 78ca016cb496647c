"""Runs checks as the agent's user: what root may do says nothing about the agent."""

import json
import os
import pwd
import select
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from agent.doctor.check import DoctorCheck, warning

AGENT_USER = "plimsoll"
CHECKS_S = 120.0
"""For all checks together: more than the time-outs of libvirt and of a remote Placement add up to."""

READ_BYTES = 65536
END_S = 1.0


def agent_user(state_path: Path) -> pwd.struct_passwd | None:
    """The agent's user: the owner of the state directory, else AGENT_USER; None for root or none of them."""
    try:
        user = pwd.getpwuid(state_path.stat().st_uid)
    except (OSError, KeyError):
        try:
            user = pwd.getpwnam(AGENT_USER)
        except KeyError:
            return None
    return user if user.pw_uid else None


def checks_as(
    user: pwd.struct_passwd | None, checks: Callable[[], Iterable[DoctorCheck]], within_s: float = CHECKS_S
) -> Generator[DoctorCheck, None, None]:
    """Yield the result of each check once it is made; if this process is root's, in a process of that user.

    That process is ended after `within_s` seconds, and the last result is then a warning that says so.
    """
    if user is None or os.geteuid() != 0:
        yield from checks()
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(user, checks, writing)
    os.close(writing)
    try:
        ended = yield from _told(reading, time.monotonic() + within_s)
    finally:
        os.close(reading)
        code = _end(child)
    if ended and code == 0:
        return
    outcome = "ended without a result" if ended else f"did not end within {within_s:g} s"
    yield warning(
        "user",
        f"The checks as {user.pw_name} {outcome}; those that are not listed here were not made.",
        f"runuser -u {user.pw_name} -- plimsoll doctor",
    )


def _told(reading: int, ends_at: float) -> Generator[DoctorCheck, None, bool]:
    """Yield what the child tells, one check a line; return whether it has told all before `ends_at`."""
    begun = b""
    while select.select([reading], [], [], max(ends_at - time.monotonic(), 0.0))[0]:
        content = os.read(reading, READ_BYTES)
        if not content:
            return True
        *lines, begun = (begun + content).split(b"\n")
        yield from (DoctorCheck.from_json(json.loads(line)) for line in lines)
    return False


def _end(child: int) -> int | None:
    """End the process and return its exit code; None if it was killed, or is not gone at once."""
    process = os.pidfd_open(child)
    try:
        if not select.select([process], [], [], END_S)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], END_S)
    finally:
        os.close(process)
    gone, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if gone else None


def _run_child(user: pwd.struct_passwd, checks: Callable[[], Iterable[DoctorCheck]], writing: int) -> None:
    """Runs in the child, and ends it: nothing of the parent's exit runs twice."""
    code = 1
    try:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        for check in checks():
            content = json.dumps(check.to_json()).encode() + b"\n"
            while content:
                content = content[os.write(writing, content) :]
        code = 0
    except Exception:  # noqa: BLE001 - the parent learns only that there is no result
        traceback.print_exc()
    finally:
        os._exit(code)
