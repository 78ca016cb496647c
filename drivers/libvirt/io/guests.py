"""Read one domain over a connection. A domain with a problem is reported as such and hides no other."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import libvirt

from agent.driver import Guest, GuestState
from agent.errors import DriverDataError
from drivers.host.domain_xml import Disk, Domain, guest_of, parse_domain
from drivers.host.sysfs import default_huge_page_kib
from drivers.libvirt.io.connection import Session

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
class KnownGuest:
    """A domain as it was last read; `domain` is None if its XML never was.

    The guest has its devices as the XML names them, without the providers that have them.
    """

    name_and_id: NameAndId
    guest: Guest
    domain: Domain | None = None

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
    state = GuestState.RUNNING
    parsed = known.domain if known is not None else None
    try:
        session.deadline.extend()
        state = _state(*domain.state())
        session.deadline.extend()
        parsed = parse_domain(domain.XMLDesc(), f"domain {name} ({uuid})", default_huge_page_kib())
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
        guest = _unread(
            uuid, name, state, known, f"libvirt does not answer for domain {name} ({uuid}): {error}"
        )
    except DriverDataError as error:
        guest = _unread(uuid, name, state, known, error.message)
    return _with_logged_problem(KnownGuest(name_and_id, guest, parsed), known)


def _state(state: int, reason: int) -> GuestState:
    paused = _PAUSED_FOR.get(reason) if state == libvirt.VIR_DOMAIN_PAUSED else None
    return paused or _STATES.get(state, GuestState.RUNNING)


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
    return _with_logged_problem(
        KnownGuest(name_and_id, _unread(uuid, name, state, known, problem), domain), known
    )


def _unread(uuid: str, name: str, state: GuestState, known: KnownGuest | None, problem: str) -> Guest:
    if known is None:
        return Guest(uuid=uuid, name=name, state=state, resources={}, problem=problem)
    return replace(known.guest, name=name, state=state, problem=problem)


def _disk_bytes(session: Session, domain: Any, disks: tuple[Disk, ...]) -> tuple[int, str | None]:
    """The sum of the sizes that the guest sees, in bytes, and the problem if one could not be read."""
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
                f"({where}) could not be read, so its DISK_GB is unknown: {error}"
            )
    return total, None


def _size(session: Session, domain: Any, disk: Disk) -> int:
    """Bytes. A volume tells its size itself; through the domain it would only while the domain runs."""
    session.deadline.extend()
    if disk.pool:
        volume = session.libvirt.storagePoolLookupByName(disk.pool).storageVolLookupByName(disk.volume)
        session.deadline.extend()
        return int(volume.info()[1])
    return int(domain.blockInfo(disk.target)[0])
