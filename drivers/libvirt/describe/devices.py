"""Describe cards as providers, as the operator configured them: functions, vDPA, mediated devices. Pure.

A unit that a domain names stays in the inventory even if the configuration no longer offers it.

Source: https://docs.kernel.org/driver-api/vfio-mediated-device.html, https://libvirt.org/formatnode.html and
nova 34, nova/virt/libvirt/host.py (`_get_device_type`)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from uuid import UUID, uuid5
from xml.etree.ElementTree import Element

from agent import device_names
from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    DeviceKind,
    GivenDevice,
    Guest,
    NeededDevice,
    UsedUnit,
)
from agent.errors import DriverDataError
from agent.providers.divided_cards import MixedSizes
from drivers.host.domain_writer import DomainDocument, add_child, child
from drivers.host.domain_xml import ALIAS_PREFIX, Domain, alias_of
from drivers.host.sysfs import MemoryCell
from drivers.libvirt.describe.bandwidth import BANDWIDTH, InventoryDefaults
from drivers.libvirt.describe.cards import (
    NO_TYPE,
    Card,
    DeviceSpec,
    MdevSpec,
    UnitRecord,
    check_remote_managed,
    mdev_room,
    mdev_specs_of,
    mdev_total,
    parents_for,
    vgpu_spec_of,
)
from drivers.libvirt.describe.memory import contexts
from drivers.libvirt.xml import DomainCapabilities, MediatedDevice, PciDevice, Version


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The devices that the operator offers. `bandwidth` {interface: (egress, ingress) in kbit/s}.

    `mixed` {card's address: how it is divided} are cards in mixed-size mode, and cards whose functions have
    amounts of VRAM. `peers`, one of PEERS, is what cards have a common provider for; None: for nothing.
    """

    specs: tuple[DeviceSpec, ...] = ()
    mdevs: tuple[MdevSpec, ...] = ()
    bandwidth: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bandwidth_defaults: InventoryDefaults = field(default_factory=InventoryDefaults)
    mixed: Mapping[str, MixedSizes] = field(default_factory=dict)
    peers: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """All that was read of the devices.

    `mdev_limits` {card's address: {mediated type: how many the card can have}} as the card's driver reports;
    `mdev_counts` {card's address: how many mediated devices the kernel has on it} where sysfs has them;
    `vgpu_types` {virtual function's address: number of its vGPU type, NO_TYPE for none} of functions under a
    vendor's own VFIO driver, `vgpu_places` {its address: the slot of the card in which its vGPU starts} on
    cards in mixed-size mode, `vgpu_names` {its address: {number: name}} the types that it can have now.
    `memory_cells` {NUMA cell without CPUs: what the kernel tells of it}. `vgpu_gib` {card's address: {number
    of a vGPU type: GiB of its frame buffer}} is remembered, because the names are not always there. `groups`
    {GPU: first one of its group} and `cc_modes` {GPU: its mode} as of `RootSight`.
    `bridges` {card's address: what is above it, from its root complex down; see `Sysfs.bridges`}.
    `migration_drivers` {function's address: driver of VFIO that can migrate it, or "", as of
    `Sysfs.migration_driver`}; `rebound` {function's address: driver of VFIO that libvirt binds instead when a
    guest starts, or "", as of `Sysfs.replacement`}; to those in `plain` it binds the plain one. `vgpu_branch`
    is that of the host's vGPU driver, such as "550". `ports` {virtual function's address: the MAC address and
    VLAN that its card has for it}, see `agent.device_names.PORT`; `vram` {its address: what `Sysfs.vram` says
    of it}. `withheld` are traits that no card has here, see `usable`.
    """

    cards: tuple[Card, ...] = ()
    mdev_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    vgpu_types: Mapping[str, str] = field(default_factory=dict)
    mdev_counts: Mapping[str, int] = field(default_factory=dict)
    memory_cells: Mapping[int, MemoryCell] = field(default_factory=dict)
    bridges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vgpu_places: Mapping[str, int] = field(default_factory=dict)
    vgpu_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    vgpu_gib: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    migration_drivers: Mapping[str, str] = field(default_factory=dict)
    rebound: Mapping[str, str] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    vgpu_branch: str = ""
    ports: Mapping[str, str] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()
    vram: Mapping[str, tuple[int | None, bool]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    cc_modes: Mapping[str, str] = field(default_factory=dict)

    def near_cell(self, cell: int | None) -> int | None:
        """The cell whose guests are nearest to a card of this cell: it has CPUs, if any is known to."""
        known = None if cell is None else self.memory_cells.get(cell)
        return cell if known is None or known.near is None else known.near

    def with_facts(self, unit: UsedUnit) -> UsedUnit:
        """The unit that a guest uses, with what the host's kernel says of it, see `UsedUnit`."""
        port = self.ports.get(unit.unit)
        return unit if port is None else replace(unit, port=port)


@dataclass(frozen=True, slots=True)
class GuestDomain:
    """A guest and the domain from which it was read; `domain` is None if its XML could never be read."""

    guest: Guest
    domain: Domain | None


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


# Mediated devices
#
# A device that can be created has its uuid already, the same one in every description. So a claim says which
# uuid to create, of which type, on which parent, and once created the device is the claimed unit.

_NAMESPACE = UUID("5f0c2a53-6d0e-4c35-9a0e-0d9cf1a3d0c9")
NOT_CONFIGURED = "VGPU"
"""The resource class of existing devices whose type is not, or no longer, enabled."""


def class_of(specs: Sequence[MdevSpec], type_id: str) -> str:
    """The resource class of a mediated device of that type, on a card with these specs."""
    for spec in specs:
        if spec.type_id == type_id:
            return spec.resource_class
    return specs[0].resource_class if specs else NOT_CONFIGURED


@dataclass(frozen=True, slots=True)
class _TypeUnits:
    """The devices of one type: its inventory, existing units, and how many more can be created."""

    inventory: DescribedInventory
    existing: tuple[str, ...]
    creatable: int


@dataclass(frozen=True, slots=True)
class MdevCard:
    """A card that has mediated devices.

    `specs` are the enabled types for it. `limits` {type: how many it can have} and `existing` (how many the
    kernel has) are those of `mdev_total`. `missing` are records of devices that domains name and that do not
    exist now; `held` are all units that domains name.
    """

    card: Card
    host: str
    specs: tuple[MdevSpec, ...]
    limits: Mapping[str, int]
    existing: int | None
    missing: tuple[UnitRecord, ...]
    held: frozenset[str]

    @property
    def active(self) -> list[MediatedDevice]:
        """The devices that exist; others are only defined."""
        return [mdev for mdev in self.card.mdevs if mdev.active]

    def added_to(self, provider: DescribedProvider) -> DescribedProvider:
        """The card's provider, with what the card has of mediated devices."""
        if not self.specs:  # no type is enabled for the card: what exists or is missing stays
            uuids: dict[str, tuple[str, ...]] = {}
            if self.active:
                uuids[NOT_CONFIGURED] = tuple(mdev.uuid for mdev in self.active)
            for record in self.missing:
                uuids[record.resource_class] = (*uuids.get(record.resource_class, ()), record.unit)
            inventories = {name: _inventory(len(each)) for name, each in uuids.items()}
            return replace(
                provider,
                inventories={**provider.inventories, **inventories},
                units={**provider.units, **uuids},
            )
        units_by_spec: dict[MdevSpec, _TypeUnits] = {}
        for spec in self.specs:
            # Devices of the type, and held devices whose type is not enabled, by their class.
            own = tuple(
                mdev.uuid
                for mdev in self.active
                if mdev.type_id == spec.type_id
                or (mdev.uuid in self.held and class_of(self.specs, mdev.type_id) == spec.resource_class)
            )
            limit, most = self.limits.get(spec.type_id), spec.max_instances
            if len(self.specs) == 1:
                # Devices of other types take room on the card too: they count, and are reserved.
                total = mdev_total(self.card, spec.type_id, limit, most, self.existing, spec.addresses)
                total = max(total, len(self.active) + len(self.missing))
                reserved = len(self.active) - len(own)
                taken = max(len(self.active), self.existing or 0) + len(self.missing)
            else:
                # One of several types, each with its own class, that share the card or exclude each other.
                taken = len(own) + sum(each.resource_class == spec.resource_class for each in self.missing)
                possible = len(own) + mdev_room(self.card, spec.type_id, limit, self.existing, spec.addresses)
                total = possible if limit is None else limit
                total = max(total if most is None else min(total, most), taken)
                reserved = max(0, total - max(possible, taken))
            units_by_spec[spec] = _TypeUnits(_inventory(total, reserved), own, total - taken)
        return self._with_types(provider, units_by_spec)

    def _with_types(
        self, provider: DescribedProvider, units_by_spec: Mapping[MdevSpec, _TypeUnits]
    ) -> DescribedProvider:
        inventories, units, to_make = dict(provider.inventories), dict(provider.units), {}
        for spec, type_units in units_by_spec.items():
            if not type_units.inventory.total:
                continue
            name = spec.resource_class
            chosen = zip(range(max(0, type_units.creatable)), self._creatable(spec), strict=False)
            makings = {uuid: {"parent": parent, "type": spec.type_id} for _, (uuid, parent) in chosen}
            missing = tuple(
                record.unit
                for record in self.missing
                if record.resource_class == name or len(units_by_spec) == 1
            )
            inventories[name] = type_units.inventory
            units[name] = (*type_units.existing, *missing, *makings)
            if makings:
                to_make[name] = makings
        # Types of which the card can have the same number share it; others exclude each other.
        ways: dict[object, set[str]] = {}
        for spec in units_by_spec if len(units_by_spec) > 1 else ():
            ways.setdefault(self.limits.get(spec.type_id, spec.type_id), set()).add(spec.resource_class)
        return replace(
            provider,
            inventories=inventories,
            traits=provider.traits | {device_names.mdev_type_trait(spec.type_id) for spec in units_by_spec},
            units=units,
            ways=(*provider.ways, *map(frozenset, ways.values())),
            to_make=to_make,
        )

    def _creatable(self, spec: MdevSpec) -> Iterator[tuple[str, str]]:
        """(uuid, parent's address) of each device that can be created; a virtual function can have one."""
        used_parents = {mdev.parent for mdev in self.active}
        missing_parents = {record.parent for record in self.missing}
        taken_uuids = {mdev.uuid for mdev in self.active} | {record.unit for record in self.missing}
        for parent in parents_for(self.card, spec.type_id, spec.addresses):
            if parent.physical_function is None:
                count = self.limits.get(spec.type_id, parent.mdev_types[spec.type_id].available) + len(
                    taken_uuids
                )
            else:
                count = int(parent.name not in used_parents and parent.address not in missing_parents)
            for number in range(count):
                uuid = _uuid(self.host, parent.address, number)
                if uuid not in taken_uuids:
                    yield uuid, parent.address


@cache
def _uuid(host: str, parent: str, number: int) -> str:
    return str(uuid5(_NAMESPACE, f"{host}/{parent}/{number}"))


def _inventory(total: int, reserved: int = 0) -> DescribedInventory:
    return DescribedInventory(total, reserved, allocation_ratio=1.0)


# The provider of a card


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
        interface = card.interface.interface if card.interface is not None else ""
        amounts_by_class = zip(BANDWIDTH, context.settings.bandwidth.get(interface, (0, 0)), strict=True)
        inventories |= {name: defaults.inventory(total) for name, total in amounts_by_class if total}
    # A guest can have the whole card, or guests can have its virtual functions, but not both.
    whole = {_resource_class(context, each, spec) for each, spec in offered if each is card.device}
    parts = {_resource_class(context, each, spec) for each, spec in offered if each is not card.device}
    provider = DescribedProvider(
        name=provider_name(card, name),
        parent=parent,
        inventories=inventories,
        traits=_traits(context, offered),
        device=card.key,
        units=units,
        cell=context.facts.near_cell(card.numa),
        ways=(frozenset(whole), frozenset(parts)) if whole and parts else (),
        unit_drivers=_unit_drivers(context, offered),
    )
    if card.device.address in context.held:
        return provider
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
        name,
        specs,
        facts.mdev_limits.get(card.device.address, {}),
        facts.mdev_counts.get(card.device.address),
        tuple(record for record in context.missing if record.type_id),
        context.held,
    ).added_to(provider)


