"""The same with the real thing: SIGKILL at a boundary of a reshape, the embedded
placement and all (OpenStack Placement runs on, in `./dev test-remote`); then a new process.

A sample of what test_reshape_pass.py and test_reshape_undo.py do at every boundary. `PLIMSOLL_KILLS` names
other boundaries, as in "1,2,3", or "all": every boundary of each, which takes some minutes (--timeout=0).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from placements import usual_placement
from reshapekit import HOST, World, host, provider, uuid_of
from trackerkit import fast_directory, request

from agent.driver import Move

TESTS = Path(__file__).parents[1]
KILLS = os.environ.get("PLIMSOLL_KILLS", "")
BOUNDARIES_MAX = 120
OWN = uuid_of("own")
FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
THERE = (
    Move(HOST, {"VGPU": 4}, "gpu0", {}),
    Move(HOST, {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 1}}),
)
BACK = tuple(Move(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1"))
ON_HOST = {"a": {HOST: {"VGPU": 1}}, OWN: {HOST: {"VGPU": 2, "VCPU": 1}}}
ON_CARDS = {"a": {"gpu1": {"VGPU": 1}}, OWN: {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}}
CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from reshapekit import World
from test_reshape_kill import does, prepare

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
SAMPLE = {"there": (20, 26, 33, 34, 36), "back": (30, 54), "undo": (4, 33)}


def prepare(world: World, operation: str) -> None:
    """A consumer of a scheduler's and one of the agent's own hold VGPU on the root, or on cards already."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.tracker.claim(request(OWN, VGPU=2, VCPU=1))
    if operation != "there":
        does(world, "there")


def does(world: World, operation: str) -> None:
    report = world.see(*FLAT, moves=BACK) if operation == "back" else world.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    receipts = world.journal.reshapes(done=True)
    if operation == "undo" and len(receipts) == 1:
        world.ask(*receipts)


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
            arguments = [directory, operation, str(number), str(TESTS), str(TESTS / "functional")]
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
