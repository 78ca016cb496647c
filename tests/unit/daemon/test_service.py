"""When the first audit comes: `agent.daemon.service`."""

import pytest

from agent.daemon.service import first_audit_s


@pytest.mark.parametrize("interval_s", [1, 30, 60, 600, 86400])
def test_the_first_audit_comes_within_a_minute_whatever_the_interval(interval_s: int) -> None:
    delays = [first_audit_s(interval_s) for _ in range(200)]
    assert all(0 < delay < 60 and delay <= interval_s for delay in delays)
    assert len({*delays}) > 1 or interval_s == 1, "hosts that start together do not stay in step"
