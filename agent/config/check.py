"""Find what a start of the agent would refuse in settings that are valid each; nothing is written.

The start and `plimsoll config validate` check the places of the agent's files, its state directory and its
API socket, by the same functions, which make nothing. What another process uses at this moment is not
looked at.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from agent.config.options import driver_classes, with_groups
from agent.config.settings import Settings, read_only_driver, values_of
from agent.driver import Driver, HostSettings, Topology
from agent.durable.errors import obstacle_of
from agent.durable.files import check_accepts_files
from agent.errors import NO_DESCRIPTORS, DriverDataError, DriverError, SettingsError, StateError, counted
from agent.http import unix_socket
from agent.http.errors import NotASocket
from agent.placement.connect import check_options
from agent.providers.provider_config import overlay
from agent.providers.resolve import uuids_of
from agent.tree import NIL_UUID, ProviderTree

DEFAULT_PORTS = {"http": 80, "https": 443}
_RESERVES = {
    "reserved_host_cpus": ("VCPU", 1),
    "reserved_host_memory_mb": ("MEMORY_MB", 1),
    "reserved_host_disk_mb": ("DISK_GB", 1024),
}
"""{option: (the class that it reserves, so many of its unit are one of the class)}"""


def check_state_path(path: Path) -> None:
    """Raises StateError where `path` cannot be the state directory; it may be missing, its parent not."""
    try:
        mode = _check_directory(path)
    except OSError as error:
        raise unusable_state_path(path, error) from error
    if mode & stat.S_IWOTH:
        raise StateError(
            f"Every user may write to the state directory {path}; chmod it to 0700.", path=str(path)
        )


def unusable_state_path(path: Path, error: OSError) -> StateError:
    """The error for a state directory that cannot be made or used."""
    obstacle = obstacle_of(path, error)
    remedy = obstacle.remedy
    if error.errno == errno.ENOENT or (error.errno == errno.EACCES and not os.path.lexists(path)):
        remedy = "create it, owned by the agent's user"
    or_else = "" if error.errno in NO_DESCRIPTORS else ", or set [DEFAULT] state_path"
    return StateError(
        f"The state directory {path} cannot be used: {obstacle.reason}; {remedy}{or_else}.", path=str(path)
    )


def check_running_state_path(path: Path) -> str | None:
    """What keeps a running agent from making files in its state directory: a sentence, None if nothing does.

    Its databases are open, so it goes on working. Raises StateError where it does not: their file system is
    read-only, or the directory is gone.
    """
    try:
        check_accepts_files(path)
    except OSError as error:
        unusable = unusable_state_path(path, error)
        if error.errno in {errno.EROFS, errno.ENOENT}:
            raise unusable from error
        return unusable.message
    return None


def check_api_socket(path: Path) -> None:
    """Raises SettingsError where the agent cannot listen at `path`; its directory may be missing."""
    try:
        mode = _check_directory(path.parent)
        unix_socket.is_there(path)
    except NotASocket as error:
        raise SettingsError(
            f"{path} exists and is no socket; move it away or set another [api] socket"
        ) from error
    except OSError as error:
        raise unusable_socket_directory(path.parent, error) from error
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise SettingsError(
            f"Every user may write to {path.parent} and replace the agent's socket; chmod it to 0750",
            directory=str(path.parent),
        )


def unusable_socket_directory(path: Path, error: OSError) -> SettingsError:
    """The error for a directory of the API socket that cannot be made or used."""
    obstacle = obstacle_of(path, error)
    remedy = "make it (mode 0750, owned by the agent's user)"
    if path.is_dir() or error.errno in NO_DESCRIPTORS:
        remedy = obstacle.remedy
    return SettingsError(
        f"The socket's directory {path} cannot be used: {obstacle.reason}; {remedy} or set another [api] "
        "socket",
        directory=str(path),
    )


def _check_directory(path: Path) -> int:
    """The directory's mode; 0 where it is missing and can be made in its parent. Raises OSError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        check_accepts_files(path.parent)
        return 0
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    check_accepts_files(path)
    return mode


