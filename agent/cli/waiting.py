"""What a person at a terminal sees while a command takes its time: what it waits for, and how long."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.cli.terminal import plain, style_of

LONG_S = 1.0
"""What is done by then is not told of."""

WIPE = "\r\x1b[K"


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """For the time of the block; what this yields tells what it waits for from then on.

    On standard error, and only where that is a terminal. The line is gone afterwards. Not to be nested.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    line = _Line(what)
    thread = threading.Thread(target=line.run, name="waiting", daemon=True)
    thread.start()
    try:
        yield line.tell
    finally:
        line.done.set()
        thread.join()


class _Line:
    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self.done = threading.Event()

    def tell(self, what: str) -> None:
        self._what = what

    def run(self) -> None:
        told = False
        while not self.done.wait(LONG_S):
            told = True
            seconds = int(time.monotonic() - self._began)
            text = f"{plain(self._what)} ... {seconds} s"
            self._write(WIPE + text[: style_of(sys.stderr).width - 1])
        if told:
            self._write(WIPE)

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
