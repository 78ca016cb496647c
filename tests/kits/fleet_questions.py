"""Random fleets, random requests, and what brute force says of them.

The judgement is written from the rules alone and shares no code with agent.fleet: a request is a list of
atoms, and a host fits if one of all the assignments of providers to the parts of the request obeys the rules.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from random import Random

from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.fleet.where import FleetHost, HostProvider
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tree import Inventory, Provider
from kits.uuids import uuid_of

Atom = tuple[object, ...]
"""("root", trait, forbidden), ("amount", part, class, number), ("trait", group, any of, forbidden),
("aggregate", group, any of), ("apart",), ("isolate",), ("subtree", groups).

A part is a group or ("cell", n).
"""

TRAITS = ("CUSTOM_FAST", "CUSTOM_OLD", "CUSTOM_A", "CUSTOM_B")
AGGREGATES = tuple(f"a0000000-0000-4000-8000-00000000000{number}" for number in range(3))
CELL_CLASSES = ("VCPU", "MEMORY_MB")


@dataclass(frozen=True)
class Asked:
    """A request, and the same as atoms in the order of the engine's conditions."""

    request: ClaimRequest
    atoms: tuple[Atom, ...]


def random_fleet(random: Random, hosts: int) -> list[FleetHost]:
    """Hosts with NUMA cells or without, VFs, cards of mixed sizes, shared pools, aggregates, guests."""
    pools = [
        HostProvider(
            f"pool{number}",
            f"pool{number}",
            None,
            {"DISK_GB": Inventory(random.choice((8, 40)))},
            {"DISK_GB": random.choice((0, 0, 6))},
            frozenset({"MISC_SHARES_VIA_AGGREGATE"}),
            frozenset({AGGREGATES[number]}),
        )
        for number in range(random.choice((0, 1, 2)))
    ]
    return [_random_host(random, f"host{number}", pools) for number in range(hosts)]


def _random_host(random: Random, name: str, pools: Sequence[HostProvider]) -> FleetHost:
    aggregates = frozenset(each for each in AGGREGATES if random.random() < 0.3)
    basic = {
        "VCPU": Inventory(random.choice((2, 4, 6)), allocation_ratio=random.choice((1.0, 1.0, 2.0))),
        "MEMORY_MB": Inventory(random.choice((4, 8)), reserved=random.choice((0, 0, 1))),
    }
    disk = {"DISK_GB": Inventory(10)} if random.random() < 0.7 else {}
    own: list[HostProvider] = []

    def add(suffix: str, parent: str | None, inventories: dict[str, Inventory]) -> None:
        traits = frozenset(trait for trait in TRAITS if random.random() < 0.3)
        above = aggregates if parent is None or random.random() < 0.2 else frozenset[str]()
        own.append(HostProvider(name + suffix, name + suffix, parent, inventories, {}, traits, above))

    cells = random.choice((0, 0, 2))
    add("", None, disk if cells else basic | disk)
    for number in range(cells):
        add(f"_cell{number}", name, basic)
    parents = [provider.uuid for provider in own]
    for number in range(random.choice((0, 1, 2))):
        card = {
            "VGPU": Inventory(random.choice((1, 2, 4)), max_unit=random.choice((1, 2, 4))),
            "CUSTOM_HALF": Inventory(2, reserved=random.choice((0, 0, 1, 2))),
        }
        kinds = random.choice((("VGPU",), ("VGPU",), ("VGPU", "CUSTOM_HALF")))
        add(f"_gpu{number}", random.choice(parents), {kind: card[kind] for kind in kinds})
    if random.random() < 0.5:
        add(
            "_vfs",
            random.choice(parents),
            {"SRIOV_NET_VF": Inventory(random.choice((2, 4)), step_size=random.choice((1, 2)))},
        )
    host = FleetHost(
        tuple(own),
        tuple(pool for pool in pools if any(pool.aggregates & each.aggregates for each in own)),
        random.choice(("", "", "", "", "disabled")),
    )
    for number in range(random.choice((0, 1, 2, 4))):
        held: dict[str, dict[str, int]] = {}
        for provider in own:
            for kind in provider.inventories:
                if random.random() < 0.6:
                    held.setdefault(provider.uuid, {})[kind] = random.choice((1, 1, 2))
        if held:
            host = _with_consumer(host, f"{name}-guest{number}", held)
    return host


