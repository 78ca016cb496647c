"""Describe a fake host: its provider tree, its topology, and where inventory moved. Pure.

The driver repeats the move instructions in every description: from each provider that may have had an
inventory before. The agent ignores an instruction whose source has no inventory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import os_traits

from agent.driver import (
    Cell,
    DescribedInventory,
    DescribedProvider,
    Description,
    Guest,
    HostSettings,
    MoveInstruction,
    Topology,
)
from drivers.fake.host import FakeHost
from drivers.host.providers import REPORTABLE, cell_provider_name, host_providers, page_providers, split_cpus

CPU_AND_MEMORY = ("VCPU", "PCPU", "MEMORY_MB")


def derived_moves(
    host: FakeHost,
    name: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    devices: Sequence[DescribedProvider],
) -> Iterator[MoveInstruction]:
    """The moves of a host called `name`.

    `cpus` are the shared and the dedicated CPUs; `devices` are the providers of the devices, also where the
    host counts them on its root.
    """
    for device in devices:
        yield _device_move(host, name, device)
    for cell in host.cells:
        yield from _cell_moves(host, name, cpus, cell)
    if host.report_numa:
        for cell in host.cells:
            below = (cpus[0] & cell.cpus, cpus[1] & cell.cpus)
            guests = [guest for guest in host.guests if _cells_of(host, guest) == {cell.id}]
            provider = cell_provider_name(name, cell.id)
            yield from _cpu_moves((name, provider), provider, below, guests)
    else:
        sources = (name, *(cell_provider_name(name, cell.id) for cell in host.cells))
        yield from _cpu_moves(sources, name, cpus, host.guests)


def _device_move(host: FakeHost, name: str, device: DescribedProvider) -> MoveInstruction:
    totals = {resource_class: inventory.total for resource_class, inventory in device.inventories.items()}
    if host.flat_devices:
        return MoveInstruction(device.name, totals, name)
    consumers = {guest.uuid: usage for guest in host.guests if (usage := _usage(guest, device))}
    return MoveInstruction(name, totals, device.name, consumers)


def _usage(guest: Guest, device: DescribedProvider) -> dict[str, int]:
    """{resource class: amount} that the guest uses of the device.

    If all exact units of the guest are on this device, so are its amounts of classes without exact units.
    """
    usage: dict[str, int] = {}
    for unit in guest.units:
        if unit.device == device.device and unit.resource_class in device.inventories:
            usage[unit.resource_class] = usage.get(unit.resource_class, 0) + 1
    if usage and all(guest.resources.get(name) == amount for name, amount in usage.items()):
        with_units = {unit.resource_class for unit in guest.units}
        for resource_class in device.inventories.keys() - with_units:
            if resource_class in guest.resources:
                usage[resource_class] = guest.resources[resource_class]
    return usage


def _cell_moves(
    host: FakeHost, name: str, cpus: tuple[frozenset[int], frozenset[int]], cell: Cell
) -> Iterator[MoveInstruction]:
    shared, dedicated = cpus
    totals = {
        "VCPU": len(shared & cell.cpus),
        "PCPU": len(dedicated & cell.cpus),
        "MEMORY_MB": cell.memory_mb,
    }
    amounts = {resource_class: total for resource_class, total in totals.items() if total}
    if not host.report_numa:
        yield MoveInstruction(cell_provider_name(name, cell.id), amounts, name)
        return
    consumers = {
        guest.uuid: {
            resource_class: guest.resources[resource_class]
            for resource_class in CPU_AND_MEMORY
            if guest.resources.get(resource_class) and resource_class in amounts
        }
        for guest in host.guests
        if _cells_of(host, guest) == {cell.id}
    }
    yield MoveInstruction(
        name,
        amounts,
        cell_provider_name(name, cell.id),
        {uuid: usage for uuid, usage in consumers.items() if usage},
    )


def _cells_of(host: FakeHost, guest: Guest) -> set[int]:
    """The ids of the cells to which the guest's CPUs are pinned."""
    cells = set()
    for unit in guest.units:
        for cell in host.cells:
            if unit.device == f"numa:{cell.id}" or (
                unit.resource_class == "PCPU" and unit.unit.isdecimal() and int(unit.unit) in cell.cpus
            ):
                cells.add(cell.id)
    return cells


