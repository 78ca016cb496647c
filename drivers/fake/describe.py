"""Describe a fake host: its provider tree and its topology. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

import os_traits

from agent.driver import DescribedInventory, DescribedProvider, Description, HostSettings, Topology
from drivers.fake.host import FakeHost
from drivers.fake.moves import derived_moves
from drivers.host.inventory import split_cpus
from drivers.host.providers import REPORTABLE, cell_provider_name, host_providers, page_providers


def describe_host(host: FakeHost, settings: HostSettings, name: str) -> Description:
    """The provider tree of a host called `name`, and its moves.

    Raises DriverDataError where a configured CPU is not online.
    """
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
    """The cells and the CPU sets. Raises DriverDataError where a configured CPU is not online."""
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
