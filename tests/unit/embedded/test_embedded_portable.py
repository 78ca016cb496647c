"""Export, import and check."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.embedded.api import Api, claim, new

from agent.placement.embedded import Core
from agent.placement.embedded.model import Consumer, Provider
from agent.placement.embedded.portable import TransferError, differences, export, load


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Api]:
    core = Core.open(tmp_path / "other")
    yield Api(core)
    core.close()


@pytest.fixture
def full(api: Api) -> Api:
    """Something of everything, an overfull provider and a consumer without a type among it."""
    api.done("PUT", "/resource_classes/CUSTOM_C")
    for trait in ("CUSTOM_T", "CUSTOM_UNUSED"):
        api.done("PUT", f"/traits/{trait}")
    root = api.provider("root", {"VCPU": 8, "CUSTOM_C": 4})
    child = api.provider("child", {"VGPU": 8}, parent=root)
    api.set_traits(child, "CUSTOM_T", "HW_NUMA_ROOT")
    body = {"aggregates": [new(), new()], "resource_provider_generation": api.generation(root)}
    api.done("PUT", f"/resource_providers/{root}/aggregates", body)
    api.claim(new(), {root: {"VCPU": 6, "CUSTOM_C": 1}, child: {"VGPU": 3}})
    untyped = claim({child: {"VGPU": 5}})
    del untyped["consumer_type"]
    api.done("PUT", f"/allocations/{new()}", untyped, mv="1.37")
    api.set_inventories(root, {"VCPU": {"total": 2, "step_size": 4}, "CUSTOM_C": {"total": 4, "reserved": 4}})
    return api


def test_an_import_says_what_the_export_said(full: Api, other: Api) -> None:
    document = export(full.core.request)
    load(other.core.request, json.loads(json.dumps(document)))
    assert export(other.core.request) == document
    assert other.core.check() == []


def test_an_import_can_be_repeated_and_leaves_the_rest_alone(full: Api, other: Api) -> None:
    mine = other.provider("mine", {"VCPU": 1})
    document = export(full.core.request)
    for _ in range(2):
        load(other.core.request, document)
        assert differences(document, export(other.core.request)) == []
    assert other.done("GET", f"/resource_providers/{mine}")["name"] == "mine"


def test_a_name_that_is_taken_stops_the_import(full: Api, other: Api) -> None:
    other.provider("root")
    with pytest.raises(TransferError, match="409"):
        load(other.core.request, export(full.core.request))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format",), "other"),
        (("version",), 2),
        (("resource_providers", 0, "name"), None),
        (("resource_providers", 0, "inventories"), []),
        (("resource_providers", 0, "parent_provider_uuid"), "x"),
        (("consumers", 0, "allocations"), {}),
        (("consumers", 0), None),
        (("traits",), None),
    ],
)
def test_a_malformed_document_writes_nothing(
    full: Api, other: Api, path: tuple[Any, ...], value: Any
) -> None:
    document = copy.deepcopy(export(full.core.request))
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    before = other.whole()
    with pytest.raises(TransferError):
        load(other.core.request, document)
    assert other.whole() == before


def test_differences_name_what_is_missing_or_other(full: Api) -> None:
    wanted, found = export(full.core.request), export(full.core.request)
    assert differences(wanted, found) == []
    found["traits"].remove("CUSTOM_T")
    found["resource_providers"][0]["name"] = "x"
    gone = found["consumers"].pop()["uuid"]
    said = " ".join(differences(wanted, found))
    assert "CUSTOM_T is missing" in said and "name of" in said and f"{gone} is missing" in said


def test_check_finds_what_is_broken(full: Api) -> None:
    assert full.core.check() == []
    model = full.core._store.model
    lost, bad = new(), new()
    model.load(
        [Provider(lost, "lost", 0, bad, bad, {}, frozenset({"CUSTOM_NONE"}), frozenset(), 0.0)],
        [Consumer(bad, "p", "u", None, 0, {bad: {"VCPU": 1}, lost: {"VCPU": 0}}, 0.0)],
    )
    said = "\n".join(full.core.check())
    for finding in (
        f"hangs under {bad}, which does not exist",
        "has the trait CUSTOM_NONE",
        "is at generation 0",
        f"holds something on {bad}, which does not exist",
        f"holds 0 of VCPU on {lost}",
    ):
        assert finding in said
