"""From cards and what the operator says of them to providers. Pure.

A unit that a guest holds never vanishes from the inventory, whatever the configuration says now.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.device_names import TYPES, mdev_type_trait, pci_class, product_trait, vendor_trait
from agent.driver import DescribedInventory, DescribedProvider
from agent.errors import DriverDataError
from drivers.host.inventory import physical_network_trait
from drivers.libvirt.describe.cards import NO_TYPE, Card, Remembered
from drivers.libvirt.describe.device_spec import DeviceSpec, MdevSpec, mdev_specs_of, vgpu_spec_of
from drivers.libvirt.describe.mdevs import Divided, Division, class_of
from drivers.libvirt.xml.nodedevs import PciDevice


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What guests may have. `bandwidth` {interface: (egress, ingress) in kbit/s}."""

    specs: tuple[DeviceSpec, ...] = ()
    mdevs: tuple[MdevSpec, ...] = ()
    bandwidth: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """All that was read of the devices.

    `most` {card's address: {mediated type: how many fit}} is what the cards' drivers say; `vgpu_types`
    {virtual function: number of its type, "0" for none} of those under a vendor's own VFIO driver; `made`
    {card's address: mediated devices that the kernel has on it} where sysfs says.
    """

    cards: tuple[Card, ...] = ()
    most: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    vgpu_types: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a card has for guests, put together from all that is known of it."""

    card: Card
    facts: DeviceFacts
    settings: DeviceSettings
    held: frozenset[str]
    missing: tuple[Remembered, ...] = ()


def describe_cards(
    facts: DeviceFacts,
    settings: DeviceSettings,
    name: str,
    parent_of: Callable[[int | None], str],
    *,
    held: frozenset[str] = frozenset(),
    missing: Iterable[Remembered] = (),
) -> tuple[DescribedProvider, ...]:
    """The providers of the cards that have something for guests, on the host called `name`, by address.

    `parent_of` is the name of the provider that a NUMA cell's devices go under, `held` are the addresses and
    uuids that domains name, `missing` those of them that are not there (yet): after a boot of the host its
    virtual functions and mediated devices come back one by one. Raises DriverDataError where the specs
    contradict each other about one card.
    """
    gone: dict[str, list[Remembered]] = {}
    for each in missing:
        gone.setdefault(each.card, []).append(each)
    described = (
        _provider(
            Offer(card, facts, settings, held, tuple(gone.get(card.device.address, ()))),
            name,
            parent_of(card.numa),
        )
        for card in facts.cards
    )
    return tuple(provider for provider in described if provider.inventories)


def _provider(offer: Offer, name: str, parent: str) -> DescribedProvider:
    card = offer.card
    given = list(_functions(offer))
    _check_siblings(offer, given)
    units: dict[str, tuple[str, ...]] = {}
    for function, spec in given:
        resource_class = _resource_class(offer, function, spec)
        units[resource_class] = (*units.get(resource_class, ()), function.address)
    for each in offer.missing:
        if not each.type_id:
            units[each.resource_class] = (*units.get(each.resource_class, ()), each.unit)
    amounts = {resource_class: len(addresses) for resource_class, addresses in units.items()}
    if "SRIOV_NET_VF" in units:
        amounts |= _bandwidth(card, offer.settings)
    inventories = {
        resource_class: DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, total in amounts.items()
        if total
    }
    division = Division() if card.device.address in offer.held else _division(offer, name)
    return DescribedProvider(
        name=provider_name(card, name),
        parent=parent,
        inventories={**inventories, **division.inventories},
        traits=_traits(offer, given) | division.traits,
        device=card.key,
        units={**units, **division.units},
        cell=card.numa,
        ways=(*_ways(offer, given), *division.ways),
        to_make=division.to_make,
    )


def _division(offer: Offer, host: str) -> Division:
    card, facts = offer.card, offer.facts
    specs = mdev_specs_of(card, offer.settings.mdevs)
    if len({spec.resource_class for spec in specs}) < len(specs):
        raise DriverDataError(
            f"[devices] enabled_mdev_types divides {card.device.address} into "
            f"{', '.join(spec.type_id for spec in specs)}, some of which have one class; give each an "
            "mdev_class of its own, or let device_addresses name the card for one of them only"
        )
    return Divided(
        card,
        host,
        specs,
        facts.most.get(card.device.address, {}),
        facts.made.get(card.device.address),
        tuple(each for each in offer.missing if each.type_id),
        offer.held,
    ).division()


Given = Sequence[tuple[PciDevice, DeviceSpec | None]]
"""What a guest can be given, with the spec that says so; None: it is in use all the same."""


def _traits(offer: Offer, given: Given) -> frozenset[str]:
    """What the operator says, and what kind of device and of which model there is."""
    found: set[str] = set()
    for function, spec in given:
        found |= {vendor_trait(function.vendor_id), product_trait(function.product_id)}
        found.add(TYPES[_device_type(function)])
        vgpu = _vgpu_spec(offer, function)
        if vgpu is not None:
            found.add(mdev_type_trait(vgpu.type_id))
        if spec is not None:
            found |= spec.traits | physical_network_trait(spec.physical_network)
    device = offer.card.device
    if mdev_specs_of(offer.card, offer.settings.mdevs) and device.address not in offer.held:
        found |= {vendor_trait(device.vendor_id), product_trait(device.product_id)}
    return frozenset(found)


def _device_type(function: PciDevice) -> str:
    if function.physical_function is not None:
        return "type-VF"
    return "type-PCI" if function.vfs_max is None else "type-PF"


def _ways(offer: Offer, given: Given) -> tuple[frozenset[str], ...]:
    """A card is given away whole, or by its functions."""
    whole: set[str] = set()
    parts: set[str] = set()
    for function, spec in given:
        (whole if function is offer.card.device else parts).add(_resource_class(offer, function, spec))
    return (frozenset(whole), frozenset(parts)) if whole and parts else ()


def _check_siblings(offer: Offer, given: Given) -> None:
    """Raises DriverDataError where the specs say different things of functions that one provider has."""
    first: tuple[PciDevice, DeviceSpec] | None = None
    for function, spec in given:
        if spec is None or function.physical_function is None:
            continue
        if spec.one_time_use:
            raise DriverDataError(
                f"[pci] device_spec says one_time_use of {function.address}, a virtual function of "
                f"{function.physical_function}; it is for devices that are given away whole"
            )
        first = first or (function, spec)
        said = [
            (_resource_class(offer, *each), each[1].traits, each[1].physical_network)
            for each in (first, (function, spec))
        ]
        if said[0] != said[1]:
            raise DriverDataError(
                f"[pci] device_spec gives {first[0].address} and {function.address}, virtual functions of "
                f"one card ({function.physical_function}), another class, other traits or another network: "
                f"{_told(*said[0])}, and {_told(*said[1])}; let it say the same of all functions of a card"
            )


def _told(resource_class: str, traits: frozenset[str], network: str | None) -> str:
    with_traits = f" with {', '.join(sorted(traits))}" if traits else ""
    return f"{resource_class}{with_traits}{f' on {network}' if network else ''}"


def provider_name(card: Card, host: str) -> str:
    """Network cards by their interface, which people know them by; everything else by its address."""
    interface = card.interface.interface if card.is_network and card.interface is not None else ""
    return card_name(host, card.device.address, interface)


def card_name(host: str, address: str, interface: str) -> str:
    """`interface` is "" for none."""
    return f"{host}_net_{interface}" if interface else f"{host}_pci_{address}"


def _functions(offer: Offer) -> Iterator[tuple[PciDevice, DeviceSpec | None]]:
    """What a guest can be given, with the spec that says so.

    A card and its parts exclude each other: one that is meant to be divided into mediated devices is not
    given away in functions, and one that was given away whole has no parts to give. Where both are meant, the
    card and its virtual functions, that is for claims to see to (`DescribedProvider.ways`), if they can be
    told apart by their classes. All of an IOMMU group is for one guest: while a domain has something of it,
    the rest is not for others.
    """
    card, settings = offer.card, offer.settings
    whole = card.device.address in offer.held
    divided = bool(card.mdevs) or bool(mdev_specs_of(card, settings.mdevs))
    parts: set[str] = set()
    left_out = _beyond_caps(offer)
    for function in (*card.vfs, card.device):
        if function.address in left_out:
            continue
        is_card = function is card.device
        in_use = function.address in offer.held
        vgpu_type = offer.facts.vgpu_types.get(function.address)
        spec = next((each for each in settings.specs if each.matches(function, card)), None)
        resource_class = _resource_class(offer, function, spec)
        if not in_use:
            if whole or divided or vgpu_type == NO_TYPE or (is_card and resource_class in parts):
                continue
            if not offer.held.isdisjoint(function.iommu_devices):
                continue
            if _vgpu_spec(offer, function) is None and (
                spec is None or (is_card and _means_virtual_functions(card, spec))
            ):
                continue
        parts.add(resource_class)
        yield function, spec


def _beyond_caps(offer: Offer) -> frozenset[str]:
    """The virtual functions of a type beyond its max_instances; those in use count first."""
    found: set[str] = set()
    taken: dict[str, int] = {}
    held = offer.held
    for vf in sorted(offer.card.vfs, key=lambda vf: (vf.address not in held, vf.address)):
        spec = _vgpu_spec(offer, vf)
        if spec is None or spec.max_instances is None:
            continue
        taken[spec.type_id] = taken.get(spec.type_id, 0) + 1
        if taken[spec.type_id] > spec.max_instances and vf.address not in held:
            found.add(vf.address)
    return frozenset(found)


def _vgpu_spec(offer: Offer, function: PciDevice) -> MdevSpec | None:
    number = offer.facts.vgpu_types.get(function.address, NO_TYPE)
    if number == NO_TYPE:
        return None
    return vgpu_spec_of(offer.card, function, number, offer.settings.mdevs)


def _means_virtual_functions(card: Card, spec: DeviceSpec) -> bool:
    """With a physical network, a card's virtual functions are meant, even when it has none yet."""
    return spec.physical_network is not None and card.device.vfs_max is not None


def _resource_class(offer: Offer, function: PciDevice, spec: DeviceSpec | None) -> str:
    vgpu = _vgpu_spec(offer, function)
    if vgpu is not None:
        return vgpu.resource_class
    if spec is not None and spec.resource_class is not None:
        return spec.resource_class
    if function.address in offer.facts.vgpu_types:
        return "VGPU"  # in use, though its type is not (or no longer) enabled
    if offer.card.is_network and function.physical_function is not None:
        return "SRIOV_NET_VF"
    return pci_class(function.vendor_id, function.product_id)


def mdev_class(card: Card, settings: DeviceSettings, type_id: str = "") -> str:
    """The resource class of a mediated device of that type on the card."""
    return class_of(mdev_specs_of(card, settings.mdevs), type_id)


def _bandwidth(card: Card, settings: DeviceSettings) -> dict[str, int]:
    interface = card.interface.interface if card.interface is not None else ""
    egress, ingress = settings.bandwidth.get(interface, (0, 0))
    return {"NET_BW_EGR_KILOBIT_PER_SEC": egress, "NET_BW_IGR_KILOBIT_PER_SEC": ingress}
