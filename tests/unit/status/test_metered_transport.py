"""Each request to Placement is counted by method and status, and timed."""

from typing import Any

import pytest

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply
from agent.status.metered_transport import MeteredTransport
from agent.status.metrics import Metrics


class Scripted:
    """A transport whose answer takes two seconds of `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.error: PlacementUnavailable | None = None
        self.closed = False

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        self.now += 2
        if self.error is not None:
            raise self.error
        return Reply(204, None, {})

    def close(self) -> None:
        self.closed = True


def test_answers_and_silence_are_counted_and_timed() -> None:
    inner, metrics = Scripted(), Metrics()
    transport = MeteredTransport(inner, metrics, lambda: inner.now)
    assert transport.request("PUT", "/x", microversion="1.39").status == 204
    for error in (PlacementUnavailable("No answer."), PlacementUnavailable("Busy.", status=503)):
        inner.error = error
        with pytest.raises(PlacementUnavailable):
            transport.request("GET", "/x", microversion="1.39")

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"plimsoll_placement_{name}", labels)

    assert value("requests_total", method="PUT", status="204") == 1
    assert value("requests_total", method="GET", status="none") == 1
    assert value("requests_total", method="GET", status="503") == 1
    assert value("request_duration_seconds_sum", method="GET") == 4
    transport.close()
    assert inner.closed
