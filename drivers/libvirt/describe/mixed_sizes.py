"""Cards that are divided into vGPUs of several sizes at once, each in certain places only. Pure.

A card whose virtual functions have quotas of VRAM that can be changed (Intel's xe) is divided in the same
way: its types are amounts of VRAM, in MiB, all in place 0, and what bounds them is their sum. Where the
driver gives each function the same VRAM (AMD's GIM, older xe), the operator names that one size, and the
functions are as any others.

Such a card has virtual functions under a vendor's own VFIO driver. A vGPU is a function, its type, and the
slot of the card in which it starts (`placement_id` in sysfs). All three are in the name of the unit, so a
guest whose vGPU is of another type or in another place than its claim says uses another unit. A domain names
the function alone; so the functions of domains become units here, and units become functions in the XML that
is written.

The types of functions without a guest follow the claims: `plimsoll devices apply` takes a type away that no
claim and no domain needs. So a vGPU that exists and that no consumer has takes no room.

Source: https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/ (mixed-size mode), and the tables of
`agent.providers.divided_cards`
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent import device_names
from agent.driver import (
    CardLayout,
    CardShape,
    DescribedInventory,
    DescribedProvider,
    GivenResources,
    Guest,
    NeededDevice,
)
from agent.errors import first_few
from agent.providers.divided_cards import VFS, VRAM, CardModel, MixedSizes, Shape
from drivers.host.domain_writer import DomainDocument
from drivers.host.domain_xml import Domain
from drivers.host.xml_parser import pci_address
from drivers.libvirt.describe.cards import NO_TYPE, Card, DeviceHistory, MdevSpec, UnitRecord, vgpu_spec_of
from drivers.libvirt.describe.devices import (
    CardContext,
    DeviceFacts,
    DeviceSettings,
    GuestDomain,
    ParentOf,
    migration_traits,
    provider_name,
)

SHOWN_MAX = 3

Units = Mapping[str, str]
"""{PCI address of a function: its unit}; empty for a function that is no vGPU now"""


def is_mixed(card: Card, facts: DeviceFacts, settings: DeviceSettings) -> bool:
    """Whether the card is in mixed-size mode: the operator says so, and what exists does not contradict.

    A vGPU without a place shows that the card is not in that mode, although the operator declared it.
    """
    return (
        card.device.address in settings.mixed
        and not card.mdev_parents
        and not any(
            facts.vgpu_types.get(vf.address, NO_TYPE) != NO_TYPE and vf.address not in facts.vgpu_places
            for vf in card.vfs
        )
    )


def contradictions(facts: DeviceFacts, settings: DeviceSettings) -> Iterator[str]:
    """A sentence for each card whose functions are not as [devices] mixed_size_cards or vram_cards say."""
    cards = {card.device.address: card for card in facts.cards}
    for address, table in sorted(settings.mixed.items()):
        card = cards.get(address)
        option = "vram_cards" if table.vram else "mixed_size_cards"
        if card is None:
            yield f"[devices] {option} names {address}, which this host does not have."
        elif table.vram:
            there = {vf.address: int(facts.vgpu_types.get(vf.address, NO_TYPE)) for vf in card.vfs}
            if card.vfs and not there.keys() & facts.vgpu_types.keys():
                yield (
                    f"[devices] vram_cards names {address}, whose driver does not tell the VRAM of its "
                    "functions: name the one size that it gives to each of them."
                )
            unread = [vf.address for vf in card.vfs if facts.vram.get(vf.address, (0, True))[0] is None]
            if unread:
                yield (
                    f"{first_few(unread, SHOWN_MAX)}: the quota of VRAM is no number of bytes, and is taken "
                    "for 0; `plimsoll devices apply` writes it once a claim has the function."
                )
            others = [f"{each} ({mib} MiB)" for each, mib in there.items() if mib and mib not in table.starts]
            if others:
                yield (
                    f"{first_few(others, SHOWN_MAX)}: none of the amounts of VRAM that [devices] vram_cards "
                    f"names for {address}; `plimsoll devices plan` says what is done about it."
                )
            if sum(there.values()) > table.vram:
                yield (
                    f"[devices] vram_cards: the functions of {address} have {sum(there.values())} MiB of "
                    f"VRAM, more than the {table.vram} MiB that the option says."
                )
        elif not is_mixed(card, facts, settings):
            yield (
                f"[devices] mixed_size_cards names {address}, but a vGPU there has no place on the card, or "
                "its functions have mediated devices: the card is not in mixed-size mode, and offers only "
                "what it has."
            )


def vgpu_units(facts: DeviceFacts, settings: DeviceSettings, known: Mapping[str, UnitRecord]) -> Units:
    """The units of all functions of cards in mixed-size mode.

    `known` are the records of units that domains name: after a boot a function has no type until its type
    is written again.
    """
    units: dict[str, str] = {}
    before = {record.parent: unit for unit, record in known.items() if device_names.address_of(unit) != unit}
    for card in facts.cards:
        if is_mixed(card, facts, settings):
            existing = _Existing(card, facts, settings).vgpus
            units |= {vf.address: before.get(vf.address, "") for vf in card.vfs}
            units |= {
                function: vgpu.unit
                for function, vgpu in existing.items()
                if vgpu.gib != 0 or not units[function]
            }
    functions = {vf.address for card in facts.cards for vf in card.vfs}
    gone = {record.card: record.card in settings.mixed for record in known.values()}
    return units | {
        function: unit
        for function, unit in before.items()
        if function not in functions and gone[known[unit].card]
    }


def vgpus_of(card: Card, facts: DeviceFacts, settings: DeviceSettings) -> Mapping[str, tuple[str, str]]:
    """{unit: (function, id of its type)} of the vGPUs that a card in mixed-size mode has."""
    if not is_mixed(card, facts, settings):
        return {}
    vgpus = _Existing(card, facts, settings).vgpus.values()
    return {vgpu.unit: (vgpu.function, vgpu.type_id) for vgpu in vgpus}


def with_vgpus(guest_domains: Sequence[GuestDomain], units: Units) -> Sequence[GuestDomain]:
    """The guests and domains with the units of their functions, not located yet."""
    if not units:
        return guest_domains
    return [
        pair
        if pair.domain is None
        else GuestDomain(with_units(pair.guest, units), domain_with_units(pair.domain, units))
        for pair in guest_domains
    ]


def with_units(guest: Guest, units: Units) -> Guest:
    """The guest with the units of its functions; a function that is no vGPU now is nothing that it uses."""
    if not any(used.unit in units for used in guest.units):
        return guest
    named = (replace(used, unit=units.get(used.unit, used.unit)) for used in guest.units)
    return replace(guest, units=tuple(used for used in named if used.unit))


def domain_with_units(domain: Domain, units: Units) -> Domain:
    """The domain with units in place of its functions."""
    named = (units.get(address, address) for address in domain.pci_devices)
    return replace(domain, pci_devices=tuple(filter(None, named)))


def needs_with_units(devices: Iterable[NeededDevice], units: Units) -> tuple[NeededDevice, ...]:
    """The devices that a domain asks for, with the units of functions that are vGPUs now."""
    return tuple(replace(device, unit=units.get(device.unit) or device.unit) for device in devices)


def given_functions(given: GivenResources) -> GivenResources:
    """What a claim gave, with the functions of its vGPUs: what a domain names."""
    return replace(
        given,
        devices=tuple(replace(device, unit=device_names.address_of(device.unit)) for device in given.devices),
    )


def unmanaged_functions(facts: DeviceFacts, settings: DeviceSettings) -> frozenset[str]:
    """The functions under a vendor's own VFIO driver; those with amounts of VRAM are managed as others."""
    cards = (card for card in facts.cards if _has_vram(card, settings))
    return frozenset(facts.vgpu_types.keys() - {vf.address for card in cards for vf in card.vfs})


