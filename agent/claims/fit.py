"""Fit a claim into this host: choose the provider for each resource, and the exact units. Pure.

The semantics are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates. The classes of the unsuffixed group may come from several providers, which together have its
required traits. A suffixed group comes from one provider. `group_policy` isolate puts each suffixed group on
its own provider. Of the groups in a `same_subtree`, one provider is an ancestor of the others.
agent.claims.fit_search has the order of choice.

Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.

A guest with NUMA cells gets its CPUs and memory from host cells that suit it (agent.claims.numa.fit); then a
class may come from several cells, as the guest's own cells require.
"""

from dataclasses import replace

from agent.claims.choice import Choice
from agent.claims.claim import Fit
from agent.claims.fit_search import FitSearch, HostStock, ProviderIndex, first_units, fit_slots
from agent.claims.numa.affinity import nova_affinity
from agent.claims.numa.fit import fit_in_sum, fit_with_cells, pinned_first, sum_slots
from agent.claims.numa.guest_cells import guest_cells, wants_cells
from agent.claims.numa.host_cells import CellStock
from agent.claims.request import ClaimRequest, has_unresolved_devices
from agent.claims.shortfalls import root_shortfalls, shortfalls
from agent.errors import UsageError
from agent.shapes import Allocations, Units, Usages
from agent.tree import Inventory, ProviderTree

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
        return Fit(False, {}, {}, refused)
    stock = HostStock(host, used, units, choice or Choice())
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
