"""Whose providers these are: the agent marks its own, and writes nothing to another service's host."""

from __future__ import annotations

import pytest

from agent.driver import DescribedProvider, Description
from agent.errors import ForeignOwner
from agent.providers.owner import OWNER_TRAIT, check_owner, with_owner
from agent.tree import Provider

ROOT = "7d5a0c5b-8e4c-4e0e-9b7a-0f6b9f1d1a01"


def test_each_described_provider_is_marked() -> None:
    host = DescribedProvider("node1", traits=frozenset({"COMPUTE_NODE"}))
    card = DescribedProvider("node1_gpu", parent="node1")
    marked = with_owner(Description((host, card)), OWNER_TRAIT)
    assert [provider.traits for provider in marked.providers] == [
        {"COMPUTE_NODE", OWNER_TRAIT},
        {OWNER_TRAIT},
    ]


@pytest.mark.parametrize("traits", [set(), {"COMPUTE_NODE"}, {OWNER_TRAIT, "COMPUTE_NODE"}])
def test_a_root_of_nobody_or_of_the_agent_is_taken(traits: set[str]) -> None:
    check_owner(None, OWNER_TRAIT)
    check_owner(Provider(ROOT, "node1", traits=frozenset(traits)), OWNER_TRAIT)


@pytest.mark.parametrize("trait", ["OWNER_NOVA", "OWNER_CYBORG", "CUSTOM_OWNER_IRONIC"])
def test_a_root_of_another_service_is_refused_with_what_to_do(trait: str) -> None:
    root = Provider(ROOT, "node1", traits=frozenset({trait, OWNER_TRAIT}))
    with pytest.raises(ForeignOwner, match=f"node1 .* has the trait {trait}: .* `plimsoll adopt`"):
        check_owner(root, OWNER_TRAIT)
