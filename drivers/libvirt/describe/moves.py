"""Move instructions: from every place where the host may have reported an inventory before. Pure.

The driver does not know what Placement has. So it names, for each inventory, all possible sources: the host's
own provider; the cells, which may have been others; VCPU for PCPU and back; a device's former class, slot and
interface. The agent ignores an instruction whose source has no inventory.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.driver import Cell, DescribedProvider, Guest, MoveInstruction
from agent.shapes import Holders
from drivers.host.domain_xml import Domain
from drivers.host.providers import cell_provider_name
from drivers.libvirt.describe.devices import card_name
from drivers.libvirt.describe.history import (
    USUAL_MDEV_CLASS,
    DeviceHistory,
    cells_changed,
    former_cells,
    former_interfaces,
    former_slots,
    removed_cells,
    renamed_classes,
)

_HOST_CLASSES = ("VCPU", "PCPU", "MEMORY_MB")
_CLASSES_ON_FLAT_ROOT = (USUAL_MDEV_CLASS, "SRIOV_NET_VF")


@dataclass(frozen=True, slots=True)
class GuestDomain:
    """A guest and the domain from which it was read; `domain` is None if its XML could never be read."""

    guest: Guest
    domain: Domain | None


def moves_of(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    guest_domains: Sequence[GuestDomain],
    cells: Sequence[Cell],
    history: DeviceHistory,
) -> tuple[MoveInstruction, ...]:
    """The moves of a host.

    `providers` are all described ones, the host first. `cell_totals` {cell id: {resource class: total}} are
    those of the cells, whether they have providers or not. The guests have their units as the providers
    describe them; guests with a problem are left out.
    """
    root = providers[0].name
    readable = [guest_domain for guest_domain in guest_domains if guest_domain.guest.problem is None]
    return (
        *_device_moves(root, providers, readable, history),
        *_parking_moves(root, providers, readable),
        *_cell_moves(providers, cell_totals, _usage_by_cell(readable, cells), history),
        *_cpu_moves(providers, readable),
    )


def _device_moves(
    root: str,
    providers: Sequence[DescribedProvider],
    guest_domains: Sequence[GuestDomain],
    history: DeviceHistory,
) -> Iterator[MoveInstruction]:
    usage_by_device = _usage_by_device(guest_domains)
    devices = {provider.device for provider in providers}
    for provider in providers[1:]:
        if not provider.device.startswith("pci:"):
            continue
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        usage = usage_by_device.get(provider.device, {})
        for source in (root, *_former_names(root, provider, history, devices)):
            yield MoveInstruction(source, totals, provider.name, usage)
        for former, current in renamed_classes(provider, history):
            former_usage = {
                uuid: {former: amounts[current]} for uuid, amounts in usage.items() if current in amounts
            }
            for source in (root, provider.name) if former == USUAL_MDEV_CLASS else (provider.name,):
                yield MoveInstruction(
                    source, {former: totals[current]}, provider.name, former_usage, {former: current}
                )


def _former_names(
    root: str, provider: DescribedProvider, history: DeviceHistory, devices: Collection[str]
) -> list[str]:
    """The names of the card's provider when its interface had other names or it was in other slots."""
    address = provider.device.removeprefix("pci:")
    names = [
        card_name(root, address, interface) for interface in former_interfaces(address, history, devices)
    ]
    names += [card_name(root, slot, "") for slot in former_slots(address, history)]
    return [name for name in names if name != provider.name]


def _parking_moves(
    root: str, providers: Sequence[DescribedProvider], guest_domains: Sequence[GuestDomain]
) -> Iterator[MoveInstruction]:
    """From the root to itself: units that guests use and no present device has, of a host that was flat."""
    devices = {provider.device for provider in providers}
    for resource_class in _CLASSES_ON_FLAT_ROOT:
        usage = {}
        for guest_domain in guest_domains:
            units = [unit for unit in guest_domain.guest.units if unit.resource_class == resource_class]
            without_device = sum(unit.device not in devices for unit in units)
            if without_device:
                usage[guest_domain.guest.uuid] = {resource_class: without_device}
        if usage:
            total = sum(amounts[resource_class] for amounts in usage.values())
            yield MoveInstruction(root, {resource_class: total}, root, usage)


def _usage_by_device(guest_domains: Iterable[GuestDomain]) -> dict[str, dict[str, dict[str, int]]]:
    """{device: {consumer uuid: {resource class: amount}}}"""
    usage: dict[str, dict[str, dict[str, int]]] = {}
    for guest_domain in guest_domains:
        for unit in guest_domain.guest.units:
            amounts = usage.setdefault(unit.device, {}).setdefault(guest_domain.guest.uuid, {})
            amounts[unit.resource_class] = amounts.get(unit.resource_class, 0) + 1
    return usage


