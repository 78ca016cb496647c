"""GET /allocation_candidates: what a response shows at each microversion."""

from __future__ import annotations

from typing import Any

from kits.embedded_api import Api


def candidates(api: Api, mv: str) -> dict[str, Any]:
    body: dict[str, Any] = api.done("GET", "/allocation_candidates?resources=VCPU:1", mv=mv)
    return body


def test_a_candidate_has_the_form_of_an_allocation_at_its_microversion(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4, "DISK_GB": 9})
    (request,) = candidates(api, "1.11")["allocation_requests"]
    assert request == {"allocations": [{"resource_provider": {"uuid": host}, "resources": {"VCPU": 1}}]}
    (request,) = candidates(api, "1.39")["allocation_requests"]
    assert request == {"allocations": {host: {"resources": {"VCPU": 1}}}, "mappings": {"": [host]}}


def test_summaries_show_more_at_later_microversions(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4, "DISK_GB": 9})
    child = api.provider("child", {"VGPU": 1}, parent=host)
    early, late = (candidates(api, mv)["provider_summaries"] for mv in ("1.16", "1.39"))
    assert early == {host: {"resources": {"VCPU": {"capacity": 4, "used": 0}}}}
    assert late.keys() == {host, child} and late[host]["resources"].keys() == {"VCPU", "DISK_GB"}
    assert late[child]["parent_provider_uuid"] == late[child]["root_provider_uuid"] == host


def test_a_limit_and_unknown_names(api: Api) -> None:
    for name in ("one", "other"):
        api.provider(name, {"VCPU": 4})
    body = api.done("GET", "/allocation_candidates?resources=VCPU:1&limit=1")
    assert len(body["allocation_requests"]) == 1
    for query in ("resources=CUSTOM_NONE:1", "resources=VCPU:1&required=CUSTOM_NONE"):
        api.refused(400, "GET", f"/allocation_candidates?{query}")
