"""A way to Placement that tests listen to, cut, and answer on in Placement's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply, Transport


class Sent(NamedTuple):
    """A request as a transport was given it."""

    method: str
    path: str
    body: Any
    microversion: str

    @property
    def call(self) -> str:
        """ "PUT /allocations/<uuid>", without a query."""
        return f"{self.method} {self.path.split('?')[0]}"

    def to(self, transport: Transport) -> Reply:
        """Send it there, once more or for the first time."""
        return transport.request(self.method, self.path, self.body, microversion=self.microversion)


Answer = Callable[[Sent], Reply | None]


class Tapped(Protocol):
    """What tells `before` and `after` of each of its steps; either may raise."""

    before: Callable[[str], None]
    after: Callable[[str], None]


def nothing(_: str) -> None:
    """What a tap does until a test says more."""


class Wire:
    """A transport over `inner`, which it closes with itself unless that is `shared`.

    `asked` are the requests so far, `calls` the same as texts. `before` and `after` are told the call of each
    request that Placement does; either may raise. `answer` may answer in Placement's place, or raise; None
    passes the request on. While `cut` is set no request is done, while `lost` is set no answer comes back.
    """

    def __init__(
        self, inner: Transport | None = None, answer: Answer | None = None, *, shared: bool = False
    ) -> None:
        self._inner, self._shared = inner, shared
        self.answer = answer
        self.asked: list[Sent] = []
        self.calls: list[str] = []
        self.before: Callable[[str], None] = nothing
        self.after: Callable[[str], None] = nothing
        self.cut = self.lost = self.closed = False

    @property
    def inner(self) -> Transport:
        assert self._inner is not None, "what is not answered has to be passed on"
        return self._inner

    @inner.setter
    def inner(self, inner: Transport) -> None:
        self._inner = inner

    @property
    def requests(self) -> int:
        """How many there were so far."""
        return len(self.asked)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        sent = Sent(method, path, body, microversion)
        self.asked.append(sent)
        self.calls.append(sent.call)
        self.before(sent.call)
        if self.cut:
            raise PlacementUnavailable("Placement does not answer.")
        if self.answer is not None and (answer := self.answer(sent)) is not None:
            return answer
        reply = sent.to(self.inner)
        self.after(sent.call)
        if self.lost:
            raise PlacementUnavailable("Placement's answer was lost.")
        return reply

    def close(self) -> None:
        self.closed = True
        if self._inner is not None and not self._shared:
            self._inner.close()

    def once(self, only: str, act: Callable[[], object], *, after: bool = False) -> None:
        """At the next request that begins so, `act`: before it is sent, or after it was done."""

        def told(call: str) -> None:
            if call.startswith(only):
                setattr(self, moment, nothing)
                act()

        moment = "after" if after else "before"
        setattr(self, moment, told)

    @contextmanager
    def away(self, *, after: bool = False, only: str = "", sent: bool = False) -> Iterator[None]:
        """Placement does not answer, `after`: although it did what was asked; `only` such requests.

        `sent`: for all that its client knows, Placement may have got the request.
        """

        def silent(call: str) -> None:
            if call.startswith(only):
                raise PlacementUnavailable("placement is away, as it was told", sent=after or sent)

        setattr(self, "after" if after else "before", silent)
        try:
            yield
        finally:
            self.before = self.after = nothing

    @contextmanager
    def gone_from(self, only: str, *, after: bool = True) -> Iterator[None]:
        """From the next request on that begins so, Placement is away; `after`: it did that one."""

        def gone() -> None:
            self.cut = True
            raise PlacementUnavailable("placement is away, as it was told")

        self.once(only, gone, after=after)
        try:
            yield
        finally:
            self.before, self.after, self.cut = nothing, nothing, False


@contextmanager
def telling(told: Callable[[str], None], *taps: Tapped) -> Iterator[None]:
    """In the block, each of these calls `told` before and after each of its steps."""
    for each in taps:
        each.before = each.after = told
    try:
        yield
    finally:
        for each in taps:
            each.before = each.after = nothing
