"""Calls of every kind at both APIs: none may answer 500, none that is refused may change anything.

    python -m tests.fuzz [--calls 100000] [--seed 1] [local] [placement]

What is asked comes from the documents: the agent's own OpenAPI, and for Placement's API the schemas that
OpenStack Placement checks its requests by. Half of it follows them, half is made to break them.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.engine import fuzz
from tests.fuzz.local import LocalApi
from tests.fuzz.placement import PlacementApi

TARGETS = {"local": LocalApi, "placement": PlacementApi}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="local | placement")
    parser.add_argument("--calls", type=int, default=100_000, help="of both together")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    targets = args.targets or list(TARGETS)
    failed = False
    for name in targets:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            tally = fuzz(TARGETS[name](Path(directory)), args.calls // len(targets), args.seed)
        took = time.monotonic() - started
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))
        print(f"{name}: {tally.calls} calls in {took:.0f} s; {statuses}")
        for problem in tally.problems[:20]:
            print(f"  {problem}")
        failed = failed or bool(tally.problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