def is_fixed(card: Card, function: str, facts: DeviceFacts, settings: DeviceSettings) -> bool:
    """Whether the driver alone decides how much VRAM the function has."""
    return _has_vram(card, settings) and not is_mixed(card, facts, settings) and function in facts.vgpu_types


def _has_vram(card: Card, settings: DeviceSettings) -> bool:
    table = settings.mixed.get(card.device.address)
    return table is not None and table.vram > 0


def write_unmanaged(text: str, functions: Iterable[str]) -> str:
    """The domain's XML with managed='no' for these functions: libvirt must not bind them to vfio-pci.

    Raises DriverDataError for malformed XML.
    """
    functions = frozenset(functions)
    document, changed = DomainDocument(text), False
    for element in document.root.findall("devices/hostdev[@type='pci']"):
        address = element.find("source/address")
        if address is None or not address.get("bus"):
            continue
        if pci_address(address, "hostdev") in functions:  # type: ignore[arg-type]
            changed |= element.get("managed") != "no"
            element.set("managed", "no")
    return document.text if changed else text


# The sizes of types


def record_sizes(history: DeviceHistory, facts: DeviceFacts, settings: DeviceSettings) -> DeviceHistory:
    """The history with the GiB of the vGPU types of cards in mixed-size mode.

    sysfs names a type only while one more of it can be made.
    """
    recorded = dict(history)
    for card in facts.cards:
        if card.device.address in settings.mixed and not _has_vram(card, settings):
            sizes = {**_recorded(card, history), **_seen_sizes(card, facts)}
            if sizes:
                recorded[_key(card)] = tuple(f"{number}={gib}" for number, gib in sorted(sizes.items()))
    return recorded


