"""The log: one record a line, a sentence and its fields, never a secret."""

import io
import json
import logging
from pathlib import Path

import pytest

from agent import log
from agent.systemd import journald


def written(style: str, secrets: tuple[str, ...] = ()) -> io.StringIO:
    stream = io.StringIO()
    journald.configure("info", style, secrets, stream)
    return stream


def test_logfmt() -> None:
    stream = written("logfmt")
    log.get("agent.report", host="node1").info(
        "Changed %d providers.", 3, fields={"duration_ms": 4.5, "done": True}
    )
    line = stream.getvalue()
    assert (
        'level=info logger=agent.report msg="Changed 3 providers." host=node1 duration_ms=4.5 done=true\n'
        in line
    )
    assert line.startswith("time=20")


def test_json() -> None:
    stream = written("json")
    log.get("agent.report").warning("Of „one“ line\nonly.", fields={"operations": 7, "level": "mine"})
    said = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert said["msg"] == "Of „one“ line\nonly." and said["operations"] == 7 and said["level"] == "warning"


def test_journal_puts_the_priority_first_and_keeps_one_line() -> None:
    stream = written("journal")
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        log.get("agent.daemon.service").exception("It broke\nhere.", fields={"pass": "7 a"})
    assert stream.getvalue().startswith('<3>It broke\\nhere. pass="7 a" exception="Traceback')
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("style", ["journal", "logfmt", "json"])
def test_a_character_that_cannot_be_seen_is_spelt(style: str) -> None:
    """Bidirectional marks, C1 controls and characters of no width: a log is read in terminals."""
    stream = written(style)
    hostile = "a\u202eb\x1b[2Jc\x9bd\u200be\U000e0041\u2028"
    log.get("agent").info("The guest %s came.", hostile, fields={"name": hostile, "other": "x\u202e"})
    said = stream.getvalue().rstrip("\n")
    assert said.isprintable() and said.count("u202e") == 3
    if style == "json":
        assert json.loads(said)["name"] == hostile


def test_other_people_s_records_look_the_same() -> None:
    stream = written("logfmt")
    logging.getLogger("other").info("hello")
    logging.getLogger("apscheduler.executors").info("chatter")
    assert "logger=other msg=hello" in stream.getvalue()
    assert "chatter" not in stream.getvalue()


@pytest.mark.parametrize("style", ["journal", "logfmt", "json"])
def test_secrets_do_not_get_through(style: str) -> None:
    stream = written(style, ("canary-7",))
    try:
        raise ValueError("canary-7 in the traceback")
    except ValueError:
        log.get("agent").exception("It says canary-7.", fields={"url": "http://user:canary-7@host"})
    assert "canary-7" not in stream.getvalue()
    assert stream.getvalue().count("***") >= 3


def test_a_secret_that_is_an_ordinary_word_is_masked_only_as_a_value() -> None:
    stream = written("logfmt", ("admin", "17"))
    log.get("agent").info(
        "The role admin is missing for 17 hosts; token=admin, http://x:admin@host",
        fields={"token": "admin", "count": "17 hosts"},
    )
    said = stream.getvalue()
    assert "The role admin is missing for 17 hosts; token=***, http://x:***@host" in said
    assert "token=***" in said.partition("host")[2] and '"17 hosts"' in said


def test_auto_asks_systemd(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        status = (tmp_path / "out").stat()
        assert journald.under_journal(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not journald.under_journal(stream, {"JOURNAL_STREAM": "1:2"})
        assert not journald.under_journal(stream, {})
    assert not journald.under_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})
