"""Why a request does not fit: each shortfall names what was asked, what is free, and the provider."""

from __future__ import annotations

import pytest
from kits.fit import HOST, ask, fitted, group, provider, reasons, uuid_of

from agent.claims.claim import Shortfall
from agent.tree import Inventory


@pytest.mark.parametrize(
    ("inventory", "used", "asked", "free", "reason"),
    [
        (Inventory(16), 13, 4, 3, "only 3 of 16 are free"),
        (Inventory(16, reserved=4), 0, 13, 12, "only 12 of 12 are free"),
        (Inventory(16, allocation_ratio=1.5), 23, 2, 1, "only 1 of 24 is free"),
        (Inventory(16), 20, 1, 0, "only 0 of 16 are free"),
        (Inventory(16, max_unit=4), 0, 5, 16, "max_unit is 4"),
        (Inventory(16, min_unit=4), 0, 2, 16, "min_unit is 4"),
        (Inventory(16, step_size=4), 0, 6, 16, "step_size is 4"),
    ],
)
def test_a_refusal_names_asked_free_and_provider(
    inventory: Inventory, used: int, asked: int, free: int, reason: str
) -> None:
    """Scenario 31: what is short is told with its numbers."""
    found = fitted(ask(group(VCPU=asked)), provider("host", VCPU=inventory), used={"host": {"VCPU": used}})
    assert found.shortfalls == (Shortfall("VCPU", asked, free, "host", uuid_of("host"), reason),)


def test_every_class_that_falls_short_is_named() -> None:
    found = fitted(ask(group(VCPU=99, MEMORY_MB=99999, DISK_GB=1, VGPU=1)), HOST)
    assert [(each[0], each[3]) for each in reasons(found)] == [
        ("VCPU", "host"),
        ("MEMORY_MB", "host"),
        ("VGPU", "host"),
    ]


def test_groups_together_may_not_pass_max_unit() -> None:
    host = provider("host", VGPU=Inventory(8, max_unit=4))
    request = ask(group("1", VGPU=3), group("2", VGPU=3), policy="none")
    assert reasons(fitted(request, host)) == [
        ("VGPU", 6, 8, "host", "the groups '1', '2' together ask for more than fits")
    ]


def test_an_empty_tree_says_so() -> None:
    assert reasons(fitted(ask(group(VCPU=1)))) == [("VCPU", 1, 0, "", "the host has no inventory yet")]
