"""`plimsoll history` on a real agent: what it did, and who asked for it."""

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import FORGOTTEN, Sight, asks, guest, uuid_of

from agent.errors import ClaimsClosed, DoesNotFit, DriverUnavailable, ExitCode
from agent.status.recorder import REPEATED_S


def events(path: Path, *words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(output_of(path, "history", "-o", "json", *words))["events"]
    return found


def test_the_history_tells_all_that_was_done(full: tuple[Sight, Path]) -> None:
    """The newest last for people, the newest first for programs."""
    _, path = full
    lines = output_of(path, "history").splitlines()
    assert lines[0].split() == ["WHEN", "WHAT", "WHO", "ASKED", "BY", "WHY"]
    kinds = [each["event"] for each in reversed(events(path))]
    assert kinds[:2] == ["pass", "ready"]
    assert kinds[-2:] == ["move_begin", "move_grant"]
    assert {"begin", "grant", "reshape"} <= set(kinds)
    assert f"{uuid_of('db1')} (db1)" in "\n".join(lines)
    assert "train: 300 DISK_GB, 24576 MEMORY_MB, 1 PGPU, 12 VCPU" in "\n".join(lines)


def test_the_history_of_one_consumer_and_of_the_newest(full: tuple[Sight, Path]) -> None:
    _, path = full
    assert [each["event"] for each in events(path, "--consumer", uuid_of("db1"))] == ["grant", "begin"]
    assert [each["event"] for each in events(path, "--limit", "1")] == ["move_grant"]
    assert len(events(path, "--since", "1h")) == len(events(path))
    assert events(path, "--since", "2999-01-01") == []
    assert output_of(path, "history", "--since", "2999-01-01") == "nothing happened\n"


def test_times_are_local_as_since_is(full: tuple[Sight, Path]) -> None:
    """In India, 5:30 hours ahead of UTC."""
    _, path = full
    zone = {"TZ": "Asia/Kolkata"}
    (at,) = (each["at"] for each in events(path, "--limit", "1"))
    here = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=5, minutes=30)))
    for command in (("history", "--limit", "1"), ("top", "--once")):
        assert f"{here:%Y-%m-%d %H:%M:%S}+05:30" in plimsoll(path, *command, environment=zone).stdout
    for minutes, told in ((-1, True), (1, False)):
        since = f"{here + timedelta(minutes=minutes):%Y-%m-%dT%H:%M}"
        done = plimsoll(path, "history", "--since", since, environment=zone)
        assert ("move_grant" in done.stdout) is told, done.stdout
    assert "+05:30" in plimsoll(path, "status", environment=zone).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
        (("--since", "99999999999d"), "is no time"),
        (("--limit", "0"), "from 1 to 10000"),
        (("--limit", "10001"), "from 1 to 10000"),
        (("--consumer", ""), "is an empty text"),
    ],
)
def test_what_makes_no_sense_is_said(full: tuple[Sight, Path], words: tuple[str, ...], said: str) -> None:
    done = plimsoll(full[1], "history", *words)
    assert done.returncode == ExitCode.USAGE and said in one_line(done)


def test_refusals_are_in_the_history_once(fresh: tuple[Sight, Path]) -> None:
    """Somebody who asks again and again does not push all else out of it."""
    shown, path = fresh
    for _ in range(3):
        with pytest.raises(DoesNotFit):
            shown.world.operations.claim(asks("giant", VCPU=1000))
    refused = [each for each in events(path) if each["event"] == "refused"]
    assert len(refused) == 1 and "1000 VCPU asked" in refused[0]["detail"]
    assert refused[0]["consumer"] == uuid_of("giant")
    assert REPEATED_S > 60


def test_outages_are_in_the_history_and_refusals_because_of_them_are_not(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.fail(1, DriverUnavailable("libvirtd does not answer."))
    shown.world.agent.reconcile("an event")
    with pytest.raises(ClaimsClosed):
        shown.world.operations.claim(asks("unlucky", VCPU=1))
    shown.world.agent.reconcile("the retry")
    assert [each["event"] for each in events(path)][:2] == ["ready", "degraded"]
    assert events(path)[1]["detail"] == "libvirtd does not answer."


def test_what_was_healed_is_in_the_history(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.add_guest(guest(FORGOTTEN, VCPU=2, MEMORY_MB=2048, DISK_GB=20))
    shown.world.agent.reconcile("an event")
    shown.world.operations.audit(heal=True)
    (healed,) = [each for each in events(path) if each["event"] == "healed"]
    assert healed["consumer"] == uuid_of(FORGOTTEN) and healed["detail"].startswith("unclaimed instance: ")


def test_who_asked_is_in_the_history_and_in_explanations(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    consumer = uuid_of("asked for")
    done = plimsoll(path, "claim", consumer, "--resources", "VCPU=1")
    assert done.returncode == ExitCode.DONE, done.stderr
    (grant, begin) = events(path, "--consumer", consumer)
    assert grant["uid"] == begin["uid"] == os.geteuid() and grant["pid"] == begin["pid"] != os.getpid()
    asker = f"uid {grant['uid']} (pid {grant['pid']})"
    assert output_of(path, "history", "--consumer", consumer).count(asker) == 2
    assert output_of(path, "explain", consumer).count(f"asked for by {asker}") == 2
    assert events(path)[-1]["uid"] is None, "the agent makes the first pass by itself"


def test_a_restart_keeps_the_history(fresh: tuple[Sight, Path]) -> None:
    shown, _ = fresh
    shown.world.operations.claim(asks("web", VCPU=1))
    assert [each.event for each in shown.host_status.history(limit=2)] == ["grant", "begin"]
    assert shown.journal.history(since=time.time() + 60) == ()
