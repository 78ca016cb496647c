"""A real full disk, on which something else takes every block that becomes free."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.paths import TESTS
from kits.placements import Embedded
from kits.tracker import Kit, provider, request

from agent.errors import PlimsollError

HOST = (provider("host", VCPU=64, MEMORY_MB=65536),)
SIZE_MIB = 16
BLOCK = bytes(4096)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of SIZE_MIB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class Eater:
    """Writes to the disk, without a pause, whatever it takes."""

    def __init__(self, disk: Path) -> None:
        self._file = os.open(disk / "others", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._path = disk / "others"
        self._ends = threading.Event()
        self.full = threading.Event()
        self._thread = threading.Thread(target=self._eat, daemon=True)

    def __enter__(self) -> Eater:
        self._thread.start()
        assert self.full.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        os.close(self._file)
        self._path.unlink()

    def _eat(self) -> None:
        while not self._ends.is_set():
            try:
                os.write(self._file, BLOCK)
            except OSError:
                self.full.set()
                self._ends.wait(0.0002)


MANY = (provider("host", VCPU=640, MEMORY_MB=655360),)

KILLED = """
import contextlib, os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from kits.placements import Embedded
from kits.tracker import Kit, request
from functional.daemon.test_full_disk import MANY, claim_until_refused

directory = Path(sys.argv[1])
with Kit(directory, MANY, Embedded(directory)) as kit:
    consumers = [kit.tracker.claim(request(VCPU=1)).claim.consumer for _ in range(60)]
    print("claimed", flush=True)
    sys.stdin.readline()
    claim_until_refused(kit)
    for consumer in consumers[:10]:
        kit.tracker.release(consumer)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def claim_until_refused(kit: Kit) -> list[str]:
    """Claim on the full disk what the database files have space for; returns the consumers."""
    consumers: list[str] = []
    with contextlib.suppress(PlimsollError):
        while len(consumers) < 300:
            consumers.append(kit.tracker.claim(request(VCPU=1)).claim.consumer)
    assert len(consumers) < 300, "the files have no space for so many"
    return consumers


@pytest.fixture
def tries_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent tries to restore its reserves at each write, as it does in the course of many seconds."""
    monkeypatch.setattr("agent.durable.sqlite_file.BALLAST_RETRY_S", 0.0)


@pytest.mark.usefixtures("tries_at_each_write")
def test_releases_go_through_for_as_long_as_the_disk_is_full(disk: Path) -> None:
    """Also while the agent tries again and again to restore its reserves, and cannot."""
    with Kit(disk, MANY, Embedded(disk)) as kit:
        consumers = [kit.tracker.claim(request(VCPU=1)).claim.consumer for _ in range(200)]
        with Eater(disk):
            consumers += claim_until_refused(kit)
            for consumer in consumers:
                kit.tracker.release(consumer)
            assert kit.placed_all() == {} and kit.tracker.claims() == {} == kit.journal.claims()
            with pytest.raises(PlimsollError):
                kit.tracker.claim(request(VCPU=1))
        kit.tracker.claim(request(VCPU=1))
        kit.check()


@pytest.mark.usefixtures("tries_at_each_write")
def test_an_agent_that_was_killed_on_a_full_disk_releases_after_its_start(disk: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(disk), str(TESTS), str(TESTS.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "claimed\n"
        with Eater(disk):
            process.communicate("the disk is full\n", timeout=60)
            assert process.returncode == -signal.SIGKILL
            with Kit.after_kill(disk, MANY, Embedded(disk)) as kit:
                kit.refresh()
                kit.tracker.admission.open()
                kit.tracker.recover([])
                left = list(kit.tracker.claims())
                assert len(left) >= 50
                for consumer in left:
                    kit.tracker.release(consumer)
                assert kit.placed_all() == {} and kit.journal.claims() == {}


def test_releases_go_through_reads_are_answered_and_a_closed_agent_starts(disk: Path) -> None:
    with Kit(disk, HOST, Embedded(disk)) as kit:
        consumers = [kit.tracker.claim(request(VCPU=1, MEMORY_MB=512)).claim.consumer for _ in range(40)]
        with Eater(disk):
            assert os.statvfs(disk).f_bavail == 0
            refused = 0
            for _ in range(3):
                with contextlib.suppress(PlimsollError):
                    kit.tracker.claim(request(VCPU=1, MEMORY_MB=512))
                    refused -= 1
                refused += 1
            assert refused == 3, "claims need space that there is not"
            for consumer in consumers[:20]:
                kit.tracker.release(consumer)
                assert kit.placed(consumer) == {}
            assert len(kit.placed_all()) == 20 and kit.journal.history()
            kit.restart()
            kit.refresh()
            kit.tracker.admission.open()
            kit.tracker.recover([])
            for consumer in consumers[20:]:
                kit.tracker.release(consumer)
            assert kit.placed_all() == {} and kit.tracker.claims() == {}
            kit.restart()
        kit.refresh()
        kit.tracker.admission.open()
        kit.journal._file._ballast_tried_at = 0.0
        kit.tap.inner._core._store.home._ballast_tried_at = 0.0  # type: ignore[attr-defined]
        kit.tracker.claim(request(VCPU=1, MEMORY_MB=512))
        kit.check()
