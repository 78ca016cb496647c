"""Allocation candidates: the query, the view of a tree, its slots, the search, and the candidates themselves.

The models are made by hand; tests/differential holds the candidates against the original.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import pytest
from kits.embedded_api import Api, new

from agent.placement.embedded import Core
from agent.placement.embedded.candidates import (
    Candidate,
    CandidateQuery,
    CandidateSlot,
    ProviderReach,
    SlotDemands,
    find_candidates,
    parse_query,
)
from agent.placement.embedded.handlers import candidates_body, find_with_summaries
from agent.placement.embedded.model import (
    SHARING_TRAIT,
    ConsumerRecord,
    Draft,
    InventoryRecord,
    Model,
    ProviderRecord,
)
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    BAD_VALUE,
    DUPLICATE_KEY,
    MISSING_VALUE,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.validation import Query

UUID = "11111111-1111-4111-8111-111111111111"


def parsed(query: str, minor: int = 39) -> CandidateQuery:
    return parse_query(Query(query), minor)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", MISSING_VALUE),
        ("required=CUSTOM_A", MISSING_VALUE),
        ("required_N=CUSTOM_A&same_subtree=_N", MISSING_VALUE),
        ("resources=VCPU:1&required_N=CUSTOM_A", BAD_VALUE),
        ("required=CUSTOM_A&resources_1=VCPU:1", BAD_VALUE),
        ("resources_1=VCPU:1&same_subtree=_2", BAD_VALUE),
        ("resources_1=VCPU:1&same_subtree=_1,", BAD_VALUE),
        ("resources=VCPU:1&root_required=CUSTOM_A,!CUSTOM_A", BAD_VALUE),
        ("resources=VCPU:1&root_required=CUSTOM_A&root_required=CUSTOM_B", DUPLICATE_KEY),
        ("resources=VCPU:1&root_required=in:CUSTOM_A", BAD_REQUEST),
        ("resources=VCPU:1&required=CUSTOM_A&required=!CUSTOM_A", BAD_REQUEST),
        ("resources=VCPU:1&required=in:CUSTOM_A,CUSTOM_B&required=!CUSTOM_A,!CUSTOM_B", BAD_REQUEST),
        ("resources_1=VCPU:1&resources_2=VCPU:1", BAD_REQUEST),
        ("resources_1=VCPU:1&resources_2=VCPU:1&group_policy=some", BAD_REQUEST),
        ("resources=VCPU:0", BAD_REQUEST),
        ("resources=VCPU:1:2&resources=VCPU:1", BAD_REQUEST),
        ("resources=VCPU:1&in_tree=host", BAD_REQUEST),
        (f"resources=VCPU:1&in_tree=host&in_tree={UUID}", BAD_REQUEST),
        ("resources=VCPU:1&limit=0", BAD_REQUEST),
        ("resources=VCPU:1&limit=x&limit=1", BAD_REQUEST),
        ("resources.=VCPU:1", BAD_REQUEST),
        (f"resources{'a' * 65}=VCPU:1", BAD_REQUEST),
        ("resources=VCPU:1&order=random", BAD_REQUEST),
    ],
)
def test_wrong_queries_are_refused_with_their_code(query: str, problem: ProblemType) -> None:
    with pytest.raises(RequestRefused) as refusal:
        parsed(query)
    assert refusal.value.problem == problem


@pytest.mark.parametrize(
    ("query", "since"),
    [
        ("resources=VCPU:1&limit=1", 16),
        ("resources=VCPU:1&required=CUSTOM_A", 17),
        (f"resources=VCPU:1&member_of={UUID}", 21),
        ("resources=VCPU:1&required=!CUSTOM_A", 22),
        (f"resources=VCPU:1&member_of={UUID}&member_of={UUID}", 24),
        ("resources=VCPU:1&resources1=VCPU:1", 25),
        (f"resources=VCPU:1&in_tree={UUID}", 31),
        (f"resources=VCPU:1&member_of=!{UUID}", 32),
        ("resources=VCPU:1&resources_A=VCPU:1", 33),
        ("resources=VCPU:1&root_required=CUSTOM_A", 35),
        ("resources=VCPU:1&required1=CUSTOM_A&same_subtree=1", 36),
        ("resources=VCPU:1&required=in:CUSTOM_A,CUSTOM_B", 39),
    ],
)
def test_each_parameter_is_understood_from_its_microversion_on(query: str, since: int) -> None:
    parsed(query, since)
    with pytest.raises(RequestRefused):
        parsed(query, since - 1)


def test_a_repeated_parameter_counts_as_placement_counts_it() -> None:
    query = parsed(
        "resources=VCPU:1&resources=DISK_GB:2&limit=3&limit=4&group_policy=isolate&group_policy=none"
    )
    assert query.groups[0].resources == {"DISK_GB": 2}
    assert (query.limit, query.isolate) == (3, True)
    assert parsed("resources=VCPU:1&required=CUSTOM_A&required=CUSTOM_B", 38).trait_names() == {"CUSTOM_B"}


def test_a_limit_beyond_all_counting_is_no_limit() -> None:
    assert parsed(f"resources=VCPU:1&limit={'9' * 30}").limit == sys.maxsize


def test_groups_are_found_by_any_of_their_parameters() -> None:
    query = parsed(
        f"resources=VCPU:1&in_tree_A={UUID}&required_B=CUSTOM_A&same_subtree=_A,_B&group_policy=none"
    )
    assert [group.suffix for group in query.groups] == ["", "_A", "_B"]
    assert query.same_subtrees == (frozenset({"_A", "_B"}),)


def record(
    uuid: str, parent: str | None = None, root: str | None = None, shares: bool = False
) -> ProviderRecord:
    traits = frozenset({SHARING_TRAIT}) if shares else frozenset[str]()
    aggregates = frozenset({"rack"}) if shares or uuid == "host" else frozenset[str]()
    return ProviderRecord(uuid, uuid, 0, parent, root or uuid, {}, traits, aggregates, 0.0)


def model() -> Model:
    made = Model({}, {"VCPU": 0.0})
    pool = record("pool", "store", "store", shares=True)
    made.load([record("host"), record("gpu", "host", "host"), record("store"), pool, record("else")], [])
    return made


def test_a_view_has_its_tree_the_sharing_providers_and_their_ancestors() -> None:
    view = ProviderReach(model(), ["else", "unknown"]).view("host")
    assert view is not None
    assert [one.uuid for one in view.reachable] == ["host", "gpu", "pool"]
    assert set(view.providers) == {"host", "gpu", "pool", "store", "else"}


def test_a_provider_serves_its_tree_and_a_sharing_one_the_trees_of_its_aggregates() -> None:
    reach = ProviderReach(model())
    assert reach.roots("gpu") == ["host"]
    assert set(reach.roots("pool")) == {"store", "host"}
    assert reach.roots("unknown") == []
    assert reach.view("gpu") is None, "no root"


def test_a_view_does_not_change_with_the_model() -> None:
    state = model()
    view = ProviderReach(state).view("host")
    draft = Draft(state, 0.0)
    draft.put_consumer("c", ConsumerRecord("c", "p", "u", None, 1, {"host": {"VCPU": 2}}, 0.0))
    state.apply(draft)
    assert view is not None and view.used("host", "VCPU") == 0 and view.usage("host") == {}
    later = ProviderReach(state).view("host")
    assert later is not None and later.used("host", "VCPU") == 2
    draft = Draft(state, 0.0)
    draft.put_consumer("d", ConsumerRecord("d", "p", "u", None, 1, {"host": {"VCPU": 1}}, 0.0))
    state.apply(draft)
    assert later.used("host", "VCPU") == 2


CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "VGPU")
TRAITS = ("HW_NUMA_ROOT", "CUSTOM_A", "CUSTOM_B", SHARING_TRAIT)
AGGREGATES = {name: f"{number:08d}-0000-4000-8000-000000000000" for number, name in enumerate("XYZ")}


class Cloud:
    """A model whose providers have short names for uuids."""

    def __init__(self) -> None:
        self.providers: dict[str, ProviderRecord] = {}
        self.consumers: list[ConsumerRecord] = []

    def add(
        self,
        name: str,
        parent: str | None = None,
        inventories: Mapping[str, int | InventoryRecord] | None = None,
        traits: Iterable[str] = (),
        aggregates: Iterable[str] = (),
    ) -> Cloud:
        records = {
            key: value if isinstance(value, InventoryRecord) else inventory(value)
            for key, value in (inventories or {}).items()
        }
        uuids = frozenset(AGGREGATES[aggregate] for aggregate in aggregates)
        root = self.providers[parent].root_uuid if parent else name
        self.providers[name] = ProviderRecord(
            name, name, 0, parent, root, records, frozenset(traits), uuids, 0.0
        )
        return self

    def use(self, provider: str, **amounts: int) -> Cloud:
        name = f"consumer{len(self.consumers)}"
        self.consumers.append(ConsumerRecord(name, "p", "u", None, 1, {provider: amounts}, 0.0))
        return self

    def model(self) -> Model:
        model = Model(dict.fromkeys(TRAITS, 0.0), dict.fromkeys(CLASSES, 0.0))
        model.load(self.providers.values(), self.consumers)
        return model

    def candidates(self, query: str, minor: int = 39) -> list[Candidate]:
        for name, uuid in AGGREGATES.items():
            query = query.replace(f"<{name}>", uuid)
        found = find_candidates(self.model(), parse_query(Query(query), minor))
        return [one.candidate for one in found]

    def find(self, query: str, minor: int = 39) -> set[str]:
        """The providers of each candidate's groups, as `suffix=provider+provider ...`."""
        return {
            " ".join(f"{suffix}={'+'.join(sorted(uuids))}" for suffix, uuids in sorted(one.mappings.items()))
            for one in self.candidates(query, minor)
        }


