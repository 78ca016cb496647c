"""The same with the real thing: SIGKILL at a boundary of a step, the embedded placement and all
(OpenStack Placement runs on, in `./dev test-remote`); then a new process.

A sample of what test_moves_crash.py does at every boundary, the ways back in turn. `PLIMSOLL_KILLS` names
other boundaries, as in "1,2,3", or "all": every boundary of every operation, and back each way, which takes
half an hour (--timeout=0).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import pytest
from kits.come_back import HOW, come_back
from kits.examples import THOROUGH
from kits.move_operations import AT_A, OPERATIONS, Operation, again
from kits.moves import World
from kits.paths import TESTS
from kits.placements import usual_placement
from kits.tracker import fast_directory

KILLS = os.environ.get("PLIMSOLL_KILLS", "4,7,10" if THOROUGH else "4,9")
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
import json, os, signal, sys, traceback
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from kits.moves import World
from kits.examples import THOROUGH
from kits.move_operations import OPERATIONS

operation = next(each for each in OPERATIONS if each.name == sys.argv[1])

def die_at(left, directory):
    def kill(_):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    world = World(Path(directory))
    operation.prepare(world)
    with world.taps(getattr(world, operation.agent), kill):
        operation.does(world)
    world.close()

for line in sys.stdin:
    number, directory, environment = json.loads(line)
    if os.fork() == 0:
        try:
            os.environ.update(environment)
            die_at(number, directory)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


class Mortal:
    """A process that has an operation done by its children, each of which dies at the boundary it is told."""

    def __init__(self, operation: Operation) -> None:
        self._command = [sys.executable, "-c", CHILD, operation.name, str(TESTS)]

    def __enter__(self) -> Mortal:
        self._process = subprocess.Popen(
            self._command,
            cwd=TESTS.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def dies(self, directory: str, number: int) -> bool:
        """False: there is no boundary with that number."""
        # The real one is empty for who is there for the first time, and has another address then.
        environment = dict(usual_placement(Path(directory)).environment())
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([number, directory, environment]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (-signal.SIGKILL, 0)
        return code != 0


def cases() -> Iterator[object]:
    for operation in OPERATIONS:
        if KILLS == "all":
            for how in HOW:
                yield pytest.param(operation, range(1, BOUNDARIES_MAX), [how], id=f"{operation.name}-{how}")
        elif operation.name in SAMPLE:
            yield pytest.param(operation, list(map(int, KILLS.split(","))), HOW, id=operation.name)


@pytest.mark.parametrize(("operation", "numbers", "ways"), list(cases()))
def test_sigkill(operation: Operation, numbers: Iterable[int], ways: Sequence[str]) -> None:
    """Scenarios 38, 56, 71."""
    with Mortal(operation) as mortal:
        for number, how in zip(numbers, cycle(ways), strict=False):
            with fast_directory() as directory:
                died = mortal.dies(directory, number)
                with World(Path(directory)) as world:
                    _back(world, operation, how)
            if not died:
                return


def _back(world: World, operation: Operation, how: str) -> None:
    """Both come back, as both were in the process that died."""
    operation.guests(world)
    first = getattr(world, operation.agent)
    for agent in (first, *(each for each in world.agents if each is not first)):
        come_back(world, agent, how)
    if operation.before is not None:
        assert world.placed_all() in (operation.before, operation.after, operation.midway)
        world.check_settled()
    if world.placed_all() == AT_A:
        assert world.b.tracker.claims() == {}
    again(world, operation)
    assert world.placed_all() == operation.after
    world.check_settled()
