"""Guests that come and go on hosts with devices: how often a device is free and its guest is refused.

    python -m benchmarks.stranded [--arrivals N]   target: a fifth of the former refusals

A refusal counts where one cell has the guest's devices free, and the host its CPUs and memory, in sum: they
are stranded. The same guests come to a host that chooses
- former: the cell with the most free memory first, as Plimsoll did before;
- nova:   cells with fewer free devices first for guests that ask for none, then the most free memory
          (nova 34, nova/virt/hardware.py, numa_fit_instance_to_host);
- spread: `[claims] strategy = spread`;
- pack:   `[claims] strategy = pack`, the default;
- live:   as pack, and for each such refusal the operator makes the moves on this host that `plimsoll defrag`
          tells, if these alone make room and no guest has to stop for them;
- defrag: the same, and guests may stop for a move on this host.
In small cases, each way to place the guests is tried as well: the optimum.

`movable` are those of the stranded guests that would fit beside the guests that are there, if these were
arranged otherwise. Nearly all are, so the sums are a fair measure: that a guest is refused is a matter of
where earlier guests went. Not all of it can be known when they come: benchmarks/stranded_floor.py computes
the fewest refusals of a choice that does not know the future.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid5

from agent.claims.book import Book
from agent.claims.capacity import defrag
from agent.claims.choice import CellCost, Choice, FreeOf, Order, Strategy
from agent.claims.claim import Claim, ClaimState, Fit, claim_of_fit
from agent.claims.fit_search import ProviderIndex
from agent.claims.host_cells import HostCells, HostLayout
from agent.claims.parse_request import Flavor, claim_for_flavor
from agent.claims.request import ClaimRequest
from agent.driver import Cell, Topology
from agent.tree import Inventory, Provider, ProviderTree

CORES, MEMORY_MB, PAGE_KIB, PAGES = 8, 65_536, 2048, 8_192
GPU, VF = "VGPU", "SRIOV_NET_VF"
ARRIVALS = 100_000
SMALL_CASES = 200
TARGET = 0.2
RESOURCES = ("PCPU", "memory", "pages", GPU, VF)
STEPS_MAX = 20_000
"""So many steps the search for another arrangement takes."""


def uuid_of(name: str) -> str:
    return str(uuid5(UUID(int=0), name))


class NovaChoice(Choice):
    """The order of nova: a cell counts by its free devices of every kind, one by one."""

    def costs(
        self, asked: Mapping[str, int], room: Mapping[int, Mapping[str, int]], free: FreeOf
    ) -> dict[int, CellCost]:
        if any(name in asked for name in (GPU, VF)):
            return {}
        return {
            cell: CellCost(lost=float(sum(free(uuid, name) for uuid, name in devices)))
            for cell, devices in self.devices.items()
        }


class FormerChoice(Choice):
    """No cell is spared for its devices."""

    def costs(
        self, asked: Mapping[str, int], room: Mapping[int, Mapping[str, int]], free: FreeOf
    ) -> dict[int, CellCost]:
        return {}


SPREAD, PACK = Strategy(Order.SPREAD), Strategy(Order.PACK)
CHOICES: Mapping[str, Choice] = {
    "former": FormerChoice(SPREAD),
    "nova": NovaChoice(SPREAD),
    "spread": Choice(SPREAD),
    "pack": Choice(PACK),
    "live": Choice(PACK),
    "defrag": Choice(PACK),
}


WITH_MOVES = ("live", "defrag")


@dataclass(frozen=True)
class Host:
    """A host: its cells, GPUs {cell: number} and virtual functions {cell: number}."""

    cells: int
    gpus: Mapping[int, int]
    vfs: Mapping[int, int]

    def topology(self) -> Topology:
        cells = []
        for number in range(self.cells):
            first = 2 * CORES * number
            siblings = tuple(frozenset({first + core, first + core + CORES}) for core in range(CORES))
            cells.append(
                Cell(
                    number,
                    frozenset().union(*siblings),
                    MEMORY_MB,
                    siblings,
                    {PAGE_KIB: PAGES},
                    socket=number,
                )
            )
        return Topology(tuple(cells), frozenset(), frozenset().union(*(cell.cpus for cell in cells)))

    def book(self, choice: Choice) -> Book:
        layout = self.topology()
        providers = [Provider(uuid_of("host"), "host")]
        units: dict[str, dict[str, tuple[str, ...]]] = {}
        of_provider = {}
        for cell in layout.cells:
            uuid = uuid_of(f"cell{cell.id}")
            of_provider[uuid] = cell.id
            small_mb = cell.memory_mb - PAGES * PAGE_KIB // 1024
            inventories = {"PCPU": Inventory(2 * CORES), "MEMORY_MB": Inventory(small_mb)}
            providers.append(Provider(uuid, f"cell{cell.id}", uuid_of("host"), inventories))
            units[uuid] = {"PCPU": tuple(map(str, sorted(cell.cpus)))}
            for name, number in ((GPU, self.gpus.get(cell.id, 0)), (VF, self.vfs.get(cell.id, 0))):
                if number:
                    card = uuid_of(f"{name}{cell.id}")
                    providers.append(Provider(card, f"{name}{cell.id}", uuid, {name: Inventory(number)}))
                    units[card] = {name: tuple(f"{name}-{cell.id}-{unit}" for unit in range(number))}
        index = ProviderIndex.of(ProviderTree(providers), uuid_of("host"))
        book = Book(choice=choice)
        cells = HostCells.of(HostLayout(layout, of_provider), index)
        book.refresh(index, {}, units, cells)
        return book


HOSTS = {
    "2 cells, GPUs on one": Host(2, {0: 4}, {0: 4, 1: 4}),
    "4 cells, GPUs on two": Host(4, {0: 2, 2: 4}, {1: 8}),
    "8 cells, GPUs on two": Host(8, {0: 4, 5: 4}, {0: 8, 3: 8}),
}


@dataclass(frozen=True)
class Kind:
    """A kind of guest: dedicated CPUs, MiB of memory, devices, page size; `weight`: how often it comes."""

    cpus: int
    memory_mb: int
    weight: float
    devices: Mapping[str, int]
    pages: bool = False

    def flavor(self) -> Flavor:
        specs = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}
        if self.pages:
            specs["hw:mem_page_size"] = "2MB"
        for name, number in self.devices.items():
            specs[f"resources_{name}:{name}"] = str(number)
        if self.devices:
            specs["hw:pci_numa_affinity_policy"] = "required"
        return Flavor(self.cpus, self.memory_mb, 0, specs)


KINDS = (
    Kind(2, 4_096, 6, {}),
    Kind(4, 8_192, 4, {}),
    Kind(12, 24_576, 1, {}),
    Kind(4, 4_096, 2, {}, pages=True),
    Kind(4, 8_192, 2, {GPU: 1}),
    Kind(8, 8_192, 0.5, {GPU: 2}, pages=True),
    Kind(2, 4_096, 2, {VF: 1}),
)


@dataclass(frozen=True)
class Arrival:
    """A guest that comes at `at` and leaves at `until`."""

    consumer: str
    at: float
    until: float
    kind: Kind


def arrivals(host: Host, number: int, seed: int, load: float) -> Iterator[Arrival]:
    """Guests that, if all were placed, would have `load` of the host's CPUs in use."""
    draw = random.Random(seed)
    mean_cpus = sum(kind.cpus * kind.weight for kind in KINDS) / sum(kind.weight for kind in KINDS)
    stay = load * host.cells * 2 * CORES / mean_cpus
    now = 0.0
    for count in range(number):
        now += draw.expovariate(1)
        kind = draw.choices(KINDS, [kind.weight for kind in KINDS])[0]
        yield Arrival(str(UUID(int=count + 1)), now, now + draw.expovariate(1 / stay), kind)


