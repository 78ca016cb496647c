"""How a placement that comes back is met by hosts that waited for it. A simulation, on a clock of its own.

Placement was away for an hour. It answers so many requests a second, one after the other; a host whose
request is not answered within its timeout starts over later. Four ways to wait are compared: all at the same
moment of each minute, doubling without jitter, full jitter with one cap, and as the agent does it.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agent.backoff import MAX_S, Backoff

AWAY_S = 3600.0
TIMEOUT_S = 15.0
PER_SECOND = 100.0
GIVE_UP_S = 3600.0
BAR = 50

Wait = Callable[[bool], float]
"""Given whether somebody was there: seconds until the next try."""


@dataclass
class Met:
    """What the service saw once it was back: {second: requests that came in}, and when hosts were done."""

    came: Counter[int]
    done: list[float]
    wasted: int

    @property
    def peak(self) -> int:
        return max(self.came.values())


class Clock:
    now = 0.0


def as_the_agent(clock: Clock, dice: random.Random) -> Wait:
    backoff = Backoff(clock=lambda: clock.now, uniform=dice.uniform)
    return lambda busy: backoff.failed(busy=busy)


def full_jitter(clock: Clock, dice: random.Random) -> Wait:
    backoff = Backoff(clock=lambda: clock.now, uniform=dice.uniform)
    return lambda _: backoff.failed()


def doubling(_clock: Clock, _dice: random.Random) -> Wait:
    failures = iter(range(10**9))
    return lambda _: min(MAX_S, 2.0 ** (min(next(failures), 10) + 1))


def each_minute(clock: Clock, _dice: random.Random) -> Wait:
    return lambda _: MAX_S - clock.now % MAX_S


def simulate(hosts: int, requests: int, way: Callable[[Clock, random.Random], Wait], seed: int = 1) -> Met:
    """`requests` is how many a host sends, one after the other, until it is back in order."""
    clock, dice = Clock(), random.Random(seed)
    waits = [way(clock, dice) for _ in range(hosts)]
    left = [requests] * hosts
    met = Met(Counter(), [], 0)
    clock.now = -AWAY_S
    events = [(clock.now + wait(False), host) for host, wait in enumerate(waits)]
    heapq.heapify(events)
    free = 0.0
    while events and clock.now < GIVE_UP_S:
        clock.now, host = heapq.heappop(events)
        if clock.now < 0:
            heapq.heappush(events, (clock.now + waits[host](False), host))
            continue
        met.came[int(clock.now)] += 1
        free = max(free, clock.now) + 1 / PER_SECOND
        if free - clock.now > TIMEOUT_S:
            met.wasted += 1
            left[host] = requests
            clock.now += TIMEOUT_S
            heapq.heappush(events, (clock.now + waits[host](True), host))
            continue
        left[host] -= 1
        if left[host]:
            heapq.heappush(events, (free, host))
        else:
            met.done.append(free)
    return met


def show(hosts: int, requests: int) -> None:
    print(f"\n{hosts} hosts, {requests} requests each, a service of {PER_SECOND:g} requests a second")
    print(f"{'':<24} {'peak reqs/s':>12} {'99 % back, s':>13} {'all back, s':>12} {'wasted':>8}")
    for name, way in (
        ("each minute, at once", each_minute),
        ("doubling, no jitter", doubling),
        ("full jitter, one cap", full_jitter),
        ("as the agent", as_the_agent),
    ):
        met = simulate(hosts, requests, way)
        done = sorted(met.done)
        last = f"{done[-1]:>12.0f}" if len(done) == hosts else f"{'never':>12}"
        share = f"{done[int(hosts * 0.99) - 1]:>13.0f}" if len(done) >= hosts * 0.99 else f"{'never':>13}"
        print(f"{name:<24} {met.peak:>12} {share} {last} {met.wasted:>8}")


def curve(hosts: int, requests: int, seconds: int, step: int) -> None:
    met = simulate(hosts, requests, as_the_agent)
    rows = [sum(met.came[at + n] for n in range(step)) / step for at in range(0, seconds, step)]
    print(f"\nrequests a second that come in, {hosts} hosts, {requests} each, as the agent does it")
    for number, rate in enumerate(rows):
        print(f"{number * step:>4} s {'#' * round(rate / max(rows) * BAR):<{BAR}} {rate:6.1f}")


def main() -> None:
    for hosts in (1000, 10_000):
        for requests in (1, 3, 21):
            show(hosts, requests)
    curve(1000, 3, 90, 5)
    curve(10_000, 3, 900, 60)


if __name__ == "__main__":
    main()
