"""The rule of allocations: all consumers of a write at once, and every shortfall in a refusal."""

from __future__ import annotations

import pytest

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    CONCURRENT_UPDATE,
    CONFLICT,
    NOT_FOUND,
    RequestRefused,
)
from agent.placement.embedded.records import InventoryRecord, ProviderRecord
from agent.placement.embedded.rules import allocations
from agent.placement.embedded.rules.allocations import BARRED_KEPT_S, BARRED_TYPE, ConsumerWrite


def draft() -> Draft:
    model = Model({}, {"VCPU": 0.0, "VGPU": 0.0})
    inventories = {"VCPU": InventoryRecord(4, 0, 1, 4, 1, 1.0, 0.0)}
    model.load(
        [ProviderRecord("host", "host", 0, None, "host", inventories, frozenset(), frozenset(), 0.0)], []
    )
    return Draft(model, 1.0)


def write(uuid: str, generation: int | None, **amounts: int) -> ConsumerWrite:
    return ConsumerWrite(uuid, "p", "u", "INSTANCE", generation, True, {"host": amounts} if amounts else {})


def test_two_consumers_swap_on_a_full_provider() -> None:
    state = draft()
    allocations.replace(state, [write("a", None, VCPU=4)])
    allocations.replace(state, [write("a", 1), write("b", None, VCPU=4)])
    assert state.consumer("a") is None and state.used("host", "VCPU") == 4
    host = state.provider("host")
    assert host is not None and host.generation == 2


def test_a_refusal_lists_every_shortfall() -> None:
    with pytest.raises(RequestRefused) as refused:
        allocations.replace(draft(), [write("a", None, VCPU=5), write("b", None, VGPU=1)])
    assert refused.value.problem is CONFLICT
    assert [reason["reason"] for reason in refused.value.reasons] == ["units", "inventory"]
    full = draft()
    allocations.replace(full, [write("a", None, VCPU=3)])
    with pytest.raises(RequestRefused, match="3 of 4 are used, 1 are free"):
        allocations.replace(full, [write("b", None, VCPU=2)])


def test_generations_come_first() -> None:
    with pytest.raises(RequestRefused) as refused:
        allocations.replace(draft(), [write("a", 7, VCPU=99)])
    assert refused.value.problem is CONCURRENT_UPDATE
    elsewhere = ConsumerWrite("a", "p", "u", None, None, True, {"none": {"VCPU": 1}})
    with pytest.raises(RequestRefused) as refused:
        allocations.replace(draft(), [elsewhere])
    assert refused.value.problem is BAD_REQUEST


def test_only_a_consumer_with_allocations_can_be_deleted() -> None:
    state = draft()
    allocations.replace(state, [write("a", None, VCPU=1)])
    allocations.delete(state, "a")
    assert state.used("host", "VCPU") == 0
    with pytest.raises(RequestRefused) as refused:
        allocations.delete(state, "a")
    assert refused.value.problem is NOT_FOUND


def bar(uuid: str) -> ConsumerWrite:
    return ConsumerWrite(uuid, "p", "u", BARRED_TYPE, None, True, {})


def test_a_consumer_is_barred_for_a_day_and_the_next_bar_removes_its_record() -> None:
    first = draft()
    for uuid in ("old", "claimed"):
        allocations.replace(first, [bar(uuid)])
    with pytest.raises(RequestRefused):
        allocations.replace(first, [write("old", None, VCPU=1)])
    allocations.replace(first, [write("claimed", 0, VCPU=1)])
    later = Draft(first, 1.0 + BARRED_KEPT_S)
    allocations.replace(later, [bar("new")])
    assert [consumer.uuid for consumer in later.barred()] == ["old", "new"]
    much_later = Draft(later, 2.0 + BARRED_KEPT_S)
    allocations.replace(much_later, [bar("newest")])
    assert [consumer.uuid for consumer in much_later.barred()] == ["new", "newest"]
    assert much_later.consumer("old") is None
    claimed = much_later.consumer("claimed")
    assert claimed is not None and claimed.generation == 1


def test_the_model_knows_who_is_barred() -> None:
    state = draft()
    for uuid in ("a", "b"):
        allocations.replace(state, [bar(uuid)])
    model = Model({}, {"VCPU": 0.0})
    model.apply(state)
    assert [consumer.uuid for consumer in model.barred()] == ["a", "b"]
    change = Draft(model, 2.0)
    change.put_consumer("a", None)
    assert [consumer.uuid for consumer in change.barred()] == ["b"]
    model.apply(change)
    assert [consumer.uuid for consumer in model.barred()] == ["b"]