def _with_consumer(host: FleetHost, consumer: str, held: dict[str, dict[str, int]]) -> FleetHost:
    """The host with this guest, as far as it has room for it."""
    providers = []
    for provider in host.providers:
        used, kept = dict(provider.used), dict[str, int]()
        for kind, amount in held.get(provider.uuid, {}).items():
            inventory = provider.inventories[kind]
            allowed = amount <= inventory.max_unit and not amount % inventory.step_size
            if allowed and used.get(kind, 0) + amount <= inventory.capacity:
                used[kind] = used.get(kind, 0) + amount
                kept[kind] = amount
        holders = {**provider.holders, consumer: kept} if kept else provider.holders
        providers.append(provider._replace(used=used, holders=holders))
    return host._replace(providers=tuple(providers))


def random_request(random: Random) -> Asked:
    """A request with some of all that a request can ask."""
    root_required = frozenset({"CUSTOM_FAST"}) if random.random() < 0.15 else frozenset[str]()
    root_forbidden = frozenset({"CUSTOM_OLD"}) if random.random() < 0.15 else frozenset[str]()
    cells = random.choice((0, 0, 0, 1, 2))
    cpus, memory = random.choice((1, 2)) * max(1, cells), random.choice((1, 2, 4)) * max(1, cells)
    own = {"VCPU": cpus, "MEMORY_MB": memory}
    if random.random() < 0.5:
        own["DISK_GB"] = random.choice((2, 6))
    if random.random() < 0.2:
        own["VGPU"] = random.choice((1, 2))
    groups = [_group(random, "", own, always=False)]
    for suffix in random.choice(((), (), ("A",), ("A", "B"))):
        kind = random.choice(("VGPU", "VGPU", "SRIOV_NET_VF", "CUSTOM_HALF"))
        wanted = {kind: random.choice((1, 1, 2))}
        if kind == "VGPU" and random.random() < 0.2:
            wanted["CUSTOM_HALF"] = 1
        groups.append(_group(random, suffix, wanted, always=random.random() < 0.4))
    several = len(groups) > 2
    bare = several and random.random() < 0.2
    policy = random.choice(("none", "isolate")) if several else None
    subtree = (frozenset({"A", "B"}),) if several and random.random() < 0.3 else ()
    if bare:
        groups.append(RequestGroup("C", {}, (frozenset({"CUSTOM_A"}),)))
        subtree = (frozenset({"A", "C"}),)
    request = ClaimRequest(
        "00000000-0000-4000-8000-000000000000",
        tuple(groups),
        policy,
        subtree,
        TopologyRequest(cells=cells),
        root_required=root_required,
        root_forbidden=root_forbidden,
    )
    return Asked(request, tuple(_atoms(request, cells, cpus, memory)))


def _group(random: Random, suffix: str, resources: dict[str, int], *, always: bool) -> RequestGroup:
    required = [frozenset({"CUSTOM_A"}), frozenset({"CUSTOM_A", "CUSTOM_B"})]
    return RequestGroup(
        suffix,
        resources,
        tuple(each for each in required if random.random() < (0.5 if always else 0.15))[:1],
        frozenset({"CUSTOM_OLD"}) if random.random() < 0.15 else frozenset(),
        (frozenset(AGGREGATES[:2]),) if random.random() < 0.15 else (),
    )


