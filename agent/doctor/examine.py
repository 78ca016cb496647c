"""The examination of a host: each check of the doctor, in the order in which they are made, and the support
bundle.

Later checks build on the results of earlier ones. Those that make requests come last, and are made as the
agent's user: what root may do says nothing about the agent. The bundle is one file with all data about an
agent, without its secrets, which a mask removes.
"""

import ctypes
import errno
import grp
import importlib.metadata
import io
import json
import os
import platform
import pwd
import re
import select
import shutil
import signal
import sqlite3
import stat
import subprocess
import tarfile
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent import __version__, errors
from agent.carving.kernel import vfio_uses
from agent.config.options import driver_class
from agent.config.settings import Settings, load, read_only_driver
from agent.cpuset import format_cpu_set
from agent.doctor.check import DoctorCheck, bad, check_device, good, warning
from agent.driver import Driver, PassedDevice
from agent.durable.errors import READ_ONLY_REMEDY, is_immutable, mount_of, obstacle_of, user_name
from agent.durable.files import FILE_MODE, check_accepts_files, is_there, read_text
from agent.errors import counted
from agent.log import is_ordinary
from agent.placement.client import LEAST_MICROVERSION, PlacementClient
from agent.placement.connect import open_transport, ping
from agent.placement.transport import JOURNAL_HEADER, addresses_of
from agent.providers.limits import DISK, disk_in_use, disk_warning, odd_caps
from agent.providers.provider_config import ProviderConfig
from agent.state.identity import ID_FILE, NAME_FILE, establish_identity

AGENT_USER = "plimsoll"
UNIT = "plimsoll-agent"
CHECKS_S = 120.0
"""For all checks together: more than the time-outs of libvirt and of a remote Placement add up to."""
READ_BYTES = 65536
END_S = 1.0
SQLITE_MIN = (3, 37, 0)
TIME_ERROR = 5
TIMEX_BYTES = 512
FREE_MIN_BYTES = 256 * 1024 * 1024
FREE_BAD_BYTES = 16 * 1024 * 1024
MEBIBYTE = 1024 * 1024
DATABASES = ("agent.db", "placement.db")
NEW_DIRECTORY = "The state directory is new"
"""So begins the reason of a running agent whose state directory is younger than the guests."""
KVM = Path("/dev/kvm")
MEMINFO = Path("/proc/meminfo")
MEMORY_PART = 32
"""One part of so many may differ: firmware and kernel keep some."""
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")
PCI_DEVICES, PROC = Path("/sys/bus/pci/devices"), Path("/proc")
GROUP = "libvirt"
"""The group whose members may manage libvirt's guests, by the polkit rules of Debian and others."""
SYSTEM_URI = "qemu:///system"
CPUS = Path("/sys/devices/system/cpu")


def examine(
    config_files: Sequence[Path],
    config_dirs: Sequence[Path],
    ask: Callable[[str], Any],
    socket: str | None = None,
) -> Iterator[DoctorCheck]:
    """Yield the result of each check; the slow ones, which make requests, come last. Write nothing.

    `ask(socket path)` is GET /v1/status of the agent. `socket` overrides the socket in the settings.
    """
    yield check_versions()
    yield check_clock()
    try:
        settings = load(config_files, config_dirs)
    except errors.SettingsError as error:
        yield bad("settings", error.message, "`plimsoll config sample` shows every option.")
        return
    files = ", ".join(map(str, settings.files)) or "no file; every option has its default"
    yield good("settings", f"The settings are valid: {files}.")
    yield from check_state_directory(settings.state_path)
    yield check_identity(settings.state_path, settings.host)
    yield from check_databases(settings.state_path)
    yield from check_agent(Path(socket) if socket else settings.api.socket, ask)
    user = agent_user(settings.state_path)

    def requests() -> Iterator[DoctorCheck]:
        yield from check_writable(settings.state_path, user.pw_uid if user else 0)
        yield from check_placement(settings)
        yield from check_hypervisor(settings)
        yield from check_cpu_power(settings)

    if user is not None and os.geteuid() == 0:
        yield good("user", f"The checks that follow are made as {user.pw_name}, the agent's user.")
    yield from checks_as(user, requests)