LINKS = "gpu_link"
PEERS = {
    "switch": "CUSTOM_PCIE_SWITCH",
    "root_complex": "CUSTOM_PCIE_ROOT_COMPLEX",
    LINKS: "CUSTOM_GPU_LINK",
}
"""{value of [devices] report_pcie: trait of the providers that it adds}"""


def with_peers(
    cards: Sequence[DescribedProvider], facts: DeviceFacts, kind: str | None, host: str
) -> tuple[DescribedProvider, ...]:
    """The cards, below a provider for each PCIe switch, root complex or group of GPUs, which come first.

    A switch is known by the root port above it; those below one another are one. A device that is on a root
    port itself is behind no switch. A group of GPUs that are on several cells is one on each of these.
    """
    above: dict[str, DescribedProvider] = {}
    placed = list(cards)
    for number, card in enumerate(cards if kind is not None else ()):
        address = card.device.removeprefix("pci:")
        root, *ports = facts.bridges.get(address) or ("",)
        key = root if kind == "root_complex" else ports[0] if len(ports) > 1 else ""
        name, cell = f"{host}_pcie_{key}", card.cell
        if kind == LINKS:
            key = facts.groups.get(address, "")
            name, cell = f"{card.parent}_link_{key}", None
        if key:
            provider = DescribedProvider(
                name=name,
                parent=card.parent,
                traits=frozenset({PEERS[str(kind)]}),
                device=f"{kind}:{name}" if kind == LINKS else f"{kind}:pcie:{key}",
                cell=cell,
            )
            # A card that the firmware puts on another cell than the first one stays there.
            if above.setdefault(name, provider) == provider:
                placed[number] = replace(card, parent=provider.name)
    return (*above.values(), *placed)


