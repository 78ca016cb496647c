"""The hook's parts: its settings, its request and its answers, without a process or an agent."""

from __future__ import annotations

import json
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
