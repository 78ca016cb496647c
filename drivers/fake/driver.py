"""The fake driver: `Driver` over a described host, with faults and delays that a test can set."""

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from oslo_config import cfg

from agent.driver import (
    Description,
    DeviceSigns,
    DomainNeeds,
    Driver,
    DriverSettings,
    GivenResources,
    Guest,
    HostDevice,
    PassedDevice,
    Topology,
)
from agent.errors import DriverError, DriverUnavailable, SettingsError
from drivers.fake.describe import describe_host, describe_topology
from drivers.fake.host import FakeHost, load_host
from drivers.host.domain_writer import write_domain
from drivers.host.domain_xml import parse_domain, passed_addresses, read_needs, starting_guest
from drivers.host.providers import absent_cpus, check_cpu_sets, described_locations
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
        return pci.passed(addresses) if pci is not None else ()

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
