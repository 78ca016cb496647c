"""Requests check what they contain; responses have caching headers by microversion."""

from __future__ import annotations

import pytest
from kits.embedded_api import Api

from agent.placement.embedded import validation
from agent.placement.embedded.handlers import Request, cache_headers, empty_response, json_response
from agent.placement.embedded.problems import RequestRefused
from agent.placement.embedded.validation import Query


def request(api: Api, minor: int, query: str = "", body: object = None) -> Request:
    return Request(api.core._store, minor, "GET", {}, Query(query), body)


def test_the_body_and_the_query_are_checked(api: Api) -> None:
    assert request(api, 39, "name=x").read_query(validation.LIST_TRAITS) == {"name": "x"}
    with pytest.raises(RequestRefused, match=r"^query "):
        request(api, 39, "other=x").read_query(validation.LIST_TRAITS)
    with pytest.raises(RequestRefused, match=r"^body "):
        request(api, 39, body=[]).read_body(validation.CUSTOM_CLASS)


def test_caching_headers_come_with_1_15(api: Api) -> None:
    assert cache_headers(request(api, 14), 0.0) == {}
    assert cache_headers(request(api, 15), 0.0) == {
        "cache-control": "no-cache",
        "last-modified": "Thu, 01 Jan 1970 00:00:00 GMT",
    }
    assert "last-modified" not in json_response(request(api, 15), {}, None).headers
    assert empty_response(201, {"location": "/x"}) == (201, {"location": "/x"}, None)
