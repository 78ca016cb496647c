"""The hook's parts: its settings, its request and its answers, without a process or an agent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
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
    assert (config.socket, config.deadline_s, config.unanswered) == (hook.SOCKET, hook.DEADLINE_S, hook.ALLOW)
    assert config.problems == []


@pytest.mark.parametrize(
    "line",
    ["socket = relative", "unanswered = maybe", "deadline = soon", "deadline = -1", "other = 1", "text"],
)
def test_an_invalid_setting_is_reported_and_has_its_default(tmp_path: Path, line: str) -> None:
    config = config_of(tmp_path, f"\n{line}\n")
    (problem,) = config.problems
    assert "line 2" in problem and line in problem
    assert (config.socket, config.deadline_s, config.unanswered) == (hook.SOCKET, hook.DEADLINE_S, hook.ALLOW)


@pytest.mark.parametrize(("text", "seconds"), [("1000", hook.DEADLINE_MAX_S), ("0", 0.1), ("60", 60.0)])
def test_the_deadline_has_bounds(tmp_path: Path, text: str, seconds: float) -> None:
    assert config_of(tmp_path, f"deadline = {text}").deadline_s == seconds


@given(st.text())
def test_the_request_is_json(xml: str) -> None:
    xml = xml.encode("utf-8", "replace").decode()
    body = json.loads(hook.request_body("prepare", "begin", xml))
    assert body == {"operation": "prepare", "sub_operation": "begin", "xml": xml}


def test_the_message_of_an_error_is_one_line_and_anything_else_has_none() -> None:
    assert hook.error_message(b'{"error": {"message": "It does\\n not fit."}}') == "It does not fit."
    for answer in (b"", b"[]", b"{}", b"\xff", b'{"error": 1}', b"[" * 100_000):
        assert hook.error_message(answer) == ""


def test_a_deadline_that_has_passed_is_a_timeout() -> None:
    assert 0 < hook.seconds_left(time.monotonic() + 5) <= 5
    with pytest.raises(TimeoutError):
        hook.seconds_left(time.monotonic())


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


def test_an_operation_that_is_no_question_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*_: object) -> tuple[int, bytes]:
        raise AssertionError("nothing may be sent")

    monkeypatch.setattr(hook, "post", post)
    for arguments in (
        ["hook"],
        ["hook", "vm", "reconnect", "begin", "-"],
        ["hook", "vm", "started", "begin"],
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
