"""A reshape while claims are made on the same root all the while.

    python benchmarks/reshape_load.py [consumers] [rounds]

VGPU of 100 consumers goes from the root to 8 cards, while VCPU is claimed on and released from the root at
random moments, whether earlier claims have their answers or not: 10 times a second by the agent itself, twice
a second by another client, and both at once. It runs on a real OpenStack Placement over SQLite, or over the
database that PLIMSOLL_TEST_DATABASE names (`./dev bench-remote` has PostgreSQL), on the same with 4 s more
for each reshape, and on the embedded core as a process of its own, there also without any claims.
For each: how many rounds got through in their first pass within the bar, the time of the median and of the
slowest pass, how often the request was sent, the slowest claim meanwhile, and how many claims were refused.
It fails where a round takes longer than its bar.
"""

import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kits.placements import DATABASE, OpenStack, Placement, Running
from kits.reshape_load import Delayed, Load, Reshaped, loaded, reshaped

CONSUMERS, ROUNDS = 100, 10
OWN, FOREIGN = "the agent itself", "another client"
RATES = {OWN: 10, FOREIGN: 2}
WORKERS = 32
"""Claims that may wait for their answers at once, as in the threads of the local API."""
SLOW_S = 4.0
BAR_S, SERVED_BAR_S = 60.0, 2.0
WARM_UP_S = 1.0
TOKEN = "benchmark-token-0123456789"


class _Round(NamedTuple):
    """`sent` is how often the request was sent, 0 if it did not get through."""

    seconds: float
    sent: int
    slowest_claim_s: float
    refused: int


def main() -> None:
    told = [int(each) for each in sys.argv[1:]]
    consumers, rounds = (*told, *(CONSUMERS, ROUNDS)[len(told) :])
    with tempfile.TemporaryDirectory() as directory:
        remote = OpenStack.configured(Path(directory))
        name = f"OpenStack Placement over {os.environ.get(DATABASE, 'sqlite').partition('+')[0]}"
        slow = Delayed(remote, SLOW_S, only="POST /reshaper")
        try:
            good = [
                _measure(title, placement, consumers, rounds, writers, BAR_S)
                for title, placement in ((name, remote), (f"{name}, {SLOW_S:g} s a reshape", slow))
                for writers in ((OWN,), (FOREIGN,), (OWN, FOREIGN))
            ]
        finally:
            remote.down()
    good += [
        _measure("served core", None, consumers, rounds, writers, SERVED_BAR_S) for writers in ((), (OWN,))
    ]
    sys.exit(not all(good))


def _measure(
    name: str,
    placement: Placement | None,
    consumers: int,
    rounds: int,
    writers: tuple[str, ...],
    bar_s: float,
) -> bool:
    """Print the rounds; whether each got through within its bar. None: a new served core each time."""
    measured = []
    for _ in range(rounds):
        if placement is not None:
            measured.append(_round(placement, consumers, writers))
            continue
        with tempfile.TemporaryDirectory() as directory, _served(Path(directory)) as served:
            measured.append(_round(served, consumers, writers))
    seconds, sent, slowest, refused = zip(*measured, strict=True)
    within = sum(each <= bar_s for each in seconds)
    claims = " and ".join(f"{RATES[writer]} claims/s by {writer}" for writer in writers) or "no claims"
    print(
        f"{name}, {claims}: {within} of {rounds} within {bar_s:g} s, "
        f"median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s, "
        f"sent at most {max(sent)} times, slowest claim {max(slowest):.2f} s, "
        f"{sum(refused)} claims refused; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return bool(within == rounds)


def _round(placement: Placement, consumers: int, writers: tuple[str, ...]) -> _Round:
    with (
        tempfile.TemporaryDirectory() as directory,
        loaded(Path(directory), consumers, placement, own=OWN in writers) as world,
        ExitStack() as stack,
    ):
        loads = [
            stack.enter_context(Load(world, RATES[writer], own=writer == OWN, workers=WORKERS))
            for writer in writers
        ]
        time.sleep(WARM_UP_S)
        try:
            done = reshaped(world, consumers)
        except AssertionError as error:
            print(f"  did not get through: {error}")
            done = Reshaped(0, math.inf)
        stack.close()  # what waits has its answer then
        slowest_s = max((load.slowest_s for load in loads), default=0.0)
        return _Round(done.seconds, done.asked, slowest_s, sum(len(load.refused) for load in loads))


@contextmanager
def _served(directory: Path) -> Iterator[Placement]:
    """The embedded core behind its own HTTP door, with the role that a reshape takes."""
    tokens = directory / "tokens"
    tokens.write_text(f"agent admin,service {TOKEN}\n")
    tokens.chmod(0o600)
    program = [str(Path(sys.executable).with_name("plimsoll")), "placement", "serve"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    address = f"{host}:{port}"
    process = subprocess.Popen(
        [*program, "--bind", address, "--state-dir", str(directory), "--tokens-file", str(tokens)],
        stderr=subprocess.DEVNULL,
    )
    try:
        placement = Running(f"http://{address}")
        for _ in range(100):
            with suppress(OSError), socket.create_connection((host, port)):
                break
            time.sleep(0.1)
        placement.options["token"] = TOKEN
        yield placement
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