def run(host: Host, name: str, guests: Collection[Arrival]) -> Counter[str]:
    """Counts of one trace. `name` is a key of CHOICES."""
    book = host.book(CHOICES[name])
    tally: Counter[str] = Counter()
    leaving: list[tuple[float, str, Kind]] = []
    in_use: Counter[str] = Counter()
    present: dict[str, Kind] = {}
    for guest in guests:
        while leaving and leaving[0][0] <= guest.at:
            _, gone, kind = heapq.heappop(leaving)
            book.remove(gone)
            in_use.subtract(demand(kind))
            del present[gone]
        is_placed = place(book, guest)
        if not is_placed and is_stranded(host, book, in_use, guest.kind):
            moved = make_room(book, guest, live=name == "live") if name in WITH_MOVES else None
            is_placed = moved is not None
            tally["moved"] += moved or 0
            tally["let in"] += is_placed
            tally["stranded"] += not is_placed
            tally["movable"] += not is_placed and can_be_arranged(host, (*present.values(), guest.kind))
        if is_placed:
            in_use.update(demand(guest.kind))
            present[guest.consumer] = guest.kind
            heapq.heappush(leaving, (guest.until, guest.consumer, guest.kind))
        tally["placed" if is_placed else "refused"] += 1
    return tally


def is_stranded(host: Host, book: Book, in_use: Mapping[str, int], kind: Kind) -> bool:
    """Whether all that a guest with devices asks for is free, so that only its places are not."""
    return any(
        there_is(host, in_use, most_on_one_cell(host, book, name), demand(kind)) for name in kind.devices
    )


