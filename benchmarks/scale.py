"""200 agents in one process against one OpenStack Placement: requests, and requests a second, for each thing.

`./dev bench-remote` runs it on PostgreSQL; by itself (`python benchmarks/scale.py`) it takes SQLite, with
one writer. Agents are real (journal, tracker, passes), with the fake driver; their jobs are run by hand here.
"""

import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kits.agent import World, opened, request, told
from kits.placements import DATABASE, OpenStack
from kits.tracker import fast_directory

from agent.status.overview import HostState

AGENTS = 200
CLIENTS = 16
CLAIMS = 3
WANTED = {"VCPU": 1, "MEMORY_MB": 64}


class Fleet:
    def __init__(self, directory: Path, openstack: OpenStack) -> None:
        self._openstack = openstack
        self.claims: list[tuple[World, str]] = []
        self.worlds: list[World] = []
        self._homes = []
        for number in range(AGENTS):
            home = directory / f"node{number}"
            home.mkdir()
            file = told(home, openstack).files[0]
            file.write_text(file.read_text().replace("host = node1", f"host = node{number}"))
            self._homes.append(file)
        self.open()

    def open(self) -> None:
        from agent.config.settings import load

        self.worlds = [opened(load([file])) for file in self._homes]

    def close(self) -> None:
        for world in self.worlds:
            world.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def each(self, work: Callable[[World], object], named: str) -> None:
        """Do it on all hosts, CLIENTS at a time; print what it took."""
        before = self.requests()
        took: list[float] = []

        def timed(world: World) -> None:
            begin = time.perf_counter()
            work(world)
            took.append((time.perf_counter() - begin) * 1000)

        begin = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(timed, self.worlds))
        seconds = time.perf_counter() - begin
        count = self.requests() - before
        took.sort()
        print(
            f"{named:<38} {count:>6} {count / AGENTS:>7.1f} {seconds:>7.1f} {count / seconds:>8.0f} "
            f"{statistics.median(took):>9.0f} {took[int(len(took) * 0.99)]:>8.0f}"
        )
        unwell = [
            world.agent.host_status.status()
            for world in self.worlds
            if world.agent.condition.state is not HostState.READY
        ]
        assert not unwell, f"{len(unwell)} of {AGENTS}: {unwell[0]}"

    def requests(self) -> int:
        return sum(world.wire.requests for world in self.worlds)

    def claim(self, world: World) -> None:
        for _ in range(CLAIMS):
            self.claims.append((world, world.operations.claim(request(**WANTED)).consumer))

    def release(self, world: World) -> None:
        for owner, consumer in self.claims:
            if owner is world:
                assert world.operations.release(consumer)


def grow(world: World) -> None:
    world.driver.change(disk_gb=2000)
    world.agent.reconcile("an event")


def main() -> None:
    logging.getLogger("agent").setLevel(logging.ERROR)
    with fast_directory() as name:
        directory = Path(name)
        openstack = OpenStack.configured(directory)
        openstack.empty()
        fleet = Fleet(directory, openstack)
        where = os.environ.get(DATABASE, "sqlite").split(":")[0].split("+")[0]
        print(f"{AGENTS} agents, {CLIENTS} at a time, one placement process on {where}")
        print(f"{'':<38} {'reqs':>6} {'a host':>7} {'s':>7} {'reqs/s':>8} {'ms a host':>9} {'p99 ms':>8}")
        fleet.each(lambda world: world.agent.reconcile("the start"), "first report")
        fleet.each(lambda world: world.agent.reconcile("its interval"), "a pass with nothing new")
        fleet.each(lambda world: world.agent.verify(), "verification, nothing new")
        fleet.each(fleet.claim, f"{CLAIMS} claims")
        fleet.each(lambda world: world.agent.verify(), "verification after claims")
        fleet.each(lambda world: world.agent.run_audit(), f"audit, nothing new, {CLAIMS} consumers")
        fleet.each(grow, "one inventory changed")
        fleet.restart()
        fleet.each(lambda world: world.agent.reconcile("the start"), "restart, and one inventory changed")
        fleet.claims = [
            (world, claim.consumer)
            for world in fleet.worlds
            for _, claim in world.agent.host_status.overview().instances
            if claim
        ]
        fleet.each(fleet.release, f"{CLAIMS} releases")
        fleet.each(lambda world: world.agent.verify(), "verification after releases")
        fleet.restart()
        fleet.each(lambda world: world.agent.reconcile("the start"), "restart with nothing new")
        fleet.close()
        openstack.down()


if __name__ == "__main__":
    main()
