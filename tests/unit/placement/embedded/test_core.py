"""One function call a request: errors, the request id, who may be admitted; and what holds for every route:
microversions, headers, media types, methods, and paths that are none.
"""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from kits.embedded_api import Api

from agent.clock import HostClock
from agent.placement.embedded import Core
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.core import ROUTES, Route
from agent.placement.embedded.problems import FORBIDDEN, RequestRefused
from agent.placement.embedded.rules import BARRED_KEPT_S, BARRED_TYPE


def test_each_response_has_its_microversion_and_a_request_id(api: Api) -> None:
    first, second = (api.ask("GET", "/traits", mv="1.20") for _ in range(2))
    assert first.headers["openstack-api-version"] == "placement 1.20"
    assert first.headers["x-openstack-request-id"] != second.headers["x-openstack-request-id"]


def test_a_caller_may_be_refused_before_the_body_is_read(api: Api) -> None:
    def admit() -> None:
        raise RequestRefused(FORBIDDEN, "not you")

    answer = api.core.request("PUT", "/traits/CUSTOM_T", microversion="1.39", admit=admit)
    assert (answer.status, answer.body["errors"][0]["detail"]) == (403, "not you")
    assert api.ask("GET", "/traits/CUSTOM_T").status == 404


def test_a_defect_is_a_500_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core.open(tmp_path)
    monkeypatch.setattr(core._store, "reading", None)
    answer = core.request("GET", "/traits", microversion="1.39")
    assert answer.status == 500 and "TypeError" in answer.body["errors"][0]["detail"]


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

    with closing(core):
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


BORN = [
    (path, method, min(row.since for row in rows), rows)
    for path, methods in ROUTES.items()
    for method, rows in methods.items()
]


@pytest.mark.parametrize(("path", "method", "since", "rows"), BORN)
def test_a_route_is_served_from_its_microversion_on(
    api: Api, path: str, method: str, since: int, rows: tuple[Route, ...]
) -> None:
    path = re.sub(r"{.*?}", str(uuid.uuid4()), path)
    for minor in range(mv.MIN, mv.MAX + 1):
        answer = api.ask(method, path, None, mv=mv.text(minor))
        unborn = answer.body and "served from microversion" in str(answer.body)
        assert bool(unborn) == (minor < since), (minor, answer)
        assert not unborn or answer.status == rows[-1].before.status
        assert answer.status < 500
        assert answer.headers["openstack-api-version"] == f"placement 1.{minor}"
        assert answer.headers["vary"] == "openstack-api-version"
        assert re.fullmatch(r"req-[0-9a-f-]{36}", answer.headers["x-openstack-request-id"])


def test_the_version_document(api: Api) -> None:
    expected = {
        "versions": [
            {
                "id": "v1.0",
                "max_version": "1.39",
                "min_version": "1.0",
                "status": "CURRENT",
                "links": [{"rel": "self", "href": ""}],
            }
        ]
    }
    assert api.done("GET", "/") == api.done("GET", "") == api.core.request("GET", "/").body == expected


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        (None, "1.0"),
        ("placement latest", "1.39"),
        ("placement 1.7", "1.7"),
        ("compute 2.1, Placement 1.8", "1.8"),
        ("compute 2.1", "1.0"),
        ("placement 1.3, placement 1.4", "1.4"),
        ("placement", "1.0"),
    ],
)
def test_the_header_chooses_the_microversion(api: Api, wanted: str | None, got: str) -> None:
    headers = {} if wanted is None else {"OpenStack-API-Version": wanted}
    answer = api.core.request("GET", "/", headers=headers)
    assert answer.headers["openstack-api-version"] == f"placement {got}"


@pytest.mark.parametrize(
    ("wanted", "status"), [("1.40", 406), ("2.0", 406), ("0.9", 406), ("x", 400), ("1", 400), ("1.x", 400)]
)
def test_a_microversion_that_is_none(api: Api, wanted: str, status: int) -> None:
    answer = api.ask("GET", "/resource_providers", mv=wanted)
    assert answer.status == status
    assert "openstack-api-version" not in answer.headers
    (error,) = answer.body["errors"]
    assert "code" not in error
    assert error.get("max_version") == ("1.39" if status == 406 else None)


@pytest.mark.parametrize(
    "path", ["/nope", "/resource_providers/", "/resource_providers/x/", "//", "/traits/a/b"]
)
def test_paths_that_are_none(api: Api, path: str) -> None:
    error = api.refused(404, "GET", path)
    assert error["title"] == "Not Found"


@pytest.mark.parametrize("path", ROUTES)
def test_unknown_methods_are_told_the_known_ones(api: Api, path: str) -> None:
    answer = api.ask("PATCH", re.sub(r"{.*?}", "x", path))
    assert (answer.status, answer.headers["allow"]) == (405, ", ".join(ROUTES[path]))


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("", 200),
        ("*/*", 200),
        ("application/json", 200),
        ("text/html, application/*;q=0.5", 200),
        ("text/plain", 406),
        ("application/json;q=0, */*", 406),
        ("*/*;q=0, application/json", 200),
    ],
)
def test_accept_must_leave_room_for_json(api: Api, accept: str, status: int) -> None:
    assert api.core.request("GET", "/resource_providers", headers={"Accept": accept}).status == status


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("application/json", 400), ("Application/JSON; charset=UTF-8", 400), ("text/plain", 415), ("", 415)],
)
def test_a_body_must_be_json(api: Api, content_type: str, status: int) -> None:
    answer = api.core.request("POST", "/resource_providers", {}, headers={"Content-Type": content_type})
    assert answer.status == status


def test_the_caching_headers_came_with_1_15(api: Api) -> None:
    host = f"/resource_providers/{api.provider('host', {'VCPU': 1})}"
    for path in ("/", "/resource_providers", host, f"{host}/inventories", f"{host}/usages", "/traits"):
        old, now = (api.ask("GET", path, mv=wanted).headers for wanted in ("1.14", "1.15"))
        assert not {"cache-control", "last-modified"} & set(old)
        assert now["cache-control"] == "no-cache"
        assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", now["last-modified"])


def test_answers_do_not_share_the_cores_state(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4})
    consumer = str(uuid.uuid4())
    api.claim(consumer, {host: {"VCPU": 2}})
    before = api.whole()
    for path in (
        f"/allocations/{consumer}",
        f"/resource_providers/{host}/allocations",
        "/resource_providers",
    ):
        body = api.done("GET", path)
        for part in (body, *body.values()):
            if isinstance(part, dict):
                for inner in part.values():
                    if isinstance(inner, dict):
                        inner.clear()
                part.clear()
    assert api.whole() == before


def test_the_body_of_a_request_is_not_kept(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4})
    consumer = str(uuid.uuid4())
    resources = {"VCPU": 1}
    body = {
        "allocations": {host: {"resources": resources}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    api.done("PUT", f"/allocations/{consumer}", body)
    resources["VCPU"] = 4
    assert api.held(consumer) == {host: {"VCPU": 1}}