def _atoms(request: ClaimRequest, cells: int, cpus: int, memory: int) -> list[Atom]:
    atoms: list[Atom] = [("root", trait, False) for trait in request.root_required]
    atoms += [("root", trait, True) for trait in request.root_forbidden]
    for group in request.groups:
        atoms += [
            ("amount", group.suffix, kind, amount)
            for kind, amount in group.resources.items()
            if group.suffix or not cells or kind not in CELL_CLASSES
        ]
    for cell in range(cells):
        atoms += [
            ("amount", ("cell", cell), "VCPU", cpus // cells),
            ("amount", ("cell", cell), "MEMORY_MB", memory // cells),
        ]
    for group in request.groups:
        atoms += [("trait", group.suffix, any_of, False) for any_of in group.required]
        atoms += [("trait", group.suffix, frozenset({trait}), True) for trait in group.forbidden]
        atoms += [("aggregate", group.suffix, any_of) for any_of in group.member_of]
    if cells > 1:
        atoms.append(("apart",))
    if request.group_policy == "isolate":
        atoms.append(("isolate",))
    return [*atoms, *(("subtree", suffixes) for suffixes in request.same_subtree)]


def put_fleet(client: PlacementClient, fleet: Sequence[FleetHost]) -> None:
    """Write the fleet to a Placement."""
    for trait in TRAITS:
        client.ensure_trait(trait)
    client.ensure_resource_class("CUSTOM_HALF")
    held: dict[str, dict[str, dict[str, int]]] = {}
    for host in fleet:
        for each in host.reach:
            if client.find_provider(uuid=uuid_of(each.uuid)) is not None:
                continue
            uuid = uuid_of(each.uuid)
            parent = None if each.parent is None else uuid_of(each.parent)
            generation = client.create_provider(Provider(uuid, each.name, parent))
            closed = each.uuid == host.root.uuid and host.closed
            traits = each.traits | ({"COMPUTE_STATUS_DISABLED"} if closed else set())
            generation = client.put_traits(uuid, generation, traits) if traits else generation
            if each.aggregates:
                generation = client.put_aggregates(uuid, generation, each.aggregates)
            if each.inventories:
                client.put_inventories(uuid, generation, each.inventories)
            holders = each.holders or ({f"user of {each.name}": each.used} if any(each.used.values()) else {})
            for consumer, amounts in holders.items():
                held.setdefault(consumer, {})[uuid] = dict(amounts)
    for consumer, allocations in held.items():
        client.write_allocations(ConsumerAllocations(uuid_of(consumer), allocations))


def brute_fits(atoms: Sequence[Atom], host: FleetHost, *, empty: bool = False, lifted: bool = False) -> bool:
    """Whether any assignment of the host's providers obeys all atoms."""
    return next(_brute_ways(atoms, host, empty=empty, lifted=lifted), None) is not None


def brute_most_together(atoms: Sequence[Atom], fleet: Sequence[FleetHost], count: int) -> int:
    """How many of so many guests have places at once: each is tried in each way on each host."""
    ways = dict.fromkeys(way for host in fleet if not host.closed for way in _brute_ways(atoms, host))
    room = {
        (each.uuid, kind): int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        - each.used.get(kind, 0)
        for host in fleet
        for each in host.reach
        for kind, inventory in each.inventories.items()
    }

    @cache
    def most(taken: tuple[Spot, ...], guests: int) -> int:
        """`taken` has a spot once for each unit."""
        found = 0
        for way in ways if guests else ():
            spots = tuple(sorted((*taken, *way)))
            if all(amount <= room[spot] for spot, amount in Counter(spots).items()):
                found = max(found, 1 + most(spots, guests - 1))
                if found == guests:
                    break
        return found

    return most((), count)


Spot = tuple[str, str]
"""The uuid of a provider, and a class."""


def _brute_ways(
    atoms: Sequence[Atom], host: FleetHost, *, empty: bool = False, lifted: bool = False
) -> Iterator[tuple[Spot, ...]]:
    """What each assignment that obeys all atoms takes: a spot once for each unit of it, sorted."""
    for atom in atoms:
        if atom[0] == "root" and (atom[1] in host.root.traits) == atom[2]:
            return
    amounts: dict[object, dict[str, int]] = {}
    for atom in atoms:
        if atom[0] == "amount":
            amounts.setdefault(atom[1], {})[str(atom[2])] = int(str(atom[3]))
    # Each class of the unsuffixed group alone, all other parts whole.
    parts: list[tuple[object, dict[str, int]]] = []
    for group, wanted in amounts.items():
        parts += [(group, {kind: n}) for kind, n in wanted.items()] if group == "" else [(group, wanted)]
    subtrees = [atom[1] for atom in atoms if atom[0] == "subtree"]
    if frozenset({"A", "C"}) in subtrees and any(atom[:2] == ("trait", "C") for atom in atoms):
        parts.append(("C", {}))
    options = [
        [each for each in host.reach if all(kind in each.inventories for kind in wanted)]
        for _, wanted in parts
    ]
    for chosen in product(*options):
        filled = [(*part, each) for part, each in zip(parts, chosen, strict=True)]
        if _obeys(atoms, host, filled, empty, lifted):
            taken = ((each.uuid, kind) for _, wanted, each in filled for kind in Counter(wanted).elements())
            yield tuple(sorted(taken))


def _obeys(
    atoms: Sequence[Atom],
    host: FleetHost,
    filled: list[tuple[object, dict[str, int], HostProvider]],
    empty: bool,
    lifted: bool,
) -> bool:
    taken: dict[tuple[str, str], int] = {}
    for _, wanted, provider in filled:
        for kind, amount in wanted.items():
            inventory = provider.inventories[kind]
            if not inventory.min_unit <= amount <= inventory.max_unit or amount % inventory.step_size:
                return False
            taken[provider.uuid, kind] = taken.get((provider.uuid, kind), 0) + amount
    for provider in host.reach:
        for kind, inventory in provider.inventories.items():
            amount = taken.get((provider.uuid, kind), 0)
            reserved = inventory.reserved
            if reserved >= inventory.total and (empty or lifted):
                reserved = 0
            used = 0 if empty else provider.used.get(kind, 0)
            room = int((inventory.total - reserved) * inventory.allocation_ratio) - used
            if amount and (amount > room or amount > inventory.max_unit):
                return False
    return all(_obeys_one(atom, host, filled) for atom in atoms)


def _obeys_one(
    atom: Atom, host: FleetHost, filled: list[tuple[object, dict[str, int], HostProvider]]
) -> bool:
    def of_group(suffix: object) -> list[HostProvider]:
        """A guest's cells are part of the unsuffixed group."""
        return [
            each for part, _, each in filled if part == suffix or (suffix == "" and isinstance(part, tuple))
        ]

    match atom:
        case ("trait", group, frozenset() as any_of, False):
            having = of_group(group)
            if not having:
                return True
            if group == "":
                return bool(any_of & frozenset().union(*(each.traits for each in having)))
            return all(any_of & each.traits for each in having)
        case ("trait", group, frozenset() as any_of, True):
            return not any(any_of & each.traits for each in of_group(group))
        case ("aggregate", group, frozenset() as any_of):
            return all(
                any_of & each.aggregates
                or (group == "" and each in host.providers and any_of & host.root.aggregates)
                for each in of_group(group)
            )
        case ("apart",):
            cells = [each.uuid for part, _, each in filled if isinstance(part, tuple)]
            return all(uuid == host.root.uuid or cells.count(uuid) == 1 for uuid in cells)
        case ("isolate",):
            suffixed = [each.uuid for part, _, each in filled if part and isinstance(part, str)]
            return len(set(suffixed)) == len(suffixed)
        case ("subtree", frozenset() as suffixes):
            within = [each for part, _, each in filled if part in suffixes]
            present = {part for part, _, _ in filled if part in suffixes}
            return len(present) < 2 or any(
                all(_is_under(host, each, top) for each in within) for top in within
            )
    return True


def _is_under(host: FleetHost, provider: HostProvider, top: HostProvider) -> bool:
    by_uuid = {each.uuid: each for each in host.reach}
    above: HostProvider | None = provider
    while above is not None and above.uuid != top.uuid:
        above = by_uuid.get(above.parent) if above.parent else None
    return above is not None


def brute_obstacle(asked: Asked, host: FleetHost) -> tuple[int, bool, bool] | None:
    """(number of the first obstacle, -1 for a closed host; for good; fits without it); None where it fits."""
    fits = brute_fits(asked.atoms, host)
    forever = not brute_fits(asked.atoms, host, empty=True)
    if host.closed and not forever:
        return -1, False, fits
    if fits:
        return None
    number = next(
        n for n in range(len(asked.atoms)) if not brute_fits(asked.atoms[: n + 1], host, empty=forever)
    )
    without = [*asked.atoms[:number], *asked.atoms[number + 1 :]]
    return number, forever, not host.closed and brute_fits(without, host)


def brute_fewest_to_leave(asked: Asked, host: FleetHost) -> int | None:
    """How many consumers at least have to leave the host; None where that does not help."""
    consumers = sorted({consumer for provider in host.reach for consumer in provider.holders})
    for size in range(1, len(consumers) + 1):
        for gone in combinations(consumers, size):
            left = [
                provider._replace(
                    used={
                        kind: amount - sum(provider.holders.get(each, {}).get(kind, 0) for each in gone)
                        for kind, amount in provider.used.items()
                    }
                )
                for provider in host.providers
            ]
            if brute_fits(asked.atoms, host._replace(providers=tuple(left))):
                return size
    return None
