"""What the driver remembers: where units and devices were before, and the moves that follow from it. Pure.

A unit that domains name is recorded while it exists. After a reboot of the host virtual functions and
mediated devices come back one by one, and a record tells on which card its unit belongs; the mediated
devices that the reboot removed are created again, with the same uuid and type on the same parent.

The configuration and the host show only the present. So the driver records each device's resource classes,
the names of network interfaces, the slots of cards and the NUMA cells, so that allocations can follow.

A move leads from every place where the host may have reported an inventory before. The driver does not know
what Placement has. So it names, for each inventory, all possible sources: the host's own provider; the
cells, which may have been others; VCPU for PCPU and back; a device's former class, slot and interface. The
agent ignores an instruction whose source has no inventory.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import quoteattr

from agent.device_names import CPULESS_MEMORY, NO_MAC, VDPA_CLASS, address_of
from agent.driver import CarvedUnit, Cell, DescribedProvider, Guest, MoveInstruction
from agent.shapes import Holders
from drivers.host.domain_xml import Domain
from drivers.host.providers import UnitLocation, cell_device, cell_provider_name, described_locations
from drivers.libvirt.describe.cards import (
    FIRST_CPULESS,
    NO_TYPE,
    Card,
    DeviceHistory,
    UnitRecord,
    mdev_specs_of,
    vgpu_spec_of,
)
from drivers.libvirt.describe.devices import (
    DeviceFacts,
    DeviceSettings,
    GuestDomain,
    card_name,
    class_of,
    mdev_class,
)
from drivers.libvirt.describe.memory import cpuless_moves
from drivers.libvirt.describe.mixed_sizes import is_fixed, vgpus_of
from drivers.libvirt.xml import MediatedDevice, NetDevice

# Records of units


def unit_locations(
    providers: Iterable[DescribedProvider],
    facts: DeviceFacts,
    settings: DeviceSettings,
    missing: Iterable[UnitRecord] = (),
) -> Mapping[str, UnitLocation]:
    """{CPU id, PCI address or uuid of a mediated device: location} of all that the providers describe.

    If a uuid is defined on two parents, the location is that of the active device.
    """
    providers = tuple(providers)
    locations = described_locations(providers)
    devices = {provider.device for provider in providers}
    cards = {card.device.address: card for card in facts.cards}
    for record in missing:
        card = cards[record.card]
        if record.type_id and card.key in devices:
            specs = mdev_specs_of(card, settings.mdevs)
            resource_class = class_of(specs, record.type_id) if specs else record.resource_class
            locations[record.unit] = UnitLocation(resource_class, card.key)
    for card in facts.cards:
        if card.key in devices:
            for mdev in sorted(card.mdevs, key=lambda mdev: mdev.active):
                if mdev.active or mdev.uuid not in locations:
                    locations[mdev.uuid] = UnitLocation(mdev_class(card, settings, mdev.type_id), card.key)
    return locations


def missing_records(
    named: frozenset[str], facts: DeviceFacts, settings: DeviceSettings, known: Mapping[str, UnitRecord]
) -> list[UnitRecord]:
    """The records of units that domains name and that do not exist now, in the order of their units.

    Such a unit existed once (`known`), or it is a mediated device that is defined and not started.
    """
    existing = {function.address for card in facts.cards for function in (card.device, *card.vfs)}
    existing |= {mdev.uuid for card in facts.cards for mdev in card.mdevs if mdev.active}
    existing |= {unit for card in facts.cards for unit in vgpus_of(card, facts, settings)}
    addresses = {card.device.address for card in facts.cards}
    records = {
        mdev.uuid: _mdev_record(card, mdev, mdev_class(card, settings, mdev.type_id), boot="")
        for card in facts.cards
        for mdev in card.mdevs
        if not mdev.active
    }
    records |= {unit: record for unit, record in known.items() if record.card in addresses}
    return [records[unit] for unit in sorted(named & records.keys()) if unit not in existing]


def update_records(
    named: frozenset[str],
    facts: DeviceFacts,
    settings: DeviceSettings,
    locations: Mapping[str, UnitLocation],
    known: Mapping[str, UnitRecord],
    boot: str,
    *,
    forget: bool,
) -> Mapping[str, UnitRecord]:
    """The `known` records, with those of the existing units that domains name.

    With `forget` a record whose unit no domain names is dropped; keep them while not every domain could be
    read.
    """
    records = {unit: record for unit, record in known.items() if unit in named or not forget}
    for card in facts.cards:
        for mdev in card.mdevs:
            if mdev.active and mdev.uuid in named:
                location = locations.get(mdev.uuid, UnitLocation("VGPU", card.key))
                records[mdev.uuid] = _mdev_record(card, mdev, location.resource_class, boot)
        for unit, (function, type_id) in vgpus_of(card, facts, settings).items():
            if unit in named and unit in locations:
                records[unit] = UnitRecord(
                    unit, card.device.address, locations[unit].resource_class, function, type_id, boot
                )
        for vf in card.vfs:
            if vf.address in named and vf.address in locations:
                resource_class = locations[vf.address].resource_class
                records[vf.address] = UnitRecord(vf.address, card.device.address, resource_class, boot=boot)
    return records


def _mdev_record(card: Card, mdev: MediatedDevice, resource_class: str, boot: str) -> UnitRecord:
    parents = {function.name: function.address for function in (card.device, *card.vfs)}
    return UnitRecord(
        mdev.uuid, card.device.address, resource_class, parents[mdev.parent], mdev.type_id, boot
    )


@dataclass(frozen=True, slots=True)
class LostMdev:
    """A mediated device to create on `parent`, the name of a node device.

    `defined_name` is the name of its own node device, if libvirt has its definition.
    """

    record: UnitRecord
    parent: str
    defined_name: str | None = None


def lost_mdevs(missing: Iterable[UnitRecord], facts: DeviceFacts, boot: str) -> list[LostMdev]:
    """The missing mediated devices whose parents exist; `boot` is the id of the current boot."""
    parents = {
        function.address: function.name
        for card in facts.cards
        for function in (card.device, *card.vfs)
        if function.mdev_types
    }
    defined_names = {
        (mdev.uuid, mdev.parent): mdev.name for card in facts.cards for mdev in card.mdevs if not mdev.active
    }
    return [
        LostMdev(record, parents[record.parent], defined_names.get((record.unit, parents[record.parent])))
        for record in missing
        if record.type_id and boot and record.boot not in ("", boot) and record.parent in parents
    ]


def mdev_xml(mdev: LostMdev) -> str:
    """The XML for nodeDeviceCreateXML. Source: https://libvirt.org/formatnode.html"""
    return (
        f"<device><parent>{mdev.parent}</parent><capability type='mdev'>"
        f"<type id={quoteattr(mdev.record.type_id)}/><uuid>{mdev.record.unit}</uuid></capability></device>"
    )


