"""The contract between the agent and a virt driver.

A driver describes; it never claims and never sees placement (seed 2018). It names providers, the agent gives
them uuids. Everything here is a frozen value; a driver that finds nothing new may return the very same object
again, and the agent then knows without looking that there is nothing to do.

Third parties' drivers are found by the entry point group `plimsoll.drivers`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self

from agent.errors import UsageError

ENTRY_POINT_GROUP = "plimsoll.drivers"


@dataclass(frozen=True, slots=True)
class DescribedInventory:
    """An inventory as the host has it.

    `max_unit` None means `total`. `allocation_ratio` None leaves the ratio that placement has alone;
    `initial_allocation_ratio` is used when placement has none yet.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float | None = None
    initial_allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class DescribedProvider:
    """A provider as the driver wants it; `parent` is a name, None for the host itself.

    `device` says which thing stands behind it ("host", "numa:0", "pci:0000:84:00.0"): names are never parsed.
    `units` lists the exact units of a class where the host has them (PCPU: cpu ids; SRIOV_NET_VF: addresses),
    in the order in which they are handed out. `aggregates` are uuids. `cell` is the id of the NUMA cell that
    all of it is on, None where it is on none, on several, or nobody knows.

    `ways` are sets of classes that exclude each other: while a class of one is in use, nothing of another can
    be given; the classes of one set share their units. All of them have exact units. `to_make` {class: {unit:
    what is to be made for it}} are units that do not exist yet: {"parent": PCI address, "type": the id of a
    mediated type}.
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


@dataclass(frozen=True, slots=True)
class MoveInstruction:
    """A move instruction (seed 2018): `moved_resources` {class: amount} went from one provider to another.

    Providers by name. `consumers` {consumer uuid: {class: amount}} where the driver knows who uses which.
    `becomes` {class: its name at the target} where moving changes the class (VCPU to PCPU); the two providers
    may then be one. An instruction stands for as long as the driver likes: one that is done is no work.

    From a provider to itself, without `becomes`, it tells who uses what was counted there and is on no device
    that the driver knows: that stays, parked, while the rest moves.
    """

    from_resource_provider: str
    moved_resources: Mapping[str, int]
    to_resource_provider: str
    consumers: Mapping[str, Mapping[str, int]] | None = None
    becomes: Mapping[str, str] = field(default_factory=dict)

    @property
    def stays(self) -> bool:
        """Whether it goes nowhere."""
        return self.from_resource_provider == self.to_resource_provider and not self.becomes


Move = MoveInstruction
"""The former name of `MoveInstruction`; drivers of other projects may still import it."""


@dataclass(frozen=True, slots=True)
class Description:
    """The tree a driver wants, and what moved in it. The first provider is the host, parents come first."""

    providers: tuple[DescribedProvider, ...]
    moves: tuple[MoveInstruction, ...] = ()


class GuestState(StrEnum):
    """STARTING and MIGRATING: not running here yet, and not known to do so ever."""

    RUNNING = "running"
    STARTING = "starting"
    MIGRATING = "migrating"
    PAUSED = "paused"
    SHUTOFF = "shutoff"
    CRASHED = "crashed"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class UsedUnit:
    """One exact unit a guest holds: `device` is the `DescribedProvider.device` that it belongs to."""

    resource_class: str
    unit: str
    device: str


@dataclass(frozen=True, slots=True)
class UsedMemory:
    """Memory that a guest has on one NUMA cell of the host; `page_kib` None: in pages of no size it asked.

    `cell` None: in large pages of any cells. `guest_cell` is the guest's own cell that all of it is of, None
    where that is not told.
    """

    cell: int | None
    memory_mb: int
    page_kib: int | None = None
    guest_cell: int | None = None


@dataclass(frozen=True, slots=True)
class Guest:
    """A domain, running or only defined, and what it uses.

    `resources` {class: amount}: VCPU or PCPU, MEMORY_MB (MiB), DISK_GB (GiB, rounded up), and devices.
    `memory` is what of its memory must be on certain cells or in large pages, empty if it may be anywhere.
    `problem` is a sentence on what of it could not be read; then `resources` and `units` are what was last
    known, if anything, and prove nothing. Such a guest is there all the same: to leave it out would say that
    it is gone.
    """

    uuid: str
    name: str
    state: GuestState
    resources: Mapping[str, int]
    units: tuple[UsedUnit, ...] = ()
    problem: str | None = None
    memory: tuple[UsedMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """A NUMA cell: `siblings` are the sets of hardware threads of one core, `pages` {size in KiB: count}.

    `socket` is the id of the CPU socket that all of it is on, None where it is on several or nobody knows.
    """

    id: int
    cpus: frozenset[int]
    memory_mb: int
    siblings: tuple[frozenset[int], ...] = ()
    pages: Mapping[int, int] = field(default_factory=dict)
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The host's cells, and which CPUs are for shared (VCPU) and for dedicated (PCPU) use."""

    cells: tuple[Cell, ...]
    shared_cpus: frozenset[int]
    dedicated_cpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The operator's word on every driver's host; names and defaults as operators know them from nova.

    A CPU set of None is "not configured": all CPUs are shared. A ratio of None leaves placement's alone.
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


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """All a driver is given. `options` {group: {option: value}} holds the groups that it declared.

    `state_path` is the agent's directory, for what a driver must remember over a restart; None: it keeps
    nothing.
    """

    host: str
    host_settings: HostSettings = HostSettings()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state_path: Path | None = None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option that the driver would set on this host; `value` as a configuration file has it.

    `why` is a sentence. `certain` False: only the operator can know; it is shown, and left commented out.
    """

    group: str
    option: str
    value: str
    why: str
    certain: bool = True


class Driver(ABC):
    """A virt driver. Methods may be called from any thread; each returns or raises within its deadline.

    Every method raises `DriverUnavailable` when the hypervisor does not answer and `DriverDataError` when its
    answer makes no sense; after the first, a later call tries again (the driver reconnects by itself).
    """

    OPTIONS: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """{group: (oslo.config options, ...)} that this driver wants from the configuration.

    A group "mdev_<type>" stands for all that begin with "mdev_": those that the configuration has are handed
    over by their own names, and `create` refuses the ones that mean nothing.
    """

    @classmethod
    @abstractmethod
    def create(cls, settings: DriverSettings) -> Self:
        """Make a driver. Does not connect. Raises SettingsError where its options make no sense."""

    @abstractmethod
    def describe(self) -> Description:
        """The provider tree this host wants, and the moves."""

    @abstractmethod
    def guests(self) -> tuple[Guest, ...]:
        """What runs or is defined here, with the exact units each uses, in the order of their uuids."""

    def guest_of(self, xml: str) -> Guest:
        """The guest that a domain's XML describes, which may be about to start and not be known yet.

        Nothing is asked of the hypervisor, which may be waiting for the answer; so DISK_GB is left out where
        it was not read before. Raises DriverDataError for what is no such XML, UsageError where the driver's
        guests have none, DriverUnavailable while the devices were not read yet.
        """
        raise UsageError(f"{type(self).__name__} has no guests that are described in XML.")

    @abstractmethod
    def topology(self) -> Topology:
        """The host's NUMA cells and CPU sets."""

    def suggest(self) -> tuple[Suggestion, ...]:
        """Options of its own that this host calls for, for `plimsoll init`."""
        return ()

    @abstractmethod
    def watch(self, changed: Callable[[str], None]) -> None:
        """Call `changed(why)`, from any thread, whenever the host or a guest may have changed."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the hypervisor; idempotent."""