def inventory(
    total: int, max_unit: int = 2**31 - 1, min_unit: int = 1, step_size: int = 1
) -> InventoryRecord:
    return InventoryRecord(total, 0, min_unit, max_unit, step_size, 1.0, 0.0)


@pytest.fixture
def host() -> Cloud:
    """A host with two NUMA cells, each with two GPUs of two units, the second of each with CUSTOM_A."""
    cloud = Cloud().add("host", inventories={"DISK_GB": 100}, traits=["CUSTOM_B"], aggregates="X")
    for cell in ("n0", "n1"):
        cloud.add(cell, "host", {"VCPU": 4, "MEMORY_MB": 64}, ["HW_NUMA_ROOT"])
        cloud.add(f"{cell}a", cell, {"VGPU": 2}).add(f"{cell}b", cell, {"VGPU": 2}, ["CUSTOM_A"], "Y")
    return cloud


def shared_storage() -> Cloud:
    """Two hosts that share a pool over aggregate X, one of them by a child only, and one that does not."""
    cloud = Cloud().add("h1", inventories={"VCPU": 4}, aggregates="X").add("h2", inventories={"VCPU": 4})
    cloud.add("h2child", "h2", {"VGPU": 1}, aggregates="X").add("h3", inventories={"VCPU": 4})
    return cloud.add("pool", inventories={"DISK_GB": 100}, traits=[SHARING_TRAIT], aggregates="X")


