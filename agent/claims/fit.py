"""Fit a claim into this host: choose the provider for each resource, and the exact units. Pure.

The semantics are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates. The classes of the unsuffixed group may come from several providers, which together have its
required traits. A suffixed group comes from one provider. `group_policy` isolate puts each suffixed group
on its own provider. Of the groups in a `same_subtree`, one provider is an ancestor of the others.
agent.claims.fit_search has the order of choice.

A guest with NUMA cells gets its CPUs and memory from host cells that suit it, preferably near the devices
that it asks for; then a class may come from several cells, as the guest's own cells require.

Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agent.claims.choice import Choice
from agent.claims.claim import Fit, Shortfall
from agent.claims.fit_search import (
    STEPS_MAX,
    FitSearch,
    FitSlot,
    HostStock,
    ProviderIndex,
    first_units,
    fit_slots,
)
from agent.claims.guest_cells import (
    KIB_PER_MIB,
    Affinity,
    CellPairs,
    GuestCell,
    PlacedCell,
    guest_cells,
    nova_affinity,
    page_sizes,
    thread_policy,
    wants_cells,
)
from agent.claims.host_cells import CELL_CLASSES, CellStock, HostCells
from agent.claims.refusal import cells_unknown, held_shortfall, misfit_shortfall, root_shortfalls, shortfalls
from agent.claims.request import ClaimRequest, has_unresolved_devices
from agent.device_names import is_page_class, page_class
from agent.errors import UsageError
from agent.shapes import Allocations, Units, Usages
from agent.tree import Inventory, Provider, ProviderTree


def fit_with_cells(request: ClaimRequest, stock: HostStock, cells: CellStock, affinity: Affinity) -> Fit:
    """Where the request fits, with the guest's cells, or why it does not.

    Raises UsageError where the request's topology and amounts do not agree.
    """
    guest = guest_cells(request)
    root = stock.host.root
    if not cells.host.cells or root is None:
        return _no_fit([cells_unknown(root, len(guest))])
    rest = fit_slots(without_cell_resources(request), stock)
    free, sizes_kib = cells.free(stock), page_sizes(request.topology, cells.host.page_sizes_kib)
    pairs = CellPairs.of(
        guest,
        free,
        thread_policy=thread_policy(request.topology),
        page_sizes_kib=sizes_kib,
        near=cells.near or _cells_near_devices(rest, stock, cells.host),
        at=cells.at,
        bound=cells.bound,
        costs=stock.cell_costs(
            _asked_of_cell(request, guest, sizes_kib), {cell.id: cell.room for cell in free}
        ),
        strategy=stock.choice.strategy,
    )
    refusal: tuple[list[FitSlot], FitSearch] | None = None
    steps, hopeless = 0, not all(slot.options for slot in rest)
    for exacting in (True, False):
        for placed in pairs.placements():
            beside = _device_slots(rest, placed, stock, cells.host, affinity, exacting=exacting)
            if exacting and not all(slot.options for slot in beside):
                continue
            slots = [*_cell_slots(request, placed, stock, cells.host), *beside]
            search = FitSearch(request, stock, slots)
            if all(slot.options for slot in slots) and search.run():
                allocations = search.rules.allocations(search.found)
                exact = first_units(allocations, pinned_first(stock.units, placed, cells.host))
                return Fit(True, allocations, exact, (), placed)
            steps += 1 + search.steps
            if not exacting and refusal is None:
                refusal = slots, search
            if hopeless or steps > STEPS_MAX:
                break
    if refusal is None:
        return _no_fit(misfit_shortfall(misfit, stock, cells.host) for misfit in pairs.misfits())
    return _no_fit(shortfalls(request, stock, *refusal))


def _asked_of_cell(
    request: ClaimRequest, guest: Sequence[GuestCell], page_sizes_kib: Sequence[int] | None
) -> dict[str, int]:
    """{class: amount} of the guest's devices, and of the most that one of its cells asks for."""
    devices = {name: amount for name, amount in request.resources.items() if name not in CELL_CLASSES}
    larger = page_sizes_kib and min(page_sizes_kib) >= KIB_PER_MIB
    memory_mb = max(cell.memory_mb for cell in guest)
    return {
        **devices,
        "PCPU": max(len(cell.pinned) + cell.emulator for cell in guest),
        "VCPU": max(len(cell.floating) for cell in guest),
        **(
            {page_class(size): memory_mb * KIB_PER_MIB // size for size in page_sizes_kib[:1]}
            if page_sizes_kib and larger
            else {"MEMORY_MB": memory_mb}
        ),
    }


def without_cell_resources(request: ClaimRequest) -> ClaimRequest:
    """The request without the CPUs and the memory of its unsuffixed group, which its cells provide.

    If the request has a page size, its cells provide the large pages too, so it loses all classes of pages.
    """
    own = frozenset[str]()
    if request.topology.mem_page_size is not None:
        own = frozenset(name for group in request.groups for name in group.resources if is_page_class(name))
    return replace(
        request,
        groups=tuple(
            replace(
                group,
                resources={
                    name: amount
                    for name, amount in group.resources.items()
                    if name not in own and (group.suffix or name not in CELL_CLASSES)
                },
            )
            for group in request.groups
        ),
    )


def cell_amounts(
    placed: Iterable[PlacedCell], host: HostCells, tree: ProviderTree
) -> dict[str, dict[str, int]]:
    """{provider uuid: {class: amount}} of the CPUs and memory of a guest on these cells.

    Withheld CPUs count, and so do large pages where a provider in `tree` has inventory of them.
    """
    cells = {cell.id: cell for cell in host.cells}
    amounts_by_provider: dict[str, dict[str, int]] = {}
    for cell in placed:
        amounts = {"VCPU": len(cell.floating), "PCPU": len(cell.cpus), "MEMORY_MB": cell.memory_mb}
        uuid, pages = cells[cell.host_cell].page_providers.get(cell.page_kib, ""), page_class(cell.page_kib)
        if uuid in tree and pages in tree[uuid].inventories:
            amounts_by_provider.setdefault(uuid, {})[pages] = cell.memory_mb * KIB_PER_MIB // cell.page_kib
        given = amounts_by_provider.setdefault(cells[cell.host_cell].provider, {})
        for name, amount in amounts.items():
            if amount:
                given[name] = given.get(name, 0) + amount
    return amounts_by_provider


def pinned_first(units: Units, placed: Sequence[PlacedCell], host: HostCells) -> Units:
    """The same units, with those of the chosen CPUs before all others."""
    providers = {cell.id: cell.provider for cell in host.cells}
    chosen: dict[str, list[str]] = {}
    for cell in placed:
        cpus = (*cell.pinning.values(), *sorted(cell.emulator), *sorted(cell.withheld))
        chosen.setdefault(providers[cell.host_cell], []).extend(map(str, cpus))
    ordered = dict(units)
    for uuid, pinned in chosen.items():
        exact = units.get(uuid, {}).get("PCPU")
        if exact is not None:
            others = (unit for unit in exact if unit not in pinned)
            ordered[uuid] = {**units[uuid], "PCPU": (*pinned, *others)}
    return ordered


def _cells_near_devices(rest: Sequence[FitSlot], stock: HostStock, host: HostCells) -> frozenset[int]:
    """The host cells that have all requested devices; if there are none, those that have any."""
    wanted = []
    for slot in rest:
        on = {host.cell_of(provider.uuid, stock.host.tree) for provider in slot.options}
        if on and None not in on:
            wanted.append(frozenset(cell for cell in on if cell is not None))
    if not wanted:
        return frozenset()
    return frozenset.intersection(*wanted) or frozenset.union(*wanted)


def _device_slots(
    rest: Sequence[FitSlot],
    placed: Sequence[PlacedCell],
    stock: HostStock,
    host: HostCells,
    affinity: Affinity,
    *,
    exacting: bool,
) -> list[FitSlot]:
    """The other slots, their options ordered by affinity to these cells; `exacting`: rank 0 only."""
    cells = {cell.host_cell for cell in placed}
    slots = []
    for slot in rest:
        ranked: list[tuple[int, Provider]] = []
        barred = dict(slot.barred)
        for provider in slot.options:
            rank = affinity(slot.group, host.cell_of(provider.uuid, stock.host.tree), cells)
            if isinstance(rank, str):
                barred[provider.uuid] = rank
            elif rank == 0 or not exacting:
                ranked.append((rank, provider))
        ranked.sort(key=lambda pair: pair[0])
        slots.append(replace(slot, options=tuple(provider for _, provider in ranked), barred=barred))
    return slots


def _cell_slots(
    request: ClaimRequest, placed: Sequence[PlacedCell], stock: HostStock, host: HostCells
) -> Iterator[FitSlot]:
    """A slot for each amount that the cells' providers are to give, with that provider as its only option."""
    unsuffixed = request.unsuffixed
    for uuid, amounts in cell_amounts(placed, host, stock.host.tree).items():
        provider = stock.host.tree[uuid]
        for name, amount in amounts.items():
            resources = {name: amount}
            able = next(stock.obstacles(unsuffixed, resources, provider), None) is None
            yield FitSlot(unsuffixed, resources, (provider,) if able else ())


def _no_fit(short: Iterable[Shortfall]) -> Fit:
    return Fit(False, {}, {}, tuple(short))


def fit_in_sum(request: ClaimRequest, stock: HostStock) -> Fit:
    """Whether the amounts of a consumer's own allocations suffice, on any cells, and its other groups fit.

    `stock` has only what the consumer holds. Which cells the amounts are on is not checked.
    """
    own = [provider for provider in stock.host.providers if stock.host.is_own(provider.uuid)]
    slots, short = [], []
    unsuffixed = request.unsuffixed
    for name in (name for name in unsuffixed.resources if name in CELL_CLASSES):
        left = asked = unsuffixed.resources[name]
        for provider in own:
            resources = {name: min(left, stock.free(provider, name))}
            if resources[name]:
                left -= resources[name]
                able = next(stock.obstacles(unsuffixed, resources, provider), None) is None
                slots.append(FitSlot(unsuffixed, resources, (provider,) if able else ()))
        if left:
            short.append(held_shortfall(stock.host.root, name, asked, asked - left))
    if short:
        return _no_fit(short)
    slots += fit_slots(without_cell_resources(request), stock)
    search = FitSearch(request, stock, slots)
    if not all(slot.options for slot in slots) or not search.run():
        return _no_fit(shortfalls(request, stock, slots, search))
    return Fit(True, {}, {}, ())


__all__ = ["ProviderIndex", "check_placeable", "cover", "first_units", "fit"]


def check_placeable(request: ClaimRequest) -> None:
    """Raises UsageError for a well-formed request that this agent cannot place, or is contradictory."""
    if wants_cells(request.topology):
        guest_cells(request)
    if has_unresolved_devices(request):
        raise UsageError(
            "pci_passthrough:alias: this request asks for devices by alias, and its aliases are not resolved "
            "(agent.claims.pci_alias.with_device_groups)."
        )


def fit(
    request: ClaimRequest,
    host: ProviderIndex,
    used: Usages,
    units: Units,
    cells: CellStock | None = None,
    choice: Choice | None = None,
) -> Fit:
    """Where the request fits on the host, or why it does not.

    `used` is what other consumers use, `units` the free exact units in the order in which they are given out,
    and `cells` what is left of the host's NUMA cells; only guests with cells of their own need it. `choice`
    says which of several places is taken. Raises UsageError for a request that this agent cannot place.
    """
    check_placeable(request)
    refused = tuple(root_shortfalls(request, host))
    if refused:
        return _no_fit(refused)
    stock = HostStock(host, used, units, choice or Choice())
    if wants_cells(request.topology):
        cells = cells or CellStock()
        return fit_with_cells(request, stock, cells, nova_affinity(cells.host.sockets))
    slots = fit_slots(request, stock)
    search = FitSearch(request, stock, slots)
    if not all(slot.options for slot in slots) or not search.run():
        return _no_fit(shortfalls(request, stock, slots, search))
    allocations = search.rules.allocations(search.found)
    return Fit(True, allocations, first_units(allocations, units), ())


def cover(
    request: ClaimRequest,
    host: ProviderIndex,
    held: Allocations,
    units: Units,
    cells: CellStock | None = None,
) -> Fit:
    """Whether the consumer's allocations `held` cover its request; if so, all of them, with exact units.

    Allocations on providers that cannot serve this host do not count. Without `cells` only the amounts are
    compared, not the host cells that they are on.
    """
    served = {provider.uuid: provider for provider in host.providers if provider.uuid in held}
    own = ProviderTree(
        replace(
            provider,
            inventories={name: Inventory(amount) for name, amount in held.get(provider.uuid, {}).items()},
        )
        for provider in host.tree
    )
    owned = replace(ProviderIndex.of(own, host.root.uuid if host.root else None), cards=host.cards)
    if cells is None and wants_cells(request.topology):
        result = fit_in_sum(request, HostStock(owned, {}, units))
    else:
        result = fit(request, owned, {}, units, cells)
    if not result.fits:
        return result
    whole = {uuid: dict(held[uuid]) for uuid in served}
    if cells is not None:
        units = pinned_first(units, result.cells, cells.host)
    return Fit(True, whole, first_units(whole, units), (), result.cells)
