"""A file that reserves disk space, to be freed when the disk is full.

Without it, a full disk prevents releases as well: a deletion also writes to the journal.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agent.durable.files import NO_SPACE

LOG = logging.getLogger(__name__)


class Ballast:
    """A file of `size_bytes` at `path`, if the disk has that much space."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def load(self) -> bool:
        """Create the ballast if it is missing. Returns False if the disk lacks the space.

        After any other error there is no ballast; the log has the reason.
        """
        try:
            self._allocate()
        except OSError as error:
            # A partial ballast is worse than none: it occupies the last free space.
            self.drop()
            if error.errno in NO_SPACE:
                return False
            LOG.warning(
                "Cannot create %s, so a full disk will prevent releases as well: %s", self._path, error
            )
        return True

    def drop(self) -> None:
        """Free the space."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("Cannot remove %s to free its space: %s", self._path, error)

    def _allocate(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_blocks * 512 < self._size_bytes:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
        finally:
            os.close(descriptor)