def restore_sizes(facts: DeviceFacts, history: DeviceHistory, settings: DeviceSettings) -> DeviceFacts:
    """The facts with the sizes that the history has, and with the VRAM of functions as their types."""
    sizes = {card.device.address: _recorded(card, history) for card in facts.cards}
    known = {address: known for address, known in sizes.items() if known}
    return with_vram(replace(facts, vgpu_gib=known), settings)


def with_vram(facts: DeviceFacts, settings: DeviceSettings) -> DeviceFacts:
    """The facts, where the amounts of VRAM of the cards that the operator names are types in place 0.

    Where the driver tells none of a card, each function has the one size that the operator names.
    """
    types, places = dict(facts.vgpu_types), dict(facts.vgpu_places)
    for card in facts.cards:
        table, functions = settings.mixed.get(card.device.address), {vf.address for vf in card.vfs}
        if table is None or not table.vram:
            continue
        told = {address: facts.vram[address] for address in functions & facts.vram.keys()}
        types |= {address: str(mib or 0) for address, (mib, _) in told.items()}
        places |= {address: 0 for address, (mib, can_change) in told.items() if mib and can_change}
        if not told and len(table.starts) == 1:
            types |= dict.fromkeys(functions, str(*table.starts))
    return replace(facts, vgpu_types=types, vgpu_places=places)


def _seen_sizes(card: Card, facts: DeviceFacts) -> dict[str, int]:
    names = {number: name for vf in card.vfs for number, name in facts.vgpu_names.get(vf.address, {}).items()}
    return {number: gib for number, name in names.items() if (gib := device_names.vgpu_gib(name)) is not None}


def _recorded(card: Card, history: DeviceHistory) -> dict[str, int]:
    pairs = (entry.partition("=") for entry in history.get(_key(card), ()))
    return {number: int(gib) for number, _, gib in pairs if gib.isdecimal()}


def _key(card: Card) -> str:
    return f"vgpu:{card.device.address}"


# The provider


def describe_mixed(
    contexts: Iterable[CardContext], name: str, parent_of: ParentOf
) -> tuple[DescribedProvider, ...]:
    """The providers of cards in mixed-size mode that have an inventory, on the host called `name`."""
    described = (MixedCard(context).provider(name, parent_of(context.card.numa)) for context in contexts)
    return tuple(provider for provider in described if provider.inventories)


def offers_sizes(context: CardContext) -> bool:
    """Whether the card is in mixed-size mode, and no guest has it as a whole."""
    card = context.card
    return is_mixed(card, context.facts, context.settings) and card.device.address not in context.held


