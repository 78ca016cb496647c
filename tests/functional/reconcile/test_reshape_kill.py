"""The same with the real thing: SIGKILL at a boundary of a reshape, the embedded
placement and all (OpenStack Placement runs on, in `./dev test-remote`); then a new process.

A sample of what test_reshape_runner.py and test_undone_reshapes.py do at every boundary. `PLIMSOLL_KILLS`
names other boundaries, as in "1,2,3", or "all": every boundary of each, which takes minutes (--timeout=0).
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
from kits.reshape import World
from kits.reshape_operations import ON_CARDS, ON_HOST, OWN, SAMPLE, does
from kits.tracker import fast_directory

KILLS = os.environ.get("PLIMSOLL_KILLS", "")
BOUNDARIES_MAX = 120
CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from kits.reshape import World
from kits.reshape_operations import does, prepare

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
                all_or_nothing(world, operation)
                does(world, operation)
                done_once(world, operation)
            if child.returncode == 0:
                return


def placed(world: World) -> dict[str, dict[str, dict[str, int]]]:
    return {who: world.placed(who) for who in ("a", OWN)}


def all_or_nothing(world: World, operation: str) -> None:
    assert placed(world) in (ON_HOST, ON_CARDS), operation


def done_once(world: World, operation: str) -> None:
    there = operation == "there"
    assert placed(world) == (ON_CARDS if there else ON_HOST)
    assert sum(each.get("VGPU", 0) for each in world.totals().values()) == 8
    assert all(each.reserved == 0 for p in world.tree() for each in p.inventories.values())
    assert not world.journal.reshapes(done=False)
    assert len(world.journal.reshapes(done=True)) == (1 if there else 2)
    world.check()
    calls = len(world.tap.calls)
    assert world.again().operations == 0
    assert not any(call.startswith(("P", "D")) for call in world.tap.calls[calls:]), (
        "a second time is nothing"
    )
