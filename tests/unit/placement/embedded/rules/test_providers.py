"""The rule of providers: trees have no cycles, names are unique, and generations rise with contents alone."""

from __future__ import annotations

import pytest

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.model import Model
from agent.placement.embedded.problems import (
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    PROVIDER_HAS_CHILDREN,
    RequestRefused,
)
from agent.placement.embedded.rules import providers


def draft() -> Draft:
    state = Draft(Model({"HW_CPU_X86_AVX": 0.0}, {}), 1.0)
    providers.create(state, "root", "root", None)
    providers.create(state, "child", "child", "root")
    providers.create(state, "grandchild", "grandchild", "child")
    return state


def test_a_subtree_moves_with_its_root() -> None:
    state = draft()
    moved = providers.update(state, "child", "child", None, may_reparent=True)
    grandchild = state.provider("grandchild")
    assert moved.root_uuid == "child" and grandchild is not None and grandchild.root_uuid == "child"
    assert moved.generation == 0


def test_a_tree_has_no_cycle() -> None:
    with pytest.raises(RequestRefused, match="loop"):
        providers.update(draft(), "root", "root", "grandchild", may_reparent=True)
    with pytest.raises(RequestRefused):
        providers.update(draft(), "child", "child", None, may_reparent=False)


def test_names_are_unique_and_parents_are_not_deleted() -> None:
    with pytest.raises(RequestRefused) as refused:
        providers.create(draft(), "other", "root", None)
    assert refused.value.problem is DUPLICATE_NAME
    with pytest.raises(RequestRefused) as refused:
        providers.delete(draft(), "child")
    assert refused.value.problem is PROVIDER_HAS_CHILDREN


def test_traits_raise_the_generation_only_if_they_change() -> None:
    state = draft()
    for _ in range(2):
        provider = providers.set_traits(state, "root", None, ["HW_CPU_X86_AVX"])
    assert provider.generation == 1
    with pytest.raises(RequestRefused) as refused:
        providers.set_traits(state, "root", 0, [])
    assert refused.value.problem is CONCURRENT_UPDATE
