"""The same with the real thing: SIGKILL at a boundary of a step, the embedded placement and all
(OpenStack Placement runs on, in `./dev test-remote`); then a new process.

A sample of what test_moves_crash.py does at every boundary. `PLIMSOLL_KILLS` names other boundaries, as in
"1,2,3", or "all": every boundary of every operation, which takes a quarter of an hour (--timeout=0).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from movekit import World
from moveoperations import AT_A, OPERATIONS, Operation, again, unclaimed
from placements import usual_placement
from trackerkit import fast_directory

TESTS = Path(__file__).parents[1]
KILLS = os.environ.get("PLIMSOLL_KILLS", "4,7,10")
BOUNDARIES_MAX = 120
SAMPLE = (
    "build",
    "release",
    "heal an unclaimed instance",
    "begin cold_migrate",
    "confirm live_migrate",
    "revert evacuate",
    "release in resize",
    "source links",
    "begin same_host_resize",
    "revert same_host_resize",
)
CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from movekit import World
from moveoperations import OPERATIONS

operation = next(each for each in OPERATIONS if each.name == sys.argv[2])
left = int(sys.argv[3])

def kill(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

world = World(Path(sys.argv[1]))
operation.prepare(world)
with world.taps(getattr(world, operation.agent), kill):
    operation.does(world)
world.close()
"""


def cases() -> Iterator[object]:
    if KILLS == "all":
        yield from (pytest.param(each.name, range(1, BOUNDARIES_MAX), id=each.name) for each in OPERATIONS)
        return
    for number in KILLS.split(","):
        for name in SAMPLE:
            yield pytest.param(name, [int(number)], id=f"{name}-{number}")


@pytest.mark.parametrize(("name", "numbers"), list(cases()))
def test_sigkill(name: str, numbers: Iterable[int]) -> None:
    """Scenarios 38, 56, 71."""
    operation = next(each for each in OPERATIONS if each.name == name)
    for number in numbers:
        with fast_directory() as directory:
            arguments = [directory, name, str(number), str(TESTS), str(TESTS / "functional")]
            child = subprocess.run(
                [sys.executable, "-c", CHILD, *arguments],
                cwd=TESTS.parent,
                env={**os.environ, **usual_placement(Path(directory)).environment()},
                timeout=60,
                check=False,
            )
            assert child.returncode in (-signal.SIGKILL, 0)
            with World(Path(directory)) as world:
                _back(world, operation)
            if child.returncode == 0:
                return


def _back(world: World, operation: Operation) -> None:
    for agent in world.agents:
        if operation.prepare is unclaimed:
            unclaimed(world)  # what a driver sees is there after a death, too
        agent.come_back()
    world.settle()
    if operation.before is not None:
        assert world.placed_all() in (operation.before, operation.after, operation.midway)
        world.check_settled()
    if world.placed_all() == AT_A:
        assert world.b.tracker.claims() == {}
    again(world, operation)
    assert world.placed_all() == operation.after
    world.check_settled()
