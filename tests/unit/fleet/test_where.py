"""The fleet's question against brute force, over random fleets; and what it says of small ones by hand.

Then places for several guests, in the same way.
"""

from collections import Counter
from random import Random
from uuid import UUID

import pytest
from kits.examples import examples
from kits.fleet_questions import (
    brute_fewest_to_leave,
    brute_fits,
    brute_most_together,
    brute_obstacle,
    random_fleet,
    random_request,
)
from kits.host_cells import book_of_cells, put

from agent.claims.capacity import capacity
from agent.claims.choice import Order
from agent.claims.parse_request import Flavor, claim_for_flavor
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.errors import UsageError
from agent.fleet import where
from agent.fleet.where import (
    Demand,
    FleetHost,
    HostProvider,
    candidate_of,
    conditions_of,
    places_together,
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


@pytest.mark.parametrize("part", range(PARTS))
def test_as_many_guests_have_places_as_brute_force_finds(part: int) -> None:
    for seed in range(part, examples(600), PARTS):
        random = Random(seed)
        fleet, asked, count = random_fleet(random, 3), random_request(random), random.choice((2, 3, 4))
        demand = Demand(conditions_of(asked.request))
        together = places_together(demand, fleet, count, random.choice(list(Order)))
        most = brute_most_together(asked.atoms, fleet, count)
        assert len(together.places) == together.most == most, f"seed {seed}"


@pytest.mark.parametrize("seed", range(examples(300)))
def test_guests_together_overfill_nothing_and_stop_where_no_more_fit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(where, "PACKING_STEPS_MAX", random.choice((0, 3, 100_000)))
    fleet, asked, count = random_fleet(random, 6), random_request(random), random.choice((2, 5, 12))
    demand = Demand(conditions_of(asked.request))
    placed, left, most = places_together(demand, fleet, count, random.choice(list(Order)))
    assert len(placed) <= most <= count
    closed = {host.root.name for host in fleet if host.closed}
    assert not closed & {place.host for place in placed}
    if len(placed) < count:
        assert not any(brute_fits(asked.atoms, host) for host in left if not host.closed)
    taken: Counter[tuple[str, str]] = Counter()
    for place in placed:
        for uuid, (_, amounts) in place.allocations.items():
            taken.update({(uuid, name): amount for name, amount in amounts.items()})
    providers = {each.uuid: each for host in fleet for each in host.reach}
    for (uuid, name), amount in taken.items():
        assert amount <= providers[uuid].inventories[name].capacity - providers[uuid].used.get(name, 0)
    for host in left:  # each host sees what others took of a pool that they share
        for each in host.reach:
            for name in each.inventories:
                assert (
                    each.used.get(name, 0) == providers[each.uuid].used.get(name, 0) + taken[each.uuid, name]
                )


def test_guests_over_two_cells_each_have_all_places_of_hosts_with_four() -> None:
    """The first two cells for as many as they have room for would leave the others without a second one."""
    cells = [
        HostProvider(f"{name}{n}", f"{name}{n}", name, {"VCPU": Inventory(size), "MEMORY_MB": Inventory(999)})
        for name in ("a", "b")
        for n, size in enumerate((8, 8, 16, 1))
    ]
    pool = HostProvider("pool", "pool", None, {"DISK_GB": Inventory(1000)})
    hosts = [
        FleetHost((HostProvider(name, name), *(each for each in cells if each.parent == name)), (pool,))
        for name in ("a", "b")
    ]
    own = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 2, "DISK_GB": 1})
    demand = Demand(conditions_of(ClaimRequest("", (own,), topology=TopologyRequest(cells=2))))
    together = places_together(demand, hosts, 100, Order.PACK)
    assert len(together.places) == together.most == 32
    assert len(places_together(demand, hosts, 20, Order.SPREAD).places) == 20


def cards(name: str, sizes: tuple[int, ...]) -> FleetHost:
    own = [
        HostProvider(f"{name}{n}", f"{name}{n}", name, {"VGPU": Inventory(m)}) for n, m in enumerate(sizes)
    ]
    return FleetHost((HostProvider(name, name), *own))


def test_isolated_groups_of_mixed_sizes_have_all_places_of_many_cards() -> None:
    """There are 500 ways to lie on the first host, and the widest ways leave room for two guests alone."""
    hosts = [cards("a", (2, 4, 8, 4, 3, 4, 6)), cards("b", (8, 7, 16, 2))]
    groups = tuple(RequestGroup(str(n), {"VGPU": size}) for n, size in enumerate((4, 3, 1, 2)))
    demand = Demand(conditions_of(ClaimRequest("", groups, "isolate")))
    together = places_together(demand, hosts, 9, Order.PACK)
    assert len(together.places) == together.most == 5


