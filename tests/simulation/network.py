"""Placement as the hosts see it: processes behind a balancer over one database; what becomes of a request.

The database is the embedded core's rules over its model in memory. A request takes effect at one moment; the
simulator chooses the moment, and whether the one who asked learns of it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import os_resource_classes
import os_traits

from agent.errors import PlacementUnavailable
from agent.placement.embedded.core import Core
from agent.placement.embedded.model import Draft, Model
from agent.placement.embedded.rules import Binding
from agent.placement.embedded.store import Store
from agent.placement.transport import Reply, reply_of_answer
from simulation.tasks import EPOCH, Process, Scheduler

TIMEOUT_S = 15.0
Held = Mapping[str, Mapping[str, int]]
"""{provider uuid: {class: amount}} of one consumer"""


class Fate(StrEnum):
    """What becomes of a request. The values complete the sentence "the request ..."."""

    ANSWERED = "is answered"
    LOST = "is lost on the way; nobody answers"
    NOT_SENT = "is not sent: the connection is refused"
    RESET_BEFORE = "meets a reset connection before it is done"
    RESET_AFTER = "is done, and its answer meets a reset connection"
    LATE = "is done after the host has given up waiting"
    TWICE = "is done and answered, and done once more later"
    PROXY_BEFORE = "gets a 502 from a proxy that did not pass it on"
    PROXY_AFTER = "is done, and a proxy answers 502"
    PROXY_LATE = "gets a 502 from a proxy, and is done later"
    MADE_UP = "gets a 204 from a proxy that did not pass it on"


class Becomes(NamedTuple):
    """Whether the request is done at once, whether it is done later, and how it ends for the one who asked.

    `ends` is answered, timeout, refused, reset, or a status that Placement did not send.
    """

    done: bool
    done_later: bool
    ends: str


BECOMES = {
    Fate.ANSWERED: Becomes(True, False, "answered"),
    Fate.LOST: Becomes(False, False, "timeout"),
    Fate.NOT_SENT: Becomes(False, False, "refused"),
    Fate.RESET_BEFORE: Becomes(False, False, "reset"),
    Fate.RESET_AFTER: Becomes(True, False, "reset"),
    Fate.LATE: Becomes(False, True, "timeout"),
    Fate.TWICE: Becomes(True, True, "answered"),
    Fate.PROXY_BEFORE: Becomes(False, False, "502"),
    Fate.PROXY_AFTER: Becomes(True, False, "502"),
    Fate.PROXY_LATE: Becomes(False, True, "502"),
    Fate.MADE_UP: Becomes(False, False, "204"),
}


SOMEBODY = "somebody"
"""The author of a write that is no host's."""
CLONE = "clone of "
"""Before the name of the host of whose disk, and token, an author has a copy."""


class _Store(Store):
    """The embedded core's store without a file: a write is one step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.model = Model(
            dict.fromkeys(os_traits.get_traits(), EPOCH), dict.fromkeys(os_resource_classes.STANDARDS, EPOCH)
        )
        self.home = SimpleNamespace(
            disk_full=False, is_active=True, told={}, admit=lambda: None, close=lambda: None
        )

    def write(self, rule: Any, *, releases: bool = False, **_: Any) -> Any:
        draft = Draft(self.model, self.clock())
        answer = rule(draft)
        self.model.apply(draft)
        return answer


@dataclass
class Write:
    """A request that changed allocations: {consumer: (before, after)}; `author` is a host or SOMEBODY."""

    at: float
    author: str
    request: str
    changed: dict[str, tuple[Held, Held]]
    reshaped: bool = False
    """Whether inventory moved; `reserved` alone may go with a write of allocations, too."""


class Server:
    """One process of Placement; while it is paused, requests wait in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.paused = False
        self.waiting: deque[Callable[[], None]] = deque()


