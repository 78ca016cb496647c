"""A host with NUMA cells as values: each cell has a provider of its own below the root."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.host_cells import HostCells, HostLayout
from agent.claims.parse_request import Flavor, claim_for_flavor
from agent.claims.request import ClaimRequest
from agent.driver import Cell, Topology
from agent.tree import Inventory, Provider, ProviderTree
from kits.fit import uuid_of

LARGE_KIB = 2048
CORES = 4
MEMORY_MB = 8192


def topology(cells: int, *, large_pages: int = 0, shared: int = 0) -> Topology:
    """Cells of CORES cores with 2 threads; the first `shared` CPUs of each cell are for floating guests."""
    described = []
    for number in range(cells):
        first = 2 * CORES * number
        siblings = tuple(frozenset({first + core, first + core + CORES}) for core in range(CORES))
        pages = {LARGE_KIB: large_pages} if large_pages else {}
        described.append(
            Cell(number, frozenset().union(*siblings), MEMORY_MB, siblings, pages, socket=number // 2)
        )
    all_shared = frozenset(cpu for cell in described for cpu in sorted(cell.cpus)[:shared])
    dedicated = frozenset().union(*(cell.cpus for cell in described)) - all_shared
    return Topology(tuple(described), all_shared, dedicated)


def provider_tree(layout: Topology, *, reserved_mb: int = 0, ratio: float = 1.0) -> ProviderTree:
    """The root "host" and a provider "cell0", "cell1", ... for each cell."""
    providers = [Provider(uuid_of("host"), "host", None, {"DISK_GB": Inventory(100)})]
    for cell in layout.cells:
        shared, dedicated = len(layout.shared_cpus & cell.cpus), len(layout.dedicated_cpus & cell.cpus)
        large_mb = sum(size * count for size, count in cell.pages.items()) // 1024
        amounts = {"VCPU": shared, "PCPU": dedicated, "MEMORY_MB": cell.memory_mb - large_mb}
        inventories = {name: Inventory(total) for name, total in amounts.items() if total}
        inventories["MEMORY_MB"] = Inventory(amounts["MEMORY_MB"], reserved_mb, allocation_ratio=ratio)
        name = f"cell{cell.id}"
        providers.append(Provider(uuid_of(name), name, uuid_of("host"), inventories))
    return ProviderTree(providers)


def host_cells(layout: Topology, tree: ProviderTree) -> tuple[HostCells, HostStock]:
    """The cells and the stock of an unused host; the dedicated CPUs are exact units."""
    of_provider = {uuid_of(f"cell{cell.id}"): cell.id for cell in layout.cells}
    index = ProviderIndex.of(tree, uuid_of("host"))
    units = {
        uuid_of(f"cell{cell.id}"): {"PCPU": tuple(map(str, sorted(layout.dedicated_cpus & cell.cpus)))}
        for cell in layout.cells
    }
    return HostCells.of(HostLayout(layout, of_provider), index), HostStock(index, {}, units)


def book_of_cells(gpus: Mapping[int, int], *, large_pages: int = 0, cells: int = 2, shared: int = 0) -> Book:
    """An empty host of cells with 8 CPUs each, of which `shared` are for floating guests and the others
    dedicated; {cell: the units of its "gpu0" or "gpu1"}."""
    layout = topology(cells, large_pages=large_pages, shared=shared)
    tree = provider_tree(layout)
    units = dict(host_cells(layout, tree)[1].units)
    for cell, number in gpus.items():
        name = f"gpu{cell}"
        card = Provider(uuid_of(name), name, uuid_of(f"cell{cell}"), {"VGPU": Inventory(number)})
        tree = tree.with_provider(card)
        units[card.uuid] = {"VGPU": tuple(f"{name}-{unit}" for unit in range(number))}
    index = ProviderIndex.of(tree, uuid_of("host"))
    of_provider = {uuid_of(f"cell{number}"): number for number in range(cells)}
    made = Book()
    made.refresh(index, {}, units, HostCells.of(HostLayout(layout, of_provider), index))
    return made


def asks(
    number: int, cpus: int, memory_mb: int = 1024, *, gpu: bool = False, page_size: str = ""
) -> ClaimRequest:
    """The request of the consumer of that number for dedicated CPUs, with a GPU on their cell if `gpu`."""
    specs = {"hw:cpu_policy": "dedicated", "hw:pci_numa_affinity_policy": "required"}
    if page_size:
        specs["hw:mem_page_size"] = page_size
    if gpu:
        specs["resources_GPU:VGPU"] = "1"
    return claim_for_flavor(str(UUID(int=number)), Flavor(cpus, memory_mb, 0, specs))


def put(book: Book, request: ClaimRequest) -> Claim | None:
    """The claim that the book now has; None where it does not fit."""
    fit = book.fit(request)
    if not fit.fits:
        return None
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, fit.allocations, fit.units, cells=fit.cells)
    book.put(claim)
    return claim
