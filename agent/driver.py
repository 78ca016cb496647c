"""The interface between the agent and a virt driver: `Driver` and its values.

A driver describes a host; it makes no claims and does not know Placement (seed 2018). It names providers, and
the agent gives them uuids. All values are frozen. If nothing changed, a driver should return the same object
as before: the agent then has nothing to compare.

Drivers of other projects register a class in the entry point group `plimsoll.drivers`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from agent.device_names import unit_in_place
from agent.errors import UsageError

ENTRY_POINT_GROUP = "plimsoll.drivers"


@dataclass(frozen=True, slots=True)
class DescribedInventory:
    """An inventory as the host has it.

    `max_unit` None means `total`. `allocation_ratio` None keeps the ratio that Placement has, and
    `initial_allocation_ratio` is the ratio for an inventory that Placement does not have yet.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float | None = None
    initial_allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class CardShape:
    """One size in which a card can be given: `size` slots of its axis, and `counters` {counter: amount}.

    `units` {exact unit: the slot in which it starts} are all places that the size may have on the card: one
    unit each, or one for each virtual function that may have it. `functions` {exact unit: PCI address of that
    function}: units of one function exclude each other. Sizes of different `mode` are never on a card
    together.
    """

    size: int
    units: Mapping[str, int]
    counters: Mapping[str, int] = field(default_factory=dict)
    mode: str = ""
    functions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CardLayout:
    """How a card is divided: `slots` of its axis, `counters` {counter: total}, {resource class: shape}.

    `sizes` {number at the end of a type's id: slots} are those of all known types, also of those that
    are not enabled. See `agent.providers.divided_cards`.
    """

    slots: int
    counters: Mapping[str, int]
    shapes: Mapping[str, CardShape]
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DescribedProvider:
    """A provider that the host should have in Placement; `parent` is a name, None for the host itself.

    `device` identifies the device behind it ("host", "numa:0", "pci:0000:84:00.0"); names are never parsed.
    `units` {resource class: exact units} lists units that can be told apart (PCPU: CPU ids; SRIOV_NET_VF:
    PCI addresses), in the order in which the agent assigns them. `aggregates` are uuids. `cell` is the id of
    its NUMA cell, None if it spans several cells or its cell is unknown.

    `ways` are sets of resource classes that exclude each other: while a class of one set is in use, classes
    of the other sets are not available. The classes of one set share their units. All have exact units.

    `to_make` {resource class: {unit: {"parent": PCI address, "type": id of a mediated type}}} are units that
    do not exist yet and how to create them. For a vGPU of a vendor's own VFIO driver the parent is the
    virtual function whose type it is, and "placement" the slot of the card in which it is to start.

    `card` says how the classes of a card share its room, where each size may be in certain places only. Their
    `units` are all places; the total of each class is how many of it the empty card can give.

    `withheld` are classes without exact units that are given to no consumer that does not have some of them.
    `unit_drivers` {exact unit: trait of the driver of VFIO under which a guest gets it}, where it is known.
    """

    name: str
    parent: str | None = None
    inventories: Mapping[str, DescribedInventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    device: str = "host"
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cell: int | None = None
    ways: tuple[frozenset[str], ...] = ()
    to_make: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    card: CardLayout | None = None
    withheld: frozenset[str] = frozenset()
    unit_drivers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoveInstruction:
    """A move instruction (seed 2018): `moved_resources` {resource class: amount} went to another provider.

    Providers are given by name. `consumers` {consumer uuid: {resource class: amount}} are the amounts that
    consumers use, where the driver knows them. `becomes` {class: its name at the target} is for a move that
    changes the class (VCPU to PCPU); source and target may then be the same. A driver may repeat an
    instruction in every description: the agent ignores one that was carried out.

    An instruction from a provider to itself without `becomes` parks units: `consumers` use them, but no
    device that the driver knows has them. They stay while the rest moves.
    """

    from_resource_provider: str
    moved_resources: Mapping[str, int]
    to_resource_provider: str
    consumers: Mapping[str, Mapping[str, int]] | None = None
    becomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        """Whether source, target and class are the same."""
        return self.from_resource_provider == self.to_resource_provider and not self.becomes


Move = MoveInstruction
"""The former name of `MoveInstruction`, which drivers of other projects may import."""


@dataclass(frozen=True, slots=True)
class Description:
    """The provider tree of a host, and what moved in it. The host is first, and parents precede children.

    `reportable` are the standard traits that the driver could report. The agent takes those that the driver
    does not report on a described provider away from it, also where another program put them there.
    A driver that could not read something leaves out the traits that follow from it. `problems` are sentences
    on devices that are not as the operator's options say, and on what no guest is offered.
    """

    providers: tuple[DescribedProvider, ...]
    moves: tuple[MoveInstruction, ...] = ()
    reportable: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


class GuestState(StrEnum):
    """The state of a guest. One that is STARTING or MIGRATING does not run here yet, and may never."""

    RUNNING = "running"
    STARTING = "starting"
    MIGRATING = "migrating"
    PAUSED = "paused"
    SHUTOFF = "shutoff"
    CRASHED = "crashed"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class UsedUnit:
    """An exact unit that a guest uses; `device` is the `DescribedProvider.device` that has it.

    `asked_port` is the MAC address and the VLAN that the guest's definition gives a virtual function, `port`
    what the card has for it, both as of `agent.device_names.PORT`; empty where that is not known.
    """

    resource_class: str
    unit: str
    device: str
    asked_port: str = ""
    port: str = ""


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """Memory of a guest that is bound to a NUMA cell of the host or in huge pages, in MiB.

    `cell` is None for huge pages of any cell. `page_kib` is None where the guest asks for no page size.
    `guest_cell` is the guest's cell that has all of it, None where it is unknown.
    """

    cell: int | None
    memory_mb: int
    page_kib: int | None = None
    guest_cell: int | None = None


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest, running or only defined, and what it uses.

    `resources` {resource class: amount}: VCPU or PCPU, MEMORY_MB (MiB), DISK_GB (GiB, rounded up), and
    devices. `memory` is the part of its memory that is bound to cells or in huge pages. `problem` says what
    could not be read; `state`, `resources` and `units` are then those last known, and may be wrong. A driver
    must not leave out such a guest, because a missing guest is one that is gone. `encryption` are traits: the
    key of its encrypted memory is on a provider with one of them; empty where it is not encrypted.
    """

    uuid: str
    name: str
    state: GuestState
    resources: Mapping[str, int]
    units: tuple[UsedUnit, ...] = ()
    problem: str | None = None
    memory: tuple[UsedMemory, ...] = ()
    encryption: frozenset[str] = frozenset()

    @property
    def is_off(self) -> bool:
        """Whether it is only defined, or has crashed: it uses nothing, and units that it names stay its own.

        Not so one that a new state directory found (`Place.found`): what was claimed for it is not known.
        """
        return self.state in (GuestState.SHUTOFF, GuestState.CRASHED)

    @property
    def is_here(self) -> bool:
        """Whether it runs on this host, or stands still here: not one that is off, or not here yet."""
        return not self.is_off and self.state not in (GuestState.STARTING, GuestState.MIGRATING)


class DeviceKind(StrEnum):
    """How a domain names a device of the host: by the tag or the type of its element."""

    INTERFACE = "interface"
    PCI = "pci"
    MEDIATED = "mdev"
    VDPA = "vdpa"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class NeededDevice:
    """A device of the host that a domain asks for.

    `alias` is its alias without the prefix `ua-`, empty where it has none. `unit` is the PCI address, the
    uuid or the name of the device that the domain names, empty where any device will do. `text` is how a
    sentence names the element. `by_name_only`: without an alias or a unit, no device will do.
    """

    kind: DeviceKind
    alias: str = ""
    unit: str = ""
    text: str = ""
    by_name_only: bool = False


@dataclass(frozen=True, slots=True)
class NeededCell:
    """A NUMA cell that a domain asks for. `host_cell` and `page_kib` are None where any will do."""

    cpus: frozenset[int]
    memory_mb: int
    host_cell: int | None = None
    page_kib: int | None = None


@dataclass(frozen=True, slots=True)
class DomainNeeds:
    """What a domain asks for, as its XML says; what it leaves out is empty, None or 0.

    `uuid` and `name` may be empty. `memory_mb` is in MiB, `disk_gb` in GiB. `dedicated` {guest CPU: host CPU}
    are the CPUs that need a host CPU of their own, None where any will do; `pinned` are all guest CPUs that
    are pinned to one CPU, of this host or of another one. `isolate_emulator`: the emulator's threads need a
    host CPU of their own; `emulator` is that CPU, None where any will do. `cells` are the guest's, by id.
    `page_kib` and `host_cell` are those of a domain without cells. `amounts` {class: amount} are needed
    beside CPUs, memory, disks and devices; `encryption` as of `Guest`. `vcpu_ids` are the `vcpus` that the
    guest starts with, and `memory` is what it would use if it started as it is. `floating` {guest CPU: host
    CPUs} are those that share the host CPUs that they are pinned to. `scattered`: memory is bound otherwise
    than strictly, or a guest's cell to several cells of the host, or memory devices have other pages, or are
    on other cells of the host, than the guest's cells that they belong to.
    """

    uuid: str = ""
    name: str = ""
    vcpus: int | None = None
    memory_mb: int | None = None
    disk_gb: int = 0
    dedicated: Mapping[int, int | None] = field(default_factory=dict)
    pinned: frozenset[int] = frozenset()
    isolate_emulator: bool = False
    emulator: int | None = None
    cells: tuple[NeededCell, ...] = ()
    page_kib: int | None = None
    host_cell: int | None = None
    devices: tuple[NeededDevice, ...] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    vcpu_ids: frozenset[int] = frozenset()
    memory: tuple[UsedMemory, ...] = ()
    floating: Mapping[int, frozenset[int]] = field(default_factory=dict)
    scattered: bool = False
    encryption: frozenset[str] = frozenset()

    def without_places(self) -> "DomainNeeds":
        """The same needs on any host: without the devices, CPUs and cells that it names.

        A CPU that is pinned to one CPU needs one of its own: which CPUs are for that, differs between hosts.
        """
        return replace(
            self,
            dedicated=dict.fromkeys(self.pinned),
            emulator=None,
            cells=tuple(replace(cell, host_cell=None) for cell in self.cells),
            host_cell=None,
            devices=tuple(replace(device, unit="") for device in self.devices),
            vcpu_ids=frozenset(),
            memory=(),
        )


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """An exact device that a claim gave to a guest.

    `label` is the suffix of its request group or the name of its PCI alias, empty where the request named
    none. `unit` is a PCI address or the uuid of a mediated device, `cell` the NUMA cell of the host that is
    nearest to it, None where that is unknown.
    """

    label: str
    resource_class: str
    unit: str
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class GivenCell:
    """A NUMA cell of a guest, on its host cell.

    `pinned` is {guest CPU: host CPU}; the guest CPUs in `floating` run on `shared_cpus` of the host.
    `page_kib` is the size of the pages that back `memory_mb`, None for the host's small pages. `emulator` are
    host CPUs for the emulator's threads alone. `host_cell` is None for memory that is bound to none.
    """

    cell: int
    host_cell: int | None
    memory_mb: int
    pinned: Mapping[int, int] = field(default_factory=dict)
    floating: frozenset[int] = frozenset()
    shared_cpus: frozenset[int] = frozenset()
    page_kib: int | None = None
    emulator: frozenset[int] = frozenset()

    @property
    def cpus(self) -> frozenset[int]:
        """The guest CPUs of the cell."""
        return self.floating.union(self.pinned)


@dataclass(frozen=True, slots=True)
class GivenResources:
    """All that a claim gave to a guest, as a domain needs it. `memory_mb` is in MiB.

    `cells` is empty for a guest without a NUMA topology; `pinned` {guest CPU: host CPU} are then the CPUs for
    its use alone. `cpuless_mb` {host cell without CPUs: MiB of its memory} are beside `memory_mb`.
    """

    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    devices: tuple[GivenDevice, ...] = ()
    cells: tuple[GivenCell, ...] = ()
    pinned: Mapping[int, int] = field(default_factory=dict)
    cpuless_mb: Mapping[int, int] = field(default_factory=dict)

    def with_memory_cells(self) -> "GivenResources":
        """The same, with a cell of the guest for its memory on each host cell without CPUs.

        A guest without cells gets a first one for its CPUs and its other memory, if it has any.
        """
        cells, vcpus = list(self.cells), frozenset(range(self.vcpus))
        if self.cpuless_mb and self.memory_mb and not cells:
            cells.append(GivenCell(0, None, self.memory_mb, floating=vcpus))
        for host_cell, memory_mb in sorted(self.cpuless_mb.items()):
            floating = frozenset[int]() if cells else vcpus
            cells.append(GivenCell(len(cells), host_cell, memory_mb, floating=floating))
        memory_mb = self.memory_mb + sum(self.cpuless_mb.values())
        return replace(self, cells=tuple(cells), memory_mb=memory_mb, cpuless_mb={})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A device in an IOMMU group. `driver` is empty where none is bound; `vfio`: it is one of VFIO's."""

    address: str
    driver: str = ""
    vfio: bool = False
    bridge: bool = False


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A PCI device of the host, as the kernel shows it now, for those who give it to a guest.

    `driver` and `vfio` as of `GroupMember`. `uses` are clauses on what the host itself has it for: "shows the
    host's console (fb0)". `group` is its IOMMU group, None without one, and `members` all devices in that,
    itself included. `reset_methods` is None where the kernel does not tell them. `cell` is its NUMA cell,
    None without affinity, and `near_cell` the nearest cell that has CPUs. `vfs` are its virtual functions,
    and `vfs_in_guests` those that a driver of VFIO has. `migration_drivers` are the kernel's drivers of VFIO
    known to migrate it, the bound one first; `migration_doubt` is why one may that is not known to, a clause,
    empty where none does. `becomes` is the driver of VFIO that the hypervisor binds to it
    where the domain has managed='yes', empty where that is not known. `managed` and `live_migratable` are
    what the operator's settings say of it, True and None where they say nothing. `own_file` is the file below
    /dev/vfio/devices by which iommufd opens it, empty where VFIO has none; with `iommufd` the kernel has
    /dev/iommu. `cc_mode` is a key of `agent.device_names.CC_MODES`, None where it cannot be read. `openers`
    are clauses on the programs that have it open over VFIO, as far as they were looked for.
    """

    address: str
    driver: str = ""
    vfio: bool = False
    bridge: bool = False
    uses: tuple[str, ...] = ()
    group: str | None = None
    members: tuple[GroupMember, ...] = ()
    reset_methods: tuple[str, ...] | None = None
    cell: int | None = None
    near_cell: int | None = None
    vfs: tuple[str, ...] = ()
    vfs_in_guests: tuple[str, ...] = ()
    migration_drivers: tuple[str, ...] = ()
    own_file: str = ""
    iommufd: bool = False
    cc_mode: str | None = None
    openers: tuple[str, ...] = ()
    becomes: str = ""
    managed: bool = True
    live_migratable: bool | None = None
    migration_doubt: str = ""


@dataclass(frozen=True, slots=True)
class PassedDevice:
    """A PCI device that a domain's XML gives to its guest.

    `managed`: libvirt binds it to VFIO's driver when the guest starts. `device` is None where the host has no
    such device. `iommufd`: the guest gets it over iommufd, not over the file of its IOMMU group.
    """

    address: str
    managed: bool
    device: HostDevice | None
    iommufd: bool = False


@dataclass(frozen=True, slots=True)
class CarvedUnit:
    """A unit that a reboot of the host removes, and how to make it again.

    `unit` is the PCI address of a virtual function, or the uuid of a mediated device; `card` the address of
    its card, `parent` that of the function on which it was made: for a virtual function its own. `type_id` is
    the id of its mediated type, or of the vGPU type of a function under a vendor's own VFIO driver; empty for
    any other function. `placement` is the place of a vGPU type on its card, None where that is unknown.
    `port` is what a network card has for its virtual function (`agent.device_names.PORT`), empty for nothing.
    """

    unit: str
    card: str
    parent: str
    type_id: str = ""
    placement: int | None = None
    port: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The exact units of claims and guests that this is."""
        if self.placement is None:
            return (self.unit,)
        return self.unit, unit_in_place(self.unit, self.type_id, self.placement)


@dataclass(frozen=True, slots=True)
class DeclaredCarving:
    """How the operator wants cards to be divided after each boot; keys are PCI addresses.

    `vfs` {card: number of virtual functions}, `drivers` {function: the only driver that may be bound to it},
    `vf_drivers` {card: the same for all of its virtual functions}, `vgpu_types` {function: id of a type}.
    `mdev_types` {id of a type: the functions or cards on which it may be made; empty: any that offers it}.
    `mixed` are cards in mixed-size mode, whose functions have the types that claims and domains need. With
    `ports` functions of network cards get the MAC addresses and VLANs again that they had. `mig` {card: MIG
    instances, each a profile and the memory slice in which it starts, such as 3g.20gb:4}. `quotas` {option of
    [devices]: {card: the pair that each of its virtual functions gets by it, such as 25/500000}}. With
    `links` the groups of GPUs that XGMI or NVLink joins are to be known.
    """

    vfs: Mapping[str, int] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    vf_drivers: Mapping[str, str] = field(default_factory=dict)
    vgpu_types: Mapping[str, str] = field(default_factory=dict)
    mdev_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    ports: bool = False
    mig: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quotas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    links: bool = False

    def allows(self, type_id: str, function: str, card: str) -> bool:
        """Whether a device of the type may be made on this function of the card."""
        addresses = self.mdev_types.get(type_id)
        return addresses is not None and (not addresses or bool(addresses & {function, card}))


ROOT_SIGHT = Path("var/lib/plimsoll-devices/seen.json")
"""Below the host's root: the file with a `RootSight`, as JSON."""


@dataclass(frozen=True, slots=True)
class RootSight:
    """What only root sees of devices; `plimsoll devices apply` writes it, and the agent reads it.

    `migrates` {function: {its driver of VFIO: whether the kernel says that this one migrates it}}. `groups`
    {GPU: the first one of the group that XGMI or NVLink joins}; `problem` is a clause on what tells none.
    `cc_modes` {GPU: its mode of confidential computing, a key of `agent.device_names.CC_MODES`}.
    """

    migrates: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    cc_modes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceSigns:
    """What the kernel shows of the health of a PCI device, or of a cell's memory; None is not known.

    `address` is that of the device, or "numa:" and the id of the cell.

    `answers`: it is on the bus, and its configuration space does not read as ones. `driver` is the bound
    driver, empty without one; `vfio`: it is one of VFIO's. `only_driver` is the one that alone may be bound,
    empty for any. `has_link`: a network interface of a card with virtual functions is up and has a carrier.
    `fatal_errors`, `nonfatal_errors` and `memory_errors` count the uncorrected errors since the device was
    found: on PCI Express by severity, and in its own memory. `has_power`: its power state could be changed.
    """

    address: str
    answers: bool | None = None
    driver: str | None = None
    vfio: bool = False
    only_driver: str = ""
    has_link: bool | None = None
    fatal_errors: int | None = None
    nonfatal_errors: int | None = None
    memory_errors: int | None = None
    has_power: bool | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A NUMA cell. `siblings` are the hardware threads of each core, `pages` {size in KiB: count}.

    `socket` is the id of its CPU socket, None if it spans several or the socket is unknown.
    """

    id: int
    cpus: frozenset[int]
    memory_mb: int
    siblings: tuple[frozenset[int], ...] = ()
    pages: Mapping[int, int] = field(default_factory=dict)
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The host's cells, and the CPUs for shared (VCPU) and for dedicated (PCPU) use.

    `near` {cell that has memory alone: the nearest cell with CPUs, None where that is unknown} are none of
    the `cells`: their memory has a class of its own, `agent.device_names.CPULESS_MEMORY`.
    """

    cells: tuple[Cell, ...]
    shared_cpus: frozenset[int]
    dedicated_cpus: frozenset[int] = frozenset()
    near: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReservedPages:
    """Large pages of a NUMA node that guests do not get; the size is in KiB."""

    node: int
    size_kib: int
    count: int


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The operator's settings for the host, for every driver; names and defaults are those of nova.

    A CPU set of None is not configured: without both, all CPUs are shared. A ratio of None keeps the ratio
    that Placement has. With `cpu_power_management` and the strategy `cpu_state`, dedicated CPUs that are
    offline are offered, too.
    """

    reserved_host_cpus: int = 0
    reserved_host_memory_mb: int = 512
    reserved_host_disk_mb: int = 0
    cpu_allocation_ratio: float | None = None
    ram_allocation_ratio: float | None = None
    disk_allocation_ratio: float | None = None
    initial_cpu_allocation_ratio: float = 4.0
    initial_ram_allocation_ratio: float = 1.0
    initial_disk_allocation_ratio: float = 1.0
    cpu_shared_set: frozenset[int] | None = None
    cpu_dedicated_set: frozenset[int] | None = None
    cpu_power_management: bool = False
    cpu_power_management_strategy: str = "cpu_state"
    cpu_power_governor_low: str = "powersave"
    cpu_power_governor_high: str = "performance"
    reserved_huge_pages: tuple[ReservedPages, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """All that a driver gets. `options` {group: {option: value}} has the groups in its `OPTIONS`.

    `state_path` is the agent's directory, for what a driver must remember over a restart; with None it keeps
    nothing. `read_only`: the caller only looks, so the driver changes nothing on the host.
    """

    host: str
    host_settings: HostSettings = HostSettings()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state_path: Path | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option that fits this host; `value` is text as in a configuration file, `why` is a sentence.

    With `certain` False only the operator can decide: `plimsoll init` writes the option as a comment.
    """

    group: str
    option: str
    value: str
    why: str
    certain: bool = True


class Driver(ABC):
    """A virt driver. Methods may be called from any thread; each must return or raise within a deadline.

    Every method raises `DriverUnavailable` where the hypervisor does not answer, and `DriverDataError` where
    its answer makes no sense. A driver reconnects by itself: a later call tries again.
    """

    OPTIONS: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """{group: (oslo.config options, ...)} that the driver reads from the configuration.

    A group "mdev_<type>" stands for all groups that begin with "mdev_". The driver gets those that the
    configuration has, under their own names, and `create` refuses unknown ones.
    """

    @classmethod
    @abstractmethod
    def create(cls, settings: DriverSettings) -> Self:
        """A driver with these settings, not connected yet. Raises SettingsError for invalid options."""

    @classmethod
    def check_options(cls, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Check {group: {option: value}} of its `OPTIONS` by themselves, where another driver is configured.

        Raises SettingsError where `create` would refuse them on any host.
        """
        return None

    @abstractmethod
    def describe(self) -> Description:
        """The provider tree of the host, and the moves in it."""

    @abstractmethod
    def guests(self) -> tuple[Guest, ...]:
        """The guests that run or are defined on the host, in the order of their uuids."""

    def guest_of(self, xml: str) -> Guest:
        """The guest that a domain's XML describes; it may be about to start, and unknown to the driver.

        A driver must not call the hypervisor here, because the hypervisor may be waiting for the result. So
        DISK_GB is left out if it was not read before. Raises DriverDataError where the XML is malformed,
        UsageError where the driver has no guests in XML, DriverUnavailable before the devices were read.
        """
        raise UsageError(f"{type(self).__name__} does not read the XML of guests.")

    def needs_of(self, xml: str) -> DomainNeeds:
        """What the domain's XML asks for; it may lack what libvirt requires.

        As in `guest_of`, a driver must not call the hypervisor. Raises DriverDataError where the XML is
        malformed, UsageError where the driver has no guests in XML.
        """
        raise UsageError(f"{type(self).__name__} does not read the XML of guests.")

    def write_domain(self, xml: str, given: GivenResources, *, replace: bool = False) -> str:
        """The domain's XML with everything that a claim gave to the guest; the rest of it stays as it is.

        `replace`: what it has from a former place is written over. Raises UsageError where the domain
        contradicts the claim, with each contradiction in `contradictions`, or where the driver has no guests
        in XML; DriverDataError where the XML is malformed.
        """
        raise UsageError(f"{type(self).__name__} does not write the XML of guests.")

    def host_device(self, address: str) -> HostDevice | None:
        """The PCI device of the host, as the kernel shows it now; None where there is none.

        A driver must not call the hypervisor here. Raises UsageError for what is no PCI address, or where the
        driver does not read devices.
        """
        raise UsageError(f"{type(self).__name__} does not read the PCI devices of the host.")

    def passed_devices(self, xml: str) -> tuple[PassedDevice, ...]:
        """The PCI devices that a domain's XML gives to its guest, for the checks before it starts.

        A driver must not call the hypervisor here. Empty where the driver does not read devices. Raises
        DriverDataError where the XML is malformed.
        """
        return ()

    def device_signs(self) -> tuple[DeviceSigns, ...]:
        """The signs of health of what the host has, as it was described last.

        That is: its PCI devices with their functions, and the memory of cells with large pages.

        A driver must not call the hypervisor here. Empty where the driver does not read devices. Raises
        DriverUnavailable before the host was described.
        """
        return ()

    @abstractmethod
    def topology(self) -> Topology:
        """The NUMA cells and the CPU sets of the host."""

    def suggest(self) -> tuple[Suggestion, ...]:
        """Options of this driver that fit the host, for `plimsoll init`."""
        return ()

    @classmethod
    def declared_carving(cls, settings: DriverSettings) -> DeclaredCarving:
        """How the operator wants cards to be divided after a boot. Raises SettingsError for invalid options.

        It is asked by a process that runs as root and knows no hypervisor: it must only read the options.
        """
        return DeclaredCarving()

    def carved_units(self) -> tuple[CarvedUnit, ...]:
        """The units of cards that a boot would remove, of which the driver knows how they were made.

        That is the state at the last reading; it need not be read anew.
        """
        return ()

    def unmatched_options(self) -> tuple[str, ...]:
        """Sentences on options that match nothing on the host as it was described last. Makes no call."""
        return ()

    def disk_free_gb(self) -> int | None:
        """GiB that are free where DISK_GB is; None if the driver does not know."""
        return None

    @abstractmethod
    def watch(self, changed: Callable[[str], None]) -> None:
        """From now on call `changed(why)`, from any thread, when the host or a guest may have changed."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection to the hypervisor; idempotent."""