@dataclass(frozen=True, slots=True)
class _Vgpu:
    """A vGPU that exists: its function, the id of its type, its class (None: not enabled), GiB and place."""

    function: str
    type_id: str
    resource_class: str | None
    gib: int | None
    place: int

    @property
    def unit(self) -> str:
        return device_names.unit_in_place(self.function, self.type_id, self.place)


@dataclass(frozen=True)
class _Existing:
    """The vGPUs of a card, and the sizes of its types."""

    card: Card
    facts: DeviceFacts
    settings: DeviceSettings

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """{number of a type: its GiB, or MiB of VRAM}"""
        table = self.settings.mixed[self.card.device.address]
        if table.vram:
            types = {self.facts.vgpu_types.get(vf.address, NO_TYPE) for vf in self.card.vfs}
            return {number: int(number) for number in types | {str(mib) for mib in table.starts}}
        known = self.facts.vgpu_gib.get(self.card.device.address, {})
        return {**known, **_seen_sizes(self.card, self.facts)}

    @cached_property
    def vgpus(self) -> Mapping[str, _Vgpu]:
        """{function: its vGPU}; a guest can open a function without VRAM, but not one without a vGPU type."""
        vgpus = {}
        is_vram = _has_vram(self.card, self.settings)
        for vf in self.card.vfs:
            number = self.facts.vgpu_types.get(vf.address)
            place = 0 if is_vram else self.facts.vgpu_places.get(vf.address)
            if number is not None and place is not None and (is_vram or number != NO_TYPE):
                spec = vgpu_spec_of(self.card, vf, number, self.settings.mdevs)
                type_id, name = f"{device_names.VRAM_PREFIX}{number}" if is_vram else number, None
                if spec is not None:
                    type_id, name = spec.type_id, spec.resource_class
                vgpus[vf.address] = _Vgpu(vf.address, type_id, name, self.sizes.get(number), place)
        return vgpus