def agent_user(state_path: Path) -> pwd.struct_passwd | None:
    """The agent's user: the owner of the state directory, else AGENT_USER; None for root or none of them."""
    try:
        user = pwd.getpwuid(state_path.stat().st_uid)
    except (OSError, KeyError):
        try:
            user = pwd.getpwnam(AGENT_USER)
        except KeyError:
            return None
    return user if user.pw_uid else None


def checks_as(
    user: pwd.struct_passwd | None, checks: Callable[[], Iterable[DoctorCheck]], within_s: float = CHECKS_S
) -> Generator[DoctorCheck, None, None]:
    """Yield the result of each check once it is made; if this process is root's, in a process of that user.

    That process is ended after `within_s` seconds, and the last result is then a warning that says so.
    """
    if user is None or os.geteuid() != 0:
        yield from checks()
        return
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(user, checks, writing)
    os.close(writing)
    ends_at = time.monotonic() + within_s
    begun, ended = b"", False
    try:
        # The child tells one check a line.
        while not ended and select.select([reading], [], [], max(ends_at - time.monotonic(), 0.0))[0]:
            content = os.read(reading, READ_BYTES)
            ended = not content
            *lines, begun = (begun + content).split(b"\n")
            yield from (DoctorCheck.from_json(json.loads(line)) for line in lines)
    finally:
        os.close(reading)
        # End the process. Its exit code is None if it was killed, or is not gone at once.
        process = os.pidfd_open(child)
        try:
            if not select.select([process], [], [], END_S)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], END_S)
        finally:
            os.close(process)
        gone, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if gone else None
    if ended and code == 0:
        return
    outcome = "ended without a result" if ended else f"did not end within {within_s:g} s"
    yield warning(
        "user",
        f"The checks as {user.pw_name} {outcome}; those that are not listed here were not made.",
        f"runuser -u {user.pw_name} -- plimsoll doctor",
    )


def _run_child(user: pwd.struct_passwd, checks: Callable[[], Iterable[DoctorCheck]], writing: int) -> None:
    """Runs in the child, and ends it: nothing of the parent's exit runs twice."""
    code = 1
    try:
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        for check in checks():
            content = json.dumps(check.to_json()).encode() + b"\n"
            while content:
                content = content[os.write(writing, content) :]
        code = 0
    except Exception:  # noqa: BLE001 - the parent learns only that there is no result
        traceback.print_exc()
    finally:
        os._exit(code)


def check_versions() -> DoctorCheck:
    """The versions of Plimsoll, Python, SQLite and libvirt-python."""
    installed = f"plimsoll {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    with suppress(importlib.metadata.PackageNotFoundError):
        installed += f", libvirt-python {importlib.metadata.version('libvirt-python')}"
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        least = ".".join(map(str, SQLITE_MIN))
        return bad(
            "versions", f"{installed}.", f"The agent needs SQLite {least} or newer: upgrade libsqlite3."
        )
    return good("versions", f"{installed}.")


