"""From cards and what the operator says of them to providers. Pure.

A unit that a guest holds never vanishes from the inventory, whatever the configuration says now.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.driver import DescribedInventory, DescribedProvider
from drivers.inventory import physical_network_trait
from drivers.libvirt.cards import Card, mdev_total
from drivers.libvirt.devicespec import DeviceSpec, MdevSpec, mdev_spec_of
from drivers.libvirt.nodedevs import PciDevice


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What guests may have. `bandwidth` {interface: (egress, ingress) in kbit/s}."""

    specs: tuple[DeviceSpec, ...] = ()
    mdevs: tuple[MdevSpec, ...] = ()
    bandwidth: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def describe_cards(
    cards: Iterable[Card],
    settings: DeviceSettings,
    name: str,
    parent_of: Callable[[int | None], str],
    *,
    held: frozenset[str] = frozenset(),
    most: Mapping[str, Mapping[str, int]] | None = None,
) -> tuple[DescribedProvider, ...]:
    """The providers of the cards that have something for guests, on the host called `name`, by address.

    `parent_of` is the name of the provider that a NUMA cell's devices go under, `held` are the addresses that
    domains name, `most` {card's address: {mediated type: how many fit}} is what the cards' drivers say.
    """
    described = (
        _provider(card, settings, name, parent_of(card.numa), held, (most or {}).get(card.device.address, {}))
        for card in cards
    )
    return tuple(provider for provider in described if provider.inventories)


def _provider(
    card: Card,
    settings: DeviceSettings,
    name: str,
    parent: str,
    held: frozenset[str],
    most: Mapping[str, int],
) -> DescribedProvider:
    units: dict[str, tuple[str, ...]] = {}
    traits: set[str] = set()
    for function, spec in _functions(card, settings, held):
        resource_class = _resource_class(function, card, spec)
        units[resource_class] = (*units.get(resource_class, ()), function.address)
        if spec is not None:
            traits |= spec.traits | physical_network_trait(spec.physical_network)
    amounts = {resource_class: len(addresses) for resource_class, addresses in units.items()}
    amounts |= _mdev_amounts(card, settings.mdevs, most) if card.device.address not in held else {}
    if "SRIOV_NET_VF" in units:
        amounts |= _bandwidth(card, settings)
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
    )


def provider_name(card: Card, host: str) -> str:
    """Network cards by their interface, which people know them by; everything else by its address."""
    if card.is_network and card.interface is not None:
        return f"{host}_net_{card.interface.interface}"
    return f"{host}_pci_{card.device.address}"


def _functions(
    card: Card, settings: DeviceSettings, held: frozenset[str]
) -> Iterator[tuple[PciDevice, DeviceSpec | None]]:
    """What a guest can be given, with the spec that says so.

    A card and its parts exclude each other: a card that has virtual functions is not given away whole, one
    that is meant to be divided into mediated devices is not given away in functions, and one that was given
    away whole has no parts to give.
    """
    whole = card.device.address in held
    divided = bool(card.mdevs) or mdev_spec_of(card, settings.mdevs) is not None
    for function in (card.device, *card.vfs):
        is_card = function is card.device
        in_use = function.address in held
        if not in_use and (whole or divided or (is_card and card.vfs)):
            continue
        spec = next((each for each in settings.specs if each.matches(function, card)), None)
        if in_use or (spec is not None and not (is_card and _means_virtual_functions(card, spec))):
            yield function, spec


def _means_virtual_functions(card: Card, spec: DeviceSpec) -> bool:
    """With a physical network, a card's virtual functions are meant, even when it has none yet."""
    return spec.physical_network is not None and card.device.vfs_max is not None


def _resource_class(function: PciDevice, card: Card, spec: DeviceSpec | None) -> str:
    if spec is not None and spec.resource_class is not None:
        return spec.resource_class
    if card.is_network and function.physical_function is not None:
        return "SRIOV_NET_VF"
    return f"CUSTOM_PCI_{function.vendor_id}_{function.product_id}".upper()


def _mdev_amounts(card: Card, specs: tuple[MdevSpec, ...], most: Mapping[str, int]) -> dict[str, int]:
    """A card whose type is not (or no longer) enabled still has what is on it."""
    spec = mdev_spec_of(card, specs)
    if spec is None:
        return {"VGPU": sum(mdev.active for mdev in card.mdevs)}
    total = mdev_total(card, spec.type_id, most.get(spec.type_id), spec.max_instances)
    return {spec.resource_class: total}


def _bandwidth(card: Card, settings: DeviceSettings) -> dict[str, int]:
    interface = card.interface.interface if card.interface is not None else ""
    egress, ingress = settings.bandwidth.get(interface, (0, 0))
    return {"NET_BW_EGR_KILOBIT_PER_SEC": egress, "NET_BW_IGR_KILOBIT_PER_SEC": ingress}
