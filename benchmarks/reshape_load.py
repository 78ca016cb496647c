"""A reshape while claims are made on the same root all the while.

    python benchmarks/reshape_load.py [consumers] [rounds]

VGPU of 100 consumers goes from the root to 8 cards, while VCPU is claimed on and released from the root 2, 4
and 10 times a second, at random moments: by the agent itself, and by another client. It runs on a real
OpenStack Placement over SQLite, and on the embedded core with 20 ms more for each request. For each rate: how
many rounds got through in their first pass, the time of the median and of the slowest pass, how often the
request was sent, and the slowest claim meanwhile.
"""

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kits.placements import Embedded, OpenStack, Placement
from kits.reshape_load import Delayed, Load, loaded, reshaped

CONSUMERS, ROUNDS = 100, 10
RATES = (2, 4, 10)
DELAY_S = 0.02
WARM_UP_S = 0.5


def main() -> None:
    told = [int(each) for each in sys.argv[1:]]
    consumers, rounds = (*told, *(CONSUMERS, ROUNDS)[len(told) :])
    with tempfile.TemporaryDirectory() as directory:
        remote = OpenStack.on_sqlite(Path(directory))
        try:
            _measure("OpenStack Placement", remote, consumers, rounds)
        finally:
            remote.down()
        embedded = Delayed(Embedded(Path(directory)), DELAY_S)
        _measure(f"embedded, {1000 * DELAY_S:g} ms a request", embedded, consumers, rounds)


def _measure(name: str, placement: Placement, consumers: int, rounds: int) -> None:
    for own in (True, False):
        for rate in RATES:
            measured = [_round(placement, consumers, rate, own) for _ in range(rounds)]
            seconds, posts, slowest = zip(*measured, strict=True)
            print(
                f"{name}, {rate} claims/s {'of its own' if own else 'by another client'}: "
                f"{sum(sent > 0 for sent in posts)} of {rounds}, median {statistics.median(seconds):.2f} s, "
                f"slowest {max(seconds):.2f} s, sent at most {max(posts)} times, slowest claim "
                f"{max(slowest):.2f} s",
                flush=True,
            )


def _round(placement: Placement, consumers: int, rate: int, own: bool) -> tuple[float, int, float]:
    """(seconds, how often the request was sent, 0 if it did not get through; seconds of the slowest claim)"""
    with (
        tempfile.TemporaryDirectory() as directory,
        loaded(Path(directory), consumers, placement, own=own) as world,
        Load(world, rate, own=own) as load,
    ):
        time.sleep(WARM_UP_S)
        try:
            done = reshaped(world, consumers)
        except AssertionError as error:
            print(f"  did not get through: {error}")
            return math.inf, 0, load.slowest_s
        return done.seconds, done.asked, load.slowest_s


if __name__ == "__main__":
    main()