def unknown_groups(facts: DeviceFacts, kind: str | None, problem: str) -> Iterator[str]:
    """A sentence where cards are to be below the groups of GPUs, and none is known or `problem` says why."""
    if kind == LINKS and (problem or not any(card.device.address in facts.groups for card in facts.cards)):
        yield (
            f"[devices] report_pcie = {LINKS}: {problem or 'no group of GPUs is known'}. `plimsoll devices "
            "apply` asks amdgpu, GIM or nvidia-smi, while GPUs have that driver and not VFIO's; a trait in "
            "[pci] device_spec names a group as well."
        )


OfferedFunctions = Sequence[tuple[PciDevice, DeviceSpec | None]]
"""Functions that guests can have, each with the spec that offers it, None if it is only in use."""


def _traits(context: CardContext, offered: OfferedFunctions) -> frozenset[str]:
    """The traits of the specs, and those of the functions' vendor, model and type."""
    traits: set[str] = set()
    for function, spec in offered:
        traits |= {
            device_names.vendor_trait(function.vendor_id),
            device_names.product_trait(function.product_id),
        }
        kind = "type-PCI" if function.vfs_max is None else "type-PF"
        kind = kind if function.physical_function is None else "type-VF"
        traits.add(
            device_names.VDPA_TRAIT if function.address in context.card.vdpa else device_names.TYPES[kind]
        )
        vgpu = _vgpu_spec(context, function)
        if vgpu is not None and not vgpu.is_vram:
            traits.add(device_names.mdev_type_trait(vgpu.type_id))
        if spec is not None:
            traits |= spec.traits | device_names.physical_network_trait(spec.physical_network)
    traits |= migration_traits(context, offered)
    device = context.card.device
    if mdev_specs_of(context.card, context.settings.mdevs) and device.address not in context.held:
        traits |= {device_names.vendor_trait(device.vendor_id), device_names.product_trait(device.product_id)}
    real = context.facts.cc_modes.get(device.address)
    return device_names.with_real_mode(traits, real) - context.facts.withheld


