"""Commands of the command line that need no start of an interpreter.

`plimsoll status` takes 95 ms of processor time, of which Python's start and the imports take 75; of the
700 ms of an agent's start they take 430. A server for each of pytest's workers makes them once, and becomes
the command in a child for each call. The child has the streams, environment, directory and signals that the
process would have, and ends as an interpreter ends.

What Python reads when it starts is the server's, and all modules are there: the tests of that start a process
(`kits.cli_process.plimsoll_started`).
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import agent
import drivers
from agent.cli import main
from kits.paths import CHECKOUT, TESTS

ENVIRONMENT = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TZ": "UTC"}
"""That of the server, and of a command where a test does not say more."""
REQUEST_BYTES_MAX = 150_000
"""Less than the buffer of a socket: a request is one datagram."""
READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_")
"""How names of variables begin that count when an interpreter starts."""
NUMBER_BYTES = 4
STREAMS = 3


def run_forked(
    words: tuple[str, ...], environment: Mapping[str, str], stdin: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `plimsoll WORDS` as `subprocess.run` would, with all three streams as pipes.

    Raises subprocess.TimeoutExpired where the command takes longer; it was killed then.
    """
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    given = (in_read, out_write, err_write)
    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            command = ForkedCommand(words, environment, given)
        finally:
            for fd in given:
                os.close(fd)
            written = pool.submit(_write, in_write, stdin)
            outputs = [pool.submit(_read, fd) for fd in (out_read, err_read)]
        try:
            code = command.wait(timeout_s)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait(timeout_s)
            raise
        written.result()
        stdout, stderr = (output.result() for output in outputs)
    return subprocess.CompletedProcess(words, code, stdout, stderr)


class ForkedCommand:
    """`plimsoll WORDS` as a process that goes on, with so much of subprocess.Popen as tests need.

    `streams` are the descriptors of its standard input, output and error; the caller closes its own.
    """

    def __init__(
        self, words: tuple[str, ...], environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> None:
        early = [
            name
            for name, value in environment.items() - ENVIRONMENT.items()
            if name.startswith(READ_AT_START)
        ]
        assert not early, f"Python reads {early} when it starts: run the command with plimsoll_started"
        request = json.dumps([words, str(Path.cwd()), dict(environment)]).encode()
        assert len(request) < REQUEST_BYTES_MAX
        self.words = words
        self.returncode: int | None = None
        self._ends, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [request], (*streams, theirs.fileno()))
        self.pid = int.from_bytes(self._ends.recv(NUMBER_BYTES), "little")
        assert self.pid, "the server of commands ended"

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired where it takes longer."""
        if self.returncode is None:
            self._ends.settimeout(timeout_s)
            try:
                status = self._ends.recv(NUMBER_BYTES)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.words, timeout_s) from None
            self._ends.close()
            assert status, "the server of commands ended"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, "little"))
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _write(fd: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "w", encoding="utf-8") as stream:
        stream.write(text)


def _read(fd: int) -> str:
    with open(fd, encoding="utf-8") as stream:
        return stream.read()


_starting = threading.Lock()


def _server() -> socket.socket:
    """Where this process sends its requests."""
    with _starting:
        return _started_server()


@functools.cache
def _started_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "kits.forked_commands", str(theirs.fileno())],
            cwd=CHECKOUT,
            env={**ENVIRONMENT, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(requests: socket.socket) -> None:
    """Become a command for each request, in a child, and tell its pid and status; until nobody can ask."""
    running: dict[int, tuple[int, socket.socket]] = {}
    """{pidfd: (pid, where its status is told)}."""
    while True:
        ready, _, _ = select.select([requests, *running], [], [])
        for pidfd in running.keys() & set(ready):
            pid, asker = running.pop(pidfd)
            os.close(pidfd)
            with asker:
                _tell(asker, os.waitpid(pid, 0)[1])
        if requests not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, STREAMS + 1)
        if not request:
            return
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in the child"
        pid = os.fork()
        if not pid:
            _become(fds[:STREAMS], *json.loads(request))
        for fd in fds[:STREAMS]:
            os.close(fd)
        asker = socket.socket(fileno=fds[STREAMS])
        _tell(asker, pid)
        running[os.pidfd_open(pid)] = pid, asker


def _tell(asker: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the asker may have ended
        asker.send(number.to_bytes(NUMBER_BYTES, "little"))


def _become(streams: list[int], words: list[str], directory: str, environment: dict[str, str]) -> NoReturn:
    """Be the process that `python -m agent.cli.main WORDS` is, from its first line to its exit code.

    Its end is that of an interpreter, but for the clearing of modules: that costs more than a short command.
    """
    code: object = 1
    try:
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path[:] = [directory, *(each for each in sys.path[1:] if each != str(TESTS))]
        sys.argv = [main.__file__, *words]
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace")  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        code = main.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # the child must not go on as a second server
        sys.excepthook(*sys.exc_info())
    finally:
        _end(code)


def _end(code: object) -> NoReturn:
    """End as an interpreter does that was given this exit code by `sys.exit`."""
    try:
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
        threading._shutdown()  # waits for threads
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
        except OSError:
            code = 120
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 0)


def _import_all() -> None:
    """Import each module of the project, and thereby what they need."""
    for package in (agent, drivers):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # libvirt is not everywhere
                importlib.import_module(each.name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    _import_all()
    gc.collect()
    gc.freeze()  # a child need not look through what was imported
    serve(socket.socket(fileno=int(sys.argv[1])))
