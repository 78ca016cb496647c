"""Read the PCI devices of a host from sysfs and /proc, for those who give them to guests.

A file that is missing or cannot be read counts as if the device did not have what it tells.
Source: https://docs.kernel.org/driver-api/vfio.html, https://docs.kernel.org/PCI/sysfs-pci.html and
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from agent.cpuset import parse_cpu_set
from agent.driver import GroupMember, HostDevice, PassedDevice
from agent.errors import UsageError
from drivers.host.sysfs_files import entries, link_name, read_number, read_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_SHORT_ADDRESS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_VFIO_DRIVER = re.compile(r"(?:.+[-_])?vfio[-_]pci", re.ASCII)
_BRIDGES = ("0x0604", "0x0609")
_PLAIN_VFIO = "vfio_pci"
_DEFAULT_ROUTE = "00000000"
_DEPTH_MAX = 8


def parse_address(text: str) -> str:
    """The PCI address with its domain, in lower case. Raises UsageError where it is none."""
    address = text.strip().lower()
    if _SHORT_ADDRESS.fullmatch(address):
        address = f"0000:{address}"
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"{text[:40]!r} is no PCI address such as 0000:41:00.0; `lspci -D` lists them.")
    return address


def is_address(text: str) -> bool:
    """Whether it is a PCI address with its domain, in lower case."""
    return _ADDRESS.fullmatch(text) is not None


def has_vfio(device: Path) -> bool:
    """Whether a driver of VFIO is bound to the device in this folder."""
    driver = link_name(device / "driver") or ""
    return bool(_VFIO_DRIVER.fullmatch(driver)) or (device / "vfio-dev").is_dir()


class PciSysfs:
    """Reads devices below `sys`, what the host mounts and routes below `proc`, drivers in `modules`.

    `modules` is the folder of the running kernel's modules, None if unknown. Any thread may call.
    """

    def __init__(self, sys: Path, proc: Path, modules: Path | None = None) -> None:
        self._sys = sys
        self._proc = proc
        self._modules = modules
        self._devices = sys / "bus" / "pci" / "devices"

    def read(self, address: str, *, in_full: bool = True) -> HostDevice | None:
        """The device; None where the host has none at that address.

        `in_full`: also look for a driver that can migrate it, which reads a large file. Raises UsageError for
        what is no address.
        """
        path = self._devices / parse_address(address)
        if not path.is_dir():
            return None
        itself = self._member(path)
        vfs = tuple(sorted(link.resolve().name for link in path.glob("virtfn*")))
        reset = read_text(path / "reset_method")
        if reset is None and (path / "reset").exists():
            methods: tuple[str, ...] | None = ("reset",)  # before Linux 5.15
        else:
            methods = None if reset is None else tuple(reset.split())
        cell = read_number(path / "numa_node")
        return HostDevice(
            itself.address,
            itself.driver,
            itself.vfio,
            itself.bridge,
            tuple(self._uses(path)) if itself.driver and not itself.vfio else (),
            link_name(path / "iommu_group"),
            tuple(self._member(other) for other in entries(path / "iommu_group" / "devices")),
            methods,
            cell,
            None if cell is None else self._nearest(cell),
            vfs,
            tuple(vf for vf in vfs if self._member(self._devices / vf).vfio),
            self._migration_driver(path) if in_full else None,
        )

    def passed(self, addresses: Mapping[str, bool]) -> tuple[PassedDevice, ...]:
        """The devices of {address: whether libvirt binds it to VFIO's driver}."""
        return tuple(
            PassedDevice(address, managed, self.read(address, in_full=False))
            for address, managed in addresses.items()
        )

    def _member(self, path: Path) -> GroupMember:
        bridge = (read_text(path / "class") or "").startswith(_BRIDGES)
        return GroupMember(path.name, link_name(path / "driver") or "", has_vfio(path), bridge)

    # What the host itself uses it for

    def _uses(self, path: Path) -> Iterator[str]:
        buffers = [entry.name for entry in entries(path / "graphics") if entry.name.startswith("fb")]
        buffers += [
            buffer.name
            for card in entries(path / "drm")
            for buffer in entries(card / "device" / "graphics")
            if buffer.name not in buffers
        ]
        if buffers:
            yield f"shows the host's console ({', '.join(sorted(set(buffers)))})"
        elif read_text(path / "boot_vga") == "1":
            yield "is the display that the host booted with"
        real = path.resolve()
        for name in self._root_disks():
            if self._is_below(self._sys / "class" / "block" / name, real):
                yield f"has the host's root file system ({name})"
        for name in self._routed_interfaces():
            if self._is_below(self._sys / "class" / "net" / name, real):
                yield f"has the host's default route ({name})"

    def _is_below(self, path: Path, device: Path) -> bool:
        """Whether the thing is of this device. A virtual function lies beside its physical one, not below."""
        try:
            return device in path.resolve().parents
        except OSError:
            return False

    def _root_disks(self) -> Iterable[str]:
        """The block devices of the root file system, with the disks below a volume or a RAID."""
        lines = (read_text(self._proc / "self" / "mountinfo") or "").splitlines()
        numbers = {fields[2] for fields in map(str.split, lines) if len(fields) > 4 and fields[4] == "/"}
        start = [(self._sys / "dev" / "block" / number).resolve() for number in numbers]
        return _with_lower((path for path in start if path.is_dir()), lambda path: entries(path / "slaves"))

    def _routed_interfaces(self) -> Iterable[str]:
        """The interfaces of default routes, with those below a bridge, a bond or a VLAN."""
        rows = [line.split() for line in (read_text(self._proc / "net" / "route") or "").splitlines()[1:]]
        names = {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == _DEFAULT_ROUTE}
        net = self._sys / "class" / "net"

        def lower(path: Path) -> list[Path]:
            ports = [entry.name for entry in entries(path / "brif")]
            ports += [entry.name.removeprefix("lower_") for entry in path.glob("lower_*")]
            return [net / port for port in ports]

        return _with_lower((net / name for name in names if (net / name).exists()), lower)

    # NUMA

    def near_cells(self) -> Mapping[int, int]:
        """{cell without CPUs: the nearest one that has some}, where the kernel tells the distances."""
        numbers = [_cell_number(entry.name) for entry in entries(self._sys / "devices" / "system" / "node")]
        near = {number: self._nearest(number) for number in numbers if number is not None}
        return {cell: other for cell, other in near.items() if other is not None and other != cell}

    def _nearest(self, cell: int) -> int | None:
        """The cell itself if it has CPUs, else the nearest that has some; of equally near ones the first."""
        with_cpus = [
            number
            for entry in entries(self._sys / "devices" / "system" / "node")
            if (number := _cell_number(entry.name)) is not None and _has_cpus(entry)
        ]
        if cell in with_cpus or not with_cpus:
            return cell if cell in with_cpus else None
        text = read_text(self._sys / "devices" / "system" / "node" / f"node{cell}" / "distance") or ""
        online = sorted(
            number
            for entry in entries(self._sys / "devices" / "system" / "node")
            if (number := _cell_number(entry.name)) is not None
        )
        distances = dict(zip(online, (int(word) for word in text.split() if word.isdecimal()), strict=False))
        known = [number for number in with_cpus if number in distances]
        return min(known, key=lambda number: (distances[number], number), default=None)

    # Migration

    def _migration_driver(self, path: Path) -> str | None:
        """The driver of VFIO for this very device, which libvirt prefers to the plain one as well."""
        bound = link_name(path / "driver") or ""
        if _VFIO_DRIVER.fullmatch(bound) and bound.replace("-", "_") != _PLAIN_VFIO:
            return bound
        alias = (read_text(path / "modalias") or "").replace("pci:", "vfio_pci:", 1)
        if self._modules is None or not alias:
            return None
        for line in _lines(self._modules / "modules.alias"):
            words = line.split()
            is_alias = len(words) == 3 and words[1].startswith("vfio_pci:") and words[2] != _PLAIN_VFIO
            if is_alias and fnmatchcase(alias, words[1]):
                return words[2]
        return None


def _with_lower(start: Iterable[Path], lower: Callable[[Path], Iterable[Path]]) -> Iterable[str]:
    """The names of these things and of those below them."""
    names: dict[str, None] = {}
    level = list(start)
    for _ in range(_DEPTH_MAX):
        new = [path for path in level if path.name not in names]
        names |= dict.fromkeys(path.name for path in new)
        level = [below for path in new for below in lower(path)]
    return names


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError:
        return


def _cell_number(name: str) -> int | None:
    text = name.removeprefix("node")
    return int(text) if name.startswith("node") and text.isdecimal() else None


def _has_cpus(node: Path) -> bool:
    try:
        return bool(parse_cpu_set(read_text(node / "cpulist") or ""))
    except ValueError:
        return False
