"""A copy of the state directory, for a command that only looks: what it writes is written to the copy."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.config.settings import Settings
from agent.durable.files import LockHeld, is_there, lock_file_itself
from agent.errors import StateError
from agent.state.journal import FILE_NAME


@contextmanager
def copied_state(settings: Settings) -> Iterator[Settings]:
    """The settings with a copy of the state directory, which may not exist yet.

    The lock of the journal keeps the agent from starting until the copy is there. Raises StateError while the
    agent is running, and where the directory cannot be read.
    """
    with TemporaryDirectory(prefix="plimsoll-") as directory:
        copy = Path(directory) / "state"
        try:
            with _held(settings.state_path / FILE_NAME):
                if is_there(settings.state_path):
                    shutil.copytree(settings.state_path, copy, ignore=shutil.ignore_patterns("*.lock"))
                else:
                    copy.mkdir(mode=0o700)
        except (OSError, shutil.Error) as error:
            raise StateError(
                f"The state directory {settings.state_path} cannot be read: {error}; run this as root or as "
                "the agent's user.",
                path=str(settings.state_path),
            ) from error
        driver = replace(settings.driver, state_path=copy, read_only=True)
        yield replace(settings, state_path=copy, driver=driver)


@contextmanager
def _held(journal: Path) -> Iterator[None]:
    try:
        descriptor = lock_file_itself(journal)
    except FileNotFoundError:
        yield
        return
    except LockHeld as error:
        raise StateError(
            f"The agent is running on {journal.parent}: leave out --offline, or stop the agent.",
            path=str(journal),
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
