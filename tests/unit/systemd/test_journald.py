"""The journal gets each record field by field, whatever is in it, and never a secret."""

import io
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from agent import log
from agent.systemd import journald
from agent.systemd.journald import FIELD_BYTES_MAX, FIELDS_MAX, MESSAGE_IDS


class Journal:
    """Listens as systemd-journald does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(5)

    def read(self) -> dict[str, str]:
        data = self._socket.recv(1024 * 1024)
        found: dict[str, str] = {}
        while data:
            line, _, rest = data.partition(b"\n")
            name, equals, value = line.partition(b"=")
            if not equals:
                size = int.from_bytes(rest[:8], "little")
                value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
            assert name.decode() not in found
            found[name.decode()] = value.decode()
            data = rest
        return found

    def close(self) -> None:
        self._socket.close()
        self.path.unlink()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    listening = Journal(tmp_path / "socket")
    yield listening
    journald.configure("info", "logfmt", stream=io.StringIO())
    if listening.path.exists():
        listening.close()


def configured(journal: Journal, *secrets: str) -> io.StringIO:
    stream = io.StringIO()
    journald.configure("info", "journald", secrets, stream, journal=journal.path)
    return stream


def test_a_record_is_its_fields(journal: Journal) -> None:
    stream = configured(journal)
    log.get("agent.api").warning(
        "Claim of %s granted", "web1", fields={"consumer": "c1", "uid": 0, "new": True}
    )
    found = journal.read()
    assert found["MESSAGE"] == "Claim of web1 granted" and found["PRIORITY"] == "4"
    assert (found["CONSUMER"], found["UID"], found["NEW"]) == ("c1", "0", "true")
    assert found["LOGGER"] == "agent.api" and found["SYSLOG_IDENTIFIER"] == "plimsoll"
    assert found["CODE_FUNC"] == "test_a_record_is_its_fields" and found["CODE_FILE"].endswith(
        "test_journald.py"
    )
    assert stream.getvalue() == ""


def test_an_event_has_a_message_id(journal: Journal) -> None:
    configured(journal)
    log.get("agent.status.overview").info("Ready.", fields={"event": "ready"})
    found = journal.read()
    assert (found["MESSAGE_ID"], found["EVENT"]) == (MESSAGE_IDS["ready"], "ready")
    log.get("agent.x").info("Nothing of note.", fields={"event": "none"})
    assert "MESSAGE_ID" not in journal.read()


def test_message_ids_are_random_and_differ() -> None:
    assert len(set(MESSAGE_IDS.values())) == len(MESSAGE_IDS)
    assert all(UUID(each).version == 4 for each in MESSAGE_IDS.values())


def test_lines_and_tracebacks_stay_whole(journal: Journal) -> None:
    configured(journal)
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        log.get("agent.x").exception("It broke\nPRIORITY=0", fields={"detail": "a\nMESSAGE=forged"})
    found = journal.read()
    assert found["MESSAGE"].startswith("It broke\nPRIORITY=0\nTraceback") and found["PRIORITY"] == "3"
    assert found["DETAIL"] == "a\nMESSAGE=forged"


def test_no_field_takes_the_place_of_the_journal_s_own(journal: Journal) -> None:
    configured(journal)
    fields = {
        "message": "forged",
        "Priority": 0,
        "_uid": 0,
        "a b": 1,
        "A=B": 1,
        "x" * 70: 1,
        "": 1,
        "9": 1,
        "ok": 1,
    }
    log.get("agent.x").info("True.", fields=fields)
    found = journal.read()
    assert found["MESSAGE"] == "True." and found["PRIORITY"] == "6" and found["OK"] == "1"
    assert {name for name in found if not name.startswith(("CODE_", "SYSLOG_"))} == {
        "MESSAGE",
        "PRIORITY",
        "LOGGER",
        "OK",
    }


def test_what_is_huge_is_cut(journal: Journal) -> None:
    configured(journal)
    log.get("agent.x").info(
        "Much.", fields={"detail": "ü" * FIELD_BYTES_MAX, **{f"f{n}": n for n in range(99)}}
    )
    found = journal.read()
    assert len(found["DETAIL"].encode()) <= FIELD_BYTES_MAX
    assert len(found) < FIELDS_MAX + 10


def test_secrets_do_not_get_through(journal: Journal) -> None:
    configured(journal, "hunter2")
    try:
        raise ValueError("hunter2")
    except ValueError:
        log.get("agent.x").exception("With %s", "hunter2", fields={"password": "hunter2"})
    assert "hunter2" not in str(journal.read())


def test_without_a_journal_the_lines_go_to_the_stream(journal: Journal, tmp_path: Path) -> None:
    stream = configured(journal)
    journal.close()
    log.get("agent.x").info("Still here.", fields={"consumer": "c1"})
    assert stream.getvalue() == "<6>Still here. consumer=c1\n"
    journald.configure("info", "journald", stream=stream, journal=tmp_path / "none")
    log.get("agent.x").info("And here.")
    assert stream.getvalue().endswith("<6>And here.\n")


def test_a_journal_that_was_restarted_is_found_again(journal: Journal, tmp_path: Path) -> None:
    stream = configured(journal)
    journal.close()
    again = Journal(journal.path)
    log.get("agent.x").info("Found.")
    assert again.read()["MESSAGE"] == "Found." and stream.getvalue() == ""
    again.close()


def test_a_journal_that_takes_nothing_is_not_waited_for_long(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.systemd.journald.SEND_TIMEOUT_S", 0.05)
    stream = configured(journal)
    for number in range(2000):  # far more than its queue holds
        log.get("agent.x").info("Line %d", number)
        if stream.getvalue():
            break
    assert stream.getvalue().startswith("<6>Line ")


def test_what_is_no_utf8_is_spelt_out(journal: Journal) -> None:
    configured(journal)
    log.get("agent.x").info("Odd: %s", "\udcff", fields={"name": "\udcfe"})
    found = journal.read()
    assert found["MESSAGE"] == "Odd: \\udcff" and found["NAME"] == "\\udcfe"
    assert logging.getLogger().handlers