def test_the_classes_of_the_unsuffixed_group_may_come_from_several_providers(host: Cloud) -> None:
    assert host.find("resources=VCPU:1,MEMORY_MB:1") == {"=n0", "=n0+n1", "=n1"}
    assert (
        len(list(find_candidates(host.model(), parse_query(Query("resources=VCPU:1,MEMORY_MB:1"), 39)))) == 4
    )


def test_before_trees_were_known_a_candidate_used_one_provider_of_a_tree(host: Cloud) -> None:
    assert host.find("resources=VCPU:1,MEMORY_MB:1", minor=28) == {"=n0", "=n1"}


def test_a_suffixed_group_takes_everything_from_one_provider(host: Cloud) -> None:
    assert host.find("resources_C=VCPU:1,MEMORY_MB:1") == {"_C=n0", "_C=n1"}
    assert host.find("resources_C=VCPU:1,VGPU:1") == set()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("required=CUSTOM_A", {"=n0+n0b", "=n0b+n1", "=n0+n1b", "=n1+n1b"}),
        ("required=HW_NUMA_ROOT,CUSTOM_A", {"=n0+n0b", "=n0b+n1", "=n0+n1b", "=n1+n1b"}),
        ("required=CUSTOM_B", set()),
        ("required=!HW_NUMA_ROOT", set()),
        ("required=!CUSTOM_A", {"=n0+n0a", "=n0a+n1", "=n0+n1a", "=n1+n1a"}),
        ("required=in:CUSTOM_A,CUSTOM_B", {"=n0+n0b", "=n0b+n1", "=n0+n1b", "=n1+n1b"}),
        ("required=in:CUSTOM_A,CUSTOM_B&required=!CUSTOM_A", set()),
    ],
)
def test_traits_of_the_unsuffixed_group_are_met_by_what_it_uses_together(
    host: Cloud, query: str, found: set[str]
) -> None:
    assert host.find(f"resources=VCPU:1,VGPU:1&{query}") == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("resources=VGPU:1&member_of=<Y>", {"=n0b", "=n1b"}),
        ("resources=VGPU:1&member_of=<X>", {"=n0a", "=n0b", "=n1a", "=n1b"}),
        ("resources=VGPU:1&member_of=!<X>", set()),
        ("resources=VGPU:1&member_of=!<Y>", {"=n0a", "=n1a"}),
        ("resources=VGPU:1&member_of=<X>&member_of=<Y>", set()),
        ("resources=VGPU:1&member_of=in:<Z>,<Y>", {"=n0b", "=n1b"}),
        ("resources_G=VGPU:1&member_of_G=<X>", set()),
        ("resources_G=VGPU:1&member_of_G=<Y>", {"_G=n0b", "_G=n1b"}),
        ("resources_G=VGPU:1&member_of_G=!<X>", {"_G=n0a", "_G=n0b", "_G=n1a", "_G=n1b"}),
    ],
)
def test_aggregates_of_a_root_span_the_tree_for_the_unsuffixed_group_alone(
    host: Cloud, query: str, found: set[str]
) -> None:
    assert host.find(query) == found


