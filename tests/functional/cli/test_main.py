"""What all commands have in common: output for programs, errors on one line, wrong use, help that teaches.

What an operator mistypes, or what is away, says what is wrong and what to do, in one line, once.
"""

import http.server
import json
import os
import pty
import re
import resource
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
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import indent
from typing import TypeVar
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
import yaml
from kits.agent import world_of
from kits.api_client import NOBODY, ROOT_NEEDED, is_root, public_directory, serving
from kits.cli_process import (
    COMMAND,
    DEADLINE_S,
    ENVIRONMENT,
    one_line,
    output_of,
    plimsoll,
    plimsoll_started,
    python,
)
from kits.forked_commands import run_forked
from kits.paths import DOCS
from kits.status import FORGOTTEN, Sight, uuid_of
from kits.terminal import Terminal

from agent.cli.parser import EXIT_CODES, INTERRUPTED, READER_GONE
from agent.config.access import Access
from agent.config.settings import load
from agent.errors import ExitCode
from agent.placement.connect import open_transport
from plimsoll.wire import SOCKET_DEFAULT

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = ("--resources", "VCPU=2,VGPU=1")


def test_the_agent_keeps_nothing_of_other_commands() -> None:
    """It runs for months, with what it has imported."""
    code = (
        "import contextlib, sys; from agent.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['agent', '--help'])\n"
        "print(sorted(name for name in sys.modules if name.startswith('agent.cli.')), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "plimsoll agent --config-file ./plimsoll.conf" in ran.stdout
    assert "agent.cli.daemon" in ran.stderr
    assert not {"agent.cli.claim", "agent.cli.commands", "agent.cli.status"} & set(
        re.findall(r"[\w.]+", ran.stderr)
    )


def test_a_failure_inside_the_agent_is_one_line(
    host: Sight, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.world.operations, "tree", Mock(side_effect=ZeroDivisionError))
    done = plimsoll(path, "tree")
    assert done.returncode == ExitCode.FAILED
    assert "its log tells more under error" in one_line(done)


@pytest.mark.parametrize(
    "command",
    [("status",), ("tree",), ("instances",), ("plan",), ("config", "show"), ("claim", "--dry-run", *WANTED)],
)
def test_json_and_yaml_say_the_same(path: Path, command: tuple[str, ...]) -> None:
    words = [*command[:1], CONSUMER, *command[1:]] if command[0] == "claim" else command
    as_json = plimsoll(path, *words, "-o", "json")
    as_yaml = plimsoll(path, "-o", "yaml", *words)
    assert (as_json.returncode, as_yaml.returncode) == (0, 0)
    assert json.loads(as_json.stdout) == yaml.safe_load(as_yaml.stdout)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_errors_are_json_where_programs_read(host: Sight, path: Path, form: str) -> None:
    done = plimsoll(path, "claim", CONSUMER, "--resources", "VGPU=9", "-o", form)
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["details"]["shortfalls"][0]["provider_uuid"]) == (
        "plimsoll.claim.does_not_fit",
        host.world.operations.identity.uuid,
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "a command is missing"),
        (("config",), "a command is missing"),
        (("bogus",), "has no command 'bogus'"),
        (("status", "--timeout", "0"), "'0' is not a number of seconds above 0"),
        (("status", "--timeout", "nan"), "'nan' is not a number of seconds"),
        (("status", "-o", "xml"), "invalid choice: 'xml'"),
        (("release",), "required: CONSUMER"),
        (("release", ""), "the instance is an empty text: give its uuid"),
        (("relase", "web1"), "did you mean `plimsoll release`?"),
        (("move", "confrm", "x"), "did you mean `plimsoll move confirm`?"),
        (("claim", "--spek", "a=b"), "plimsoll claim has no option '--spek': did you mean `--spec`?"),
        (("claim", "--nonsense"), "has no option '--nonsense': `plimsoll claim --help` lists them"),
        (("release", "web1", "web2"), "takes no further argument 'web2'"),
        (("claim",), "none is given"),
        (("claim", "--resources", "VCPU=0"), "groups[0].resources.VCPU"),
        (("claim", "--flavor", "vcpus=1,memory_mb=64", "--spec", "hw:cpu_polcy=shared"), "hw:cpu_policy"),
        (("claim", "--file", "/nowhere/body.json"), "cannot be read"),
    ],
)
def test_wrong_use_is_one_line_and_2(path: Path, words: tuple[str, ...], complaint: str) -> None:
    done = plimsoll(path, *words)
    assert done.returncode == ExitCode.USAGE
    assert complaint in one_line(done)