def carved_units(
    facts: DeviceFacts, missing: Iterable[UnitRecord], settings: DeviceSettings
) -> tuple[CarvedUnit, ...]:
    """The virtual functions and mediated devices of all cards, and the mediated devices that are missing.

    A function whose vGPU type is gone is left out: what it was is not to be seen on it.
    """
    units: list[CarvedUnit] = []
    for record in missing:
        place = record.unit.rpartition("@")[2]
        if address_of(record.unit) != record.unit and place.isdecimal():
            units.append(CarvedUnit(record.parent, record.card, record.parent, record.type_id, int(place)))
        elif record.type_id and record.parent:
            units.append(CarvedUnit(record.unit, record.card, record.parent, record.type_id))
    for card in facts.cards:
        address = card.device.address
        parents = {function.name: function.address for function in (card.device, *card.vfs)}
        for mdev in card.mdevs:
            if mdev.active:
                units.append(CarvedUnit(mdev.uuid, address, parents[mdev.parent], mdev.type_id))
        for vf in card.vfs:
            number = facts.vgpu_types.get(vf.address)
            if number is None or is_fixed(card, vf.address, facts, settings):
                port = facts.ports.get(vf.address, NO_MAC)
                port = "" if port == NO_MAC else port
                units.append(CarvedUnit(vf.address, address, vf.address, port=port))
            elif number != NO_TYPE:
                spec = vgpu_spec_of(card, vf, number, settings.mdevs)
                type_id = spec.type_id if spec else number
                units.append(
                    CarvedUnit(vf.address, address, vf.address, type_id, facts.vgpu_places.get(vf.address))
                )
    return tuple(units)


# What devices were before

ENTRIES_MAX = 16
USUAL_MDEV_CLASS = "VGPU"
"""The resource class of mediated devices in nova, unless the operator configured another."""


