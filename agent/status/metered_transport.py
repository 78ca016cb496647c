"""A transport to Placement that counts and times its requests."""

import time
from collections.abc import Callable
from typing import Any

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply, Transport, is_certain
from agent.status.metrics import NO_ANSWER, Metrics


class MeteredTransport:
    """Sends through `inner`; `timer` gives seconds of a steady clock."""

    def __init__(
        self, inner: Transport, metrics: Metrics, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        self._inner = inner
        self._metrics = metrics
        self._timer = timer

    @property
    def certain(self) -> bool:
        """See `agent.placement.transport.is_certain`."""
        return is_certain(self._inner)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """See `agent.placement.transport.Transport`, as for `close`."""
        began, status = self._timer(), NO_ANSWER
        try:
            reply = self._inner.request(method, path, body, microversion=microversion)
            status = str(reply.status)
            return reply
        except PlacementUnavailable as error:
            status = str(error.status or NO_ANSWER)
            raise
        finally:
            self._metrics.placement_seconds.labels(method).observe(self._timer() - began)
            self._metrics.placement_requests.labels(method, status).inc()

    def close(self) -> None:
        """Close `inner`."""
        self._inner.close()
