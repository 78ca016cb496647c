"""The search fills the slots of one tree in every way, and no further than the caller iterates."""

from __future__ import annotations

from itertools import islice

from agent.placement.embedded.candidates.query import parse_query
from agent.placement.embedded.candidates.search import TreeSearch
from agent.placement.embedded.candidates.slots import SlotDemands
from agent.placement.embedded.candidates.view import ProviderReach
from agent.placement.embedded.model import Model
from agent.placement.embedded.query_string import Query
from agent.placement.embedded.records import InventoryRecord, ProviderRecord


def search(cards: int, query: str) -> TreeSearch:
    state = Model({}, {"VCPU": 0.0, "VGPU": 0.0})
    two = InventoryRecord(2, 0, 1, 2, 1, 1.0, 0.0)
    root = ProviderRecord("host", "host", 0, None, "host", {"VCPU": two}, frozenset(), frozenset(), 0.0)
    gpus = [
        root._replace(uuid=f"gpu{n}", name=f"gpu{n}", parent_uuid="host", inventories={"VGPU": two})
        for n in range(cards)
    ]
    state.load([root, *gpus], [])
    parsed = parse_query(Query(query), 39)
    view = ProviderReach(state).view("host")
    assert view is not None
    slots = SlotDemands(parsed).slots(view)
    assert slots is not None
    return TreeSearch(view, parsed, slots)


def ways(cards: int, query: str) -> set[tuple[str, ...]]:
    return {tuple(provider.uuid for provider in chosen) for chosen in search(cards, query).fill()}


def test_every_way_is_found_once() -> None:
    assert ways(2, "resources_1=VGPU:1&resources_2=VGPU:1&group_policy=isolate") == {
        ("gpu0", "gpu1"),
        ("gpu1", "gpu0"),
    }
    assert len(ways(2, "resources_1=VGPU:1&resources_2=VGPU:1&group_policy=none")) == 4


def test_groups_on_one_provider_share_its_capacity() -> None:
    assert ways(1, "resources_1=VGPU:1&resources_2=VGPU:1&group_policy=none") == {("gpu0", "gpu0")}
    assert ways(2, "resources_1=VGPU:2&resources_2=VGPU:1&group_policy=none") == {
        ("gpu0", "gpu1"),
        ("gpu1", "gpu0"),
    }


def test_a_subtree_has_its_top_among_the_chosen() -> None:
    query = "resources_1=VCPU:1&resources_2=VGPU:1&same_subtree=_1,_2&group_policy=none"
    assert ways(2, query) == {("host", "gpu0"), ("host", "gpu1")}


def test_the_search_is_lazy() -> None:
    groups = "&".join(f"resources_{n}=VGPU:1" for n in range(12))
    assert len(list(islice(search(12, f"{groups}&group_policy=isolate").fill(), 3))) == 3
