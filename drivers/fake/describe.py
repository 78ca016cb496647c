"""From a described host to the contract's values. Pure."""

from collections.abc import Iterator, Mapping

from agent.driver import Cell, DescribedInventory, DescribedProvider, Description, HostSettings, Topology
from drivers.fake.host import Gpu, Host, Nic
from drivers.inventory import (
    cpu_inventories,
    cpu_units,
    disk_inventory,
    memory_inventory,
    physical_network_trait,
    shares,
    split_cpus,
)


def describe_host(host: Host, settings: HostSettings, name: str) -> Description:
    """The provider tree of `host`, whose root is called `name`. Raises DriverDataError (CPU sets)."""
    shared, dedicated = host_cpus(host, settings)
    if host.report_numa:
        top = (_root(host, settings, name), *_numa_providers(host, settings, name, shared, dedicated))
    else:
        memory = sum(cell.memory_mb for cell in host.cells)
        own = {
            **cpu_inventories(len(shared), len(dedicated), settings.reserved_host_cpus, settings),
            **memory_inventory(memory, settings.reserved_host_memory_mb, settings),
        }
        top = (_root(host, settings, name, own, cpu_units(dedicated)),)
    return Description((*top, *_devices(host, name)), host.moves)


def describe_topology(host: Host, settings: HostSettings) -> Topology:
    """The cells as described and the CPU sets in force. Raises DriverDataError (CPU sets)."""
    return Topology(host.cells, *host_cpus(host, settings))


def host_cpus(host: Host, settings: HostSettings) -> tuple[frozenset[int], frozenset[int]]:
    """(shared, dedicated) CPU ids."""
    return split_cpus(frozenset().union(*(cell.cpus for cell in host.cells)), settings)


def _root(
    host: Host,
    settings: HostSettings,
    name: str,
    inventories: Mapping[str, DescribedInventory] | None = None,
    units: Mapping[str, tuple[str, ...]] | None = None,
) -> DescribedProvider:
    return DescribedProvider(
        name=name,
        inventories={**(inventories or {}), **disk_inventory(host.disk_gb, settings)},
        traits=host.traits | {"COMPUTE_NODE"},
        units=units or {},
    )


def _numa_providers(
    host: Host, settings: HostSettings, name: str, shared: frozenset[int], dedicated: frozenset[int]
) -> Iterator[DescribedProvider]:
    """One provider a cell; what is reserved for the host is taken from the cells evenly."""
    parts = len(host.cells)
    reserved_cpus = shares(settings.reserved_host_cpus, parts)
    reserved_mb = shares(settings.reserved_host_memory_mb, parts)
    for cell, *reserved in zip(host.cells, reserved_cpus, reserved_mb, strict=True):
        yield _numa_provider(cell, settings, name, (shared & cell.cpus, dedicated & cell.cpus), *reserved)


def _numa_provider(
    cell: Cell,
    settings: HostSettings,
    name: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    reserved_cpus: int,
    reserved_mb: int,
) -> DescribedProvider:
    shared, dedicated = cpus
    return DescribedProvider(
        name=f"{name}_numa{cell.id}",
        parent=name,
        inventories={
            **cpu_inventories(len(shared), len(dedicated), reserved_cpus, settings),
            **memory_inventory(cell.memory_mb, reserved_mb, settings),
        },
        traits=frozenset({"HW_NUMA_ROOT"}),
        device=f"numa:{cell.id}",
        units=cpu_units(dedicated),
    )


def _devices(host: Host, name: str) -> Iterator[DescribedProvider]:
    for gpu in host.gpus:
        yield _gpu(gpu, name, _parent(host, gpu.numa, name))
    for nic in host.nics:
        yield _nic(nic, name, _parent(host, nic.numa, name))


def _parent(host: Host, numa: int | None, name: str) -> str:
    return f"{name}_numa{numa}" if host.report_numa and numa is not None else name


def _gpu(gpu: Gpu, name: str, parent: str) -> DescribedProvider:
    return DescribedProvider(
        name=f"{name}_pci_{gpu.address}",
        parent=parent,
        inventories=_device_inventories({gpu.resource_class: gpu.total}),
        traits=gpu.traits,
        device=f"pci:{gpu.address}",
        units={gpu.resource_class: gpu.units} if gpu.units else {},
    )


def _nic(nic: Nic, name: str, parent: str) -> DescribedProvider:
    amounts = {
        "SRIOV_NET_VF": len(nic.vfs),
        "NET_BW_EGR_KILOBIT_PER_SEC": nic.egress_kbps,
        "NET_BW_IGR_KILOBIT_PER_SEC": nic.ingress_kbps,
    }
    return DescribedProvider(
        name=f"{name}_net_{nic.ifname}",
        parent=parent,
        inventories=_device_inventories(amounts),
        traits=nic.traits | physical_network_trait(nic.physical_network),
        device=f"pci:{nic.address}",
        units={"SRIOV_NET_VF": nic.vfs} if nic.vfs else {},
    )


def _device_inventories(amounts: Mapping[str, int]) -> dict[str, DescribedInventory]:
    """Devices are never overcommitted; a class of which there is nothing is left out."""
    return {
        resource_class: DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, total in amounts.items()
        if total
    }