def _cpu_moves(
    sources: Sequence[str],
    provider: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    guests: Sequence[Guest],
) -> Iterator[MoveInstruction]:
    """VCPU becomes PCPU where CPUs are dedicated now, and PCPU becomes VCPU where none is.

    Guests whose CPUs are pinned had VCPU before.
    """
    shared, dedicated = cpus
    pinned = {
        guest.uuid: {"VCPU": guest.resources["PCPU"]} for guest in guests if guest.resources.get("PCPU")
    }
    for source in sources:
        if dedicated:
            yield MoveInstruction(source, {"VCPU": len(dedicated)}, provider, pinned, {"VCPU": "PCPU"})
        elif shared:
            yield MoveInstruction(source, {"PCPU": len(shared)}, provider, None, {"PCPU": "VCPU"})


def describe_host(host: FakeHost, settings: HostSettings, name: str) -> Description:
    """The provider tree of a host called `name`, and its moves."""
    traits = host.traits | {"COMPUTE_NODE"}
    host_and_cells = host_providers(
        name, host.cells, host.disk_gb, traits, settings, report_numa=host.report_numa
    )
    pages = tuple(page_providers(name, host.cells, report_numa=host.report_numa))
    devices = tuple(_devices(host, name))
    cpus = split_cpus(frozenset().union(*(cell.cpus for cell in host.cells)), settings)
    plain = tuple(device for device in devices if device.card is None)
    moves = host.moves or tuple(derived_moves(host, name, cpus, plain))
    providers = (*host_and_cells, *pages, *devices)
    if host.flat_devices:
        divided = tuple(device for device in devices if device.card is not None)
        providers = (_with_devices(host_and_cells[0], plain), *host_and_cells[1:], *pages, *divided)
    return Description(providers, moves, reportable_traits())


@cache
def reportable_traits() -> frozenset[str]:
    """The standard traits of CPUs, of what guests can have, of cells and of devices.

    Those of the host file are all there are.

    COMPUTE_STATUS_DISABLED is not among them: the control plane sets it, for a host that is switched off.
    """
    names = (*os_traits.get_traits("HW_CPU_"), *os_traits.get_traits("COMPUTE_"))
    return (frozenset(names) | REPORTABLE) - {os_traits.COMPUTE_STATUS_DISABLED}


def describe_topology(host: FakeHost, settings: HostSettings) -> Topology:
    """The cells and the CPU sets."""
    cpus = frozenset().union(*(cell.cpus for cell in host.cells))
    return Topology(host.cells, *split_cpus(cpus, settings))


def _devices(host: FakeHost, name: str) -> Iterator[DescribedProvider]:
    for devices in host.devices.values():
        for device in devices:
            yield device.describe(name, _parent(host, device.numa, name))


def _parent(host: FakeHost, numa: int | None, name: str) -> str:
    return cell_provider_name(name, numa) if host.report_numa and numa is not None else name


def _with_devices(root: DescribedProvider, devices: Iterable[DescribedProvider]) -> DescribedProvider:
    """The root with the inventories, units and traits of all devices."""
    inventories, units = dict(root.inventories), dict(root.units)
    traits = root.traits
    for device in devices:
        for resource_class, inventory in device.inventories.items():
            total = inventories.get(resource_class, DescribedInventory(0)).total + inventory.total
            inventories[resource_class] = DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, exact in device.units.items():
            units[resource_class] = (*units.get(resource_class, ()), *exact)
        traits |= device.traits
    return replace(root, inventories=inventories, units=units, traits=traits)