def record_classes(
    history: DeviceHistory, providers: Iterable[DescribedProvider], with_mdevs: Collection[str]
) -> DeviceHistory:
    """The history with the resource classes of these providers, at most ENTRIES_MAX a device.

    `with_mdevs` are the devices that can have mediated devices, which may have had nova's usual class.
    """
    recorded = dict(history)
    for provider in providers:
        if not provider.device.startswith("pci:") or not provider.units:
            continue
        now = tuple(sorted(provider.units))
        usual = (USUAL_MDEV_CLASS,) if provider.device in with_mdevs else ()
        earlier = (*usual, *recorded.get(provider.device, ()))
        before = dict.fromkeys(name for name in earlier if name not in now)
        recorded[provider.device] = (*before, *now)[-ENTRIES_MAX:]
    return recorded


def record_slots(
    history: DeviceHistory, cards: Sequence[Card], records: Mapping[str, UnitRecord]
) -> DeviceHistory:
    """The history with the slots of cards that are in another slot now.

    A mediated device that was recorded on another card's address tells that its card moved. A slot that has a
    card again belongs to that card. `records` are those from before this reading.
    """
    occupied = {card.device.address for card in cards}
    recorded = {
        key: tuple(slot for slot in values if slot not in occupied)
        if key.startswith(_slot_key(""))
        else values
        for key, values in history.items()
    }
    for card in cards:
        slots = (records[mdev.uuid].card for mdev in card.mdevs if mdev.active and mdev.uuid in records)
        former = [slot for slot in slots if slot not in occupied]
        if former:
            key = _slot_key(card.device.address)
            recorded[key] = tuple(dict.fromkeys((*recorded.get(key, ()), *former)))[-ENTRIES_MAX:]
    return recorded


def _slot_key(address: str) -> str:
    return f"slot:{address}"


def record_interfaces(history: DeviceHistory, cards: Iterable[Card]) -> DeviceHistory:
    """The history with the names of the cards' interfaces, at most ENTRIES_MAX a card.

    A card without an interface loses a name that another card has now, because two cards of one name would be
    one provider.
    """
    cards = tuple(cards)
    current_keys = {
        card.interface.interface: _interface_key(card.device.address)
        for card in cards
        if card.is_network and card.interface is not None
    }
    recorded = {
        key: (*filter(None, names), "")
        if key.startswith(_interface_key("")) and names and current_keys.get(names[-1], key) != key
        else names
        for key, names in history.items()
    }
    for card in cards:
        if card.is_network:
            names = recorded.get(_interface_key(card.device.address), ())
            name = card.interface.interface if card.interface is not None else ""
            if not names or (name and name != names[-1]):
                before = tuple(former for former in names if former != name)
                recorded[_interface_key(card.device.address)] = (*before, name)[-ENTRIES_MAX:]
    return recorded


def restore_interfaces(cards: Iterable[Card], history: DeviceHistory) -> tuple[Card, ...]:
    """The cards; one without an interface, because a guest has all of it, gets the interface that it had."""
    restored = []
    for card in cards:
        names = history.get(_interface_key(card.device.address), ())
        is_restored = card.interface is None and card.is_network and names and names[-1]
        interface = NetDevice("", card.device.name, names[-1]) if is_restored else card.interface
        restored.append(replace(card, interface=interface) if is_restored else card)
    return tuple(restored)


def former_interfaces(address: str, history: DeviceHistory, with_units: Collection[str]) -> tuple[str, ...]:
    """The names that the card's interface had.

    A name that another card has now is left out if that card's units are gone: then allocations on a provider
    of that name belong to the other card. `with_units` are the devices that have units.
    """
    own_key, prefix = _interface_key(address), _interface_key("")
    without_units = history.keys() - set(with_units)
    names_of_others = {
        names[-1]
        for key, names in history.items()
        if key.startswith(prefix) and key != own_key and names and names[-1]
        if f"pci:{key.removeprefix(prefix)}" in without_units
    }
    return tuple(name for name in history.get(own_key, ()) if name not in names_of_others)


def _interface_key(address: str) -> str:
    return f"net:{address}"