def migration_traits(
    context: CardContext, offered: OfferedFunctions, *, has_vgpus: bool = False
) -> frozenset[str]:
    """Whether the functions can be migrated live, where a driver says so of all of them; and which driver.

    Also where none can take over a guest's state, since the driver of all that are free migrates none.
    `has_vgpus`: the card is divided into vGPUs, also while it has none.
    """
    traits: set[str] = set()
    given = [(each, spec) for each, spec in offered if each.address not in context.card.vdpa]
    drivers = {_migration_driver(context, each, spec) for each, spec in given}
    if drivers.isdisjoint({None, ""}) and all(
        spec is None or spec.live_migratable is not False for _, spec in given
    ):
        traits |= {device_names.LIVE_MIGRATABLE} if drivers else set()
        traits |= {device_names.driver_trait(driver) for driver in drivers if driver}
    known, plain = _unit_drivers(context, offered), device_names.PLAIN_VFIO_TRAIT
    addresses = frozenset(each.address for each, _ in given)
    if {known.get(address) for address in addresses - context.held} == {plain}:
        traits.add(plain)
    in_use = {known.get(address, "") for address in addresses & context.held}
    if (
        (len(drivers) > 1 or device_names.LIVE_MIGRATABLE not in traits)
        and in_use - {plain}
        and "" not in in_use
    ):
        prefixes = device_names.MIGRATION_DRIVER_PREFIX, device_names.DRIVER_IN_USE_PREFIX
        traits |= {driver.replace(*prefixes) for driver in in_use}
    has_vgpus |= bool(mdev_specs_of(context.card, context.settings.mdevs))
    has_vgpus |= any(_vgpu_spec(context, function) for function, _ in offered)
    if has_vgpus and context.facts.vgpu_branch and context.card.device.vendor_id == "10de":
        traits.add(f"{device_names.VGPU_DRIVER_PREFIX}{context.facts.vgpu_branch}")
    return frozenset(traits)


