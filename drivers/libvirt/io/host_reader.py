"""Read the host over a connection: CPUs, memory, disk, and what its guests can have."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import libvirt

from agent.durable.files import entries, read_text
from agent.errors import DriverDataError, DriverUnavailable
from drivers.host.sysfs import read_cells, read_namespaces
from drivers.host.xml_parser import parse_xml
from drivers.libvirt import xml
from drivers.libvirt.describe.host import HostFacts
from drivers.libvirt.describe.memory import tdx_slots
from drivers.libvirt.describe.options import LibvirtOptions
from drivers.libvirt.io.connection import CallDeadline, Connection, DeadlineRunner, Session

LOG = logging.getLogger(__name__)
BYTES_PER_GIB, MIB_PER_GIB = 2**30, 1024
BYTES_PER_BLOCK = 512
CAPABILITIES_INTERVAL_S = 3600.0
"""Capabilities may take libvirt seconds. The online CPUs, which change more often, have their own call."""
MACHINES = {"x86_64": ("pc", "q35")}
"""Machine types whose guests can have different devices; other architectures use the default type alone."""

_NOT_SUPPORTED = (
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_INVALID_ARG,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
)


_LOST_CELLS = (
    "libvirt describes no NUMA cell of this host, as after one was unplugged: restart libvirtd, which counts "
    "them when it starts; guests keep running"
)


@dataclass(frozen=True, slots=True)
class _SlowFacts:
    """Facts that hardly change during a connection and are slow to read; `read_at` is monotonic seconds.

    `plugged` are the cells without CPUs, by sysfs, each with its memory: they may come, grow and go.
    """

    facts: HostFacts
    read_at: float
    plugged: tuple[str, ...]


class HostReader:
    """Reads `HostFacts`; several threads may call it."""

    def __init__(self, connection: Connection, options: LibvirtOptions) -> None:
        self._connection = connection
        self._options = options
        self._known_guest_capabilities: xml.DomainCapabilities | None = None
        self._logged_refusal = ""
        self._file_system = DeadlineRunner(
            f"the file system of [libvirt] images_path {options.images_path}",
            "see whether its server answers",
            options.call_timeout,
            options.call_timeout,
        )

    def read(self) -> HostFacts:
        """The host now. Raises DriverUnavailable or DriverDataError."""
        disk_bytes = cache_bytes = 0
        if not self._options.storage_pools:
            status = self._file_system.run("read its size", self._images_status)
            disk_bytes = status.f_blocks * status.f_frsize
        if self._options.image_cache_path:
            cache_bytes = self._file_system.run("read the image cache", self._image_cache_size)
        return self._connection.run(
            "read the host",
            lambda session: self._facts(session, disk_bytes, cache_bytes),
            lambda facts: facts,
        )

    def disk_free_gb(self) -> int:
        """GiB that are free where the guests' disks are. Raises DriverUnavailable."""
        if not self._options.storage_pools:
            status = self._file_system.run("read its free space", self._images_status)
            return status.f_bavail * status.f_frsize // BYTES_PER_GIB
        free = self._connection.run(
            "read the free space of the pools",
            lambda session: sum(_pool_sizes(session, self._options.storage_pools, free=True)),
            lambda free: free,
        )
        return free // BYTES_PER_GIB

    def _facts(self, session: Session, disk_bytes: int, cache_bytes: int) -> HostFacts:
        disk_bytes += sum(_pool_sizes(session, self._options.storage_pools))
        session.deadline.extend()
        online = offline = frozenset[int]()
        try:
            _, online_map, _ = session.libvirt.getCPUMap()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
        else:
            online = frozenset(cpu for cpu, is_online in enumerate(online_map) if is_online)
            offline = frozenset(range(len(online_map))) - online
        slow: _SlowFacts | None = session.slow_facts
        oldest = time.monotonic() - CAPABILITIES_INTERVAL_S
        nodes = entries(Path(self._options.sysfs_path) / "devices" / "system" / "node")
        alone = (node for node in nodes if read_text(node / "cpulist") == "")
        plugged = tuple((read_text(node / "meminfo") or node.name).partition("\n")[0] for node in alone)
        known = None if slow is None else (slow.facts.online, slow.plugged)
        if slow is None or known != (online, plugged) or slow.read_at < oldest:
            session.deadline.extend(self._options.probe_timeout)
            capabilities = xml.parse_capabilities(session.libvirt.getCapabilities())
            before: _SlowFacts | None = session.slow_facts
            if before is not None and before.facts.capabilities.cells and not capabilities.cells:
                raise DriverUnavailable(_LOST_CELLS)
            guests = before.facts.guests if before else None
            guests = guests or self._guest_capabilities(session, capabilities)
            model = self._options.cpu_model
            host_model = guests.cpu if guests is not None else ""
            cpus = model.elements(capabilities.arch, capabilities.cpu, host_model)
            flags = model.flags(_cpu_flags(session, cpus, capabilities))
            session.deadline.extend()
            is_test = session.libvirt.getType() == "TEST"  # it has the version of this program's library
            library = xml.version_of(0 if is_test else session.libvirt.getLibVersion())
            try:
                memory_mb = sum(cell.memory_mb for cell in capabilities.cells) or session.libvirt.getInfo()[1]
            except libvirt.libvirtError as error:
                raise (DriverUnavailable(_LOST_CELLS) if session.alive() else error) from error
            slow = session.slow_facts = _SlowFacts(
                HostFacts(capabilities, guests, flags, online, memory_mb, disk_gb=0, libvirt=library),
                time.monotonic(),
                plugged,
            )
        cells = slow.facts.capabilities.cells
        return replace(
            slow.facts,
            online=online or frozenset().union(*(cell.cpus for cell in cells)),
            offline=read_cells(Path(self._options.sysfs_path), offline),
            disk_gb=disk_bytes // BYTES_PER_GIB,
            image_cache_mb=-(-cache_bytes // BYTES_PER_GIB) * MIB_PER_GIB,
            pmem=read_namespaces(Path(self._options.sysfs_path)) if self._options.pmem_namespaces else (),
        )

    def _guest_capabilities(
        self, session: Session, capabilities: xml.Capabilities
    ) -> xml.DomainCapabilities | None:
        """What guests can have; None where libvirt never told it to this user."""
        if not self._options.full_connection:
            return None
        session.deadline.extend()
        try:
            with closing(libvirt.open(self._options.connection_uri)) as connection:
                guest_capabilities = xml.merge(
                    self._read_guest_capabilities(session, connection, capabilities)
                )
                if guest_capabilities is not None:
                    session.deadline.extend()
                    try:
                        hypervisor = xml.version_of(connection.getVersion())
                    except libvirt.libvirtError as error:
                        if error.get_error_code() not in (*_NOT_SUPPORTED, libvirt.VIR_ERR_INTERNAL_ERROR):
                            raise
                        LOG.info("libvirt does not tell the version of its emulator: %s", error)
                        hypervisor = (0, 0, 0)
                    guest_capabilities = replace(guest_capabilities, qemu=hypervisor)
                    guest_capabilities = self._with_tdx_slots(guest_capabilities)
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            if str(error) != self._logged_refusal:
                self._logged_refusal = str(error)
                LOG.warning(
                    "libvirt does not tell this user what guests can have (%s): traits of firmware, vTPM, "
                    "disk buses and graphics are missing, and CPU flags are the host's; let this user manage "
                    "libvirt, or set [libvirt] full_connection=false to do without these traits",
                    error,
                )
            return self._known_guest_capabilities
        self._known_guest_capabilities = guest_capabilities
        return guest_capabilities

    def _read_guest_capabilities(
        self, session: Session, connection: Any, capabilities: xml.Capabilities
    ) -> Iterator[xml.DomainCapabilities]:
        domain_types = capabilities.guests.get(capabilities.arch, frozenset())
        domain_type = self._options.virt_type or ("kvm" if "kvm" in domain_types else None)
        for machine in MACHINES.get(capabilities.arch, (None,)):
            session.deadline.extend(self._options.probe_timeout)
            try:
                text = connection.getDomainCapabilities(None, capabilities.arch, machine, domain_type)
            except libvirt.libvirtError as error:
                if error.get_error_code() not in _NOT_SUPPORTED:
                    raise
                LOG.info(
                    "libvirt has no domain capabilities for machine type %s: %s", machine or "default", error
                )
                continue
            yield xml.parse_domain_capabilities(text)

    def _with_tdx_slots(self, guests: xml.DomainCapabilities) -> xml.DomainCapabilities:
        """With the number of TDX keys, which libvirt does not report."""
        capacity = Path(self._options.sysfs_path) / "fs" / "cgroup" / "misc.capacity"
        if "tdx" not in guests.features:
            return guests
        configured = self._options.num_intel_tdx_guests
        text = None
        try:
            text = capacity.read_text("ascii", errors="replace")
        except OSError as error:
            if configured is None:
                LOG.warning(
                    "the number of TDX keys is not known, so none are offered; [libvirt] "
                    "num_intel_tdx_guests gives it: %s",
                    error,
                )
        return replace(guests, slots={**guests.slots, "tdx": tdx_slots(text, configured)})

    def _images_status(self, _deadline: CallDeadline) -> os.statvfs_result:
        path = self._options.images_path
        try:
            return os.statvfs(path)
        except OSError as error:
            raise DriverUnavailable(
                f"cannot read the size of the file system of [libvirt] images_path {path}: {error.strerror}; "
                "create the directory, or name storage_pools instead"
            ) from error

    def _image_cache_size(self, _deadline: CallDeadline) -> int:
        """What the cached images take of the file system of images_path, as nova counts it."""
        path = Path(self._options.image_cache_path)
        try:
            if path.stat().st_dev != Path(self._options.images_path).stat().st_dev:
                return 0
            sizes = [entry.stat() for entry in path.iterdir() if entry.is_file()]
        except FileNotFoundError:
            return 0  # the first image makes the directory, and an image may be removed at any time
        except OSError as error:
            raise DriverUnavailable(
                f"cannot read [libvirt] image_cache_path {path}: {error.strerror}; let this user read the "
                "directory, or remove the option"
            ) from error
        return sum(status.st_blocks * BYTES_PER_BLOCK for status in sizes)


def _cpu_flags(session: Session, cpus: Sequence[str], capabilities: xml.Capabilities) -> frozenset[str]:
    """The flags of any of the <cpu> elements, or of the host if there is none.

    With those of each element's model, which libvirt knows.
    """
    flags = frozenset[str]() if cpus else capabilities.features
    for cpu in cpus:
        session.deadline.extend()
        try:
            text = session.libvirt.baselineCPU([cpu], libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES)
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            LOG.info("libvirt does not expand the CPU model, so only the flags beside it are used: %s", error)
            text = cpu
        flags |= xml.parse_cpu_features(text)
    return flags


def _pool_sizes(session: Session, names: tuple[str, ...], *, free: bool = False) -> list[int]:
    """The sizes of the pools, or what is free in them, in bytes.

    Directories on the same file system count once.
    """
    sizes: dict[object, int] = {}
    for name in names:
        session.deadline.extend()
        try:
            pool = session.libvirt.storagePoolLookupByName(name)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_POOL:
                raise
            raise DriverDataError(
                f"[libvirt] storage_pools names {name!r}, which libvirt does not have; "
                "define the pool, or remove its name from the option"
            ) from error
        session.deadline.extend()
        state, capacity, _, available = pool.info()
        if state != libvirt.VIR_STORAGE_POOL_RUNNING:
            raise DriverUnavailable(
                f"the storage pool {name!r} is not active, so its size is not known; start it "
                f"(virsh pool-start {name}) or remove it from [libvirt] storage_pools"
            )
        sizes[_file_system(session, pool, name) if len(names) > 1 else name] = available if free else capacity
    return list(sizes.values())


def _file_system(session: Session, pool: Any, name: str) -> object:
    """What identifies the file system of a pool: the device of its directory, or else its name."""
    session.deadline.extend()
    root = parse_xml(pool.XMLDesc(), f"storage pool {name}", "pool")
    path = root.findtext("target/path")
    if root.get("type") not in ("dir", "fs", "netfs") or not path:
        return name
    session.deadline.extend()
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - the path is libvirt's
    except OSError:
        return name  # only libvirt can see the directory
