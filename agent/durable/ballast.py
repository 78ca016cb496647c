"""A file that holds disk space back, so that space can be given up when the disk is full.

Without it nothing can be *released* on a full disk either: a deletion writes to the journal too.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

LOG = logging.getLogger(__name__)

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Ballast:
    """`size_bytes` allocated in a file at `path`, as long as the disk has them."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def load(self) -> bool:
        """Make the ballast if it is missing; answers whether the disk has the space.

        Where something else than space is in the way there is no ballast, and a line in the log says so.
        """
        try:
            self._allocate()
        except OSError as error:
            # A part of a ballast is worse than none: it takes the last space away.
            self.drop()
            if error.errno in NO_SPACE:
                return False
            LOG.warning("%s could not be made, so a full disk will stop releases too: %s", self._path, error)
        return True

    def drop(self) -> None:
        """Give the space back."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            LOG.warning("%s could not be removed to free its space: %s", self._path, error)

    def _allocate(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_blocks * 512 < self._size_bytes:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
        finally:
            os.close(descriptor)
