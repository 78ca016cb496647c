"""Where libvirt finds the hook: a few lines in its folder, which run `agent.gate.hook` from where that is.

They are a file of their own and no link, because the confinement of libvirtd lets it execute what is in its
folder and not what a link there leads to.
"""

import os
import stat
from enum import StrEnum
from pathlib import Path

from agent.durable import files
from agent.errors import StateError, UsageError

HOOK = Path("/etc/libvirt/hooks/qemu.d/50-plimsoll")
CONFIG = Path("/etc/plimsoll/gate.conf")
PYTHON = Path("/usr/bin/python3")
CODE = Path(__file__).parents[2]
"""What `agent` is imported from."""

MODE = 0o755
OTHERS_MAY_WRITE = 0o022
MARK = "plimsoll gate enable"


class Installed(StrEnum):
    """OUTDATED: written by another version, or from another place; FOREIGN: not ours at all."""

    ENABLED = "enabled"
    OUTDATED = "outdated"
    FOREIGN = "foreign"
    DISABLED = "disabled"


def text(config: Path = CONFIG, code: Path = CODE, python: Path = PYTHON) -> str:
    """The hook. Where the agent was taken away, or is damaged, it lets everything pass: libvirt kills a guest
    whose hook fails at `reconnect`."""
    return f"""#!{python} -IS
# Written by `{MARK}`; `plimsoll gate disable` takes it away.
import sys

sys.path.insert(0, {str(code)!r})
try:
    from agent.gate.hook import main
except Exception:
    sys.exit(0)
sys.exit(main(sys.argv, {str(config)!r}))
"""


def installed(hook: Path = HOOK) -> Installed:
    """Raises StateError where it cannot be read."""
    try:
        found = hook.read_text(encoding="utf-8", errors="replace")
        executable = os.access(hook, os.X_OK)
    except FileNotFoundError:
        return Installed.DISABLED
    except OSError as error:
        raise StateError(f"{hook} cannot be read: {error.strerror}; run this as root.") from error
    if found == text() and executable:
        return Installed.ENABLED
    return Installed.OUTDATED if MARK in found else Installed.FOREIGN


def enable(hook: Path = HOOK) -> None:
    """Write the hook, over an older one of ours. Raises UsageError, StateError."""
    if installed(hook) is Installed.FOREIGN:
        raise UsageError(f"{hook} is there and not Plimsoll's: move it away first.")
    check_owned()
    try:
        hook.parent.mkdir(mode=MODE, parents=True, exist_ok=True)
        files.write_atomically(hook, text())
        hook.chmod(MODE)
    except OSError as error:
        raise StateError(f"{hook} cannot be written: {error.strerror}; run this as root.") from error


def disable(hook: Path = HOOK) -> None:
    """Take the hook away, if it is there. Raises UsageError, StateError."""
    if installed(hook) is Installed.FOREIGN:
        raise UsageError(f"{hook} is not Plimsoll's: it is left as it is.")
    try:
        hook.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"{hook} cannot be removed: {error.strerror}; run this as root.") from error


def check_owned(code: Path = CODE) -> None:
    """libvirtd runs the hook as root: nobody else may be able to change it. Raises UsageError."""
    for path in (code, code / "agent", code / "agent" / "gate", code / "agent" / "gate" / "hook.py"):
        found = path.stat()
        if found.st_uid != 0 or (found.st_mode & OTHERS_MAY_WRITE and not found.st_mode & stat.S_ISVTX):
            raise UsageError(
                f"libvirtd would run {path} as root, and others than root may change it: install Plimsoll "
                "where only root writes."
            )
