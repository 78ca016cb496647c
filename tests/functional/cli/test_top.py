"""`plimsoll top`, `history` and `explain` on a real agent: what was done, and who owns what."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.api_client import serving
from kits.cli_process import COMMAND, ENVIRONMENT, one_line, plimsoll
from kits.status import FORGOTTEN, HOST, MDEVS, MIGRATION, VGPU_CARD, Sight, asks, fill, guest, sight, uuid_of

from agent.cli.top import fit
from agent.driver import UsedUnit
from agent.errors import ClaimsClosed, DoesNotFit, DriverUnavailable, ExitCode
from agent.status.recorder import REPEATED_S

CARD = f"{HOST}_pci_{VGPU_CARD}"


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[Sight, Path]]:
    with sight() as shown:
        fill(shown)
        with serving(shown.world.operations, shown.directory / "s"):
            yield shown, shown.directory / "s"


@pytest.fixture
def fresh() -> Iterator[tuple[Sight, Path]]:
    with sight() as shown, serving(shown.world.operations, shown.directory / "s"):
        yield shown, shown.directory / "s"


def told(path: Path, *words: str) -> str:
    done = plimsoll(path, *words)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    return done.stdout


def events(path: Path, *words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(told(path, "history", "-o", "json", *words))["events"]
    return found


# history


def test_the_history_tells_all_that_was_done(full: tuple[Sight, Path]) -> None:
    """The newest last for people, the newest first for programs."""
    _, path = full
    lines = told(path, "history").splitlines()
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
    assert told(path, "history", "--since", "2999-01-01") == "nothing happened\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
        (("--since", "99999999999d"), "is no time"),
        (("--limit", "0"), "from 1 to 10000"),
        (("--limit", "10001"), "from 1 to 10000"),
        (("--consumer", "web1"), "named by its uuid"),
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
    assert told(path, "history", "--consumer", consumer).count(asker) == 2
    assert told(path, "explain", consumer).count(f"asked for by {asker}") == 2
    assert events(path)[-1]["uid"] is None, "the first pass: nobody asked for it"


def test_a_restart_keeps_the_history(fresh: tuple[Sight, Path]) -> None:
    shown, _ = fresh
    shown.world.operations.claim(asks("web", VCPU=1))
    assert [each.event for each in shown.host_status.history(limit=2)] == ["grant", "begin"]
    assert shown.journal.history(since=time.time() + 60) == ()


# explain


def test_a_unit_is_explained(full: tuple[Sight, Path]) -> None:
    shown, path = full
    (unit,) = shown.world.agent.host_status.overview().claims[uuid_of("db1")].units.values()
    (address,) = unit["SRIOV_NET_VF"]
    said = told(path, "explain", address)
    assert f"It is one exact SRIOV_NET_VF of provider {HOST}_net_enp65s0f0 (pci:0000:41:00.0)." in said
    assert f"db1 ({uuid_of('db1')}) owns it since 20" in said
    assert f"The guest db1 ({uuid_of('db1')}), running, uses it." in said


def test_a_free_unit_and_one_that_is_used_without_a_claim(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    assert "It is free: no claim has it, and no guest uses it." in told(path, "explain", MDEVS[0])
    unit = UsedUnit("VGPU", MDEVS[0], f"pci:{VGPU_CARD}")
    shown.world.driver.add_guest(replace(guest("squatter", VCPU=1), units=(unit,)))
    shown.world.agent.reconcile("an event")
    said = told(path, "explain", MDEVS[0].upper())
    assert f"The guest squatter ({uuid_of('squatter')}), running, uses it." in said
    assert "No claim owns it" in said


def test_a_device_is_explained_with_its_holders(full: tuple[Sight, Path]) -> None:
    _, path = full
    by_name = told(path, "explain", CARD)
    assert by_name == told(path, "explain", VGPU_CARD) == told(path, "explain", f"pci:{VGPU_CARD}")
    assert "6 of 8 VGPU in use" in by_name and "CUSTOM_GPU_TESLA_M60" in by_name
    assert f"render-a ({uuid_of('render-a')}) holds 2 VGPU (" in by_name
    assert "moved inventory to or from it." in by_name


def test_a_consumer_is_explained_by_uuid_and_by_name(full: tuple[Sight, Path]) -> None:
    _, path = full
    said = told(path, "explain", "render-b")
    assert (
        said
        == told(path, "explain", uuid_of("render-b"))
        == told(path, "explain", uuid_of("render-b").upper())
    )
    assert "Its guest is here, running." in said
    assert "It requested 120 DISK_GB, 16384 MEMORY_MB, 8 VCPU, 4 VGPU, and holds:" in said
    assert re.search(rf"4 VGPU on {re.escape(CARD)}: [0-9a-f-]{{36}}, ", said)
    assert f"moved its 4 VGPU from {HOST} to {CARD}" in said
    assert "lately\n" in said and "  grant  render-b: " in said


def test_a_move_is_explained_from_either_side(full: tuple[Sight, Path]) -> None:
    _, path = full
    said = told(path, "explain", "web1")
    assert f"Its move (same_host_resize, migration {MIGRATION}, this host is both) is begun" in said
    assert "The migration holds 40 DISK_GB" in said
    migration = told(path, "explain", MIGRATION)
    assert "It is a migration" in migration and f"The move of web1 ({uuid_of('web1')})" in migration


def test_one_whom_nobody_claimed_for(full: tuple[Sight, Path]) -> None:
    said = told(full[1], "explain", FORGOTTEN)
    assert "It has no claim" in said and "Finding of the audit: unclaimed instance" in said


def test_a_receipt_is_explained(full: tuple[Sight, Path]) -> None:
    shown, path = full
    (receipt,) = shown.host_status.receipts()
    said = told(path, "explain", receipt.id)
    assert f"moved from {HOST} to {CARD}." in said and "of 5 consumers moved as well" in said


@pytest.mark.parametrize(
    ("word", "near"),
    [("kvm-7", "kvm-07"), ("rendr-a", "render-a"), ("render", "render-a"), (MDEVS[0][:9], MDEVS[0])],
)
def test_what_is_not_known_has_near_matches(full: tuple[Sight, Path], word: str, near: str) -> None:
    done = plimsoll(full[1], "explain", word)
    assert done.returncode == ExitCode.FAILED
    line = one_line(done)
    assert f"is called {word!r}" in line and "Did you mean " in line and near in line


@pytest.mark.parametrize("word", ["", "   ", "x" * 5000, "../../etc", "%00", "\x1b[31m"])
def test_any_word_gets_an_answer(full: tuple[Sight, Path], word: str) -> None:
    done = plimsoll(full[1], "explain", word)
    assert done.returncode == ExitCode.FAILED
    assert "\x1b" not in one_line(done)


# top


def test_top_shows_the_host_once_where_there_is_no_terminal(full: tuple[Sight, Path]) -> None:
    _, path = full
    shown = told(path, "top")
    assert shown.startswith(f"{HOST}  ready since ") and "7 guests  7 claims, open  1 moving" in shown
    assert "VGPU" in shown and "6/8" in shown and "same_host_resize" in shown and "UNCLAIMED" in shown
    assert "unclaimed instance: " in shown and "\x1b" not in shown
    assert shown.count("web1 ") >= 2  # the move and the instance; its migration is no instance
    assert json.loads(told(path, "top", "-o", "json"))["pending"] == 0


def test_top_asks_nobody_but_the_agent(full: tuple[Sight, Path]) -> None:
    shown, path = full
    before = shown.world.wire.requests
    told(path, "top", "--once")
    assert shown.world.wire.requests == before


class Terminal:
    """A command on a terminal of 100 by 20, or of another size."""

    def __init__(self, path: Path, *words: str, columns: int = 100, lines: int = 20) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {**ENVIRONMENT, "PLIMSOLL_SOCKET": str(path), "TERM": "xterm"}
        self.process = subprocess.Popen(
            [*COMMAND, *words], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.keys = ours
        self.text = ""

    def read_until(self, wanted: str) -> None:
        end = time.monotonic() + 20
        while wanted not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self.keys], [], [], 0.2)[0]:
                self.text += os.read(self.keys, 65536).decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.keys)


def test_top_is_drawn_anew_and_leaves_the_terminal_as_it_was(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    terminal = Terminal(path, "top", "--interval", "0.5")
    try:
        terminal.read_until("0 claims")
        assert "\x1b[?1049h" in terminal.text and "\x1b[?25l" in terminal.text
        shown.world.operations.claim(asks("late", VCPU=1))
        terminal.read_until("1 claims")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("\x1b[?25h\x1b[?1049l")
        assert terminal.process.wait(10) == ExitCode.DONE
        frames = terminal.text.split("\x1b[H")[1:]
        assert all(each.count("\n") < 20 for each in frames), "a frame is no higher than the terminal"
        assert all(len(re.sub(r"\x1b\[[0-9;]*m|\x1b\[K", "", line)) <= 102 for line in frames[0].splitlines())
    finally:
        terminal.close()


def test_top_fits_a_narrow_terminal_and_ends_with_q(fresh: tuple[Sight, Path]) -> None:
    terminal = Terminal(fresh[1], "top", "--interval", "60", columns=24, lines=6)
    try:
        before = termios.tcgetattr(terminal.keys)
        terminal.read_until("lines more")
        (frame,) = terminal.text.split("\x1b[H")[1:]
        shown = re.sub(r"\x1b\[[0-9;]*[mKJ]", "", frame).splitlines()
        assert len(shown) == 6 and max(map(len, shown)) <= 24
        os.write(terminal.keys, b"x")
        terminal.read_until("more\x1b[K\x1b[J\x1b[H")  # any other key draws at once
        os.write(terminal.keys, b"q")
        terminal.read_until("\x1b[?25h\x1b[?1049l")
        assert terminal.process.wait(10) == ExitCode.DONE
        assert termios.tcgetattr(terminal.keys) == before
    finally:
        terminal.close()


def test_top_waits_for_an_agent_that_restarts(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "none", "top", "--interval", "0.5")
    try:
        terminal.read_until("no agent listens at")
        assert terminal.process.poll() is None
        with sight() as shown, serving(shown.world.operations, tmp_path / "none"):
            terminal.read_until("0 claims, open")
    finally:
        terminal.close()


def test_what_takes_its_time_is_told_at_a_terminal_and_gone_afterwards(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "hangs"))
        silent.listen()
        terminal = Terminal(tmp_path / "hangs", "--timeout", "1.4", "audit")
        try:
            terminal.read_until("waiting for the agent: GET /v1/audit ... 1 s")
            terminal.read_until("did not answer within 1.4 s")
            assert terminal.process.wait(10) == ExitCode.UNREACHABLE
            assert "\r\x1b[K" in terminal.text.rpartition("waiting for")[2]
        finally:
            terminal.close()


def test_lines_are_cut_to_the_screen() -> None:
    painted = "\x1b[31mred\x1b[0m and more"
    assert fit([painted], 5, 9) == ["\x1b[31mred\x1b[0m a"]
    assert fit([str(n) for n in range(5)], 80, 3) == ["0", "1", "... and 3 lines more"]
    assert fit([], 80, 3) == []


@pytest.mark.parametrize("interval", ["0", "0.1", "x", "nan", "inf", "4000", "-1"])
def test_an_interval_that_makes_no_sense(full: tuple[Sight, Path], interval: str) -> None:
    done = plimsoll(full[1], "top", "--once", "--interval", interval)
    assert done.returncode == ExitCode.USAGE and "seconds from 0.5 to 3600" in one_line(done)
