"""The carver's journal: which steps the run under way took, so that the next one knows what was cut off.

It lies below /run: a boot takes away what it tells of. Each step is on it before it is taken.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.carving.steps import Step, read_step
from agent.durable.files import make_directory, write_atomically
from agent.errors import StateError, UsageError
from agent.json_checks import read_list

FILE = Path("run/plimsoll-devices/journal.json")
"""Below the host's root."""
SIZE_MAX = 2**22
LOCK = "lock"
LOCK_MODE = 0o600


class CarvingJournal:
    """The file at `path`. Every method raises StateError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the run under way, and let no other one begin meanwhile."""
        path = self._path.with_name(LOCK)
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LOCK_MODE)
        except OSError as error:
            raise StateError(f"{path} cannot be opened: {error.strerror}; run it as root.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def unfinished(self) -> tuple[Step, ...]:
        """The steps of the run that did not end; none where the last one did."""
        try:
            with self._path.open(encoding="utf-8") as file:
                data = read_list(json.loads(file.read(SIZE_MAX)), "journal")
            return tuple(map(read_step, data))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"{self._path} cannot be read: {error.strerror}; run this as root.") from error
        except (ValueError, UsageError) as error:
            raise StateError(f"{self._path} is no journal of steps: {error}; remove it.") from error

    def write(self, steps: Iterable[Step]) -> None:
        """The steps so far of the run under way, with the one that is taken next."""
        try:
            make_directory(self._path.parent)
            write_atomically(self._path, json.dumps([step.to_json() for step in steps]) + "\n")
        except OSError as error:
            raise StateError(f"{self._path} cannot be written: {error.strerror}; run it as root.") from error

    def end(self) -> None:
        """The run under way has ended."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{self._path} cannot be removed: {error.strerror}.") from error
