"""What the doctor sees of the host: versions, clock, the hypervisor."""

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
from agent.errors import DriverError, SettingsError

SQLITE_MIN = (3, 37, 0)
TIME_ERROR = 5
TIMEX_BYTES = 512
KVM = Path("/dev/kvm")
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")


def versions() -> DoctorCheck:
    told = f"plimsoll {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    with suppress(importlib.metadata.PackageNotFoundError):
        told += f", libvirt-python {importlib.metadata.version('libvirt-python')}"
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        least = ".".join(map(str, SQLITE_MIN))
        return bad("versions", f"{told}.", f"SQLite {least} or newer is needed: upgrade libsqlite3.")
    return good("versions", f"{told}.")


def clock() -> DoctorCheck:
    """Whether the kernel's clock is kept right: adjtimex(2) answers TIME_ERROR where nobody does that."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state == TIME_ERROR:
        return warning(
            "clock",
            "The clock is not synchronised: times in the history, and tokens of Keystone, may be wrong.",
            "Start a time service, such as systemd-timesyncd or chrony.",
        )
    if state < 0:
        return warning("clock", "The kernel does not say how the clock is.", "Look at `timedatectl`.")
    return good("clock", "The clock is synchronised.")


def hypervisor(settings: Settings) -> Iterator[DoctorCheck]:
    """Connects as the agent would, and reads the host's cells and its guests. Keeps nothing."""
    name = settings.compute_driver
    try:
        driver = driver_class(name).create(replace(settings.driver, state_path=None))
    except SettingsError as error:
        yield bad("driver", error.message, "Correct the option, or install what the driver needs.")
        return
    try:
        yield _asked(name, driver)
    except DriverError as error:
        yield bad(
            "driver",
            f"{name}: {error.message.rstrip('.?')}.",
            "Is the hypervisor's service running (systemctl status libvirtd virtqemud), and may this user "
            "open its read-only socket? `virsh -r -c URI list` asks the same.",
        )
    finally:
        driver.close()
    if name == "libvirt":
        yield from at_libvirt(settings)
        yield from _kernel(settings)


def _asked(name: str, driver: Driver) -> DoctorCheck:
    topology, guests = driver.topology(), driver.guests()
    cpus = len(frozenset().union(*(cell.cpus for cell in topology.cells)))
    unread = [each for each in guests if each.problem]
    told = f"{name} answers: {cpus} CPUs in {len(topology.cells)} NUMA cells, {len(guests)} guests."
    if unread:
        problem = unread[0].problem
        return warning(
            "driver", f"{told} {len(unread)} cannot be read: {problem}.", "Look at the domain's XML."
        )
    return good("driver", told)


def _kernel(settings: Settings) -> Iterator[DoctorCheck]:
    if not KVM.exists():
        yield warning(
            "kvm",
            f"{KVM} is not there: guests are emulated, and slow.",
            "Switch on virtualisation in the firmware, and load kvm_intel or kvm_amd.",
        )
    wants_devices = bool(settings.driver.options.get("pci", {}).get("device_spec"))
    if wants_devices and not (IOMMU_GROUPS.is_dir() and any(IOMMU_GROUPS.iterdir())):
        yield warning(
            "iommu",
            "[pci] device_spec names devices for guests, but the kernel has no IOMMU groups.",
            "Switch on VT-d or AMD-Vi in the firmware, and intel_iommu=on where the kernel needs it.",
        )


GROUP = "libvirt"
"""Who is in it may manage libvirt's guests, by what Debian and others put into polkit's rules."""


SYSTEM_URI = "qemu:///system"


def at_libvirt(settings: Settings) -> Iterator[DoctorCheck]:
    """Nothing where it is not asked for, or where the agent has not run yet: it is who the state directory is
    of."""
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
        f"{user.pw_name} reads libvirt and may not manage it: what guests can be given (traits of firmware, "
        "vTPM, disk buses, graphics) is not reported, and mediated devices that a reboot took are not made "
        "again.",
        f"If you want these: usermod -aG {GROUP} {user.pw_name} && systemctl restart plimsoll-agent (it may "
        "then manage all guests). If not: [libvirt] full_connection = false.",
    )
