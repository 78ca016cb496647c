"""One function call a request: errors, the request id, and who may be admitted."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from kits.embedded_api import Api

from agent.clock import HostClock
from agent.placement.embedded import Core
from agent.placement.embedded.problems import FORBIDDEN, RequestRefused
from agent.placement.embedded.rules import BARRED_KEPT_S, BARRED_TYPE


def test_each_response_has_its_microversion_and_a_request_id(api: Api) -> None:
    first, second = (api.ask("GET", "/traits", mv="1.20") for _ in range(2))
    assert first.headers["openstack-api-version"] == "placement 1.20"
    assert first.headers["x-openstack-request-id"] != second.headers["x-openstack-request-id"]


def test_the_header_decides_without_a_microversion(api: Api) -> None:
    headers = {"OpenStack-API-Version": "placement 1.39"}
    assert api.core.request("GET", "/traits", headers=headers).status == 200
    assert api.core.request("GET", "/traits").status == 404, "1.0 has no traits"
    refused = api.core.request("GET", "/", microversion="1.99")
    assert refused.status == 406 and refused.body["errors"][0]["max_version"] == "1.39"


def test_a_caller_may_be_refused_before_the_body_is_read(api: Api) -> None:
    def admit() -> None:
        raise RequestRefused(FORBIDDEN, "not you")

    answer = api.core.request("PUT", "/traits/CUSTOM_T", microversion="1.39", admit=admit)
    assert (answer.status, answer.body["errors"][0]["detail"]) == (403, "not you")
    assert api.ask("GET", "/traits/CUSTOM_T").status == 404


def test_a_defect_is_a_500_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core.open(tmp_path)
    monkeypatch.setattr(core, "_store", None)
    answer = core.request("GET", "/traits", microversion="1.39")
    assert answer.status == 500 and "AttributeError" in answer.body["errors"][0]["detail"]


@pytest.mark.parametrize("step_s", [sign * 4 * 365 * 86_400.0 for sign in (1, -1)])
def test_a_consumer_is_barred_for_a_day_whatever_the_wall_clock_is_set_to(
    tmp_path: Path, step_s: float
) -> None:
    """A first write that another host's agent sent minutes ago may still come."""
    now = {"steady": 5000.0, "ahead": 1_800_000_000.0}
    core = Core.open(tmp_path, clock=HostClock(lambda: now["steady"] + now["ahead"], lambda: now["steady"]))
    api = Api(core)

    def bar() -> str:
        consumer = str(uuid4())
        empty = {"allocations": {}, "project_id": "p", "user_id": "u", "consumer_type": BARRED_TYPE}
        api.done("PUT", f"/allocations/{consumer}", {**empty, "consumer_generation": None})
        return consumer

    try:
        first = bar()
        now["ahead"] += step_s
        now["steady"] += BARRED_KEPT_S - 1
        second = bar()
        assert {first, second} <= core._store.model.consumers.keys()
        now["steady"] += 2
        bar()
        assert (
            core._store.model.consumers.keys().isdisjoint({first}) and second in core._store.model.consumers
        )
    finally:
        core.close()