def place(book: Book, guest: Arrival) -> bool:
    """Claim for the guest, if it fits."""
    request = claim_for_flavor(guest.consumer, guest.kind.flavor())
    fit = book.fit(request)
    if fit.fits:
        book.put(claimed(request, fit))
    return fit.fits


def claimed(request: ClaimRequest, fit: Fit) -> Claim:
    return claim_of_fit(request, fit).in_state(ClaimState.CLAIMED)


def make_room(book: Book, guest: Arrival, *, live: bool) -> int | None:
    """Make the moves that let the guest in, and place it; the number of moves.

    None, and nothing is moved, if a guest would have to go to another host or, with `live`, to stop.
    """
    request = claim_for_flavor(guest.consumer, guest.kind.flavor())
    found = defrag(book, request)
    if found.fit is None or not all(
        move.here is not None and (move.is_live or not live) for move in found.moves
    ):
        return None
    for move in found.moves:
        book.remove(move.claim.consumer)
    for move in found.moves:
        if move.here is not None:
            book.put(claimed(move.claim.request, move.here))
    book.put(claimed(request, found.fit))
    return len(found.moves)


def demand(kind: Kind) -> dict[str, int]:
    return {"PCPU": kind.cpus, "pages" if kind.pages else "memory": kind.memory_mb, **kind.devices}


def there_is(host: Host, in_use: Mapping[str, int], free_devices: int, wanted: Mapping[str, int]) -> bool:
    """Whether one cell has the devices free, and the host the CPUs and the memory, in sum."""
    pages_mb = PAGES * PAGE_KIB // 1024
    capacity = {
        "PCPU": host.cells * 2 * CORES,
        "memory": host.cells * (MEMORY_MB - pages_mb),
        "pages": host.cells * pages_mb,
    }
    devices = sum(amount for name, amount in wanted.items() if name not in capacity)
    return free_devices >= devices and all(
        capacity[name] - in_use.get(name, 0) >= amount for name, amount in wanted.items() if name in capacity
    )


def can_be_arranged(host: Host, kinds: Collection[Kind]) -> bool:
    """Whether a search finds cells for all of these guests together."""
    pages_mb = PAGES * PAGE_KIB // 1024
    free = [
        [2 * CORES, MEMORY_MB - pages_mb, pages_mb, host.gpus.get(cell, 0), host.vfs.get(cell, 0)]
        for cell in range(host.cells)
    ]
    wanted = sorted(
        (tuple(demand(kind).get(name, 0) for name in RESOURCES) for kind in kinds),
        key=lambda amounts: (-amounts[3], -amounts[4], -amounts[0], amounts),
    )
    failed: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()

    def rest_fits(index: int) -> bool:
        if index == len(wanted):
            return True
        state = index, tuple(sorted(map(tuple, free)))
        if state in failed or len(failed) > STEPS_MAX:
            return False
        for cell in sorted(free, key=lambda cell: (cell[3] + cell[4], cell[0])):
            if any(there < amount for there, amount in zip(cell, wanted[index], strict=True)):
                continue
            before = cell[:]
            cell[:] = [there - amount for there, amount in zip(cell, wanted[index], strict=True)]
            found = rest_fits(index + 1)
            cell[:] = before
            if found:
                return True
        failed.add(state)
        return False

    return rest_fits(0)


