"""Records, drafts over the model, the model's indexes and its lock."""

from __future__ import annotations

import threading
import time

from agent.placement.embedded.model import (
    SHARING_TRAIT,
    ConsumerRecord,
    Draft,
    InventoryRecord,
    Model,
    ProviderRecord,
    WriterFirstLock,
)


def test_capacity_and_the_amounts_that_one_allocation_may_have() -> None:
    inventory = InventoryRecord(10, 2, 2, 6, 2, 1.5, 0.0)
    assert inventory.capacity == 12
    assert [amount for amount in range(9) if inventory.admits(amount)] == [2, 4, 6]


def test_a_provider_shares_by_its_trait() -> None:
    provider = ProviderRecord("u", "n", 0, None, "u", {}, frozenset({SHARING_TRAIT}), frozenset(), 0.0)
    assert provider.is_sharing and not provider._replace(traits=frozenset()).is_sharing


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
    assert draft.provider("cell") is None
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


def test_busy_readers_do_not_keep_the_writer_out() -> None:
    lock = WriterFirstLock()
    stop = threading.Event()
    inside = 0
    together = 0

    def read() -> None:
        nonlocal inside, together
        while not stop.is_set():
            with lock.reading():
                inside += 1
                together = max(together, inside)
                time.sleep(0.005)
                inside -= 1

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    waits = []
    for _ in range(10):
        start = time.perf_counter()
        with lock.writing():
            waits.append(time.perf_counter() - start)
            assert inside == 0
        time.sleep(0.01)
    stop.set()
    for reader in readers:
        reader.join(10)
    assert together == 1
    assert sorted(waits)[5] < 0.5, "each reader that was there first holds it for 5 ms"


def test_a_writer_that_fails_leaves_the_lock_free() -> None:
    lock = WriterFirstLock()
    for enter in (lock.writing, lock.reading):
        try:
            with enter():
                raise LookupError
        except LookupError:
            pass
    with lock.reading():
        pass


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
