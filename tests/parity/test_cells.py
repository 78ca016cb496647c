"""The claim of a random flavor and image has the cells that nova's compute gives such a guest."""

from __future__ import annotations

import os

from agent.errors import UsageError
from parity.demands import random_demands
from parity.nova_query import NovaRefuses, nova_cells
from parity.own_query import own_cells
from parity.query import Demand

COUNT = min(3000, int(os.environ.get("PLIMSOLL_TEST_FLAVORS", "3000")))
SEED = int(os.environ.get("PLIMSOLL_TEST_SEED", "35"))
OF_THE_FLAVOR = ("VCPU", "PCPU", "MEMORY_MB")


def takes_its_own_amounts(demand: Demand) -> bool:
    """Whether CPUs and memory are the flavor's own numbers; an explicit amount is what the claim has."""
    return not any(key.endswith(OF_THE_FLAVOR) for key in demand.specs if key.startswith("resources"))


def test_random_flavors_and_images_have_the_same_cells() -> None:
    found, equal = [], 0
    for demand in filter(takes_its_own_amounts, random_demands(COUNT, SEED)):
        try:
            nova, own = nova_cells(demand), own_cells(demand)
        except (NovaRefuses, UsageError):
            continue  # parity.test_requests compares what is refused
        equal += nova is not None and nova == own
        if nova != own:
            found.append((demand, nova, own))
    assert not found, (len(found), found[:5])
    assert equal > COUNT // 200
