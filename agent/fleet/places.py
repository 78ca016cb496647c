"""Places on hosts: which host is best, and places for several guests at once. Pure.

Guests are placed one after the other, each on the best host. Where that finds too few places, the hosts on
which another choice could have room for more are packed anew: agent.placement.knapsack compares the ways in
which one guest can lie on the host. Hosts concern each other only by the pools that they share. After so many
steps the number of places is a lower bound. tests/unit/fleet compares the numbers with brute force.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.claims.capacity import OF_EVERY_GUEST
from agent.claims.choice import Order
from agent.claims.host_cells import CELL_CLASSES
from agent.fleet.where import NOTHING, Demand, FleetHost, HostProvider, free_of
from agent.placement.knapsack import pack
from agent.shapes import Allocations, Amounts, total

PACKING_STEPS_MAX = 100_000
"""So many steps are spent on the most guests that fit on all hosts together."""
WAYS_MAX = 1000
"""So many ways of a guest are compared on a host, or on hosts that are packed together."""


class Candidate(NamedTuple):
    """A place on a host: {provider uuid: (name, {class: amount})}, and what is left beside the guest.

    `left` is {class: (free, capacity, usable)}, summed over the host's own providers, of all classes. Of a
    class that is asked, that is usable which is free in whole parts of a guest on providers that may give it.
    """

    host: str
    root: str
    allocations: Mapping[str, tuple[str, Amounts]]
    left: Mapping[str, Sequence[int]]

    @property
    def amounts(self) -> Allocations:
        """The allocations without names."""
        return {uuid: amounts for uuid, (_, amounts) in self.allocations.items()}

    def hides_cells(self, demand: Demand) -> bool:
        """Whether the host reports no NUMA cells, so that those of the guest would come from its root."""
        _, of_root = self.allocations.get(self.root, ("", NOTHING))
        return demand.has_cells and not of_root.keys().isdisjoint(CELL_CLASSES)

    def rank(self, demand: Demand, order: Order) -> tuple[bool, float, bool, float, str]:
        """The rank among hosts that fit, the lowest is best.

        Hosts that hide their cells are last where the guest asks for some. The fullest host is first
        (`pack`) or the emptiest (`spread`), in steps of a tenth of what was asked. Of equal ones that is
        first where the guest lies beside no idle device, and then where the least of the classes asked is
        stranded: when as many further guests of this kind as fit are there, too.
        """
        asked = demand.asked
        of_asked = {name: self.left[name] for name in asked if name in self.left}
        share = sum(free / max(1, capacity) for free, capacity, _ in of_asked.values()) / max(
            1, len(of_asked)
        )
        more = min((usable // asked[name] for name, (_, _, usable) in of_asked.items()), default=0)
        stranded = sum(
            (free - more * asked[name]) / max(1, capacity) for name, (free, capacity, _) in of_asked.items()
        )
        idle = any(
            free > 0
            for name, (free, *_) in self.left.items()
            if name not in asked and name not in OF_EVERY_GUEST
        )
        return (
            self.hides_cells(demand),
            (round(share, 1) if order is Order.PACK else -round(share, 1)),
            idle,
            round(stranded, 6),
            self.host,
        )


def candidate_of(demand: Demand, host: FleetHost, allocations: Allocations) -> Candidate:
    """The candidate of a place that `Question.fit` found."""
    names = {provider.uuid: provider.name for provider in host.reach}
    left: dict[str, tuple[int, int, int]] = {}
    for provider in host.providers:
        for name, inventory in provider.inventories.items():
            free, capacity, usable = left.get(name, (0, 0, 0))
            taken = allocations.get(provider.uuid, {}).get(name, 0)
            here = free_of(provider, name) - taken
            usable += demand.whole.usable(provider, name, here) if name in demand.asked else 0
            left[name] = free + here, capacity + inventory.capacity, usable
    by_provider = {uuid: (names[uuid], amounts) for uuid, amounts in allocations.items()}
    return Candidate(host.root.name, host.root.uuid, by_provider, left)


class Together(NamedTuple):
    """Places for several guests, each beside the others; `hosts` are all hosts with the guests in them.

    No more than `most` have places at once; the number of places, where that is known for certain.
    """

    places: Sequence[Candidate]
    hosts: Sequence[FleetHost]
    most: int


def places_together(
    demand: Demand, hosts: Sequence[FleetHost], count: int, order: Order, *, empty: bool = False
) -> Together:
    """Places for `count` guests, or for as many as have places.

    They are placed one after the other, each on the best host. If that ends too early, the hosts on which
    more might fit are packed anew, those that share a pool together. `empty`: as if nothing were in use now,
    and no host closed.
    """
    hosts = [host.without_use() for host in hosts] if empty else hosts
    places = _in_turn(demand, hosts, count, order)
    most, steps = len(places), PACKING_STEPS_MAX
    groups = _sharing_pools(demand, hosts) if most < count else ()
    for group in groups:
        if demand.whole.is_simple and len(group) == 1:
            continue  # none of its slots concerns another one
        roots = {host.root.uuid for host in group}
        here = sum(place.root in roots for place in places)
        need = min(here + count - len(places), _at_most(demand, group))
        if need > here:
            anew, at_most, steps = _packed(demand, group, need, steps)
            most += max(here, at_most) - here
            if len(anew) > here:
                places = [place for place in places if place.root not in roots] + anew
    filled = _filled(hosts, places)
    if groups:  # a host that was packed in few steps may have room for more
        more = _in_turn(demand, filled, count - len(places), order)
        places, filled = places + more, _filled(filled, more)
    return Together(places, filled, min(most, count))


def _filled(hosts: Iterable[FleetHost], places: Iterable[Candidate]) -> list[FleetHost]:
    taken = total(place.amounts for place in places)
    return [host.with_guest(taken) for host in hosts]


def _in_turn(demand: Demand, hosts: Sequence[FleetHost], count: int, order: Order) -> list[Candidate]:
    left = list(hosts)

    def offer_of(number: int) -> Iterator[tuple[tuple[bool, float, bool, float, str], int, Candidate]]:
        host = left[number]
        found = None if host.closed else demand.whole.fit(host)
        if found is not None:
            candidate = candidate_of(demand, host, found)
            yield candidate.rank(demand, order), number, candidate

    offers = {number: offer for number in range(len(left)) for offer in offer_of(number)}
    sharing: dict[str, list[int]] = {}
    for number in offers:
        for pool in left[number].shared:
            sharing.setdefault(pool.uuid, []).append(number)
    pools: dict[str, HostProvider] = {}
    outdated: set[int] = set()
    places: list[Candidate] = []
    while offers and len(places) < count:
        _, number, best = min(offers.values())
        if number not in outdated:
            places.append(best)
            left[number] = left[number].with_guest(best.amounts)
            taken_from = {pool.uuid: pool for pool in left[number].shared if pool.uuid in best.allocations}
            pools |= taken_from
            outdated.update(*(sharing[uuid] for uuid in taken_from))
        outdated.discard(number)
        shared = tuple(pools.get(pool.uuid, pool) for pool in left[number].shared)
        left[number] = left[number]._replace(shared=shared)
        offers.pop(number)
        offers.update((number, offer) for offer in offer_of(number))
    return places


def _packed(
    demand: Demand, group: Sequence[FleetHost], need: int, steps: int
) -> tuple[list[Candidate], int, int]:
    """Places for at most `need` guests on the hosts; the bound, and the steps that are left."""
    free = {
        provider.uuid: {name: free_of(provider, name) for name in demand.asked.keys() & provider.inventories}
        for host in group
        for provider in host.reach
    }
    left = {uuid: dict(amounts) for uuid, amounts in free.items()}
    ways: list[tuple[FleetHost, Allocations]] = []
    chosen: list[tuple[FleetHost, Allocations]] = []
    most, tried_all = 0, True
    for host in group:  # each as if the others left the pools to it
        own, all_of_host = demand.ways(host, min(steps, WAYS_MAX))
        packed = pack(own, free, need, steps)
        steps = max(0, steps - len(own) - packed.steps)
        most += packed.most if all_of_host else min(need, _at_most(demand, [host]))
        tried_all = tried_all and all_of_host
        ways += [(host, way) for way in own]
        for way, times in zip(own, packed.times, strict=True):
            spots = [(left[uuid], *each) for uuid, amounts in way.items() for each in amounts.items()]
            fitting = min(times, *(there[name] // amount for there, name, amount in spots))
            for there, name, amount in spots:
                there[name] -= fitting * amount
            chosen += [(host, way)] * fitting
    most = min(most, need)
    if len(chosen) < most and len(group) > 1 and len(ways) <= WAYS_MAX:
        packed = pack([way for _, way in ways], free, most, steps)
        steps -= packed.steps
        most = packed.most if tried_all else most
        if sum(packed.times) > len(chosen):
            chosen = [each for each, times in zip(ways, packed.times, strict=True) for _ in range(times)]
    places, filled = [], {host.root.uuid: host for host in group}
    for host, way in chosen[:need]:
        places.append(candidate_of(demand, filled[host.root.uuid], way))
        filled[host.root.uuid] = filled[host.root.uuid].with_guest(way)
    return places, most, steps


def _at_most(demand: Demand, hosts: Iterable[FleetHost]) -> int:
    """No more guests fit than what is free of each class allows."""
    providers = {provider.uuid: provider for host in hosts for provider in host.reach}.values()
    return min(
        sum(max(0, free_of(each, name)) for each in providers if name in each.inventories) // asked
        for name, asked in demand.asked.items()
    )


def _sharing_pools(demand: Demand, hosts: Iterable[FleetHost]) -> list[list[FleetHost]]:
    """The open hosts in groups of which none has a pool in reach that another one has."""
    groups: list[tuple[set[str], list[FleetHost]]] = []
    for host in hosts:
        if host.closed:
            continue
        pools = {pool.uuid for pool in host.shared if not demand.asked.keys().isdisjoint(pool.inventories)}
        touched = [group for group in groups if pools and not pools.isdisjoint(group[0])]
        groups = [group for group in groups if group not in touched]
        of_group = [each for _, members in touched for each in members]
        groups.append((pools.union(*(known for known, _ in touched)), [*of_group, host]))
    return [members for _, members in groups]
