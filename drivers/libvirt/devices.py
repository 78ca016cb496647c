"""From cards and what the operator says of them to providers. Pure.

A unit that a guest holds never vanishes from the inventory, whatever the configuration says now.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.driver import DescribedInventory, DescribedProvider
from drivers.inventory import physical_network_trait
from drivers.libvirt.cards import Card, mdev_total
from drivers.libvirt.devicespec import DeviceSpec, MdevSpec, mdev_spec_of, vgpu_spec_of
from drivers.libvirt.nodedevs import PciDevice
from drivers.libvirt.sysfs import NO_TYPE


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
class Remembered:
    """A unit that a domain names: a mediated device's uuid, or a virtual function's address.

    `card` is the card's address, `parent` the function's that a mediated device was made on, `boot` the boot
    of the host in which it was there.
    """

    unit: str
    card: str
    resource_class: str
    parent: str = ""
    type_id: str = ""
    boot: str = ""


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

    `parent_of` is the name of the provider that a NUMA cell's devices go under, `held` are the addresses that
    domains name, `missing` the units that domains name and that are not there (yet): after a boot of the host
    its virtual functions and mediated devices come back one by one.
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
    units: dict[str, tuple[str, ...]] = {}
    traits: set[str] = set()
    for function, spec in _functions(offer):
        resource_class = _resource_class(offer, function, spec)
        units[resource_class] = (*units.get(resource_class, ()), function.address)
        if spec is not None:
            traits |= spec.traits | physical_network_trait(spec.physical_network)
    for each in offer.missing:
        if not each.type_id:
            units[each.resource_class] = (*units.get(each.resource_class, ()), each.unit)
    amounts = {resource_class: len(addresses) for resource_class, addresses in units.items()}
    if card.device.address not in offer.held:
        for resource_class, amount in _mdev_amounts(offer).items():
            amounts[resource_class] = amounts.get(resource_class, 0) + amount
    if "SRIOV_NET_VF" in units:
        amounts |= _bandwidth(card, offer.settings)
    return DescribedProvider(
        name=provider_name(card, name),
        parent=parent,
        inventories={
            resource_class: DescribedInventory(total, allocation_ratio=1.0)
            for resource_class, total in amounts.items()
            if total
        },
        traits=frozenset(traits),
        device=card.key,
        units=units,
        cell=card.numa,
    )


def provider_name(card: Card, host: str) -> str:
    """Network cards by their interface, which people know them by; everything else by its address."""
    if card.is_network and card.interface is not None:
        return f"{host}_net_{card.interface.interface}"
    return f"{host}_pci_{card.device.address}"


def _functions(offer: Offer) -> Iterator[tuple[PciDevice, DeviceSpec | None]]:
    """What a guest can be given, with the spec that says so.

    A card and its parts exclude each other: a card that has virtual functions is not given away whole, one
    that is meant to be divided into mediated devices is not given away in functions, and one that was given
    away whole has no parts to give.
    """
    card, settings = offer.card, offer.settings
    whole = card.device.address in offer.held
    divided = bool(card.mdevs) or mdev_spec_of(card, settings.mdevs) is not None
    for function in (card.device, *card.vfs):
        is_card = function is card.device
        in_use = function.address in offer.held
        vgpu_type = offer.facts.vgpu_types.get(function.address)
        spec = next((each for each in settings.specs if each.matches(function, card)), None)
        if in_use:
            yield function, spec
        elif whole or divided or (is_card and card.vfs) or vgpu_type == NO_TYPE:
            continue
        elif _vgpu_spec(offer, function) is not None or (
            spec is not None and not (is_card and _means_virtual_functions(card, spec))
        ):
            yield function, spec


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
    return f"CUSTOM_PCI_{function.vendor_id}_{function.product_id}".upper()


def mdev_class(card: Card, settings: DeviceSettings) -> str:
    """The resource class of the mediated devices on a card."""
    spec = mdev_spec_of(card, settings.mdevs)
    return "VGPU" if spec is None else spec.resource_class


def _mdev_amounts(offer: Offer) -> dict[str, int]:
    """A card whose type is not (or no longer) enabled still has what is on it, and what domains name
    and is to come back: a reboot took it, maybe with the virtual functions that it was on.
    """
    card = offer.card
    missing = [each for each in offer.missing if each.type_id]
    spec = mdev_spec_of(card, offer.settings.mdevs)
    if spec is not None:
        most = offer.facts.most.get(card.device.address, {}).get(spec.type_id)
        made = offer.facts.made.get(card.device.address)
        total = mdev_total(card, spec.type_id, most, spec.max_instances, made)
        return {spec.resource_class: max(total, len(missing) + sum(mdev.active for mdev in card.mdevs))}
    amounts = {"VGPU": sum(mdev.active for mdev in card.mdevs)}
    for each in missing:
        amounts[each.resource_class] = amounts.get(each.resource_class, 0) + 1
    return amounts


def _bandwidth(card: Card, settings: DeviceSettings) -> dict[str, int]:
    interface = card.interface.interface if card.interface is not None else ""
    egress, ingress = settings.bandwidth.get(interface, (0, 0))
    return {"NET_BW_EGR_KILOBIT_PER_SEC": egress, "NET_BW_IGR_KILOBIT_PER_SEC": ingress}