def _migration_driver(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> str | None:
    """The driver of VFIO that can migrate the function when a guest has it; "" for none, None if unknown."""
    driver = context.facts.migration_drivers.get(function.address)
    if _becomes_plain(context, function, spec):
        return ""
    by = _replaced_by(context, function, spec)
    if by is not None:
        return by or None
    is_bound = driver == function.driver
    return driver if spec is None or spec.managed or is_bound or not driver else None


def _unit_drivers(context: CardContext, offered: OfferedFunctions) -> Mapping[str, str]:
    """{virtual function: trait of the driver of VFIO under which a guest has or gets it}, where it is known.

    One under a driver that takes over no state has the trait of the plain one.
    """
    drivers = {}
    for function, spec in offered:
        address = function.address
        if function.physical_function is None or address in context.card.vdpa:
            continue
        driver = _migration_driver(context, function, spec)
        if _is_stateless(context, function, spec):
            drivers[address] = device_names.PLAIN_VFIO_TRAIT
        elif driver:
            drivers[address] = device_names.driver_trait(driver)
    return drivers


def _is_stateless(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> bool:
    """Whether the driver of VFIO that a guest has for this function takes over no state; False: not known."""
    facts, address = context.facts, function.address
    if spec is not None and spec.live_migratable is not None:
        return not spec.live_migratable
    if _becomes_plain(context, function, spec):
        return True
    unknown = "" if function.driver == device_names.PLAIN_VFIO else None
    known = facts.migration_drivers.get(address, unknown)
    return known == "" and _replaced_by(context, function, spec) is None


def _replaced_by(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> str | None:
    """The driver of VFIO by which libvirt replaces the bound one; "" if it may not migrate, None for none."""
    by = context.facts.rebound.get(function.address)
    if by is None or (spec is not None and not spec.managed):
        return None
    if function.driver == device_names.PLAIN_VFIO:
        return ""  # a domain with managed='no' starts with it as well
    return None if function.address in context.held else by


def _becomes_plain(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> bool:
    """Whether libvirt binds VFIO's plain driver to the function, which is free, when a guest gets it."""
    facts, address = context.facts, function.address
    if spec is None or not spec.managed or address in context.held or address not in facts.plain:
        return False
    # One under a vendor's own driver of VFIO has a vGPU, and is not managed even if the spec says so.
    of_vendor = address in facts.vgpu_types or address in facts.migration_drivers
    return device_names.is_vfio(function.driver) or not of_vendor


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
    # The virtual functions of a type beyond its max_instances; those in use count first.
    left_out: set[str] = set()
    counts: dict[str, int] = {}
    for vf in sorted(card.vfs, key=lambda vf: (vf.address not in context.held, vf.address)):
        vgpu = _vgpu_spec(context, vf)
        if vgpu is None or vgpu.max_instances is None:
            continue
        counts[vgpu.type_id] = counts.get(vgpu.type_id, 0) + 1
        if counts[vgpu.type_id] > vgpu.max_instances and vf.address not in context.held:
            left_out.add(vf.address)
    for function in (*card.vfs, card.device):
        if function.address in left_out:
            continue
        is_card = function is card.device
        in_use = function.address in context.held
        vgpu_type = context.facts.vgpu_types.get(function.address)
        spec = spec_of(settings, function, card)
        if spec is not None and spec.remote_managed:
            continue
        resource_class = _resource_class(context, function, spec)
        if not in_use:
            if whole or divided or vgpu_type == NO_TYPE or (is_card and resource_class in parts):
                continue
            if not context.held.isdisjoint(function.iommu_devices):
                continue
            # A spec with a physical network offers a card's virtual functions, even while it has none.
            for_vfs = spec is not None and spec.physical_network is not None and function.vfs_max is not None
            if _vgpu_spec(context, function) is None and (spec is None or (is_card and for_vfs)):
                continue
        parts.add(resource_class)
        yield function, spec


def spec_of(settings: DeviceSettings, function: PciDevice, card: Card) -> DeviceSpec | None:
    """The first spec that offers the function of the card."""
    return next((spec for spec in settings.specs if spec.matches(function, card)), None)


def _vgpu_spec(context: CardContext, function: PciDevice) -> MdevSpec | None:
    vgpu_type = context.facts.vgpu_types.get(function.address, NO_TYPE)
    if vgpu_type == NO_TYPE:
        return None
    return vgpu_spec_of(context.card, function, vgpu_type, context.settings.mdevs)


def _resource_class(context: CardContext, function: PciDevice, spec: DeviceSpec | None) -> str:
    vgpu = _vgpu_spec(context, function)
    if vgpu is not None:
        return vgpu.resource_class
    if spec is not None and spec.resource_class is not None:
        return spec.resource_class
    if function.address in context.facts.vgpu_types:
        return "VGPU"  # in use, though its type is not enabled
    if function.address in context.card.vdpa:
        return device_names.VDPA_CLASS
    if context.card.is_network and function.physical_function is not None:
        return "SRIOV_NET_VF"
    return device_names.pci_class(function.vendor_id, function.product_id)


def mdev_class(card: Card, settings: DeviceSettings, type_id: str = "") -> str:
    """The resource class of a mediated device of the type on the card."""
    return class_of(mdev_specs_of(card, settings.mdevs), type_id)


# What this host's libvirt and QEMU can do with devices

_BINDS_VARIANTS = (10, 0, 0)
"""From this version on libvirt binds the driver of VFIO that fits best, before it the plain one."""


def no_confidential_devices(guests: DomainCapabilities | None) -> str:
    """Why this host cannot give a device to a guest with SEV-SNP or TDX, as a clause; "" if it may.

    Before 10.1, QEMU's guest_memfd, which these guests need (SEV-SNP since 9.1, TDX since 10.1), excludes
    VFIO. A QEMU that has SEV-SNP before 9.1 is a distributor's, and may have both.

    Source: commits 852f0048f3ea (9.1) and 2fde3fb91607 (10.1) of QEMU.
    """
    kinds = {"sev-snp", "tdx"} & guests.features if guests is not None else ()
    if guests is None or not kinds:
        return "libvirt offers neither SEV-SNP nor TDX here"
    if contexts(guests).keys().isdisjoint(kinds):
        return f"this host has no key of {' or '.join(sorted(kinds))} for a guest, as far as libvirt tells"
    if "tdx" not in kinds and (9, 1, 0) <= guests.qemu < (10, 1, 0):
        version = ".".join(map(str, guests.qemu))
        return f"QEMU {version} gives no device to a guest with SEV-SNP, which 10.1 does"
    return ""


def usable(facts: DeviceFacts, guests: DomainCapabilities | None, libvirt: Version) -> DeviceFacts:
    """The facts without what cannot be done here: a live migration, or a confidential mode."""
    if (0, 0, 0) < libvirt < _BINDS_VARIANTS:
        drivers = {each.address: each.driver for card in facts.cards for each in (card.device, *card.vfs)}
        bound = facts.migration_drivers.items() & drivers.items()
        refused = {address: "" for address, driver in facts.migration_drivers.items() if not driver}
        plain = frozenset(drivers)
        facts = replace(facts, migration_drivers=dict(bound) | refused, rebound={}, plain=plain)
    if no_confidential_devices(guests):
        facts = replace(facts, withheld=frozenset({device_names.CC_ON, device_names.CC_DEVTOOLS}))
    return facts


def unusable_modes(cards: Iterable[DescribedProvider], guests: DomainCapabilities | None) -> Iterator[str]:
    """A sentence for the cards that no guest can have because of their confidential mode."""
    why, names = no_confidential_devices(guests), []
    for card in cards:
        wrong = device_names.wrong_mode(card.traits)
        if wrong:
            yield (
                f"No guest gets {card.name}: it {wrong}. Change the mode or cc_mode; as root, `plimsoll "
                "devices apply` reads the mode."
            )
        elif device_names.CC in card.traits:
            names.append(card.name)
    if names and why:
        listed = ", ".join(names)
        yield f"[pci] device_spec states a cc_mode for which no guest can have {listed}: {why}."


# Functions over vDPA
#
# A guest gets such a function as /dev/vhost-vdpa-N, and not as a PCI device. nova tells it apart by its type
# of device. Placement has classes only, so these functions have a class of their own unless [pci] device_spec
# gives one; their units are PCI addresses, as in nova.


def vdpa_functions(cards: Iterable[Card]) -> Mapping[str, str]:
    """{/dev/vhost-vdpa-N: PCI address of the function}"""
    return {path: address for card in cards for address, path in card.vdpa.items()}


def with_functions(domain: Domain, functions: Mapping[str, str]) -> Domain:
    """The domain with the functions of its vDPA devices among its interfaces."""
    used = tuple(functions[path] for path in domain.vdpa if path in functions)
    return replace(domain, interfaces=(*domain.interfaces, *used)) if used else domain


def with_vdpa(guest_domains: Sequence[GuestDomain], cards: Iterable[Card]) -> Sequence[GuestDomain]:
    """The guests with the functions of their vDPA devices as units, not located yet."""
    if not any(pair.domain is not None and pair.domain.vdpa for pair in guest_domains):
        return guest_domains
    functions = vdpa_functions(cards)
    with_units = []
    for pair in guest_domains:
        addresses = [functions[path] for path in pair.domain.vdpa if path in functions] if pair.domain else []
        if pair.domain is None or not addresses:
            with_units.append(pair)
            continue
        units = (UsedUnit(device_names.VDPA_CLASS, address, f"pci:{address}") for address in addresses)
        guest = replace(pair.guest, units=(*pair.guest.units, *units))
        with_units.append(GuestDomain(guest, with_functions(pair.domain, functions)))
    return with_units


def needed_vdpa(root: Element, functions: Mapping[str, str]) -> Iterator[NeededDevice]:
    """The functions that a domain asks for; one whose device the host does not have keeps its path."""
    for interface in root.findall("devices/interface[@type='vdpa']"):
        source, name = interface.find("source"), alias_of(interface)
        path = "" if source is None else source.get("dev", "").strip()
        text = f"<interface type='vdpa'{f' {ALIAS_PREFIX}{name}' if name else ''}>"
        yield NeededDevice(DeviceKind.VDPA, name, functions.get(path, path), text)


def write_vdpa(text: str, devices: Iterable[GivenDevice], functions: Mapping[str, str]) -> str:
    """The domain's XML with an interface for each of these devices that it does not have yet.

    An interface without a device gets one. `functions` as of `vdpa_functions`.
    Raises DriverDataError for malformed XML.
    """
    paths = {address: path for path, address in functions.items()}
    document = DomainDocument(text)
    found = document.root.findall("devices/interface[@type='vdpa']/source")
    present = {source.get("dev") for source in found}
    missing = [paths[device.unit] for device in devices if paths.get(device.unit, "") not in {"", *present}]
    if not missing:
        return text
    interfaces = document.root.findall("devices/interface[@type='vdpa']")
    open_ones = iter([each for each in interfaces if each.find("source[@dev]") is None])
    for path in missing:
        interface = next(open_ones, None)
        if interface is None:
            devices_element = child(document.root, "devices")
            interface = add_child(devices_element, "interface", {"type": "vdpa"}, after=("interface",))
            add_child(interface, "model", {"type": "virtio"})
        child(interface, "source").set("dev", path)
    return document.text
