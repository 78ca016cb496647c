"""`./dev mutants [ROOM]`: change the code a little, many times, and print which changes no test notices.

For each mutant the tests run that execute its line, the stories of the simulator among them: those of its
module first, then those of its room, then the quickest, until one fails or a minute of them has passed. Which
tests these are is recorded by one run of all of them, once for each state of the checkout. A mutant whose run
does not end within its bound counts as noticed, and is told apart: an endless loop and a busy machine look
the same. mutmut and cosmic-ray have one command of tests for all mutants; here most are judged within some
seconds.

What is told goes into a file, one line a mutant: the same command again goes on behind them. Changes that
make no difference are in equivalent.yaml, each with its reason; they count neither way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from multiprocessing import Pool, current_process
from pathlib import Path
from typing import cast

import yaml
from kits.paths import CHECKOUT

from mutants.covered import RECORD_VARIABLE, Covered, read
from mutants.draw import ROOMS, Mutant, draw_mutants, room_folder

GOAL = 0.9
BOUND_S = 240
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
CHOSEN_S = 60.0
"""How long the tests of one mutant take together, on unchanged code."""
LATE = "late: "
CHOICE = ("-m", "not slow and not libvirtd and not remote", "-k", "not openstack")

_copy: Path
_covered: Covered


def judge(mutant: Mutant) -> tuple[Mutant, str]:
    """(the mutant, what noticed it, or "" where nothing did); LATE begins what noticed it by time alone."""
    file = _copy / mutant.module
    source = file.read_bytes()
    lines = range(mutant.felt_at[0], mutant.felt_at[1] + 1)
    tests = _covered.nearest(mutant.module, lines, CHOSEN_S)
    while tests:
        _write(file, mutant.applied(source))
        try:
            failed = _failed(tests)
        finally:
            _write(file, source)
        if failed is None:
            break
        test = failed.removeprefix(LATE)
        if _green(test):
            return mutant, failed
        tests = tests[tests.index(test) + 1 :]
    return mutant, ""


@cache
def _green(test: str) -> bool:
    """Whether it passes on unchanged code: what fails anyway notices nothing."""
    green = _failed((test,)) is None
    if not green:
        print(f"This test fails on unchanged code, and judges no mutant: {test}", flush=True)
    return green


def _failed(tests: Sequence[str]) -> str | None:
    """The first of the tests that fails, behind LATE if too slow; the first of all if none is named."""
    chosen = _copy / ".chosen"
    chosen.write_text("\n".join(tests))
    command = (
        *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60"),
        *("--no-header", "--tb=no", f"@{chosen}"),
    )
    environment = os.environ | {
        "PYTHONPATH": f"{_copy}:{_copy / 'tests'}",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(_copy / ".h"),
        "COLUMNS": "999",  # the reason stands behind the test's name
    }
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command,
            cwd=_copy,
            env=environment,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as run,
    ):
        try:
            if run.wait(BOUND_S) == 0:
                return None
        except subprocess.TimeoutExpired:
            return LATE + tests[0]
        finally:
            _end(run)
        output.seek(0)
        told = re.search(r"^(?:FAILED|ERROR) (.*)$", output.read().decode(), re.MULTILINE)
        line = told[1] if told is not None else tests[0]
        name = max((test for test in tests if line.startswith(test)), key=len, default=tests[0])
        return LATE + name if "Timeout (>" in line.removeprefix(name) else name


def record(file: Path) -> Covered:
    """Which tests execute which lines of this checkout: as the file tells it, or by a run of all tests."""
    state = hashlib.sha256()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True).stdout
    for name in names.decode().split("\0"):
        if name.endswith(".py") and (CHECKOUT / name).is_file():
            state.update(name.encode() + b"\0" + (CHECKOUT / name).read_bytes())
    if file.exists():
        told, covered = pickle.loads(file.read_bytes())
        if told == state.digest():
            return cast(Covered, covered)
    print("All tests run once, to learn which lines each of them executes.", flush=True)
    with tempfile.TemporaryDirectory(prefix="plimsoll-mutants-") as directory:
        run = subprocess.run(
            [sys.executable, *("-m", "pytest", "-q", "-n", "auto", "-p", "mutants.covered", *CHOICE)],
            cwd=CHECKOUT,
            env=os.environ | {RECORD_VARIABLE: directory},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if run.returncode not in (0, 1):  # 1: a test that fails judges no mutant, and is told then
            raise subprocess.CalledProcessError(run.returncode, run.args)
        covered = read(Path(directory))
    file.write_bytes(pickle.dumps((state.digest(), covered)))
    return covered


def _write(file: Path, source: bytes) -> None:
    """Python takes code of the same size and second for what it compiled: each change gets another second."""
    second = int(file.stat().st_mtime) + 1
    file.write_bytes(source)
    os.utime(file, (second, second))


def _end(run: subprocess.Popen[bytes]) -> None:
    """Also what the tests have started."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def _make_copy(directory: str, covered: Covered) -> None:
    """Each process changes a copy of the checkout of its own."""
    global _copy, _covered
    _covered = covered
    _copy = Path(directory, current_process().name)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True).stdout
    for name in names.decode().split("\0")[:-1]:
        if (CHECKOUT / name).is_file():
            (_copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, _copy / name)


