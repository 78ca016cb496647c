"""Calls of every kind at both APIs: none may answer 500, none that is refused may change anything.

    python -m tests.fuzz [--calls 100000] [--seed 1] [local] [placement] [door]

What is asked comes from the documents: the agent's own OpenAPI, and for Placement's API the schemas that
OpenStack Placement checks its requests by. Half of it follows them, half is made to break them.

`door` sends raw requests to the HTTP server, and to cheroot beside it: the verdict is the same, or there is a
reason.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from kits import raw_requests

from tests.fuzz.engine import fuzz
from tests.fuzz.local import LocalApi
from tests.fuzz.placement import PlacementApi

TARGETS = {"local": LocalApi, "placement": PlacementApi}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets", nargs="*", choices=[*TARGETS, "door", []], metavar="local | placement | door"
    )
    parser.add_argument("--calls", type=int, default=100_000, help="of all together, but for the door")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    targets = args.targets or [*TARGETS, "door"]
    failed = "door" in targets and compare_doors(args.calls, args.seed)
    for name in (target for target in targets if target != "door"):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            tally = fuzz(
                TARGETS[name](Path(directory)), args.calls // len(set(targets) - {"door"}), args.seed
            )
        took = time.monotonic() - started
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))
        print(f"{name}: {tally.calls} calls in {took:.0f} s; {statuses}")
        for problem in tally.problems[:20]:
            print(f"  {problem}")
        failed = failed or bool(tally.problems)
    return int(failed)


def compare_doors(cases: int, seed: int) -> bool:
    """Whether the verdicts differ without a reason."""
    logging.disable(logging.CRITICAL)
    comparison, started = raw_requests.Comparison(), time.monotonic()
    with tempfile.TemporaryDirectory() as directory, raw_requests.servers(Path(directory)) as servers:
        comparison.run(servers, seed, cases)
    print(f"door: {cases} cases in {time.monotonic() - started:.0f} s; the same verdicts: {comparison.same}")
    for reason, count in comparison.reasons.most_common():
        print(f"{count:7} {reason}")
    for problem in comparison.problems[:20]:
        print(f"  {problem}")
    return bool(comparison.problems)


if __name__ == "__main__":
    sys.exit(main())
