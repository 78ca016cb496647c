"""The queries of nova's scheduler, which tests send to both placements, are those that nova itself builds."""

from __future__ import annotations

import pytest
from kits.nova_queries import BEFORE_OWNERS, MICROVERSION, WITH_OWNERS
from nova import objects
from nova.scheduler import request_filter, utils
from nova.scheduler.client.report import SAME_SUBTREE_VERSION

from parity.nova_query import CONTEXT, FILTERS, guest, request_spec
from parity.query import Demand


def query(monkeypatch: pytest.MonkeyPatch, oldest_compute: int) -> str:
    """The query for a flavor; `oldest_compute` is the least service version of all nova-compute services."""
    monkeypatch.setattr(
        objects.service, "get_minimum_version_all_cells", lambda context, binaries: oldest_compute
    )
    flavor, image = guest(Demand(1, 512, 10, {}))
    no_devices = objects.InstancePCIRequests(requests=[])
    spec = request_spec(flavor, image, requested_resources=[], pci_requests=no_devices)
    for prefilter in (*FILTERS, request_filter.owner_nova_filter):
        prefilter(CONTEXT, spec)
    request = utils.resources_from_request_spec(CONTEXT, spec, None)
    # SchedulerReportClient.get_allocation_candidates sends this
    return f"/allocation_candidates?{request.to_querystring()}"


def test_a_nova_with_an_older_compute_asks_for_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    before = request_filter.MIN_COMPUTE_VERSION_OWNER_TRAIT - 1
    assert query(monkeypatch, before) == BEFORE_OWNERS


def test_a_nova_of_release_34_asks_for_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert query(monkeypatch, request_filter.MIN_COMPUTE_VERSION_OWNER_TRAIT) == WITH_OWNERS
    assert SAME_SUBTREE_VERSION == MICROVERSION
