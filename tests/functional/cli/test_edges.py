"""The command line where things are not well: agents that hang or are none, signals, pipes, terminals.

`plimsoll` of the tests, whose process is forked, is for its caller what a process of its own is.
"""

import os
import pty
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
from kits.api_client import NOBODY, ROOT_NEEDED, is_root, public_directory, serving
from kits.api_host import SmallHost
from kits.cli_process import COMMAND, DEADLINE_S, ENVIRONMENT, one_line, plimsoll, plimsoll_started, python
from kits.forked_commands import run_forked
from kits.status import Sight
from kits.terminal import Terminal

from agent.cli.parser import INTERRUPTED, READER_GONE
from agent.config.access import Access
from agent.errors import ExitCode


def test_no_socket(tmp_path: Path) -> None:
    done = plimsoll(tmp_path / "nothing", "status")
    assert done.returncode == ExitCode.UNREACHABLE
    line = one_line(done)
    assert str(tmp_path / "nothing") in line and "systemctl status plimsoll" in line


def test_the_option_wins_over_the_environment_wherever_it_stands(path: Path, tmp_path: Path) -> None:
    for words in (("--socket", str(path), "status"), ("status", "--socket", str(path))):
        assert plimsoll(tmp_path / "nothing", *words).returncode == ExitCode.DONE


def test_a_socket_that_was_left_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    done = plimsoll(tmp_path / "s", "status")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "left over" in one_line(done)


def test_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    done = plimsoll(tmp_path / ("s" * 200), "status")
    assert done.returncode == ExitCode.USAGE
    assert "too long" in one_line(done)