def check_clock() -> DoctorCheck:
    """The kernel's clock: adjtimex(2) returns TIME_ERROR if no service synchronises it."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state == TIME_ERROR:
        return warning(
            "clock",
            "The clock is not synchronised: times in the history may be wrong, Keystone may reject tokens.",
            "Start a time service, such as systemd-timesyncd or chrony.",
        )
    if state < 0:
        return warning(
            "clock", "The kernel does not tell whether the clock is synchronised.", "Run `timedatectl`."
        )
    return good("clock", "The clock is synchronised.")


def check_state_directory(path: Path) -> Iterator[DoctorCheck]:
    """The state directory: its existence, its mode, and whether its file system can be written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        yield warning(
            "state", f"{path} does not exist yet.", "The service manager creates it at the first start."
        )
        return
    except OSError as error:
        yield bad("state", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user.")
        return
    owner = user_name(status.st_uid)
    if status.st_mode & stat.S_IWOTH:
        yield bad("state", f"Every user may write to {path}.", f"chmod 0700 {path}")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield bad(
            "state",
            f"{path} belongs to {owner}; {user_name(os.geteuid())} may not read it.",
            "Run the doctor as root, or as the agent's user.",
        )
        return
    elif status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        yield warning(
            "state", f"Other users than {owner} may open {path} (mode {mode:04o}).", f"chmod 0700 {path}"
        )
    elif is_immutable(path):
        yield bad("state", f"{path} is immutable: the agent cannot start again.", f"Run `chattr -i {path}`.")
    else:
        yield good("state", f"Only {owner} may open {path}.")
    mount = mount_of(path)
    if os.statvfs(path).f_flag & os.ST_RDONLY or (mount is not None and mount.is_read_only):
        remedy = READ_ONLY_REMEDY if mount is None else mount.remedy
        yield bad(
            "disk",
            f"The file system of {path} is read-only: the agent cannot start, nor take a claim.",
            f"{remedy[0].upper()}{remedy[1:]}",
        )
        return
    free = shutil.disk_usage(path).free
    sentence = f"The file system of {path} has {free // MEBIBYTE} MiB free."
    if free >= FREE_MIN_BYTES:
        yield good("disk", sentence)
        return
    kind = bad if free < FREE_BAD_BYTES else warning
    yield kind(
        "disk", sentence, "Free some space: the agent refuses claims when it cannot write its journal."
    )


def check_identity(path: Path, host: str) -> DoctorCheck:
    """The host's uuid and name. Writes nothing: the agent makes a missing uuid at its first start."""
    try:
        if not is_there(path / ID_FILE):
            if is_there(path / "agent.db"):
                recorded = _recorded_uuid(path / "agent.db") or "UUID"
                return bad(
                    "identity",
                    f"{path / ID_FILE} is gone, but the agent's database exists.",
                    f"Put the file back, or run `plimsoll adopt {recorded}`.",
                )
            return good("identity", f"{host} has no uuid yet; the first start makes one.")
        if not is_there(path / NAME_FILE):
            return good("identity", f"{host} has a uuid that was provided before the first start.")
        known = establish_identity(path, host, _recorded_uuid(path / "agent.db"))
    except errors.IdentityError as error:
        return bad("identity", error.message, "Follow the sentence.")
    except OSError as error:
        return bad(
            "identity", f"{path}: {error.strerror}.", "Run the doctor as root, or as the agent's user."
        )
    return good("identity", f"This host is {known.name}, {known.uuid}.")


def _recorded_uuid(journal: Path) -> str | None:
    """The host's uuid in the journal, None if it cannot be read; another check says why."""
    if not journal.exists():
        return None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(journal))}?mode=ro", uri=True, timeout=5)) as database:
            row = database.execute("SELECT value FROM facts WHERE name = 'host_uuid'").fetchone()
        return str(json.loads(row[0])) if row else None
    except (sqlite3.Error, ValueError):
        return None


def check_databases(path: Path) -> Iterator[DoctorCheck]:
    """Each database, opened read-only; the agent may be running."""
    remedy = (
        "Stop the agent, keep a copy of the file, and restore it from a backup (documentation: upgrading, "
        "backups). `sqlite3 FILE .recover` lists the readable data."
    )
    for file in (path / name for name in DATABASES):
        if not os.access(path, os.X_OK) or not file.exists():
            continue
        mode = stat.S_IMODE(file.stat().st_mode)
        try:
            with closing(
                sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=5)
            ) as database:
                (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
                (version,) = database.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError as error:
            as_who = "Run the doctor as root, or as the agent's user."
            yield warning("database", f"{file} cannot be read: {error}.", as_who)
            continue
        except sqlite3.DatabaseError as error:
            yield bad("database", f"{file} is damaged: {error}.", remedy)
            continue
        if result != "ok":
            yield bad("database", f"{file} is damaged: {result}.", remedy)
        elif mode & ~FILE_MODE:
            yield warning("database", f"{file} has mode {mode:04o}.", f"chmod 0600 {file}")
        else:
            yield good("database", f"{file} is intact (schema {version}).")


def check_agent(socket: Path, ask: Any) -> Iterator[DoctorCheck]:
    """The running agent's state; `ask(socket path)` is GET /v1/status of the local API."""
    try:
        status = ask(str(socket))
    except errors.DaemonUnreachable as error:
        try:
            is_inaccessible = is_there(socket) and not os.access(socket, os.R_OK | os.W_OK)
        except PermissionError:  # the directory is inaccessible
            is_inaccessible = True
        if is_inaccessible:
            yield warning("agent", error.message, "Run the doctor as root, or join the group plimsoll.")
        else:
            yield warning(
                "agent", f"No agent answers at {socket}.", f"systemctl start {UNIT}; journalctl -u {UNIT}"
            )
        return
    except errors.PlimsollError as error:
        yield warning(
            "agent",
            error.message,
            "[api] readers, claimers and admins list the users who may call the agent.",
        )
        return
    sentence = f"The agent (pid {status['pid']}, {status['version']}) is {status['state']}"
    if status["state"] == "ready":
        yield good("agent", f"{sentence}, with {counted(status['claims']['count'], 'claim')}.")
        for reason in status["reasons"]:
            if reason.startswith(NEW_DIRECTORY):
                yield warning("agent", reason, "Check `state_path`; then `plimsoll gate claim-running`.")
        return
    reasons = " ".join(status["reasons"]) or "it gives no reason"
    yield bad("agent", f"{sentence}: {reasons}", "Follow the reasons; the agent tries again by itself.")


def check_writable(path: Path, uid: int) -> Iterator[DoctorCheck]:
    """What keeps the agent's user, if this process is its, from making files in the state directory.

    Nothing if all is well. Other checks tell a missing or immutable directory and a read-only
    file system.
    """
    if os.geteuid() != uid or is_immutable(path):
        return
    try:
        check_accepts_files(path)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.ENOENT}:
            obstacle = obstacle_of(path, error)
            yield bad(
                "state",
                f"{path} cannot be used: {obstacle.reason}. The agent cannot start again.",
                f"{obstacle.remedy[0].upper()}{obstacle.remedy[1:]}",
            )


