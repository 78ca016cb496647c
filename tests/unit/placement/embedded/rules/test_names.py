"""Traits, aggregates and resource classes."""

from __future__ import annotations

import pytest
from kits.embedded_api import CONCURRENT, Api, new

AVX = "HW_CPU_X86_AVX"


def traits(api: Api, query: str = "") -> set[str]:
    return set(api.done("GET", f"/traits{query}")["traits"])


def test_standard_traits_are_known_and_cannot_be_deleted(api: Api) -> None:
    assert AVX in traits(api)
    assert api.ask("GET", f"/traits/{AVX}").status == 204
    api.refused(400, "DELETE", f"/traits/{AVX}")


def test_a_custom_trait_is_made_once_and_deleted_when_unused(api: Api) -> None:
    made = api.ask("PUT", "/traits/CUSTOM_A")
    assert (made.status, made.headers["location"]) == (201, "/traits/CUSTOM_A")
    assert api.ask("PUT", "/traits/CUSTOM_A").status == 204
    host = api.provider("host")
    api.set_traits(host, "CUSTOM_A")
    api.refused(409, "DELETE", "/traits/CUSTOM_A")
    api.set_traits(host)
    api.done("DELETE", "/traits/CUSTOM_A")
    api.refused(404, "GET", "/traits/CUSTOM_A")
    api.refused(404, "DELETE", "/traits/CUSTOM_A")


@pytest.mark.parametrize("name", ["A", "CUSTOM_", "CUSTOM_a", "CUSTOM_" + "A" * 249])
def test_custom_names_have_a_form(api: Api, name: str) -> None:
    api.refused(400, "PUT", f"/traits/{name}")
    api.refused(400, "PUT", f"/resource_classes/{name}")
    api.refused(400, "POST", "/resource_classes", {"name": name})


def test_the_list_of_traits_is_filtered(api: Api) -> None:
    for name in ("CUSTOM_A", "CUSTOM_AB", "CUSTOM_B"):
        api.done("PUT", f"/traits/{name}")
    api.set_traits(api.provider("host"), "CUSTOM_A", AVX)
    assert traits(api, "?name=startswith:CUSTOM_A") == {"CUSTOM_A", "CUSTOM_AB"}
    assert traits(api, "?name=in:CUSTOM_B,CUSTOM_NONE") == {"CUSTOM_B"}
    assert traits(api, "?associated=true") == {"CUSTOM_A", AVX}
    assert traits(api, "?associated=False&name=startswith:CUSTOM") == {"CUSTOM_AB", "CUSTOM_B"}
    for query in ("?name=CUSTOM_A", "?associated=maybe", "?nope=1"):
        api.refused(400, "GET", f"/traits{query}")


def test_only_a_changed_set_of_traits_raises_the_generation(api: Api) -> None:
    host = api.provider("host")
    url = f"/resource_providers/{host}/traits"
    assert api.set_traits(host, AVX) == {"traits": [AVX], "resource_provider_generation": 1}
    assert api.set_traits(host, AVX)["resource_provider_generation"] == 1
    api.refused(409, "PUT", url, {"traits": [], "resource_provider_generation": 0}, code=CONCURRENT)
    api.refused(400, "PUT", url, {"traits": ["CUSTOM_NONE"], "resource_provider_generation": 1})
    api.refused(400, "PUT", url, {"traits": [""], "resource_provider_generation": 1})
    api.refused(400, "PUT", url, {"traits": AVX, "resource_provider_generation": 1})
    api.done("DELETE", url)
    api.done("DELETE", url)
    assert api.done("GET", url) == {"traits": [], "resource_provider_generation": 2}


def test_aggregates_have_a_generation_from_1_19_on(api: Api) -> None:
    host, aggregate = api.provider("host"), new()
    url = f"/resource_providers/{host}/aggregates"
    assert api.done("PUT", url, [aggregate], mv="1.18") == {"aggregates": [aggregate]}
    assert api.generation(host) == 0
    body = {"aggregates": [aggregate], "resource_provider_generation": 0}
    shown = {"aggregates": [aggregate], "resource_provider_generation": 1}
    assert api.done("PUT", url, body) == api.done("GET", url) == shown
    api.refused(409, "PUT", url, body, code=CONCURRENT)
    body["resource_provider_generation"] = 1
    for aggregates in ([aggregate, aggregate], ["no"], None):
        api.refused(400, "PUT", url, body | {"aggregates": aggregates})
    api.refused(400, "PUT", url, [aggregate])
    api.refused(404, "GET", url, mv="1.0")


def test_custom_classes_live_and_die(api: Api) -> None:
    made = api.ask("POST", "/resource_classes", {"name": "CUSTOM_A"}, mv="1.2")
    assert (made.status, made.headers["location"]) == (201, "/resource_classes/CUSTOM_A")
    api.refused(409, "POST", "/resource_classes", {"name": "CUSTOM_A"})
    assert [api.ask("PUT", f"/resource_classes/CUSTOM_{x}").status for x in "AB"] == [204, 201]
    shown = api.done("GET", "/resource_classes/CUSTOM_A")
    assert shown == {"name": "CUSTOM_A", "links": [{"rel": "self", "href": "/resource_classes/CUSTOM_A"}]}
    assert shown in api.done("GET", "/resource_classes")["resource_classes"]
    host = api.provider("host", {"CUSTOM_A": 1})
    api.refused(409, "DELETE", "/resource_classes/CUSTOM_A")
    api.done("DELETE", f"/resource_providers/{host}/inventories/CUSTOM_A")
    api.done("DELETE", "/resource_classes/CUSTOM_A")
    api.refused(404, "GET", "/resource_classes/CUSTOM_A")
    api.refused(404, "DELETE", "/resource_classes/CUSTOM_A")
    api.refused(400, "DELETE", "/resource_classes/VCPU")


def test_up_to_1_6_put_renames_a_class_everywhere(api: Api) -> None:
    for name in ("CUSTOM_A", "CUSTOM_B"):
        api.done("PUT", f"/resource_classes/{name}")
    host, consumer = api.provider("host", {"CUSTOM_A": 4}), new()
    api.claim(consumer, {host: {"CUSTOM_A": 3}})
    url = "/resource_classes/CUSTOM_A"
    api.refused(409, "PUT", url, {"name": "CUSTOM_B"}, mv="1.6")
    api.refused(400, "PUT", url, {"name": "VCPU"}, mv="1.6")
    api.refused(400, "PUT", "/resource_classes/VCPU", {"name": "CUSTOM_C"}, mv="1.6")
    api.refused(404, "PUT", "/resource_classes/CUSTOM_Z", {"name": "CUSTOM_C"}, mv="1.6")
    assert api.done("PUT", url, {"name": "CUSTOM_C"}, mv="1.6")["name"] == "CUSTOM_C"
    assert api.usage(host) == {"CUSTOM_C": 3}
    assert api.held(consumer) == {host: {"CUSTOM_C": 3}}
    assert api.done("GET", f"/resource_providers/{host}/inventories/CUSTOM_C")["total"] == 4
    api.refused(404, "GET", url)
