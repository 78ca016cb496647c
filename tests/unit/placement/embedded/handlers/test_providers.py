"""Resource providers: life, tree, filters."""

from __future__ import annotations

import pytest
from kits.embedded_api import Api, new

DUPLICATE = "placement.duplicate_name"


def names(api: Api, query: str, mv: str = "1.39") -> set[str]:
    shown = api.done("GET", f"/resource_providers?{query}", mv=mv)["resource_providers"]
    return {provider["name"] for provider in shown}


def test_a_new_provider_is_shown_with_its_tree_and_links(api: Api) -> None:
    uuid = new()
    answer = api.ask("POST", "/resource_providers", {"name": "host", "uuid": uuid.replace("-", "")})
    assert answer.status == 200
    assert answer.headers["location"] == f"/resource_providers/{uuid}"
    assert answer.body == api.done("GET", f"/resource_providers/{uuid}")
    assert {key: value for key, value in answer.body.items() if key != "links"} == {
        "uuid": uuid,
        "name": "host",
        "generation": 0,
        "parent_provider_uuid": None,
        "root_provider_uuid": uuid,
    }
    rels = [link["rel"] for link in answer.body["links"]]
    assert rels == ["self", "inventories", "usages", "aggregates", "traits", "allocations"]


def test_before_1_20_a_new_provider_is_answered_201_and_empty(api: Api) -> None:
    answer = api.ask("POST", "/resource_providers", {"name": "host"}, mv="1.19")
    assert (answer.status, answer.body) == (201, None)
    assert api.ask("GET", answer.headers["location"]).status == 200


@pytest.mark.parametrize(
    ("mv", "fields", "rels"),
    [
        ("1.0", 4, ["self", "inventories", "usages"]),
        ("1.1", 4, ["self", "inventories", "usages", "aggregates"]),
        ("1.6", 4, ["self", "inventories", "usages", "aggregates", "traits"]),
        ("1.11", 4, ["self", "inventories", "usages", "aggregates", "traits", "allocations"]),
        ("1.14", 6, ["self", "inventories", "usages", "aggregates", "traits", "allocations"]),
    ],
)
def test_older_microversions_show_less(api: Api, mv: str, fields: int, rels: list[str]) -> None:
    shown = api.done("GET", f"/resource_providers/{api.provider('host')}", mv=mv)
    assert (len(shown), [link["rel"] for link in shown["links"]]) == (fields, rels)


def test_name_and_uuid_are_taken_once(api: Api) -> None:
    uuid = api.provider("host")
    api.refused(409, "POST", "/resource_providers", {"name": "host"}, code=DUPLICATE)
    api.refused(409, "POST", "/resource_providers", {"name": "other", "uuid": uuid}, code=DUPLICATE)
    other = api.provider("other")
    api.refused(409, "PUT", f"/resource_providers/{other}", {"name": "host"}, code=DUPLICATE)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"name": ""},
        {"name": "x" * 201},
        {"name": 7},
        {"name": "x", "uuid": "no uuid"},
        {"name": "x", "extra": 1},
        {"name": "x", "parent_provider_uuid": "no uuid"},
        {"name": "x", "parent_provider_uuid": "00000000-0000-0000-0000-000000000001"},
        {
            "name": "x",
            "uuid": "00000000-0000-0000-0000-000000000001",
            "parent_provider_uuid": "00000000-0000-0000-0000-000000000001",
        },
    ],
)
def test_malformed_providers_are_refused(api: Api, body: object) -> None:
    api.refused(400, "POST", "/resource_providers", body)


def test_a_name_may_have_200_characters(api: Api) -> None:
    api.done("POST", "/resource_providers", {"name": "x" * 200})


def test_before_1_14_there_is_no_parent(api: Api) -> None:
    body = {"name": "x", "parent_provider_uuid": None}
    api.refused(400, "POST", "/resource_providers", body, mv="1.13")


