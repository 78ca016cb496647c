"""Describe cards as providers, as the operator configured them. Pure.

A unit that a domain names stays in the inventory even if the configuration no longer offers it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.device_names import (
    TYPES,
    VDPA_CLASS,
    VDPA_TRAIT,
    mdev_type_trait,
    pci_class,
    physical_network_trait,
    product_trait,
    vendor_trait,
)
from agent.driver import DescribedInventory, DescribedProvider
from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import NO_TYPE, Card, UnitRecord
from drivers.libvirt.describe.device_spec import DeviceSpec, MdevSpec, mdev_specs_of, vgpu_spec_of
from drivers.libvirt.describe.inventory_defaults import InventoryDefaults
from drivers.libvirt.describe.mdevs import MdevCard, MdevResources, class_of
from drivers.libvirt.describe.remote_managed import check_remote_managed
from drivers.libvirt.xml import PciDevice


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The devices that the operator offers. `bandwidth` {interface: (egress, ingress) in kbit/s}.

    `mixed` {card's address: its name in `agent.providers.divided_cards.MIXED_SIZES`} are cards in mixed-size
    mode.
    """

    specs: tuple[DeviceSpec, ...] = ()
    mdevs: tuple[MdevSpec, ...] = ()
    bandwidth: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bandwidth_defaults: InventoryDefaults = field(default_factory=InventoryDefaults)
    mixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """All that was read of the devices.

    `mdev_limits` {card's address: {mediated type: how many the card can have}} as the card's driver reports;
    `mdev_counts` {card's address: how many mediated devices the kernel has on it} where sysfs has them;
    `vgpu_types` {virtual function's address: number of its vGPU type, NO_TYPE for none} of functions under a
    vendor's own VFIO driver, `vgpu_places` {its address: the slot of the card in which its vGPU starts} on
    cards in mixed-size mode, `vgpu_names` {its address: {number: name}} the types that it can have now.
    `near_cells` {NUMA cell without CPUs: the nearest cell that has some}. `vgpu_gib` {card's address: {number
    of a vGPU type: GiB of its frame buffer}} is remembered, because the names are not always there.
    """

    cards: tuple[Card, ...] = ()
    mdev_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    vgpu_types: Mapping[str, str] = field(default_factory=dict)
    mdev_counts: Mapping[str, int] = field(default_factory=dict)
    near_cells: Mapping[int, int] = field(default_factory=dict)
    vgpu_places: Mapping[str, int] = field(default_factory=dict)
    vgpu_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    vgpu_gib: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def near_cell(self, cell: int | None) -> int | None:
        """The cell whose guests are nearest to a card of this cell: it has CPUs, if any is known to."""
        return cell if cell is None else self.near_cells.get(cell, cell)


ParentOf = Callable[[int | None], str]
"""The name of the parent for devices of a NUMA cell."""


@dataclass(frozen=True, slots=True)
class CardContext:
    """A card, with all that its description depends on.

    `held` are the addresses and uuids that domains name, `missing` the records of those on this card that do
    not exist now: after a boot of the host, virtual functions and mediated devices come back one by one.
    """

    card: Card
    facts: DeviceFacts
    settings: DeviceSettings
    held: frozenset[str] = frozenset()
    missing: tuple[UnitRecord, ...] = ()


def card_contexts(
    facts: DeviceFacts,
    settings: DeviceSettings,
    held: frozenset[str] = frozenset(),
    missing: Iterable[UnitRecord] = (),
) -> tuple[CardContext, ...]:
    """All cards of the host, in the order of addresses; `held` and `missing` see `CardContext`.

    Raises DriverDataError where specs make a physical function remote_managed.
    """
    check_remote_managed(facts.cards, settings.specs)
    missing_by_card: dict[str, list[UnitRecord]] = {}
    for record in missing:
        missing_by_card.setdefault(record.card, []).append(record)
    return tuple(
        CardContext(card, facts, settings, held, tuple(missing_by_card.get(card.device.address, ())))
        for card in facts.cards
    )


def describe_cards(
    contexts: Iterable[CardContext], name: str, parent_of: ParentOf
) -> tuple[DescribedProvider, ...]:
    """The providers of cards that have an inventory, on the host called `name`.

    Raises DriverDataError where specs contradict each other about a card.
    """
    described = (_provider(context, name, parent_of(context.card.numa)) for context in contexts)
    return tuple(provider for provider in described if provider.inventories)