def record_cells(history: DeviceHistory, providers: Collection[DescribedProvider]) -> DeviceHistory:
    """The history with the cells among these providers, and the first ones without CPUs."""
    if FIRST_CPULESS not in history:
        first = tuple(each.device for each in providers if CPULESS_MEMORY in each.inventories)
        history = {**history, FIRST_CPULESS: first}
    now = {provider.device for provider in providers if _cell_ids([provider.device])}
    before = {device for device in history if _cell_ids([device])}
    if not now or now == before:
        return history
    all_cells = tuple(sorted(now | before)) if before else ()
    return {**history, **dict.fromkeys(sorted(now | before), all_cells)}


def former_cells(cell: int, history: DeviceHistory) -> tuple[int, ...]:
    """The ids of other cells in which this cell's CPUs and memory may have been counted."""
    return tuple(former for former in _cell_ids(history.get(cell_device(cell), ())) if former != cell)


def removed_cells(history: DeviceHistory, present: Collection[int]) -> tuple[int, ...]:
    """The ids of cells that were described once and are not `present`."""
    return tuple(cell for cell in _cell_ids(history) if cell not in present)


def _cell_ids(devices: Iterable[str]) -> list[int]:
    prefix = cell_device("")
    ids = (device.removeprefix(prefix) for device in devices if device.startswith(prefix))
    return sorted(int(cell_id) for cell_id in ids if cell_id.isdecimal())


# Moves

_HOST_CLASSES = ("VCPU", "PCPU", "MEMORY_MB")
_CLASSES_ON_FLAT_ROOT = (USUAL_MDEV_CLASS, "SRIOV_NET_VF")


def moves_of(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    guest_domains: Sequence[GuestDomain],
    cells: Sequence[Cell],
    history: DeviceHistory,
) -> tuple[MoveInstruction, ...]:
    """The moves of a host.

    `providers` are all described ones, the host first. `cell_totals` {cell id: {resource class: total}} are
    those of the cells, whether they have providers or not. The guests have their units as the providers
    describe them; guests with a problem are left out.
    """
    root = providers[0].name
    readable = [
        (pair.guest, pair.domain)
        for pair in guest_domains
        if pair.guest.problem is None and pair.domain is not None
    ]
    guests = [guest for guest, _ in readable]
    # {cell id: {consumer uuid: {resource class: amount}}} of what is known to be in a cell.
    cell_of = {cpu: cell.id for cell in cells for cpu in cell.cpus}
    usage: dict[int, dict[str, dict[str, int]]] = {}
    for guest, domain in readable:
        pins = [*domain.pins.values(), *([domain.emulator_pin] if domain.emulator_pin else [])]
        bound_cells = {cell_of[cpu] for pin in pins for cpu in pin if cpu in cell_of} | domain.memory_nodes
        if len(bound_cells) == 1:
            amounts = {name: guest.resources[name] for name in _HOST_CLASSES if name in guest.resources}
            usage.setdefault(bound_cells.pop(), {})[guest.uuid] = amounts
            continue
        for unit in guest.units:
            if unit.resource_class == "PCPU" and int(unit.unit) in cell_of:
                amounts = usage.setdefault(cell_of[int(unit.unit)], {}).setdefault(guest.uuid, {})
                amounts["PCPU"] = amounts.get("PCPU", 0) + 1
    return (
        *_device_moves(root, providers, guests, history),
        *_parking_moves(root, providers, guests),
        *_cell_moves(providers, cell_totals, usage, history),
        *_cpu_moves(providers, readable),
        # A cell without CPUs that was added later was never MEMORY_MB.
        *cpuless_moves(
            root, [each for each in providers if each.device in history.get(FIRST_CPULESS, ())], guests
        ),
    )


def _device_moves(
    root: str,
    providers: Sequence[DescribedProvider],
    guests: Sequence[Guest],
    history: DeviceHistory,
) -> Iterator[MoveInstruction]:
    usage_by_device: dict[str, dict[str, dict[str, int]]] = {}
    for guest in guests:
        for unit in guest.units:
            amounts = usage_by_device.setdefault(unit.device, {}).setdefault(guest.uuid, {})
            amounts[unit.resource_class] = amounts.get(unit.resource_class, 0) + 1
    devices = {provider.device for provider in providers}
    for provider in providers[1:]:
        if not provider.device.startswith("pci:"):
            continue
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        usage = usage_by_device.get(provider.device, {})
        # When the card's interface had other names, or the card was in other slots, so was its provider.
        address = provider.device.removeprefix("pci:")
        interfaces = former_interfaces(address, history, devices)
        former_names = [card_name(root, address, interface) for interface in interfaces]
        former_names += [card_name(root, slot, "") for slot in history.get(_slot_key(address), ())]
        for source in (root, *(name for name in former_names if name != provider.name)):
            yield MoveInstruction(source, totals, provider.name, usage)
        for former in history.get(provider.device, ()):
            # A function whose vDPA device is made or removed is another kind of unit, not one with another
            # name.
            if former in totals or former == VDPA_CLASS:
                continue
            for current in sorted(provider.units.keys() & totals.keys() - {VDPA_CLASS}):
                former_usage = {
                    uuid: {former: amounts[current]} for uuid, amounts in usage.items() if current in amounts
                }
                for source in (root, provider.name) if former == USUAL_MDEV_CLASS else (provider.name,):
                    yield MoveInstruction(
                        source, {former: totals[current]}, provider.name, former_usage, {former: current}
                    )