def most_on_one_cell(host: Host, book: Book, name: str) -> int:
    """The most free devices of the class on one cell."""
    number = host.gpus if name == GPU else host.vfs
    taken = Counter(
        unit.split("-")[1] for claim in book.claims.values() for _, cls, unit in claim.exact if cls == name
    )
    return max(there - taken[str(cell)] for cell, there in number.items())


def optimum(host: Host, guests: list[Arrival]) -> int:
    """The most device guests that can be placed, with every guest that fits at its arrival being placed.

    It tries each cell for each guest; CPUs, memory and devices of a cell are counted.
    """

    def free_on(cell: int, placed: list[tuple[float, int, Kind]], at: float) -> dict[str, int]:
        pages_mb = PAGES * PAGE_KIB // 1024
        free = {
            "PCPU": 2 * CORES,
            "memory": MEMORY_MB - pages_mb,
            "pages": pages_mb,
            GPU: host.gpus.get(cell, 0),
            VF: host.vfs.get(cell, 0),
        }
        for until, where, kind in placed:
            if where == cell and until > at:
                for name, amount in demand(kind).items():
                    free[name] -= amount
        return free

    def best(index: int, placed: list[tuple[float, int, Kind]]) -> int:
        if index == len(guests):
            return 0
        guest = guests[index]
        wanted = demand(guest.kind)
        fitting = [
            cell
            for cell in range(host.cells)
            if all(free_on(cell, placed, guest.at)[name] >= amount for name, amount in wanted.items())
        ]
        if not fitting:
            return best(index + 1, placed)
        worth = 1 if guest.kind.devices else 0
        return worth + max(best(index + 1, [*placed, (guest.until, cell, guest.kind)]) for cell in fitting)

    return best(0, [])


def device_guests_placed(host: Host, choice: Choice, guests: list[Arrival]) -> int:
    book, placed = host.book(choice), 0
    for guest in guests:
        for earlier in guests:
            if earlier.until <= guest.at and earlier.consumer in book.claims:
                book.remove(earlier.consumer)
        if place(book, guest):
            placed += bool(guest.kind.devices)
    return placed


def main() -> None:
    number = int(sys.argv[sys.argv.index("--arrivals") + 1]) if "--arrivals" in sys.argv else ARRIVALS
    share = number // len(HOSTS)
    total: Counter[str] = Counter()
    moves: Counter[tuple[str, str]] = Counter()
    for called, host in HOSTS.items():
        for load in (0.4, 0.6, 0.8):
            guests = list(arrivals(host, share // 3, seed=11, load=load))
            for name in CHOICES:
                began = time.process_time()
                tally = run(host, name, guests)
                took_ms = (time.process_time() - began) * 1000 / len(guests)
                total[name] += tally["stranded"]
                moves.update({(name, key): tally[key] for key in ("moved", "let in")})
                print(
                    f"{called}, load {load:.0%}, {name:7} placed {tally['placed']:6}, refused "
                    f"{tally['refused']:5}, stranded {tally['stranded']:5} ({tally['movable']} movable); "
                    f"{took_ms:.2f} ms CPU a guest"
                )
    for name in CHOICES:
        ratio = total[name] / max(1, total["former"])
        print(
            f"{name:7} {total[name]:6} device guests refused beside what they need: {ratio:.2f} of the former"
        )
    for name in WITH_MOVES:
        print(f"{name}: {moves[name, 'moved']} moves let {moves[name, 'let in']} guests in")
    for name in ("pack", *WITH_MOVES):
        met = total[name] <= TARGET * total["former"]
        print(f"target {TARGET:g} of the former choice's, with {name}: {'met' if met else 'missed'}")
    small()


def small() -> None:
    host = HOSTS["2 cells, GPUs on one"]
    placed: Counter[str] = Counter()
    for seed in range(SMALL_CASES):
        guests = list(arrivals(host, 12, seed, load=1.5))
        placed["optimum"] += optimum(host, guests)
        for name in ("former", "nova", "spread", "pack"):
            placed[name] += device_guests_placed(host, CHOICES[name], guests)
    counts = ", ".join(f"{name} {number}" for name, number in placed.items())
    print(f"{SMALL_CASES} small cases of 12 guests, device guests placed: {counts}")


if __name__ == "__main__":
    main()
