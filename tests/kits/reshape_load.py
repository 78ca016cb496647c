"""A host with very many consumers of VGPU on its root, and others that claim there all the while."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from agent.driver import MoveInstruction
from agent.errors import PlacementConflict
from agent.placement.client import ConsumerAllocations
from kits.placements import Placement
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of

CARDS = 8


@contextmanager
def loaded(directory: Path, consumers: int, placement: Placement | None = None) -> Iterator[World]:
    """VGPU flat on the root, one for each consumer."""
    with World(directory, placement) as world:
        world.see(host(VCPU=10**6, VGPU=consumers))
        for number in range(consumers):
            world.raw.write_allocations(
                ConsumerAllocations(uuid_of(f"c{number}"), {ROOT: {"VGPU": 1, "VCPU": 1}}, None, "p", "u")
            )
        yield world


def reshaped(world: World, consumers: int) -> int:
    """Move all of it to the cards, each owner told, in one pass; how often it was asked of placement."""
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
    report = world.see(host(VCPU=10**6), *cards, moves=moves)
    assert (report.error, report.pending) == (None, None), (report.error, report.pending)
    asked = world.tap.calls.count("POST /reshaper")
    for number in (0, consumers // 2, consumers - 1):
        assert world.placed(f"c{number}") == {HOST: {"VCPU": 1}, f"gpu{number % CARDS}": {"VGPU": 1}}
    assert (
        sum(len(world.raw.provider_allocations(world.uuid(f"gpu{n}")).consumers) for n in range(CARDS))
        == consumers
    )
    return asked


class Load:
    """Claims and releases VCPU on the root, `rate` a second together, at random moments."""

    def __init__(self, world: World, rate: int) -> None:
        self._world = world
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claims")
        self.done = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        dice = random.Random(86)
        held: list[str] = []
        while not self._stop.wait(dice.expovariate(self._rate)):
            try:
                if len(held) > 10:
                    self._world.raw.delete_allocations(held.pop(0))
                else:
                    held.append(str(uuid4()))
                    self._world.raw.write_allocations(
                        ConsumerAllocations(held[-1], {ROOT: {"VCPU": 1}}, None, "p", "u")
                    )
            except PlacementConflict:
                continue
            self.done += 1
