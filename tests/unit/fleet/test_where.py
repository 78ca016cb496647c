"""The fleet's question against brute force, over random fleets; and what it says of small ones by hand."""

from random import Random

import pytest
from kits.examples import examples
from kits.fleet_questions import (
    brute_fewest_to_leave,
    brute_fits,
    brute_obstacle,
    random_fleet,
    random_request,
)

from agent.fleet.where import Demand, conditions_of, smallest_changes, summary_of

FLEETS = examples(1000)
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_verdicts_obstacles_and_smallest_changes_are_those_of_brute_force(part: int) -> None:
    for seed in range(part, FLEETS, PARTS):
        random = Random(seed)
        fleet, asked = random_fleet(random, 20), random_request(random)
        demand = Demand(conditions_of(asked.request))
        assert len(demand.conditions) == len(asked.atoms)
        obstacles = [demand.obstacle(host) for host in fleet]
        found = [
            None
            if each is None
            else (
                demand.conditions.index(each.condition) if each.condition in demand.conditions else -1,
                each.forever,
                each.alone,
            )
            for each in obstacles
        ]
        assert found == [brute_obstacle(asked, host) for host in fleet], f"seed {seed}"
        rows = summary_of(demand, (each for each in obstacles if each is not None))
        assert sum(row.hosts for row in rows) == sum(each is not None for each in obstacles)
        near = [host for host, each in zip(fleet, obstacles, strict=True) if each and not each.forever]
        changes = {change.kind: change for change in smallest_changes(demand, near, lambda *_: "")}
        sizes = [size for host in near if not host.closed and (size := brute_fewest_to_leave(asked, host))]
        assert ("move" in changes) == bool(sizes), f"seed {seed}"
        assert not sizes or len(changes["move"].instances) == min(sizes), f"seed {seed}"
        lifted = [host for host in near if not host.closed and brute_fits(asked.atoms, host, lifted=True)]
        assert ("lift" in changes) == bool(lifted), f"seed {seed}"
        resumed = [host for host in near if host.closed and brute_fits(asked.atoms, host)]
        assert ("resume" in changes) == bool(resumed), f"seed {seed}"
