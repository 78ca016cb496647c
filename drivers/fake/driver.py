"""The fake driver: `Driver` over a described host, with faults and delays that a test can set.

The driver repeats the move instructions in every description: from each provider that may have had an
inventory before. The agent ignores an instruction whose source has no inventory.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import os_traits
from oslo_config import cfg

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Description,
    DeviceSigns,
    DomainNeeds,
    Driver,
    DriverSettings,
    GivenResources,
    Guest,
    HostDevice,
    HostSettings,
    MoveInstruction,
    PassedDevice,
    Topology,
)
from agent.errors import DriverError, DriverUnavailable, SettingsError
from drivers.fake.host import FakeHost, load_host
from drivers.host.domain_writer import write_domain
from drivers.host.domain_xml import over_iommufd, parse_domain, passed_addresses, read_needs, starting_guest
from drivers.host.providers import (
    REPORTABLE,
    absent_cpus,
    cell_provider_name,
    check_cpu_sets,
    described_locations,
    host_providers,
    page_providers,
    split_cpus,
)
from drivers.host.sysfs import Sysfs, device_addresses, parse_address, read_signs

DEFAULT_HOST_FILE = Path(__file__).with_name("default.yaml")
POLL_INTERVAL_S = 0.2

_Stamp = tuple[int, int, int]


@cache
def default_host() -> FakeHost:
    """The built-in host: 2 cells of 32 CPUs, 2 GPUs, 2 network cards of 8 virtual functions each."""
    return load_host(DEFAULT_HOST_FILE)


class FakeDriver(Driver):
    """A driver without a hypervisor.

    The host is a value, or a file that the driver reads again whenever it changes, so a script can change the
    host of a running agent. `describe` returns the same object while the host stays the same.
    """

    OPTIONS: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "fake": (
            cfg.StrOpt(
                "host_file",
                help="A YAML file that describes the host, reread when it changes. Unset: a built-in host.",
            ),
        )
    }

    def __init__(
        self,
        host: FakeHost | None = None,
        settings: DriverSettings | None = None,
        *,
        host_file: Path | None = None,
    ) -> None:
        self._settings = settings or DriverSettings(host="fake")
        self._host_file = host_file
        self._stamp: _Stamp | None = None
        self._host = host or default_host()
        self._description: tuple[FakeHost, Description] | None = None
        self._faults: list[DriverError] = []
        self._delay_s = 0.0
        self._watchers: list[Callable[[str], None]] = []
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._poller: threading.Thread | None = None

    @classmethod
    def create(cls, settings: DriverSettings) -> Self:
        """See `Driver`. Reads the host file, and raises SettingsError where it is wrong."""
        check_cpu_sets(settings.host_settings)
        name = settings.options.get("fake", {}).get("host_file")
        driver = cls(settings=settings, host_file=Path(name) if name else None)
        try:
            driver._reread()
        except DriverError as error:
            raise SettingsError(f"[fake] host_file: {error}", host_file=name) from error
        return driver

    # Driver

    def describe(self) -> Description:
        """See `Driver`."""
        host = self._answer()
        with self._lock:
            if self._description is None or self._description[0] is not host:
                new = describe_host(host, self._settings.host_settings, self._settings.host)
                old = self._description[1] if self._description else None
                self._description = (host, old if old == new else new)
            return self._description[1]

    def guests(self) -> tuple[Guest, ...]:
        """See `Driver`."""
        return self._answer().guests

    def disk_free_gb(self) -> int | None:
        """See `Driver`."""
        return self._answer().disk_free_gb

    def guest_of(self, xml: str) -> Guest:
        """See `Driver`. DISK_GB is that of the host's guest of the same uuid: disks have no size here."""
        domain, description = parse_domain(xml), self.describe()
        disk_sizes = {guest.uuid: guest.resources.get("DISK_GB", 0) for guest in self.guests()}
        return starting_guest(
            domain,
            disk_sizes.get(domain.uuid, None if domain.disks else 0),
            self._settings.host_settings.cpu_dedicated_set or frozenset(),
            described_locations(description.providers),
        )

    def needs_of(self, xml: str) -> DomainNeeds:
        """See `Driver`. DISK_GB is that of the host's guest of the same uuid."""
        disk_sizes = {guest.uuid: guest.resources.get("DISK_GB", 0) for guest in self.guests()}
        dedicated = self._settings.host_settings.cpu_dedicated_set or frozenset()
        return read_needs(xml, dedicated, disk_gb=lambda uuid, disks: disk_sizes.get(uuid) if disks else 0)

    def write_domain(self, xml: str, given: GivenResources, *, replace: bool = False) -> str:
        """See `Driver`."""
        return write_domain(xml, given, replace=replace)

    def host_device(self, address: str) -> HostDevice | None:
        """See `Driver`. The devices are those below `root_path`; without it there are none."""
        pci = self._pci()
        if pci is None:
            parse_address(address)
            return None
        return pci.read(address)

    def passed_devices(self, xml: str) -> tuple[PassedDevice, ...]:
        """See `Driver`. Empty without `root_path`."""
        pci, addresses = self._pci(), passed_addresses(xml)
        return pci.passed(addresses, over_iommufd(xml)) if pci is not None else ()

    def device_signs(self) -> tuple[DeviceSigns, ...]:
        """See `Driver`. Empty without `root_path`."""
        root = self._answer().root_path
        return read_signs(Path(root, "sys"), device_addresses(self.describe().providers)) if root else ()

    def _pci(self) -> Sysfs | None:
        root = self._answer().root_path
        return Sysfs(Path(root, "sys"), Path(root, "proc"), Path(root, "modules")) if root else None

    def unmatched_options(self) -> tuple[str, ...]:
        """See `Driver`."""
        return tuple(absent_cpus(self._host.cells, self._settings.host_settings))

    def topology(self) -> Topology:
        """See `Driver`."""
        return describe_topology(self._answer(), self._settings.host_settings)

    def watch(self, changed: Callable[[str], None]) -> None:
        """See `Driver`."""
        with self._lock:
            self._watchers.append(changed)
            if self._host_file is not None and self._poller is None:
                self._poller = threading.Thread(
                    target=self._poll,
                    args=(self._host_file, self._current_stamp(self._host_file)),
                    name="plimsoll-fake-watch",
                    daemon=True,
                )
                self._poller.start()

    def close(self) -> None:
        """See `Driver`."""
        self._closed.set()
        if self._poller is not None and self._poller is not threading.current_thread():
            self._poller.join(timeout=10 * POLL_INTERVAL_S)

    # What a test changes

    @property
    def host(self) -> FakeHost:
        """The current host."""
        return self._host

    def change(self, **fields: Any) -> None:
        """Replace fields of the host, and call the watchers."""
        with self._lock:
            self._set(replace(self._host, **fields))
        self.fire(f"the fake host's {', '.join(sorted(fields))} changed")

    def add_guest(self, guest: Guest) -> None:
        """Add a guest, or replace the one with its uuid."""
        others = (other for other in self._host.guests if other.uuid != guest.uuid)
        self.change(guests=(*others, guest))

    def remove_guest(self, uuid: str) -> None:
        """Remove a guest. Raises KeyError where the host has none with this uuid."""
        if uuid not in {guest.uuid for guest in self._host.guests}:
            raise KeyError(uuid)
        self.change(guests=tuple(guest for guest in self._host.guests if guest.uuid != uuid))

    def fail(self, times: int = 1, error: DriverError | None = None) -> None:
        """Make the next `times` calls raise `error`, by default DriverUnavailable."""
        with self._lock:
            fault = error or DriverUnavailable("the fake hypervisor does not answer, as a test asked for")
            self._faults += [fault] * times

    def delay(self, seconds: float) -> None:
        """Make each call take that long from now on; `close` ends the wait."""
        self._delay_s = seconds

    def fire(self, why: str) -> None:
        """Call the watchers: something may have changed."""
        with self._lock:
            watchers = tuple(self._watchers)
        for changed in watchers:
            changed(why)

    # Internals

    def _answer(self) -> FakeHost:
        """The host, after the delay and the fault that a test set. Raises DriverError."""
        if self._closed.is_set():
            raise DriverUnavailable("the fake driver was closed")
        with self._lock:
            fault = self._faults.pop(0) if self._faults else None
            if fault is None:
                self._reread()
            host, delay_s = self._host, max(self._delay_s, self._host.delay_s)
        if delay_s and self._closed.wait(delay_s):
            raise DriverUnavailable("the fake driver was closed")
        if fault is not None:
            raise fault
        if host.unavailable is not None:
            raise DriverUnavailable(host.unavailable)
        return host

    def _reread(self) -> bool:
        """Read the host file if it changed; True if it did. Raises DriverUnavailable or DriverDataError."""
        if self._host_file is None:
            return False
        with self._lock:
            try:
                stamp = self._file_stamp(self._host_file)
                if stamp == self._stamp:
                    return False
                self._set(load_host(self._host_file))
            except OSError as error:
                raise DriverUnavailable(
                    f"cannot read the host file {self._host_file}: {error.strerror or error}"
                ) from error
            self._stamp = stamp
            return True

    @staticmethod
    def _file_stamp(path: Path) -> _Stamp:
        status = os.stat(path)  # noqa: PTH116 - Path.stat costs twice as much, and each call of the driver pays it
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _set(self, host: FakeHost) -> None:
        """Keep the old object where the value is equal: the agent compares by identity."""
        guests = tuple(sorted(host.guests, key=lambda guest: guest.uuid))
        guests = self._host.guests if guests == self._host.guests else guests
        host = replace(host, guests=guests)
        if host != self._host:
            self._host = host

    def _poll(self, path: Path, last: _Stamp | None) -> None:
        """Call the watchers when the file's stamp changes, even if its content is the same."""
        while not self._closed.wait(POLL_INTERVAL_S):
            now = self._current_stamp(path)
            if now != last:
                last = now
                self.fire(f"{path} changed")

    @classmethod
    def _current_stamp(cls, path: Path) -> _Stamp | None:
        try:
            return cls._file_stamp(path)
        except OSError:
            return None  # so that creating and removing the file are changes


