"""Inventories: limits, defaults, generations."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import CONCURRENT, Api, new

IN_USE = "placement.inventory.inuse"
DEFAULTS = {
    "reserved": 0,
    "min_unit": 1,
    "max_unit": 2**31 - 1,
    "step_size": 1,
    "allocation_ratio": 1.0,
}


def test_what_is_left_out_gets_its_default(api: Api) -> None:
    host = api.provider("host")
    shown = api.set_inventories(host, {"VCPU": {"total": 4}, "DISK_GB": {"total": 9, "reserved": 2}})
    assert shown == {
        "resource_provider_generation": 1,
        "inventories": {
            "VCPU": {"total": 4} | DEFAULTS,
            "DISK_GB": {"total": 9} | DEFAULTS | {"reserved": 2},
        },
    }
    assert api.done("GET", f"/resource_providers/{host}/inventories") == shown


def test_every_write_of_inventories_raises_the_generation(api: Api) -> None:
    host = api.provider("host")
    url = f"/resource_providers/{host}/inventories"
    made = api.ask("POST", url, {"resource_class": "VCPU", "total": 4})
    assert (made.status, made.headers["location"]) == (201, f"{url}/VCPU")
    assert made.body == {"total": 4, "resource_provider_generation": 1} | DEFAULTS
    put = api.done("PUT", f"{url}/VCPU", {"total": 5, "resource_provider_generation": 1})
    assert (put["total"], put["resource_provider_generation"]) == (5, 2)
    assert api.done("GET", f"{url}/VCPU") == put
    same = {"VCPU": {"total": 5}}
    api.done("PUT", url, {"resource_provider_generation": 2, "inventories": same})
    api.done("DELETE", f"{url}/VCPU")
    assert api.generation(host) == 4
    api.done("DELETE", url)
    assert api.done("GET", url) == {"resource_provider_generation": 5, "inventories": {}}


def test_a_wrong_generation_is_a_concurrent_update(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4})
    url = f"/resource_providers/{host}/inventories"
    body = {"resource_provider_generation": 7, "inventories": {}}
    api.refused(409, "PUT", url, body, code=CONCURRENT)
    body = {"resource_provider_generation": 7, "total": 1}
    api.refused(409, "PUT", f"{url}/VCPU", body, code=CONCURRENT)
    api.refused(409, "POST", url, {"resource_class": "VCPU", "total": 1}, code=CONCURRENT)


def test_what_is_in_use_stays_but_may_shrink(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4, "DISK_GB": 4})
    api.claim(new(), {host: {"VCPU": 3}})
    url = f"/resource_providers/{host}/inventories"
    body = {"resource_provider_generation": 2, "inventories": {"DISK_GB": {"total": 1}}}
    api.refused(409, "PUT", url, body, code=IN_USE)
    api.refused(409, "DELETE", url, code=IN_USE)
    api.refused(409, "DELETE", f"{url}/VCPU", code=CONCURRENT)
    api.done("DELETE", f"{url}/DISK_GB")
    shrunk = api.set_inventories(host, {"VCPU": {"total": 1}})
    assert shrunk["inventories"]["VCPU"]["total"] == 1
    assert api.usage(host) == {"VCPU": 3}


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"total": 0},
        {"total": 2**31},
        {"total": "4"},
        {"total": True},
        {"total": 1.5},
        {"total": 4, "reserved": -1},
        {"total": 4, "reserved": 5},
        {"total": 4, "min_unit": 0},
        {"total": 4, "max_unit": 0},
        {"total": 4, "step_size": 0},
        {"total": 4, "allocation_ratio": -1.5},
        {"total": 4, "allocation_ratio": "1"},
        {"total": 4, "allocation_ratio": float("nan")},
        {"total": 4, "allocation_ratio": float("-inf")},
        {"total": 4, "allocation_ratio": 1e39},
        {"total": 4, "extra": 1},
    ],
)
def test_malformed_inventories_are_refused(api: Api, record: dict[str, Any]) -> None:
    host = api.provider("host", {"VCPU": 1})
    url = f"/resource_providers/{host}/inventories"
    body = {"resource_provider_generation": 1, "inventories": {"VCPU": record}}
    api.refused(400, "PUT", url, body)
    api.refused(400, "PUT", f"{url}/VCPU", record | {"resource_provider_generation": 1})
    api.refused(400, "POST", url, record | {"resource_class": "DISK_GB"})


@pytest.mark.parametrize(
    "record",
    [
        {"total": 4, "reserved": 4},
        {"total": 4, "allocation_ratio": 0},
        {"total": 4, "min_unit": 9, "max_unit": 5},
        {"total": 4.0, "max_unit": 2**31 - 1},
        {"total": 1, "allocation_ratio": -0.5},
    ],
)
def test_odd_inventories_are_taken(api: Api, record: dict[str, Any]) -> None:
    api.set_inventories(api.provider("host"), {"VCPU": record})


def test_before_1_26_something_must_be_left(api: Api) -> None:
    url = f"/resource_providers/{api.provider('host')}/inventories"
    for record in ({"total": 4, "reserved": 4}, {"total": 4, "allocation_ratio": 0.2}):
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": record}}
        api.refused(400, "PUT", url, body, mv="1.25")
        api.refused(400, "POST", url, record | {"resource_class": "VCPU"}, mv="1.25")


def test_unknown_classes(api: Api) -> None:
    host = api.provider("host", {"VCPU": 1})
    url = f"/resource_providers/{host}/inventories"
    for name in ("CUSTOM_NONE", "lower"):
        body = {"resource_provider_generation": 1, "inventories": {name: {"total": 1}}}
        api.refused(400, "PUT", url, body)
        api.refused(400, "POST", url, {"resource_class": name, "total": 1})
    body = {"resource_provider_generation": 1, "total": 1}
    api.refused(404, "PUT", f"{url}/CUSTOM_NONE", body)
    api.refused(400, "PUT", f"{url}/DISK_GB", body)
    api.refused(404, "GET", f"{url}/DISK_GB")
    api.refused(404, "DELETE", f"{url}/DISK_GB")


def test_before_1_5_all_inventories_cannot_be_deleted(api: Api) -> None:
    api.refused(405, "DELETE", f"/resource_providers/{api.provider('host')}/inventories", mv="1.4")


def test_without_inventories_there_is_no_last_modified(api: Api) -> None:
    host = api.provider("host")
    url = f"/resource_providers/{host}/inventories"
    assert "last-modified" not in api.ask("GET", url).headers
    api.set_inventories(host, {"VCPU": {"total": 1}})
    assert "last-modified" in api.ask("GET", url).headers
