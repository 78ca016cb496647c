"""From a domain to its claim and back. Pure.

`demand_of_domain` makes the claim request for a domain: what its XML asks for, and what is asked for beside
it. What both say must agree. A device element of the domain takes, in this order:

1. the very device whose address it names;
2. the device of the request group or PCI alias, asked for beside the XML, that its alias `ua-NAME` names;
3. a device by the PCI alias, physical network, vGPU type or resource class of this host that NAME is;
4. any device of its kind, if this host has only one sort of them, and NAME is not that of another one.

`request_for_domain` makes it for a guest whose domain is defined already: its amounts, and the units that it
names. `given_resources` says what a claim gave, in the terms of the driver that writes the domain.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent import device_names
from agent.claims.attribution import Place
from agent.claims.claim import UNRESTRICTED, Claim, Restriction
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCells
from agent.claims.pci_alias import Aliases
from agent.claims.request import DEVICE_PREFIX, ClaimRequest, RequestGroup, TopologyRequest, check_request
from agent.cpuset import format_cpu_set
from agent.device_names import CONTEXT, CPULESS_MEMORY
from agent.driver import (
    DeviceKind,
    DomainNeeds,
    GivenCell,
    GivenDevice,
    GivenResources,
    Guest,
    NeededCell,
    NeededDevice,
    UsedMemory,
    UsedUnit,
)
from agent.errors import UsageError, counted
from agent.shapes import Allocations, Units, add_units
from agent.tree import ProviderTree

VF_CLASS = "SRIOV_NET_VF"
CPU_CLASSES = ("VCPU", "PCPU")
MEMORY = "MEMORY_MB"
DISK = "DISK_GB"

_CPULESS = "_cpuless"
"""Prefix of the suffixes of the groups for memory of the cells without CPUs that a domain names."""

_NUMBERED = re.compile(r"(.+)-[1-9][0-9]?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DomainDemand:
    """The request for a domain, and what its claim must have because the domain names it."""

    request: ClaimRequest
    restriction: Restriction = UNRESTRICTED

    def is_met_by(self, request: ClaimRequest) -> bool:
        """Whether a claim by that request is this domain's, which may name its cells and devices since."""
        named = [group for group in self.request.groups if not group.suffix.startswith(_CPULESS)]
        own = {group.suffix: group for group in named if group.suffix}
        other = {group.suffix: group for group in request.groups if group.suffix}
        return own == other and self.request.resources == request.resources


@dataclass(frozen=True, slots=True)
class HostDevices:
    """This host: its providers, all their exact units, the configured PCI aliases, and its NUMA cells."""

    host: ProviderIndex
    offered: Units
    aliases: Aliases = field(default_factory=dict)
    cells: HostCells = field(default_factory=HostCells)


def demand_of_domain(needs: DomainNeeds, asked: ClaimRequest, devices: HostDevices) -> DomainDemand:
    """The demand of a domain; `asked` is what is asked for beside its XML, and may have no groups.

    Raises UsageError with each sentence in `contradictions` where the two do not agree, and where an element
    of the domain stands for no device of this host.
    """
    named = replace(asked, name=asked.name or needs.name)
    faults: list[str] = []
    as_it_is = _as_it_is(needs, named, devices)
    amounts: Mapping[str, int]
    if as_it_is is None:
        amounts, topology = _cpus_and_memory(needs, named, faults)
    else:
        amounts, topology = as_it_is.amounts, named.topology
    for name, amount in needs.amounts.items():
        if named.resources.get(name, amount) != amount:
            faults.append(f"the domain needs {amount} {name}, and {named.resources[name]} are asked for")
    search = _DeviceSearch(devices, named)
    named_first = sorted(
        enumerate(needs.devices, start=1), key=lambda item: not (item[1].alias or item[1].unit)
    )
    for number, device in named_first:
        fault = search.take(device, number)
        if fault is not None:
            faults.append(f"{device.text} {fault}")
    if faults:
        raise UsageError(
            f"The domain of {named.name or named.consumer} contradicts what this host can claim for it: "
            f"{'; '.join(faults)}",
            contradictions=faults,
        )
    unsuffixed = named.unsuffixed
    # Memory of the cells without CPUs that the domain names, unless a group that is asked for says it.
    apart = devices.cells.split_memory(needs.memory)[1]
    if named.resources.get(CPULESS_MEMORY, 0) != unsuffixed.resources.get(CPULESS_MEMORY, 0):
        apart = {}
    fixed = (*CPU_CLASSES, MEMORY, *((CPULESS_MEMORY,) if apart else ()))
    kept = {name: amount for name, amount in unsuffixed.resources.items() if name not in fixed}
    if needs.disk_gb:
        kept.setdefault(DISK, needs.disk_gb)
    suffixed = tuple(group for group in named.groups if group.suffix)
    placed = as_it_is.groups if as_it_is is not None else ()
    for number, (uuid, memory_mb) in enumerate(sorted(apart.items())):
        placed = (*placed, RequestGroup(f"{_CPULESS}{number}", {CPULESS_MEMORY: memory_mb}))
        search.bound[f"{_CPULESS}{number}"] = frozenset({uuid})
    amounts = {**amounts, **needs.amounts}
    rest = {
        name: amount - sum(group.resources.get(name, 0) for group in (*suffixed, *placed))
        for name, amount in amounts.items()
    }
    kept |= {name: amount for name, amount in rest.items() if amount > 0}
    required = unsuffixed.required
    if CONTEXT in kept and needs.encryption and needs.encryption not in required:
        required = (*required, needs.encryption)
    groups = (
        *((replace(unsuffixed, resources=kept, required=required),) if kept or not placed else ()),
        *suffixed,
        *sorted((*search.groups, *placed), key=lambda group: group.suffix),
    )
    several = sum(1 for group in groups if group.suffix) > 1
    request = replace(
        named,
        groups=groups,
        group_policy=named.group_policy or ("none" if several else None),
        topology=topology,
        pci=search.pci,
    )
    restriction = (
        _restriction(needs, request, search, devices)
        if as_it_is is None
        else Restriction(
            {**search.units, **as_it_is.units},
            frozenset(name for classes in search.units.values() for name in classes),
            {**search.bound, **as_it_is.bound},
            {**search.dealt, **as_it_is.dealt},
            memory=needs.memory,
        )
    )
    return DomainDemand(check_request(request), restriction)


