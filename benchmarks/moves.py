"""How long the steps of a move take, in milliseconds: `python benchmarks/moves.py`.

Two trackers on one embedded placement, each with a journal of its own; every step is durable before it
returns. The instance moves between the hosts and back, with dedicated CPUs and a virtual function.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kits.moves import INSTANCE, SMALL, World, asks

from agent.moves.states import MoveKind

ROUNDS = 300


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def spread(name: str, times: list[float]) -> None:
    times.sort()
    p99 = times[int(len(times) * 0.99)]
    print(f"{name:<10} p50 {statistics.median(times):7.2f}   p99 {p99:7.2f}   most {times[-1]:7.2f}")


def main() -> None:
    begins: list[float] = []
    confirms: list[float] = []
    reverts: list[float] = []
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name,
        World(Path(name)) as world,
    ):
        world.a.tracker.claim(asks(**SMALL))
        here, there = world.a, world.b
        for round_ in range(ROUNDS):
            migration = str(uuid4())
            tracker = there.tracker
            begins.append(timed(partial(tracker.begin_move, asks(**SMALL), MoveKind.COLD_MIGRATE, migration)))
            if round_ % 2:
                reverts.append(timed(partial(tracker.revert_move, migration)))
            else:
                confirms.append(timed(partial(tracker.confirm_move, migration)))
                here, there = there, here
            world.settle()
            world.check_settled()
            assert here.tracker.claim_of(INSTANCE)
    spread("begin", begins)
    spread("confirm", confirms)
    spread("revert", reverts)


if __name__ == "__main__":
    main()
