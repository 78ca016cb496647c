"""What moved between providers, whichever way the host was reported before. Pure.

The driver does not know what placement has. So it always says where each inventory would have been in the
models that a host may come from: everything on the root, or CPUs and memory under cells, which may have been
others; CPUs shared or dedicated; devices under the class that they had before, mediated ones under nova's
usual one. An instruction whose source has nothing is no work.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.driver import Cell, DescribedProvider, Guest, MoveInstruction
from drivers.host.domain_xml import Domain
from drivers.host.providers import cell_provider_name
from drivers.libvirt.describe.devices import card_name
from drivers.libvirt.describe.history import (
    USUAL,
    Classes,
    cells_before,
    cells_changed,
    cells_gone,
    interfaces_of,
    renamed,
    slots_of,
)

_HOST_CLASSES = ("VCPU", "PCPU", "MEMORY_MB")
_COUNTED_FLAT = (USUAL, "SRIOV_NET_VF")

Shares = Mapping[str, Mapping[str, int]]
"""{consumer uuid: {class: amount}}"""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A guest with its units on providers, and its domain's XML; None where that could never be read."""

    guest: Guest
    domain: Domain | None


def moves_of(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    tenants: Sequence[Tenant],
    cells: Sequence[Cell],
    classes: Classes,
) -> tuple[MoveInstruction, ...]:
    """`providers` as described, the host first; `cell_totals` {cell: {class: amount}} what the cells have,
    whether they are reported or not; `classes` is what devices were before.
    """
    root = providers[0].name
    told = [tenant for tenant in tenants if tenant.guest.problem is None]
    return (
        *_of_devices(root, providers, told, classes),
        *_of_nothing(root, providers, told),
        *_of_cells(providers, cell_totals, _shares_by_cell(told, cells), classes),
        *_of_cpus(providers, told),
    )


def _of_devices(
    root: str, providers: Sequence[DescribedProvider], told: Sequence[Tenant], classes: Classes
) -> Iterator[MoveInstruction]:
    users = _device_users(told)
    there = {provider.device for provider in providers}
    for provider in providers[1:]:
        if not provider.device.startswith("pci:"):
            continue
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        shares = users.get(provider.device, {})
        for source in (root, *_former_names(root, provider, classes, there)):
            yield MoveInstruction(source, totals, provider.name, shares)
        for before, now in renamed(provider, classes):
            was = {who: {before: amounts[now]} for who, amounts in shares.items() if now in amounts}
            for source in (root, provider.name) if before == USUAL else (provider.name,):
                yield MoveInstruction(source, {before: totals[now]}, provider.name, was, {before: now})


def _former_names(
    root: str, provider: DescribedProvider, classes: Classes, there: Collection[str]
) -> list[str]:
    """What the card's provider was called while its interface was, or in another slot."""
    address = provider.device.removeprefix("pci:")
    names = [card_name(root, address, interface) for interface in interfaces_of(address, classes, there)]
    names += [card_name(root, slot, "") for slot in slots_of(address, classes)]
    return [name for name in names if name != provider.name]


def _of_nothing(
    root: str, providers: Sequence[DescribedProvider], told: Sequence[Tenant]
) -> Iterator[MoveInstruction]:
    """What guests use and no device there has, of what the host may have counted on its root."""
    there = {provider.device for provider in providers}
    for name in _COUNTED_FLAT:
        shares = {}
        for tenant in told:
            units = [unit for unit in tenant.guest.units if unit.resource_class == name]
            lost = sum(unit.device not in there for unit in units)
            if lost:
                shares[tenant.guest.uuid] = {name: lost}
        if shares:
            yield MoveInstruction(root, {name: sum(share[name] for share in shares.values())}, root, shares)


def _device_users(told: Iterable[Tenant]) -> dict[str, dict[str, dict[str, int]]]:
    """{device: {consumer: {class: amount}}}"""
    users: dict[str, dict[str, dict[str, int]]] = {}
    for tenant in told:
        for unit in tenant.guest.units:
            amounts = users.setdefault(unit.device, {}).setdefault(tenant.guest.uuid, {})
            amounts[unit.resource_class] = amounts.get(unit.resource_class, 0) + 1
    return users