# CPUs, memory and cells


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """What a domain uses of CPUs and memory where it names the places: its claim has no cells.

    `groups` are for what must be on certain providers, as `bound`, `units` and `dealt` of a Restriction say.
    """

    amounts: Mapping[str, int]
    groups: tuple[RequestGroup, ...]
    bound: Mapping[str, frozenset[str]]
    units: Units
    dealt: Mapping[str, Mapping[str, tuple[str, ...]]]


def _as_it_is(needs: DomainNeeds, asked: ClaimRequest, devices: HostDevices) -> _AsItIs | None:
    """None where a claim with cells can be the domain's, or where the domain leaves a place open.

    libvirt starts such a domain all the same, and the gate asks for what it names.
    """
    if (
        needs.memory_mb is None
        or not needs.vcpu_ids
        or not needs.dedicated.keys() <= needs.vcpu_ids
        or None in needs.dedicated.values()
        or asked.topology != TopologyRequest()
    ):
        return None
    cells = {cell.id: cell.provider for cell in devices.cells.cells}
    parts, _ = devices.cells.split_memory(needs.memory)
    memory = _bound_memory(parts, needs.memory_mb, devices.host, cells)
    several, several_mb = _memory_on_several(parts, needs.memory_mb, devices.host, cells)
    if not several and not _has_other_places(needs, devices.cells):
        return None
    cpus = {pin for pin in needs.dedicated.values() if pin is not None}
    if needs.emulator is not None:
        cpus.add(needs.emulator)
    amounts = {
        "VCPU": len(needs.vcpu_ids) - len(needs.dedicated),
        "PCPU": len(cpus),
        MEMORY: needs.memory_mb,
    }
    if any(asked.resources.get(name, amount) != amount for name, amount in amounts.items()):
        return None
    units = {
        uuid: {"PCPU": named}
        for uuid, classes in devices.offered.items()
        if (named := tuple(str(cpu) for cpu in sorted(cpus) if str(cpu) in classes.get("PCPU", ())))
    }
    places = {f"_place{number}": uuid for number, uuid in enumerate(sorted({*units, *memory}), start=1)}
    groups = []
    for suffix, uuid in places.items():
        of_provider = {"PCPU": len(units.get(uuid, {}).get("PCPU", ())), MEMORY: memory.get(uuid, 0)}
        groups.append(RequestGroup(suffix, {name: amount for name, amount in of_provider.items() if amount}))
    bound = {suffix: frozenset({uuid}) for suffix, uuid in places.items()}
    if several:
        groups.append(RequestGroup("_places", {MEMORY: several_mb}))
        bound["_places"] = several
    return _AsItIs(
        {name: amount for name, amount in amounts.items() if amount},
        tuple(groups),
        bound,
        units,
        {suffix: units[uuid] for suffix, uuid in places.items() if uuid in units},
    )