def test_children_belong_to_their_roots_tree(api: Api) -> None:
    root = api.provider("root")
    child = api.provider("child", parent=root)
    grandchild = api.provider("grandchild", parent=child)
    assert api.done("GET", f"/resource_providers/{grandchild}")["root_provider_uuid"] == root
    for member in (root, child, grandchild):
        assert names(api, f"in_tree={member}") == {"root", "child", "grandchild"}
    assert names(api, f"in_tree={new()}") == set()


def test_renaming_keeps_parent_and_generation(api: Api) -> None:
    root = api.provider("root")
    child = api.provider("child", {"VCPU": 1}, parent=root)
    shown = api.done("PUT", f"/resource_providers/{child}", {"name": "renamed"})
    assert (shown["name"], shown["parent_provider_uuid"], shown["generation"]) == ("renamed", root, 1)
    assert names(api, "name=child") == set()
    assert names(api, "name=renamed") == {"renamed"}


def test_re_parenting_moves_the_whole_subtree(api: Api) -> None:
    left, right = api.provider("left"), api.provider("right")
    child = api.provider("child", parent=left)
    grandchild = api.provider("grandchild", parent=child)
    api.done("PUT", f"/resource_providers/{child}", {"name": "child", "parent_provider_uuid": right})
    assert names(api, f"in_tree={right}") == {"right", "child", "grandchild"}
    assert names(api, f"in_tree={left}") == {"left"}
    api.done("PUT", f"/resource_providers/{child}", {"name": "child", "parent_provider_uuid": None})
    assert api.done("GET", f"/resource_providers/{grandchild}")["root_provider_uuid"] == child
    assert api.generation(grandchild) == api.generation(child) == 0


def test_before_1_37_only_a_root_may_get_a_parent(api: Api) -> None:
    root, other = api.provider("root"), api.provider("other")
    child = api.provider("child", parent=root)
    api.done("PUT", f"/resource_providers/{root}", {"name": "root", "parent_provider_uuid": other}, mv="1.36")
    assert names(api, f"in_tree={other}") == {"other", "root", "child"}
    url = f"/resource_providers/{child}"
    api.done("PUT", url, {"name": "child", "parent_provider_uuid": root}, mv="1.36")
    for parent in (None, other):
        api.refused(400, "PUT", url, {"name": "child", "parent_provider_uuid": parent}, mv="1.36")


def test_loops_are_refused(api: Api) -> None:
    root = api.provider("root")
    child = api.provider("child", parent=root)
    for parent in (root, child):
        body = {"name": "root", "parent_provider_uuid": parent}
        api.refused(400, "PUT", f"/resource_providers/{root}", body)


def test_what_is_in_use_cannot_be_deleted(api: Api) -> None:
    root = api.provider("root")
    child = api.provider("child", {"VCPU": 1}, parent=root)
    consumer = new()
    api.claim(consumer, {child: {"VCPU": 1}})
    url = f"/resource_providers/{root}"
    api.refused(409, "DELETE", url, code="placement.resource_provider.cannot_delete_parent")
    api.refused(409, "DELETE", f"/resource_providers/{child}", code="placement.resource_provider.inuse")
    api.done("DELETE", f"/allocations/{consumer}")
    api.done("DELETE", f"/resource_providers/{child}")
    api.done("DELETE", url)
    api.refused(404, "DELETE", url)
    assert names(api, "") == set()


def test_a_deleted_providers_name_is_free_again(api: Api) -> None:
    first = api.provider("host", {"VCPU": 1})
    api.set_traits(first, "HW_CPU_X86_AVX")
    api.done("DELETE", f"/resource_providers/{first}")
    second = api.provider("host")
    assert api.done("GET", f"/resource_providers/{second}/inventories")["inventories"] == {}
    assert names(api, "required=HW_CPU_X86_AVX") == set()


