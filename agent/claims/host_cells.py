"""The host's NUMA cells: what each has for guests, and what of it is in use. Pure.

Placement knows totals. It does not know which CPUs are siblings, nor the page sizes of a cell's memory. The
agent accounts for these itself: `HostCells` is what there is, a `CellUse` what is in use of it, and
`CellStock` combines both with what Placement's inventories still allow.

`CellUsage` is the book's part. A guest whose claim has cells is counted by its claim. Of any other guest,
the memory that the driver reports is counted, and the CPUs that it is pinned to.

`beside_devices` says which CPUs and memory of a guest a device is of no use without.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from agent.claims.claim import Claim
from agent.claims.fit_search import HostStock, ProviderIndex
from agent.claims.guest_cells import KIB_PER_MIB, SMALL_PAGE_KIB, FreeCell, PlacedCell
from agent.device_names import CPULESS_MEMORY, is_page_class, page_class
from agent.driver import Cell, Guest, Topology, UsedMemory
from agent.providers.divided_cards import Card
from agent.providers.reservations import WaysOf
from agent.shapes import Allocations, Classes, UnitsToMake, Usages
from agent.tree import Inventory, Provider, ProviderTree

CELL_CLASSES = ("VCPU", "PCPU", "MEMORY_MB")
_HUGE_KIB = 1024  # base pages of all architectures are smaller, huge pages are not

CellUse = Mapping[tuple[int, str], int]
"""{(cell id, resource): amount} that is in use of the host's cells.

