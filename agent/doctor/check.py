"""A check of the doctor, and the checks of a PCI device that a guest is to get. Pure.

What the checks of a device call bad hangs or fails when the guest starts: the gate refuses it with the same
sentence. Source: https://docs.kernel.org/driver-api/vfio.html and
https://libvirt.org/formatdomain.html#host-device-assignment
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from agent.device_names import PLAIN_VFIO, is_vfio
from agent.driver import HostDevice, PassedDevice
from agent.errors import counted


class CheckVerdict(StrEnum):
    """GOOD; WARNING: the agent runs without something; BAD: the agent does not run, or not for long."""

    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """`name` is one word, `sentence` the result, and `remedy` what to do unless it is good."""

    name: str
    verdict: CheckVerdict
    sentence: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready {name, verdict, sentence, remedy}."""
        return {**asdict(self), "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, told: Mapping[str, str]) -> Self:
        """The check that to_json told."""
        return cls(told["name"], CheckVerdict(told["verdict"]), told["sentence"], told["remedy"])


def good(name: str, sentence: str) -> DoctorCheck:
    """A check that passed."""
    return DoctorCheck(name, CheckVerdict.GOOD, sentence)


def warning(name: str, sentence: str, remedy: str) -> DoctorCheck:
    """A check that found something missing."""
    return DoctorCheck(name, CheckVerdict.WARNING, sentence, remedy)


def bad(name: str, sentence: str, remedy: str) -> DoctorCheck:
    """A check that failed."""
    return DoctorCheck(name, CheckVerdict.BAD, sentence, remedy)


def worst(checks: Iterable[DoctorCheck]) -> CheckVerdict:
    """The worst verdict of all checks."""
    order = list(CheckVerdict)
    return max((check.verdict for check in checks), key=order.index, default=CheckVerdict.GOOD)


BESIDE_VFIO = frozenset({"", "pci-stub", "pcieport", "shpchp"})
"""Drivers that do not use their device's memory: with them in its group, a device can be given to a guest."""

Holders = Mapping[str, str]
"""{PCI address: the other guest that uses the device}"""


def check_device(
    passed: PassedDevice, holders: Holders, with_it: Collection[PassedDevice] = ()
) -> Iterator[DoctorCheck]:
    """The checks of a device that a guest is to get together with the devices `with_it`."""
    device = passed.device
    if device is None:
        yield bad(
            "device",
            f"There is no PCI device {passed.address} on this host.",
            "`lspci -D` lists those there are; a virtual function must be created first.",
        )
        return
    yield _binding(device, managed=passed.managed)
    yield from _holders(device, holders)
    if not device.bridge:
        yield _group(device, holders, with_it)
        yield from _ways(device, asked=passed.iommufd)
        yield _reset(device)
        yield _cell(device)
        yield _migration(device, managed=passed.managed)
    if device.cc_mode is not None:
        yield good(
            "cc mode",
            f"{device.address} is in the mode {device.cc_mode} of confidential computing; its entry in [pci] "
            f'device_spec must say so ("cc_mode": "{device.cc_mode}").',
        )


def start_problems(devices: Collection[PassedDevice], holders: Holders) -> Iterator[str]:
    """A sentence for each thing for which a guest with these devices would hang or fail at its start."""
    for passed in devices:
        for check in check_device(passed, holders, devices):
            if check.verdict is CheckVerdict.BAD:
                yield f"{check.sentence} {check.remedy}"


def node_device(address: str) -> str:
    """libvirt's name of the device."""
    return "pci_" + address.replace(":", "_").replace(".", "_")


def _binding(device: HostDevice, *, managed: bool) -> DoctorCheck:
    name, address = "driver", device.address
    if device.bridge:
        return bad(name, f"{address} is a PCI bridge, which no guest can have.", "Name a device behind it.")
    if device.vfio:
        return good(name, f"{address} is bound to {device.driver}, ready for a guest.")
    bound = f"bound to the host's driver {device.driver}" if device.driver else "bound to no driver"
    if not managed:
        by = "the domain" if device.managed else "its [pci] device_spec"
        return bad(
            name,
            f"{address} is {bound}, and {by} does not let libvirt bind it to vfio-pci.",
            f"Write managed='yes' for it there, or run `virsh nodedev-detach {node_device(address)}`.",
        )
    becomes = _driver_of_guest(device, managed=True) or PLAIN_VFIO
    return good(
        name, f"{address} is {bound}; libvirt binds it to {becomes} when a guest with managed='yes' starts."
    )


def _driver_of_guest(device: HostDevice, *, managed: bool) -> str:
    """The driver of VFIO under which a guest gets the device; empty for none, or where it is not known."""
    if managed and device.becomes:
        return device.becomes
    if device.vfio or not managed:
        return device.driver if device.vfio else ""
    return next(iter(device.migration_drivers), "")


_USE_REMEDIES = {
    "console": "Put the console on another card, or bind this one to vfio-pci at boot (vfio-pci.ids= on the "
    "kernel's command line).",
    "display": "Set another card as the primary one in the firmware, or bind this one to vfio-pci at boot "
    "(vfio-pci.ids= on the kernel's command line).",
    "root": "Give the guest another disk controller.",
    "route": "Give the guest a virtual function of it, or move the host's route to another card.",
}


def _holders(device: HostDevice, holders: Holders) -> Iterator[DoctorCheck]:
    name, address = "holder", device.address
    found = False
    if address in holders:
        found = True
        yield bad(
            name,
            f"{address} is used by the guest {holders[address]}.",
            "Take it from that guest, or shut it down.",
        )
    for use in device.uses:
        found = True
        remedy = next(
            (text for word, text in _USE_REMEDIES.items() if word in use), "Give the guest another."
        )
        yield bad(name, f"{address} {use}: the host would lose it, and may hang.", remedy)
    if device.vfs and not device.vfio:
        found = True
        in_guests = [vf for vf in device.vfs if vf in device.vfs_in_guests or vf in holders]
        vfs = counted(len(device.vfs), "virtual function, which vanishes", "virtual functions, which vanish")
        sentence = f"{address} has {vfs} if a guest gets the whole card"
        if in_guests:
            yield bad(
                name,
                f"{sentence}, and guests have {', '.join(in_guests)}.",
                "Shut these guests down first.",
            )
        else:
            yield warning(name, f"{sentence}.", "Give the guest one of them, or remove them first.")
    for opener in device.openers:
        found = True
        yield bad(
            name, f"{address} is in use: {opener}.", "End that program, or give the guest another device."
        )
    if not found:
        yield good(name, f"Neither the host nor another guest uses {address}.")


def _group(device: HostDevice, holders: Holders, with_it: Collection[PassedDevice]) -> DoctorCheck:
    name, address = "group", device.address
    if device.group is None:
        return bad(
            name,
            f"{address} has no IOMMU group: the kernel cannot give it to a guest.",
            "Enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on if the kernel needs it.",
        )
    passed = {other.address: other for other in with_it}
    others = [member for member in device.members if member.address != address and not member.bridge]
    of_guests = [member for member in others if member.address in holders]
    if of_guests:
        used = ", ".join(f"{member.address} by {holders[member.address]}" for member in of_guests)
        return bad(
            name,
            f"{address} shares its IOMMU group {device.group} with devices of other guests: {used}.",
            "A group can be with one guest only: shut that guest down, or put the card into another slot.",
        )
    blocking = [
        member
        for member in others
        if not member.vfio
        and member.driver not in BESIDE_VFIO
        and not (member.address in passed and passed[member.address].managed)
    ]
    if not blocking:
        beside = f" with {', '.join(member.address for member in others)}" if others else ""
        return good(name, f"The IOMMU group {device.group} of {address} can be with a guest{beside}.")
    bound = ", ".join(f"{member.address} is bound to {member.driver}" for member in blocking)
    commands = "; ".join(f"virsh nodedev-detach {node_device(member.address)}" for member in blocking)
    return bad(
        name,
        f"The IOMMU group {device.group} of {address} is not viable: {bound}.",
        f"Give the guest the whole group, or take these from their drivers (`{commands}`), or put the card "
        "into another slot.",
    )


def _ways(device: HostDevice, *, asked: bool) -> Iterator[DoctorCheck]:
    """By which of VFIO's two interfaces a guest can get it: its group's, or iommufd's, if that is `asked`.

    The kernel loads iommufd with VFIO, so what a bound device lacks does not come at the guest's start.

    Source: https://docs.kernel.org/driver-api/vfio.html (IOMMUFD and vfio_iommu_type1, VFIO device cdev).
    """
    if device.group is None:
        return
    if asked and device.vfio and not (device.iommufd and device.own_file):
        lack = "its VFIO has no file for each device" if device.iommufd else "it has no /dev/iommu"
        yield bad(
            "interface",
            f"The domain wants {device.address} over iommufd, and this kernel cannot do that: {lack}.",
            "Take iommufd='yes' and <iommufd> out of the domain, or boot a kernel that has IOMMUFD and "
            "VFIO_DEVICE_CDEV.",
        )
        return
    by_group = f"{device.address} can be given by its IOMMU group (/dev/vfio/{device.group})"
    if not device.iommufd:
        rest = "not by iommufd: the kernel has no /dev/iommu (`modprobe iommufd`, if it has that module)"
    elif device.own_file:
        rest = f"by iommufd (/dev/vfio/devices/{device.own_file}; <driver iommufd='yes'/> in a newer libvirt)"
    elif device.vfio:
        rest = "not by iommufd: this kernel's VFIO has no file for each device"
    else:
        rest = "whether by iommufd is known once it is bound to a driver of VFIO"
    yield good("interface", f"{by_group}, and {rest}." if device.own_file else f"{by_group}; {rest}.")


def _reset(device: HostDevice) -> DoctorCheck:
    name, address = "reset", device.address
    if device.reset_methods is None:
        return warning(
            name,
            f"The kernel does not tell how {address} can be reset.",
            "After a crash of its guest, look at `dmesg` before another guest gets it.",
        )
    if not device.reset_methods:
        return warning(
            name,
            f"{address} cannot be reset: after a guest it keeps its state, and may fail in the next one.",
            "Restart the host when that happens, or use a card with a function level reset.",
        )
    return good(name, f"{address} can be reset ({', '.join(device.reset_methods)}).")


def _cell(device: HostDevice) -> DoctorCheck:
    name, address = "cell", device.address
    if device.cell is None:
        return good(
            name, f"{address} is near to all NUMA cells alike, or the firmware does not tell its cell."
        )
    if device.near_cell == device.cell:
        return good(name, f"{address} is on NUMA cell {device.cell}.")
    if device.near_cell is None:
        return warning(
            name,
            f"{address} is on NUMA cell {device.cell}, which has no CPUs.",
            "Run the guest on the cell that `numactl --hardware` shows as the nearest.",
        )
    return warning(
        name,
        f"{address} is on NUMA cell {device.cell}, which has no CPUs; cell {device.near_cell} is the nearest "
        "with CPUs.",
        f"Give the guest CPUs and memory of cell {device.near_cell}.",
    )


def _migration(device: HostDevice, *, managed: bool) -> DoctorCheck:
    name, address, could = "migration", device.address, device.migration_drivers
    detach = "Detach it before a live migration, or move the guest while it is shut off."
    by_spec = 'its [pci] device_spec says so ("live_migratable":'
    if device.live_migratable:
        return good(name, f'A guest with {address} can be migrated live: {by_spec} "yes").')
    if device.live_migratable is False:
        return warning(name, f'A guest with {address} cannot be migrated live: {by_spec} "no").', detach)
    guest_has = device.becomes if managed else device.driver
    if not could and device.migration_doubt and guest_has != PLAIN_VFIO:
        return warning(
            name,
            f"It is not known whether a guest with {address} can be migrated live: {device.migration_doubt}.",
            f'{detach} If you know, write "live_migratable": "yes" or "no" into its [pci] device_spec.',
        )
    if not could:
        return warning(
            name,
            f"No VFIO driver of this kernel can migrate {address}: a guest with it cannot be migrated live.",
            detach,
        )
    gets = _driver_of_guest(device, managed=managed)
    if gets in could and device.driver != PLAIN_VFIO:
        return good(name, f"A guest with {address} can be migrated live, with the driver {gets}.")
    at_boot = f"Bind {could[0]} to it at boot (driver_overrides)"
    if gets in could:
        return warning(
            name,
            f"{address} is bound to {device.driver}, which does not migrate it; with managed='yes', this "
            f"libvirt binds {gets}, which can, but the agent does not count on that.",
            f'{at_boot}, or write "live_migratable": "yes" into its [pci] device_spec if all its domains '
            "have managed='yes'.",
        )
    lacks = "is not known to" if is_vfio(gets) and gets != PLAIN_VFIO else "does not"
    if not managed or not device.becomes:
        bound = f"{address} is bound to {device.driver or 'no driver'}"
        return warning(name, f"{bound}, which {lacks} migrate it; {could[0]} could.", f"{at_boot}.")
    return warning(
        name,
        f"With managed='yes', this libvirt binds {gets} to {address}, which {lacks} migrate it; {could[0]} "
        "could.",
        f'{at_boot}, and write managed=\'no\' into the domain and "managed": "no" into its [pci] '
        "device_spec.",
    )
