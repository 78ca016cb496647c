"""The core's journal with 1000 hosts and 100 000 consumers: how long it becomes, and how fast it is loaded.

    python -m benchmarks.journal [--writes N] [--journal DSN]

N claims and releases (200 000) are written in process, into a state directory in the current folder or into a
new journal in that PostgreSQL. Ten times meanwhile the size on the disk is printed beside that of the
content, the JSON of all records. Then a process of its own starts on the journal. In PostgreSQL it is killed
then, and a standby takes over.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent.placement.embedded import Core
from agent.placement.embedded.handlers import CoreResponse
from agent.placement.embedded.store import WholeRequest, _dump, encode_consumer, encode_provider
from benchmarks.embedded_door import in_process
from benchmarks.embedded_world import UNITS_PER_GPU, Refused, held, host

HOSTS = 1000
CONSUMERS = 100_000
UNDER_WAY = 64
PRINTED = 10
MIB = 1 << 20
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--writes", type=int, default=200_000)
    parser.add_argument("--journal", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as name:
        with closing(opened(Path(name), given.journal)) as core:
            Load(core).write(given.writes, Path(name), given.journal)
        command = [sys.executable, "-c", START, name, given.journal]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as active:
            assert active.stdout is not None
            print(active.stdout.readline(), end="")
            with opened_behind(given.journal) as standby:
                active.kill()
                begin = time.perf_counter()
                if standby is not None:
                    wait_for(standby)
                    print(f"a standby takes over after {time.perf_counter() - begin:.2f} s")


def opened(folder: Path, journal: str) -> Core:
    core = Core.open_shared(journal, "http://benchmark") if journal else Core.open(folder)
    wait_for(core)
    return core


def opened_behind(journal: str) -> closing[Core] | nullcontext[None]:
    return closing(Core.open_shared(journal, "http://standby")) if journal else nullcontext()


def wait_for(core: Core) -> None:
    while not core.takes_writes:
        time.sleep(0.001)


START = """
import resource, sys, time
from pathlib import Path
from typing import TypeVar
from benchmarks.journal import opened
begin = time.perf_counter()
core = opened(Path(sys.argv[1]), sys.argv[2])
took, model = time.perf_counter() - begin, core._store.model
memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
count = f"{len(model.providers)} providers, {len(model.consumers)} consumers"
print(f"start with {count}: {took:.2f} s, {memory} MiB", flush=True)
sys.stdin.read()
"""


class Load:
    """Claims and releases on the hosts of a core, many under way at once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._under_way = deque[WholeRequest[CoreResponse]]()
        self._told = threading.Event()
        self._chance = random.Random(1)
        for number in range(HOSTS):
            host(in_process(core), f"host{number}")
        gpus = [one for one in core._store.model.providers.values() if "VGPU" in one.inventories]
        self._free = [(gpu.uuid, str(gpu.parent_uuid)) for gpu in gpus] * UNITS_PER_GPU
        self._held: list[tuple[str, tuple[str, str]]] = []
        for _ in range(CONSUMERS):
            self._claim()

    def write(self, writes: int, folder: Path, journal: str) -> None:
        """Claim as often as release."""
        print(f"{'writes':>10} {'s':>6} {'on disk':>9} {'content':>9}")
        begin = time.perf_counter()
        for number in range(1, writes + 1):
            if number % 2:
                self._claim()
            else:
                consumer, place = take(self._held, self._chance)
                self._free.append(place)
                self._send("DELETE", f"/allocations/{consumer}")
            if number % (writes // PRINTED) == 0:
                size, content = size_of(folder, journal), content_of(self._core)
                shown = f"{size / MIB:9.1f} {content / MIB:9.1f} MiB {size / content:5.2f} times"
                print(f"{number:10} {time.perf_counter() - begin:6.0f} {shown}", flush=True)
        while self._under_way:
            self._end_oldest()

    def _claim(self) -> None:
        consumer, place = str(uuid.uuid4()), take(self._free, self._chance)
        self._held.append((consumer, place))
        gpu, cell = place
        self._send(
            "PUT", f"/allocations/{consumer}", held({gpu: {"VGPU": 1}, cell: {"VCPU": 1, "MEMORY_MB": 64}})
        )

    def _send(self, method: str, path: str, body: object = None) -> None:
        run = partial(self._core.request, method, path, body, microversion="1.39")
        request = self._core.submit_whole(run, self._told.set, None)
        assert request is not None
        self._under_way.append(request)
        if len(self._under_way) == UNDER_WAY:
            self._end_oldest()

    def _end_oldest(self) -> None:
        oldest = self._under_way.popleft()
        while not oldest.is_over:
            self._told.wait()
            self._told.clear()
        answer = oldest.result()
        if answer.status != 204:
            raise Refused(answer)


def take(items: list[T], chance: random.Random) -> T:
    """Take any of them, in constant time."""
    place = chance.randrange(len(items))
    items[place], items[-1] = items[-1], items[place]
    return items.pop()


def size_of(folder: Path, journal: str) -> int:
    """Of the database's files, or of the table with its index."""
    if not journal:
        return sum(file.stat().st_size for file in folder.glob("placement.db*"))
    import psycopg

    with psycopg.connect(journal) as connection:
        ((size,),) = connection.execute("SELECT pg_total_relation_size('plimsoll_journal')").fetchall()
    return int(size)


def content_of(core: Core) -> int:
    with core._store.reading() as model:
        providers = (_dump({one.uuid: encode_provider(one, None)}) for one in model.providers.values())
        consumers = (_dump({one.uuid: encode_consumer(one)}) for one in model.consumers.values())
        return sum(map(len, providers)) + sum(map(len, consumers))


if __name__ == "__main__":
    main()
