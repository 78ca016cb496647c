"""Puts the hook where libvirt finds it, and removes it: a short script that runs `agent.gate.hook`.

The script is a file and not a symbolic link, because the confinement of libvirtd (AppArmor) lets it execute
files in its hook folder, but not the target of a link there.
"""

import os
import stat
import sys
from enum import StrEnum
from pathlib import Path

from agent.durable import files
from agent.errors import StateError, UsageError

HOOK = Path("/etc/libvirt/hooks/qemu.d/50-plimsoll")
CONFIG = Path("/etc/plimsoll/gate.conf")
PYTHON = Path("/usr/bin/python3")
"""What runs the hook, where it is the interpreter that runs this command."""
CODE = Path(__file__).parents[2]
"""The folder that the script imports `agent` from."""

MODE = 0o755
GROUP_OR_OTHERS_MAY_WRITE = 0o022
MARK = "plimsoll gate enable"
"""Every version of the script contains this text."""


class HookState(StrEnum):
    """What is at the hook's path."""

    ENABLED = "enabled"
    OUTDATED = "outdated"
    """A script of another version or of another installation."""
    FOREIGN = "foreign"
    """A file that is not Plimsoll's."""
    DISABLED = "disabled"
    """No file."""


def hook_python() -> Path:
    """The system's interpreter that the agent runs in, under a name below /usr/bin where it has one.

    A virtual environment's own name of it would be refused by the confinement of libvirtd, and the system's
    python3 may be too old for the agent's code, as on the RHEL family.
    """
    running = Path(sys.executable).resolve()
    return PYTHON if PYTHON.exists() and PYTHON.resolve() == running else running


def hook_script(config: Path = CONFIG, code: Path = CODE) -> str:
    """The script's text. It ends with 0 if the agent's code is missing or damaged.

    libvirt kills a guest whose hook fails at `reconnect`.
    """
    return f"""#!{hook_python()} -IS
# Written by `{MARK}`; `plimsoll gate disable` takes it away.
import sys

sys.path.insert(0, {str(code)!r})
try:
    from agent.gate.hook import main
except Exception:
    sys.exit(0)
sys.exit(main(sys.argv, {str(config)!r}))
"""


def hook_state(hook: Path = HOOK) -> HookState:
    """What is at the path. Raises StateError where the file cannot be read."""
    try:
        text = hook.read_text(encoding="utf-8", errors="replace")
        executable = os.access(hook, os.X_OK)
    except FileNotFoundError:
        return HookState.DISABLED
    except OSError as error:
        raise StateError(f"{hook} cannot be read: {error.strerror}; run this as root.") from error
    if text == hook_script() and executable:
        return HookState.ENABLED
    return HookState.OUTDATED if MARK in text else HookState.FOREIGN


def enable(hook: Path = HOOK) -> None:
    """Write the script, over an older one.

    A script that is there keeps its time of change, by which `agent.gate.effect` tells whether libvirtd has
    found it: libvirtd runs what is in the file.

    Raises UsageError where another program's file is there, or where other users than root may change the
    agent's code; StateError where the script cannot be written.
    """
    before = hook_state(hook)
    if before is HookState.FOREIGN:
        raise UsageError(f"{hook} exists and is not Plimsoll's: move it away, then enable the gate again.")
    check_only_root_may_write()
    try:
        hook.parent.mkdir(mode=MODE, parents=True, exist_ok=True)
        since = hook.stat() if before is not HookState.DISABLED else None
        files.write_atomically(hook, hook_script())
        hook.chmod(MODE)
        if since is not None and since.st_mode & stat.S_IXUSR:
            os.utime(hook, ns=(since.st_atime_ns, since.st_mtime_ns))
    except OSError as error:
        raise StateError(f"{hook} cannot be written: {error.strerror}; run this as root.") from error


def disable(hook: Path = HOOK) -> None:
    """Remove the script, if it is there, and its folder if that is empty then: `enable` may have made it.

    Raises UsageError where another program's file is there, StateError where it cannot be removed.
    """
    if hook_state(hook) is HookState.FOREIGN:
        raise UsageError(f"{hook} is not Plimsoll's. It was not removed.")
    try:
        hook.unlink(missing_ok=True)
        if hook.parent.is_dir() and not any(hook.parent.iterdir()):
            hook.parent.rmdir()
    except OSError as error:
        raise StateError(f"{hook} cannot be removed: {error.strerror}; run this as root.") from error


def check_only_root_may_write(code: Path = CODE) -> None:
    """Raises UsageError where another user than root may change the code, which libvirtd runs as root."""
    for path in (code, code / "agent", code / "agent" / "gate", code / "agent" / "gate" / "hook.py"):
        status = path.stat()
        others_may_write = status.st_mode & GROUP_OR_OTHERS_MAY_WRITE and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or others_may_write:
            raise UsageError(
                f"libvirtd would run {path} as root, but other users than root may change it: install "
                "Plimsoll where only root may write."
            )