def equivalent() -> dict[tuple[str, str, str, str], str]:
    """{(module, text of the line, before, after): reason} of the changes that make no difference."""
    rows = yaml.safe_load(EQUIVALENT.read_text()) or []
    return {(row["module"], row["within"], row["before"], row["after"]): row["why"] for row in rows}


def main() -> int:
    """Returns 1 where a room is below the goal."""
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__.split("\n")[0])
    parser.add_argument("room", nargs="?", help=f"one of {', '.join(ROOMS)}, or another folder; all of these")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which mutants are drawn (1)")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many, over all rooms (300)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--file", type=Path, default=Path(".mutants.jsonl"), help="what was told so far")
    parser.add_argument(
        "--record", type=Path, default=Path(".mutants.record"), help="which tests execute a line"
    )
    arguments = parser.parse_args()
    if not hasattr(sys, "monitoring"):
        parser.error("Python 3.12 or newer is needed: PYTHON=/path/to/python3 ./dev mutants")
    rooms = [arguments.room] if arguments.room else list(ROOMS)
    for room in rooms:
        if not room_folder(room).is_dir():
            parser.error(f"there is no folder {room_folder(room)}")
    told = {}
    if arguments.file.exists():
        told = {(entry["mutant"]): entry["noticed"] for entry in map(json.loads, arguments.file.open())}
    same = equivalent()
    room_of: dict[Mutant, str] = {}
    for number, room in enumerate(rooms):
        share = arguments.count // len(rooms) + (number < arguments.count % len(rooms))
        room_of |= dict.fromkeys(draw_mutants(room, arguments.seed, share), room)
    counted = {
        mutant: room
        for mutant, room in room_of.items()
        if (mutant.module, mutant.within, mutant.before, mutant.after) not in same
    }
    left = [mutant for mutant in counted if str(mutant) not in told]
    covered = record(arguments.record)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-mutants-") as directory,
        arguments.file.open("a") as file,
        Pool(arguments.jobs, _make_copy, [directory, covered]) as pool,
    ):
        for mutant, noticed in pool.imap_unordered(judge, left):
            told[str(mutant)] = noticed
            file.write(json.dumps({"mutant": str(mutant), "noticed": noticed, **asdict(mutant)}) + "\n")
            file.flush()
            if not noticed:
                print(f"survived: {mutant}", flush=True)
    print(f"\n{len(left)} mutants in {time.monotonic() - began:.0f} s")
    low = 0
    for room in rooms:
        of_room = [told[str(mutant)] for mutant in counted if counted[mutant] == room]
        killed = sum(map(bool, of_room))
        late = sum(test.startswith(LATE) for test in of_room)
        rate = killed / max(1, len(of_room))
        low += rate < GOAL
        print(
            f"{room:26} {killed:4} of {len(of_room):4} noticed  {rate:6.1%}; {late} of them by time alone; "
            f"{sum(each == room for each in room_of.values()) - len(of_room)} make no difference"
        )
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main())
