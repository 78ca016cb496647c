"""A draft answers as the model would after its changes, and changes nothing below it."""

from __future__ import annotations

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import ConsumerRecord, InventoryRecord, ProviderRecord

VCPU = {"VCPU": InventoryRecord(8, 0, 1, 8, 1, 1.0, 0.0)}


def provider(uuid: str, parent: str | None = None, **changes: object) -> ProviderRecord:
    record = ProviderRecord(uuid, uuid, 0, parent, parent or uuid, VCPU, frozenset(), frozenset(), 0.0)
    return record._replace(**changes)


def consumer(uuid: str, amount: int) -> ConsumerRecord:
    return ConsumerRecord(uuid, "project", "user", None, 1, {"host": {"VCPU": amount}}, 0.0)


def model() -> Model:
    state = Model({"HW_CPU_X86_AVX": 0.0}, {"VCPU": 0.0})
    state.load([provider("host"), provider("cell", "host")], [consumer("first", 2)])
    return state


def test_a_change_is_visible_in_the_draft_and_not_below() -> None:
    state = model()
    draft = Draft(state, 1.0)
    assert draft.is_empty
    draft.put_provider(provider("host", name="renamed", traits=frozenset({"HW_CPU_X86_AVX"})))
    draft.drop_provider("cell")
    draft.put_consumer("second", consumer("second", 3))
    draft.put_consumer("first", None)
    draft.put_trait("CUSTOM_GOLD")
    draft.drop_resource_class("VCPU")
    assert draft.provider_named("host") is None and draft.provider_named("renamed") is not None
    assert draft.provider("cell") is None and [p.uuid for p in draft.tree("host")] == ["host"]
    assert draft.children_of("host") == [] and [p.uuid for p in state.children_of("host")] == ["cell"]
    assert draft.used("host", "VCPU") == 3 and state.used("host", "VCPU") == 2
    assert [c.uuid for c in draft.consumers_of("host")] == ["second"]
    assert draft.has_trait("CUSTOM_GOLD") and not state.has_trait("CUSTOM_GOLD")
    assert not draft.has_resource_class("VCPU") and state.has_resource_class("VCPU")
    assert [p.uuid for p in draft.providers_with_trait("HW_CPU_X86_AVX")] == ["host"]
    assert {p.uuid for p in draft.providers_with_class("VCPU")} == {"host"}


def test_a_merged_draft_carries_the_changes_of_both() -> None:
    state = model()
    group = Draft(state, 1.0)
    first = Draft(group, 1.0)
    first.put_consumer("second", consumer("second", 3))
    group.merge(first)
    second = Draft(group, 2.0)
    second.put_consumer("third", consumer("third", 1))
    assert second.used("host", "VCPU") == 6
    group.merge(second)
    state.apply(group)
    assert state.used("host", "VCPU") == 6 and set(state.consumers) == {"first", "second", "third"}
