"""Runs checks as the agent's user: what root may do says nothing about the agent."""

import os
import pickle
import pwd
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.doctor.check import DoctorCheck, warning

AGENT_USER = "plimsoll"


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
    user: pwd.struct_passwd | None, checks: Callable[[], Iterable[DoctorCheck]]
) -> list[DoctorCheck]:
    """The results of the checks; if this process is root's, from a process of that user."""
    if user is None or os.geteuid() != 0:
        return list(checks())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(user, checks, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        content = answer.read()
    os.waitpid(child, 0)
    if not content:
        return [
            warning(
                "user",
                f"The checks as {user.pw_name} ended without a result.",
                f"runuser -u {user.pw_name} -- plimsoll doctor",
            )
        ]
    results: list[DoctorCheck] = pickle.loads(content)  # noqa: S301 - from our own child
    return results


def _run_child(user: pwd.struct_passwd, checks: Callable[[], Iterable[DoctorCheck]], writing: int) -> None:
    """Runs in the child, and ends it: nothing of the parent's exit runs twice."""
    code = 1
    try:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        content = pickle.dumps(list(checks()))
        while content:
            content = content[os.write(writing, content) :]
        code = 0
    except Exception:  # noqa: BLE001 - the parent learns only that there is no result
        traceback.print_exc()
    finally:
        os._exit(code)
