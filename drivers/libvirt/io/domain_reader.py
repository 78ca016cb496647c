"""Read the domains over a connection.

A domain is read again when an event named it, when the listing shows that it was restarted or renamed, or
when all domains are due. So the state never depends on events alone.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import libvirt

from agent.driver import GuestState
from agent.errors import DriverUnavailable
from drivers.host.domain_xml import Disk
from drivers.libvirt.io.connection import Connection, Session
from drivers.libvirt.io.deadline import CallTimeout
from drivers.libvirt.io.guests import KnownGuest, read_guest, skipped_guest
from drivers.libvirt.io.pending_reads import PendingReads

_OFF = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})
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
            if known.domain is not None and known.domain.vcpus_may_change and known.guest.state not in _OFF
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
            for uuid, known in self._read_domains(session, None if reading.everything else named, reading):
                reading.guests[uuid] = known
        except (libvirt.libvirtError, DriverUnavailable):
            self._pending_reads.add_all_domains()  # those that were taken are not read yet
            raise
        return reading

    def _read_domains(
        self, session: Session, named: frozenset[str] | None, reading: _DomainReading
    ) -> Iterator[tuple[str, KnownGuest]]:
        session.deadline.extend()
        for domain in session.libvirt.listAllDomains():
            uuid = domain.UUIDString()
            name_and_id = (domain.name(), domain.ID())
            known = self._known.get(uuid)
            if uuid in self._blocked and not self._blocked[uuid].is_set():
                yield uuid, skipped_guest(uuid, name_and_id, known)
                continue
            if named is None or uuid in named or known is None or known.is_outdated(name_and_id):
                reading.current = uuid
                known = read_guest(session, domain, name_and_id, known, self._dedicated)
                reading.current = None
            if known is not None:
                yield uuid, known

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