The resource is "vcpus" (floating CPUs), "memory_mb" (MiB in small pages), or "pages:" and a page size in KiB
("pages:2048", a number of pages).
"""


@dataclass(frozen=True, slots=True)
class HostLayout:
    """What the driver describes of the host in addition to its inventories.

    `of_provider` is {provider uuid: id of its NUMA cell}, `ways` {provider uuid: classes that exclude each
    other}, `to_make` {provider uuid: units that do not exist yet}, `cards` {provider uuid: card whose
    classes share its room}, `withheld` {provider uuid: classes} and `unit_drivers` {provider uuid: {unit:
    trait}}; see `DescribedProvider`.
    """

    topology: Topology
    of_provider: Mapping[str, int] = field(default_factory=dict)
    ways: WaysOf = field(default_factory=dict)
    to_make: UnitsToMake = field(default_factory=dict)
    cards: Mapping[str, Card] = field(default_factory=dict)
    withheld: Classes = field(default_factory=dict)
    unit_drivers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostCell:
    """The part of a host cell that guests may have.

    `provider` is the uuid of the provider with its CPUs and memory in Placement: the host's root if cells
    have no providers. `cores` are the threads for guests, by core; `shared` and `dedicated` are CPU ids.
    `vcpus` is the number of floating CPUs that guests with cells may have on the `shared` CPUs. `memory_mb`
    is the memory in small pages (MiB), and `loose_mb` the same with Placement's allocation ratio. `pages` is
    {size in KiB: count} of larger pages, and `page_providers` {size in KiB: uuid of the provider that has
    them in Placement}.
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
    """The host's cells by id, and the cells of its providers; empty until the driver has reported them.

    `of_provider` is {provider uuid: cell id} (`DescribedProvider.cell`), and `sockets` {cell id: CPU socket}
    where the socket is known. `devices` are {cell id: ((provider uuid, resource class), ...)} of what is
    attached to a cell. `near` is that of the topology: cells without CPUs, which are none of the `cells`.
    """

    cells: tuple[HostCell, ...] = ()
    of_provider: Mapping[str, int] = field(default_factory=dict)
    small_page_kib: int = SMALL_PAGE_KIB
    sockets: Mapping[int, int] = field(default_factory=dict)
    devices: Mapping[int, Sequence[tuple[str, str]]] = field(default_factory=dict)
    near: Mapping[int, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: HostLayout | None, host: ProviderIndex) -> "HostCells":
        """The cells of a host that has the providers `host` in Placement; empty if `layout` is None."""
        if layout is None or host.root is None:
            return cls()
        topology, of_provider = layout.topology, layout.of_provider
        small_kib = min(
            (size for cell in topology.cells for size in cell.pages if size < _HUGE_KIB),
            default=SMALL_PAGE_KIB,
        )
        # {cell id: the provider that has the cell's CPUs or memory in Placement}
        nested: dict[int, Provider] = {}
        for provider in host.providers:
            cell = of_provider.get(provider.uuid)
            if cell is not None and any(name in provider.inventories for name in CELL_CLASSES):
                nested.setdefault(cell, provider)
        cells = sorted(topology.cells, key=lambda cell: cell.id)
        root = host.root
        # The memory reserved on the root is split evenly over the cells, as where cells have providers.
        memory = root.inventories.get("MEMORY_MB")
        share, rest = divmod(memory.reserved if memory else 0, max(1, len(cells)))
        return cls(
            tuple(
                replace(
                    _host_cell(cell, topology, nested.get(cell.id, root), small_kib, share + (number < rest)),
                    page_providers={
                        size: provider.uuid
                        for size in cell.pages
                        for provider in host.by_class.get(page_class(size), ())
                        if of_provider.get(provider.uuid) == cell.id
                    },
                )
                for number, cell in enumerate(cells)
            ),
            of_provider,
            small_kib,
            {cell.id: cell.socket for cell in cells if cell.socket is not None},
            _devices_of_cells(host, of_provider),
            topology.near,
        )

    def cell_of(self, uuid: str, tree: ProviderTree) -> int | None:
        """The id of the provider's cell: its own, or that of the nearest provider above it.

        Of memory of a cell without CPUs, that is the nearest cell with CPUs.
        """
        provider = tree.get(uuid)
        while provider is not None:
            if provider.uuid in self.of_provider:
                cell = self.of_provider[provider.uuid]
                return self.near.get(cell, cell)
            provider = tree.get(provider.parent) if provider.parent else None
        return None

    def split_memory(self, parts: Iterable[UsedMemory]) -> tuple[tuple[UsedMemory, ...], dict[str, int]]:
        """(the parts on other cells, {provider uuid: MiB} of those on cells without CPUs)"""
        having = ((cell, *each) for cell in self.near for each in self.devices.get(cell, ()))
        cpuless = {cell: uuid for cell, uuid, name in having if name == CPULESS_MEMORY}
        rest, apart = [], Counter[str]()
        for part in parts:
            if part.cell in cpuless:
                apart[cpuless[part.cell]] += part.memory_mb
            else:
                rest.append(part)
        return tuple(rest), dict(apart)

    @property
    def providers(self) -> dict[str, int]:
        """{uuid: cell id} of the providers that have a cell's CPUs and memory, where cells have their own."""
        of_cell = {cell.provider: cell.id for cell in self.cells}
        return of_cell if len(of_cell) == len(self.cells) else {}

    @property
    def page_sizes_kib(self) -> tuple[int, ...]:
        """The page sizes of all cells, the largest first, the base page last."""
        larger = {size for cell in self.cells for size in cell.pages}
        return (*sorted(larger, reverse=True), self.small_page_kib)


def _devices_of_cells(
    host: ProviderIndex, of_provider: Mapping[str, int]
) -> dict[int, tuple[tuple[str, str], ...]]:
    """{cell id: ((provider uuid, resource class), ...)} of all that is neither CPUs nor memory."""
    devices: dict[int, list[tuple[str, str]]] = {}
    for provider in host.providers:
        above = (provider, *host.tree.ancestors(provider.uuid))
        cell = next((of_provider[one.uuid] for one in above if one.uuid in of_provider), None)
        if cell is not None:
            names = (
                name for name in provider.inventories if name not in CELL_CLASSES and not is_page_class(name)
            )
            devices.setdefault(cell, []).extend((provider.uuid, name) for name in names)
    return {cell: tuple(of_cell) for cell, of_cell in devices.items() if of_cell}


def _host_cell(
    cell: Cell, topology: Topology, provider: Provider, small_kib: int, reserved_mb: int
) -> HostCell:
    guest_cpus = (topology.shared_cpus | topology.dedicated_cpus) & cell.cpus
    cores = [core & guest_cpus for core in cell.siblings if core & guest_cpus]
    single = guest_cpus.difference(*cores)
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
        cores=tuple(sorted((*cores, *(frozenset({cpu}) for cpu in single)), key=min)),
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
    """What a guest with these cells uses, as a `CellUse`."""
    used: Counter[tuple[int, str]] = Counter()
    for cell in cells:
        used[cell.host_cell, "vcpus"] += len(cell.floating)
        what, amount = memory_use(cell.memory_mb, cell.page_kib, small_page_kib)
        used[cell.host_cell, what] += amount
    return used