CPU_AND_MEMORY = ("VCPU", "PCPU", "MEMORY_MB")


def derived_moves(
    host: FakeHost,
    name: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    devices: Sequence[DescribedProvider],
) -> Iterator[MoveInstruction]:
    """The moves of a host called `name`.

    `cpus` are the shared and the dedicated CPUs; `devices` are the providers of the devices, also where the
    host counts them on its root.
    """
    for device in devices:
        totals = {each: inventory.total for each, inventory in device.inventories.items()}
        if host.flat_devices:
            yield MoveInstruction(device.name, totals, name)
            continue
        consumers = {guest.uuid: usage for guest in host.guests if (usage := _usage(guest, device))}
        yield MoveInstruction(name, totals, device.name, consumers)
    for cell in host.cells:
        provider = cell_provider_name(name, cell.id)
        cell_totals = (len(cpus[0] & cell.cpus), len(cpus[1] & cell.cpus), cell.memory_mb)
        amounts = {kind: total for kind, total in zip(CPU_AND_MEMORY, cell_totals, strict=True) if total}
        if not host.report_numa:
            yield MoveInstruction(provider, amounts, name)
            continue
        in_cell = {
            guest.uuid: {kind: guest.resources[kind] for kind in amounts if guest.resources.get(kind)}
            for guest in host.guests
            if _cells_of(host, guest) == {cell.id}
        }
        yield MoveInstruction(
            name, amounts, provider, {uuid: usage for uuid, usage in in_cell.items() if usage}
        )
    if host.report_numa:
        for cell in host.cells:
            below = (cpus[0] & cell.cpus, cpus[1] & cell.cpus)
            guests = [guest for guest in host.guests if _cells_of(host, guest) == {cell.id}]
            provider = cell_provider_name(name, cell.id)
            yield from _cpu_moves((name, provider), provider, below, guests)
    else:
        sources = (name, *(cell_provider_name(name, cell.id) for cell in host.cells))
        yield from _cpu_moves(sources, name, cpus, host.guests)