@dataclass(frozen=True)
class MixedCard:
    """A card in mixed-size mode."""

    context: CardContext
    _existing: _Existing = field(init=False)

    def __post_init__(self) -> None:
        context = self.context
        object.__setattr__(self, "_existing", _Existing(context.card, context.facts, context.settings))

    def provider(self, host: str, parent: str) -> DescribedProvider:
        """The card's provider, on the host called `host`."""
        card = self.context.card
        shapes = {spec.resource_class: self._shape(spec) for spec in self._specs()}
        shapes |= dict(self._not_enabled(shapes))
        limits = {
            each.type_id: each.max_instances for each in self._specs() if each.max_instances is not None
        }
        vram = {VRAM: self._table.vram} if self._table.vram else {}
        counters = {VFS: len(self._functions), **vram, **limits}
        layout = CardLayout(self._table.slots, counters, shapes, self._existing.sizes)
        there = {vgpu.unit for vgpu in self._existing.vgpus.values()}
        to_make = {
            spec.resource_class: {
                unit: {"parent": shape.functions[unit], "type": spec.type_id, "placement": str(start)}
                for unit, start in shape.units.items()
                if unit not in there
            }
            for spec, shape in ((spec, shapes[spec.resource_class]) for spec in self._specs())
        }
        # How many the empty card can give of each enabled class, and never fewer than guests have.
        enabled = {spec.resource_class for spec in self._specs()}
        places = {
            name: Shape(name, shape.size, tuple(sorted({*shape.units.values()})), shape.counters)
            for name, shape in shapes.items()
        }
        empty = CardModel(layout.slots, layout.counters, places).divided()
        most = {
            name: max(
                empty.left(name) if name in enabled else 0,
                sum(unit in self.context.held for unit in shape.units),
            )
            for name, shape in shapes.items()
        }
        device, totals = card.device, {name: total for name, total in most.items() if total}
        return DescribedProvider(
            provider_name(card, host),
            parent,
            {each: DescribedInventory(total, allocation_ratio=1.0) for each, total in totals.items()},
            migration_traits(
                self.context,
                [(vf, None) for vf in card.vfs if vf.address in self._functions],
                has_vgpus=True,
            )
            | frozenset(
                {
                    device_names.vendor_trait(device.vendor_id),
                    device_names.product_trait(device.product_id),
                    *(
                        device_names.mdev_type_trait(each.type_id)
                        for each in self._specs()
                        if not each.is_vram
                    ),
                }
            ),
            device=card.key,
            units={each: tuple(shape.units) for each, shape in shapes.items() if each in totals},
            cell=self.context.facts.near_cell(card.numa),
            to_make={each: makings for each, makings in to_make.items() if makings and each in totals},
            card=layout,
        )

    @property
    def _table(self) -> MixedSizes:
        return self.context.settings.mixed[self.context.card.device.address]

    @cached_property
    def _functions(self) -> tuple[str, ...]:
        """The functions that can be vGPUs, with those that are gone and that domains name."""
        there = (vf.address for vf in self.context.card.vfs if vf.address in self.context.facts.vgpu_types)
        return tuple(
            dict.fromkeys((*there, *(record.parent for record in self.context.missing if record.parent)))
        )

    def _specs(self) -> Sequence[MdevSpec]:
        """The types that are enabled for the card, and that it has in this mode."""
        address, starts = self.context.card.device.address, self._table.starts
        is_vram = self._table.vram > 0
        return [
            spec
            for spec in self.context.settings.mdevs
            if (not spec.addresses or address in spec.addresses) and self._gib(spec) in starts
            if spec.is_vram == is_vram
        ]

    def _gib(self, spec: MdevSpec) -> int | None:
        return self._existing.sizes.get(spec.type_id.rpartition("-")[2])

    def _shape(self, spec: MdevSpec) -> CardShape:
        """The type with all of its places on all functions; the vGPUs that exist come first."""
        gib = self._gib(spec) or 0
        units: dict[str, tuple[int, str]] = {
            vgpu.unit: (vgpu.place, vgpu.function)
            for vgpu in self._existing.vgpus.values()
            if vgpu.type_id == spec.type_id
        }
        for record in self.context.missing:
            place = record.unit.rpartition("@")[2]
            if record.type_id == spec.type_id and place.isdecimal():
                units[record.unit] = int(place), record.parent
        for function in self._functions:
            for start in self._table.starts[gib]:
                units.setdefault(device_names.unit_in_place(function, spec.type_id, start), (start, function))
        return self._sized(gib, units, {spec.type_id: 1} if spec.max_instances is not None else {})

    def _not_enabled(self, shapes: Mapping[str, CardShape]) -> Iterator[tuple[str, CardShape]]:
        """(class, shape) of vGPUs that guests have though their type is not, or no longer, enabled.

        One of unknown size takes the whole card, so that nothing is offered that may not fit.
        """
        offered = {unit for shape in shapes.values() for unit in shape.units}
        found: dict[str, dict[str, tuple[int, str]]] = {}
        sizes: dict[str, int] = {}
        for vgpu in self._existing.vgpus.values():
            if vgpu.unit in self.context.held and vgpu.unit not in offered:
                name = f"CUSTOM_VGPU_TYPE_{vgpu.type_id.rpartition('-')[2]}" if "VGPU" in shapes else "VGPU"
                if self._table.vram:
                    name = device_names.vram_class(vgpu.gib or 0)
                found.setdefault(name, {})[vgpu.unit] = vgpu.place, vgpu.function
                sizes[name] = max(sizes.get(name, 0), vgpu.gib or self._table.slots - vgpu.place)
        for name, units in found.items():
            yield name, self._sized(sizes[name], units, {})

    def _sized(
        self, size: int, units: Mapping[str, tuple[int, str]], counters: Mapping[str, int]
    ) -> CardShape:
        """A shape with its {unit: (place, function)}; VRAM is an amount, and takes no room of an axis."""
        vram = {VRAM: size} if self._table.vram else {}
        return CardShape(
            0 if vram else size,
            {unit: start for unit, (start, _) in units.items()},
            {VFS: 1, **vram, **counters},
            functions={unit: function for unit, (_, function) in units.items()},
        )
