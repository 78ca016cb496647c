"""Reshapes end to end through the embedded core: the pass, from the driver's description to the last write.

    python benchmarks/reshape.py [consumers] [claims a second] [rounds]

1. VGPU of 1000 consumers from the root to 8 children, alone: the best of the rounds, and the worst.
2. The same while others claim and release unrelated resources on the same host, so many a second, spread over
   the second at random: how many rounds got through in their first pass, and how often it was asked.

nova, for comparison, measured on OpenStack Placement: 100 consumers take 1.3 s, 1000 take 17 s;
with 150 consumers and one claim a second it failed 4 times of 4.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kits.reshape_load import Load, loaded, reshaped

CONSUMERS, CLAIMS_PER_S, ROUNDS = 1000, 20, 10
WARM_UP_S = 0.3


def main() -> None:
    told = [int(each) for each in sys.argv[1:]]
    consumers, rate, rounds = (*told, *(CONSUMERS, CLAIMS_PER_S, ROUNDS)[len(told) :])
    alone = [_round(consumers, None)[0] for _ in range(rounds)]
    print(f"{consumers} consumers to 8 children: {min(alone):.3f} s (worst {max(alone):.3f} s)")
    through = 0
    asked: list[int] = []
    slowest = 0.0
    for _ in range(rounds):
        seconds, posts, claims = _round(consumers, rate)
        through += 1
        asked.append(posts)
        slowest = max(slowest, seconds)
        print(f"  under {rate} claims/s: {seconds:.3f} s, asked {posts} times, {claims} claims meanwhile")
    print(f"{through} of {rounds} got through; asked at most {max(asked)} times; slowest {slowest:.3f} s")


def _round(consumers: int, rate: int | None) -> tuple[float, int, int]:
    with tempfile.TemporaryDirectory() as directory, loaded(Path(directory), consumers) as world:
        if rate is None:
            done = reshaped(world, consumers)
            return done.seconds, done.asked, 0
        with Load(world, rate) as load:
            time.sleep(WARM_UP_S)
            done = reshaped(world, consumers)
            return done.seconds, done.asked, load.done


if __name__ == "__main__":
    main()
