"""`./dev simulate`: tell the histories of many seeds on all cores, and shorten those that break a law.

What failed is appended to a file, one line a seed, together with the seeds that were told: the same command
again goes on behind them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from multiprocessing import Pool
from pathlib import Path

from simulation.laws_off import LAWS_OFF, SEEDS, first_that_notices
from simulation.seeds import draw, shorten, tell

CHUNK = 25


def _told(seeds: range) -> list[tuple[int, str, str]]:
    """(seed, law, sentence) of those that break a law."""
    outcomes = [tell(draw(seed)) for seed in seeds]
    return [(outcome.history.seed, outcome.law, outcome.sentence) for outcome in outcomes if outcome.law]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20_000, metavar="N", help="tell N histories (20000)")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="begin with this seed (0)")
    parser.add_argument("--seed", type=int, metavar="S", help="tell this one, shortened, as a story")
    parser.add_argument("--full", action="store_true", help="with --seed: do not shorten it")
    parser.add_argument("--law-off", choices=sorted(LAWS_OFF), help="the first seed that notices this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--file", type=Path, default=Path(".simulate.jsonl"), help="what was told so far")
    return parser.parse_args()


def main() -> int:
    """Returns 1 where a law is broken."""
    arguments = _arguments()
    if arguments.law_off:
        noticed = first_that_notices(arguments.law_off)
        print(noticed.report if noticed else f"none of {SEEDS} seeds notices")
        return int(noticed is None)
    if arguments.seed is not None:
        outcome = tell(draw(arguments.seed))
        if outcome.law and not arguments.full:
            outcome = shorten(outcome)
        print(outcome.report if outcome.law else f"seed {arguments.seed} breaks no law")
        if arguments.full and not outcome.law:
            print("\n".join([str(outcome.history), *outcome.told]))
        return int(bool(outcome.law))
    return _many(arguments)


def _many(arguments: argparse.Namespace) -> int:
    last = arguments.first + arguments.seeds
    done, failures = _before(arguments.file)
    chunks = [
        range(first, min(first + CHUNK, last))
        for first in range(arguments.first, last, CHUNK)
        if first not in done
    ]
    began = time.monotonic()
    with Pool(arguments.jobs) as pool, arguments.file.open("a") as file:
        for number, (chunk, broken) in enumerate(zip(chunks, pool.imap(_told, chunks), strict=True), start=1):
            for seed, law, sentence in broken:
                failures[seed] = law
                print(f"\rseed {seed}: {sentence}", flush=True)
                file.write(json.dumps({"seed": seed, "law": law, "sentence": sentence}) + "\n")
            file.write(json.dumps({"told": chunk.start}) + "\n")
            file.flush()
            if sys.stdout.isatty():
                print(f"\r{number * CHUNK} of {len(chunks) * CHUNK}", end="", flush=True)
    seconds = time.monotonic() - began
    told = sum(len(chunk) for chunk in chunks)
    print(f"{told} histories in {seconds:.0f} s; {len(failures)} of all in {arguments.file} break a law.")
    return int(bool(failures))


def _before(path: Path) -> tuple[set[int], dict[int, str]]:
    done: set[int] = set()
    failures: dict[int, str] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if "told" in entry:
                done.add(entry["told"])
            else:
                failures[entry["seed"]] = entry["law"]
    return done, failures


if __name__ == "__main__":
    sys.exit(main())
