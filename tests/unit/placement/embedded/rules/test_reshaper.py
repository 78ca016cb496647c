"""The reshaper: inventories and allocations moved in one write."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import CONCURRENT, UNDEFINED, Api, claim, new

IN_USE = "placement.inventory.inuse"
NOT_FOUND = "placement.resource_provider.not_found"


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
    api.refused(400, "POST", "/reshaper", body, code=NOT_FOUND)
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
