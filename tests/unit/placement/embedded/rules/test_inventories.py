"""The rule of inventories: they may shrink below their use, but not be removed while in use."""

from __future__ import annotations

import math

import pytest

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import CONCURRENT_UPDATE, INVENTORY_IN_USE, RequestRefused
from agent.placement.embedded.records import ConsumerRecord, ProviderRecord
from agent.placement.embedded.rules import inventories
from agent.placement.embedded.validation import MAX_INT

FOUR = inventories.from_body({"total": 4}, 0.0)
ONE = FOUR._replace(total=1)


def draft() -> Draft:
    model = Model({}, {"VCPU": 0.0, "VGPU": 0.0})
    host = ProviderRecord("host", "host", 0, None, "host", {"VCPU": FOUR}, frozenset(), frozenset(), 0.0)
    model.load([host], [ConsumerRecord("c", "p", "u", None, 1, {"host": {"VCPU": 3}}, 0.0)])
    return Draft(model, 1.0)


def test_missing_fields_have_the_defaults_of_the_api() -> None:
    assert FOUR == (4, 0, 1, MAX_INT, 1, 1.0, 0.0)


def test_an_inventory_may_shrink_below_its_use_and_not_go() -> None:
    state = draft()
    assert inventories.put_all(state, "host", 0, {"VCPU": ONE}).generation == 1
    with pytest.raises(RequestRefused) as refused:
        inventories.put_all(state, "host", 1, {})
    assert refused.value.problem is INVENTORY_IN_USE
    with pytest.raises(RequestRefused) as refused:
        inventories.delete(state, "host", "VCPU")
    assert refused.value.problem is CONCURRENT_UPDATE, "as the API defines it"


def test_one_inventory_is_added_and_updated() -> None:
    state = draft()
    assert inventories.add(state, "host", "VGPU", ONE).inventories.keys() == {"VCPU", "VGPU"}
    with pytest.raises(RequestRefused, match="has an inventory of VGPU"):
        inventories.add(state, "host", "VGPU", ONE)
    assert inventories.update(state, "host", 1, "VGPU", FOUR).inventories["VGPU"].total == 4
    assert inventories.delete(state, "host", "VGPU").inventories.keys() == {"VCPU"}


@pytest.mark.parametrize("changes", [{"reserved": 5}, {"allocation_ratio": math.inf}])
def test_a_capacity_below_zero_or_without_end_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(RequestRefused):
        inventories.check_capacity("host", {"VCPU": FOUR._replace(**changes)}, may_be_zero=True)


def test_no_capacity_is_allowed_from_1_26() -> None:
    none = {"VCPU": FOUR._replace(reserved=4)}
    inventories.check_capacity("host", none, may_be_zero=True)
    with pytest.raises(RequestRefused):
        inventories.check_capacity("host", none, may_be_zero=False)
