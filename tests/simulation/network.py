"""Placement as the hosts see it, and what becomes of a request.

Either there are processes behind a balancer over one served core, or two served cores that share a journal,
with the addresses of both in each host's [placement]. A request takes effect at one moment; the simulator
chooses the moment, and whether the one who asked learns of it.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from agent.errors import PlacementUnavailable
from agent.placement.embedded.model import Model
from agent.placement.embedded.rules import Binding
from agent.placement.transport import Reply, Transport, reply_of_answer
from agent.placement.transport_http import HttpTransport
from simulation.journal import Cluster, RowMeets, ServerDied
from simulation.tasks import Process, Scheduler

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

    def __init__(
        self, scheduler: Scheduler, servers: int, trace: Callable[[str], None], *, shared: bool = False
    ) -> None:
        """`shared`: the servers are served cores that share a journal, and no balancer is before them."""
        self.scheduler = scheduler
        self.trace = trace
        self.shared = shared
        self.addresses = [f"http://server{number + 1}" for number in range(servers if shared else 1)]
        self.cluster = Cluster(scheduler, self.addresses, trace)
        self.servers = [Server(number + 1) for number in range(servers)]
        self.weather = Process("the network")
        self.fates: dict[str, deque[tuple[Fate, float]]] = {}
        self.cut: set[str] = set()
        self.observe: Callable[[Write], None] = lambda write: None
        self.bound = True
        """Whether the token of each host is for that host alone, as no OpenStack Placement has it."""
        self.requests = 0
        self.internal_errors: list[str] = []

    @property
    def model(self) -> Model:
        """Placement's records; for the oracle."""
        return self.cluster.model

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
        self.cluster.meets.clear()
        for server in self.servers:
            self.resume(server.number)
        self.cluster.settle()

    def meet(self, met: RowMeets) -> None:
        """What the next row meets that a host's request makes."""
        if self.shared or met is not RowMeets.TAKEOVER:
            self.cluster.meets.append(met)

    def kill(self) -> None:
        """Kill the active server, if one is."""
        if self.cluster.active is not None:
            self.cluster.kill(self.cluster.active)

    def pause(self, number: int) -> None:
        self.servers[number - 1].paused = True
        if self.shared:
            self.cluster.silence(number - 1)

    def resume(self, number: int) -> None:
        server = self.servers[number - 1]
        server.paused = False
        if self.shared:
            self.cluster.resume(number - 1)
        while server.waiting:
            self.scheduler.spawn("a waiting request", self.weather, server.waiting.popleft())

    def do(
        self,
        author: str,
        method: str,
        path: str,
        body: Any,
        microversion: str,
        *,
        at: int | None = None,
        key: str | None = None,
    ) -> Reply:
        """The effect, and the answer of that server: by default of an active one, which is spared.

        While `bound`, the token of each host is bound to it. Raises PlacementUnavailable where the server is
        killed meanwhile, or before.
        """
        cluster = self.cluster
        cluster.spared = at is None
        if at is None:
            if cluster.active is None:
                cluster.settle()
            at = cluster.active or 0
        if cluster.is_dead[at]:
            raise _reset(f"{method} {path}")
        before, totals = self.holdings(), self._totals() if path == "/reshaper" else {}
        host = author.removeprefix(CLONE)
        binding = Binding(author, host) if self.bound and author != SOMEBODY else None
        answer = None
        with suppress(ServerDied):
            answer = cluster.request(
                at, method, path, copy.deepcopy(body), microversion=microversion, binding=binding, key=key
            )
        # A late write may name a consumer that another host has made anew: a bound token does not write it.
        has_something = bool(before.get(path.rpartition("/")[2]))
        is_others = has_something and "has nothing on that host" in str(answer and answer.body)
        if answer is not None and answer.status in (403, 500) and not is_others:
            self.internal_errors.append(f"{method} {path}: {answer.body}")
        if method != "GET":
            short = _short(method, path, body)
            self.trace(f"{author}: {short} -> {answer.status if answer else 'no answer'}")
            after = self.holdings()
            if before != after:
                changed = {
                    consumer: (before.get(consumer, {}), after.get(consumer, {}))
                    for consumer in sorted({*before, *after})
                    if before.get(consumer) != after.get(consumer)
                }
                reshaped = path == "/reshaper" and totals != self._totals()
                self.observe(Write(self.scheduler.now, author, short, changed, reshaped))
        if answer is None:
            raise _reset(f"{method} {path}")
        return Reply(answer.status, answer.body, answer.headers)

    def ask(
        self,
        author: str,
        method: str,
        path: str,
        body: Any,
        microversion: str,
        *,
        at: int = 0,
        key: str | None = None,
        wait_s: float = TIMEOUT_S,
    ) -> Reply:
        """A request of a host's agent: the caller waits for what becomes of it."""
        self.requests += 1
        scheduler = self.scheduler
        scheduler.place()
        if author in self.cut or self.cluster.is_dead[at]:
            raise _refused(f"{method} {path}")
        fate, later_s = Fate.ANSWERED, 0.0
        if method != "GET" and self.fates.get(author):
            fate, later_s = self.fates[author].popleft()
            self.trace(f"{author}: {_short(method, path, body)} {fate.value}")

        def effect() -> Reply:
            return self.do(author, method, path, body, microversion, at=at, key=key)

        def later() -> None:
            def happen() -> None:
                scheduler.sleep(later_s)
                with suppress(PlacementUnavailable):
                    effect()

            scheduler.spawn("a late request", self.weather, happen)

        becomes = BECOMES[fate]
        if becomes.done_later:
            later()
        if becomes.ends == "answered":
            server = self.servers[at if self.shared else self.requests % len(self.servers)]
            return self._through(server, f"{method} {path}", effect, wait_s)
        if becomes.done:
            effect()
            scheduler.place()
        if becomes.ends == "timeout":
            scheduler.sleep(wait_s)
            raise _timeout(f"{method} {path}")
        if becomes.ends == "refused":
            raise _refused(f"{method} {path}")
        if becomes.ends == "reset":
            raise _reset(f"{method} {path}")
        return reply_of_answer(method, path, int(becomes.ends), None, {})

    def _through(self, server: Server, request: str, effect: Callable[[], Reply], wait_s: float) -> Reply:
        scheduler = self.scheduler
        if not server.paused:
            reply = effect()
            scheduler.place()
            return reply
        outcomes: list[Reply | PlacementUnavailable] = []
        waiting = scheduler.current
        assert waiting is not None

        end = scheduler.steady + wait_s

        def happen() -> None:
            try:
                outcomes.append(effect())
            except PlacementUnavailable as error:
                outcomes.append(error)
            scheduler.wake(waiting)

        server.waiting.append(happen)
        while not outcomes and scheduler.steady < end:
            scheduler.wait(end - scheduler.steady)
        if not outcomes:
            raise _timeout(request)
        if isinstance(outcomes[0], PlacementUnavailable):
            raise outcomes[0]
        return outcomes[0]

    def transport(self, host: str) -> Transport:
        """A host's agent's way to Placement."""
        if not self.shared:
            return SimulatedTransport(self, host)
        adapter: Any = SimpleNamespace(
            endpoint_override=None,
            request=partial(self._answer, host),
            session=SimpleNamespace(session=SimpleNamespace(close=lambda: None)),
        )
        return HttpTransport(adapter, timeout_s=TIMEOUT_S, addresses=self.addresses)

    def _answer(self, host: str, path: str, method: str, **how: Any) -> Any:
        """As a keystoneauth adapter's `request`."""
        address: str = how["endpoint_override"]
        reply = self.ask(
            host,
            method,
            path,
            how["json"],
            how["microversion"],
            at=self.addresses.index(address),
            key=how["headers"].get("Idempotency-Key"),
            wait_s=how["timeout"][1],
        )
        content = b"" if reply.body is None else json.dumps(reply.body).encode()
        return SimpleNamespace(
            status_code=reply.status, headers=reply.headers, content=content, is_redirect=False, url=address
        )


class SimulatedTransport:
    """To a Placement behind a balancer."""

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
