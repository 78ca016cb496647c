"""A host with very many consumers of VGPU on its root, and others that claim there all the while."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from agent.driver import MoveInstruction
from agent.errors import PlacementConflict, PlimsollError
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import Transport
from kits.placements import Placement
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.tracker import request
from kits.wire import Wire

CARDS = 8


@contextmanager
def loaded(
    directory: Path, consumers: int, placement: Placement | None = None, *, own: bool = False
) -> Iterator[World]:
    """VGPU flat on the root, one for each consumer; `own`: each is a claim of the agent's."""
    with World(directory, placement) as world:
        world.see(host(VCPU=10**6, VGPU=consumers))
        for number in range(consumers):
            if own:
                world.tracker.claim(request(uuid_of(f"c{number}"), VGPU=1, VCPU=1))
                continue
            world.raw.write_allocations(
                ConsumerAllocations(uuid_of(f"c{number}"), {ROOT: {"VGPU": 1, "VCPU": 1}}, None, "p", "u")
            )
        yield world


class Reshaped(NamedTuple):
    """How often the request was sent, and the seconds of the pass."""

    asked: int
    seconds: float


def reshaped(world: World, consumers: int) -> Reshaped:
    """Move all of it to the cards, each owner told, in one pass."""
    size = -(-consumers // CARDS)
    cards = tuple(provider(f"gpu{n}", VGPU=size) for n in range(CARDS))
    moves = tuple(
        MoveInstruction(
            HOST,
            {"VGPU": size},
            f"gpu{n}",
            {uuid_of(f"c{number}"): {"VGPU": 1} for number in range(n, consumers, CARDS)},
        )
        for n in range(CARDS)
    )
    world.tap.calls.clear()
    started = time.perf_counter()
    report = world.see(host(VCPU=10**6), *cards, moves=moves)
    seconds = time.perf_counter() - started
    assert (report.error, report.pending) == (None, None), (report.error, report.pending)
    asked = world.tap.calls.count("POST /reshaper")
    for number in (0, consumers // 2, consumers - 1):
        assert world.placed(f"c{number}") == {HOST: {"VCPU": 1}, f"gpu{number % CARDS}": {"VGPU": 1}}
    assert (
        sum(len(world.raw.provider_allocations(world.uuid(f"gpu{n}")).consumers) for n in range(CARDS))
        == consumers
    )
    return Reshaped(asked, seconds)


class Load:
    """Claims and releases VCPU on the root, `rate` a second together, at random moments.

    `own`: through the agent's tracker; otherwise by another client of Placement's. `workers`: as many may
    wait for their answers at once.
    """

    def __init__(self, world: World, rate: float, *, own: bool = False, workers: int = 1) -> None:
        self._world = world
        self._rate = rate
        self._own = own
        self._workers = workers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claims")
        self._held: list[str] = []
        self.done = 0
        self.refused: list[str] = []
        self.slowest_s = 0.0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        dice = random.Random(86)
        with ThreadPoolExecutor(self._workers) as workers:
            while not self._stop.wait(dice.expovariate(self._rate)):
                if len(self._held) > 10:
                    asked = workers.submit(self._ask, self._release, self._held.pop(0))
                else:
                    asked = workers.submit(self._ask, self._claim, str(uuid4()))
                if self._workers == 1:
                    asked.result()

    def _ask(self, operation: Callable[[str], None], consumer: str) -> None:
        started = time.monotonic()
        try:
            operation(consumer)
        except PlacementConflict:
            return
        except PlimsollError as error:
            self.refused.append(error.message)
        else:
            if operation == self._claim:
                self._held.append(consumer)
        self.slowest_s = max(self.slowest_s, time.monotonic() - started)
        self.done += 1

    def _claim(self, consumer: str) -> None:
        if self._own:
            self._world.tracker.claim(request(consumer, VCPU=1))
        else:
            self._world.raw.write_allocations(
                ConsumerAllocations(consumer, {ROOT: {"VCPU": 1}}, None, "p", "u")
            )

    def _release(self, consumer: str) -> None:
        if self._own:
            self._world.tracker.release(consumer)
        else:
            self._world.raw.delete_allocations(consumer)


class Delayed:
    """A placement each request to which takes `seconds` longer; several may wait at once.

    `only`: those requests alone that begin so ("POST /reshaper").
    """

    def __init__(self, inner: Placement, seconds: float, only: str = "") -> None:
        self.kind, self.options = inner.kind, inner.options
        self._inner, self._seconds, self._only = inner, seconds, only

    def transport(self) -> Transport:
        wire = Wire(self._inner.transport())
        wire.before = lambda call: time.sleep(self._seconds) if call.startswith(self._only) else None
        return wire

    def anew(self, directory: Path) -> Delayed:
        return Delayed(self._inner.anew(directory), self._seconds, self._only)

    def environment(self) -> dict[str, str]:
        return self._inner.environment()
