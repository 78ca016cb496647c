"""Check whether a guest's devices permit a live migration. Pure.

A passed-through device can be live-migrated only if its driver can save its state. Drivers report that of the
devices that they know; operators declare it, or the contrary, by `live_migratable` in [pci] device_spec, and
by that of an alias which devices they mean. Network ports need no such declaration: the mover of the guest
detaches them at the source and attaches others at the destination.

A mediated device can be live-migrated only to one of the same type, a function only to one under the same
driver of VFIO, a vGPU to no older driver: the destination reads what the source has from the traits of its
cards in Placement. Where one of the two sides does not tell, the migration begins. A function, also a port,
whose driver migrates it at the source does not go to one that stays under VFIO's plain driver, which takes
over no state. A port that does not migrate at the source may go there, since it is detached; another device
is refused. Of a card whose functions have several drivers, this host chooses only those that may take the
state over; no trait tells which they are. At the source, such a card tells the drivers of all functions that
guests have. Where a guest has devices of one class on several cards, the traits that a request group asks for
(a network) say which of these it is about.

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (live migration of PCI devices),
https://docs.openstack.org/nova/latest/admin/virtual-gpu.html (live migration of mediated devices).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from agent.claims.claim import Claim, Fit
from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup, is_device_group
from agent.device_names import (
    DRIVER_IN_USE_PREFIX,
    LIVE_MIGRATABLE,
    MIGRATION_DRIVER_PREFIX,
    PLAIN_VFIO_TRAIT,
    PORTS,
    TYPES,
    mdev_types,
    migration_drivers,
    vgpu_branches,
    vram_class,
    vram_sizes,
)
from agent.errors import Refused
from agent.shapes import Allocations, Units

_PCI_TYPES = frozenset(TYPES.values())

SourceTraits = Mapping[str, Sequence[frozenset[str]]]
"""{resource class: traits of each card on which the guest has it at the source}"""


def traits_of_guests(card: frozenset[str]) -> frozenset[str]:
    """The traits of a card at the source; where it tells the drivers of VFIO in use, with these alone."""
    used = {each for each in card if each.startswith(DRIVER_IN_USE_PREFIX)}
    drivers = (MIGRATION_DRIVER_PREFIX + each.removeprefix(DRIVER_IN_USE_PREFIX) for each in used)
    return _without_drivers(card - used).union(drivers) if used else card


def _without_drivers(card: frozenset[str]) -> frozenset[str]:
    return frozenset(each for each in card if not each.startswith(MIGRATION_DRIVER_PREFIX))


def _suits(group: RequestGroup, card: frozenset[str]) -> bool:
    """Whether the group may be given the card; the cards of the unsuffixed group have its traits together."""
    return not group.suffix or (
        all(any_of & card for any_of in group.required) and not group.forbidden & card
    )


def _of_guest(group: RequestGroup, name: str, at_source: SourceTraits) -> frozenset[str]:
    """The traits of the cards at the source on which the guest may have what the group asks for."""
    cards = at_source[name]
    return frozenset().union(*([card for card in cards if _suits(group, card)] or cards))


def _told_here(kind: "_Kind", group: RequestGroup, name: str, host: ProviderIndex) -> list[frozenset[str]]:
    """What each card of this host tells that the group may be given."""
    return [kind.told(card.traits) for card in host.by_class.get(name, ()) if _suits(group, card.traits)]


def classes_to_compare(request: ClaimRequest, host: ProviderIndex) -> frozenset[str]:
    """The classes of the request of which this host says what can take over the state of such a device."""
    return frozenset(
        name
        for name in request.resources
        if any(
            card.uuid in host.unit_drivers
            or any(kind.told(card.traits) for kind in _KINDS)
            or (name not in PORTS and _PCI_TYPES & card.traits)
            for card in host.by_class.get(name, ())
        )
        or _branches_here(name, host)
    )


def check_source(request: ClaimRequest, at_source: SourceTraits, host: ProviderIndex) -> None:
    """Raises Refused where nothing here could take over the state of a device, or its source gives none."""
    for name, cards in at_source.items():
        if name not in PORTS and any(_PCI_TYPES & card and LIVE_MIGRATABLE not in card for card in cards):
            raise _refusal(f"its {name} at the source", "[pci] device_spec", request)
        wanted_branches, branches = vgpu_branches(frozenset().union(*cards)), _branches_here(name, host)
        if wanted_branches and branches and max(branches) < max(wanted_branches):
            raise Refused(
                f"{request.name or request.consumer} cannot be live-migrated to this host: the vGPU driver "
                f"of its {name} is of the branch {max(wanted_branches)} at the source, and of the older "
                f"branch {max(branches)} here. Update the driver here, or shut the guest off and migrate it "
                "cold.",
                consumer=request.consumer,
            )
    for group, kind in product(request.groups, _KINDS):
        for name in sorted(group.resources.keys() & at_source.keys()):
            traits, told = _of_guest(group, name, at_source), _told_here(kind, group, name, host)
            wanted, here = kind.of(traits), frozenset().union(*told)
            if wanted and here and all(told) and not traits & here:
                raise kind.refusal(request, name, wanted, f"this host has {_names(here)}")


def with_source(
    request: ClaimRequest, at_source: SourceTraits, host: ProviderIndex
) -> tuple[ClaimRequest, ClaimRequest]:
    """The request for cards that are as at the source, and the same one for cards that do not tell.

    What must be as at the source is a required trait of the groups that ask for it, where this host has it.
    Else, a group is kept off the cards that tell of something else, and off those that can take over nothing.
    """
    alike, untold = [], []
    for group in request.groups:
        required, forbidden, others = list(group.required), group.forbidden, frozenset[str]()
        source = {
            name: _of_guest(group, name, at_source)
            for name in sorted(group.resources.keys() & at_source.keys())
        }
        for kind in _KINDS:
            wanted = {name: kind.of(traits) for name, traits in source.items()}
            here = {name: frozenset().union(*_told_here(kind, group, name, host)) for name in source}
            both = [wanted[name] & here[name] for name in source if wanted[name] & here[name]]
            required += both
            if source and all(wanted[name] and not kind.useless & traits for name, traits in source.items()):
                unlike = frozenset().union(*here.values()) - frozenset().union(*wanted.values())
                forbidden |= kind.useless if both else kind.useless | unlike
                others |= unlike
        alike.append(replace(group, required=tuple(required), forbidden=forbidden))
        untold.append(replace(group, forbidden=forbidden | others))
    return replace(request, groups=tuple(alike)), replace(request, groups=tuple(untold))


def unlike_units(
    request: ClaimRequest, at_source: SourceTraits, host: ProviderIndex, offered: Units
) -> Sequence[frozenset[str]]:
    """The exact units that a guest is not given as long as others fit: first with those of unknown drivers.

    They are under another driver of VFIO than those that migrate at the source. Where the guest may have
    plain ones there, too, plain ones are not refused, but come last: they are in all sets but the last one.
    `offered` are all units of the host.
    """
    unlike, unknown, refused = set[str](), set[str](), set[str]()
    for name in at_source:
        for card in host.by_class.get(name, ()):
            sources = _sources_of(request, name, card.traits, at_source)
            wanted = [migration_drivers(traits) for traits in sources]
            if not all(wanted):
                continue
            known = host.unit_drivers.get(card.uuid, {})
            unlike |= {unit for unit, driver in known.items() if not any(driver in each for each in wanted)}
            refused |= {unit for unit, driver in known.items() if not any(driver in each for each in sources)}
            if not any(each & card.traits for each in wanted):
                unknown |= {*offered.get(card.uuid, {}).get(name, ())} - known.keys()
    ways = dict.fromkeys(map(frozenset, (unlike | unknown, unlike, refused)))
    return tuple(filter(None, ways))


def _sources_of(
    request: ClaimRequest, name: str, card: frozenset[str], at_source: SourceTraits
) -> list[frozenset[str]]:
    """For each group that may be given the class on such a card: what its cards at the source have."""
    groups = [group for group in request.groups if name in group.resources]
    suited = [group for group in groups if _suits(group, card)] or groups
    return [_of_guest(group, name, at_source) for group in suited]


def check_chosen(request: ClaimRequest, chosen: Fit, at_source: SourceTraits, host: ProviderIndex) -> None:
    """Raises Refused where a chosen card or unit cannot take over what the guest has at the source."""
    for uuid, amounts in chosen.allocations.items():
        provider = host.tree.get(uuid)
        if provider is None:
            continue
        for name in sorted(amounts.keys() & at_source.keys()):
            sources = _sources_of(request, name, provider.traits, at_source)
            drivers, units = host.unit_drivers.get(uuid, {}), chosen.units.get(uuid, {}).get(name, ())
            others = _without_drivers(provider.traits)
            of_units = [others | {drivers[unit]} for unit in units if unit in drivers]
            for traits, kind in product(of_units or [provider.traits], _KINDS):
                wanted, here = frozenset().union(*map(kind.of, sources)), kind.told(traits)
                if here and all(kind.of(source) and not source & here for source in sources):
                    free = f"what is free here is on {provider.name}, which has {_names(here)}"
                    raise kind.refusal(request, name, wanted, free)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What must be the same on both sides: which traits tell it, and how a sentence says it.

    `useless` are traits of cards that can take over nothing of this kind. They count at the destination. At
    the source they say that the guest has devices which do not migrate, too, and any card is for those.
    """

    of: Callable[[Iterable[str]], frozenset[str]]
    noun: str
    remedy: str
    useless: frozenset[str] = frozenset()

    def told(self, traits: frozenset[str]) -> frozenset[str]:
        """Those of the traits that say what a card can take over, or that it can take over nothing."""
        return self.of(traits) | self.useless & traits

    def refusal(self, request: ClaimRequest, name: str, wanted: frozenset[str], here: str) -> Refused:
        """The refusal of a device that is of another kind here."""
        return Refused(
            f"{request.name or request.consumer} cannot be live-migrated to this host: its {name} is "
            f"{self.noun} {_names(wanted)} at the source, and {here}. Shut the guest off and migrate it "
            f"cold, or {self.remedy}.",
            consumer=request.consumer,
        )