class Network:
    """The balancer and what is behind it. `observe(write)` is called after each change of allocations."""

    def __init__(self, scheduler: Scheduler, servers: int, trace: Callable[[str], None]) -> None:
        self.scheduler = scheduler
        self.trace = trace
        self._clock = lambda: EPOCH + scheduler.now
        self.core = Core(_Store(self._clock))
        self.servers = [Server(number + 1) for number in range(servers)]
        self.weather = Process("the network")
        self.fates: dict[str, deque[tuple[Fate, float]]] = {}
        self.cut: set[str] = set()
        self.observe: Callable[[Write], None] = lambda write: None
        self.bound = True
        self.requests = 0
        self.internal_errors: list[str] = []

    @property
    def model(self) -> Model:
        """Placement's records; for the oracle."""
        model: Model = self.core._store.model
        return model

    def holdings(self) -> dict[str, Held]:
        """{consumer: what it holds}"""
        return {uuid: consumer.allocations for uuid, consumer in self.model.consumers.items()}

    def _totals(self) -> dict[tuple[str, str], int]:
        return {
            (uuid, name): inventory.total
            for uuid, provider in self.model.providers.items()
            for name, inventory in provider.inventories.items()
        }

    # What a request meets

    def expect(self, host: str, fate: Fate, later_s: float) -> None:
        """The host's next write that no fate was given yet has this one."""
        self.fates.setdefault(host, deque()).append((fate, later_s))

    def calm(self) -> None:
        """All faults cease; what is on its way arrives."""
        self.fates.clear()
        self.cut.clear()
        for server in self.servers:
            self.resume(server.number)

    def pause(self, number: int) -> None:
        self.servers[number - 1].paused = True

    def resume(self, number: int) -> None:
        server = self.servers[number - 1]
        server.paused = False
        while server.waiting:
            self.scheduler.spawn("a waiting request", self.weather, server.waiting.popleft())

    def do(self, author: str, method: str, path: str, body: Any, microversion: str) -> Reply:
        """The effect, and the answer. While `bound`, the token of each host is bound to it."""
        before, totals = self.holdings(), self._totals() if path == "/reshaper" else {}
        host = author.removeprefix(CLONE)
        binding = Binding(author, host) if self.bound and author != SOMEBODY else None
        answer = self.core.request(
            method, path, copy.deepcopy(body), microversion=microversion, binding=binding
        )
        if answer.status in (403, 500):
            self.internal_errors.append(f"{method} {path}: {answer.body}")
        if method != "GET":
            short = _short(method, path, body)
            self.trace(f"{author}: {short} -> {answer.status}")
            after = self.holdings()
            if before != after:
                changed = {
                    consumer: (before.get(consumer, {}), after.get(consumer, {}))
                    for consumer in sorted({*before, *after})
                    if before.get(consumer) != after.get(consumer)
                }
                reshaped = path == "/reshaper" and totals != self._totals()
                self.observe(Write(self.scheduler.now, author, short, changed, reshaped))
        return Reply(answer.status, answer.body, answer.headers)

    def ask(self, author: str, method: str, path: str, body: Any, microversion: str) -> Reply:
        """A request of a host's agent: the caller waits for what becomes of it."""
        self.requests += 1
        scheduler = self.scheduler
        scheduler.place()
        if author in self.cut:
            raise _refused(f"{method} {path}")
        fate, later_s = Fate.ANSWERED, 0.0
        if method != "GET" and self.fates.get(author):
            fate, later_s = self.fates[author].popleft()
            self.trace(f"{author}: {_short(method, path, body)} {fate.value}")

        def effect() -> Reply:
            return self.do(author, method, path, body, microversion)

        def later() -> None:
            def happen() -> None:
                scheduler.sleep(later_s)
                effect()

            scheduler.spawn("a late request", self.weather, happen)

        becomes = BECOMES[fate]
        if becomes.done_later:
            later()
        if becomes.ends == "answered":
            return self._through_balancer(f"{method} {path}", effect)
        if becomes.done:
            effect()
            scheduler.place()
        if becomes.ends == "timeout":
            scheduler.sleep(TIMEOUT_S)
            raise _timeout(f"{method} {path}")
        if becomes.ends == "refused":
            raise _refused(f"{method} {path}")
        if becomes.ends == "reset":
            raise _reset(f"{method} {path}")
        return reply_of_answer(method, path, int(becomes.ends), None, {})

    def _through_balancer(self, request: str, effect: Callable[[], Reply]) -> Reply:
        scheduler = self.scheduler
        server = self.servers[0]
        if len(self.servers) > 1:
            server = self.servers[self.requests % len(self.servers)]
        if not server.paused:
            reply = effect()
            scheduler.place()
            return reply
        replies: list[Reply] = []
        waiting = scheduler.current
        assert waiting is not None

        end = scheduler.steady + TIMEOUT_S

        def happen() -> None:
            replies.append(effect())
            scheduler.wake(waiting)

        server.waiting.append(happen)
        while not replies and scheduler.steady < end:
            scheduler.wait(end - scheduler.steady)
        if not replies:
            raise _timeout(request)
        return replies[0]


class SimulatedTransport:
    """A host's agent's way to Placement."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        return self._network.ask(self._host, method, path, body, microversion)

    def close(self) -> None:
        """There is nothing to close."""


def _refused(what: str) -> PlacementUnavailable:
    return PlacementUnavailable(f"Placement did not answer to {what}: connection refused.", sent=False)


def _reset(what: str) -> PlacementUnavailable:
    return PlacementUnavailable(f"Placement did not answer to {what}: connection reset by peer.")


def _timeout(what: str) -> PlacementUnavailable:
    return PlacementUnavailable(f"Placement did not answer to {what} in time: timed out.", busy=True)


def _short(method: str, path: str, body: Any) -> str:
    """The request on one line."""
    text = ""
    if path.startswith("/allocations/") and isinstance(body, dict):
        held = body.get("allocations") or {}
        amounts = {uuid[:4]: each["resources"] for uuid, each in held.items()}
        text = f" {amounts} from generation {body.get('consumer_generation')}"
    elif path in ("/allocations", "/reshaper") and isinstance(body, dict):
        writes = body.get("allocations", body) if path == "/reshaper" else body
        text = " " + str(
            {
                consumer[:4]: (
                    {uuid[:4]: held["resources"] for uuid, held in each["allocations"].items()},
                    each.get("consumer_generation"),
                )
                for consumer, each in writes.items()
            }
        )
    return f"{method} {path}{text}"