@contextmanager
def pretending(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something that listens and is no agent."""
    ended = threading.Event()

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                try:
                    answer(connection)
                except OSError:
                    continue

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0.05)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def silent(connection: socket.socket) -> None:
    connection.settimeout(5)
    while connection.recv(65536):
        pass


def trickling(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize("answer", [silent, trickling])
def test_an_agent_that_hangs_or_trickles_is_given_up_in_time(
    tmp_path: Path, answer: Callable[[socket.socket], None]
) -> None:
    with pretending(tmp_path / "s", answer):
        began = time.monotonic()
        done = plimsoll(tmp_path / "s", "status", "--timeout", "0.5")
        assert time.monotonic() - began < 5
    assert done.returncode == ExitCode.UNREACHABLE
    assert "did not answer within 0.5 s" in one_line(done)


def test_a_claim_that_may_have_happened_names_the_uuid_that_was_made(tmp_path: Path) -> None:
    words = ("claim", "--resources", "VCPU=1", "--timeout", "0.3")
    with pretending(tmp_path / "s", silent):
        line = one_line(plimsoll(tmp_path / "s", *words))
    assert UUID(line.rpartition("the uuid made for it is ")[2])
    assert "the uuid made" not in plimsoll(tmp_path / "nothing", *words).stderr


@pytest.mark.parametrize(
    "said",
    [b"", b"hello\r\n", b"HTTP/1.1 200 OK\r\n\r\nhello", b"HTTP/1.1 502 Bad\r\nContent-Length: 1\r\n\r\nx"],
)
def test_what_is_no_agent_is_told(tmp_path: Path, said: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    with pretending(tmp_path / "s", answer):
        done = plimsoll(tmp_path / "s", "status")
    assert done.returncode == ExitCode.UNREACHABLE
    one_line(done)


def test_an_answer_that_was_not_foreseen_is_one_line(tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"host": "old"}')

    with pretending(tmp_path / "s", answer):
        done = plimsoll(tmp_path / "s", "status")
        debugged = plimsoll(tmp_path / "s", "status", environment={"PLIMSOLL_DEBUG": "1"})
    assert done.returncode == ExitCode.FAILED
    assert "PLIMSOLL_DEBUG=1" in one_line(done)
    assert "Traceback" in debugged.stderr


# The first call loads what the second one needs: Python itself may be where only root can read.
AS_NOBODY = """
import contextlib, io, os, sys
from agent.cli.main import main
with contextlib.redirect_stderr(io.StringIO()):
    main(["status", "--socket", "/nowhere"])
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
sys.exit(main(["status"]))
"""


@pytest.mark.skipif(not is_root(), reason=ROOT_NEEDED)
def test_a_user_who_may_not(host: SmallHost) -> None:
    script = AS_NOBODY.format(nobody=NOBODY)
    with public_directory() as directory, serving(host, directory / "s", Access()):
        path = directory / "s"
        shut = python(script, path)
        path.chmod(0o666)
        forbidden = python(script, path)
    assert shut.returncode == ExitCode.UNREACHABLE
    assert "membership in the group" in one_line(shut)
    assert forbidden.returncode == ExitCode.FAILED
    assert "[api] readers" in one_line(forbidden)


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    connected = threading.Event()

    def answer(connection: socket.socket) -> None:
        connected.set()
        silent(connection)

    with (
        pretending(tmp_path / "s", answer),
        subprocess.Popen(
            [*COMMAND, "status", "--socket", str(tmp_path / "s")], stderr=subprocess.PIPE, encoding="utf-8"
        ) as process,
    ):
        assert connected.wait(DEADLINE_S)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (INTERRUPTED, "plimsoll: interrupted\n")


HALF_MADE = """
from agent.cli import main
class Half:
    def __del__(self):
        raise AttributeError("fp")
def interrupted(_):
    half = Half()
    raise KeyboardInterrupt
main._main = interrupted
raise SystemExit(main.main([]))
"""


def test_ctrl_c_is_one_line_while_an_object_is_half_made() -> None:
    """As http.client's response is: it complains when Python takes it down."""
    done = subprocess.run(
        [sys.executable, "-c", HALF_MADE], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (INTERRUPTED, "plimsoll: interrupted\n")


INTERRUPTED_AT_AN_IMPORT = """
import builtins, os, signal, sys
from agent.cli.main import main
assert "argparse" not in sys.modules, "what takes time is imported by main"
real, left = builtins.__import__, [int(sys.argv[1])]
def interrupted(*args, **kwargs):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*args, **kwargs)
builtins.__import__ = interrupted
sys.exit(main(["status", "--socket", sys.argv[2]]))
"""


@pytest.mark.parametrize("number", [1, 3, 10, 40, 100, 200])
def test_ctrl_c_is_one_line_from_the_start(tmp_path: Path, number: int) -> None:
    """While the command line is still imported, which takes most of a short command's time."""
    command = [sys.executable, "-c", INTERRUPTED_AT_AN_IMPORT, str(number), str(tmp_path / "s")]
    done = subprocess.run(
        command, env=ENVIRONMENT, stderr=subprocess.PIPE, encoding="utf-8", timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (INTERRUPTED, "plimsoll: interrupted\n")


@pytest.mark.parametrize("words", [("tree",), ("tree", "-o", "json"), ("--help",)])
def test_a_reader_that_goes_away_is_no_complaint(path: Path, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words, "--socket", str(path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(writer)
    # argparse of 3.13 swallows the error of its own help.
    codes = (READER_GONE, ExitCode.DONE) if words == ("--help",) else (READER_GONE,)
    assert done.returncode in codes
    assert done.stderr == b""


def test_closed_descriptors_change_nothing(path: Path, tmp_path: Path) -> None:
    command = shlex.join([*COMMAND, "tree", "--socket"])
    for socket_path, code in ((path, ExitCode.DONE), (tmp_path / "nothing", ExitCode.UNREACHABLE)):
        shell = f"exec {command} {shlex.quote(str(socket_path))} <&- >&- 2>&-"
        done = subprocess.run(["/bin/sh", "-c", shell], env=ENVIRONMENT, timeout=DEADLINE_S, check=False)
        assert done.returncode == code


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("where", [">/dev/full", ">&-", "| true"])
def test_what_was_done_is_told_where_the_answer_cannot_be_shown(path: Path, form: str, where: str) -> None:
    consumer = str(uuid4())
    for verb in ((*("claim", consumer, "--name", "web1"), "--resources", "VCPU=1"), ("release", consumer)):
        command = shlex.join([*COMMAND, *verb, "-o", form, "--socket", str(path)])
        waits = "trap '' PIPE; sleep 0.2; " if where == "| true" else ""  # until the reader has gone
        shell = f"{{ {waits}{command}; }} {where}"
        done = subprocess.run(
            ["/bin/sh", "-c", shell],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        last = done.stderr.splitlines()[-1]
        word = "claimed for" if verb[0] == "claim" else "released"
        assert last.startswith(f"plimsoll: the answer was not shown, and it is done: {word} {consumer}")


def test_a_full_disk_is_one_line(path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "tree", "--socket", str(path)],
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        ExitCode.FAILED,
        "plimsoll: No space left on device: standard output\n",
    )


def on_a_terminal(path: Path, **environment: str) -> str:
    ours, theirs = pty.openpty()
    subprocess.run(
        [*COMMAND, "tree"],
        env={**ENVIRONMENT, "TERM": "xterm", "PLIMSOLL_SOCKET": str(path), **environment},
        stdout=theirs,
        timeout=DEADLINE_S,
        check=True,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        pass  # how a terminal says that its other end is closed
    os.close(ours)
    return shown.decode()


def test_colour_is_for_terminals_that_want_it(path: Path) -> None:
    assert "\x1b[" in on_a_terminal(path)
    assert "\x1b[" not in on_a_terminal(path, NO_COLOR="1")
    assert "\x1b[" not in on_a_terminal(path, TERM="dumb")
    assert "\x1b[" not in plimsoll(path, "tree").stdout


@pytest.mark.parametrize("command", ["instances", "history", "devices list", "move list"])
@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_table_is_wider_than_the_terminal(full: tuple[Sight, Path], command: str, columns: int) -> None:
    with Terminal(full[1], *command.split(), columns=columns, environment={"NO_COLOR": "1"}) as terminal:
        lines = terminal.read_all()
    assert lines and max(map(len, lines)) <= columns, max(lines, key=len)


BODY = '{"groups": [{"suffix": "", "resources": {"VCPU": 1}}]}'
INHERITED = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "Threads",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapEff",
    "Cpus_allowed",
)
OF_GLIBC = 0b11 << 31
"""Signals 32 and 33, which glibc keeps for its threads; what becomes of them in a child is its affair."""


@pytest.mark.parametrize(
    ("words", "stdin", "environment"),
    [
        (("status",), "", {}),
        (("tree", "--traits"), "", {"TZ": "Asia/Kolkata"}),
        (("claim", "--file", "-", "--dry-run"), BODY, {}),
        (("claim", "--file", "-", "--dry-run"), "no body", {}),
        (("claim", "--help"), "", {"COLUMNS": "40"}),
        (("bogus",), "", {}),
        (("instances", "--socket", "/nowhere"), "", {}),
        (("config", "show", "--config-file", "/nowhere"), "", {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_command_says_and_ends_with(
    path: Path, words: tuple[str, ...], stdin: str, environment: dict[str, str]
) -> None:
    forked = plimsoll(path, *words, stdin=stdin, environment=environment)
    started = plimsoll_started(path, *words, stdin=stdin, environment=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def process_state(pid: int) -> dict[str, object]:
    """What is seen of a process from outside."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        status[name] = f"{int(status[name], 16) & ~OF_GLIBC:x}"
    return {
        **{name: status[name] for name in INHERITED},
        "descriptors": sorted(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208  # names of links that lead nowhere
        "directory": Path(f"/proc/{pid}/cwd").readlink(),
        "group": os.getpgid(pid),
        "session": os.getsid(pid),
    }


Seen = TypeVar("Seen")


def while_it_waits(
    run: Callable[[Path], subprocess.CompletedProcess[str]], at: Path, look: Callable[[int], Seen]
) -> tuple[Seen, subprocess.CompletedProcess[str]]:
    """What `look` sees of the command's process while its agent does not answer; then the agent hangs up."""
    seen: list[Seen] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            asker = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            seen.append(look(struct.unpack("3i", asker)[0]))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at))
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        done = run(at)
        thread.join()
    return seen[0], done


def test_nothing_of_the_server_is_seen_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked, _ = while_it_waits(lambda at: plimsoll(at, "status"), tmp_path / "forked", process_state)
    started, _ = while_it_waits(
        lambda at: plimsoll_started(at, "status"), tmp_path / "started", process_state
    )
    assert forked == started


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_as_it_ends_a_process(tmp_path: Path, number: signal.Signals) -> None:
    def strike(pid: int) -> None:
        process = os.pidfd_open(pid)
        os.kill(pid, number)
        select.select([process], [], [])  # the agent must not hang up before the command ends
        os.close(process)

    _, forked = while_it_waits(lambda at: plimsoll(at, "status"), tmp_path / "forked", strike)
    _, started = while_it_waits(lambda at: plimsoll_started(at, "status"), tmp_path / "started", strike)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_command_that_takes_too_long_is_killed(path: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        environment = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(tmp_path / "silent")}
        with pytest.raises(subprocess.TimeoutExpired):
            run_forked(("status",), environment, "", 0.1)
    assert plimsoll(path, "status").returncode == 0, "the next one runs"


def test_what_python_reads_at_its_start_needs_a_start(path: Path) -> None:
    with pytest.raises(AssertionError, match="plimsoll_started"):
        plimsoll(path, "status", environment={"PYTHONUTF8": "0"})
