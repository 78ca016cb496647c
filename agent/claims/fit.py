"""Fitting a claim into this host: which provider gives what, and which exact units. Pure.

The semantics are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates: the classes of the unsuffixed group may come from several providers, which meet its traits
together; a suffixed group comes from one; `isolate` keeps suffixed groups on providers of their own;
`same_subtree` puts one of its providers above the others. The order of choice is in agent.claims.fit_search.
Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.
"""

from dataclasses import replace

from agent.claims.claim import Allocations, Explanation, Units
from agent.claims.fit_search import Amounts, FreeUnits, Host, Search, Stock, slots_of
from agent.claims.fit_why import shortfalls
from agent.claims.request_types import ClaimRequest
from agent.errors import UsageError
from agent.tree import Inventory, ProviderTree

__all__ = ["Amounts", "FreeUnits", "Host", "check_placeable", "cover", "first_units", "fit"]


def check_placeable(request: ClaimRequest) -> None:
    """Raises UsageError for what is well formed but cannot be placed by this agent yet."""
    topology = request.topology
    wanted = [
        name
        for name, asked in (
            ("guest NUMA cells (hw:numa_nodes)", topology.cells),
            ("a memory page size (hw:mem_page_size)", topology.mem_page_size is not None),
            ("a CPU thread policy (hw:cpu_thread_policy)", topology.cpu_thread_policy is not None),
            ("PCI devices by alias (pci_passthrough:alias)", request.pci),
        )
        if asked
    ]
    if wanted:
        raise UsageError(
            f"This agent cannot place {' or '.join(wanted)} yet: take it out of the request, or ask for the "
            "resources by class and trait.",
            unsupported=wanted,
        )


def fit(request: ClaimRequest, host: Host, used: Amounts, units: FreeUnits) -> Explanation:
    """Where the request fits, or why it does not.

    `used` is what others hold and `units` the exact units that are free, in the order in which they are given
    out. Raises UsageError for what this agent cannot place yet.
    """
    check_placeable(request)
    stock = Stock(host, used, units)
    slots = slots_of(request, stock)
    search = Search(request, stock, slots)
    if not all(slot.options for slot in slots) or not search.run():
        return Explanation(False, {}, {}, shortfalls(request, stock, slots, search))
    allocations: dict[str, dict[str, int]] = {}
    for slot, provider in zip(slots, search.chosen, strict=True):
        for name, amount in slot.resources.items():
            given = allocations.setdefault(provider.uuid, {})
            given[name] = given.get(name, 0) + amount
    return Explanation(True, allocations, first_units(allocations, units), ())


def cover(request: ClaimRequest, host: Host, held: Allocations, units: FreeUnits) -> Explanation:
    """Whether what the consumer holds already covers its request; if so, all that it holds, with exact units.

    Providers that cannot serve this host do not count.
    """
    here = {provider.uuid: provider for provider in host.providers if provider.uuid in held}
    own = ProviderTree(
        replace(
            provider,
            inventories={name: Inventory(amount) for name, amount in held.get(provider.uuid, {}).items()},
        )
        for provider in host.tree
    )
    found = fit(request, Host.of(own, host.root.uuid if host.root else None), {}, units)
    if not found.fits:
        return found
    whole = {uuid: dict(held[uuid]) for uuid in here}
    return Explanation(True, whole, first_units(whole, units), ())


def first_units(allocations: Allocations, units: FreeUnits) -> Units:
    """The first free exact units for these amounts, where the host has exact units."""
    chosen = {
        uuid: {
            name: units[uuid][name][:amount]
            for name, amount in amounts.items()
            if name in units.get(uuid, {})
        }
        for uuid, amounts in allocations.items()
    }
    return {uuid: exact for uuid, exact in chosen.items() if exact}