def test_groups_share_a_provider_as_far_as_it_has_room(host: Cloud) -> None:
    query = "resources_1=VGPU:1&required_1=CUSTOM_A&resources_2=VGPU:1&required_2=CUSTOM_A"
    both = {"_1=n0b _2=n1b", "_1=n1b _2=n0b"}
    assert host.find(f"{query}&group_policy=isolate") == both
    assert host.find(f"{query}&group_policy=none") == both | {"_1=n0b _2=n0b", "_1=n1b _2=n1b"}
    host.use("n0b", VGPU=1)
    assert host.find(f"{query}&group_policy=none") == both | {"_1=n1b _2=n1b"}


def test_cells_of_a_guest_come_from_providers_of_their_own_unless_the_root_has_all(host: Cloud) -> None:
    def ways(name: str) -> list[Mapping[str, list[str]]]:
        text = f"resources_CELL0={name}:1&resources_CELL1={name}:1&group_policy=none"
        query = parse_query(Query(text), 39).with_cells_apart()
        return [found.candidate.mappings for found in find_candidates(host.model(), query)]

    assert ways("VCPU") == [{"_CELL0": ["n0"], "_CELL1": ["n1"]}, {"_CELL0": ["n1"], "_CELL1": ["n0"]}]
    assert ways("DISK_GB") == [{"_CELL0": ["host"], "_CELL1": ["host"]}]


