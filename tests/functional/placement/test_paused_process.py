"""Two OpenStack Placement processes on one database behind a balancer; one is paused, then goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import GONE, HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import requests
from kits.placements import OpenStack
from kits.tracker import HOST, Kit, request

from agent.errors import PlacementUnavailable
from agent.placement.client import PlacementClient

pytest.importorskip("placement", reason="the real Placement is installed with the test extra")

GOES_ON_WITHIN_S = 10.0
LATE = 20


@pytest.fixture
def second(tmp_path: Path) -> Iterator[tuple[OpenStack, OpenStack]]:
    """Two processes on one database."""
    first = OpenStack.on_sqlite(tmp_path)
    other = OpenStack.on_sqlite(tmp_path)
    other.options["timeout"] = 1
    yield first, other
    other.down()
    first.down()


def test_what_a_paused_process_executes_late_changes_nothing(
    second: tuple[OpenStack, OpenStack], tmp_path: Path
) -> None:
    healthy, paused = second
    state = tmp_path / "agent"
    state.mkdir()
    with Kit(state, HOST, healthy) as kit, closing(paused.transport()) as slow:
        released, abandoned = request(PCPU=2), request(PCPU=2)
        kit.tracker.claim(released)
        with paused.hanging():
            kit.tap.answer = lambda sent: sent.to(slow) if sent.method == "PUT" else None
            assert kit.tracker.release(released.consumer) is False
            with pytest.raises(PlacementUnavailable, match="not known yet"):
                kit.tracker.claim(abandoned)
            kit.tap.answer = None
            assert kit.tracker.deliver() == 2
            kit.tracker.claim(released)
            before = kit.placed_all()
            assert set(before) == {released.consumer}
        probe = PlacementClient(slow)
        until = time.monotonic() + GOES_ON_WITHIN_S
        while time.monotonic() < until:  # its one thread answers after what it was sent before
            try:
                probe.allocations_of(str(uuid4()))
                break
            except PlacementUnavailable:
                continue
        assert kit.placed_all() == before
        kit.check()


def test_what_a_test_sent_and_the_shared_server_does_late_is_not_there_for_the_next_test(
    openstack: OpenStack,
) -> None:
    """Its clients have given up: the requests wait in the server, and another client asks once more."""
    openstack.empty()
    former = openstack.options["endpoint_override"]
    headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
    with ExitStack() as stack:
        with openstack.hanging():
            for number in range(LATE):
                late = HTTPConnection("127.0.0.1", openstack.port)
                stack.callback(late.close)
                body = json.dumps({"name": f"late {number}"})
                path = f"{urlsplit(former).path}/resource_providers"
                late.request("POST", path, body, {**headers, "Content-Type": "application/json"})
        openstack.empty()
        with closing(openstack.transport()) as transport, closing(PlacementClient(transport)) as client:
            answer = requests.post(
                f"{former}/resource_providers", json={"name": "late"}, headers=headers, timeout=10
            )
            assert answer.status_code == GONE
            time.sleep(0.5)
            for name in ("late", *(f"late {number}" for number in range(LATE))):
                assert client.find_provider(name=name) is None
