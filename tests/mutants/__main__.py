"""`./dev mutants [ROOM]`: change the code a little, many times, and print which changes no test notices.

For each mutant the tests run that belong to its module, then those of its room, then the stories of the
simulator, until one of them fails. A mutant whose run does not end within its bound counts as noticed.
mutmut and cosmic-ray have one command of tests for all mutants; here the nearest tests come first, so most
mutants are judged within two seconds.

What is told goes into a file, one line a mutant: the same command again goes on behind them. Changes that
make no difference are in equivalent.yaml, each with its reason; they count neither way.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from multiprocessing import Pool, current_process
from pathlib import Path

import yaml
from kits.paths import CHECKOUT

from mutants.draw import ROOMS, Mutant, draw_mutants, room_folder

GOAL = 0.9
BOUND_S = 240
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
STORIES = ("tests/simulation/test_stories.py",)

_copy: Path


def tests_of(module: str) -> list[tuple[str, ...]]:
    """The paths of tests that may notice a change of this module: the nearest first.

    Nearest are the files named as the module, and those with a section about it ("# agent.ROOM.MODULE: ...").
    """
    inside = Path(module).relative_to("agent") if module.startswith("agent/") else Path(module)
    section = f"\n# {module.removesuffix('.py').replace('/', '.')}: "
    own = [
        str(path.relative_to(CHECKOUT))
        for kind in ("unit", "functional")
        for path in sorted((CHECKOUT / "tests" / kind / inside.parts[0]).rglob("test_*.py"))
        if (
            path.stem.startswith(f"test_{inside.stem}")
            and path.parts[-len(inside.parts) : -1] == inside.parts[:-1]
        )
        or section in path.read_text()
    ]
    rooms = [f"tests/unit/{inside.parent}", f"tests/functional/{inside.parts[0]}"]
    there = [(room,) for room in rooms if (CHECKOUT / room).is_dir()]
    return [tests for tests in (tuple(own), *there, STORIES) if tests]


def judge(mutant: Mutant) -> tuple[Mutant, str]:
    """(the mutant, what noticed it, or "" where nothing did)."""
    file = _copy / mutant.module
    source = file.read_bytes()
    for tests in tests_of(mutant.module):
        _write(file, mutant.applied(source))
        try:
            failed = _fails(tests)
        finally:
            _write(file, source)
        if failed and _green(tests):
            return mutant, tests[0]
    return mutant, ""


@cache
def _green(tests: tuple[str, ...]) -> bool:
    """Whether these tests pass on unchanged code: what fails anyway notices nothing."""
    green = not _fails(tests)
    if not green:
        print(f"These tests fail on unchanged code, and judge no mutant: {' '.join(tests)}", flush=True)
    return green


def _write(file: Path, source: bytes) -> None:
    """Python takes code of the same size and second for what it compiled: each change gets another second."""
    second = int(file.stat().st_mtime) + 1
    file.write_bytes(source)
    os.utime(file, (second, second))


def _fails(tests: tuple[str, ...]) -> bool:
    command = [
        *(
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout=60",
            "--no-header",
        ),
        *("-m", "not slow and not libvirtd and not remote", "-k", "not openstack", *tests),
    ]
    environment = os.environ | {
        "PYTHONPATH": f"{_copy}:{_copy / 'tests'}",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(_copy / ".h"),
    }
    with subprocess.Popen(
        command,
        cwd=_copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        try:
            return run.wait(BOUND_S) not in (0, 5)  # 5: none of these tests was chosen
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end(run)


def _end(run: subprocess.Popen[bytes]) -> None:
    """Also what the tests have started."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def _make_copy(directory: str) -> None:
    """Each process changes a copy of the checkout of its own."""
    global _copy
    _copy = Path(directory, current_process().name)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True).stdout
    for name in names.decode().split("\0")[:-1]:
        if (CHECKOUT / name).is_file():
            (_copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, _copy / name)


def equivalent() -> dict[tuple[str, str, str], str]:
    """{(module, before, after): reason} of the changes that make no difference."""
    rows = yaml.safe_load(EQUIVALENT.read_text()) or []
    return {(row["module"], row["before"], row["after"]): row["why"] for row in rows}


def main() -> int:
    """Returns 1 where a room is below the goal."""
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__.split("\n")[0])
    parser.add_argument("room", nargs="?", help=f"one of {', '.join(ROOMS)}, or another folder; all of these")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="which mutants are drawn (1)")
    parser.add_argument("--count", type=int, default=300, metavar="N", help="how many, over all rooms (300)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--file", type=Path, default=Path(".mutants.jsonl"), help="what was told so far")
    arguments = parser.parse_args()
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
    left = [
        mutant
        for mutant in room_of
        if str(mutant) not in told and (mutant.module, mutant.before, mutant.after) not in same
    ]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-mutants-") as directory,
        arguments.file.open("a") as file,
        Pool(arguments.jobs, _make_copy, [directory]) as pool,
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
        judged = Counter(
            bool(told[str(mutant)]) for mutant in room_of if room_of[mutant] == room and str(mutant) in told
        )
        rate = judged[True] / max(1, judged.total())
        low += rate < GOAL
        print(f"{room:26} {judged[True]:4} of {judged.total():4} noticed  {rate:6.1%}")
    return int(low > 0)


if __name__ == "__main__":
    sys.exit(main())