def _of_cells(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    shares: Mapping[int, Shares],
    classes: Classes,
) -> Iterator[MoveInstruction]:
    """From the root, and from the cells that a boot of the host made others of, to its cells where those are
    reported; else from cells that were to the root.
    """
    root = providers[0].name
    names = {provider.name for provider in providers}
    apart: dict[int, Mapping[str, int]] = {}
    for cell_id, totals in cell_totals.items():
        name = cell_provider_name(root, cell_id)
        if not totals:
            continue
        if name in names:
            former = [cell_provider_name(root, each) for each in cells_before(cell_id, classes)]
            yield from (
                MoveInstruction(source, totals, name, shares.get(cell_id, {})) for source in (root, *former)
            )
        else:
            apart[cell_id] = totals
    if apart:
        whole: Counter[str] = Counter()
        for totals in apart.values():
            whole.update(totals)
        changed = cells_changed(classes, cell_totals)
        sources = {cell: dict(whole) if changed else totals for cell, totals in apart.items()}
        sources |= {cell: dict(whole) for cell in cells_gone(classes, cell_totals)}
        yield from (
            MoveInstruction(cell_provider_name(root, cell), each, root) for cell, each in sources.items()
        )


def _shares_by_cell(told: Iterable[Tenant], cells: Sequence[Cell]) -> dict[int, dict[str, dict[str, int]]]:
    """{cell: {consumer: {class: amount}}} of what is known to be in a cell."""
    cell_of = {cpu: cell.id for cell in cells for cpu in cell.cpus}
    found: dict[int, dict[str, dict[str, int]]] = {}
    for tenant in told:
        for cell_id, amounts in _cells_of(tenant, cell_of).items():
            found.setdefault(cell_id, {})[tenant.guest.uuid] = amounts
    return found


def _cells_of(tenant: Tenant, cell_of: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """A guest that all its pins and its memory hold in one cell is there whole. Of any other only its
    dedicated CPUs are known; what floats is where there is room.
    """
    guest, domain = tenant.guest, tenant.domain
    if domain is None:
        return {}
    pins = [*domain.pins.values(), *([domain.emulator_pin] if domain.emulator_pin else [])]
    where = {cell_of[cpu] for pin in pins for cpu in pin if cpu in cell_of} | domain.memory_nodes
    if len(where) == 1:
        amounts = {name: guest.resources[name] for name in _HOST_CLASSES if name in guest.resources}
        return {where.pop(): amounts}
    found: dict[int, dict[str, int]] = {}
    for unit in guest.units:
        if unit.resource_class == "PCPU" and int(unit.unit) in cell_of:
            amounts = found.setdefault(cell_of[int(unit.unit)], {})
            amounts["PCPU"] = amounts.get("PCPU", 0) + 1
    return found


def _of_cpus(providers: Sequence[DescribedProvider], told: Sequence[Tenant]) -> Iterator[MoveInstruction]:
    """VCPU to PCPU of the pinned where CPUs are dedicated now, and back where they no longer are."""
    root = providers[0].name
    for provider in providers:
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        pinned: dict[str, dict[str, int]] = {}
        for tenant in told:
            amount = _pinned(tenant, provider)
            if amount:
                pinned[tenant.guest.uuid] = {"VCPU": amount}
        if "PCPU" in totals:
            for source in dict.fromkeys((root, provider.name)):
                yield MoveInstruction(
                    source, {"VCPU": totals["PCPU"]}, provider.name, pinned, {"VCPU": "PCPU"}
                )
        elif "VCPU" in totals:
            yield MoveInstruction(
                provider.name, {"PCPU": totals["VCPU"]}, provider.name, None, {"PCPU": "VCPU"}
            )


def _pinned(tenant: Tenant, provider: DescribedProvider) -> int:
    """How many of its vCPUs hold a CPU of the provider: as many VCPU they were."""
    if tenant.domain is None or "PCPU" not in tenant.guest.resources:
        return 0
    own = {
        int(unit.unit)
        for unit in tenant.guest.units
        if unit.device == provider.device and unit.unit.isdecimal()
    }
    return sum(len(pin) == 1 and pin <= own for pin in tenant.domain.pins.values())