def _parking_moves(
    root: str, providers: Sequence[DescribedProvider], guests: Sequence[Guest]
) -> Iterator[MoveInstruction]:
    """From the root to itself: units that guests use and no present device has, of a host that was flat."""
    devices = {provider.device for provider in providers}
    for resource_class in _CLASSES_ON_FLAT_ROOT:
        usage = {}
        for guest in guests:
            units = [unit for unit in guest.units if unit.resource_class == resource_class]
            without_device = sum(unit.device not in devices for unit in units)
            if without_device:
                usage[guest.uuid] = {resource_class: without_device}
        if usage:
            total = sum(amounts[resource_class] for amounts in usage.values())
            yield MoveInstruction(root, {resource_class: total}, root, usage)


def _cell_moves(
    providers: Sequence[DescribedProvider],
    cell_totals: Mapping[int, Mapping[str, int]],
    usage_by_cell: Mapping[int, Holders],
    history: DeviceHistory,
) -> Iterator[MoveInstruction]:
    """To each cell with a provider, from the root and from former cells; else from the cells to the root."""
    root = providers[0].name
    names = {provider.name for provider in providers}
    unreported: dict[int, Mapping[str, int]] = {}
    for cell_id, totals in cell_totals.items():
        name = cell_provider_name(root, cell_id)
        if not totals:
            continue
        if name in names:
            former = [cell_provider_name(root, cell) for cell in former_cells(cell_id, history)]
            yield from (
                MoveInstruction(source, totals, name, usage_by_cell.get(cell_id, {}))
                for source in (root, *former)
            )
        else:
            unreported[cell_id] = totals
    if not unreported:
        return
    host_totals: Counter[str] = Counter()
    for totals in unreported.values():
        host_totals.update(totals)
    # After cells have changed, any of them may have had all CPUs and memory.
    described = _cell_ids(history)
    changed = any(history[cell_device(cell)] for cell in described) or (
        described and set(described) != cell_totals.keys()
    )
    sources = {cell: dict(host_totals) if changed else totals for cell, totals in unreported.items()}
    sources |= {cell: dict(host_totals) for cell in removed_cells(history, cell_totals)}
    for cell, totals in sources.items():
        yield MoveInstruction(cell_provider_name(root, cell), totals, root)


def _cpu_moves(
    providers: Sequence[DescribedProvider], readable: Sequence[tuple[Guest, Domain]]
) -> Iterator[MoveInstruction]:
    """VCPU becomes PCPU where a provider has dedicated CPUs, and PCPU becomes VCPU where it has none."""
    root = providers[0].name
    for provider in providers:
        totals = {name: inventory.total for name, inventory in provider.inventories.items()}
        if "PCPU" in totals:
            # The vCPUs that are pinned to one CPU of the provider; before, each was one VCPU.
            pinned: dict[str, dict[str, int]] = {}
            for guest, domain in readable:
                of_provider = (unit.unit for unit in guest.units if unit.device == provider.device)
                cpus = {int(unit) for unit in of_provider if unit.isdecimal()}
                amount = sum(len(pin) == 1 and pin <= cpus for pin in domain.pins.values())
                if amount:
                    pinned[guest.uuid] = {"VCPU": amount}
            for source in dict.fromkeys((root, provider.name)):
                yield MoveInstruction(
                    source, {"VCPU": totals["PCPU"]}, provider.name, pinned, {"VCPU": "PCPU"}
                )
        elif "VCPU" in totals:
            yield MoveInstruction(
                provider.name, {"PCPU": totals["VCPU"]}, provider.name, None, {"PCPU": "VCPU"}
            )