def _has_other_places(needs: DomainNeeds, host: HostCells) -> bool:
    """Whether the domain's CPUs and memory cannot be where a claim with cells would have them.

    A claim has vCPUs without gaps, each on a CPU of its own or on shared CPUs of its cell, and guest cells
    that have vCPUs, each on another cell of the host with all its CPUs and its memory; the emulator's CPU is
    on the first one. All pages have one size.
    """
    pins = needs.dedicated
    if needs.vcpu_ids != frozenset(range(len(needs.vcpu_ids))) or len(set(pins.values())) < len(pins):
        return True
    home = _home(host)
    cells = needs.cells or (NeededCell(needs.vcpu_ids, 0, needs.host_cell, needs.page_kib),)
    taken: set[int] = set()
    for number, cell in enumerate(cells):
        named = {pin for cpu, pin in pins.items() if cpu in cell.cpus}
        if not number:
            named.add(needs.emulator)
        places = {home[cpu] for cpu in named if cpu in home}
        places |= {place for place in (cell.host_cell, needs.host_cell) if place is not None}
        if not cell.cpus or len(places) > 1 or places & taken:
            return True
        shared = [each.shared for each in host.cells if each.shared and (not places or each.id in places)]
        over = [cpus for cpu, cpus in needs.floating.items() if cpu in cell.cpus]
        if not all(cpus <= of_cell for cpus in over for of_cell in shared):
            return True
        taken |= places
    return needs.scattered or len({cell.page_kib for cell in cells}) > 1


def _home(host: HostCells) -> dict[int, int]:
    """{dedicated CPU: its cell}"""
    return {cpu: cell.id for cell in host.cells for cpu in cell.dedicated}


def _cpus_and_memory(
    needs: DomainNeeds, asked: ClaimRequest, faults: list[str]
) -> tuple[dict[str, int], TopologyRequest]:
    """({class: amount}, topology); what does not agree goes to `faults`."""
    amounts = asked.resources
    emulator = int(needs.isolate_emulator or asked.topology.isolate_emulator)
    asked_cpus = sum(amounts.get(name, 0) for name in CPU_CLASSES)
    vcpus = needs.vcpus or max(asked_cpus - emulator, 1)
    if asked_cpus and vcpus + emulator != asked_cpus:
        own = ", the emulator's threads need a CPU of their own" if emulator else ""
        faults.append(f"<vcpu> is {vcpus}{own}, and {counted(asked_cpus, 'CPU is', 'CPUs are')} asked for")
    memory_mb = needs.memory_mb or sum(cell.memory_mb for cell in needs.cells) or amounts.get(MEMORY, 0)
    if not memory_mb:
        faults.append("<memory> is missing, and no memory is asked for")
    elif amounts.get(MEMORY, memory_mb) != memory_mb:
        faults.append(f"<memory> is {memory_mb} MiB, and {amounts[MEMORY]} MiB are asked for")
    own_cpus = max(0, amounts.get("PCPU", 0) - emulator)
    topology = _pinned(needs, asked.topology, own_cpus, vcpus, faults)
    if needs.isolate_emulator:
        topology = replace(topology, isolate_emulator=True)
        if topology.cpu_policy == "shared" and not own_cpus:
            topology = replace(topology, cpu_policy="mixed")  # all its CPUs float
    topology = _with_cells(needs, topology, faults)
    pins = {
        "shared": own_cpus,
        "dedicated": vcpus,
        "mixed": len(topology.dedicated_cpus),
    }[topology.cpu_policy]
    cpus = {"VCPU": vcpus - pins, "PCPU": pins + emulator}
    return {**{name: amount for name, amount in cpus.items() if amount > 0}, MEMORY: memory_mb}, topology


def _pinned(
    needs: DomainNeeds, topology: TopologyRequest, own_cpus: int, vcpus: int, faults: list[str]
) -> TopologyRequest:
    """The topology with the CPUs that the domain pins for dedicated use; `own_cpus` are asked for."""
    wanted = frozenset(needs.dedicated)
    if not wanted:
        return topology
    if max(wanted) >= vcpus:
        faults.append(f"<vcpupin> names CPU {max(wanted)}, and <vcpu> is {vcpus}")
    if len(set(needs.dedicated.values()) - {None}) not in (0, len(wanted)):
        faults.append("<vcpupin>: some CPUs name a host CPU of their own, and others none or the same one")
    asked = frozenset(range(vcpus)) if topology.cpu_policy == "dedicated" else topology.dedicated_cpus
    if topology.cpu_policy != "shared":
        if not wanted <= asked:
            faults.append(f"<vcpupin> pins the CPUs {format_cpu_set(wanted - asked)}, which shall float")
        return topology
    if own_cpus not in (0, len(wanted)):
        faults.append(
            f"<vcpupin> pins {counted(len(wanted), 'CPU')}, and "
            f"{counted(own_cpus, 'PCPU is', 'PCPU are')} asked for"
        )
    if len(wanted) >= vcpus:
        return replace(topology, cpu_policy="dedicated")
    return replace(topology, cpu_policy="mixed", dedicated_cpus=wanted)