def test_filters_of_the_list(api: Api) -> None:
    a, b = api.provider("a", {"VCPU": 4, "DISK_GB": 10}), api.provider("b", {"VCPU": 8})
    one, two = new(), new()
    for provider, aggregates in ((a, [one]), (b, [one, two])):
        body = {"aggregates": aggregates, "resource_provider_generation": 1}
        api.done("PUT", f"/resource_providers/{provider}/aggregates", body)
    api.set_traits(a, "HW_CPU_X86_AVX", "HW_CPU_X86_AVX2")
    api.set_traits(b, "HW_CPU_X86_AVX")
    assert names(api, f"uuid={a}") == names(api, "name=a") == {"a"}
    assert names(api, "resources=VCPU:5") == {"b"}
    assert names(api, "resources=VCPU:1,DISK_GB:10") == {"a"}
    assert names(api, "resources=DISK_GB:11") == set()
    assert names(api, f"member_of={one}") == {"a", "b"}
    assert names(api, f"member_of={one}&member_of={two}") == {"b"}
    assert names(api, f"member_of=in:{one},{two}") == {"a", "b"}
    assert names(api, f"member_of=!{two}") == {"a"}
    assert names(api, f"member_of=!in:{one},{two}") == set()
    assert names(api, "required=HW_CPU_X86_AVX") == {"a", "b"}
    assert names(api, "required=HW_CPU_X86_AVX,!HW_CPU_X86_AVX2") == {"b"}
    assert names(api, "required=in:HW_CPU_X86_AVX2,HW_CPU_X86_SSE&required=HW_CPU_X86_AVX") == {"a"}
    assert names(api, "required=HW_CPU_X86_AVX2&required=HW_CPU_X86_AVX", mv="1.38") == {"a", "b"}


def test_room_counts_what_is_used(api: Api) -> None:
    provider = api.provider("a", {"VCPU": 4})
    api.claim(new(), {provider: {"VCPU": 3}})
    assert names(api, "resources=VCPU:1") == {"a"}
    assert names(api, "resources=VCPU:2") == set()


@pytest.mark.parametrize(
    ("query", "mv"),
    [
        ("nope=1", "1.39"),
        ("uuid=no", "1.39"),
        ("uuid=00000000000000000000000000000001", "1.39"),
        ("in_tree=no", "1.39"),
        ("in_tree=00000000-0000-0000-0000-000000000001", "1.13"),
        ("name=%ff", "1.39"),
        ("resources=", "1.39"),
        ("resources=VCPU", "1.39"),
        ("resources=VCPU:0", "1.39"),
        ("resources=VCPU:x", "1.39"),
        ("resources=NO_SUCH:1", "1.39"),
        ("resources=VCPU:1", "1.3"),
        ("required=NO_SUCH", "1.39"),
        ("required=", "1.39"),
        ("required=HW_CPU_X86_AVX", "1.17"),
        ("required=!HW_CPU_X86_AVX", "1.21"),
        ("required=in:HW_CPU_X86_AVX", "1.38"),
        ("required=in:HW_CPU_X86_AVX,!HW_CPU_X86_AVX2", "1.39"),
        ("member_of=no", "1.39"),
        ("member_of=in:00000000-0000-0000-0000-000000000001", "1.2"),
        (
            "member_of=00000000-0000-0000-0000-000000000001,00000000-0000-0000-0000-000000000002",
            "1.39",
        ),
        ("member_of=!00000000-0000-0000-0000-000000000001", "1.31"),
        (
            "member_of=00000000-0000-0000-0000-000000000001&member_of=00000000-0000-0000-0000-000000000002",
            "1.23",
        ),
    ],
)
def test_malformed_filters_are_refused(api: Api, query: str, mv: str) -> None:
    api.provider("a", {"VCPU": 1})
    api.refused(400, "GET", f"/resource_providers?{query}", mv=mv)


def test_unknown_providers_are_not_found(api: Api) -> None:
    url = f"/resource_providers/{new()}"
    for path in (
        "",
        "/inventories",
        "/inventories/VCPU",
        "/usages",
        "/allocations",
        "/aggregates",
        "/traits",
    ):
        api.refused(404, "GET", url + path)
    for path in ("", "/inventories", "/inventories/VCPU", "/traits"):
        api.refused(404, "DELETE", url + path)
    api.refused(404, "PUT", url, {"not": "looked at"})
    api.refused(404, "PUT", url + "/inventories", {"not": "looked at"})
