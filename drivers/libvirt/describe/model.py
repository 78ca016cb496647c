"""All that was read of a host, made into what the contract asks for. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.driver import Cell, DescribedProvider, Description, Guest, HostSettings, Topology
from drivers.host.domain_xml import Domain
from drivers.host.providers import cell_provider_name, host_providers, page_providers
from drivers.host.unit_locations import UnitLocation, locate_units
from drivers.libvirt.describe.cards import Remembered
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, describe_cards
from drivers.libvirt.describe.history import (
    Classes,
    cells_described,
    classes_described,
    interfaces_seen,
    slots_seen,
    with_interfaces,
)
from drivers.libvirt.describe.host import HostFacts, describe_host, describe_topology, host_cells
from drivers.libvirt.describe.moves import Tenant, moves_of
from drivers.libvirt.describe.used_units import missing_units, remember, unit_locations


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`name` is the host's; `report_numa`: CPUs, memory and devices under a provider for each cell."""

    name: str
    host: HostSettings
    devices: DeviceSettings
    report_numa: bool = False


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The contract's answers; the units to remember, those of them that are not there, the devices, what each
    unit that is described is of, and the classes to remember."""

    description: Description
    topology: Topology
    guests: tuple[Guest, ...]
    units: Mapping[str, Remembered]
    missing: tuple[Remembered, ...]
    devices: DeviceFacts
    places: Mapping[str, UnitLocation]
    classes: Classes


def make_model(
    host: HostFacts,
    devices: DeviceFacts,
    domains: Sequence[Tenant],
    known: Mapping[str, Remembered],
    boot: str,
    settings: ModelSettings,
    classes: Classes | None = None,
) -> DeviceModel:
    """`domains` are guests with their devices as their XML names them, in order; `known` and `classes` see
    `DeviceModel`, `boot` is the id of the host's current boot. Raises DriverDataError (CPU sets).
    """
    classes = slots_seen(interfaces_seen(classes or {}, devices.cards), devices.cards, known)
    devices = replace(devices, cards=with_interfaces(devices.cards, classes))
    named = _named(domains)
    missing = missing_units(named, devices, settings.devices, known)
    own = describe_host(host, settings.host, settings.name, report_numa=settings.report_numa)
    cells = host_cells(host)
    cards = describe_cards(
        devices,
        settings.devices,
        settings.name,
        _parents(own, settings),
        held=named,
        missing=missing,
    )
    pages = page_providers(settings.name, cells, report_numa=settings.report_numa)
    providers = (*own, *pages, *cards)
    places = unit_locations(providers, devices, settings.devices, missing)
    tenants = [Tenant(locate_units(each.guest, places), each.domain) for each in domains]
    divided = {card.key for card in devices.cards if card.mdev_parents or card.mdevs}
    classes = cells_described(classes_described(classes, cards, divided), own)
    moves = moves_of(providers, _cell_totals(cells, settings), tenants, cells, classes)
    complete = all(each.domain is not None for each in domains)
    return DeviceModel(
        Description(providers, moves),
        describe_topology(host, settings.host),
        tuple(tenant.guest for tenant in tenants),
        remember(named, devices, places, known, boot, forget=complete),
        tuple(missing),
        devices,
        places,
        classes,
    )


def _domains(tenants: Sequence[Tenant]) -> list[Domain]:
    return [each.domain for each in tenants if each.domain is not None]


def _addresses(tenants: Sequence[Tenant]) -> frozenset[str]:
    return frozenset(
        address for each in _domains(tenants) for address in (*each.pci_devices, *each.interfaces)
    )


def _named(tenants: Sequence[Tenant]) -> frozenset[str]:
    return _addresses(tenants) | {uuid for each in _domains(tenants) for uuid in each.mdevs}


def _parents(own: Sequence[DescribedProvider], settings: ModelSettings) -> Callable[[int | None], str]:
    """A device without affinity, or of a cell that is not reported, is the host's."""
    names = {provider.name for provider in own}

    def parent_of(numa: int | None) -> str:
        name = settings.name if numa is None else cell_provider_name(settings.name, numa)
        return name if name in names else settings.name

    return parent_of


def _cell_totals(cells: tuple[Cell, ...], settings: ModelSettings) -> dict[int, dict[str, int]]:
    """{cell: {class: total}} as if the cells were reported, which a host of one cell need not be."""
    found = host_providers(settings.name, cells, 0, frozenset(), settings.host, report_numa=True)
    return {
        cell.id: {name: inventory.total for name, inventory in provider.inventories.items()}
        for cell, provider in zip(cells, found[1:], strict=True)
    }
