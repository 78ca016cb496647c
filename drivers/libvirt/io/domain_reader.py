"""Read the domains over a connection.

A domain is read again when an event named it, when the listing shows that it was restarted or renamed, or
when all domains are due. So the state never depends on events alone. A domain with a problem is reported as
such and hides no other.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import libvirt

from agent.driver import Guest, GuestState
from agent.errors import DriverDataError, DriverUnavailable
from drivers.host.domain_xml import Disk, guest_of, parse_domain
from drivers.host.sysfs import default_huge_page_kib
from drivers.libvirt.describe.devices import GuestDomain
from drivers.libvirt.io.connection import CallTimeout, Connection, PendingReads, Session

LOG = logging.getLogger(__name__)

_STATES = {
    libvirt.VIR_DOMAIN_NOSTATE: GuestState.RUNNING,
    libvirt.VIR_DOMAIN_RUNNING: GuestState.RUNNING,
    libvirt.VIR_DOMAIN_BLOCKED: GuestState.RUNNING,
    libvirt.VIR_DOMAIN_SHUTDOWN: GuestState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: GuestState.PAUSED,
    libvirt.VIR_DOMAIN_SHUTOFF: GuestState.SHUTOFF,
    libvirt.VIR_DOMAIN_CRASHED: GuestState.CRASHED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: GuestState.SUSPENDED,
}
"""A domain that is shutting down still uses all its resources."""

_PAUSED_FOR = {
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP: GuestState.STARTING,
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION: GuestState.MIGRATING,
}

NameAndId = tuple[str, int]
"""The name and the id (-1 if it does not run) of a domain, which a listing has without a further call."""


@dataclass(frozen=True, slots=True)
class KnownGuest(GuestDomain):
    """A domain as it was last read.

    The guest has its devices as the XML names them, without the providers that have them.
    """

    name_and_id: NameAndId

    def is_outdated(self, name_and_id: NameAndId) -> bool:
        """Whether it was restarted or renamed since, or was not read in full."""
        return self.name_and_id != name_and_id or self.guest.problem is not None


def read_guest(
    session: Session, domain: Any, name_and_id: NameAndId, known: KnownGuest | None, dedicated: frozenset[int]
) -> KnownGuest | None:
    """Read a domain; None if it is gone meanwhile.

    A domain that cannot be read is returned as it was last known, with its `problem`. Raises libvirtError
    where the connection broke.
    """
    uuid, name = domain.UUIDString(), name_and_id[0]
    guest_state = GuestState.RUNNING
    parsed = known.domain if known is not None else None
    try:
        session.deadline.extend()
        state, reason = domain.state()
        paused = _PAUSED_FOR.get(reason) if state == libvirt.VIR_DOMAIN_PAUSED else None
        guest_state = paused or _STATES.get(state, GuestState.RUNNING)
        session.deadline.extend()
        parsed = parse_domain(domain.XMLDesc(), f"domain {name} ({uuid})", default_huge_page_kib())
        size, problem = _disk_bytes(session, domain, parsed.disks)
        guest = replace(guest_of(parsed, guest_state, size, dedicated), uuid=uuid, problem=problem)
        if problem is not None and known is not None and "DISK_GB" in known.guest.resources:
            disk_gb = known.guest.resources["DISK_GB"]
            guest = replace(guest, resources={**guest.resources, "DISK_GB": disk_gb})
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        if not session.alive():
            raise
        problem = f"libvirt does not answer for domain {name} ({uuid}): {error}"
        guest = _unread(uuid, name, guest_state, known, problem)
    except DriverDataError as error:
        guest = _unread(uuid, name, guest_state, known, error.message)
    return _with_logged_problem(KnownGuest(guest, parsed, name_and_id), known)


def _with_logged_problem(new: KnownGuest, old: KnownGuest | None) -> KnownGuest:
    """The new guest, after logging its problem unless the old one had the same."""
    problem = new.guest.problem
    if problem is not None and (old is None or old.guest.problem != problem):
        LOG.warning("%s", problem)
    return new


def skipped_guest(uuid: str, name_and_id: NameAndId, known: KnownGuest | None) -> KnownGuest:
    """A domain on which libvirt blocks, as it was last known."""
    name = name_and_id[0]
    problem = f"libvirt does not answer for domain {name} ({uuid}), on which it blocks: its QEMU may hang"
    state = known.guest.state if known is not None else GuestState.RUNNING
    domain = known.domain if known is not None else None
    guest = _unread(uuid, name, state, known, problem)
    return _with_logged_problem(KnownGuest(guest, domain, name_and_id), known)


def _unread(uuid: str, name: str, state: GuestState, known: KnownGuest | None, problem: str) -> Guest:
    if known is None:
        return Guest(uuid=uuid, name=name, state=state, resources={}, problem=problem)
    return replace(known.guest, name=name, state=state, problem=problem)


def _disk_bytes(session: Session, domain: Any, disks: tuple[Disk, ...]) -> tuple[int, str | None]:
    """The sum of the sizes that the guest sees, in bytes, and the problem if one could not be read.

    A volume tells its size itself; through the domain it would only while the domain runs.
    """
    total = 0
    for disk in disks:
        try:
            session.deadline.extend()
            if disk.pool:
                pool = session.libvirt.storagePoolLookupByName(disk.pool)
                volume = pool.storageVolLookupByName(disk.volume)
                session.deadline.extend()
                total += int(volume.info()[1])
            else:
                total += int(domain.blockInfo(disk.target)[0])
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN or not session.alive():
                raise
            where = disk.path or f"volume {disk.volume} of pool {disk.pool}"
            return total, (
                f"domain {domain.name()} ({domain.UUIDString()}): the size of its disk {disk.target} "
                f"({where}) could not be read, so its DISK_GB is unknown: {error}"
            )
    return total, None


BLOCKED_AT_ONCE_MAX = 2
"""A reading waits for so many blocked domains, each for the call timeout, and then fails."""
_VCPUS_OF_INFO = 3
"""Source: https://libvirt.org/html/libvirt-libvirt-domain.html#virDomainInfo"""


