"""Plans: their order, their wording, and that each of them may be cut off anywhere."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.plans import apply_operation

from agent.providers.plan import (
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteInventories,
    DeleteProvider,
    MoveProvider,
    Plan,
    PutAggregates,
    PutInventories,
    PutTraits,
    RenameProvider,
    plan,
)
from agent.tree import Inventory, Provider, ProviderTree

HOST = Provider("host", "host", None, {"VCPU": Inventory(16), "MEMORY_MB": Inventory(4096)}, frozenset({"A"}))
GPU = Provider("gpu", "host_gpu", "host", {"VGPU": Inventory(8)}, frozenset({"HW_GPU"}), frozenset({"agg"}))
EMPTY = ProviderTree()


def steps(current: ProviderTree, made: Plan) -> Iterator[ProviderTree]:
    tree = current
    yield tree
    for operation in made.operations:
        tree = apply_operation(tree, operation)
        yield tree


def end(current: ProviderTree, made: Plan) -> ProviderTree:
    return list(steps(current, made))[-1]


def test_nothing_to_do_is_an_empty_plan() -> None:
    tree = ProviderTree([HOST, GPU])
    assert plan(tree, tree).empty
    assert plan(tree, ProviderTree([replace(HOST), replace(GPU, generation=4)])).empty
    assert plan(EMPTY, EMPTY).lines() == ()


def test_a_first_report_offers_a_provider_only_once_it_is_right() -> None:
    assert plan(EMPTY, ProviderTree([GPU, HOST])).operations == (
        CreateProvider("host", "host"),
        PutTraits("host", "host", frozenset(), HOST.traits),
        CreateProvider("gpu", "host_gpu", "host", "host"),
        PutTraits("gpu", "host_gpu", frozenset(), GPU.traits),
        PutAggregates("gpu", "host_gpu", frozenset(), GPU.aggregates),
        PutInventories("host", "host", {}, HOST.inventories),
        PutInventories("gpu", "host_gpu", {}, GPU.inventories),
    )


def test_removal_takes_the_inventory_first_and_children_before_parents() -> None:
    parent = Provider("cell", "cell", "host", {"PCPU": Inventory(4)})
    below = replace(GPU, parent="cell")
    assert plan(ProviderTree([HOST, parent, below]), ProviderTree([HOST])).operations == (
        DeleteInventories("gpu", "host_gpu", GPU.inventories),
        DeleteInventories("cell", "cell", parent.inventories),
        DeleteProvider("gpu", "host_gpu"),
        DeleteProvider("cell", "cell"),
    )


def test_one_changed_inventory_is_one_write_that_says_old_and_new() -> None:
    after = replace(HOST, inventories={**HOST.inventories, "VCPU": Inventory(24, reserved=2)})
    made = plan(ProviderTree([HOST]), ProviderTree([after]))
    assert made.lines() == ("Put the inventories of host: VCPU 16 -> 24 (reserved 0 -> 2).",)


def test_units_are_taken_back_before_they_are_offered_elsewhere() -> None:
    shrunk = replace(HOST, inventories={"MEMORY_MB": Inventory(4096)})
    cell = Provider("cell", "host_numa0", "host", {"VCPU": Inventory(16)}, frozenset({"HW_NUMA_ROOT"}))
    made = plan(ProviderTree([HOST]), ProviderTree([shrunk, cell]))
    assert [type(operation) for operation in made.operations] == [
        PutInventories,
        CreateProvider,
        PutTraits,
        PutInventories,
    ]
    assert made.lines()[0] == "Put the inventories of host: VCPU 16 -> none."


def test_traits_of_a_provider_that_stays_come_before_its_inventory() -> None:
    after = replace(HOST, traits=frozenset({"B"}), inventories={"VCPU": Inventory(32)})
    made = plan(ProviderTree([HOST]), ProviderTree([after]))
    assert [type(operation) for operation in made.operations] == [PutTraits, PutInventories]
    assert made.lines()[0] == "Put the traits of host: add B; remove A."


def test_custom_names_are_made_once_and_only_if_the_tree_does_not_show_them() -> None:
    known = Provider("a", "a", "host", {"CUSTOM_OLD": Inventory(1)}, frozenset({"CUSTOM_T_OLD"}))
    new = [
        Provider(
            name,
            name,
            "host",
            {"CUSTOM_NEW": Inventory(1), "CUSTOM_OLD": Inventory(1), "VGPU": Inventory(1)},
            frozenset({"CUSTOM_T_NEW", "CUSTOM_T_OLD", "HW_NUMA_ROOT"}),
        )
        for name in ("b", "c")
    ]
    made = plan(ProviderTree([HOST, known]), ProviderTree([HOST, known, *new]))
    assert made.operations[:2] == (CreateResourceClass("CUSTOM_NEW"), CreateTrait("CUSTOM_T_NEW"))
    assert sum(isinstance(each, CreateResourceClass | CreateTrait) for each in made.operations) == 2


def test_two_providers_may_swap_their_names() -> None:
    one, two = Provider("1", "one", "host"), Provider("2", "two", "host")
    current = ProviderTree([HOST, one, two])
    desired = ProviderTree([HOST, replace(one, name="two"), replace(two, name="one")])
    made = plan(current, desired)
    assert end(current, made) == desired
    assert len(made.operations) == 3


@pytest.mark.parametrize("is_new", [False, True], ids=["in the tree", "in the tree to be"])
def test_the_name_that_is_used_meanwhile_is_nobody_elses(is_new: bool) -> None:
    one, two, taken = (
        Provider(uuid, name, "host") for uuid, name in (("1", "one"), ("2", "two"), ("3", "one~1"))
    )
    current = ProviderTree([HOST, one, two, *(() if is_new else (taken,))])
    swapped = (replace(one, name="two"), replace(two, name="one"))
    desired = ProviderTree([HOST, *swapped, replace(taken, name="one~1" if is_new else "three")])
    made = plan(current, desired)
    assert end(current, made) == desired
    assert "one~1~" in {each.after for each in made.operations if isinstance(each, RenameProvider)}


def test_a_name_freed_by_a_deletion_may_be_used_by_a_creation() -> None:
    current = ProviderTree([HOST, GPU])
    desired = ProviderTree([HOST, replace(GPU, uuid="gpu2")])
    made = plan(current, desired)
    assert end(current, made) == desired
    assert isinstance(made.operations[-1], DeleteProvider)
    aside = next(each for each in made.operations if isinstance(each, RenameProvider))
    assert made.operations[-1].name == aside.after


def test_a_child_is_moved_out_before_its_old_parent_is_deleted() -> None:
    old, new = Provider("old", "cell", "host"), Provider("new", "cell", "host")
    current = ProviderTree([HOST, old, replace(GPU, parent="old")])
    desired = ProviderTree([HOST, new, replace(GPU, parent="new")])
    made = plan(current, desired)
    assert end(current, made) == desired
    assert MoveProvider("gpu", "host_gpu", "old", "new", "cell", "cell") in made.operations


def test_a_parent_and_its_child_may_change_places() -> None:
    current = ProviderTree([HOST, Provider("a", "a", "host"), Provider("b", "b", "a")])
    desired = ProviderTree([HOST, Provider("b", "b", "host"), Provider("a", "a", "b")])
    assert end(current, plan(current, desired)) == desired


def test_a_ratio_kept_in_single_precision_is_no_change() -> None:
    wanted = ProviderTree([replace(HOST, inventories={"VCPU": Inventory(16, allocation_ratio=1.23456789)})])
    stored = ProviderTree([replace(HOST, inventories={"VCPU": Inventory(16, allocation_ratio=1.23457)})])
    assert plan(stored, wanted).empty
    changed = ProviderTree([replace(HOST, inventories={"VCPU": Inventory(16, allocation_ratio=1.24)})])
    assert not plan(stored, changed).empty


def test_a_plan_is_json_ready() -> None:
    made = plan(EMPTY, ProviderTree([replace(GPU, parent=None, inventories={"CUSTOM_X": Inventory(8)})]))
    assert json.loads(json.dumps(made.to_json())) == [
        {"operation": "create_resource_class", "name": "CUSTOM_X"},
        {
            "operation": "create_provider",
            "provider": "gpu",
            "name": "host_gpu",
            "parent": None,
            "parent_name": None,
        },
        {
            "operation": "put_traits",
            "provider": "gpu",
            "name": "host_gpu",
            "before": [],
            "after": ["HW_GPU"],
        },
        {
            "operation": "put_aggregates",
            "provider": "gpu",
            "name": "host_gpu",
            "before": [],
            "after": ["agg"],
        },
        {
            "operation": "put_inventories",
            "provider": "gpu",
            "name": "host_gpu",
            "before": {},
            "after": {
                "CUSTOM_X": {
                    "total": 8,
                    "reserved": 0,
                    "min_unit": 1,
                    "max_unit": 2**31 - 1,
                    "step_size": 1,
                    "allocation_ratio": 1.0,
                }
            },
        },
    ]


@pytest.mark.parametrize(
    "operation", [PutTraits("x", "x", frozenset(), frozenset()), DeleteProvider("x", "x")]
)
def test_an_operation_on_an_unknown_provider_is_an_error(operation: PutTraits | DeleteProvider) -> None:
    with pytest.raises(KeyError):
        apply_operation(ProviderTree([HOST]), operation)


inventories = st.dictionaries(
    st.sampled_from(["VCPU", "MEMORY_MB", "CUSTOM_X"]),
    st.builds(Inventory, total=st.integers(1, 4), reserved=st.integers(0, 1)),
    max_size=2,
)
name_sets = st.frozensets(st.sampled_from(["A", "CUSTOM_B"]))


@st.composite
def trees(draw: st.DrawFn) -> ProviderTree:
    """Trees over few uuids and names, so that two of them share, swap and re-use both."""
    uuids = draw(st.permutations(list("12345")))[: draw(st.integers(0, 5))]
    names = draw(st.permutations(list("abcdef")))
    return ProviderTree(
        Provider(
            uuid,
            names[n],
            draw(st.sampled_from([None, *uuids[:n]])),
            draw(inventories),
            draw(name_sets),
            draw(name_sets),
        )
        for n, uuid in enumerate(uuids)
    )


@settings(max_examples=examples(300), deadline=None)
@given(trees(), trees())
def test_every_prefix_of_every_plan_can_be_planned_again_to_the_same_end(
    current: ProviderTree, desired: ProviderTree
) -> None:
    for reached in steps(current, plan(current, desired)):
        assert end(reached, plan(reached, desired)) == desired
        assert plan(end(reached, plan(reached, desired)), desired).empty


def right(provider: Provider, tree: ProviderTree, desired: ProviderTree) -> bool:
    """All but its inventory is as wanted, up to the root."""
    return all(
        replace(each, inventories={}) == replace(desired[each.uuid], inventories={})
        for each in (provider, *tree.ancestors(provider.uuid))
    )


@settings(max_examples=examples(300), deadline=None)
@given(trees(), trees())
def test_no_provider_is_offered_before_it_is_right(current: ProviderTree, desired: ProviderTree) -> None:
    made = plan(current, desired)
    for before, after in zip(steps(current, made), list(steps(current, made))[1:], strict=False):
        for provider in after:
            old = before.get(provider.uuid)
            more = [
                name
                for name, inventory in provider.inventories.items()
                if old is None
                or name not in old.inventories
                or old.inventories[name].capacity < inventory.capacity
            ]
            if not more:
                continue
            if provider.uuid not in current:
                assert right(provider, after, desired)
            assert (provider.traits, provider.aggregates) == (
                desired[provider.uuid].traits,
                desired[provider.uuid].aggregates,
            )


@settings(max_examples=examples(300), deadline=None)
@given(trees(), trees())
def test_less_is_offered_before_more(current: ProviderTree, desired: ProviderTree) -> None:
    grows = False
    for operation in plan(current, desired).operations:
        if not isinstance(operation, PutInventories | DeleteInventories):
            continue
        after = operation.after if isinstance(operation, PutInventories) else {}
        shrinks = any(
            name not in after or after[name].capacity < inventory.capacity
            for name, inventory in operation.before.items()
        )
        assert not (grows and shrinks)
        grows = grows or not shrinks