COMMANDS = (
    *(
        ("status",),
        ("tree",),
        ("instances",),
        ("plan",),
        ("claim",),
        ("release",),
        ("agent",),
        ("adopt",),
        ("config",),
    ),
    ("move",),
    *(("move", verb) for verb in ("begin", "confirm", "revert", "list", "show")),
    *(("config", "show"), ("config", "validate"), ("config", "sample")),
)


def test_the_help_lists_every_exit_code(path: Path) -> None:
    assert set(EXIT_CODES) == set(ExitCode)
    shown = plimsoll(path, "--help").stdout
    for code, meaning in EXIT_CODES.items():
        assert f"  {code.value:>3}  {meaning}\n" in shown
    assert SOCKET_DEFAULT in shown and "PLIMSOLL_SOCKET" in shown


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_teaches_by_example(path: Path, words: tuple[str, ...]) -> None:
    done = plimsoll(path, *words, "--help")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert f"examples:\n  plimsoll {' '.join(words)}" in done.stdout


def test_the_version(path: Path) -> None:
    done = plimsoll(path, "--version")
    assert (done.returncode, done.stdout.split()[0]) == (ExitCode.DONE, "plimsoll")


HEAVY = (
    "oslo_config",
    "werkzeug",
    "httptools",
    "asyncio",
    "jsonschema",
    "libvirt",
    "yaml",
    "requests",
    "keystoneauth1",
    "sqlite3",
)
ALSO_LATE = (
    # Python 3.14's argparse imports these two by itself.
    *(("dataclasses", "inspect") if sys.version_info < (3, 14) else ()),
    "logging",
    "importlib.metadata",
    "uuid",
    "agent.config.settings",
    "agent.api.views",
    "agent.api.routes",
    "agent.claims",
    "agent.driver",
    "drivers",
)


def test_status_imports_nothing_heavy(path: Path) -> None:
    script = "import sys; from agent.cli.main import main; main(['status']); "
    done = python(script + "print(*sys.modules, sep='\\n', file=sys.stderr)", path)
    loaded = set(done.stderr.split())
    assert "agent.cli.client" in loaded
    assert not loaded & {*HEAVY, *ALSO_LATE}


def test_status_starts_fast(path: Path) -> None:
    """Processor time, because other tests run at the same time; benchmarks/cli.py measures the wait."""
    fastest = min(processor_s(path) for _ in range(5))
    assert fastest < 0.5


