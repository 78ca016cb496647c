"""Compare the embedded core with OpenStack Placement for as long as it takes: python -m tests.differential.

Exits with 0 when nothing differed but what is meant to, with 1 when something did (shown shrunk, with the
program that shows it), and prints what was compared.
"""

from __future__ import annotations

import argparse
import time
import traceback
import warnings

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Differential, DifferentialCandidates, DifferentialThroughDoor

PROGRAMS_PER_ROUND = 50
MACHINES = (Differential, DifferentialCandidates, DifferentialThroughDoor)


def main() -> int:
    """Run rounds of each kind of program in turn until enough was compared."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="stop after so many; %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; %(default)s")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    started, rounds = time.monotonic(), 0
    try:
        while Differential.tally["requests"] < arguments.requests:
            compare(MACHINES[rounds % len(MACHINES)], arguments.seed + rounds, PROGRAMS_PER_ROUND)
            rounds += 1
            print(f"{Differential.tally['requests']} requests", flush=True)
    except AssertionError as difference:
        traceback.print_exception(difference, limit=0)
        return 1
    finally:
        print(f"{rounds} rounds in {time.monotonic() - started:.0f} s, from seed {arguments.seed}:")
        for what, times in sorted(Differential.tally.items()):
            print(f"  {times:>8} {what}")
    return 0


def compare(machine: type[Differential], number: int, programs: int) -> None:
    """Run so many programs of the seed `number`.

    :raises AssertionError: something differs that is not meant to
    """
    # What a program may draw depends on what the sides answer, which takes them longer than hypothesis likes.
    patient = settings(
        max_examples=programs,
        stateful_step_count=50,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(machine), settings=patient)


if __name__ == "__main__":
    raise SystemExit(main())
