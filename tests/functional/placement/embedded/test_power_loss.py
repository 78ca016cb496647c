"""Power loss: what was written but not yet synced may be on disk, or not, or in part.

embedded_crash_program.py runs once under strace, which records every write, truncation and sync. From the
record the files are built as a power loss at any moment may leave them: all that was synced, and of the
rest any part, down to single sectors. The memory-mapped `-shm` is not among them: SQLite builds it anew.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kits.embedded_crash_points import PROGRAM, TOP, content, expected

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")

SECTOR = 512
WRITE = re.compile(r'pwrite64\(\d+<(.+?)>, "((?:\\x..)*)", \d+, (\d+)\)')
TRUNCATE = re.compile(r"ftruncate\(\d+<(.+?)>, (\d+)\)")
SYNC = re.compile(r"f(?:data)?sync\(\d+<(.+?)>\)")
UNLINK = re.compile(r'unlink\("((?:\\x..)*)"\)')
ANSWER = re.compile(r"write\(1<")
UNFINISHED = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")


class Change(NamedTuple):
    """Bytes at an offset of a file; None cuts the file off there."""

    offset: int
    data: bytes | None

    def apply(self, file: bytearray) -> None:
        if self.data is None:
            del file[self.offset :]
            file.extend(bytes(self.offset - len(file)))
        else:
            file.extend(bytes(max(0, self.offset - len(file))))
            file[self.offset : self.offset + len(self.data)] = self.data


class Disk:
    """The files as synced, and what was written to each since its last sync."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.pending: dict[str, list[Change]] = {}

    def write(self, name: str, change: Change) -> None:
        self.synced.setdefault(name, bytearray())
        self.pending.setdefault(name, []).append(change)

    def sync(self, name: str) -> None:
        for change in self.pending.pop(name, []):
            change.apply(self.synced.setdefault(name, bytearray()))

    def unlink(self, name: str) -> None:
        self.synced.pop(name, None)
        self.pending.pop(name, None)

    def lose_power(self, folder: Path, chance: random.Random | None) -> None:
        """Leave in `folder` what is synced, and of the pending writes the sectors that chance picks."""
        folder.mkdir()
        for name, synced in self.synced.items():
            file = bytearray(synced)
            for change in self.pending.get(name, []) if chance else []:
                for sector in _sectors(change):
                    if chance and chance.random() < 0.5:
                        sector.apply(file)
            (folder / name).write_bytes(bytes(file))


def _sectors(change: Change) -> Iterator[Change]:
    if change.data is None:
        yield change
        return
    for start in range(0, len(change.data), SECTOR):
        yield Change(change.offset + start, change.data[start : start + SECTOR])


def record(state_dir: Path, log: Path) -> Iterator[tuple[Disk, int]]:
    """The disk after every system call, and how many steps had been answered by then."""
    calls = "trace=pwrite64,ftruncate,fdatasync,fsync,unlink,write"
    strace = ["strace", "-f", "-y", "-xx", "-s", str(1 << 20), "-o", str(log), "-e", calls]
    program = [sys.executable, "-P", str(PROGRAM), "write", str(state_dir)]
    subprocess.run(
        [*strace, *program], check=True, capture_output=True, timeout=60, env={"PYTHONPATH": str(TOP)}
    )
    disk, answered = Disk(), 0
    for line in whole_calls(log.read_text().splitlines()):
        if found := WRITE.search(line):
            disk.write(_name(found[1]), Change(int(found[3]), _bytes(found[2])))
        elif found := TRUNCATE.search(line):
            disk.write(_name(found[1]), Change(int(found[2]), None))
        elif found := SYNC.search(line):
            disk.sync(_name(found[1]))
        elif found := UNLINK.search(line):
            disk.unlink(_name(found[1]))
        elif ANSWER.search(line):
            answered += 1
        else:
            continue
        yield disk, answered


def whole_calls(lines: Iterable[str]) -> Iterator[str]:
    """The calls in the order in which they returned: strace cuts one in two where another comes between."""
    begun: dict[str, str] = {}
    for line in lines:
        if cut := UNFINISHED.fullmatch(line):
            begun[cut[1]] = cut[2]
        elif rest := RESUMED.fullmatch(line):
            yield begun.pop(rest[1], "") + rest[2]
        else:
            yield line


def test_a_call_that_strace_cut_in_two_is_one() -> None:
    cut = ["7  fsync(3</a> <unfinished ...>", "8  write(1<p>, x, 1) = 1", "7  <... fsync resumed>) = 0"]
    assert list(whole_calls(cut)) == ["8  write(1<p>, x, 1) = 1", "fsync(3</a>) = 0"]


def _name(path: str) -> str:
    return Path(_bytes(path).decode()).name


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(tmp_path: Path, seed: int | None) -> None:
    chance = None if seed is None else random.Random(seed)
    contents = expected()
    moments = 0
    for number, (disk, answered) in enumerate(record(tmp_path / "state", tmp_path / "log")):
        if seed is not None and number % 3 != seed:
            continue
        folder = tmp_path / f"moment{number}"
        disk.lose_power(folder, chance)
        left = content(folder)
        assert left in contents[answered : answered + 2], f"at call {number}, {answered} steps answered"
        shutil.rmtree(folder)
        moments += 1
    assert moments > len(contents)
