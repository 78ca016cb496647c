"""What each route answers at each microversion: contents, filters, limits, generations, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import CONCURRENT, Api, claim, new

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
    twice = api.refused(409, "POST", url, {"resource_class": "VCPU", "total": 1}, code=CONCURRENT)
    assert "has an inventory of VCPU" in twice["detail"]


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


def test_a_claim_is_shown_on_consumer_and_provider(api: Api) -> None:
    host, disks = api.provider("host", {"VCPU": 4, "MEMORY_MB": 64}), api.provider("disks", {"DISK_GB": 9})
    consumer = new()
    assert api.claim(consumer, {host: {"VCPU": 2, "MEMORY_MB": 8}, disks: {"DISK_GB": 1}}).status == 204
    assert api.done("GET", f"/allocations/{consumer}") == {
        "allocations": {
            host: {"resources": {"VCPU": 2, "MEMORY_MB": 8}, "generation": 2},
            disks: {"resources": {"DISK_GB": 1}, "generation": 2},
        },
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": 1,
        "consumer_type": "INSTANCE",
    }
    assert api.done("GET", f"/resource_providers/{host}/allocations") == {
        "allocations": {consumer: {"resources": {"VCPU": 2, "MEMORY_MB": 8}, "consumer_generation": 1}},
        "resource_provider_generation": 2,
    }
    assert api.usage(host) == {"VCPU": 2, "MEMORY_MB": 8}


def test_nothing_held_is_an_empty_answer(api: Api) -> None:
    assert api.done("GET", f"/allocations/{new()}") == {"allocations": {}}
    api.refused(404, "DELETE", f"/allocations/{new()}")


@pytest.mark.parametrize(
    ("mv", "keys"),
    [
        ("1.11", set()),
        ("1.12", {"project_id", "user_id"}),
        ("1.28", {"project_id", "user_id", "consumer_generation"}),
        ("1.38", {"project_id", "user_id", "consumer_generation", "consumer_type"}),
    ],
)
def test_older_microversions_show_less_of_the_consumer(api: Api, mv: str, keys: set[str]) -> None:
    host, consumer = api.provider("host", {"VCPU": 4}), new()
    api.claim(consumer, {host: {"VCPU": 1}})
    assert set(api.done("GET", f"/allocations/{consumer}", mv=mv)) == {"allocations"} | keys
    shown = api.done("GET", f"/resource_providers/{host}/allocations", mv=mv)["allocations"][consumer]
    assert ("consumer_generation" in shown) == ("consumer_generation" in keys)


def test_a_refusal_for_capacity_says_what_is_short(api: Api) -> None:
    host = api.provider("host", {"VCPU": 4, "DISK_GB": 5})
    api.claim(new(), {host: {"VCPU": 3}})
    wanted = claim({host: {"VCPU": 2, "DISK_GB": 6, "PCPU": 1}})
    error = api.refused(409, "PUT", f"/allocations/{new()}", wanted)
    who = {"resource_provider_uuid": host, "resource_provider_name": "host"}
    vcpu, disk, pcpu = error["reasons"]
    assert vcpu == who | {
        "reason": "capacity",
        "resource_class": "VCPU",
        "asked": 2,
        "free": 1,
        "capacity": 4,
        "used": 3,
        "min_unit": 1,
        "max_unit": 2**31 - 1,
        "step_size": 1,
    }
    assert (disk["reason"], disk["asked"], disk["free"]) == ("capacity", 6, 5)
    assert pcpu == who | {
        "reason": "inventory",
        "resource_class": "PCPU",
        "asked": 1,
        "free": 0,
        "capacity": 0,
        "used": 0,
    }
    assert "2 of VCPU" in error["detail"] and host in error["detail"]


@pytest.mark.parametrize("amount", [1, 3, 5, 10])
def test_amounts_respect_min_max_and_step(api: Api, amount: int) -> None:
    host = api.provider("host")
    api.set_inventories(host, {"VCPU": {"total": 99, "min_unit": 2, "max_unit": 8, "step_size": 2}})
    error = api.refused(409, "PUT", f"/allocations/{new()}", claim({host: {"VCPU": amount}}))
    assert [reason["reason"] for reason in error["reasons"]] == ["units"]
    assert api.claim(new(), {host: {"VCPU": 8}}).status == 204


def test_ratio_and_reserve_make_the_capacity(api: Api) -> None:
    host = api.provider("host")
    api.set_inventories(host, {"VCPU": {"total": 5, "reserved": 1, "allocation_ratio": 1.6}})
    assert api.claim(new(), {host: {"VCPU": 6}}).status == 204  # 6.4 are there
    assert api.claim(new(), {host: {"VCPU": 1}}).status == 409


def test_generations_of_consumers_guard_their_writes(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 9}), new()
    url = f"/allocations/{consumer}"
    api.refused(409, "PUT", url, claim({host: {"VCPU": 1}}, 0), code=CONCURRENT)
    assert api.claim(consumer, {host: {"VCPU": 1}}).status == 204
    for generation in (None, 0, 2):
        too_much = claim({host: {"VCPU": 99}}, generation)
        api.refused(409, "PUT", url, too_much, code=CONCURRENT)
    assert api.claim(consumer, {host: {"VCPU": 2}}, 1).status == 204
    assert api.done("GET", url)["consumer_generation"] == 2
    assert api.claim(consumer, {}, 2).status == 204
    assert api.done("GET", url) == {"allocations": {}}
    assert api.claim(consumer, {host: {"VCPU": 1}}).status == 204


def test_an_empty_write_leaves_no_consumer_behind(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 1}), new()
    assert api.claim(consumer, {}).status == 204
    assert api.claim(consumer, {host: {"VCPU": 2}}).status == 409
    assert api.claim(consumer, {host: {"VCPU": 1}}).status == 204


def test_a_claim_raises_the_generation_of_the_providers_it_names(api: Api) -> None:
    one, two, consumer = api.provider("1", {"VCPU": 9}), api.provider("2", {"VCPU": 9}), new()
    api.claim(consumer, {one: {"VCPU": 1}})
    assert (api.generation(one), api.generation(two)) == (2, 1)
    api.claim(consumer, {two: {"VCPU": 1}}, 1)
    assert (api.generation(one), api.generation(two)) == (2, 2)
    api.claim(consumer, {}, 2)
    assert (api.generation(one), api.generation(two)) == (2, 3)
    api.claim(consumer, {two: {"VCPU": 1}})
    api.done("DELETE", f"/allocations/{consumer}")
    assert api.generation(two) == 4


def test_a_full_host_lets_consumers_swap(api: Api) -> None:
    host, instance, migration = api.provider("host", {"VCPU": 2}), new(), new()
    api.claim(instance, {host: {"VCPU": 2}})
    body = {
        migration: claim({host: {"VCPU": 2}}, None, consumer_type="MIGRATION"),
        instance: claim({}, 1),
    }
    api.done("POST", "/allocations", body)
    assert api.held(migration) == {host: {"VCPU": 2}}
    assert api.held(instance) == {}
    body = {instance: claim({host: {"VCPU": 2}}), migration: claim({}, 1)}
    api.done("POST", "/allocations", body)
    assert (api.held(instance), api.held(migration)) == ({host: {"VCPU": 2}}, {})


def test_several_consumers_are_written_all_or_none(api: Api) -> None:
    host, first, second = api.provider("host", {"VCPU": 3}), new(), new()
    body = {first: claim({host: {"VCPU": 2}}), second: claim({host: {"VCPU": 2}})}
    error = api.refused(409, "POST", "/allocations", body)
    assert [(reason["asked"], reason["free"]) for reason in error["reasons"]] == [(2, 1)]
    body[second] = claim({host: {"VCPU": 1}}, 5)
    api.refused(409, "POST", "/allocations", body, code=CONCURRENT)
    body[second] = claim({new(): {"VCPU": 1}})
    api.refused(400, "POST", "/allocations", body)
    body[second] = claim({host: {"VCPU": 1}})
    api.done("POST", "/allocations", body)
    assert api.usage(host) == {"VCPU": 3}


def test_an_overfull_provider_may_be_relieved_but_not_filled(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 8}), new()
    api.claim(consumer, {host: {"VCPU": 8}})
    api.set_inventories(host, {"VCPU": {"total": 4}})
    assert api.claim(consumer, {host: {"VCPU": 8}}, 1).status == 204
    assert api.claim(consumer, {host: {"VCPU": 6}}, 2).status == 204
    assert api.claim(consumer, {host: {"VCPU": 7}}, 3).status == 409
    assert api.claim(new(), {host: {"VCPU": 1}}).status == 409


def test_owner_and_type_follow_the_last_write(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 8}), new()
    url = f"/allocations/{consumer}"
    api.claim(consumer, {host: {"VCPU": 1}})
    body = claim({host: {"VCPU": 1}}, 1, project_id="other", consumer_type="MIGRATION")
    api.done("PUT", url, body)
    del body["consumer_type"]
    api.done("PUT", url, body | {"consumer_generation": 2, "user_id": "somebody"}, mv="1.37")
    shown = api.done("GET", url)
    assert (shown["project_id"], shown["user_id"], shown["consumer_type"]) == (
        "other",
        "somebody",
        "MIGRATION",
    )


def test_list_style_allocations_of_old(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 8}), new()
    body: dict[str, Any] = {
        "allocations": [{"resource_provider": {"uuid": host}, "resources": {"VCPU": 3}}],
    }
    api.done("PUT", f"/allocations/{consumer}", body, mv="1.0")
    assert api.held(consumer) == {host: {"VCPU": 3}}
    shown = api.done("GET", f"/allocations/{consumer}")
    assert shown["consumer_type"] == "unknown"
    assert shown["project_id"] == shown["user_id"] == "00000000-0000-0000-0000-000000000000"
    api.refused(400, "PUT", f"/allocations/{consumer}", body, mv="1.8")
    owned = body | {"project_id": "p", "user_id": "u"}
    api.done("PUT", f"/allocations/{consumer}", owned, mv="1.8")
    assert api.done("GET", f"/allocations/{consumer}")["project_id"] == "p"
    api.refused(400, "PUT", f"/allocations/{consumer}", owned, mv="1.12")
    api.refused(400, "PUT", f"/allocations/{consumer}", owned | {"allocations": []}, mv="1.8")


def test_the_consumers_uuid_is_normalised_in_put(api: Api) -> None:
    host, consumer = api.provider("host", {"VCPU": 8}), new()
    api.done("PUT", f"/allocations/{consumer.replace('-', '').upper()}", claim({host: {"VCPU": 1}}))
    assert api.held(consumer) == {host: {"VCPU": 1}}
    api.refused(400, "PUT", "/allocations/no-uuid", claim({host: {"VCPU": 1}}))


@pytest.mark.parametrize(
    ("change", "mv"),
    [
        ({"allocations": {"no-uuid": {"resources": {"VCPU": 1}}}}, "1.39"),
        ({"allocations": []}, "1.39"),
        ({"allocations": None}, "1.39"),
        ({"allocations": {}}, "1.27"),
        ({"consumer_generation": "1"}, "1.39"),
        ({"consumer_type": "lower"}, "1.39"),
        ({"consumer_type": None}, "1.39"),
        ({"project_id": ""}, "1.39"),
        ({"user_id": "x" * 256}, "1.39"),
        ({"mappings": {}}, "1.39"),
        ({"mappings": {"": []}, "x": 1}, "1.39"),
        ({"mappings": {"_A": ["no-uuid"]}}, "1.39"),
        ({"mappings": {"_A": []}}, "1.39"),
        ({"extra": 1}, "1.39"),
    ],
)
def test_malformed_claims_are_refused(api: Api, change: dict[str, Any], mv: str) -> None:
    host = api.provider("host", {"VCPU": 8})
    api.refused(400, "PUT", f"/allocations/{new()}", claim({host: {"VCPU": 1}}) | change, mv=mv)


@pytest.mark.parametrize("resources", [{}, {"VCPU": 0}, {"VCPU": "1"}, {"vcpu": 1}, {"CUSTOM_NONE": 1}, None])
def test_malformed_resources_are_refused(api: Api, resources: Any) -> None:
    host = api.provider("host", {"VCPU": 8})
    body = claim({}) | {"allocations": {host: {"resources": resources}}}
    api.refused(400, "PUT", f"/allocations/{new()}", body)
    api.refused(400, "POST", "/allocations", {new(): body})


def test_an_unknown_provider_is_a_bad_request(api: Api) -> None:
    api.refused(400, "PUT", f"/allocations/{new()}", claim({new(): {"VCPU": 1}}))


def test_generation_and_mappings_of_a_candidate_are_accepted_and_ignored(api: Api) -> None:
    host = api.provider("host", {"VCPU": 8})
    body = claim({}) | {
        "allocations": {host: {"resources": {"VCPU": 1}, "generation": 99}},
        "mappings": {"": [host], "_A": [host]},
    }
    api.done("PUT", f"/allocations/{new()}", body)


def test_an_empty_post_is_refused(api: Api) -> None:
    api.refused(400, "POST", "/allocations", {})
    api.refused(404, "POST", "/allocations", {}, mv="1.12")


def test_usages_are_grouped_by_type(api: Api) -> None:
    host = api.provider("host", {"VCPU": 99, "MEMORY_MB": 99})
    api.claim(new(), {host: {"VCPU": 1, "MEMORY_MB": 10}})
    api.claim(new(), {host: {"VCPU": 2}})
    api.done("PUT", f"/allocations/{new()}", claim({host: {"VCPU": 4}}, consumer_type="MIGRATION"))
    api.done("PUT", f"/allocations/{new()}", claim({host: {"VCPU": 32}}, user_id="else"))
    old = claim({host: {"VCPU": 8}})
    del old["consumer_type"]
    api.done("PUT", f"/allocations/{new()}", old, mv="1.37")
    api.done("PUT", f"/allocations/{new()}", claim({host: {"VCPU": 16}}, project_id="else"))

    def usages(query: str = "", mv: str = "1.39") -> Any:
        return api.done("GET", f"/usages?project_id=project{query}", mv=mv)["usages"]

    assert usages("&user_id=user") == {
        "INSTANCE": {"VCPU": 3, "MEMORY_MB": 10, "consumer_count": 2},
        "MIGRATION": {"VCPU": 4, "consumer_count": 1},
        "unknown": {"VCPU": 8, "consumer_count": 1},
    }
    assert usages("&consumer_type=all") == {"all": {"VCPU": 47, "MEMORY_MB": 10, "consumer_count": 5}}
    assert usages("&consumer_type=unknown") == {"unknown": {"VCPU": 8, "consumer_count": 1}}
    assert usages("&consumer_type=MIGRATION") == {"MIGRATION": {"VCPU": 4, "consumer_count": 1}}
    assert usages("&consumer_type=NOBODY") == {}
    assert usages(mv="1.37") == {"VCPU": 47, "MEMORY_MB": 10}
    for query in ("", "?user_id=u", "?project_id=", "?project_id=p&consumer_type=x", "?project_id=p&x=1"):
        api.refused(400, "GET", f"/usages{query}")
    api.refused(400, "GET", "/usages?project_id=p&consumer_type=X", mv="1.37")
    api.refused(404, "GET", "/usages?project_id=p", mv="1.8")


def test_a_limit_and_unknown_names(api: Api) -> None:
    for name in ("one", "other"):
        api.provider(name, {"VCPU": 4})
    body = api.done("GET", "/allocation_candidates?resources=VCPU:1&limit=1")
    assert len(body["allocation_requests"]) == 1
    for query in ("resources=CUSTOM_NONE:1", "resources=VCPU:1&required=CUSTOM_NONE"):
        api.refused(400, "GET", f"/allocation_candidates?{query}")


def test_a_refusal_says_whether_the_query_or_the_body_is_wrong(api: Api) -> None:
    assert api.refused(400, "GET", "/traits?other=x")["detail"].startswith("query ")
    assert api.refused(400, "POST", "/resource_classes", [])["detail"].startswith("body ")