def processor_s(path: Path) -> float:
    """Seconds of processor time of one `plimsoll status`, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert plimsoll_started(path, "status").returncode == ExitCode.DONE
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


FLAVOR = ("claim", "--dry-run", "--flavor", "vcpus=1,memory_mb=512", "--spec")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("claim", " ", "--resources", "VCPU=1"), "CONSUMER is an empty text"),
        (("explain", ""), "it is an empty text; name a consumer"),
        (("claim", "--flavor", "vcpus=1"), "lacks memory_mb; write vcpus=N,memory_mb=N"),
        (("claim", "--resources", "VCPU=-1"), "VCPU cannot be negative: give 1 or more"),
        (("claim", "--resources", "VCPU=99999999999999999999"), "at most 2147483647 is possible"),
        (("claim", "--resources", "VCPU=99999999999"), "between 1 and 2147483647"),
        (("claim", "--resources", "vcpu=1"), "did you mean VCPU?"),
        (("claim", "--resources", "VGPUS=1"), "did you mean VGPU?"),
        (
            ("claim", "--resources", "VCPU=1", "--required", "HW_CPU_X86_AVX22"),
            "did you mean HW_CPU_X86_AVX2?",
        ),
        ((*FLAVOR, "hw:secure_boot=required"), "did you mean os:secure_boot?"),
        ((*FLAVOR, "hw:cpu_polcy=dedicated"), "did you mean hw:cpu_policy?"),
        ((*FLAVOR, "traits:HW_CPU_X86_AVX2=required"), "did you mean trait:HW_CPU_X86_AVX2?"),
        ((*FLAVOR, f"hw:{'x' * 10_000}=1"), "x..."),
        (("instances", "-c", "nam"), "there is no column 'nam'"),
    ],
)
def test_what_is_mistyped(full: tuple[Sight, Path], words: tuple[str, ...], said: str) -> None:
    done = plimsoll(full[1], *words)
    assert done.returncode not in (ExitCode.DONE, ExitCode.UNREACHABLE)
    assert said in one_line(done)


BLANKS = "K " * 5000


@pytest.mark.parametrize(
    "words",
    [
        ("claim", "--resources", f"{BLANKS}=1"),
        ("claim", "--flavor", BLANKS),
        ("claim", "--group", f"{BLANKS}:VCPU=1"),
        ("claim", BLANKS, "--resources", "VCPU=1"),
        ("claim", "--resources", "VCPU=1", "--required", BLANKS),
        ("claim", "--resources", "VCPU=1", "--name", BLANKS),
        (*FLAVOR, f"foo:{BLANKS}=1"),
        (*FLAVOR, f"hw:{BLANKS}=1"),
        (*FLAVOR, f"hw:cpu_policy={BLANKS}"),
        (*FLAVOR[:-1], "--image", f"hw_{BLANKS}=1"),
        *((word, BLANKS) for word in ("release", "explain", "-o", "--timeout", f"--{BLANKS}", BLANKS)),
        ("history", "--since", BLANKS),
        ("pause", "--reason", BLANKS),
        ("instances", "-c", BLANKS),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_long_word_is_cut_also_if_it_has_blanks(full: tuple[Sight, Path], words: tuple[str, ...]) -> None:
    done = plimsoll(full[1], *words)
    assert done.returncode not in (ExitCode.DONE, ExitCode.UNREACHABLE)
    assert 0 < len(one_line(done)) < 900


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("hw:boot_menu=true", "hw:boot_menu has no effect on the claim: it only shapes"),
        ("foo:bar=1", "foo:bar has no effect: it is no extra spec of nova"),
    ],
)
def test_a_spec_without_effect_is_told(full: tuple[Sight, Path], spec: str, said: str) -> None:
    done = plimsoll(full[1], *FLAVOR, spec)
    assert done.returncode == ExitCode.DONE and "it fits" in done.stdout
    assert said in done.stderr


def test_a_claim_with_a_spec_of_no_service_is_made_as_without_it_and_tells_that(
    fresh: tuple[Sight, Path],
) -> None:
    _, path = fresh
    wanted = ("claim", "--flavor", "vcpus=1,memory_mb=512")
    without = output_of(path, *wanted, "-o", "json")
    done = plimsoll(path, *wanted, "--spec", "foo:bar=1", "-o", "json")
    assert done.returncode == ExitCode.DONE
    assert "foo:bar has no effect: it is no extra spec of nova" in done.stderr
    assert json.loads(done.stdout)["allocations"] == json.loads(without)["allocations"]


def test_an_image_property_without_effect_is_told(full: tuple[Sight, Path]) -> None:
    image = ("--image", "foo=bar", "--image", "os_distro=debian", "--image", "hw_disk_bus=virtio")
    done = plimsoll(full[1], *FLAVOR[:-1], *image)
    assert "image foo has no effect: it is no image property of nova" in done.stderr
    assert "image os_distro has no effect on the claim: it only shapes" in done.stderr
    assert "hw_disk_bus" not in done.stderr


def test_a_socket_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for path in (tmp_path / "file", tmp_path):
        done = plimsoll(path, "status")
        assert done.returncode == ExitCode.UNREACHABLE
        assert f"{path} is no socket; --socket or PLIMSOLL_SOCKET" in one_line(done)


def test_the_audit_speaks_in_words(full: tuple[Sight, Path]) -> None:
    done = plimsoll(full[1], "audit", FORGOTTEN)
    assert "  guest: 20 DISK_GB, 2048 MEMORY_MB, 2 VCPU\n  claim: none\n  placement: nothing\n" in done.stdout
    repair = f"repair: claim what the guest {uuid_of(FORGOTTEN)} uses: 20 DISK_GB, 2048 MEMORY_MB, 2 VCPU"
    assert repair in done.stdout
    assert indent(done.stdout, "    ") in (DOCS / "audit.md").read_text(), "the page shows just that"
    assert "{" not in done.stdout and "None" not in done.stdout


def test_a_placement_that_is_away_is_one_line_once(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.touch(mode=0o600)
    lines = ["[DEFAULT]", "compute_driver = fake", "host = node1", f"state_path = {tmp_path}", "[placement]"]
    lines += ["kind = remote", "auth_type = admin_token", "token = admin"]
    file.write_text("\n".join([*lines, "endpoint_override = http://127.0.0.1:1"]) + "\n")
    with world_of(load([file])) as world, serving(world.operations, tmp_path / "s"):
        reason = (
            "Placement did not answer to GET /resource_providers: http://127.0.0.1:1: connection refused."
        )
        said = output_of(tmp_path / "s", "status")
        assert said.count("connection refused") == 1 and reason in said
        refused = one_line(plimsoll(tmp_path / "s", "claim", "--resources", "VCPU=1"))
        assert refused == f"plimsoll: Claims are closed: {reason}"


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A web server that is no Placement, a wrong path of one (/there), and one that rejects every token."""

    def do_GET(self) -> None:
        versions = {"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": "1.39"}]}
        code = 404 if not self.path.startswith("/locked") else 200 if self.path == "/locked/" else 401
        body = json.dumps(versions).encode() if code == 200 else b""
        self.send_response(code)
        if code == 200 or self.path.startswith("/there"):
            self.send_header("x-openstack-request-id", "req-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1: connection refused."),
        ("http://name.invalid", "http://name.invalid: the name of the host is not known."),
        ("unix:/nowhere/s", "at /nowhere/s (No such file or directory)"),
        ("nonsense", "--url takes http://..., https://... or unix:PATH"),
    ],
)
def test_a_wrong_url(tmp_path: Path, url: str, said: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", url)
    assert done.returncode in (ExitCode.FAILED, ExitCode.USAGE)
    assert said in one_line(done)


def test_a_url_of_something_else(tmp_path: Path, elsewhere: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", elsewhere)
    assert "no Placement" in one_line(done) and elsewhere in done.stderr


def test_a_bad_token(tmp_path: Path, elsewhere: str) -> None:
    done = plimsoll(tmp_path, "placement", "ping", "--url", f"{elsewhere}/locked")
    assert done.returncode == ExitCode.FAILED
    assert "it does not accept the token" in one_line(done) and "check it" in done.stderr


@pytest.mark.parametrize("verb", ["export", "check"])
@pytest.mark.parametrize("path", ["", "/there"])
def test_a_404_to_a_list_is_not_taken_for_other_writers(
    tmp_path: Path, elsewhere: str, verb: str, path: str
) -> None:
    """No client can delete the list of the providers: whoever answers 404 is no Placement."""
    done = plimsoll(tmp_path, "placement", verb, "--url", elsewhere + path)
    assert done.returncode == ExitCode.FAILED
    for words in ("no placement", "404", elsewhere + path, "check the url"):
        assert words in one_line(done).lower()
    assert "Other clients" not in done.stderr


@pytest.mark.parametrize("serve", ["", "placement.sock"])
def test_a_placement_in_use_says_where_it_can_be_read(tmp_path: Path, serve: str) -> None:
    """The command that the error names is done."""
    options = {"serve": [f"unix:{tmp_path / serve}"]} if serve else {}
    with closing(open_transport("embedded", state_dir=tmp_path, options=options)):
        for more in ((), ("--root", "host1")):
            line = one_line(plimsoll(tmp_path, "placement", "export", "--state-dir", str(tmp_path), *more))
            assert f"process {os.getpid()}" in line
            named = re.findall(r"--url (\S+) instead", line)
            assert named == ([f"unix:{tmp_path / serve}"] if serve else [])
            assert ("systemctl stop plimsoll-agent" in line) == (not serve)
        for url in named:
            assert output_of(tmp_path, "placement", "export", "--url", url).startswith("{")


def test_what_takes_its_time_is_told_at_a_terminal_and_gone_afterwards(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "hangs"))
        silent.listen()
        with Terminal(tmp_path / "hangs", "--timeout", "1.4", "audit") as terminal:
            terminal.read_until("waiting for the agent: GET /v1/audit ... 1 s")
            terminal.read_until("did not answer within 1.4 s")
            assert terminal.process.wait(10) == ExitCode.UNREACHABLE
            assert "\r\x1b[K" in terminal.text.rpartition("waiting for")[2]


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
def test_a_user_who_may_not(host: Sight) -> None:
    script, operations = AS_NOBODY.format(nobody=NOBODY), host.world.operations
    with public_directory() as directory, serving(operations, directory / "s", Access()):
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


INTERRUPTED_BEFORE_MAIN = """
import os, signal
from agent.cli.main import main
os.kill(os.getpid(), signal.SIGINT)
main([])
"""


def test_ctrl_c_is_one_line_also_between_the_import_and_main() -> None:
    """The installed script does some work of its own there. What comes before is Python's own start.

    Measured with an editable install: of 176 interrupts in the first 0.22 s, 49 met the interpreter's `site`
    and its .pth files, where no code of this project runs: Python reports that failure itself.
    """
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_BEFORE_MAIN],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "plimsoll: interrupted\n")


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