def test_the_sum_over_groups_respects_max_unit_but_not_what_one_request_must_respect() -> None:
    cloud = Cloud().add("host", inventories={"VGPU": inventory(8, max_unit=4, min_unit=2, step_size=2)})
    assert cloud.find("resources_1=VGPU:2&resources_2=VGPU:2&group_policy=none") == {"_1=host _2=host"}
    assert cloud.find("resources_1=VGPU:4&resources_2=VGPU:2&group_policy=none") == set()
    assert cloud.find("resources_1=VGPU:1&resources_2=VGPU:1&group_policy=none") == set()


def test_amounts_of_groups_on_one_provider_add_up_to_what_was_asked_for() -> None:
    cloud = Cloud().add("host").add("a", "host", {"VGPU": 4}).add("b", "host", {"VGPU": 4})
    query = "resources=VGPU:1&resources_1=VGPU:1&resources_2=VGPU:1&group_policy=isolate"
    found = cloud.candidates(query)
    assert len(found) == 4
    assert {sum(amounts["VGPU"] for amounts in one.allocations.values()) for one in found} == {3}


def test_a_sharing_provider_serves_the_trees_that_share_an_aggregate_with_it() -> None:
    cloud = shared_storage()
    assert cloud.find("resources=VCPU:1,DISK_GB:1") == {"=h1+pool", "=h2+pool"}
    assert cloud.find("resources=DISK_GB:1") == {"=pool"}
    assert len(cloud.candidates("resources=DISK_GB:1")) == 1
    assert cloud.find("resources_1=VCPU:1&resources_2=DISK_GB:1&group_policy=none") == {
        "_1=h1 _2=pool",
        "_1=h2 _2=pool",
    }


def test_no_tree_is_lost_where_the_unsuffixed_group_is_shared_whole() -> None:
    assert shared_storage().find("resources=DISK_GB:1&resources_1=VCPU:1") == {"=pool _1=h1", "=pool _1=h2"}


def test_in_tree_bars_sharing_providers_of_other_trees_from_its_group_alone() -> None:
    cloud = shared_storage()
    assert cloud.find("resources=VCPU:1,DISK_GB:1&in_tree=" + AGGREGATES["Z"]) == set()
    trees = shared_storage()
    uuid = AGGREGATES["X"]
    trees.add(uuid, inventories={"VCPU": 4}, aggregates="X")
    assert trees.find(f"resources=VCPU:1&resources_D=DISK_GB:1&in_tree={uuid}") == {f"={uuid} _D=pool"}
    assert trees.find(f"resources=VCPU:1,DISK_GB:1&in_tree={uuid}") == set()


def test_root_required_looks_at_the_tree_that_is_served_not_at_who_shares() -> None:
    cloud = shared_storage().add("h4", inventories={"VCPU": 4}, traits=["CUSTOM_A"], aggregates="X")
    assert cloud.find("resources=VCPU:1,DISK_GB:1&root_required=CUSTOM_A") == {"=h4+pool"}
    assert cloud.find("resources=VCPU:1,DISK_GB:1&root_required=!CUSTOM_A") == {"=h1+pool", "=h2+pool"}
    assert cloud.find("resources=DISK_GB:1&root_required=CUSTOM_A") == {"=pool"}


def test_one_of_a_subtree_is_above_all_the_rest_of_it(host: Cloud) -> None:
    query = "resources_C=VCPU:1&resources_G=VGPU:2&group_policy=none&same_subtree="
    assert host.find(f"{query}_C,_G") == {"_C=n0 _G=n0a", "_C=n0 _G=n0b", "_C=n1 _G=n1a", "_C=n1 _G=n1b"}
    gpus = "resources_1=VGPU:1&resources_2=VGPU:1&group_policy=isolate&same_subtree=_1,_2"
    assert host.find(gpus) == set()
    assert host.find(f"{gpus},_N&required_N=HW_NUMA_ROOT&required_1=CUSTOM_A") == {
        "_1=n0b _2=n0a _N=n0",
        "_1=n1b _2=n1a _N=n1",
    }