def _with_cells(needs: DomainNeeds, topology: TopologyRequest, faults: list[str]) -> TopologyRequest:
    """The topology with the cells and the page size of the domain."""
    cell_cpus = tuple(cell.cpus for cell in needs.cells)
    cell_memory_mb = tuple(cell.memory_mb for cell in needs.cells)
    count = len(needs.cells) or topology.cells or (1 if needs.host_cell is not None else 0)
    if topology.cells and count != topology.cells:
        faults.append(
            f"<numa> has {counted(count, 'cell')}, and {counted(topology.cells, 'is', 'are')} asked for"
        )
    for tag, ours, theirs in (
        ("cpus", cell_cpus, topology.cell_cpus),
        ("memory", cell_memory_mb, topology.cell_memory_mb),
    ):
        if ours and theirs and ours != theirs:
            faults.append(f"<numa>: the {tag} of the cells are not those that are asked for")
    if needs.memory_mb and cell_memory_mb and sum(cell_memory_mb) != needs.memory_mb:
        faults.append(f"<memory> is {needs.memory_mb} MiB, and its cells have {sum(cell_memory_mb)} MiB")
    sizes = {cell.page_kib for cell in needs.cells} or {needs.page_kib}
    page = topology.mem_page_size
    if len(sizes) > 1:
        faults.append("<hugepages> has another page size for each cell; a claim has one for all")
    elif None not in sizes:
        (size,) = sizes
        if isinstance(page, int) and page != size:
            faults.append(f"<page> has {size} KiB, and pages of {page} KiB are asked for")
        page = size
    return replace(
        topology,
        cells=count,
        cell_cpus=cell_cpus or topology.cell_cpus,
        cell_memory_mb=cell_memory_mb or topology.cell_memory_mb,
        mem_page_size=page,
    )


def _restriction(
    needs: DomainNeeds, request: ClaimRequest, search: "_DeviceSearch", devices: HostDevices
) -> Restriction:
    pins = {cpu: pin for cpu, pin in needs.dedicated.items() if pin is not None}
    emulator, named = needs.emulator, set(pins.values())
    if emulator is not None and len(pins) + 1 == request.resources.get("PCPU", 0):
        named.add(emulator)  # the guest gets no others than the named ones: not where one is to be chosen
    units = {uuid: dict(classes) for uuid, classes in search.units.items()}
    for pin in sorted(named):
        for uuid, classes in devices.offered.items():
            if str(pin) in classes.get("PCPU", ()):
                add_units(units, uuid, "PCPU", str(pin))
    cells = {number: cell.host_cell for number, cell in enumerate(needs.cells) if cell.host_cell is not None}
    if not needs.cells and needs.host_cell is not None:
        cells = {0: needs.host_cell}
    home = _home(devices.cells)
    for number, cell in enumerate(needs.cells):
        named = {pin for cpu, pin in pins.items() if cpu in cell.cpus}
        if not number and emulator is not None:
            named.add(emulator)
        places = {home[pin] for pin in named if pin in home}
        if len(places) == 1:
            cells.setdefault(number, places.pop())
    return Restriction(
        units,
        frozenset(name for classes in search.units.values() for name in classes),
        search.bound,
        search.dealt,
        pins,
        cells,
        emulator,
    )