def cell_use_of_guests(guests: Iterable[Guest], host: HostCells, beside: CellUse) -> Counter[tuple[int, str]]:
    """What guests use of the cells, as the driver reports it, as a `CellUse`.

    Large pages that are bound to no cell count evenly on the cells that have them left; `beside` is in use
    already.
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
        taken, rest = used + Counter(beside), amount
        fullest_first = sorted(
            (count - taken[cell.id, what], cell.id)
            for cell in host.cells
            for size, count in cell.pages.items()
            if what == page_key(size)
        )
        for among, (left, cell_id) in zip(range(len(fullest_first), 0, -1), fullest_first, strict=True):
            share = max(0, min(-(-rest // among), left))
            used[cell_id, what] += share
            rest -= share
    return used


def charged_pages(held: Allocations, use: CellUse, host: HostCells) -> Counter[str]:
    """{provider uuid: number of large pages} that both the allocations `held` and `use` count."""
    pages: Counter[str] = Counter()
    for cell in host.cells:
        for size, uuid in cell.page_providers.items():
            amount = held.get(uuid, {}).get(page_class(size), 0)
            if amount:
                pages[uuid] = min(amount, use.get((cell.id, page_key(size)), 0))
    return pages


def page_key(size_kib: int) -> str:
    """The resource of a `CellUse` for pages of that size."""
    return f"pages:{size_kib}"


def memory_use(memory_mb: int, page_kib: int | None, small_page_kib: int) -> tuple[str, int]:
    """The resource and the amount of a `CellUse` for memory in pages of that size; None: small pages."""
    if page_kib is None or page_kib in (SMALL_PAGE_KIB, small_page_kib):
        return "memory_mb", memory_mb
    return page_key(page_kib), -(-memory_mb * KIB_PER_MIB // page_kib)


@dataclass(frozen=True, slots=True)
class CellStock:
    """What is left of the cells for one consumer: `host` is what there is, `use` what is in use of it.

    `busy` are dedicated CPUs that other consumers have. `charged` {provider uuid: pages} are the pages that
    both Placement's usages and `use` count. `favoured` CPUs and `near` cells are chosen first, because the
    consumer's guest is on them already; `at` {guest cell: host cell} says where each of its cells is, `bound`
    where a cell must be, and `emulator` on which CPU the emulator's threads must be.
    """

    host: HostCells = HostCells()
    use: CellUse = field(default_factory=dict)
    busy: frozenset[int] = frozenset()
    favoured: frozenset[int] = frozenset()
    near: frozenset[int] = frozenset()
    at: Mapping[int, int] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[int, int] = field(default_factory=dict)
    emulator: int | None = None

    def free(self, stock: HostStock) -> tuple[FreeCell, ...]:
        """What each cell can still give, within what `stock` has left in Placement."""
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
        pages = {}  # neither claimed, nor used by a guest, nor allocated to others in Placement
        for size, count in cell.pages.items():
            free = count - self.use.get((cell.id, page_key(size)), 0)
            holder = stock.host.tree.get(cell.page_providers.get(size, ""))
            if holder is not None and counted:  # Placement has inventory of pages: it knows of all of them
                name = page_class(size)
                foreign = stock.used.get(holder.uuid, {}).get(name, 0) - self.charged.get(holder.uuid, 0)
                free = min(free - max(0, foreign), stock.free(holder, name))
            pages[size] = max(0, free)
        return FreeCell(
            id=cell.id,
            cores=cell.cores,
            free_cpus=offered - self.busy,
            shared_cpus=len(cell.shared),
            memory_mb=max(0, memory_mb),
            pages=pages,
            favoured=self.favoured,
            emulator=self.emulator,
            floating=max(0, vcpus),
            loose_mb=max(0, loose_mb),
            small_page_kib=self.host.small_page_kib,
        )


CPUS = "PCPU"


NO_UNITS: Mapping[tuple[str, str], frozenset[str]] = {}
Unit = TypeVar("Unit")


def in_guests_beside(
    consumer: str | None,
    in_guests: Mapping[Unit, str],
    in_several: Mapping[Unit, frozenset[str]],
    claimed: Mapping[Unit, str],
) -> Mapping[Unit, str]:
    """{unit: guest that has it} as it counts for the consumer.

    A unit that several guests have is another guest's, unless the consumer's claim has it, too.
    """
    if not in_several:
        return in_guests
    shared = {
        unit: consumer
        if consumer is not None and consumer in guests and claimed.get(unit) == consumer
        else min(guests - {consumer})
        for unit, guests in in_several.items()
    }
    return {**in_guests, **shared}


class CellUsage:
    """What of the host's cells claims and guests use; `host` is what there is.

    `put` and `remove` follow the book's claims, `observe_guests` the driver's guests.
    """

    def __init__(self) -> None:
        self.host = HostCells()
        self._claims: dict[str, Claim] = {}
        self._use: Counter[tuple[int, str]] = Counter()
        self._charged: Counter[str] = Counter()
        self._owners: dict[int, str] = {}
        self._in_guests: dict[int, str] = {}
        self._in_several: Mapping[int, frozenset[str]] = {}
        self._guests: dict[str, Guest] = {}
        self._coming: dict[str, Guest] = {}

    def without(self, consumers: Collection[str]) -> "CellUsage":
        """A copy in which these consumers have no claim and no guest."""
        copy = CellUsage()
        copy.host = self.host
        copy._claims, copy._owners = dict(self._claims), dict(self._owners)
        copy._use, copy._charged = Counter(self._use), Counter(self._charged)
        copy._in_guests = {cpu: who for cpu, who in self._in_guests.items() if who not in consumers}
        copy._in_several = self._in_several
        copy._guests = {who: guest for who, guest in self._guests.items() if who not in consumers}
        copy._coming = {who: guest for who, guest in self._coming.items() if who not in consumers}
        for consumer in consumers:
            copy.remove(consumer)
        return copy

    def refresh(self, host: HostCells) -> None:
        """Replace the host's cells, and count all claims anew."""
        self.host = host
        self._use, self._charged = Counter(), Counter()
        for claim in self._claims.values():
            self._count(claim)

    def put(self, claim: Claim) -> None:
        """Add the claim, in place of an earlier one of its consumer."""
        self.remove(claim.consumer)
        self._claims[claim.consumer] = claim
        self._count(claim)
        for cpu in _cpus_of(claim):
            self._owners[cpu] = claim.consumer

    def remove(self, consumer: str) -> None:
        """Remove the consumer's claim, if it has one."""
        claim = self._claims.pop(consumer, None)
        if claim is None:
            return
        if claim.cells:
            use = cell_use(claim.cells, self.host.small_page_kib)
            self._use.subtract(use)
            self._charged.subtract(charged_pages(claim.allocations, use, self.host))
        for cpu in _cpus_of(claim):
            if self._owners.get(cpu) == consumer:
                del self._owners[cpu]

    def _count(self, claim: Claim) -> None:
        if claim.cells:
            use = cell_use(claim.cells, self.host.small_page_kib)
            self._use.update(use)
            self._charged.update(charged_pages(claim.allocations, use, self.host))

    def observe_guests(
        self, guests: Iterable[Guest], in_several: Mapping[tuple[str, str], frozenset[str]] = NO_UNITS
    ) -> None:
        """Replace the known guests by those that the driver reports now, those that run last.

        `in_several` {(class, exact unit): guests} are the units that several of them have.
        """
        known = tuple(guests)
        self._in_guests = {
            int(used.unit): guest.uuid
            for guest in known
            for used in guest.units
            if used.resource_class == CPUS and used.unit.isdecimal()
        }
        self._in_several = {
            int(unit): having
            for (name, unit), having in in_several.items()
            if name == CPUS and unit.isdecimal()
        }
        present = {guest.uuid: guest for guest in known if not guest.is_off}
        self._guests = {uuid: guest for uuid, guest in present.items() if guest.memory}
        self._coming = {uuid: guest for uuid, guest in self._coming.items() if uuid not in present}

    def expect_guest(self, consumer: str, guest: Guest | None) -> None:
        """Count the memory of a guest that will start soon until `observe_guests` sees it; None ends that."""
        self._coming.pop(consumer, None)
        if guest is not None:
            self._coming[consumer] = guest

    def stock(
        self,
        consumer: str,
        moving: Mapping[str, str],
        needs: Mapping[str, Usages],
        *,
        keeps: bool = False,
    ) -> CellStock:
        """What is left of the cells for the consumer, including what it has already.

        `keeps`: not including that, because a migration takes it over. `moving` {instance: migration} are the
        moves under way: a moving guest is counted by its migration. `needs` {instance: {provider: {class:
        amount}}} is what the book counts for each row.
        """
        use, held = Counter(self._use), Counter(self._charged)
        own = None if keeps else self._claims.get(consumer)
        if own is not None:
            own_use = cell_use(own.cells, self.host.small_page_kib)
            use.subtract(own_use)
            held.subtract(charged_pages(own.allocations, own_use, self.host))
        holder = None if keeps else consumer
        guests = {**self._guests, **self._coming}
        counted = [guest for guest in guests.values() if self._is_counted(guest, holder, moving)]
        use.update(cell_use_of_guests(counted, self.host, use))
        held.update(self._charged_to(counted, needs))
        in_guests = in_guests_beside(holder, self._in_guests, self._in_several, self._owners)
        cpus = frozenset(cpu for cpu, who in in_guests.items() if who == holder)
        busy = frozenset(
            cpu for held in (self._owners, in_guests) for cpu, who in held.items() if who != holder
        )
        memory = self._guests[consumer].memory if consumer in self._guests else ()
        at = {
            used.guest_cell: used.cell
            for used in memory
            if used.guest_cell is not None and used.cell is not None
        }
        on = {used.cell for used in memory if used.cell is not None}
        on |= {cell.id for cell in self.host.cells if cell.dedicated & cpus}
        return CellStock(self.host, use, busy, cpus, frozenset(on), {} if keeps else at, held)

    def _charged_to(self, guests: Iterable[Guest], needs: Mapping[str, Usages]) -> Counter[str]:
        """{provider uuid: pages} that these guests use and that the book counts on the pages' providers."""
        pages: Counter[str] = Counter()
        providers = {uuid for cell in self.host.cells for uuid in cell.page_providers.values()}
        for guest in guests:
            counted = needs.get(guest.uuid, {})
            if not providers.isdisjoint(counted):
                bound = replace(
                    guest, memory=tuple(memory for memory in guest.memory if memory.cell is not None)
                )
                pages.update(charged_pages(counted, cell_use_of_guests([bound], self.host, {}), self.host))
        return pages

    def _is_counted(self, guest: Guest, holder: str | None, moving: Mapping[str, str]) -> bool:
        claims = (self._claims.get(guest.uuid), self._claims.get(moving.get(guest.uuid, "")))
        return guest.uuid != holder and not any(claim and claim.cells for claim in claims)