def check_placement(settings: Settings) -> Iterator[DoctorCheck]:
    """Placement: ask a remote one for its identity and for the agent's rights there. Writes nothing."""
    if settings.placement.kind != "remote":
        yield good("placement", "Placement is embedded; its database is in the state directory.")
        return
    try:
        transport = open_transport("remote", options=settings.placement.options)
        try:
            report = ping(transport, "the remote Placement")
        finally:
            transport.close()
    except errors.PlimsollError as error:
        yield bad(
            "placement", error.message, "Check [placement]; `plimsoll placement ping` makes the same request."
        )
        return
    yield good(
        "placement",
        f"{report.address} answers {report.identity} in {report.median_ms:g} ms, microversion {report.used}.",
    )
    for lack in report.lacking:
        yield warning("placement", f"{lack}.", "See the documentation page on a remote Placement.")
    addresses = addresses_of(settings.placement.endpoint_override)
    journals: dict[str, str] = {}
    for address in addresses if len(addresses) > 1 else ():
        # One that answered, or that would take over: whether it answers, and for the same Placement.
        one = open_transport("remote", options={**settings.placement.options, "endpoint_override": address})
        try:
            PlacementClient(one).versions()
            PlacementClient(one).find_provider(name="")  # it knows the agent's token
            answer = one.request("GET", "/", microversion=LEAST_MICROVERSION)
        except errors.PlimsollError as error:
            told = error.message if address in error.message else f"{address}: {error.message}"
            yield warning("placement", told, "Start that server, or correct endpoint_override.")
            continue
        finally:
            one.close()
        journals[answer.headers.get(JOURNAL_HEADER, "none")] = address
        if address != report.address:
            yield good("placement", f"{address} answers as well.")
    if len(journals) > 1:
        yield bad(
            "placement",
            f"{' and '.join(journals.values())} serve different Placements: they share no journal.",
            "Correct endpoint_override: all its addresses are those of servers with the same --journal.",
        )


