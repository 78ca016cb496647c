"""The same with the real thing: SIGKILL at a boundary of a reshape, the embedded
placement and all (OpenStack Placement runs on, in `./dev test-remote`); then a new process.

A sample of what test_reshape_runner.py does at every boundary. `PLIMSOLL_KILLS` names other boundaries, as
in "1,2,3", or "all": every boundary of each, which takes minutes (--timeout=0).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from kits.paths import TESTS
from kits.placements import usual_placement
from kits.reshape import World, all_or_nothing, does, done_once
from kits.tracker import fast_directory

KILLS = os.environ.get("PLIMSOLL_KILLS", "")
BOUNDARIES_MAX = 120
SAMPLE = {"there": (20, 26, 33, 34, 36), "back": (30, 54), "undo": (4, 33)}
CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from kits.reshape import World, does, prepare

left = int(sys.argv[3])

def kill(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

world = World(Path(sys.argv[1]))
prepare(world, sys.argv[2])
with world.taps(kill):
    does(world, sys.argv[2])
world.close()
"""


def cases() -> Iterator[object]:
    for operation, sample in SAMPLE.items():
        if KILLS == "all":
            yield pytest.param(operation, range(1, BOUNDARIES_MAX), id=operation)
        else:
            for number in map(int, KILLS.split(",")) if KILLS else sample:
                yield pytest.param(operation, [number], id=f"{operation}-{number}")


@pytest.mark.parametrize(("operation", "numbers"), list(cases()))
def test_sigkill(operation: str, numbers: Iterable[int]) -> None:
    """Scenario 91: whatever was on its way is done exactly once."""
    for number in numbers:
        with fast_directory() as directory:
            arguments = [directory, operation, str(number), str(TESTS)]
            child = subprocess.run(
                [sys.executable, "-c", CHILD, *arguments],
                cwd=TESTS.parent,
                env={**os.environ, **usual_placement(Path(directory)).environment()},
                timeout=60,
                check=False,
            )
            assert child.returncode in (-signal.SIGKILL, 0)
            with World(Path(directory)) as world:
                all_or_nothing(world)
                does(world, operation)
                done_once(world, operation)
            if child.returncode == 0:
                return