def test_a_group_without_resources_counts_for_isolation_and_finds_only_what_it_names(host: Cloud) -> None:
    same = "resources_C=VCPU:1&required_N=HW_NUMA_ROOT&same_subtree=_C,_N"
    assert host.find(f"{same}&group_policy=none") == {"_C=n0 _N=n0", "_C=n1 _N=n1"}
    assert host.find(f"{same}&group_policy=isolate") == set()
    assert host.find("resources=DISK_GB:1&required_N=!CUSTOM_A&same_subtree=_N") == set()
    assert host.find("resources=DISK_GB:1&member_of_N=<X>&same_subtree=_N") == {"=host _N=host"}


def test_a_group_without_resources_keeps_to_the_tree_it_names() -> None:
    tree = AGGREGATES["X"]
    cloud = Cloud().add("host", inventories={"VCPU": 4}, traits=["CUSTOM_A"])
    cloud.add(tree, inventories={"VCPU": 4}, traits=["CUSTOM_A"])
    query = f"resources=VCPU:1&required_N=CUSTOM_A&in_tree_N={tree}&same_subtree=_N"
    assert cloud.find(query) == {f"={tree} _N={tree}"}


class Watched(Model):
    """Counts the trees that are looked at."""

    looked_at = 0

    def tree(self, root_uuid: str) -> list[ProviderRecord]:
        self.looked_at += 1
        return super().tree(root_uuid)


def test_a_limit_bounds_the_work_not_only_the_answer() -> None:
    cloud = Cloud()
    for number in range(500):
        cloud.add(f"host{number}", inventories={"VCPU": 4})
    model = Watched(dict.fromkeys(TRAITS, 0.0), dict.fromkeys(CLASSES, 0.0))
    model.load(cloud.providers.values(), [])
    assert len(list(islice(find_candidates(model, parse_query(Query("resources=VCPU:1"), 39)), 5))) == 5
    assert model.looked_at == 5


def test_the_rarest_need_leads_the_search() -> None:
    cloud = Cloud()
    for number in range(500):
        cloud.add(f"host{number}", inventories={"VCPU": 4})
    cloud.add("gpu", "host321", {"VGPU": 1})
    model = Watched(dict.fromkeys(TRAITS, 0.0), dict.fromkeys(CLASSES, 0.0))
    model.load(cloud.providers.values(), [])
    found = list(find_candidates(model, parse_query(Query("resources=VCPU:1,VGPU:1"), 39)))
    assert [sorted(one.allocations) for one, _ in found] == [["gpu", "host321"]]
    assert model.looked_at == 1


def crowded(gpus: int, groups: int, amount: int, policy: str) -> Iterator[Candidate]:
    """The candidates for so many groups on a host with so many GPUs of three units."""
    cloud = Cloud().add("host")
    for number in range(gpus):
        cloud.add(f"gpu{number}", "host", {"VGPU": 3})
    demands = "&".join(f"resources_{number}=VGPU:{amount}" for number in range(groups))
    found = find_candidates(cloud.model(), parse_query(Query(f"{demands}&group_policy={policy}"), 39))
    return (one.candidate for one in found)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("amount", "policy"), [(1, "isolate"), (3, "none"), (2, "none")])
def test_a_hopeless_request_is_given_up_soon(amount: int, policy: str) -> None:
    """Eleven groups on ten GPUs fail in eleven factorial orders, if every one of them is tried."""
    assert not list(crowded(10, 11, amount, policy))
    assert len(list(crowded(3, 3, amount, policy))) == 6
    assert len(list(islice(crowded(12, 12, amount, policy), 3))) == 3, "found one by one"


def slots(cloud: Cloud, query: str) -> list[CandidateSlot] | None:
    view = ProviderReach(cloud.model()).view("host")
    assert view is not None
    return SlotDemands(parsed(query)).slots(view)