def check_hypervisor(settings: Settings) -> Iterator[DoctorCheck]:
    """The driver: connect as the agent does, and read the host's NUMA cells and guests. Writes nothing."""
    name = settings.compute_driver
    try:
        driver = read_only_driver(settings)
    except errors.SettingsError as error:
        yield bad("driver", error.message, "Correct the option, or install the driver's dependencies.")
        return
    with closing(driver):
        try:
            topology, guests = driver.topology(), driver.guests()
            cpus = len(frozenset().union(*(cell.cpus for cell in topology.cells)))
            cells = counted(len(topology.cells), "NUMA cell")
            told = f"{name} answers: {counted(cpus, 'CPU')} in {cells}, {counted(len(guests), 'guest')}."
            problems = [guest.problem for guest in guests if guest.problem]
            if problems:
                told = f"{told} {len(problems)} cannot be read: {problems[0]}."
                yield warning("driver", told, "Check the domain's XML.")
            else:
                yield good("driver", told)
            if name == "libvirt":
                yield from check_memory(sum(cell.memory_mb for cell in topology.cells))
            yield from _offers(driver, settings.provider_config)
        except errors.DriverSlow as error:
            yield warning(
                "driver",
                f"{name} is slow: {error.message.partition(': ')[0].rstrip('.')}. It may be probing QEMU's "
                "binaries, as after a start or an upgrade.",
                "Run the doctor again in a minute; `virsh -r list` shows whether it answers then. The agent "
                "tries again by itself.",
            )
        except errors.DriverError as error:
            yield bad(
                "driver",
                f"{name}: {error.message.rstrip('.?')}.",
                "Check that the hypervisor's service runs (systemctl status libvirtd virtqemud), and that "
                "this user may open its read-only socket: `virsh -r -c URI list` makes the same request.",
            )
    if name == "libvirt":
        yield from check_rights(settings)
        if not KVM.exists():
            yield warning(
                "kvm",
                f"{KVM} does not exist: guests are emulated, and slow.",
                "Enable virtualisation in the firmware, and load kvm_intel or kvm_amd.",
            )
        wants_devices = bool(settings.driver.options.get("pci", {}).get("device_spec"))
        if wants_devices and not (IOMMU_GROUPS.is_dir() and any(IOMMU_GROUPS.iterdir())):
            yield warning(
                "iommu",
                "[pci] device_spec names devices for guests, but the kernel has no IOMMU groups.",
                "Enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on if the kernel needs it.",
            )


def check_memory(described_mb: int, meminfo: Path = MEMINFO) -> Iterator[DoctorCheck]:
    """Compare the memory of libvirt's cells with the kernel's MemTotal.

    libvirt reads the cells when it starts: memory that came or went since is not in them.
    """
    try:
        (total_kib,) = (
            int(line.split()[1])
            for line in meminfo.read_text(encoding="ascii").splitlines()
            if line.startswith("MemTotal:")
        )
    except (OSError, ValueError, IndexError) as error:
        yield warning("memory", f"{meminfo} cannot be read: {error}.", "Is /proc mounted?")
        return
    kernel_mb = total_kib // 1024
    if abs(described_mb - kernel_mb) * MEMORY_PART > kernel_mb:
        yield warning(
            "memory",
            f"libvirt counts {described_mb} MiB of memory, and the kernel has {kernel_mb} MiB: claims are "
            "granted of what libvirt counts.",
            "Memory was added or taken away since libvirtd started, or another machine's libvirt answers: "
            "restart libvirtd (guests keep running), and compare [libvirt] connection_uri.",
        )
    else:
        yield good("memory", f"libvirt counts {described_mb} MiB of memory, as the kernel does.")


def _offers(driver: Driver, config: ProviderConfig) -> Iterator[DoctorCheck]:
    """What the description offers and the host does not have, and options that match nothing."""
    description = driver.describe()
    for sentence in (*description.problems, *driver.unmatched_options()):
        yield warning(
            "options",
            sentence,
            "Correct the option, or remove it; `lspci -Dnn` lists the devices, and `lscpu -e` the CPUs.",
        )
    described = [each.inventories for each in description.providers]
    described += [entry.inventories for entry in config.entries]
    offered = [
        (name, inventory.allocation_ratio or inventory.initial_allocation_ratio)
        for inventories in described
        for name, inventory in inventories.items()
    ]
    for sentence in odd_caps(config.caps, offered):
        yield warning("options", sentence, "Correct or remove the cap; `plimsoll tree` lists the classes.")
    shortage = disk_warning(
        description.providers[0].inventories.get(DISK), disk_in_use(driver.guests()), driver.disk_free_gb()
    )
    if shortage is not None:
        yield warning("space", shortage, "Guests that are promised more than there is fail when they write.")


