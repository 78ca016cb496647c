"""`./dev try-fleet`: whole agents with the fake driver in one process, on a served core, and what goes on.

Guests of a few flavors start and end, move from host to host, and a host is paused now and then. Of the last
three hosts one does not answer its agent, one has a guest that nobody claimed for, and one falls silent.
"""

import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from agent.claims.parse_request import claim_for_flavor, parse_flavor
from agent.claims.request import ClaimRequest
from agent.config.settings import load
from agent.driver import Guest, GuestState
from agent.errors import DriverUnavailable, PlimsollError
from agent.moves.states import MoveKind
from agent.state.operators import PauseRequest
from kits.agent import World, opened, told
from kits.api_client import serving
from kits.placements import Running

FLAVORS = {
    "m1.small": {"vcpus": 2, "memory_mb": 4096, "disk_gb": 20},
    "m1.large": {"vcpus": 8, "memory_mb": 16384, "disk_gb": 80},
    "gpu.small": {"vcpus": 4, "memory_mb": 16384, "disk_gb": 40, "extra_specs": {"resources1:VGPU": "4"}},
}
WORKERS = 3
NOTE_INTERVAL_S = 40.0
AUDIT_ROUNDS = 3
MOVE_S = (3.0, 10.0)
FULL_GUESTS = 14


class Host:
    """A host of the fleet; one thing at a time is done there."""

    def __init__(self, directory: Path, name: str, url: str) -> None:
        directory.mkdir()
        file = told(directory, Running(url)).files[0]
        file.write_text(file.read_text().replace("host = node1", f"host = {name}"))
        self.name, self.directory = name, directory
        self.world: World = opened(load([file]))
        self.guests: dict[str, ClaimRequest] = {}
        self.lock = threading.Lock()
        self.is_alive = True

    @contextmanager
    def busy(self) -> Iterator[bool]:
        """Whether nothing else is done there; afterwards the agent has looked at its host."""
        if not self.is_alive or not self.lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self.look("an event")
            self.lock.release()

    def look(self, why: str, *, audits: bool = False) -> None:
        """Run a pass, an audit if asked for, and leave the note."""
        with suppress(PlimsollError):
            self.world.agent.reconcile(why)
            if audits:
                self.world.agent.verify()
                self.world.agent.run_audit()
            self.world.agent.leave_note()
        self.world.wire.asked.clear()
        self.world.wire.calls.clear()

    def start(self, chance: random.Random) -> None:
        """Claim for a guest, and start it."""
        flavor = FLAVORS[chance.choice(list(FLAVORS))]
        name = f"{chance.choice(('web', 'db', 'train', 'cache'))}-{chance.randrange(10_000):04}"
        asked = claim_for_flavor(str(uuid4()), parse_flavor(flavor), name=name)
        self.world.operations.claim(asked)
        self.show(asked)

    def show(self, asked: ClaimRequest) -> None:
        """The guest of the claim runs here."""
        self.guests[asked.consumer] = asked
        self.world.driver.add_guest(
            Guest(asked.consumer, asked.name, GuestState.RUNNING, dict(asked.resources))
        )

    def end(self, consumer: str) -> ClaimRequest:
        """The guest has left."""
        self.world.driver.remove_guest(consumer)
        return self.guests.pop(consumer)


def move(source: Host, target: Host, chance: random.Random) -> None:
    """Move a guest while it runs, as a control plane does: begin at the target, move, confirm there."""
    consumer = chance.choice(list(source.guests))
    migration, asked = str(uuid4()), source.guests[consumer]
    target.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, asked)
    for host in (source, target):
        host.look("an event", audits=True)
    time.sleep(chance.uniform(*MOVE_S))
    target.show(source.end(consumer))
    target.world.operations.confirm_move(migration, None)
    source.look("an event", audits=True)


def live(hosts: list[Host], chance: random.Random, ended: threading.Event) -> None:
    """Do one thing after the other on hosts chosen by chance, until the end."""
    while not ended.wait(chance.uniform(0.2, 1.5)):
        host, other = chance.sample(hosts, 2)
        with host.busy() as is_ours, suppress(PlimsollError):
            if not is_ours:
                continue
            operations = host.world.operations
            if operations.tracker.admission.pause is not None:
                if chance.random() < 0.1:
                    operations.resume()
            elif chance.random() < 0.02:
                operations.pause(PauseRequest(0, time.time(), "new disks"))
            elif host.guests and chance.random() < 0.25:
                with other.busy() as is_free:
                    if is_free:
                        move(host, other, chance)
            elif chance.random() < len(host.guests) / FULL_GUESTS:
                consumer = chance.choice(list(host.guests))
                host.end(consumer)
                operations.release(consumer)
            else:
                host.start(chance)


def look_after(hosts: list[Host], ended: threading.Event) -> None:
    """Run what the jobs of a daemon run at their intervals."""
    rounds = 0
    while not ended.is_set():
        rounds += 1
        for host in hosts:
            if ended.wait(NOTE_INTERVAL_S / len(hosts)):
                return
            with host.busy():
                if host.is_alive and rounds % AUDIT_ROUNDS == 0:
                    host.look("its interval", audits=True)


def main() -> None:
    """Print the flavors; or run so many agents in that directory, on the Placement at that address."""
    if len(sys.argv) == 1:
        print(json.dumps(FLAVORS, indent=2))
        return
    directory, url, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    logging.getLogger("agent").setLevel(logging.CRITICAL)
    ended, chance = threading.Event(), random.Random(1)
    with ExitStack() as stack:
        hosts = []
        for place in range(1, number + 1):
            host = Host(directory / f"hv{place:03}", f"hv{place:03}.example", url)
            stack.callback(host.world.close)
            if place % 3 == 0:
                host.world.driver.change(gpus=())
            host.look("the start")
            with suppress(PlimsollError):
                for _ in range(chance.randrange(FULL_GUESTS)):
                    host.start(chance)
            host.look("the start")
            stack.enter_context(serving(host.world.operations, host.directory / "plimsoll.sock", threads=1))
            hosts.append(host)
        if number >= 6:
            hosts[-1].is_alive = False
            hosts[-2].world.driver.add_guest(
                Guest(str(uuid4()), "forgotten", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 2048})
            )
            hosts[-3].world.driver.fail(10**5, DriverUnavailable("The hypervisor does not answer."))
        for host in hosts:
            if host.is_alive:
                host.look("an event", audits=True)
        for worker in range(WORKERS):
            threading.Thread(target=live, args=(hosts, random.Random(worker), ended), daemon=True).start()
        threading.Thread(target=look_after, args=(hosts, ended), daemon=True).start()
        for which in (signal.SIGTERM, signal.SIGINT):
            signal.signal(which, lambda *_: ended.set())
        (directory / "ready").write_text(json.dumps({"pid": os.getpid(), "hosts": number}))
        while not ended.wait(1.0):
            pass
        os._exit(0)  # what is done now is of no use to anybody


if __name__ == "__main__":
    main()
