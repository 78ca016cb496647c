"""The hook's parts: its settings, its request and its answers, without a process or an agent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.paths import CHECKOUT

from agent.gate import hook
from agent.gate.hook import HookConfig, NoDecision, StartRefused


def config_of(folder: Path, text: str) -> HookConfig:
    path = folder / "gate.conf"
    path.write_text(text, encoding="utf-8")
    return HookConfig(str(path))


def test_each_setting_is_read_and_a_missing_file_has_the_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path, "# a comment\n\nsocket = /run/x\ndeadline=2.5\nunanswered = refuse\n")
    assert (config.socket, config.deadline_s, config.unanswered) == ("/run/x", 2.5, hook.REFUSE)
    assert config.problems == []
    config = HookConfig(str(tmp_path / "none"))
    assert (config.socket, config.deadline_s, config.unanswered) == (
        "/run/plimsoll/plimsoll.sock",
        5.0,
        "allow",
    )
    assert config.problems == []


def test_settings_that_cannot_be_read_are_reported_and_have_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "gate.conf").write_bytes(b"unanswered = refuse\n\xff\n")
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "gate.conf", "can't decode byte 0xff")):
        config = HookConfig(str(path))
        (problem,) = config.problems
        assert problem.startswith(f"{path} cannot be read: ") and why in problem
        assert config.unanswered == "allow"


@pytest.mark.parametrize(
    "line",
    [
        *("socket = relative", "unanswered = maybe", "other = 1", "text"),
        *("deadline = soon", "deadline = -1", "deadline = 1.2.3"),
    ],
)
def test_an_invalid_setting_is_reported_and_has_its_default(tmp_path: Path, line: str) -> None:
    config = config_of(tmp_path, f"\n{line}\n")
    (problem,) = config.problems
    assert "line 2" in problem and line in problem
    assert (config.socket, config.deadline_s, config.unanswered) == (hook.SOCKET, hook.DEADLINE_S, hook.ALLOW)


@pytest.mark.parametrize(("text", "seconds"), [("1000", 60.0), ("0", 0.1), ("60", 60.0)])
def test_the_deadline_has_bounds(tmp_path: Path, text: str, seconds: float) -> None:
    assert config_of(tmp_path, f"deadline = {text}").deadline_s == seconds


@example('<name>"a\\b"</name>\x1f\n')
@given(st.text())
def test_the_request_is_json(xml: str) -> None:
    xml = xml.encode("utf-8", "replace").decode()
    body = json.loads(hook.request_body("prepare", "begin", xml))
    assert body == {"operation": "prepare", "sub_operation": "begin", "xml": xml}


def test_the_message_of_an_error_is_one_line_and_anything_else_has_none() -> None:
    assert hook.error_message(b'{"error": {"message": "It does\\n not fit."}}') == "It does not fit."
    for answer in (b"", b"[]", b"{}", b"\xff", b'{"error": 1}', b"[" * 100_000):
        assert hook.error_message(answer) == ""


def test_a_deadline_that_has_passed_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < hook.seconds_left(time.monotonic() + 5) <= 5
    monkeypatch.setattr(hook, "time", SimpleNamespace(monotonic=lambda: 8.0))
    assert hook.seconds_left(8.5) == 0.5
    for deadline in (8.0, 7.5):
        with pytest.raises(TimeoutError):
            hook.seconds_left(deadline)


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (200, None),
        (409, StartRefused),
        (400, StartRefused),
        (503, NoDecision),
        (500, NoDecision),
        (301, NoDecision),
    ],
)
def test_only_an_answer_about_the_guest_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, raised: type[Exception] | None
) -> None:
    monkeypatch.setattr(hook, "read_xml", lambda _: "<domain/>")
    monkeypatch.setattr(hook, "post", lambda *_: (status, b""))
    config = HookConfig(str(tmp_path / "none"))
    if raised is None:
        hook.ask_agent(config, "prepare", "begin")
        return
    with pytest.raises(raised, match=f"status {status}"):
        hook.ask_agent(config, "prepare", "begin")


def test_the_cpus_of_the_answer_are_powered_up_and_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hook, "CPU", f"{tmp_path}/cpu%d/")
    for cpu in (2, 3):
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "online").write_text("0\n")
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_governor").write_text("powersave\n")

    def done(cpus: list[int], state: str) -> None:
        hook.set_cpu_power(json.dumps({"outcome": "x", "cpu_power": {"cpus": cpus, "state": state}}).encode())

    done([2, 3, 9], "online")
    assert [(tmp_path / f"cpu{cpu}" / "online").read_text()[0] for cpu in (2, 3)] == ["1", "1"]
    done([3], "offline")
    assert (tmp_path / "cpu3" / "online").read_text()[0] == "0"
    done([2], "performance")
    assert (tmp_path / "cpu2" / "cpufreq" / "scaling_governor").read_text() == "performance"
    done([3], "../x")
    assert (tmp_path / "cpu3" / "cpufreq" / "scaling_governor").read_text() == "powersave\n"
    hook.set_cpu_power(b'{"cpu_power": null, "sentence": "\\"cpus\\""}')


def test_a_cpu_that_cannot_be_brought_online_refuses_the_guest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hook, "CPU", f"{tmp_path}/cpu%d/")
    (tmp_path / "cpu2" / "online").mkdir(parents=True)
    (tmp_path / "cpu2" / "cpufreq" / "scaling_governor").mkdir(parents=True)
    logged: list[str] = []
    monkeypatch.setattr(hook, "log_to_syslog", lambda _, text: logged.append(text))
    order = '{"cpu_power": {"cpus": [2], "state": "%s"}}'
    with pytest.raises(
        StartRefused, match=r"CPU 2 cannot be brought online: .*cpu2/online cannot be written"
    ):
        hook.set_cpu_power((order % "online").encode())
    hook.set_cpu_power((order % "performance").encode())
    assert logged and "does not get the governor performance" in logged[0]
    monkeypatch.setattr(hook, "read_xml", lambda _: "<domain/>")
    monkeypatch.setattr(hook, "post", lambda *_: (200, (order % "offline").encode()))
    monkeypatch.setattr(hook, "write_below_sys", lambda *_: "it cannot be written")
    assert hook.main(["hook", "vm", "release", "end"], str(tmp_path / "none")) == 0, "libvirt goes on"
    assert "release of vm: CPU 2 cannot be brought offline" in logged[1]


def outcome(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], config: Path, error: Exception | None
) -> Any:
    """(exit code, what libvirt shows, what is logged) where the question to the agent ends with the error."""
    logged: list[tuple[int, str]] = []
    shown: list[bytes] = []

    def ask(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(hook, "ask_agent", ask)
    monkeypatch.setattr(hook, "log_to_syslog", lambda *line: logged.append(line))
    monkeypatch.setattr(hook, "os", SimpleNamespace(write=lambda file, text: {2: shown}[file].append(text)))
    code = hook.main(["hook", *arguments], str(config))
    return code, b"".join(shown).decode(), logged


BY_DEFAULT = "the agent did not decide (away), and gate.conf says unanswered = refuse"


@pytest.mark.parametrize(
    ("operation", "error", "unanswered", "refusal"),
    [
        ("prepare begin", None, "allow", ""),
        ("prepare begin", StartRefused("too large"), "allow", "too large"),
        ("migrate begin", StartRefused("too large"), "allow", "too large"),
        ("release end", StartRefused("too large"), "refuse", ""),
        ("prepare begin", NoDecision("away"), "allow", ""),
        ("prepare begin", NoDecision("away"), "refuse", BY_DEFAULT),
        ("migrate begin", OSError("away"), "refuse", BY_DEFAULT),
        ("migrate begin", ValueError("away"), "refuse", BY_DEFAULT),
        ("prepare begin", TimeoutError(), "refuse", BY_DEFAULT.replace("away", "TimeoutError")),
        ("release end", NoDecision("away"), "refuse", ""),
    ],
)
def test_a_guest_may_not_start_if_the_agent_says_so_or_says_nothing_where_that_counts_as_no(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    operation: str,
    error: Exception | None,
    unanswered: str,
    refusal: str,
) -> None:
    """libvirt kills a guest whose hook fails at another operation."""
    (tmp_path / "gate.conf").write_text(f"unanswered = {unanswered}\nnonsense\n", encoding="utf-8")
    code, shown, (wrong, *logged) = outcome(
        monkeypatch, ["vm", *operation.split()], tmp_path / "gate.conf", error
    )
    assert (hook.SYSLOG_NOTICE, hook.SYSLOG_WARNING) == (29, 28), "facility daemon, as syslog(3) counts"
    assert wrong[0] == hook.SYSLOG_WARNING and "'nonsense' is not a valid setting" in wrong[1]
    assert (code, shown) == ((1, f"plimsoll: {refusal}\n") if refusal else (0, ""))
    name = operation.split()[0]
    if refusal:
        assert logged == [(hook.SYSLOG_NOTICE, f"vm may not start: {refusal}")]
    elif isinstance(error, StartRefused):
        assert logged == [(hook.SYSLOG_NOTICE, f"{name} of vm: too large")]
    else:
        goes_on = (hook.SYSLOG_WARNING, f"{name} of vm goes on without the agent: away")
        assert logged == ([goes_on] if error else [])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TimeoutError(), "no answer at /run/x within 2.5 s"),
        (FileNotFoundError(2, "No such file"), r"no agent at /run/x \(No such file\)"),
        (ConnectionRefusedError(111, "refused"), r"no agent at /run/x \(refused\)"),
    ],
)
def test_an_agent_that_does_not_answer_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, why: str
) -> None:
    def post(path: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        assert (path, 2 < deadline - time.monotonic() <= 2.5) == ("/run/x", True)
        raise error

    monkeypatch.setattr(hook, "read_xml", lambda _: "<domain/>")
    monkeypatch.setattr(hook, "post", post)
    with pytest.raises(NoDecision, match=f"^{why}$"):
        hook.ask_agent(config_of(tmp_path, "socket = /run/x\ndeadline = 2.5"), "prepare", "begin")
    refused = b'{"error": {"message": "It does not fit."}}'
    monkeypatch.setattr(hook, "post", lambda *_: (409, refused))
    with pytest.raises(StartRefused, match=r"^It does not fit\.$"):
        hook.ask_agent(HookConfig(str(tmp_path / "none")), "prepare", "begin")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n{}\r\n\r\nmore", (200, b"{}\r\n\r\nmore")),
        (b"HTTP/1.0 409\r\n\r\n", (409, b"")),
        (b"HTTP/1.1", None),
        (b"SSH-2.0 200", None),
        (b"", None),
    ],
)
def test_the_agent_s_answer_is_read_to_its_end(
    tmp_path: Path, answer: bytes, read: tuple[int, bytes] | None
) -> None:
    asked = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            asked.append(peer.recv(4096))
            for byte in range(len(answer)):
                peer.send(answer[byte : byte + 1])

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            if read is None:
                with pytest.raises(ValueError, match="is not HTTP"):
                    hook.post(str(tmp_path / "agent"), b"question", time.monotonic() + 5)
            else:
                assert hook.post(str(tmp_path / "agent"), b"question", time.monotonic() + 5) == read
        finally:
            thread.join()
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/gate HTTP/1.1\r\n") and b"Content-Length: 8" in head
    assert body == b"question"


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("body", "size", "slowly"),
    [(8, 0, False), (8, 2**20 - 1, False), (8, 2**20, False), (8, 9, True), (2**24, 0, False)],
    ids=["silent", "one byte less", "as long as may be", "byte by byte", "does not read"],
)
def test_a_peer_that_does_not_end_its_answer_is_not_waited_for_longer_than_may_be(
    tmp_path: Path, body: int, size: int, *, slowly: bool
) -> None:
    """What is as long as an answer may be is read no further; 1 MiB, as of the domain."""
    answer = b"HTTP/1.1 200 OK\r\n\r\n".ljust(size, b"x")[:size]
    ended = threading.Event()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, suppress(OSError):  # the hook has hung up
            for byte in range(size if slowly else 0):
                peer.send(answer[byte : byte + 1])
                ended.wait(0.3)
            peer.sendall(answer)
            ended.wait(30)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            began = time.monotonic()
            if size < 2**20:
                with pytest.raises(TimeoutError):
                    hook.post(str(tmp_path / "agent"), b"x" * body, began + 0.5)
                assert time.monotonic() < began + 2
            else:
                assert hook.post(str(tmp_path / "agent"), b"x" * body, began + 5)[0] == 200
        finally:
            ended.set()
            thread.join()


def test_the_domain_is_read_until_libvirt_closes_its_end_and_no_longer_than_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks: list[bytes] = []
    read = {0: lambda size: chunks.pop(0)}
    monkeypatch.setattr(hook, "os", SimpleNamespace(read=lambda file, size: read[file](size)))
    ready = SimpleNamespace(select=lambda files, *_: ([0] if chunks and files == [0] else [], [], []))
    monkeypatch.setattr(hook, "select", ready)
    chunks[:] = [b"<domain>", b"\xff</domain>", b""]
    assert hook.read_xml(time.monotonic() + 5) == "<domain>\ufffd</domain>"
    chunks[:] = [b"x" * hook.XML_MAX, b""]
    assert len(hook.read_xml(time.monotonic() + 5)) == hook.XML_MAX
    chunks[:] = [b"x" * hook.XML_MAX, b"x", b""]
    with pytest.raises(StartRefused, match="more than 1048576 bytes"):
        hook.read_xml(time.monotonic() + 5)
    chunks[:] = [b"<domain>"]
    with pytest.raises(TimeoutError):
        hook.read_xml(time.monotonic() + 5)


def test_a_cpu_that_is_as_it_should_be_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "online"
    file.write_text("1\n")
    os.utime(file, ns=(0, 0))
    opened = len(list(Path("/proc/self/fd").iterdir()))
    assert hook.write_below_sys(str(file), b"1") == ""
    assert file.stat().st_mtime_ns == 0
    assert hook.write_below_sys(str(file), b"0") == "" and file.read_text() == "0\n"
    assert hook.write_below_sys(str(tmp_path / "none"), b"1") == "", "the kernel cannot change it"
    assert "cannot be written (Is a directory)" in hook.write_below_sys(str(tmp_path), b"1")
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_an_operation_that_is_no_question_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*_: object) -> tuple[int, bytes]:
        raise AssertionError("nothing may be sent")

    monkeypatch.setattr(hook, "post", post)
    for arguments in (
        ["hook"],
        ["hook", "vm", "reconnect", "begin", "-"],
        ["hook", "vm", "started", "begin"],
        ["hook", "vm", "prepare", "end"],
        ["hook", "vm", "release", "begin"],
        ["hook", "vm", "prepare"],
    ):
        assert hook.main(arguments, "/nonexistent") == 0


def test_it_imports_little_of_the_standard_library_alone() -> None:
    program = (
        "import sys; before = set(sys.modules); import agent.gate.hook; print(*(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-IS", "-c", f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    imported = set(done.stdout.split())
    assert {name for name in imported if name.startswith("agent")} == {
        "agent",
        "agent.gate",
        "agent.gate.hook",
    }
    assert not imported & {"socket", "json", "pathlib", "enum", "re", "typing"}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_log_of_the_system_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "SYSLOG", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "log"))
        for _ in range(600):
            hook.log_to_syslog(hook.SYSLOG_NOTICE, "web1 may not start")
        assert log.recv(4096).startswith(b"<29>plimsoll-gate[")
