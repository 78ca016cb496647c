"""What the doctor sees of the host: versions, clock, the hypervisor."""

import ctypes
import importlib.metadata
import platform
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent import __version__
from agent.doctor.check import Check, bad, good, warning
from agent.doctor.rights import at_libvirt
from agent.driver import Driver
from agent.errors import DriverError, SettingsError
from agent.options import driver_class
from agent.settings import Settings

SQLITE_MIN = (3, 37, 0)
TIME_ERROR = 5
TIMEX_BYTES = 512
KVM = Path("/dev/kvm")
IOMMU_GROUPS = Path("/sys/kernel/iommu_groups")


def versions() -> Check:
    told = f"plimsoll {__version__}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    with suppress(importlib.metadata.PackageNotFoundError):
        told += f", libvirt-python {importlib.metadata.version('libvirt-python')}"
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        least = ".".join(map(str, SQLITE_MIN))
        return bad("versions", f"{told}.", f"SQLite {least} or newer is needed: upgrade libsqlite3.")
    return good("versions", f"{told}.")


def clock() -> Check:
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


def hypervisor(settings: Settings) -> Iterator[Check]:
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


def _asked(name: str, driver: Driver) -> Check:
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


def _kernel(settings: Settings) -> Iterator[Check]:
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