def _cell_moves(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    usage_by_cell: Mapping[int, Holders],
    history: DeviceHistory,
) -> Iterator[MoveInstruction]:
    """To each cell with a provider, from the root and from former cells; else from the cells to the root."""
    root = providers[0].name
    names = {provider.name for provider in providers}
    unreported: dict[int, Mapping[str, int]] = {}
    for cell_id, totals in cell_totals.items():
        name = cell_provider_name(root, cell_id)
        if not totals:
            continue
        if name in names:
            former = [cell_provider_name(root, cell) for cell in former_cells(cell_id, history)]
            yield from (
                MoveInstruction(source, totals, name, usage_by_cell.get(cell_id, {}))
                for source in (root, *former)
            )
        else:
            unreported[cell_id] = totals
    if unreported:
        yield from _moves_to_root(root, unreported, cell_totals, history)


def _moves_to_root(
    root: str,
    unreported: Mapping[int, Mapping[str, int]],
    cell_totals: Mapping[int, Mapping[str, int]],
    history: DeviceHistory,
) -> Iterator[MoveInstruction]:
    """From each cell; after cells have changed, any of them may have had all CPUs and memory."""
    host_totals: Counter[str] = Counter()
    for totals in unreported.values():
        host_totals.update(totals)
    changed = cells_changed(history, cell_totals)
    sources = {cell: dict(host_totals) if changed else totals for cell, totals in unreported.items()}
    sources |= {cell: dict(host_totals) for cell in removed_cells(history, cell_totals)}
    for cell, totals in sources.items():
        yield MoveInstruction(cell_provider_name(root, cell), totals, root)


def _usage_by_cell(
    guest_domains: Iterable[GuestDomain], cells: Sequence[Cell]
) -> dict[int, dict[str, dict[str, int]]]:
    """{cell id: {consumer uuid: {resource class: amount}}} of what is known to be in a cell."""
    cell_of = {cpu: cell.id for cell in cells for cpu in cell.cpus}
    usage: dict[int, dict[str, dict[str, int]]] = {}
    for guest_domain in guest_domains:
        for cell_id, amounts in _cell_usage(guest_domain, cell_of).items():
            usage.setdefault(cell_id, {})[guest_domain.guest.uuid] = amounts
    return usage


def _cell_usage(guest_domain: GuestDomain, cell_of: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """{cell id: {resource class: amount}} of one guest.

    If its pins and its bound memory are all in one cell, all of it is there. Otherwise only the cells of its
    dedicated CPUs are known.
    """
    guest, domain = guest_domain.guest, guest_domain.domain
    if domain is None:
        return {}
    pins = [*domain.pins.values(), *([domain.emulator_pin] if domain.emulator_pin else [])]
    bound_cells = {cell_of[cpu] for pin in pins for cpu in pin if cpu in cell_of} | domain.memory_nodes
    if len(bound_cells) == 1:
        amounts = {name: guest.resources[name] for name in _HOST_CLASSES if name in guest.resources}
        return {bound_cells.pop(): amounts}
    usage: dict[int, dict[str, int]] = {}
    for unit in guest.units:
        if unit.resource_class == "PCPU" and int(unit.unit) in cell_of:
            amounts = usage.setdefault(cell_of[int(unit.unit)], {})
            amounts["PCPU"] = amounts.get("PCPU", 0) + 1
    return usage


def _cpu_moves(
    providers: Sequence[DescribedProvider], guest_domains: Sequence[GuestDomain]
) -> Iterator[MoveInstruction]:
    """VCPU becomes PCPU where a provider has dedicated CPUs, and PCPU becomes VCPU where it has none."""
    root = providers[0].name
    for provider in providers:
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        if "PCPU" in totals:
            pinned = {
                guest_domain.guest.uuid: {"VCPU": amount}
                for guest_domain in guest_domains
                if (amount := _pinned_vcpus(guest_domain, provider))
            }
            for source in dict.fromkeys((root, provider.name)):
                yield MoveInstruction(
                    source, {"VCPU": totals["PCPU"]}, provider.name, pinned, {"VCPU": "PCPU"}
                )
        elif "VCPU" in totals:
            yield MoveInstruction(
                provider.name, {"PCPU": totals["VCPU"]}, provider.name, None, {"PCPU": "VCPU"}
            )


def _pinned_vcpus(guest_domain: GuestDomain, provider: DescribedProvider) -> int:
    """The number of vCPUs that are pinned to one CPU of the provider; before, each was one VCPU."""
    if guest_domain.domain is None or "PCPU" not in guest_domain.guest.resources:
        return 0
    cpus = {
        int(unit.unit)
        for unit in guest_domain.guest.units
        if unit.device == provider.device and unit.unit.isdecimal()
    }
    return sum(len(pin) == 1 and pin <= cpus for pin in guest_domain.domain.pins.values())
