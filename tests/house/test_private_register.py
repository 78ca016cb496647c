"""The tracker's lock and book are private: others ask `ResourceTracker`, which asks the register."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kits import structure
from kits.structure import Module

REGISTER = "agent.tracker.register"
INSIDE = {"register", "lock", "book", "journal"}
"""Attributes of the tracker that would lead to its inside."""


def attributes_of(module: Module, owners: set[str]) -> Iterator[str]:
    """The attributes that the module takes from a variable or attribute of one of these names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in owners:
                yield node.attr


def agent_modules(*, of_tracker: bool) -> list[Module]:
    return [
        module
        for module in structure.modules().values()
        if module.name.startswith("agent.") and module.name.startswith("agent.tracker.") is of_tracker
    ]


def test_no_other_folder_reaches_into_the_tracker() -> None:
    reached = {
        module.name: name
        for module in agent_modules(of_tracker=False)
        for name in attributes_of(module, {"tracker", "_tracker"})
        if name in INSIDE or name.startswith("_")
    }
    assert reached == {}
    assert [module.name for module in agent_modules(of_tracker=False) if REGISTER in module.imports] == []


def test_in_the_tracker_only_the_register_touches_the_lock_and_the_book() -> None:
    reached = {
        module.name: name
        for module in agent_modules(of_tracker=True)
        for name in attributes_of(module, {"register", "_register"})
        if name.startswith("_")
    }
    assert reached == {}
