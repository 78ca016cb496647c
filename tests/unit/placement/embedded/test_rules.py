"""The rules of writes: trees have no cycles, names are unique, used inventory stays, writes are whole."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import CONCURRENT, UNDEFINED, Api, claim, new

from agent.placement.embedded import rules
from agent.placement.embedded.model import Draft, InventoryRecord, Model, ProviderRecord
from agent.placement.embedded.problems import CONFLICT, DUPLICATE_NAME, RequestRefused
from agent.placement.embedded.rules import BARRED_KEPT_S, BARRED_TYPE, ConsumerWrite

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


def four_free() -> Draft:
    model = Model({}, {"VCPU": 0.0, "VGPU": 0.0})
    inventories = {"VCPU": InventoryRecord(4, 0, 1, 4, 1, 1.0, 0.0)}
    model.load(
        [ProviderRecord("host", "host", 0, None, "host", inventories, frozenset(), frozenset(), 0.0)], []
    )
    return Draft(model, 1.0)


def write(uuid: str, generation: int | None, **amounts: int) -> ConsumerWrite:
    return ConsumerWrite(uuid, "p", "u", "INSTANCE", generation, True, {"host": amounts} if amounts else {})


def test_a_name_is_taken_once_also_by_two_requests_of_one_commit() -> None:
    state = four_free()
    rules.create_provider(state, "first", "new", None)
    with pytest.raises(RequestRefused) as refused:
        rules.create_provider(state, "second", "new", None)
    assert refused.value.problem is DUPLICATE_NAME


def test_a_refusal_lists_every_shortfall() -> None:
    with pytest.raises(RequestRefused) as refused:
        rules.replace_allocations(four_free(), [write("a", None, VCPU=5), write("b", None, VGPU=1)])
    assert refused.value.problem is CONFLICT
    assert [reason["reason"] for reason in refused.value.reasons] == ["units", "inventory"]
    full = four_free()
    rules.replace_allocations(full, [write("a", None, VCPU=3)])
    with pytest.raises(RequestRefused, match="3 of 4 are used, 1 are free"):
        rules.replace_allocations(full, [write("b", None, VCPU=2)])


def bar(uuid: str) -> ConsumerWrite:
    return ConsumerWrite(uuid, "p", "u", BARRED_TYPE, None, True, {})


def test_a_consumer_is_barred_for_a_day_and_the_next_bar_removes_its_record() -> None:
    first = four_free()
    for uuid in ("old", "claimed"):
        rules.replace_allocations(first, [bar(uuid)])
    with pytest.raises(RequestRefused):
        rules.replace_allocations(first, [write("old", None, VCPU=1)])
    rules.replace_allocations(first, [write("claimed", 0, VCPU=1)])
    later = Draft(first, 1.0 + BARRED_KEPT_S)
    rules.replace_allocations(later, [bar("new")])
    assert [consumer.uuid for consumer in later.barred()] == ["old", "new"]
    much_later = Draft(later, 2.0 + BARRED_KEPT_S)
    rules.replace_allocations(much_later, [bar("newest")])
    assert [consumer.uuid for consumer in much_later.barred()] == ["new", "newest"]
    assert much_later.consumer("old") is None
    claimed = much_later.consumer("claimed")
    assert claimed is not None and claimed.generation == 1


def test_the_model_knows_who_is_barred() -> None:
    state = four_free()
    for uuid in ("a", "b"):
        rules.replace_allocations(state, [bar(uuid)])
    model = Model({}, {"VCPU": 0.0})
    model.apply(state)
    assert [consumer.uuid for consumer in model.barred()] == ["a", "b"]
    change = Draft(model, 2.0)
    change.put_consumer("a", None)
    assert [consumer.uuid for consumer in change.barred()] == ["b"]
    model.apply(change)
    assert [consumer.uuid for consumer in model.barred()] == ["b"]


IN_USE = "placement.inventory.inuse"
NO_PROVIDER = "placement.resource_provider.not_found"


class Tree:
    """A root with VGPU and VCPU of which one consumer uses some, and an empty child."""

    def __init__(self, api: Api) -> None:
        self.root = api.provider("root", {"VGPU": 8, "VCPU": 8})
        self.child = api.provider("child", parent=self.root)
        self.consumer = new()
        api.claim(self.consumer, {self.root: {"VGPU": 4, "VCPU": 1}})

    def body(self, **changes: Any) -> dict[str, Any]:
        """Moves the VGPU to the child."""
        return {
            "inventories": {
                self.root: {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 8}}},
                self.child: {"resource_provider_generation": 0, "inventories": {"VGPU": {"total": 8}}},
            },
            "allocations": {self.consumer: claim({self.root: {"VCPU": 1}, self.child: {"VGPU": 4}}, 1)},
        } | changes


@pytest.fixture
def tree(api: Api) -> Tree:
    return Tree(api)


def test_inventory_and_allocations_move_together(api: Api, tree: Tree) -> None:
    answer = api.ask("POST", "/reshaper", tree.body())
    assert (answer.status, answer.body) == (204, None)
    assert api.usage(tree.root) == {"VCPU": 1}
    assert api.usage(tree.child) == {"VGPU": 4}
    # Union, allocations and final inventories raise each generation, the empty child's as well.
    assert (api.generation(tree.root), api.generation(tree.child)) == (5, 3)
    assert api.done("GET", f"/allocations/{tree.consumer}")["consumer_generation"] == 2


def test_a_provider_left_without_inventory_skips_the_union(api: Api, tree: Tree) -> None:
    body = tree.body()
    body["inventories"][tree.root]["inventories"] = {}
    body["inventories"][tree.child]["inventories"]["VCPU"] = {"total": 8}
    body["allocations"][tree.consumer] = claim({tree.child: {"VGPU": 4, "VCPU": 1}}, 1)
    api.done("POST", "/reshaper", body)
    assert (api.generation(tree.root), api.generation(tree.child)) == (3, 3)


def test_everything_in_use_must_be_moved(api: Api, tree: Tree) -> None:
    api.refused(409, "POST", "/reshaper", tree.body(allocations={}), code=IN_USE)


def test_the_target_must_hold_it(api: Api, tree: Tree) -> None:
    body = tree.body()
    body["inventories"][tree.child]["inventories"]["VGPU"]["total"] = 3
    error = api.refused(409, "POST", "/reshaper", body)
    assert [(reason["asked"], reason["free"]) for reason in error["reasons"]] == [(4, 3)]


def test_generations_guard_providers_and_consumers(api: Api, tree: Tree) -> None:
    body = tree.body()
    body["inventories"][tree.root]["resource_provider_generation"] = 1
    api.refused(409, "POST", "/reshaper", body, code=CONCURRENT)
    body = tree.body()
    body["allocations"][tree.consumer]["consumer_generation"] = 5
    api.refused(409, "POST", "/reshaper", body, code=CONCURRENT)


def test_what_is_unknown_is_a_bad_request(api: Api, tree: Tree) -> None:
    body = tree.body()
    part = {"resource_provider_generation": 0, "inventories": {}}
    body["inventories"][new()] = part
    api.refused(400, "POST", "/reshaper", body, code=NO_PROVIDER)
    body = tree.body()
    body["inventories"][tree.child]["inventories"]["CUSTOM_NONE"] = {"total": 1}
    api.refused(400, "POST", "/reshaper", body)
    body = tree.body()
    body["allocations"][new()] = claim({new(): {"VGPU": 1}})
    api.refused(400, "POST", "/reshaper", body)


def test_consumers_may_come_and_go(api: Api, tree: Tree) -> None:
    newcomer = new()
    body = tree.body()
    body["allocations"] = {tree.consumer: claim({}, 1), newcomer: claim({tree.child: {"VGPU": 8}})}
    api.done("POST", "/reshaper", body)
    assert (api.held(tree.consumer), api.held(newcomer)) == ({}, {tree.child: {"VGPU": 8}})


@pytest.mark.parametrize("body", [None, {}, {"inventories": {}, "allocations": {}}, {"allocations": {}}])
def test_malformed_bodies_are_refused(api: Api, body: object) -> None:
    api.refused(400, "POST", "/reshaper", body)


def test_the_reshaper_is_as_old_as_1_30(api: Api, tree: Tree) -> None:
    api.refused(404, "POST", "/reshaper", tree.body(), mv="1.29", code=UNDEFINED)
    body = tree.body()
    api.refused(400, "POST", "/reshaper", body, mv="1.37")
    del body["allocations"][tree.consumer]["consumer_type"]
    api.done("POST", "/reshaper", body, mv="1.30")