def _provider(context: CardContext, name: str, parent: str) -> DescribedProvider:
    card = context.card
    offered = list(_offered_functions(context))
    _check_same_specs(context, offered)
    units: dict[str, tuple[str, ...]] = {}
    for function, spec in offered:
        resource_class = _resource_class(context, function, spec)
        units[resource_class] = (*units.get(resource_class, ()), function.address)
    for record in context.missing:
        if not record.type_id:
            units[record.resource_class] = (*units.get(record.resource_class, ()), record.unit)
    amounts = {resource_class: len(addresses) for resource_class, addresses in units.items()}
    inventories = {
        resource_class: DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, total in amounts.items()
    }
    if "SRIOV_NET_VF" in units:
        defaults = context.settings.bandwidth_defaults
        bandwidth = _bandwidth(card, context.settings)
        inventories |= {name: defaults.inventory(total) for name, total in bandwidth.items() if total}
    mdevs = MdevResources() if card.device.address in context.held else _mdev_resources(context, name)
    return DescribedProvider(
        name=provider_name(card, name),
        parent=parent,
        inventories={**inventories, **mdevs.inventories},
        traits=_traits(context, offered) | mdevs.traits,
        device=card.key,
        units={**units, **mdevs.units},
        cell=context.facts.near_cell(card.numa),
        ways=(*_ways(context, offered), *mdevs.ways),
        to_make=mdevs.to_make,
    )


def _mdev_resources(context: CardContext, host: str) -> MdevResources:
    card, facts = context.card, context.facts
    specs = mdev_specs_of(card, context.settings.mdevs)
    if len({spec.resource_class for spec in specs}) < len(specs):
        raise DriverDataError(
            f"[devices] enabled_mdev_types divides {card.device.address} into "
            f"{', '.join(spec.type_id for spec in specs)}, several of which have one class; give each an "
            "mdev_class of its own, or name the card in device_addresses of one of them only"
        )
    return MdevCard(
        card,
        host,
        specs,
        facts.mdev_limits.get(card.device.address, {}),
        facts.mdev_counts.get(card.device.address),
        tuple(record for record in context.missing if record.type_id),
        context.held,
    ).resources()


OfferedFunctions = Sequence[tuple[PciDevice, DeviceSpec | None]]
"""Functions that guests can have, each with the spec that offers it, None if it is only in use."""


def _traits(context: CardContext, offered: OfferedFunctions) -> frozenset[str]:
    """The traits of the specs, and those of the functions' vendor, model and type."""
    traits: set[str] = set()
    for function, spec in offered:
        traits |= {vendor_trait(function.vendor_id), product_trait(function.product_id)}
        is_vdpa = function.address in context.card.vdpa
        traits.add(VDPA_TRAIT if is_vdpa else TYPES[_device_type(function)])
        vgpu = _vgpu_spec(context, function)
        if vgpu is not None:
            traits.add(mdev_type_trait(vgpu.type_id))
        if spec is not None:
            traits |= spec.traits | physical_network_trait(spec.physical_network)
    device = context.card.device
    if mdev_specs_of(context.card, context.settings.mdevs) and device.address not in context.held:
        traits |= {vendor_trait(device.vendor_id), product_trait(device.product_id)}
    return frozenset(traits)


def _device_type(function: PciDevice) -> str:
    if function.physical_function is not None:
        return "type-VF"
    return "type-PCI" if function.vfs_max is None else "type-PF"


def _ways(context: CardContext, offered: OfferedFunctions) -> tuple[frozenset[str], ...]:
    """A guest can have the whole card, or guests can have its virtual functions, but not both."""
    whole: set[str] = set()
    parts: set[str] = set()
    for function, spec in offered:
        (whole if function is context.card.device else parts).add(_resource_class(context, function, spec))
    return (frozenset(whole), frozenset(parts)) if whole and parts else ()


def _check_same_specs(context: CardContext, offered: OfferedFunctions) -> None:
    """Raises DriverDataError where the virtual functions of the card have different specs."""
    first: tuple[PciDevice, DeviceSpec] | None = None
    for function, spec in offered:
        if spec is None or function.physical_function is None or function.address in context.card.vdpa:
            continue
        if spec.one_time_use:
            raise DriverDataError(
                f"[pci] device_spec has one_time_use for {function.address}, a virtual function of "
                f"{function.physical_function}; use it only for devices that a guest has as a whole"
            )
        first = first or (function, spec)
        first_meaning, meaning = (
            (_resource_class(context, vf, vf_spec), vf_spec.traits, vf_spec.physical_network)
            for vf, vf_spec in (first, (function, spec))
        )
        if first_meaning != meaning:
            raise DriverDataError(
                f"[pci] device_spec gives {first[0].address} and {function.address}, virtual functions of "
                f"one card ({function.physical_function}), another class, other traits or another network: "
                f"{_in_words(*first_meaning)}, and {_in_words(*meaning)}; configure all functions alike"
            )


def _in_words(resource_class: str, traits: frozenset[str], network: str | None) -> str:
    with_traits = f" with {', '.join(sorted(traits))}" if traits else ""
    return f"{resource_class}{with_traits}{f' on {network}' if network else ''}"