def check_rights(settings: Settings) -> Iterator[DoctorCheck]:
    """The right of the agent's user, the owner of the state directory, to manage libvirt.

    Yields nothing if the settings do not need that right, or if the agent has not run yet.
    """
    options = settings.driver.options.get("libvirt", {})
    if not options.get("full_connection", True) or options.get("connection_uri") != SYSTEM_URI:
        return
    try:
        user = pwd.getpwuid(settings.state_path.stat().st_uid)
        group = grp.getgrnam(GROUP)
    except (OSError, KeyError):
        return
    if user.pw_uid == 0 or group.gr_gid in os.getgrouplist(user.pw_name, user.pw_gid):
        yield good("rights", f"{user.pw_name} may manage libvirt.")
        return
    yield warning(
        "rights",
        f"{user.pw_name} may read libvirt but not manage it: the agent reports no traits of firmware, vTPM, "
        "disk buses and graphics, and does not create mediated devices again after a reboot.",
        f"To have these: usermod -aG {GROUP} {user.pw_name} && systemctl restart plimsoll-agent (the agent "
        "may then manage all guests). Otherwise, set [libvirt] full_connection = false.",
    )


def check_cpu_power(settings: Settings, cpus: Path = CPUS) -> Iterator[DoctorCheck]:
    """Whether dedicated CPUs can be powered up and down; nothing where that is not configured."""
    host = settings.driver.host_settings
    managed = sorted((host.cpu_dedicated_set or frozenset()) - {0})
    if not host.cpu_power_management or not managed:
        return
    offline = frozenset(cpu for cpu in managed if read_text(cpus / f"cpu{cpu}" / "online") == "0")
    if host.cpu_power_management_strategy == "cpu_state":
        fixed = frozenset(cpu for cpu in managed if not (cpus / f"cpu{cpu}" / "online").exists())
        if fixed:
            yield warning(
                "cpus",
                f"The kernel cannot take CPU {format_cpu_set(fixed)} offline: it is always online.",
                "Nothing needs to be done, unless the kernel was built without CPU hotplug.",
            )
        down = f"CPU {format_cpu_set(offline)} is offline" if offline else "No dedicated CPU is offline"
        yield good(
            "cpus",
            f"{down}; plimsoll-cpus.path brings a claim's CPUs online, and libvirt's hook a guest's, where "
            "`plimsoll gate status` says that it is in effect.",
        )
        return
    if offline:
        yield bad(
            "cpus",
            f"CPU {format_cpu_set(offline)} in [compute] cpu_dedicated_set is offline, and the strategy "
            "`governor` needs all of them online.",
            "; ".join(f"echo 1 > {cpus}/cpu{cpu}/online" for cpu in sorted(offline)),
        )
    wanted = (host.cpu_power_governor_low, host.cpu_power_governor_high)
    lacking = set()
    for cpu in set(managed) - offline:
        governors = read_text(cpus / f"cpu{cpu}" / "cpufreq" / "scaling_available_governors") or ""
        if not {*wanted} <= {*governors.split()}:
            lacking.add(cpu)
    if lacking:
        yield bad(
            "cpus",
            f"CPU {format_cpu_set(lacking)} in [compute] cpu_dedicated_set cannot have the governors "
            f"{' and '.join(wanted)}.",
            "Load the processor's cpufreq driver, or set [compute] cpu_power_management_strategy = "
            "cpu_state.",
        )
    elif not offline:
        yield good("cpus", f"The dedicated CPUs can have the governors {' and '.join(wanted)}.")


def examine_device(
    config_files: Sequence[Path], config_dirs: Sequence[Path], address: str
) -> Iterator[DoctorCheck]:
    """Whether a guest could be given the PCI device now, `managed` as the settings say. Write nothing.

    Raises UsageError for what is no PCI address, SettingsError.
    """
    settings = load(config_files, config_dirs)
    if settings.compute_driver == "fake":
        yield good(
            "driver",
            "The driver is fake, and its devices do not exist: --device looks at this machine's.",
        )
    driver = driver_class(settings.compute_driver).create(replace(settings.driver, state_path=None))
    holders: dict[str, str] = {}
    try:
        device = driver.host_device(address)
        try:
            holders = {
                unit.unit: f"{guest.name} ({guest.uuid})"
                for guest in driver.guests()
                if not guest.is_off
                for unit in guest.units
            }
            device = driver.host_device(address)  # now with what the hypervisor is known to do with it
        except errors.DriverError as error:
            yield warning(
                "guests",
                f"Which guests use the device is not known: {error.message.rstrip('.?')}.",
                "`plimsoll doctor` without --device checks the hypervisor.",
            )
    finally:
        driver.close()
    address = device.address if device is not None else address
    if device is not None and device.vfio and address not in holders and (PCI_DEVICES / address).is_dir():
        openers = tuple(vfio_uses(PCI_DEVICES / address, device.driver, PROC))
        device = replace(device, openers=openers)
    managed = device is None or device.managed
    yield from check_device(PassedDevice(address, managed=managed, device=device), holders)


