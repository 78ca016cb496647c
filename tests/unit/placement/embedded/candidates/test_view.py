"""The view of a tree: what is in reach of it, at one moment."""

from __future__ import annotations

from agent.placement.embedded.candidates.view import ProviderReach
from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import SHARING_TRAIT, ConsumerRecord, ProviderRecord


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