# Devices


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One device that is asked for beside the XML, in the group with that suffix, under that alias."""

    suffix: str
    alias: str
    kind: DeviceKind
    resource_class: str


@dataclass(frozen=True, slots=True)
class _Sort:
    """The devices of a class with the same distinguishing traits: a network, a vGPU type, a model."""

    resource_class: str
    traits: frozenset[str]


class _DeviceSearch:
    """Finds for each element of a domain the device that it stands for, and asks for those that are new."""

    def __init__(self, devices: HostDevices, asked: ClaimRequest) -> None:
        self._devices = devices
        self._kinds = dict(_kinds(devices.offered))
        self._left = list(_wanted(asked, self._kinds))
        self._suffixes = {group.suffix for group in asked.groups}
        self.pci = asked.pci
        self.groups: list[RequestGroup] = []
        self.units: dict[str, dict[str, tuple[str, ...]]] = {}
        self.bound: dict[str, frozenset[str]] = {}
        self.dealt: dict[str, dict[str, tuple[str, ...]]] = {}

    def take(self, device: NeededDevice, number: int) -> str | None:
        """Find or ask for the `number`th device of the domain; a clause that says why that cannot be."""
        wanted = self._asked_for(device)
        if wanted is not None:
            self._left.remove(wanted)
            if not _serves(wanted.kind, device.kind):
                return f"is asked for as {wanted.resource_class}, which is no {device.kind} device"
            return self._name(device, wanted.suffix, wanted.resource_class)
        classes = self._classes_of(device.unit)
        if device.unit and not classes:
            return f"is {device.unit}, which no provider of this host has"
        group = self._by_name(device)
        if group is None and classes:
            group = RequestGroup("", {classes[0]: 1})
        elif group is None and not device.by_name_only:
            # Any device of the only sort of its kind, unless the element names another sort.
            sorts = self._sorts(device.kind)
            if len(sorts) == 1 and not (device.alias and sorts[0].traits):
                group = RequestGroup("", {sorts[0].resource_class: 1})
        if group is None:
            return self._unknown(device)
        if group.suffix:
            suffix, resource_class = f"{DEVICE_PREFIX}{sum(count for _, count in self.pci)}", ""
            self.pci = (*self.pci, (group.suffix, 1))
        else:
            # The alias as a suffix that no group has; the number of the element where it has none.
            suffix = f"_{device.alias}" if device.alias.startswith(DEVICE_PREFIX) else device.alias
            if not suffix or suffix in self._suffixes:
                suffix = next(f"_{n}" for n in range(number, 10**6) if f"_{n}" not in self._suffixes)
            (resource_class,) = group.resources
            self.groups.append(replace(group, suffix=suffix))
            self._suffixes.add(suffix)
        return self._name(device, suffix, resource_class)

    def _asked_for(self, device: NeededDevice) -> _Wanted | None:
        """The device asked for beside the XML that the element stands for."""
        classes = self._classes_of(device.unit)
        for wanted in self._left:
            if device.alias:
                if wanted.alias.lower() == device.alias.lower():
                    return wanted
            elif device.unit:
                if not wanted.alias and wanted.resource_class in classes:
                    return wanted
            elif _serves(wanted.kind, device.kind) and not device.by_name_only:
                return wanted
        return None

    def _classes_of(self, unit: str) -> list[str]:
        """The classes as which this host offers the unit; that of virtual functions first."""
        classes = {
            name for of in self._devices.offered.values() for name, units in of.items() if unit in units
        }
        return sorted(classes, key=lambda name: (name != VF_CLASS, name))

    def _name(self, device: NeededDevice, suffix: str, resource_class: str) -> str | None:
        """Have the group get the very unit that the element names, if it names one; an empty class is any."""
        if not device.unit:
            return None
        found = sorted(
            (name != VF_CLASS, name, uuid)
            for uuid, classes in self._devices.offered.items()
            for name, units in classes.items()
            if device.unit in units and resource_class in ("", name)
        )
        if not found:
            return f"is {device.unit}, which no provider of this host has as {resource_class or 'a device'}"
        _, name, uuid = found[0]
        if device.unit in self.units.get(uuid, {}).get(name, ()):
            return f"is {device.unit}, which another element names, too"
        add_units(self.units, uuid, name, device.unit)
        if self.bound.setdefault(suffix or f":{name}", frozenset({uuid})) != {uuid}:
            return f"is {device.unit}, which is not on the provider of the other devices of its group"
        if suffix:
            add_units(self.dealt, suffix, name, device.unit)
        return None

    def _by_name(self, device: NeededDevice) -> RequestGroup | None:
        """The group for a device whose alias this host knows; its suffix is the PCI alias, if it is one."""
        numbered = _NUMBERED.fullmatch(device.alias)
        for name in (device.alias, numbered[1] if numbered else ""):
            for alias in self._devices.aliases:
                if alias.lower() == name.lower() and device.kind is not DeviceKind.MEDIATED:
                    return RequestGroup(alias)
            traits = device_names.physical_network_trait(name) | {device_names.mdev_type_trait(name)}
            resource_class = re.sub(r"[^A-Z0-9_]", "_", name.upper())
            for sort in self._sorts(device.kind, or_function=True):
                if traits & sort.traits:
                    required = tuple(frozenset({trait}) for trait in sorted(traits & sort.traits))
                    return RequestGroup("", {sort.resource_class: 1}, required)
                if resource_class in (sort.resource_class, sort.resource_class.removeprefix("CUSTOM_")):
                    return RequestGroup("", {sort.resource_class: 1})
        return None

    def _sorts(self, kind: DeviceKind, *, or_function: bool = False) -> list[_Sort]:
        """The sorts of devices of the kind on this host.

        `or_function`: also those that may be in an element of that kind. Functions over vDPA may have a class
        of the operator's, so no device of their card is chosen for an element that does not name it.
        """
        kinds = {kind, DeviceKind.INTERFACE} if or_function and kind is DeviceKind.PCI else {kind}
        sorts = {
            _Sort(
                name,
                device_names.physical_networks(provider.traits) | device_names.mdev_types(provider.traits),
            )
            for provider in self._devices.host.providers
            for name in self._devices.offered.get(provider.uuid, {})
            if name in provider.inventories
            and self._kinds.get(name) in kinds
            and not (self._kinds[name] is DeviceKind.PCI and device_names.VDPA_TRAIT in provider.traits)
        }
        return sorted(sorts, key=lambda sort: (sort.resource_class, sorted(sort.traits)))

    def _unknown(self, device: NeededDevice) -> str:
        names = sorted(
            {
                *(alias for alias in self._devices.aliases if device.kind is DeviceKind.PCI),
                *(
                    name.removeprefix("CUSTOM_PHYSNET_").removeprefix("CUSTOM_MDEV_TYPE_").lower()
                    for sort in self._sorts(device.kind)
                    for name in (sort.traits or {sort.resource_class})
                ),
            }
        )
        if not names:
            return f"has no address, and this host has no such device ({device.kind})"
        return (
            f"has no address, and {f'{device.alias!r}' if device.alias else 'without an alias it'} does not "
            f"say which device: name a group with --group, or give it the alias ua-NAME with one of "
            f"{', '.join(names)}"
        )


def _kinds(offered: Units) -> Iterator[tuple[str, DeviceKind]]:
    """(class, kind) of each class of devices, by how its units are named."""
    for classes in offered.values():
        for name, units in classes.items():
            if name == "PCPU" or device_names.is_page_class(name) or not units:
                continue
            if name == VF_CLASS:
                yield name, DeviceKind.INTERFACE
            elif name == device_names.VDPA_CLASS:
                yield name, DeviceKind.VDPA
            elif name.startswith(device_names.PMEM_PREFIX):
                yield name, DeviceKind.MEMORY
            else:
                is_pci = device_names.PCI_ADDRESS.fullmatch(device_names.address_of(units[0])) is not None
                yield name, DeviceKind.PCI if is_pci else DeviceKind.MEDIATED


def _serves(kind: DeviceKind, element: DeviceKind) -> bool:
    """Whether a device of that kind may be in such an element: a <hostdev> may be a virtual function, too."""
    return kind is element or {kind, element} == {DeviceKind.INTERFACE, DeviceKind.PCI}


def _wanted(asked: ClaimRequest, kinds: Mapping[str, DeviceKind]) -> Iterator[_Wanted]:
    """The devices that are asked for beside the XML, in the order in which their aliases are numbered."""
    entries: list[tuple[str, str, DeviceKind, str]] = []
    for group in sorted(asked.groups, key=lambda group: group.suffix):
        for name, amount in group.resources.items():
            if name in kinds:
                entries += [(group.suffix, group.suffix, kinds[name], name)] * amount
    number = 0
    for alias, count in asked.pci:
        for _ in range(count):
            entries.append((f"{DEVICE_PREFIX}{number}", alias, DeviceKind.PCI, ""))
            number += 1
    names = device_names.device_aliases(label for _, label, _, _ in entries)
    for (suffix, _, kind, resource_class), name in zip(entries, names, strict=True):
        yield _Wanted(suffix, name, kind, resource_class)


UNSEEN_MDEV = "mdev:"
"""Prefix of the device of a mediated device that no provider has, before its uuid."""
GATE_USER = "plimsoll-gate"
"""The user of the claims that the gate makes. The gate never releases claims of other users."""


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """The request for one domain, and which units and memory it needs exactly.

    `named` are the units that the claim must have. `unmanaged` are the units that no provider of this host
    has; those that are `astray` count among the amounts all the same, so that a claim would have others in
    their place. `memory` {provider uuid: MiB} is where its MEMORY_MB must be; empty: anywhere. `bound`
    {suffix: provider uuids} are the request groups for units and memory, each with its providers.
    """

    request: ClaimRequest
    named: Units
    unmanaged: tuple[UsedUnit, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    bound: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def astray(self) -> tuple[UsedUnit, ...]:
        """The units that no provider has, of classes that the request asks any provider for."""
        anywhere = self.request.unsuffixed.resources
        return tuple(used for used in self.unmanaged if anywhere.get(used.resource_class, 0) > 0)


def request_for_domain(
    guest: Guest,
    place: Place,
    devices: Mapping[str, str],
    claim: Claim | None = None,
    *,
    user_id: str = GATE_USER,
) -> DomainRequest:
    """The request for the guest that the domain's XML describes.

    `devices` is {device: provider uuid}. A unit is where the guest's `claim` has it, else where the host
    offers it, else on the provider of its device, if that one names no units of the class. Named units and
    bound memory get a request group for each provider; the rest is in the unsuffixed group.
    """
    host, cells = place.host, {cell.id: cell.provider for cell in place.cells.cells}
    named, unmanaged = _named_units(guest, place, devices, claim)
    memory_mb = guest.resources.get(MEMORY, 0)
    parts, apart = place.cells.split_memory(guest.memory)
    memory = _bound_memory(parts, memory_mb, host, cells)
    several, several_mb = _memory_on_several(parts, memory_mb, host, cells)
    amounts: dict[str, dict[str, int]] = {
        uuid: {name: len(units) for name, units in sorted(classes.items())} for uuid, classes in named.items()
    }
    for uuid, bound_mb in memory.items():
        amounts.setdefault(uuid, {})[MEMORY] = bound_mb
    for uuid, bound_mb in apart.items():
        amounts.setdefault(uuid, {})[CPULESS_MEMORY] = bound_mb
    places = {f"_{number}": uuid for number, uuid in enumerate(sorted(amounts), start=1)}
    groups = [RequestGroup(suffix, amounts[uuid]) for suffix, uuid in places.items()]
    bound = {suffix: frozenset({uuid}) for suffix, uuid in places.items()}
    if several:
        suffix = f"_{len(groups) + 1}"
        groups.append(RequestGroup(suffix, {MEMORY: several_mb}))
        bound[suffix] = several
    # What may come from any provider; the memory that is placed may not.
    placed_mb = sum(memory.values()) + several_mb
    rest = {name: amount for name, amount in guest.resources.items() if amount > 0}
    for classes in named.values():
        for name, units in classes.items():
            rest[name] = rest.get(name, len(units)) - len(units)
    rest[MEMORY] = rest.get(MEMORY, 0) - placed_mb
    rest[CPULESS_MEMORY] = rest.get(CPULESS_MEMORY, 0) - sum(apart.values())
    rest = {name: amount for name, amount in sorted(rest.items()) if amount > 0}
    if rest:
        required = (guest.encryption,) if CONTEXT in rest and guest.encryption else ()
        groups.insert(0, RequestGroup("", rest, required))
    request = ClaimRequest(
        guest.uuid,
        tuple(groups),
        group_policy="none" if len(bound) > 1 else None,
        name=guest.name,
        user_id=user_id,
    )
    return DomainRequest(request, named, unmanaged, memory, bound)


def _named_units(
    guest: Guest, place: Place, devices: Mapping[str, str], claim: Claim | None
) -> tuple[dict[str, dict[str, tuple[str, ...]]], tuple[UsedUnit, ...]]:
    """({provider uuid: {class: units}}, the units of which no provider has the class)."""
    claimed = {(name, unit): uuid for uuid, name, unit in claim.exact} if claim is not None else {}
    named: dict[str, dict[str, tuple[str, ...]]] = {}
    unmanaged = []
    for used in guest.units:
        name, key = used.resource_class, (used.resource_class, used.unit)
        known = [claimed.get(key), place.provider_of_unit.get(key)]
        if not place.offered.get(devices.get(used.device, ""), {}).get(name):  # its units have no names
            known.append(devices.get(used.device))
        providers = (place.host.tree.get(uuid) for uuid in known if uuid is not None)
        uuid = next((each.uuid for each in providers if each is not None and name in each.inventories), None)
        if uuid is None:
            unmanaged.append(used)
        else:
            add_units(named, uuid, *key)
    return named, tuple(unmanaged)


def why_on_no_provider(used: UsedUnit, place: Place) -> str:
    """Where an unmanaged unit is, as a clause: "is on no provider of this host"."""
    offering = place.host.tree.get(place.provider_of_unit.get((used.resource_class, used.unit), ""))
    if offering is None:
        return "is on no provider of this host"
    return (
        f"is on {offering.name}, which has no {used.resource_class} in Placement yet: `plimsoll status` says "
        "what that waits for"
    )


def _bound_memory(
    parts: Iterable[UsedMemory], memory_mb: int, host: ProviderIndex, cells: Mapping[int, str]
) -> dict[str, int]:
    """{provider uuid: MiB} of the parts that are bound to one cell that has a provider."""
    bound: dict[str, int] = {}
    for part in parts:
        uuid = _memory_provider(part.cell, host, cells)
        if uuid is not None and part.guest_cell is not None:
            bound[uuid] = bound.get(uuid, 0) + part.memory_mb
    return bound if sum(bound.values()) <= memory_mb else {}


def _memory_on_several(
    parts: Iterable[UsedMemory], memory_mb: int, host: ProviderIndex, cells: Mapping[int, str]
) -> tuple[frozenset[str], int]:
    """(uuids of several providers, the MiB that may be on any of them); none where all of the host's are."""
    split = [part for part in parts if part.cell is not None and part.guest_cell is None]
    found = {_memory_provider(part.cell, host, cells) for part in split}
    uuids = frozenset(uuid for uuid in found if uuid is not None)
    bound_mb = sum(part.memory_mb for part in parts if part.cell is not None)
    if len(uuids) < 2 or bound_mb > memory_mb:
        return frozenset(), 0
    if uuids >= {_memory_provider(cell, host, cells) for cell in cells} - {None}:
        return frozenset(), 0
    return uuids, sum(part.memory_mb for part in split)


