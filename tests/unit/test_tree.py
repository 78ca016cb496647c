"""What a provider tree refuses, and what it answers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import TreeError
from agent.tree import Inventory, Provider, ProviderTree

HOST = Provider("host", "host")
CELL_0 = Provider("cell0", "host_numa0", "host")
CELL_1 = Provider("cell1", "host_numa1", "host")
GPU = Provider("gpu", "host_gpu", "cell1", {"VGPU": Inventory(8)})
TREE = ProviderTree([GPU, CELL_1, CELL_0, HOST])


def test_iteration_goes_from_the_root_down_and_siblings_by_name() -> None:
    assert list(TREE) == [HOST, CELL_0, CELL_1, GPU]
    assert list(TREE.bottom_up()) == [GPU, CELL_1, CELL_0, HOST]
    assert len(TREE) == 4


def test_a_provider_is_found_by_uuid_and_by_name() -> None:
    assert TREE["gpu"] == TREE.get("gpu") == TREE.by_name("host_gpu") == GPU
    assert "gpu" in TREE
    assert "other" not in TREE
    assert TREE.get("other") is None
    assert TREE.by_name("other") is None
    with pytest.raises(KeyError):
        TREE["other"]


def test_relations() -> None:
    assert TREE.roots == (HOST,)
    assert TREE.subtree("host") == (HOST, CELL_0, CELL_1, GPU)
    assert TREE.ancestors("gpu") == (CELL_1, HOST)
    assert TREE.root_of("gpu") == TREE.root_of("host") == HOST
    assert TREE.subtree("cell1") == (CELL_1, GPU)


@pytest.mark.parametrize(
    ("providers", "words"),
    [
        ([HOST, Provider("host", "other")], "both have the uuid host"),
        ([HOST, Provider("other", "host")], "Two providers are named 'host'"),
        ([HOST, Provider("gpu", "gpu", "gone")], "has the parent gone"),
        ([HOST, Provider("a", "a", "b"), Provider("b", "b", "a")], "its own ancestors"),
        ([Provider("a", "a", "a")], "its own ancestors"),
    ],
)
def test_providers_that_cannot_stand_together_are_refused(providers: list[Provider], words: str) -> None:
    with pytest.raises(TreeError, match=words):
        ProviderTree(providers)


def test_a_change_makes_a_new_tree() -> None:
    bigger = TREE.with_provider(replace(GPU, inventories={"VGPU": Inventory(16)}))
    assert bigger["gpu"].inventories["VGPU"].total == 16
    assert bigger.by_name("host_gpu") == bigger["gpu"]
    assert bigger.subtree("cell1") == (CELL_1, bigger["gpu"])
    assert TREE["gpu"] == GPU
    assert bigger != TREE


def test_a_rename_and_a_move_are_seen_by_every_index() -> None:
    moved = TREE.with_provider(replace(GPU, name="gpu-b", parent="cell0"))
    assert moved.by_name("host_gpu") is None
    assert moved.by_name("gpu-b") == moved["gpu"]
    assert moved.subtree("cell0") == (CELL_0, moved["gpu"])
    assert moved.subtree("cell1") == (CELL_1,)


def test_a_move_into_the_own_subtree_is_refused() -> None:
    with pytest.raises(TreeError, match="its own ancestors"):
        TREE.with_provider(replace(CELL_1, parent="gpu"))


def test_generations_are_no_part_of_what_a_tree_is() -> None:
    assert ProviderTree([replace(HOST, generation=7)]) == ProviderTree([HOST])


@given(st.lists(st.integers(0, 30), max_size=30))
def test_any_tree_yields_parents_first_and_everybody_once(parents: list[int]) -> None:
    providers = [
        Provider(str(n), f"name{n}", None if not n else str(parent % n)) for n, parent in enumerate(parents)
    ]
    tree = ProviderTree(reversed(providers))
    seen: set[str] = set()
    for provider in tree:
        assert provider.parent is None or provider.parent in seen
        seen.add(provider.uuid)
    assert seen == {provider.uuid for provider in providers}
    for root in tree.roots:
        assert all(tree.root_of(below.uuid) == root for below in tree.subtree(root.uuid))
