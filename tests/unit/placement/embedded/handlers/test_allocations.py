"""Allocations: claims, refusals with reasons, swaps, consumers and their generations."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import CONCURRENT, Api, claim, new


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
        api.refused(409, "PUT", url, claim({host: {"VCPU": 1}}, generation), code=CONCURRENT)
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
