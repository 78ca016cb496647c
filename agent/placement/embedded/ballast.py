"""A file that holds disk space back, so that space can be given up when the disk is full.

Without it nothing can be *released* on a full disk either: a deletion writes to the journal too.
"""

from __future__ import annotations

import os
from pathlib import Path


class Ballast:
    """`size_bytes` allocated in a file at `path`, as long as the disk has them."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.present = False

    def load(self) -> bool:
        """Make the ballast if it is missing; answers whether it is there."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_blocks * 512 < self._size_bytes:
                    os.posix_fallocate(descriptor, 0, self._size_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            # Whatever keeps the space from us (full disk, quota, file size limit), the answer is the same: a
            # part of a ballast is worse than none, because it takes the last space away.
            self.drop()
            return False
        self.present = True
        return True

    def drop(self) -> None:
        """Give the space back."""
        self._path.unlink(missing_ok=True)
        self.present = False