def _memory_provider(cell: int | None, host: ProviderIndex, cells: Mapping[int, str]) -> str | None:
    """The provider below the root that has the memory of the host's cell; None if it has none."""
    provider = host.tree.get(cells.get(cell, "")) if cell is not None else None
    if provider is None or provider.parent is None or MEMORY not in provider.inventories:
        return None
    return provider.uuid


def with_allocated_disk(guest: Guest, allocations: Allocations) -> Guest:
    """The guest with the DISK_GB that its allocations have, if this host has not read its disks yet."""
    amount = sum(amounts.get(DISK, 0) for amounts in allocations.values())
    if guest.problem is None or not amount:
        return guest
    return replace(guest, resources={**guest.resources, DISK: amount}, problem=None)


def with_claimed_devices(guest: Guest, claim: Claim, devices: Mapping[str, str]) -> Guest:
    """The guest with those mediated devices located that its claim has, and that the driver did not see yet.

    Such a device was made for the claim a moment ago. `devices` is {provider uuid: device}.
    """
    claimed = {unit: (name, devices[uuid]) for uuid, name, unit in claim.exact if uuid in devices}
    units, amounts = [], dict(guest.resources)
    for used in guest.units:
        if used.device == f"{UNSEEN_MDEV}{used.unit}" and used.unit in claimed:
            name, device = claimed[used.unit]
            amounts[name] = amounts.get(name, 0) + 1
            units.append(replace(used, resource_class=name, device=device))
        else:
            units.append(used)
    return replace(guest, resources=amounts, units=tuple(units))


