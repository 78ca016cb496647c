"""The host's NUMA cells as claims see them: what each has for guests, and what of it is in use. Pure.

Placement knows totals; it does not know which CPU is whose sibling, nor that memory is in pages of some size
on some cell. That part is the agent's own accounting: `HostCells` is what there is, a `CellUse` what is used
of it, and `CellStock` puts both together with what placement's inventories still let through.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.numa.cell_fit import KIB_PER_MIB, SMALL_PAGE_KIB, FreeCell, PlacedCell
from agent.device_names import page_class
from agent.driver import Cell, Guest, Topology
from agent.providers.exclusive import WaysOf
from agent.shapes import Allocations, UnitsToMake
from agent.tree import Inventory, Provider, ProviderTree

CELL_CLASSES = ("VCPU", "PCPU", "MEMORY_MB")
_HUGE_KIB = 1024  # the base page of every architecture is smaller, most huge pages are larger

CellUse = Mapping[tuple[int, str], int]
"""{(cell id, what): how much}: what is "vcpus" (floating), "memory_mb" (in small pages) or "pages:2048"."""


@dataclass(frozen=True, slots=True)
class HostLayout:
    """What the driver says of the host beside its inventories.

    `of_provider` {provider uuid: id of the cell it is on}; `ways` {provider uuid: classes that exclude each
    other} and `to_make` {provider uuid: units that do not exist yet}, see DescribedProvider.
    """

    topology: Topology
    of_provider: Mapping[str, int] = field(default_factory=dict)
    ways: WaysOf = field(default_factory=dict)
    to_make: UnitsToMake = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostCell:
    """One cell: what of it guests may have.

    `provider` is the uuid of the one that has its CPUs and memory in placement, the host's root where cells
    are not reported; `cores` are its threads for guests by core. `vcpus` is how many floating CPUs guests
    with cells of their own may have on its `shared` ones; `memory_mb` is its memory in small pages,
    `loose_mb` the same with what placement lets be overcommitted; `pages` {size in KiB: count} the larger
    ones, and `page_providers` {size: uuid} who has them in placement.
    """

    id: int
    provider: str
    cores: tuple[frozenset[int], ...]
    shared: frozenset[int]
    dedicated: frozenset[int]
    vcpus: int
    memory_mb: int
    loose_mb: int
    pages: Mapping[int, int]
    page_providers: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostCells:
    """The host's cells by id, and on which of them its providers are; empty: the host has not told yet.

    `of_provider` {provider uuid: cell id} as the driver says (`DescribedProvider.cell`); `sockets`
    {cell id: CPU socket} where it is known.
    """

    cells: tuple[HostCell, ...] = ()
    of_provider: Mapping[str, int] = field(default_factory=dict)
    small_page_kib: int = SMALL_PAGE_KIB
    sockets: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: HostLayout | None, host: ProviderIndex) -> "HostCells":
        """The cells of a host, which `host` is in placement; None: they are not known."""
        if layout is None or host.root is None:
            return cls()
        topology, of_provider = layout.topology, layout.of_provider
        small_kib = min(
            (size for cell in topology.cells for size in cell.pages if size < _HUGE_KIB),
            default=SMALL_PAGE_KIB,
        )
        nested = _reported(host, of_provider)
        cells = sorted(topology.cells, key=lambda cell: cell.id)
        root = host.root
        return cls(
            tuple(
                replace(
                    _host_cell(cell, topology, nested.get(cell.id, root), small_kib, share),
                    page_providers=_page_providers(cell, host, of_provider),
                )
                for cell, share in zip(cells, _reserved_mb(root, len(cells)), strict=True)
            ),
            of_provider,
            small_kib,
            {cell.id: cell.socket for cell in cells if cell.socket is not None},
        )

    def cell_of(self, uuid: str, tree: ProviderTree) -> int | None:
        """The id of the cell that a provider is on: its own, or that of the nearest one above it."""
        provider = tree.get(uuid)
        while provider is not None:
            if provider.uuid in self.of_provider:
                return self.of_provider[provider.uuid]
            provider = tree.get(provider.parent) if provider.parent else None
        return None

    @property
    def page_sizes_kib(self) -> tuple[int, ...]:
        """All sizes that some cell has, the largest first; the small one is the last."""
        larger = {size for cell in self.cells for size in cell.pages}
        return (*sorted(larger, reverse=True), self.small_page_kib)


def _reported(host: ProviderIndex, of_provider: Mapping[str, int]) -> dict[int, Provider]:
    """{cell id: the provider that has the cell's CPUs or memory in placement}"""
    found: dict[int, Provider] = {}
    for provider in host.providers:
        cell = of_provider.get(provider.uuid)
        if cell is not None and any(name in provider.inventories for name in CELL_CLASSES):
            found.setdefault(cell, provider)
    return found


def _page_providers(cell: Cell, host: ProviderIndex, of_provider: Mapping[str, int]) -> dict[int, str]:
    return {
        size: provider.uuid
        for size in cell.pages
        for provider in host.by_class.get(page_class(size), ())
        if of_provider.get(provider.uuid) == cell.id
    }


def _reserved_mb(root: Provider, cells: int) -> tuple[int, ...]:
    """What is reserved for the host on its root comes from its cells evenly, as where those are reported."""
    memory = root.inventories.get("MEMORY_MB")
    each, rest = divmod(memory.reserved if memory else 0, max(1, cells))
    return tuple(each + (1 if number < rest else 0) for number in range(cells))


def _host_cell(
    cell: Cell, topology: Topology, provider: Provider, small_kib: int, reserved_mb: int
) -> HostCell:
    ours = (topology.shared_cpus | topology.dedicated_cpus) & cell.cpus
    grouped = [core & ours for core in cell.siblings if core & ours]
    alone = ours.difference(*grouped)
    shared = topology.shared_cpus & cell.cpus
    memory = provider.inventories.get("MEMORY_MB")
    if provider.parent is not None:
        reserved_mb = memory.reserved if memory else 0
    pages = {size: count for size, count in cell.pages.items() if size != small_kib and count}
    huge_mb = sum(size * count for size, count in pages.items()) // KIB_PER_MIB
    small_mb = max(0, cell.memory_mb - huge_mb - reserved_mb)
    return HostCell(
        id=cell.id,
        provider=provider.uuid,
        cores=tuple(sorted((*grouped, *(frozenset({cpu}) for cpu in alone)), key=min)),
        shared=shared,
        dedicated=topology.dedicated_cpus & cell.cpus,
        vcpus=_overcommitted(len(shared), provider.inventories.get("VCPU")),
        memory_mb=small_mb,
        loose_mb=_overcommitted(small_mb, memory),
        pages=pages,
    )


def _overcommitted(amount: int, inventory: Inventory | None) -> int:
    return int(amount * inventory.allocation_ratio) if inventory else amount


# What is in use


def cell_use(cells: Iterable[PlacedCell], small_page_kib: int = SMALL_PAGE_KIB) -> Counter[tuple[int, str]]:
    """What a guest with these cells uses."""
    used: Counter[tuple[int, str]] = Counter()
    for cell in cells:
        used[cell.host_cell, "vcpus"] += len(cell.floating)
        what, amount = memory_use(cell.memory_mb, cell.page_kib, small_page_kib)
        used[cell.host_cell, what] += amount
    return used


def cell_use_of_guests(guests: Iterable[Guest], host: HostCells, beside: CellUse) -> Counter[tuple[int, str]]:
    """What guests use of cells as far as the driver tells.

    Large pages of any cells count evenly on those that have them left, beside what is in use already.
    """
    used: Counter[tuple[int, str]] = Counter()
    anywhere: Counter[str] = Counter()
    for guest in guests:
        for memory in guest.memory:
            what, amount = memory_use(memory.memory_mb, memory.page_kib, host.small_page_kib)
            if memory.cell is not None:
                used[memory.cell, what] += amount
            else:
                anywhere[what] += amount
    for what, amount in anywhere.items():
        used.update(_spread(what, amount, host, used + Counter(beside)))
    return used


def _spread(what: str, amount: int, host: HostCells, used: CellUse) -> dict[tuple[int, str], int]:
    """Evenly over the cells, to none more than it has left; what no cell has is nowhere."""
    left = {
        cell.id: count - used.get((cell.id, what), 0)
        for cell in host.cells
        for size, count in cell.pages.items()
        if what == page_key(size)
    }
    found: dict[tuple[int, str], int] = {}
    fullest_first = sorted(left, key=lambda cell: (left[cell], cell))
    for among, cell in zip(range(len(left), 0, -1), fullest_first, strict=True):
        found[cell, what] = max(0, min(-(-amount // among), left[cell]))
        amount -= found[cell, what]
    return found


def charged_pages(held: Allocations, use: CellUse, host: HostCells) -> Counter[str]:
    """{provider uuid: large pages} of `held`, in placement, that `use` counts as well."""
    found: Counter[str] = Counter()
    for cell in host.cells:
        for size, uuid in cell.page_providers.items():
            amount = held.get(uuid, {}).get(page_class(size), 0)
            if amount:
                found[uuid] = min(amount, use.get((cell.id, page_key(size)), 0))
    return found


def page_key(size_kib: int) -> str:
    """What a `CellUse` calls pages of that size."""
    return f"pages:{size_kib}"


def memory_use(memory_mb: int, page_kib: int | None, small_page_kib: int) -> tuple[str, int]:
    """As what, and how much of it, memory counts in a `CellUse`."""
    if page_kib is None or page_kib in (SMALL_PAGE_KIB, small_page_kib):
        return "memory_mb", memory_mb
    return page_key(page_kib), -(-memory_mb * KIB_PER_MIB // page_kib)


@dataclass(frozen=True, slots=True)
class CellStock:
    """What is left of the cells: `host` is what there is, `use` what is in use of it.

    `charged` {provider uuid: pages} is what is held in placement of what `use` counts too; `busy` are
    dedicated CPUs that somebody else has; `favoured` are CPUs, and `near` cells, that go first:
    the consumer's guest is on them already, and each of its own cells on the one that `at` {guest cell: host
    cell} says.
    """

    host: HostCells = HostCells()
    use: CellUse = field(default_factory=dict)
    busy: frozenset[int] = frozenset()
    favoured: frozenset[int] = frozenset()
    near: frozenset[int] = frozenset()
    at: Mapping[int, int] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)

    def free(self, stock: HostStock) -> tuple[FreeCell, ...]:
        """What each cell still has, of what `stock` says that placement lets through."""
        offered = {
            uuid: frozenset(map(int, stock.units[uuid]["PCPU"]))
            for uuid in {cell.provider for cell in self.host.cells}
            if "PCPU" in stock.units.get(uuid, {})
        }
        counted = any(
            page_class(size) in stock.host.tree[uuid].inventories
            for cell in self.host.cells
            for size, uuid in cell.page_providers.items()
            if uuid in stock.host.tree
        )
        return tuple(
            self._free(cell, stock, cell.dedicated & offered.get(cell.provider, cell.dedicated), counted)
            for cell in self.host.cells
        )

    def _free(self, cell: HostCell, stock: HostStock, offered: frozenset[int], counted: bool) -> FreeCell:
        used_mb = self.use.get((cell.id, "memory_mb"), 0)
        memory_mb, loose_mb = cell.memory_mb - used_mb, min(cell.memory_mb, cell.loose_mb - used_mb)
        vcpus = cell.vcpus - self.use.get((cell.id, "vcpus"), 0)
        provider = stock.host.tree.get(cell.provider)
        if provider is not None and provider.parent is not None:
            vcpus = min(vcpus, stock.free(provider, "VCPU"))
            free_mb = stock.free(provider, "MEMORY_MB")
            memory_mb, loose_mb = min(memory_mb, free_mb), min(loose_mb, free_mb)
        return FreeCell(
            id=cell.id,
            cores=cell.cores,
            free_cpus=offered - self.busy,
            shared_cpus=len(cell.shared),
            memory_mb=max(0, memory_mb),
            pages={size: max(0, self._free_pages(cell, size, stock, counted)) for size in cell.pages},
            favoured=self.favoured,
            floating=max(0, vcpus),
            loose_mb=max(0, loose_mb),
            small_page_kib=self.host.small_page_kib,
        )

    def _free_pages(self, cell: HostCell, size: int, stock: HostStock, counted: bool) -> int:
        """What neither a claim or a guest has, nor anybody else in placement; `counted`: all that there is to
        have is in placement, as it has pages of some cell.
        """
        free = cell.pages[size] - self.use.get((cell.id, page_key(size)), 0)
        provider = stock.host.tree.get(cell.page_providers.get(size, ""))
        if provider is None or not counted:
            return free
        name = page_class(size)
        strangers = stock.used.get(provider.uuid, {}).get(name, 0) - self.charged.get(provider.uuid, 0)
        return min(free - max(0, strangers), stock.free(provider, name))
