"""A transport whose requests are counted and timed."""

import time
from collections.abc import Callable
from typing import Any

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply, Transport
from agent.status.metrics import NO_ANSWER, Meters


class MeteredTransport:
    """Sends by `inner`; `timer` gives seconds."""

    def __init__(
        self, inner: Transport, meters: Meters, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._meters = meters
        self._timer = timer

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        began, status = self._timer(), NO_ANSWER
        try:
            reply = self._inner.request(method, path, body, microversion=microversion)
            status = str(reply.status)
            return reply
        except PlacementUnavailable as error:
            status = str(error.status or NO_ANSWER)
            raise
        finally:
            self._meters.placement_seconds.labels(method).observe(self._timer() - began)
            self._meters.placement_requests.labels(method, status).inc()

    def close(self) -> None:
        self._inner.close()
