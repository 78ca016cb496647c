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

from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import UsageError
from agent.fleet import where
from agent.fleet.where import (
    Demand,
    FleetHost,
    HostProvider,
    conditions_of,
    smallest_changes,
    summary_of,
)
from agent.tree import Inventory

FLEETS = examples(1000)


def test_no_command_opens_a_host_whose_agent_is_silent() -> None:
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"VCPU": 1}),))))
    for closed, kinds in (("closed: the host is paused", ["resume"]), ("silent for 7 min", [])):
        host = FleetHost((HostProvider("r", "r", None, {"VCPU": Inventory(4)}),), closed=closed)
        assert [change.kind for change in smallest_changes(demand, [host], lambda *_: "")] == kinds


def test_what_is_missing_of_a_shared_pool_is_given_back_by_a_release_alone() -> None:
    """Its holder may be on any host of the pool; a move would take as much of it again."""
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"DISK_GB": 5}),))))
    pool = HostProvider(
        "p", "pool", None, {"DISK_GB": Inventory(8)}, {"DISK_GB": 6}, holders={"x": {"DISK_GB": 6}}
    )
    host = FleetHost((HostProvider("r", "r", None, {"VCPU": Inventory(4)}),), (pool,))
    (change,) = smallest_changes(demand, [host], lambda *_: "elsewhere")
    assert (change.providers, dict(change.instances)) == (("pool",), {"x": ""})


def test_what_a_migration_has_is_given_back_by_the_end_of_its_move() -> None:
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"VCPU": 3}),))))
    held = {"mig": {"VCPU": 2}}
    root = HostProvider("r", "r", None, {"VCPU": Inventory(4)}, {"VCPU": 2}, holders=held)
    (change,) = smallest_changes(demand, [FleetHost((root,))], lambda *_: None)
    assert (dict(change.instances), change.migrations) == ({"mig": ""}, ("mig",))


def test_what_an_instance_has_got_by_a_move_is_given_back_by_its_revert() -> None:
    """Its migration has its place on the other host: moved once more, it would be in two moves."""
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"VCPU": 3}),))))
    root = HostProvider("r", "r", None, {"VCPU": Inventory(4)}, {"VCPU": 2}, holders={"x": {"VCPU": 2}})
    host = FleetHost((root,), moving=frozenset({"x", "y"}))
    (change,) = smallest_changes(demand, [host], lambda *_: "elsewhere")
    assert (dict(change.instances), change.migrations, change.reverts) == ({"x": ""}, (), ("x",))


def test_where_both_ends_of_a_move_are_in_the_way_its_instance_is_released() -> None:
    """Of a resize on one host; its end gives one of the two places back."""
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"VCPU": 4}),))))
    held = {"x": {"VCPU": 2}, "mig": {"VCPU": 1}}
    root = HostProvider("r", "r", None, {"VCPU": Inventory(4)}, {"VCPU": 3}, holders=held)
    host = FleetHost((root,), moving=frozenset({"x"}))
    (change,) = smallest_changes(demand, [host], lambda *_: None)
    assert (set(change.instances), change.migrations, change.reverts) == ({"x", "mig"}, ("mig",), ())


def test_while_a_reshape_is_pending_only_what_it_cannot_bring_is_missing_for_good() -> None:
    root = HostProvider("r", "r", None, {"VCPU": Inventory(4)}, {"VCPU": 4})
    host = FleetHost((root,), pending="It waits for a move.")
    for request, forever in (
        (ClaimRequest("", (RequestGroup("", {"VCPU": 8}),)), False),
        (ClaimRequest("", (RequestGroup("", {"VGPU": 1}),)), False),
        (ClaimRequest("", (RequestGroup("", {"VCPU": 1}),), root_required=frozenset({"CUSTOM_A"})), True),
    ):
        demand = Demand(conditions_of(request))
        obstacle = demand.obstacle(host)
        assert obstacle is not None and obstacle.forever is forever
        if not forever:
            (change,) = smallest_changes(demand, [host], lambda *_: "")
            assert (change.kind, change.reason) == ("reshape", "It waits for a move.")


def test_what_is_withheld_while_a_reshape_waits_is_named_as_such() -> None:
    demand = Demand(conditions_of(ClaimRequest("", (RequestGroup("", {"VGPU": 1}),))))
    root = HostProvider("r", "r", None, {"VGPU": Inventory(4, reserved=4)})
    for pending, kind in (("", "lift"), ("The reshape is postponed.", "reshape")):
        (change,) = smallest_changes(demand, [FleetHost((root,), pending=pending)], lambda *_: "")
        assert (change.kind, change.providers, change.reason) == (kind, ("r",), pending)


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


def test_groups_that_can_be_arranged_in_too_many_ways_are_refused_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, "STEPS_MAX", 20_000)
    cards = [HostProvider(f"card{n}", f"card{n}", "host", {"VGPU": Inventory(5)}) for n in range(12)]
    host = FleetHost((HostProvider("host", "host"), *cards))
    sizes = [2] * 25 + [1]  # two of 2 on each card leave one free on each
    groups = tuple(RequestGroup(str(n), {"VGPU": size}) for n, size in enumerate(sizes))
    demand = Demand(conditions_of(ClaimRequest("consumer", groups, "none")))
    with pytest.raises(UsageError, match="Ask for fewer groups at once"):
        for _ in range(1000):
            demand.obstacle(host)
    whole = Demand(conditions_of(ClaimRequest("consumer", groups[:24], "none")))
    assert whole.obstacle(host) is None
