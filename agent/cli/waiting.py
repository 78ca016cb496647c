"""The line at a terminal that says what a command waits for, and for how long already."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.cli.terminal import plain, style_of

LONG_S = 1.0
"""A shorter wait shows nothing."""

WIPE = "\r\x1b[K"


@contextmanager
def waiting(activity: str) -> Iterator[Callable[[str], None]]:
    """Show the line during the block, on standard error, if that is a terminal; then remove it.

    The block gets a function that changes what the line says. Blocks cannot be nested.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    line = _Line(activity)
    thread = threading.Thread(target=line.run, name="waiting", daemon=True)
    thread.start()
    try:
        yield line.set_activity
    finally:
        line.done.set()
        thread.join()


class _Line:
    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._began = time.monotonic()
        self.done = threading.Event()

    def set_activity(self, activity: str) -> None:
        self._activity = activity

    def run(self) -> None:
        shown = False
        while not self.done.wait(LONG_S):
            shown = True
            seconds = int(time.monotonic() - self._began)
            text = f"{plain(self._activity)} ... {seconds} s"
            self._write(WIPE + text[: style_of(sys.stderr).width - 1])
        if shown:
            self._write(WIPE)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