def test_what_was_done_is_told_also_where_the_answer_is_a_domain_or_a_list(
    fresh: tuple[Sight, Path], tmp_path: Path
) -> None:
    """The first line of these answers does not say it."""
    _, path = fresh
    (tmp_path / "web.xml").write_text(
        "<domain type='kvm'><name>web1</name><memory unit='MiB'>512</memory><vcpu>1</vcpu><devices/></domain>"
    )

    def last_line(*words: str) -> str:
        command = [*COMMAND, *words, "--socket", str(path)]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command,
                env=ENVIRONMENT,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        return done.stderr.splitlines()[-1].removeprefix(
            "plimsoll: the answer was not shown, and it is done: "
        )

    claimed = last_line("claim", "--domain", str(tmp_path / "web.xml"))
    (instance,) = (
        each
        for each in json.loads(output_of(path, "instances", "-o", "json"))["instances"]
        if each["name"] == "web1"
    )
    assert claimed == f"claimed for {instance['uuid']} (web1)"
    begin = ("move", "begin", instance["uuid"], "--kind", "resize", "--domain", str(tmp_path / "web.xml"))
    assert last_line(*begin).startswith(f"same_host_resize of {instance['uuid']} (web1): begun, migration ")
    assert last_line("drain") == "paused: new claims are refused until `plimsoll resume`"
    dry = last_line("claim", "--new", "--domain", str(tmp_path / "web.xml"), "--dry-run")
    assert dry == "plimsoll: No space left on device: standard output", "nothing was done"


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
        # The agent must not hang up before the command ends. Python sees a SIGINT between its last look at
        # signals and its read of the answer only after that read, so a user strikes again.
        while not select.select([process], [], [], 1.0)[0]:
            os.kill(pid, number)
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