def test_a_host_that_reports_no_cells_comes_after_those_that_have_them_for_the_guest() -> None:
    basic = {"VCPU": Inventory(4), "MEMORY_MB": Inventory(4)}
    cells = [HostProvider(f"b{n}", f"b{n}", "b", basic) for n in range(2)]
    hosts = [FleetHost((HostProvider("a", "a", None, basic),)), FleetHost((HostProvider("b", "b"), *cells))]
    own = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 2})
    for cell_count, first in ((2, {"b"}), (0, {"a", "b"})):
        topology = TopologyRequest(cells=cell_count)
        demand = Demand(conditions_of(ClaimRequest("", (own,), topology=topology)))
        assert {places_together(demand, hosts, 1, order).places[0].host for order in Order} == first
        (place,) = places_together(demand, hosts[:1], 1, Order.PACK).places
        assert place.hides_cells(demand) is bool(cell_count)


def test_of_two_hosts_that_is_better_on_which_the_least_is_stranded() -> None:
    """Both have as much left; cards of other sizes leave one unit on each that no guest can have."""
    hosts = [
        FleetHost(
            (
                HostProvider(name, name, None, {"VCPU": Inventory(10)}),
                *(
                    HostProvider(f"{name}{n}", f"{name}{n}", name, {"VGPU": Inventory(size)})
                    for n, size in enumerate(sizes)
                ),
            )
        )
        for name, sizes in (("a", (3, 3, 2)), ("b", (2, 2, 4)))
    ]
    groups = (RequestGroup("", {"VCPU": 1}), RequestGroup("1", {"VGPU": 2}))
    demand = Demand(conditions_of(ClaimRequest("", groups)))
    for order in Order:
        assert places_together(demand, hosts, 1, order).places[0].host == "b"


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_stranded_beside_a_guest_is_what_no_further_guest_of_its_kind_can_have(part: int) -> None:
    compared = 0
    for seed in range(part, examples(2000), PARTS):
        random = Random(seed)
        (host,), asked = random_fleet(random, 1), random_request(random)
        groups = [group for group in asked.request.groups if group.suffix]
        if any(len(group.resources) > 1 for group in groups) or any(
            atom[0] == "aggregate" for atom in asked.atoms
        ):
            continue  # classes that come from one provider, each alone
        demand = Demand(conditions_of(asked.request))
        host = host._replace(shared=(), closed="")
        place = demand.whole.fit(host)
        if place is not None and demand.whole.is_simple:
            candidate, filled = candidate_of(demand, host, place), host.with_guest(place)
            further = brute_most_together(asked.atoms, [filled], 4)
            by_class = (candidate.left[name][2] // amount for name, amount in demand.asked.items())
            assert min(4, *by_class) == further, f"seed {seed}"
            compared += 1
    assert compared > 5


@pytest.mark.parametrize("seed", range(examples(300)))
def test_a_host_gives_claims_as_many_places_as_it_has_room_for(seed: int) -> None:
    """With more than two cells it can be fewer: each claim takes the cells that the host chooses."""
    random = Random(seed)
    cells = random.choice((2, 2, 3, 4))
    book = book_of_cells({}, cells=cells, shared=random.choice((0, 2)))
    for number in range(random.randint(1, 6)):
        put(book, _random_flavor(random, number))
    asked = _random_flavor(random, 99)
    own = [
        HostProvider(
            each.uuid, each.name, each.parent, each.inventories, book.used.get(each.uuid, {}), each.traits
        )
        for each in sorted(book.host.tree, key=lambda each: each.parent is not None)
    ]
    demand = Demand(conditions_of(asked))
    together = places_together(demand, [FleetHost(tuple(own))], 1000, Order.PACK)
    claims = capacity(book, asked).guests
    if cells == 2 or asked.topology.cells < 2:
        assert claims == len(together.places)
    assert claims <= len(together.places) == together.most


def _random_flavor(random: Random, number: int) -> ClaimRequest:
    cells = random.choice((1, 1, 2))
    specs = {"hw:numa_nodes": str(cells)} if cells > 1 else {}
    if random.random() < 0.6:
        specs["hw:cpu_policy"] = "dedicated"
    amounts = random.choice((1, 2, 3)) * cells, random.choice((512, 1024, 2048)) * cells
    return claim_for_flavor(str(UUID(int=number)), Flavor(*amounts, 0, specs))