def check_start(settings: Settings, host_uuid: str | None = None) -> tuple[str, ...]:
    """Returns clauses on what could not be checked, and on what the agent would start with, but not work.

    `host_uuid` is the uuid of this host's root provider, None where it is not known.

    The driver connects only if there are CPU sets, reservations or provider config files to compare with what
    it describes. Whether another process uses an address is not looked at. Raises SettingsError where a
    driver or the transport to Placement refuses its options, where a file or a socket of the agent cannot be
    made, or where a provider config file contradicts the driver.
    """
    notes, placement = [], settings.placement
    for check in (
        partial(check_state_path, settings.state_path),
        partial(check_api_socket, settings.api.socket),
        partial(check_options, placement.kind, placement.options, to_be_made=settings.api.socket.parent),
    ):
        try:
            check()
        except (SettingsError, StateError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, PermissionError):
                cause = cause.__cause__
            if cause is None:
                raise SettingsError(error.message, **error.details) from error
            # This user may not, which says nothing about the agent's user.
            notes.append(f"checked only as far as this user may: {error.message.rstrip('.')}")
    notes += _check_addresses(placement.endpoint_override or "")
    for option in ("cafile", "certfile", "keyfile") if placement.kind == "remote" else ():
        path = placement.options[option]
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            notes.append(f"[placement] {option} = {path} cannot be read: {error.strerror}")
    for name, other in driver_classes()[0].items():
        if name != settings.compute_driver:
            other.check_options(values_of(settings.table, with_groups(other.OPTIONS, settings.table)))
    with closing(read_only_driver(settings)) as driver:
        notes += _check_description(settings, driver, host_uuid)
    return tuple(notes)


def _check_addresses(endpoint_override: str) -> Iterator[str]:
    """What is odd about the addresses of several servers, each of which is a URL."""
    option, written = "[placement] endpoint_override", [each.strip() for each in endpoint_override.split(",")]
    addresses = [urlsplit(each.lower()) for each in written if each]
    if len(addresses) != len(written) and addresses:
        yield f"{option} has a comma with no address beside it: a server may be missing"
    places = Counter(
        (each.hostname, each.port or DEFAULT_PORTS[each.scheme], each.path.rstrip("/")) for each in addresses
    )
    for (host, port, path), times in places.items():
        if times > 1:
            yield f"{option} names {host}:{port}{path} {counted(times, 'time')}: it is one server"
    if len({each.scheme for each in addresses}) > 1:
        yield (
            f"{option} has http and https addresses: where it is http, each machine on the way can read "
            "the token"
        )


def _check_description(settings: Settings, driver: Driver, host_uuid: str | None) -> Iterator[str]:
    """Notes on what the driver does not describe, or not offer. Raises SettingsError."""
    host = settings.driver.host_settings
    unset, options = (
        HostSettings(),
        (*_RESERVES, "reserved_huge_pages", "cpu_shared_set", "cpu_dedicated_set"),
    )
    to_compare = any(getattr(host, option) != getattr(unset, option) for option in options)
    if not (settings.provider_config.entries or to_compare):
        return
    try:
        description, topology = driver.describe(), driver.topology()
    except DriverDataError as error:
        yield f"an agent with these settings does not offer this host: {error.message.rstrip('.')}"
        return
    except DriverError as error:
        if settings.provider_config.entries:
            why = error.message.rstrip(".")
            yield f"the provider config files were not compared with the driver: {why}"
        return
    told = (*description.problems, *driver.unmatched_options())
    yield from (sentence.rstrip(".") for sentence in told)
    # Notes on what is reserved as a whole, of all providers together.
    for option, (resource_class, divisor) in _RESERVES.items():
        total = sum(
            provider.inventories[resource_class].total
            for provider in description.providers
            if resource_class in provider.inventories
        )
        reserved = getattr(host, option)
        if total and reserved >= total * divisor:
            yield f"[DEFAULT] {option} = {reserved} leaves nothing of the {total} {resource_class} here"
    yield from _missing_pages(host, topology)
    uuids = uuids_of(description, ProviderTree(), host_uuid or NIL_UUID)
    result = overlay(settings.provider_config, description, uuids)
    if result.conflicts:
        raise SettingsError(" ".join(result.conflicts))
    for entry in result.unmatched:
        if entry.uuid is not None and host_uuid is None:
            # The uuids of all providers follow from the host's.
            yield (
                f"{entry.where}: whether this host has the provider {entry.provider} is not known: "
                f"{settings.state_path}/host_id, which the agent's first start writes, cannot be read"
            )
        else:
            yield f"{entry.where}: this host's driver describes no provider {entry.provider}"


def _missing_pages(host: HostSettings, topology: Topology) -> Iterator[str]:
    """Notes on reserved pages that the host does not have."""
    cells = {cell.id: cell for cell in topology.cells}
    for pages in host.reserved_huge_pages:
        cell = cells.get(pages.node)
        if cell is None:
            yield f"[DEFAULT] reserved_huge_pages names cell {pages.node}, which this host does not have"
        elif pages.count > cell.pages.get(pages.size_kib, 0):
            yield (
                f"[DEFAULT] reserved_huge_pages reserves {counted(pages.count, 'page')} of "
                f"{pages.size_kib} KiB on cell {pages.node}, which has {cell.pages.get(pages.size_kib, 0)}"
            )