def _cpus_of(claim: Claim) -> Iterable[int]:
    """The host CPUs that only this claim's consumer may have."""
    for classes in claim.units.values():
        yield from (int(unit) for unit in classes.get(CPUS, ()) if unit.isdecimal())
    for cell in claim.cells:
        yield from cell.cpus


_NO_DEVICES = frozenset({*CELL_CLASSES, "DISK_GB"})


def beside_devices(claim: Claim) -> dict[str, Mapping[str, float]]:
    """{class of a device: {class of CPUs or memory: amount beside one}}, on one of the guest's cells.

    Nothing for a guest without dedicated or shared CPUs. Large pages count as their class.
    """
    resources = claim.request.resources
    devices = {
        name: number
        for name, number in resources.items()
        if name not in _NO_DEVICES and not is_page_class(name)
    }
    if not devices or not resources.keys() & {"PCPU", "VCPU"}:
        return {}
    cells = max(1, len(claim.cells))
    amounts = {name: resources[name] / cells for name in CELL_CLASSES if resources.get(name)}
    page_kib = claim.cells[0].page_kib if claim.cells else SMALL_PAGE_KIB
    if page_kib >= KIB_PER_MIB and "MEMORY_MB" in amounts:
        amounts[page_class(page_kib)] = amounts.pop("MEMORY_MB") * KIB_PER_MIB / page_kib
    return {
        name: {each: amount / number for each, amount in amounts.items()} for name, number in devices.items()
    }
