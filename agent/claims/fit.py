"""Fitting a claim into this host: which provider gives what, and which exact units. Pure.

The semantics are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates: the classes of the unsuffixed group may come from several providers, which meet its traits
together; a suffixed group comes from one; `isolate` keeps suffixed groups on providers of their own;
`same_subtree` puts one of its providers above the others. The order of choice is in agent.claims.fit_search.
Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.

A guest with NUMA cells gets its CPUs and memory from the cells that suit it (agent.claims.numa.fit); there a
class may come from several of them, as the guest's own cells say.
"""

from dataclasses import replace

from agent.claims.claim import Fit
from agent.claims.fit_search import FitSearch, HostStock, ProviderIndex, first_units, fit_slots
from agent.claims.numa.affinity import nova_affinity
from agent.claims.numa.fit import fit_in_sum, fit_with_cells, pinned_first, sum_slots
from agent.claims.numa.guest_cells import guest_cells, wants_cells
from agent.claims.numa.host_cells import CellStock
from agent.claims.request import ClaimRequest, has_unresolved_devices
from agent.claims.shortfalls import shortfalls
from agent.errors import UsageError
from agent.shapes import Allocations, Units, Usages
from agent.tree import Inventory, ProviderTree

__all__ = ["ProviderIndex", "check_placeable", "cover", "first_units", "fit"]


def check_placeable(request: ClaimRequest) -> None:
    """Raises UsageError for what is well formed but cannot be placed by this agent, or makes no sense."""
    if wants_cells(request.topology):
        guest_cells(request)
    if has_unresolved_devices(request):
        raise UsageError(
            "pci_passthrough:alias: this request asks for devices by alias, and nobody has said yet what the "
            "aliases mean (agent.claims.pci_alias.with_device_groups)."
        )


def fit(
    request: ClaimRequest,
    host: ProviderIndex,
    used: Usages,
    units: Units,
    cells: CellStock | None = None,
) -> Fit:
    """Where the request fits, or why it does not.

    `used` is what others hold and `units` the exact units that are free, in the order in which they are given
    out; `cells` is what is left of the host's NUMA cells, which only guests with cells of their own need.
    Raises UsageError for what this agent cannot place.
    """
    check_placeable(request)
    stock = HostStock(host, used, units)
    if wants_cells(request.topology):
        cells = cells or CellStock()
        return fit_with_cells(request, stock, cells, nova_affinity(cells.host.sockets))
    slots = fit_slots(request, stock)
    search = FitSearch(request, stock, slots)
    if not all(slot.options for slot in slots) or not search.run():
        return Fit(False, {}, {}, shortfalls(request, stock, slots, search))
    allocations = sum_slots(slots, search.chosen)
    return Fit(True, allocations, first_units(allocations, units), ())


def cover(
    request: ClaimRequest,
    host: ProviderIndex,
    held: Allocations,
    units: Units,
    cells: CellStock | None = None,
) -> Fit:
    """Whether what the consumer holds already covers its request; if so, all that it holds, with exact units.

    Providers that cannot serve this host do not count. Without `cells` only the amounts are looked at, not
    which cells of the host they come to.
    """
    here = {provider.uuid: provider for provider in host.providers if provider.uuid in held}
    own = ProviderTree(
        replace(
            provider,
            inventories={name: Inventory(amount) for name, amount in held.get(provider.uuid, {}).items()},
        )
        for provider in host.tree
    )
    owned = ProviderIndex.of(own, host.root.uuid if host.root else None)
    if cells is None and wants_cells(request.topology):
        found = fit_in_sum(request, HostStock(owned, {}, units))
    else:
        found = fit(request, owned, {}, units, cells)
    if not found.fits:
        return found
    whole = {uuid: dict(held[uuid]) for uuid in here}
    if cells is not None:
        units = pinned_first(units, found.cells, cells.host)
    return Fit(True, whole, first_units(whole, units), (), found.cells)
