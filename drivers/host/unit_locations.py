"""Where the units that guests use are described: under which resource class, on which device. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from agent.driver import DescribedProvider, Guest, UsedUnit


class UnitLocation(NamedTuple):
    """The resource class of a unit, and the `DescribedProvider.device` that has it."""

    resource_class: str
    device: str


def described_locations(providers: Iterable[DescribedProvider]) -> dict[str, UnitLocation]:
    """{unit: location} of all units of these providers: CPU ids, PCI addresses, uuids of mediated devices."""
    return {
        unit: UnitLocation(resource_class, provider.device)
        for provider in providers
        for resource_class, units in provider.units.items()
        for unit in units
    }


def locate_units(guest: Guest, locations: Mapping[str, UnitLocation]) -> Guest:
    """The guest with its units as the providers describe them, and with the amounts of its devices.

    A unit that no provider describes stays as the domain's XML names it, and adds no amount.
    """
    if not guest.units:
        return guest
    units = []
    device_amounts: dict[str, int] = {}
    for unit in guest.units:
        location = locations.get(unit.unit)
        if location is None:
            units.append(unit)
            continue
        units.append(UsedUnit(location.resource_class, unit.unit, location.device))
        if location.resource_class != "PCPU":  # the domain's pins count as PCPU already
            device_amounts[location.resource_class] = device_amounts.get(location.resource_class, 0) + 1
    return replace(guest, resources={**guest.resources, **device_amounts}, units=tuple(units))