QUESTIONS = {
    **{name: name for name in ("status", "tree", "instances", "plan", "moves", "reshape", "audit", "config")},
    "history": "history?limit=1000",
}
"""{member of the archive: path below /v1}"""
LOG_LINES = 5000
COMMAND_TIMEOUT_S = 20
COMMANDS = {
    "log.txt": ("journalctl", "-u", "plimsoll-agent", "-n", str(LOG_LINES), "-o", "short-iso", "--no-pager"),
    "unit.txt": ("systemctl", "show", "plimsoll-agent", "--no-pager"),
    "kernel.txt": ("uname", "-a"),
    "cpus.txt": ("lscpu",),
}

Paths = tuple[Path, ...]
Ask = Callable[[str, str], Any]
"""ask(socket, path) is GET of a path; the socket "" is the default one. Raises PlimsollError."""


def gather(to: str | None, config_files: Paths, config_dirs: Paths, ask: Ask) -> tuple[Path, list[str]]:
    """Write the bundle, with mode 0600. Returns its path and its members.

    Raises UsageError where the file exists already or cannot be written.
    """
    secrets: frozenset[str] = frozenset()
    problem = ""
    try:
        secrets = load(config_files, config_dirs).secrets
    except errors.SettingsError as error:
        problem = error.message
    name = f"plimsoll-{os.uname().nodename}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    path = Path(to or f"{name}.tar.gz")
    members = []
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise errors.UsageError(f"{path} exists already; give another file with --to") from None
    except OSError as error:
        raise errors.UsageError(
            f"{path} cannot be written: {error.strerror}; give a file in a directory that exists and that "
            "you may write with --to"
        ) from error
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, text in _members(config_files, config_dirs, ask, problem):
            content = mask(text, secrets).encode("utf-8", "backslashreplace")
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(content))
            members.append(member)
    return path, members


def _members(config_files: Paths, config_dirs: Paths, ask: Ask, problem: str) -> Iterator[tuple[str, str]]:
    for member, path in QUESTIONS.items():
        yield f"{member}.json", _answer(partial(ask, "", f"/v1/{path}"))

    def examination() -> object:
        checks = examine(config_files, config_dirs, lambda socket: ask(socket, "/v1/status"))
        return [check.to_json() for check in checks]

    yield "doctor.json", _answer(examination)
    for file, command in COMMANDS.items():
        try:
            done = subprocess.run(  # noqa: S603  # one of COMMANDS
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            yield file, done.stdout + done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            yield file, f"{' '.join(command)}: {error}\n"
    if problem:
        yield "settings-problem.txt", problem


def _answer(ask: Callable[[], Any]) -> str:
    try:
        return json.dumps(ask(), indent=2)
    except errors.PlimsollError as error:
        return json.dumps({"error": {"code": error.code, "message": error.message}}, indent=2)


MASK = "***"
_NAMED = re.compile(
    r"""(?ix) ( \b [\w.-]* (?: password | passwd | secret | token | api_?key ) [\w.-]* ["']? \s* [:=] \s* )
        (?: "[^"]*" | '[^']*' | [^\s,;"'{}\[\]]+ )"""
)
_HEADER = re.compile(r"(?i)(\b(?:x-auth-token|x-subject-token|authorization)\s*:\s*)[^\r\n]+")
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, and without the values of keys such as `password` or `token`.

    A secret that is an ordinary word, or a part of one, is masked only as the value of such a key.
    """
    spellings = {
        spelling
        for secret in secrets
        if not is_ordinary(secret)
        for spelling in (secret, json.dumps(secret)[1:-1])
    }
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, MASK)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
