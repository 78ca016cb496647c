"""The model's indexes follow its records."""

from __future__ import annotations

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.records import ConsumerRecord, InventoryRecord, ProviderRecord

VCPU = {"VCPU": InventoryRecord(8, 0, 1, 8, 1, 1.0, 0.0)}
EMPTY = ProviderRecord("", "", 0, None, "", {}, frozenset(), frozenset(), 0.0)


def test_the_indexes_follow_a_change_and_a_removal() -> None:
    model = Model({}, {"VCPU": 0.0})
    root = EMPTY._replace(uuid="root", name="root", root_uuid="root", inventories=VCPU)
    child = root._replace(uuid="child", name="child", parent_uuid="root", aggregates=frozenset({"rack"}))
    model.load([root, child], [ConsumerRecord("c", "p", "u", None, 1, {"root": {"VCPU": 2}}, 0.0)])
    assert set(model.trees["root"]) == {"root", "child"} and set(model.children["root"]) == {"child"}
    assert set(model.providers_by_class["VCPU"]) == {"root", "child"}
    assert model.usages == {"root": {"VCPU": 2}} and set(model.consumers_by_provider["root"]) == {"c"}
    draft = Draft(model, 1.0)
    draft.put_provider(child._replace(parent_uuid=None, root_uuid="child", inventories={}))
    draft.put_consumer("c", None)
    model.apply(draft)
    assert model.children == {} and set(model.trees) == {"root", "child"}
    assert set(model.providers_by_class["VCPU"]) == {"root"} and set(model.providers_by_aggregate) == {"rack"}
    assert model.usages == {} and model.consumers_by_provider == {} and model.changes == 1


def test_a_name_may_pass_to_another_provider_in_one_draft() -> None:
    model = Model({}, {})
    one, other = (EMPTY._replace(uuid=uuid, name=uuid, root_uuid=uuid) for uuid in ("one", "other"))
    model.load([one, other], [])
    draft = Draft(model, 1.0)
    draft.put_provider(other._replace(name="one"))
    draft.put_provider(one._replace(name="new"))
    model.apply(draft)
    assert model.uuid_by_name == {"one": "other", "new": "one"}
