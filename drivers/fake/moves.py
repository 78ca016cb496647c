"""The move instructions of a fake host: from each provider that may have had an inventory before. Pure.

The driver repeats them in every description. The agent ignores an instruction whose source has no inventory.
"""

from collections.abc import Iterator, Sequence

from agent.driver import Cell, DescribedProvider, Guest, MoveInstruction
from drivers.fake.host import FakeHost
from drivers.host.providers import cell_provider_name

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
