"""Whether the gate is in effect: the hook is there, libvirtd runs it, and the agent answers it.

libvirtd looks for hooks when it starts. So a daemon that ran already when the gate was enabled does not run
the hook: `enable` keeps which these are, by their pids and when they started, in ticks since the boot. Where
that is not known (another program put the hook there), the times of the files decide, which a step of the
wall clock makes wrong. A pid file is as old as its process; a process that ends takes the file away, and one
that was killed leaves it without a process.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from agent.durable.files import write_atomically
from agent.errors import StateError
from agent.gate import install
from agent.gate.hook import ALLOW, HookConfig
from agent.gate.install import HookState
from agent.http.owner_process import OwnerProcess

RUN = Path("/run")
DAEMONS = ("libvirtd", "virtqemud")
"""The daemons of libvirt that run the hook; each has a pid file."""


BEFORE_HOOK = "plimsoll-gate.before"
"""In the folder of the pid files, which a boot empties: the daemons that ran before the hook was there."""


class GatePaths(NamedTuple):
    """Where the hook, its settings and the daemons' pid files are."""

    hook: Path = install.HOOK
    config: Path = install.CONFIG
    run: Path = RUN


class GateEffect(NamedTuple):
    """Whether guests start only by the gate's word. `state` None: the hook's folder cannot be read.

    `lacking` are sentences: why guests start without the gate, and what to do. `blocked` is a sentence if no
    guest can start. `problems` are those of the hook's settings. `unanswered` is what the hook does while the
    agent does not decide: allow or refuse.
    """

    state: HookState | None = HookState.DISABLED
    unanswered: str = ALLOW
    lacking: tuple[str, ...] = ()
    blocked: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def in_effect(self) -> bool | None:
        """None: the gate is disabled, or that cannot be told."""
        if self.state is None or self.state is HookState.DISABLED:
            return None
        return not self.lacking

    @property
    def reasons(self) -> tuple[str, ...]:
        """All sentences on what is to be mended."""
        return (*self.lacking, *((self.blocked,) if self.blocked else ()), *self.problems)


def is_enabled(paths: GatePaths) -> bool:
    """Whether Plimsoll's hook is there, of this version or another."""
    try:
        return install.hook_state(paths.hook) in (HookState.ENABLED, HookState.OUTDATED)
    except StateError:
        return False


def enable(paths: GatePaths) -> None:
    """Write the hook, and keep which daemons have run without it. Raises as `install.enable` does."""
    is_new = not is_enabled(paths)
    install.enable(paths.hook)
    if is_new:
        running = [identity for daemon in DAEMONS if (identity := _identity(paths.run / f"{daemon}.pid"))]
        with suppress(OSError):  # then the times of the files decide
            write_atomically(paths.run / BEFORE_HOOK, "".join(f"{identity}\n" for identity in running))
            (paths.run / BEFORE_HOOK).chmod(0o644)


def read_effect(paths: GatePaths, undecided: str | None, socket: Path | None = None) -> GateEffect:
    """Look at the hook and at libvirt's daemons.

    `undecided` is a clause: why the agent would not decide about a guest; None: it would. `socket` is where
    the agent listens, if the caller is the agent.
    """
    try:
        state = install.hook_state(paths.hook)
    except StateError:
        return GateEffect(state=None)
    if state is HookState.DISABLED:
        return GateEffect()
    config = HookConfig(str(paths.config))
    lacking = []
    if state is HookState.OUTDATED:
        lacking.append(f"{paths.hook} is of another version or installation: run `plimsoll gate enable`.")
    elif state is HookState.FOREIGN:
        lacking.append(f"{paths.hook} is not Plimsoll's: move it away, then run `plimsoll gate enable`.")
    lacking += _daemon_problems(paths)
    blocked = None
    if socket is not None and Path(config.socket) != socket:
        undecided = f"{paths.config} has socket = {config.socket}, and the agent listens at {socket}"
    if undecided is not None and config.unanswered == ALLOW:
        lacking.append(
            f"The agent does not decide ({undecided}), and {paths.config} says unanswered = allow: guests "
            "start without a claim. Mend that, then run `plimsoll gate claim-running`."
        )
    elif undecided is not None:
        blocked = (
            f"The agent does not decide ({undecided}), and {paths.config} says unanswered = refuse: no guest "
            "without a claim starts. Mend that."
        )
    return GateEffect(state, config.unanswered, tuple(lacking), blocked, tuple(config.problems))


def _daemon_problems(paths: GatePaths) -> list[str]:
    """A sentence for each daemon that has not looked for hooks since the hook is there."""
    problems = []
    try:
        before = (paths.run / BEFORE_HOOK).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        before = None
    with suppress(OSError):  # the hook was removed just now
        installed = paths.hook.stat().st_mtime
        for daemon in DAEMONS:
            pid_file = paths.run / f"{daemon}.pid"
            started, identity = _started(pid_file), _identity(pid_file)
            if started is None:
                continue
            is_known = before is not None and identity is not None
            if identity in (before or ()) if is_known else started < installed:
                runs_since, hook_since = (
                    datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")
                    for at in (started, installed)
                )
                problems.append(
                    f"{daemon} has run since {runs_since}, the hook has been there since {hook_since}, and "
                    f"{daemon} looks for hooks when it starts: systemctl restart {daemon} (guests keep "
                    "running)."
                )
    return problems


def _started(pid_file: Path) -> float | None:
    """When the daemon started, in seconds since 1970; None if it does not run."""
    try:
        pid, started = int(pid_file.read_text(encoding="ascii")), pid_file.stat().st_mtime
        with suppress(PermissionError):  # another user's process: it is there
            os.kill(pid, 0)
    except (OSError, ValueError, OverflowError):
        return None
    return started


def _identity(pid_file: Path) -> str | None:
    """The daemon's pid and when it started, in ticks since the boot; None if that cannot be told."""
    try:
        process = OwnerProcess.of(int(pid_file.read_text(encoding="ascii")))
        return f"{process.pid} {process.started}"
    except (OSError, ValueError, IndexError):
        return None