@dataclass(slots=True)
class _DomainReading:
    """One reading of the domains; `current` is the uuid of the domain that is being read."""

    guests: dict[str, KnownGuest] = field(default_factory=dict)
    everything: bool = False
    current: str | None = None


class DomainReader:
    """Reads the domains and keeps them; several threads may call it.

    `dedicated` are the host's CPUs for dedicated use.
    """

    def __init__(
        self,
        connection: Connection,
        pending_reads: PendingReads,
        dedicated: frozenset[int],
        full_read_interval_s: float,
    ) -> None:
        self._connection = connection
        self._pending_reads = pending_reads
        self._dedicated = dedicated
        self._full_read_interval_s = full_read_interval_s
        self._known: dict[str, KnownGuest] = {}
        self._domains: tuple[KnownGuest, ...] = ()
        self._all_read_at = -float("inf")
        self._blocked: dict[str, threading.Event] = {}

    def read(self) -> tuple[KnownGuest, ...]:
        """The domains now, by uuid; the same tuple as before if none changed.

        A domain on which libvirt blocks is skipped until that call returns, so the others can be read. Raises
        DriverUnavailable, also where libvirt blocks on more than BLOCKED_AT_ONCE_MAX domains since the
        reading before.
        """
        failure: CallTimeout | None = None
        for _ in range(BLOCKED_AT_ONCE_MAX + 1):
            reading = _DomainReading()
            try:
                return self._connection.run(
                    "read the domains",
                    partial(self._read_all, reading=reading),
                    self._keep,
                )
            except CallTimeout as error:
                if reading.current is None:
                    raise
                self._blocked[reading.current] = error.returned
                failure = error
        raise failure or DriverUnavailable("the domains were not read")

    def disk_gb(self, uuid: str, disks: tuple[Disk, ...]) -> int | None:
        """The DISK_GB of the domain's disks as last read, None if they never were. Makes no call."""
        known = self._known.get(uuid)
        if not disks:
            return 0
        if known is None or known.domain is None or known.domain.disks != disks:
            return None
        return known.guest.resources.get("DISK_GB")

    def find_changed_vcpus(self) -> tuple[str, ...]:
        """The names of the running domains that have another number of vCPUs than when they were last read.

        They are read again by the next reading. Counts nothing while there is no connection. Raises
        DriverUnavailable.
        """
        counts = {
            uuid: known.domain.vcpus
            for uuid, known in self._known.items()
            if known.domain is not None and known.domain.vcpus_may_change and not known.guest.is_off
        }
        if not counts or not self._connection.is_open:
            return ()
        reading = _DomainReading()
        try:
            return self._connection.run(
                "count the vCPUs of the domains",
                lambda session: tuple(self._count_vcpus(session, counts, reading)),
                lambda names: names,
            )
        except CallTimeout as error:
            if reading.current is not None:
                self._blocked[reading.current] = error.returned
            raise

    def _count_vcpus(
        self, session: Session, counts: Mapping[str, int], reading: _DomainReading
    ) -> Iterator[str]:
        session.deadline.extend()
        for domain in session.libvirt.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            uuid = domain.UUIDString()
            if uuid not in counts or (uuid in self._blocked and not self._blocked[uuid].is_set()):
                continue
            reading.current = uuid
            session.deadline.extend()
            try:
                count = domain.info()[_VCPUS_OF_INFO]
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    continue
                raise
            reading.current = None
            if count != counts[uuid]:
                self._pending_reads.add_domain(uuid)
                yield domain.name()

    def _read_all(self, session: Session, reading: _DomainReading) -> _DomainReading:
        named = self._pending_reads.take_domains()
        is_old = time.monotonic() - self._all_read_at > self._full_read_interval_s
        reading.everything = is_old or named is None or not session.has_events
        try:
            session.deadline.extend()
            for domain in session.libvirt.listAllDomains():
                uuid = domain.UUIDString()
                name_and_id = (domain.name(), domain.ID())
                known = self._known.get(uuid)
                if uuid in self._blocked and not self._blocked[uuid].is_set():
                    reading.guests[uuid] = skipped_guest(uuid, name_and_id, known)
                    continue
                is_due = reading.everything or named is None or uuid in named
                if is_due or known is None or known.is_outdated(name_and_id):
                    reading.current = uuid
                    known = read_guest(session, domain, name_and_id, known, self._dedicated)
                    reading.current = None
                if known is not None:
                    reading.guests[uuid] = known
        except (libvirt.libvirtError, DriverUnavailable):
            self._pending_reads.add_all_domains()  # those that were taken are not read yet
            raise
        return reading

    def _keep(self, reading: _DomainReading) -> tuple[KnownGuest, ...]:
        if reading.everything:
            self._all_read_at = time.monotonic()
        self._known = reading.guests
        blocked = dict(self._blocked)  # the thread that counts vCPUs may add one meanwhile
        self._blocked = {uuid: returned for uuid, returned in blocked.items() if not returned.is_set()}
        domains = tuple(reading.guests[uuid] for uuid in sorted(reading.guests))
        if domains != self._domains:
            self._domains = domains
        return self._domains