def provider_name(card: Card, host: str) -> str:
    """The name of a card's provider: by the interface of a network card, by the address of any other."""
    interface = card.interface.interface if card.is_network and card.interface is not None else ""
    return card_name(host, card.device.address, interface)


def card_name(host: str, address: str, interface: str) -> str:
    """The name of a card's provider; `interface` is "" for a card without one."""
    return f"{host}_net_{interface}" if interface else f"{host}_pci_{address}"


def _offered_functions(context: CardContext) -> Iterator[tuple[PciDevice, DeviceSpec | None]]:
    """The functions that guests can have, each with the spec that offers it.

    A card and its parts exclude each other. A card with mediated devices offers no functions, and a card that
    a guest has as a whole offers no parts. If specs match both a card and its virtual functions, and their
    classes differ, both are offered, and claims keep them apart (`DescribedProvider.ways`). An IOMMU group is
    for one guest: while a domain has a device of it, the others are not offered. Source:
    https://docs.kernel.org/driver-api/vfio.html#groups-devices-and-iommus
    """
    card, settings = context.card, context.settings
    whole = card.device.address in context.held
    divided = bool(card.mdevs) or bool(mdev_specs_of(card, settings.mdevs))
    parts: set[str] = set()
    left_out = _beyond_max_instances(context)
    for function in (*card.vfs, card.device):
        if function.address in left_out:
            continue
        is_card = function is card.device
        in_use = function.address in context.held
        vgpu_type = context.facts.vgpu_types.get(function.address)
        spec = next((spec for spec in settings.specs if spec.matches(function, card)), None)
        if spec is not None and spec.remote_managed:
            continue
        resource_class = _resource_class(context, function, spec)
        if not in_use:
            if whole or divided or vgpu_type == NO_TYPE or (is_card and resource_class in parts):
                continue
            if not context.held.isdisjoint(function.iommu_devices):
                continue
            if _vgpu_spec(context, function) is None and (
                spec is None or (is_card and _is_for_virtual_functions(card, spec))
            ):
                continue
        parts.add(resource_class)
        yield function, spec


def has_remote_managed_ports(facts: DeviceFacts, settings: DeviceSettings) -> bool:
    """Whether a virtual function is for ports that a network service manages on the card itself."""
    return any(
        spec.remote_managed and spec.matches(function, card)
        for card in facts.cards
        for function in card.vfs
        for spec in settings.specs
    )


def _beyond_max_instances(context: CardContext) -> frozenset[str]:
    """The virtual functions of a type beyond its max_instances; those in use count first."""
    beyond: set[str] = set()
    counts: dict[str, int] = {}
    held = context.held
    for vf in sorted(context.card.vfs, key=lambda vf: (vf.address not in held, vf.address)):
        spec = _vgpu_spec(context, vf)
        if spec is None or spec.max_instances is None:
            continue
        counts[spec.type_id] = counts.get(spec.type_id, 0) + 1
        if counts[spec.type_id] > spec.max_instances and vf.address not in held:
            beyond.add(vf.address)
    return frozenset(beyond)


def _vgpu_spec(context: CardContext, function: PciDevice) -> MdevSpec | None:
    vgpu_type = context.facts.vgpu_types.get(function.address, NO_TYPE)
    if vgpu_type == NO_TYPE:
        return None
    return vgpu_spec_of(context.card, function, vgpu_type, context.settings.mdevs)


def _is_for_virtual_functions(card: Card, spec: DeviceSpec) -> bool:
    """A spec with a physical network offers a card's virtual functions, even while it has none."""
    return spec.physical_network is not None and card.device.vfs_max is not None


def _resource_class(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> str:
    vgpu = _vgpu_spec(context, function)
    if vgpu is not None:
        return vgpu.resource_class
    if spec is not None and spec.resource_class is not None:
        return spec.resource_class
    if function.address in context.facts.vgpu_types:
        return "VGPU"  # in use, though its type is not enabled
    if function.address in context.card.vdpa:
        return VDPA_CLASS
    if context.card.is_network and function.physical_function is not None:
        return "SRIOV_NET_VF"
    return pci_class(function.vendor_id, function.product_id)


def mdev_class(card: Card, settings: DeviceSettings, type_id: str = "") -> str:
    """The resource class of a mediated device of the type on the card."""
    return class_of(mdev_specs_of(card, settings.mdevs), type_id)


def _bandwidth(card: Card, settings: DeviceSettings) -> dict[str, int]:
    interface = card.interface.interface if card.interface is not None else ""
    egress, ingress = settings.bandwidth.get(interface, (0, 0))
    return {"NET_BW_EGR_KILOBIT_PER_SEC": egress, "NET_BW_IGR_KILOBIT_PER_SEC": ingress}