def test_a_slot_has_options_with_room_for_it_and_a_tree_without_candidate_needs_no_search() -> None:
    cards = Cloud().add("host").add("gpu0", "host", {"VGPU": 4}).add("gpu1", "host", {"VGPU": 4})
    three = "&".join(f"resources_{number}=VGPU:1" for number in range(3))
    assert slots(cards, f"{three}&group_policy=isolate") is None, "three groups, two cards"
    assert slots(cards, f"{three}&group_policy=none") is not None
    (slot,) = slots(cards.use("gpu0", VGPU=3), "resources=VGPU:2") or ()
    assert [provider.uuid for provider in slot.options] == ["gpu1"]
    assert slots(cards.use("gpu0", VGPU=1).use("gpu1", VGPU=4), "resources=VGPU:1") is None


@pytest.mark.parametrize(
    ("minor", "shape"),
    [
        (10, {"resources"}),
        (17, {"resources", "traits"}),
        (29, {"resources", "traits", "parent_provider_uuid", "root_provider_uuid"}),
    ],
)
def test_summaries_grow_with_the_microversion(host: Cloud, minor: int, shape: set[str]) -> None:
    query = parse_query(Query("resources=VCPU:1"), minor)
    body = candidates_body(query, find_with_summaries(host.use("n0", VCPU=1).model(), query))
    summaries = body["provider_summaries"]
    assert {key for summary in summaries.values() for key in summary} == shape
    assert len(summaries) == (2 if minor < 29 else 7)
    assert summaries["n0"]["resources"]["VCPU"] == {"capacity": 4, "used": 1}
    assert summaries["n1"]["resources"]["VCPU"] == {"capacity": 4, "used": 0}
    assert ("MEMORY_MB" in summaries["n0"]["resources"]) == (minor >= 27)


def test_allocations_have_the_form_that_the_same_microversion_takes() -> None:
    model = Cloud().add("host", inventories={"VCPU": 1}).model()

    def requested(minor: int) -> object:
        query = parse_query(Query("resources=VCPU:1"), minor)
        return candidates_body(query, find_with_summaries(model, query))["allocation_requests"]

    listed = {"resource_provider": {"uuid": "host"}, "resources": {"VCPU": 1}}
    keyed = {"host": {"resources": {"VCPU": 1}}}
    assert requested(11) == [{"allocations": [listed]}]
    assert requested(12) == requested(33) == [{"allocations": keyed}]
    assert requested(34) == [{"allocations": keyed, "mappings": {"": ["host"]}}]


def test_unknown_names_are_refused_wherever_they_stand(host: Cloud) -> None:
    for query in (
        "resources=CUSTOM_NO:1",
        "resources_1=DISK_GB:999&resources_2=VCPU:1&required_2=CUSTOM_NO&group_policy=none",
    ):
        with pytest.raises(RequestRefused, match="CUSTOM_NO"):
            find_with_summaries(host.model(), parse_query(Query(query), 39))


def test_a_question_under_way_holds_no_write_up(tmp_path: Path) -> None:
    """Between two candidates of a long answer the lock is free: a claim is written and seen by the rest."""
    core = Core.open(tmp_path)
    api = Api(core)
    hosts = [api.provider(f"host{number}", {"VCPU": 4}) for number in range(3)]
    model = core._store.model
    found = find_candidates(model, parse_query(Query("resources=VCPU:3"), 39))
    assert list(next(found).candidate.allocations) == [hosts[0]]
    api.claim(new(), {hosts[1]: {"VCPU": 2}})
    api.done("DELETE", f"/resource_providers/{hosts[2]}")
    assert list(found) == []
    core.close()


def test_the_summaries_are_of_the_moment_at_which_the_candidate_was_found() -> None:
    host = Cloud().add("n0", inventories={"VCPU": 4})
    model = host.use("n0", VCPU=1).model()
    query = parse_query(Query("resources=VCPU:1"), 39)
    found = find_with_summaries(model, query)
    model.usages["n0"] = {"VCPU": 4}
    assert candidates_body(query, found)["provider_summaries"]["n0"]["resources"]["VCPU"]["used"] == 1
