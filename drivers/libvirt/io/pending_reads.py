"""The domains and node devices that must be read again. Thread-safe; without libvirt.

libvirt's events are hints, not a log: they may repeat, come out of order or be missing. So an event only
names a domain or a device, and the next reading asks libvirt for its state.
"""

import threading


class PendingReads:
    """What is known to be out of date. The `take_` methods return it and forget it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._domains: set[str] = set()
        self._devices: set[str] = set()
        self._all_domains = self._all_devices = True

    def add_domain(self, uuid: str) -> None:
        """Read the domain with this uuid again."""
        with self._lock:
            self._domains.add(uuid)

    def add_device(self, name: str) -> None:
        """Read the node device with this name again."""
        with self._lock:
            self._devices.add(name)

    def add_all_domains(self) -> None:
        """Read all domains again."""
        with self._lock:
            self._all_domains = True

    def add_all_devices(self) -> None:
        """Read all node devices again."""
        with self._lock:
            self._all_devices = True

    def add_everything(self) -> None:
        """Read all domains and devices again, as a new connection must."""
        with self._lock:
            self._all_domains = self._all_devices = True

    def take_domains(self) -> frozenset[str] | None:
        """The uuids of the domains to read again; None for all."""
        with self._lock:
            uuids = None if self._all_domains else frozenset(self._domains)
            self._domains, self._all_domains = set(), False
            return uuids

    def take_devices(self) -> frozenset[str] | None:
        """The names of the node devices to read again; None for all."""
        with self._lock:
            names = None if self._all_devices else frozenset(self._devices)
            self._devices, self._all_devices = set(), False
            return names