def _usage(guest: Guest, device: DescribedProvider) -> dict[str, int]:
    """{resource class: amount} that the guest uses of the device.

    If all exact units of the guest are on this device, so are its amounts of classes without exact units.
    """
    usage: dict[str, int] = {}
    for unit in guest.units:
        if unit.device == device.device and unit.resource_class in device.inventories:
            usage[unit.resource_class] = usage.get(unit.resource_class, 0) + 1
    if usage and all(guest.resources.get(name) == amount for name, amount in usage.items()):
        with_units = {unit.resource_class for unit in guest.units}
        for resource_class in device.inventories.keys() - with_units:
            if resource_class in guest.resources:
                usage[resource_class] = guest.resources[resource_class]
    return usage


def _cells_of(host: FakeHost, guest: Guest) -> set[int]:
    """The ids of the cells to which the guest's CPUs are pinned."""
    cells = set()
    for unit in guest.units:
        for cell in host.cells:
            if unit.device == f"numa:{cell.id}" or (
                unit.resource_class == "PCPU" and unit.unit.isdecimal() and int(unit.unit) in cell.cpus
            ):
                cells.add(cell.id)
    return cells


def _cpu_moves(
    sources: Sequence[str],
    provider: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    guests: Sequence[Guest],
) -> Iterator[MoveInstruction]:
    """VCPU becomes PCPU where CPUs are dedicated now, and PCPU becomes VCPU where none is.

    Guests whose CPUs are pinned had VCPU before.
    """
    shared, dedicated = cpus
    pinned = {
        guest.uuid: {"VCPU": guest.resources["PCPU"]} for guest in guests if guest.resources.get("PCPU")
    }
    for source in sources:
        if dedicated:
            yield MoveInstruction(source, {"VCPU": len(dedicated)}, provider, pinned, {"VCPU": "PCPU"})
        elif shared:
            yield MoveInstruction(source, {"PCPU": len(shared)}, provider, None, {"PCPU": "VCPU"})