_KINDS = (
    _Kind(mdev_types, "of the type", "enable the type here in [devices] enabled_mdev_types"),
    _Kind(
        migration_drivers,
        "under the driver of VFIO",
        "have the same driver here: `plimsoll doctor --device ADDRESS` names the one of a device",
        frozenset({PLAIN_VFIO_TRAIT}),
    ),
)


def _branches_here(name: str, host: ProviderIndex) -> frozenset[int]:
    return frozenset().union(*(vgpu_branches(provider.traits) for provider in host.by_class.get(name, ())))


def _names(traits: frozenset[str]) -> str:
    """The names of the drivers; the traits of types of mediated devices as they are."""
    prefix, plain = MIGRATION_DRIVER_PREFIX, "vfio_pci (or one that does not migrate it)"
    names = (each.removeprefix(prefix).lower() if each.startswith(prefix) else each for each in traits)
    return ", ".join(sorted(plain if name == "vfio_pci" else name for name in names))


def check_live_migratable(
    request: ClaimRequest, allocations: Allocations, host: ProviderIndex, offered: Units
) -> None:
    """Check the devices that the request asks for by alias, and those in the instance's `allocations`.

    `offered` are all exact units of the host. Raises Refused for a device that is not declared
    live-migratable.
    """
    names = [alias for alias, count in request.pci for _ in range(count)]
    groups = [group for group in request.groups if is_device_group(group)]
    for group, alias in zip(groups, names, strict=False):
        if not any(any_of == {LIVE_MIGRATABLE} for any_of in group.required):
            raise _refusal(f"the alias {alias!r}", "[pci] alias", request)
    for uuid, amounts in allocations.items():
        provider = host.tree.get(uuid)
        if provider is None or LIVE_MIGRATABLE in provider.traits:
            continue
        for mib in vram_sizes(amounts):
            raise Refused(
                f"{request.name or request.consumer} cannot be live-migrated: {vram_class(mib)} on "
                f"{provider.name} is under no driver of VFIO that can migrate it. Shut the guest off and "
                "migrate it cold, or give all functions of the card such a driver (xe_vfio_pci).",
                consumer=request.consumer,
            )
        if _PCI_TYPES & provider.traits:
            for name in sorted(amounts.keys() & offered.get(uuid, {}).keys() - PORTS):
                raise _refusal(f"{name} on {provider.name}", "[pci] device_spec", request)


def failed_arrival(claim: Claim, host: ProviderIndex) -> str:
    """On a live migration to this host that failed: a sentence, empty without a device that migrates."""
    devices = []
    for uuid, amounts in sorted(claim.allocations.items()):
        provider = host.tree.get(uuid)
        if provider is not None and LIVE_MIGRATABLE in provider.traits:
            drivers = _names(migration_drivers(provider.traits))
            under = f" (driver {drivers})" if drivers else ""
            devices += [f"{name} on {provider.name}{under}" for name in sorted(amounts.keys() - PORTS)]
    if not devices:
        return ""
    return (
        f"The live migration of {claim.request.name or claim.consumer} to this host failed: its guest did "
        f"not arrive. It has {' and '.join(devices)}, told to be live-migratable. If libvirt's log names the "
        'device, put "live_migratable": "no" into its [pci] device_spec on both hosts: then a live migration '
        "is refused at its begin."
    )


def _refusal(device: str, option: str, request: ClaimRequest) -> Refused:
    return Refused(
        f"{request.name or request.consumer} cannot be live-migrated: {device} is not declared "
        f"live_migratable. Shut the guest off and migrate it cold, or set live_migratable in {option} if the "
        "device's driver supports it.",
        consumer=request.consumer,
    )
