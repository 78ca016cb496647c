"""The doctor's checks of the host: versions, clock, hypervisor, libvirt's rights."""

import ctypes
import grp
import importlib.metadata
import os
import platform
import pwd
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent import __version__
from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.driver import Driver
from agent.errors import DriverError, DriverSlow, SettingsError, counted
from agent.providers.caps import odd_caps
from agent.providers.disk_space import DISK, disk_in_use, disk_warning
from agent.providers.provider_config import ProviderConfig

SQLITE_MIN = (3, 37, 0)
TIME_ERROR = 5
TIMEX_BYTES = 512
KVM = Path("/dev/kvm")
MEMINFO = Path("/proc/meminfo")
MEMORY_PART = 32
"""One part of so many may differ: firmware and kernel keep some."""
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")


def versions() -> DoctorCheck:
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


def clock() -> DoctorCheck:
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


def hypervisor(settings: Settings) -> Iterator[DoctorCheck]:
    """The driver: connect as the agent does, and read the host's NUMA cells and guests. Writes nothing."""
    name = settings.compute_driver
    try:
        driver = driver_class(name).create(replace(settings.driver, state_path=None, read_only=True))
    except SettingsError as error:
        yield bad("driver", error.message, "Correct the option, or install the driver's dependencies.")
        return
    try:
        yield _answers(name, driver)
        if name == "libvirt":
            yield from memory(sum(cell.memory_mb for cell in driver.topology().cells))
        yield from _offers(driver, settings.provider_config)
    except DriverSlow as error:
        yield warning(
            "driver",
            f"{name} is slow: {error.message.partition(': ')[0].rstrip('.')}. It may be probing QEMU's "
            "binaries, as after a start or an upgrade.",
            "Run the doctor again in a minute; `virsh -r list` shows whether it answers then. The agent "
            "tries again by itself.",
        )
    except DriverError as error:
        yield bad(
            "driver",
            f"{name}: {error.message.rstrip('.?')}.",
            "Check that the hypervisor's service runs (systemctl status libvirtd virtqemud), and that this "
            "user may open its read-only socket: `virsh -r -c URI list` makes the same request.",
        )
    finally:
        driver.close()
    if name == "libvirt":
        yield from libvirt_rights(settings)
        yield from _kernel(settings)


def _offers(driver: Driver, config: ProviderConfig) -> Iterator[DoctorCheck]:
    """What the description offers and the host does not have, and options that match nothing."""
    description = driver.describe()
    for sentence in driver.unmatched_options():
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


def memory(described_mb: int, meminfo: Path = MEMINFO) -> Iterator[DoctorCheck]:
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


def _answers(name: str, driver: Driver) -> DoctorCheck:
    topology, guests = driver.topology(), driver.guests()
    cpus = len(frozenset().union(*(cell.cpus for cell in topology.cells)))
    unreadable = [guest for guest in guests if guest.problem]
    cells = counted(len(topology.cells), "NUMA cell")
    sentence = f"{name} answers: {counted(cpus, 'CPU')} in {cells}, {counted(len(guests), 'guest')}."
    if unreadable:
        problem = unreadable[0].problem
        return warning(
            "driver", f"{sentence} {len(unreadable)} cannot be read: {problem}.", "Check the domain's XML."
        )
    return good("driver", sentence)


def _kernel(settings: Settings) -> Iterator[DoctorCheck]:
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


GROUP = "libvirt"
"""The group whose members may manage libvirt's guests, by the polkit rules of Debian and others."""


SYSTEM_URI = "qemu:///system"


def libvirt_rights(settings: Settings) -> Iterator[DoctorCheck]:
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
