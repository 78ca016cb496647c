"""The slots of a query, and the providers that can fill each of them."""

from __future__ import annotations

from agent.placement.embedded.candidates.query import parse_query
from agent.placement.embedded.candidates.slots import CandidateSlot, SlotDemands
from agent.placement.embedded.candidates.view import ProviderReach
from agent.placement.embedded.model import Model
from agent.placement.embedded.query_string import Query
from agent.placement.embedded.records import ConsumerRecord, InventoryRecord, ProviderRecord


def model(**used: int) -> Model:
    state = Model({}, {"VCPU": 0.0, "VGPU": 0.0})
    four = InventoryRecord(4, 0, 1, 4, 1, 1.0, 0.0)
    root = ProviderRecord("host", "host", 0, None, "host", {"VCPU": four}, frozenset(), frozenset(), 0.0)
    cards = [
        root._replace(uuid=uuid, name=uuid, parent_uuid="host", inventories={"VGPU": four})
        for uuid in ("gpu0", "gpu1")
    ]
    consumers = [
        ConsumerRecord(f"on {uuid}", "p", "u", None, 1, {uuid: {"VGPU": amount}}, 0.0)
        for uuid, amount in used.items()
    ]
    state.load([root, *cards], consumers)
    return state


def slots(state: Model, query: str) -> list[CandidateSlot] | None:
    view = ProviderReach(state).view("host")
    assert view is not None
    return SlotDemands(parse_query(Query(query), 39)).slots(view)


def test_a_class_of_the_unsuffixed_group_and_a_suffixed_group_are_a_slot_each() -> None:
    query = "resources_1=VGPU:1&resources=VCPU:1,VGPU:1"
    assert [(slot.group.suffix, dict(slot.resources)) for slot in slots(model(), query) or ()] == [
        ("", {"VCPU": 1}),
        ("", {"VGPU": 1}),
        ("_1", {"VGPU": 1}),
    ]


def test_the_options_of_a_slot_have_room_for_it() -> None:
    (slot,) = slots(model(gpu0=3), "resources=VGPU:2") or ()
    assert [provider.uuid for provider in slot.options] == ["gpu1"]


def test_a_tree_without_candidate_needs_no_search() -> None:
    assert slots(model(gpu0=4, gpu1=4), "resources=VGPU:1") is None
    three = "&".join(f"resources_{n}=VGPU:1" for n in range(3))
    assert slots(model(), f"{three}&group_policy=isolate") is None, "three groups, two cards"
    assert slots(model(), f"{three}&group_policy=none") is not None
