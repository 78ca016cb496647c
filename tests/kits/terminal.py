"""A command of the command line on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kits.cli_process import COMMAND, ENVIRONMENT


class Terminal:
    """A command on a terminal of 100 by 20, or of another size; ended with the `with` block."""

    def __init__(
        self,
        path: Path,
        *words: str,
        columns: int = 100,
        lines: int = 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        whole = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(path), "TERM": "xterm", **(environment or {})}
        self.process = subprocess.Popen(
            [*COMMAND, *words], env=whole, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.keys = ours
        self.text = ""

    def read_until(self, wanted: str) -> None:
        end = time.monotonic() + 20
        while wanted not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self.keys], [], [], 0.2)[0]:
                self.text += os.read(self.keys, 65536).decode()

    def read_all(self) -> list[str]:
        """The lines of a command that ends by itself."""
        with suppress(OSError):  # EIO: the command's side of the terminal was closed
            while data := os.read(self.keys, 65536):
                self.text += data.decode()
        return self.text.splitlines()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.keys)
