"""Reading the host and the domains over a connection: all calls of libvirt that answer a question.

What was read is kept, and read again when an event named it, when what is cheap to ask shows a change, or
when it has become old; so nothing depends on events alone.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libvirt

from agent.errors import DriverDataError, DriverUnavailable
from drivers.host.domain_xml import Domain
from drivers.host.xml_parser import parse_xml
from drivers.libvirt.describe.devices import DeviceFacts
from drivers.libvirt.describe.host import HostFacts
from drivers.libvirt.describe.lost_mdevs import Lost
from drivers.libvirt.io.connection import Connection, Session
from drivers.libvirt.io.deadline import Beat, Hung, Runner
from drivers.libvirt.io.device_reader import DeviceReader
from drivers.libvirt.io.guests import KnownGuest, pass_over, read_guest
from drivers.libvirt.io.hints import Hints
from drivers.libvirt.io.options import LibvirtOptions
from drivers.libvirt.io.restore_mdevs import Restorer
from drivers.libvirt.io.sysfs import Sysfs
from drivers.libvirt.xml.capabilities import (
    Capabilities,
    DomainCapabilities,
    merge,
    parse_capabilities,
    parse_cpu_features,
    parse_domain_capabilities,
)

LOG = logging.getLogger(__name__)
BYTES_PER_GIB = 2**30
CAPABILITIES_INTERVAL_S = 3600.0
"""Their answer may cost libvirt seconds; what changes often (CPUs going offline) is asked for by itself."""
MACHINES = {"x86_64": ("pc", "q35")}
"""Machine types that differ in what guests can have; elsewhere the default one speaks for all."""

_NOT_SUPPORTED = (
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_INVALID_ARG,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
)


@dataclass(frozen=True, slots=True)
class _Static:
    """What hardly changes during a connection, and is slow to ask; `read_at` is monotonic seconds."""

    capabilities: Capabilities
    guests: DomainCapabilities | None
    cpu_flags: frozenset[str]
    online: frozenset[int]
    memory_mb: int
    read_at: float

    def is_old(self) -> bool:
        return time.monotonic() - self.read_at > CAPABILITIES_INTERVAL_S


@dataclass(slots=True)
class _Reading:
    """One reading of the domains; `domain` is the uuid of the one that is being read just now."""

    known: dict[str, KnownGuest] = field(default_factory=dict)
    everything: bool = False
    domain: str | None = None


class Reader:
    """Answers from libvirt; several threads may ask, `connection` takes them in turn."""

    def __init__(
        self, connection: Connection, hints: Hints, options: LibvirtOptions, dedicated: frozenset[int]
    ) -> None:
        self._connection = connection
        self._hints = hints
        self._options = options
        self._dedicated = dedicated
        self._devices = DeviceReader(hints, Sysfs(Path(options.sysfs_path)), options.full_read_interval)
        self._restorer = Restorer(options.connection_uri)
        self._known: dict[str, KnownGuest] = {}
        self._domains: tuple[KnownGuest, ...] = ()
        self._all_read_at = -float("inf")
        self._hung: dict[str, threading.Event] = {}
        self._guest_capabilities_told: DomainCapabilities | None = None
        self._refusal = ""
        self._files = Runner(
            f"the file system of [libvirt] images_path {options.images_path}",
            "see whether its server answers",
            options.call_timeout,
            options.call_timeout,
        )

    # The host

    def facts(self) -> HostFacts:
        """The host as it is now. Raises DriverUnavailable, DriverDataError."""
        disk_bytes = 0 if self._options.storage_pools else self._files.run("read its size", self._images_size)

        def read(session: Session) -> HostFacts:
            pools = sum(_pool_sizes(session, self._options.storage_pools))
            return self._facts(session, disk_bytes + pools)

        return self._connection.run("read the host", read, lambda facts: facts)

    def _facts(self, session: Session, disk_bytes: int) -> HostFacts:
        online = _online(session)
        static = session.static
        if static is None or static.online != online or static.is_old():
            static = session.static = self._static(session, online)
        return HostFacts(
            capabilities=static.capabilities,
            guests=static.guests,
            cpu_flags=static.cpu_flags,
            online=online or frozenset().union(*(cell.cpus for cell in static.capabilities.cells)),
            memory_mb=static.memory_mb,
            disk_gb=disk_bytes // BYTES_PER_GIB,
        )

    def _static(self, session: Session, online: frozenset[int]) -> _Static:
        session.beat(self._options.probe_timeout)
        capabilities = parse_capabilities(session.libvirt.getCapabilities())
        old = session.static
        guests = old.guests if old and old.guests else self._guest_capabilities(session, capabilities)
        cpu = guests.cpu if guests is not None and guests.cpu else capabilities.cpu
        flags = _cpu_flags(session, cpu, capabilities)
        session.beat()
        memory_mb = sum(cell.memory_mb for cell in capabilities.cells) or session.libvirt.getInfo()[1]
        return _Static(capabilities, guests, flags, online, memory_mb, time.monotonic())

    def _guest_capabilities(self, session: Session, capabilities: Capabilities) -> DomainCapabilities | None:
        """None where libvirt does not say, or not to this user; what was said earlier stays true."""
        if not self._options.full_connection:
            return None
        session.beat()
        try:
            with closing(libvirt.open(self._options.connection_uri)) as connection:
                told = merge(self._ask_guest_capabilities(session, connection, capabilities))
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            if str(error) != self._refusal:
                self._refusal = str(error)
                LOG.warning(
                    "libvirt does not tell this user what guests can have (%s): traits of firmware, vTPM, "
                    "disk buses and graphics are missing, CPU flags are the host's; to have them, let this "
                    "user manage libvirt, or silence this by [libvirt] full_connection=false",
                    error,
                )
            return self._guest_capabilities_told
        self._guest_capabilities_told = told
        return told

    def _ask_guest_capabilities(
        self, session: Session, connection: Any, capabilities: Capabilities
    ) -> Iterator[DomainCapabilities]:
        kinds = capabilities.guests.get(capabilities.arch, frozenset())
        kind = self._options.virt_type or ("kvm" if "kvm" in kinds else None)
        for machine in MACHINES.get(capabilities.arch, (None,)):
            session.beat(self._options.probe_timeout)
            try:
                text = connection.getDomainCapabilities(None, capabilities.arch, machine, kind)
            except libvirt.libvirtError as error:
                if error.get_error_code() not in _NOT_SUPPORTED:
                    raise
                LOG.info("no domain capabilities for machine type %s: %s", machine or "of default", error)
                continue
            yield parse_domain_capabilities(text)

    def _images_size(self, _beat: Beat) -> int:
        path = self._options.images_path
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise DriverUnavailable(
                f"cannot see how large the file system of [libvirt] images_path {path} is: {error.strerror}; "
                "create the directory, or name storage_pools instead"
            ) from error
        return status.f_blocks * status.f_frsize

    # The devices

    def devices(self) -> DeviceFacts:
        """The node devices as they are now, the same object as before if none changed.

        Raises DriverUnavailable.
        """
        return self._connection.run("read the devices", self._devices.read, self._devices.keep)

    def restore(self, lost: list[Lost]) -> list[str]:
        """Make mediated devices again; the uuids of those that are there. Raises DriverUnavailable."""
        return self._connection.run(
            "make mediated devices again",
            lambda session: self._restorer.restore(session, lost),
            lambda made: made,
        )

    # The domains

    def domains(self) -> tuple[KnownGuest, ...]:
        """The domains as they are now, by uuid; the same tuple as before if none changed.

        A domain on which libvirt hangs fails one reading; after that it is passed over until the call on it
        returns, so that it hides no other. Raises DriverUnavailable.
        """
        reading = _Reading()
        try:
            return self._connection.run(
                "read the domains", lambda session: self._read_guests(session, reading), self._keep
            )
        except Hung as error:
            if reading.domain is not None:
                self._hung[reading.domain] = error.returned
            raise

    def disk_gb(self, domain: Domain) -> int | None:
        """The DISK_GB of these disks as they were last read, None if they were not. Asks nothing."""
        known = self._known.get(domain.uuid)
        if not domain.disks:
            return 0
        if known is None or known.domain is None or known.domain.disks != domain.disks:
            return None
        return known.guest.resources.get("DISK_GB")

    def _read_guests(self, session: Session, reading: _Reading) -> _Reading:
        named = self._hints.take_domains()
        old = time.monotonic() - self._all_read_at > self._options.full_read_interval
        reading.everything = old or named is None or not session.has_events
        try:
            for uuid, known in self._read_domains(session, None if reading.everything else named, reading):
                reading.known[uuid] = known
        except (libvirt.libvirtError, DriverUnavailable):
            self._hints.all_domains()  # what was taken has not been read
            raise
        return reading

    def _read_domains(
        self, session: Session, named: frozenset[str] | None, reading: _Reading
    ) -> Iterator[tuple[str, KnownGuest]]:
        session.beat()
        for domain in session.libvirt.listAllDomains():
            uuid = domain.UUIDString()
            mark = (domain.name(), domain.ID())
            known = self._known.get(uuid)
            if self._passes_over(uuid):
                yield uuid, pass_over(uuid, mark, known)
                continue
            if named is None or uuid in named or known is None or known.stale(mark):
                reading.domain = uuid
                known = read_guest(session, domain, mark, known, self._dedicated)
                reading.domain = None
            if known is not None:
                yield uuid, known

    def _passes_over(self, uuid: str) -> bool:
        return uuid in self._hung and not self._hung[uuid].is_set()

    def _keep(self, reading: _Reading) -> tuple[KnownGuest, ...]:
        if reading.everything:
            self._all_read_at = time.monotonic()
        self._known = reading.known
        self._hung = {uuid: returned for uuid, returned in self._hung.items() if not returned.is_set()}
        domains = tuple(reading.known[uuid] for uuid in sorted(reading.known))
        if domains != self._domains:
            self._domains = domains
        return self._domains


def _online(session: Session) -> frozenset[int]:
    """The ids of the CPUs in use; empty where libvirt does not say."""
    session.beat()
    try:
        _, in_use, _ = session.libvirt.getCPUMap()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
        return frozenset()
    return frozenset(cpu for cpu, yes in enumerate(in_use) if yes)


def _cpu_flags(session: Session, cpu: str, capabilities: Capabilities) -> frozenset[str]:
    """The flags of a CPU with those of its model; libvirt knows the models."""
    if not cpu:
        return capabilities.features
    session.beat()
    try:
        text = session.libvirt.baselineCPU([cpu], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
    except libvirt.libvirtError as error:
        if not session.alive():
            raise
        LOG.info("libvirt does not expand the CPU model, its own flags are taken: %s", error)
        text = cpu
    return parse_cpu_features(text)


def _pool_sizes(session: Session, names: tuple[str, ...]) -> list[int]:
    """The pools' sizes in bytes; directories on one file system count once."""
    sizes: dict[object, int] = {}
    for name in names:
        session.beat()
        try:
            pool = session.libvirt.storagePoolLookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
                raise
            raise DriverDataError(
                f"[libvirt] storage_pools names {name!r}, which libvirt does not have; "
                "define the pool or take its name out"
            ) from error
        session.beat()
        state, capacity, _, _ = pool.info()
        if state != libvirt.VIR_STORAGE_POOL_RUNNING:
            raise DriverUnavailable(
                f"the storage pool {name!r} is not active, so its size is not known; start it "
                f"(virsh pool-start {name}) or take it out of [libvirt] storage_pools"
            )
        sizes[_file_system(session, pool, name) if len(names) > 1 else name] = capacity
    return list(sizes.values())


def _file_system(session: Session, pool: Any, name: str) -> object:
    """What a pool shares its size by: the device of its directory, or its own name."""
    session.beat()
    root = parse_xml(pool.XMLDesc(), f"storage pool {name}", "pool")
    path = root.findtext("target/path")
    if root.get("type") not in ("dir", "fs", "netfs") or not path:
        return name
    session.beat()
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - libvirt's path, taken as it is
    except OSError:
        return name  # a directory that only libvirt can see
