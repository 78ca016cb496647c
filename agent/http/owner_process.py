"""The process that a claim ends with: which one it is, and whether it is still there.

A pid alone names another process after a while, and another one after a boot. So the process is known by its
pid, the time of its start and the boot in which it started.

Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agent.errors import UsageError
from agent.json_checks import read_object, read_uuid, read_whole

PROC = Path("/proc")
_PID_MAX = 2**22
_TICKS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """A process of this machine; `started` is in clock ticks since the `boot`, which is the boot's uuid."""

    pid: int
    started: int
    boot: Annotated[str, read_uuid]

    @classmethod
    def of(cls, pid: int) -> "OwnerProcess":
        """The process that has the pid now. Raises OSError where there is none."""
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        # The name of the program, in parentheses, may hold spaces and parentheses.
        return cls(pid, int(stat.rpartition(")")[2].split()[19]), boot)

    @classmethod
    def read(cls, value: object, path: str) -> "OwnerProcess":
        """The process in a body of the local API. Raises UsageError."""
        given = read_object(value, path, ("pid", "started", "boot"))
        return cls(
            read_whole(given.get("pid"), f"{path}.pid", 1, _PID_MAX),
            read_whole(given.get("started"), f"{path}.started", 0, _TICKS_MAX),
            read_uuid(given.get("boot"), f"{path}.boot"),
        )

    def to_json(self) -> dict[str, Any]:
        """As the local API has it."""
        return {"pid": self.pid, "started": self.started, "boot": self.boot}

    def has_ended(self) -> bool:
        """Whether the process is gone for certain. One that cannot be looked at counts as there.

        One whose threads have all ended is gone, also while its parent stands still and has not noticed.
        """
        try:
            if OwnerProcess.of(self.pid) != self:
                return True
            folder = PROC / str(self.pid)
            after_name = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            return after_name.split()[0] in ("Z", "X") and len(list((folder / "task").iterdir())) == 1
        except (OSError, ValueError, IndexError):
            try:
                os.kill(self.pid, 0)  # /proc may be mounted so that it hides processes of other users
            except ProcessLookupError:
                return True
            except PermissionError:
                return False
        return False

    def check_owner(self, uid: int) -> None:
        """Raises UsageError where the process is not there, or belongs to another user than `uid`, unless
        that is root.
        """
        try:
            is_there, owner = OwnerProcess.of(self.pid) == self, (PROC / str(self.pid)).stat().st_uid
        except (OSError, ValueError, IndexError):
            is_there, owner = False, -1
        if not is_there:
            raise UsageError(
                f"process: this host's agent sees no process {self.pid} that started at {self.started}: it "
                "has ended, or it runs in another pid namespace or on another machine; claim without it.",
                path="process",
            )
        if uid not in (0, owner):
            raise UsageError(
                f"process: {self.pid} is a process of uid {owner}, and uid {uid} asks: a claim can end with "
                "a process of its own user only.",
                path="process",
            )