def with_disk(request: ClaimRequest, guest: Guest) -> ClaimRequest:
    """The request with the guest's DISK_GB, if the request has none."""
    amount = guest.resources.get(DISK, 0)
    return request.with_more({DISK: amount}) if amount and DISK not in request.resources else request


def given_resources(claim: Claim, tree: ProviderTree, cells: HostCells) -> GivenResources:
    """All that the claim gave; `tree` are the providers of this host, `cells` its NUMA cells."""
    amounts = claim.request.resources
    labelled = [(mapping.label, mapping.units) for mapping in claim.mappings(tree)] or [("", claim.units)]
    devices = tuple(
        GivenDevice(label, name, unit, cells.cell_of(uuid, tree))
        for label, units in labelled
        for uuid, classes in units.items()
        for name, exact in classes.items()
        for unit in exact
        if name not in CPU_CLASSES
    )
    shared = {cell.id: cell.shared for cell in cells.cells}
    given_cells = tuple(
        GivenCell(
            placed.guest_cell,
            placed.host_cell,
            placed.memory_mb,
            placed.pinning,
            placed.floating,
            shared.get(placed.host_cell, frozenset()),
            None if placed.page_kib == cells.small_page_kib else placed.page_kib,
            placed.emulator,
        )
        for placed in claim.cells
    )
    pinned = (unit for classes in claim.units.values() for unit in classes.get("PCPU", ()))
    dedicated = sorted(int(unit) for unit in pinned if unit.isdecimal())
    vcpus = sum(len(cell.cpus) for cell in given_cells) or sum(amounts.get(name, 0) for name in CPU_CLASSES)
    return GivenResources(
        claim.consumer,
        claim.request.name,
        vcpus,
        amounts.get("MEMORY_MB", 0),
        devices,
        given_cells,
        {} if given_cells else dict(enumerate(dedicated)),
        {
            cell: memory_mb
            for uuid, cell in cells.of_provider.items()
            if (memory_mb := claim.allocations.get(uuid, {}).get(CPULESS_MEMORY))
        },
    )
