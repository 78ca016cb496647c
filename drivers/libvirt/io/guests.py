"""One domain read over a connection. Whatever is wrong with one hides no other, and does not hide itself."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import libvirt

from agent.driver import Guest, GuestState
from agent.errors import DriverDataError
from drivers.host.domain_xml import Disk, Domain, guest_of, parse_domain
from drivers.libvirt.io.connection import Session
from drivers.libvirt.io.sysfs import usual_page_kib

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
"""A domain that is shutting down still holds everything."""

_PAUSED_FOR = {
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP: GuestState.STARTING,
    libvirt.VIR_DOMAIN_PAUSED_MIGRATION: GuestState.MIGRATING,
}

Mark = tuple[str, int]
"""A domain's name and its id (-1 when it does not run), which a listing gives for nothing."""


@dataclass(frozen=True, slots=True)
class KnownGuest:
    """A domain as it was last read; `domain` None if it never could be.

    The guest's devices are as its XML names them, which says nothing of whose they are.
    """

    mark: Mark
    guest: Guest
    domain: Domain | None = None

    def stale(self, mark: Mark) -> bool:
        """True if it was restarted or renamed since, or was not read in full."""
        return self.mark != mark or self.guest.problem is not None


def read_guest(
    session: Session, domain: Any, mark: Mark, known: KnownGuest | None, dedicated: frozenset[int]
) -> KnownGuest | None:
    """The domain, None if it is gone meanwhile.

    A domain that cannot be read is there all the same: with what was last known of it, and its `problem`.
    Raises libvirtError where the connection broke.
    """
    uuid, name = domain.UUIDString(), mark[0]
    state = GuestState.RUNNING
    parsed = known.domain if known is not None else None
    try:
        session.beat()
        state = _state(*domain.state())
        session.beat()
        parsed = parse_domain(domain.XMLDesc(), f"domain {name} ({uuid})", usual_page_kib())
        size, problem = _disk_bytes(session, domain, parsed.disks)
        guest = replace(guest_of(parsed, state, size, dedicated), uuid=uuid, problem=problem)
        if problem is not None and known is not None and "DISK_GB" in known.guest.resources:
            disk_gb = known.guest.resources["DISK_GB"]
            guest = replace(guest, resources={**guest.resources, "DISK_GB": disk_gb})
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        if not session.alive():
            raise
        guest = _unread(uuid, name, state, known, f"domain {name} ({uuid}) could not be read: {error}")
    except DriverDataError as error:
        guest = _unread(uuid, name, state, known, error.message)
    return _told(KnownGuest(mark, guest, parsed), known)


def _state(state: int, reason: int) -> GuestState:
    paused = _PAUSED_FOR.get(reason) if state == libvirt.VIR_DOMAIN_PAUSED else None
    return paused or _STATES.get(state, GuestState.RUNNING)


def _told(new: KnownGuest, old: KnownGuest | None) -> KnownGuest:
    """Warn of a problem once, not each time that the domain is read."""
    problem = new.guest.problem
    if problem is not None and (old is None or old.guest.problem != problem):
        LOG.warning("%s", problem)
    return new


def pass_over(uuid: str, mark: Mark, known: KnownGuest | None) -> KnownGuest:
    """A domain that libvirt hangs on, without asking for it."""
    problem = f"domain {mark[0]} ({uuid}) is not read while libvirt hangs on it: its QEMU may not answer"
    state = known.guest.state if known is not None else GuestState.RUNNING
    domain = known.domain if known is not None else None
    return _told(KnownGuest(mark, _unread(uuid, mark[0], state, known, problem), domain), known)


def _unread(uuid: str, name: str, state: GuestState, known: KnownGuest | None, problem: str) -> Guest:
    if known is None:
        return Guest(uuid=uuid, name=name, state=state, resources={}, problem=problem)
    return replace(known.guest, name=name, state=state, problem=problem)


def _disk_bytes(session: Session, domain: Any, disks: tuple[Disk, ...]) -> tuple[int, str | None]:
    """The sum of the disks' sizes as the guest sees them, and what is wrong if one could not be had."""
    total = 0
    for disk in disks:
        try:
            total += _size(session, domain, disk)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN or not session.alive():
                raise
            where = disk.path or f"volume {disk.volume} of pool {disk.pool}"
            return total, (
                f"domain {domain.name()} ({domain.UUIDString()}): the size of its disk {disk.target} "
                f"({where}) "
                f"could not be read, so its DISK_GB is not known: {error}"
            )
    return total, None


def _size(session: Session, domain: Any, disk: Disk) -> int:
    """Bytes; a volume is asked itself, because only a running domain's disk knows its volume."""
    session.beat()
    if disk.pool:
        volume = session.libvirt.storagePoolLookupByName(disk.pool).storageVolLookupByName(disk.volume)
        session.beat()
        return int(volume.info()[1])
    return int(domain.blockInfo(disk.target)[0])