def describe_host(host: FakeHost, settings: HostSettings, name: str) -> Description:
    """The provider tree of a host called `name`, and its moves."""
    traits = host.traits | {"COMPUTE_NODE"}
    host_and_cells = host_providers(
        name, host.cells, host.disk_gb, traits, settings, report_numa=host.report_numa
    )
    pages = tuple(page_providers(name, host.cells, report_numa=host.report_numa))
    devices = tuple(
        device.describe(
            name,
            name if device.numa is None or not host.report_numa else cell_provider_name(name, device.numa),
        )
        for of_kind in host.devices.values()
        for device in of_kind
    )
    cpus = split_cpus(frozenset().union(*(cell.cpus for cell in host.cells)), settings)
    plain = tuple(device for device in devices if device.card is None)
    moves = host.moves or tuple(derived_moves(host, name, cpus, plain))
    providers = (*host_and_cells, *pages, *devices)
    if host.flat_devices:
        divided = tuple(device for device in devices if device.card is not None)
        # The root with the inventories, units and traits of all devices.
        root = host_and_cells[0]
        inventories, units = dict(root.inventories), dict(root.units)
        traits = root.traits
        for device in plain:
            for resource_class, inventory in device.inventories.items():
                total = inventories.get(resource_class, DescribedInventory(0)).total + inventory.total
                inventories[resource_class] = DescribedInventory(total, allocation_ratio=1.0)
            for resource_class, exact in device.units.items():
                units[resource_class] = (*units.get(resource_class, ()), *exact)
            traits |= device.traits
        providers = (
            replace(root, inventories=inventories, units=units, traits=traits),
            *host_and_cells[1:],
            *pages,
            *divided,
        )
    return Description(providers, moves, reportable_traits())


@cache
def reportable_traits() -> frozenset[str]:
    """The standard traits of CPUs, of what guests can have, of cells and of devices.

    Those of the host file are all there are.

    COMPUTE_STATUS_DISABLED is not among them: the control plane sets it, for a host that is switched off.
    """
    names = (*os_traits.get_traits("HW_CPU_"), *os_traits.get_traits("COMPUTE_"))
    return (frozenset(names) | REPORTABLE) - {os_traits.COMPUTE_STATUS_DISABLED}


def describe_topology(host: FakeHost, settings: HostSettings) -> Topology:
    """The cells and the CPU sets."""
    cpus = frozenset().union(*(cell.cpus for cell in host.cells))
    return Topology(host.cells, *split_cpus(cpus, settings))
