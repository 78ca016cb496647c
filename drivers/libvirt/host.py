"""From what libvirt says of the host to the contract's description. Pure."""

from dataclasses import dataclass, replace

from agent.driver import Cell, DescribedProvider, Description, HostSettings, Topology
from agent.errors import DriverDataError
from drivers.inventory import cpu_inventories, cpu_units, disk_inventory, memory_inventory, split_cpus
from drivers.libvirt.capabilities import Capabilities, DomainCapabilities
from drivers.libvirt.traits import guest_traits, host_traits


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All that was read of the host.

    `online` are the ids of the CPUs in use, `cpu_flags` libvirt's names of those that guests can have;
    `guests` is None where libvirt would not say what guests can have.
    """

    capabilities: Capabilities
    guests: DomainCapabilities | None
    cpu_flags: frozenset[str]
    online: frozenset[int]
    memory_mb: int
    disk_gb: int


def describe_host(facts: HostFacts, settings: HostSettings, name: str) -> Description:
    """The host's own provider, called `name`. Raises DriverDataError (CPU sets)."""
    shared, dedicated = split_cpus(cell_cpus(facts), settings)
    capabilities = facts.capabilities
    traits = host_traits(capabilities, facts.online, facts.cpu_flags)
    if facts.guests is not None:
        traits |= guest_traits(facts.guests, capabilities.arch)
    root = DescribedProvider(
        name=name,
        inventories={
            **cpu_inventories(len(shared), len(dedicated), settings.reserved_host_cpus, settings),
            **memory_inventory(facts.memory_mb, settings.reserved_host_memory_mb, settings),
            **disk_inventory(facts.disk_gb, settings),
        },
        traits=traits,
        units=cpu_units(dedicated),
    )
    return Description((root,))


def describe_topology(facts: HostFacts, settings: HostSettings) -> Topology:
    """Raises DriverDataError (CPU sets)."""
    return Topology(host_cells(facts), *split_cpus(cell_cpus(facts), settings))


def host_cells(facts: HostFacts) -> tuple[Cell, ...]:
    """The cells with their online CPUs; a host that libvirt knows no cells of is one cell.

    Raises DriverDataError where a CPU is in two cells.
    """
    cells = tuple(_online(cell, facts.online) for cell in facts.capabilities.cells)
    if not any(cell.cpus for cell in cells):
        return (
            Cell(0, facts.online, facts.memory_mb, tuple(frozenset({cpu}) for cpu in sorted(facts.online))),
        )
    if len(frozenset().union(*(cell.cpus for cell in cells))) != sum(len(cell.cpus) for cell in cells):
        raise DriverDataError("the host's capabilities: a CPU is in two NUMA cells")
    return cells


def _online(cell: Cell, online: frozenset[int]) -> Cell:
    siblings = tuple(core & online for core in cell.siblings if core & online)
    return replace(cell, cpus=cell.cpus & online, siblings=siblings)


def cell_cpus(facts: HostFacts) -> frozenset[int]:
    """The CPUs that guests can run on."""
    return frozenset().union(*(cell.cpus for cell in host_cells(facts)))
