"""Describe the host and its cells from what libvirt reports. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from agent.driver import Cell, DescribedProvider, HostSettings, Topology
from agent.errors import DriverDataError
from drivers.host.file_backed_memory import with_file_backed_memory
from drivers.host.inventory import shares, split_cpus
from drivers.host.providers import host_providers
from drivers.host.reserved_pages import without_reserved_pages
from drivers.host.sysfs import PmemNamespace
from drivers.libvirt.describe.encryption import moved_traits
from drivers.libvirt.describe.traits import (
    guest_traits,
    host_traits,
    reportable_guest_traits,
    reportable_host_traits,
)
from drivers.libvirt.xml import Capabilities, DomainCapabilities


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All that was read of the host.

    `online` are the ids of the online CPUs, `offline` the cells {CPU: cell} of the others by sysfs, None
    where it does not tell. `cpu_flags` are libvirt's names of the CPU flags that guests can have. `guests` is
    None where libvirt does not tell what guests can have.
    """

    capabilities: Capabilities
    guests: DomainCapabilities | None
    cpu_flags: frozenset[str]
    online: frozenset[int]
    memory_mb: int
    disk_gb: int
    pmem: tuple[PmemNamespace, ...] = ()
    image_cache_mb: int = 0
    offline: Mapping[int, int | None] = field(default_factory=dict)


def describe_host(
    facts: HostFacts, settings: HostSettings, name: str, *, report_numa: bool = False
) -> tuple[DescribedProvider, ...]:
    """The provider of the host, called `name`, and those of its cells, if they are reported."""
    capabilities = facts.capabilities
    traits = host_traits(capabilities, facts.online, facts.cpu_flags)
    if facts.guests is not None:
        traits |= guest_traits(facts.guests, capabilities.arch) - moved_traits(facts.guests)
    return host_providers(name, host_cells(facts), facts.disk_gb, traits, settings, report_numa=report_numa)


def with_managed_cpus(facts: HostFacts, settings: HostSettings) -> HostFacts:
    """The facts, with dedicated CPUs that a power manager may have taken offline as if they were online."""
    if not settings.cpu_power_management or settings.cpu_power_management_strategy != "cpu_state":
        return facts
    cells = facts.capabilities.cells
    dedicated = settings.cpu_dedicated_set or frozenset()
    left_out = dedicated - frozenset[int]().union(*(cell.cpus for cell in cells))
    only = cells[0].id if len(cells) == 1 else None
    on = {cpu: only if cell is None else cell for cpu, cell in facts.offline.items() if cpu in left_out}
    cells = tuple(_with_cores(cell, {cpu for cpu in on if on[cpu] == cell.id}) for cell in cells)
    present = frozenset[int]().union(*(cell.cpus for cell in cells))
    return replace(
        facts,
        online=facts.online | (dedicated & present),
        capabilities=replace(facts.capabilities, cells=cells),
    )


def _with_cores(cell: Cell, cpus: Collection[int]) -> Cell:
    """The cell with CPUs that libvirt leaves out because they are offline, each a core alone."""
    siblings = (*cell.siblings, *(frozenset({cpu}) for cpu in cpus))
    return replace(cell, cpus=cell.cpus.union(cpus), siblings=tuple(sorted(siblings, key=min)))


def with_image_cache(settings: HostSettings, image_cache_mb: int) -> HostSettings:
    """The settings with the disk of cached images among what guests do not get."""
    reserved_mb = settings.reserved_host_disk_mb + image_cache_mb
    return replace(settings, reserved_host_disk_mb=reserved_mb) if image_cache_mb else settings


def with_file_backed_cells(facts: HostFacts, memory_mb: int) -> HostFacts:
    """The facts with the cells' shares of memory in files; 0: as they are."""
    cells = with_file_backed_memory(facts.capabilities.cells, memory_mb)
    return replace(
        facts,
        capabilities=replace(facts.capabilities, cells=cells),
        memory_mb=memory_mb or facts.memory_mb,
    )


def with_reserved_pages(facts: HostFacts, settings: HostSettings) -> HostFacts:
    """The facts without the large pages that are kept for the host."""
    cells = without_reserved_pages(facts.capabilities.cells, settings.reserved_huge_pages)
    return replace(facts, capabilities=replace(facts.capabilities, cells=cells))


def reportable_traits(facts: HostFacts) -> frozenset[str]:
    """The standard traits that the driver could report of this host (`Description.reportable`).

    Without those of guests where libvirt did not tell what guests can have.
    """
    of_guests = reportable_guest_traits() if facts.guests is not None else frozenset[str]()
    return reportable_host_traits() | of_guests


def describe_topology(facts: HostFacts, settings: HostSettings) -> Topology:
    """The cells and the CPU sets. Raises DriverDataError where a CPU is in two cells."""
    cells = host_cells(facts)
    return Topology(cells, *split_cpus(frozenset().union(*(cell.cpus for cell in cells)), settings))


def host_cells(facts: HostFacts) -> tuple[Cell, ...]:
    """The cells with their online CPUs.

    If libvirt reports no cells, the host is one cell; if it reports cells without memory, they share the
    host's memory evenly. Raises DriverDataError where a CPU is in two cells.
    """
    cells = tuple(_online(cell, facts.online) for cell in facts.capabilities.cells)
    if not any(cell.cpus for cell in cells):
        return (
            Cell(0, facts.online, facts.memory_mb, tuple(frozenset({cpu}) for cpu in sorted(facts.online))),
        )
    if len(frozenset().union(*(cell.cpus for cell in cells))) != sum(len(cell.cpus) for cell in cells):
        raise DriverDataError("the host's capabilities: a CPU is in two NUMA cells")
    if not any(cell.memory_mb for cell in cells):
        memory_mb = shares(facts.memory_mb, len(cells))
        cells = tuple(replace(cell, memory_mb=mb) for cell, mb in zip(cells, memory_mb, strict=True))
    return cells


def _online(cell: Cell, online: frozenset[int]) -> Cell:
    siblings = tuple(core & online for core in cell.siblings if core & online)
    return replace(cell, cpus=cell.cpus & online, siblings=siblings)
