"""Read what the kernel shows of a host in sysfs and /proc.

That is: PCI devices, for those who give them to guests; mediated devices and vGPU types; NUMA cells;
namespaces of persistent memory; and the signs of health of devices and memory. Only debugfs and
the mode of a GPU need privileges. A file that is missing or cannot be read counts as if the host did not have
what it tells.

Source: https://docs.kernel.org/driver-api/vfio.html, https://docs.kernel.org/PCI/sysfs-pci.html,
https://docs.kernel.org/driver-api/vfio-mediated-device.html,
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci (power_state, driver_override),
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats,
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net (carrier),
https://docs.kernel.org/gpu/amdgpu/ras.html,
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-node (memory_failure),
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-dax (target_node),
https://docs.kernel.org/admin-guide/mm/numaperf.html (access0),
https://docs.kernel.org/driver-api/nvdimm/nvdimm.html and
https://docs.kernel.org/admin-guide/mm/hugetlbpage.html
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from agent.codec import decode
from agent.cpuset import parse_cpu_set
from agent.device_names import CC_MODES, DASHED_UUID, PCI_ADDRESS, PLAIN_VFIO, address_of, is_vfio
from agent.driver import DescribedProvider, DeviceSigns, GroupMember, HostDevice, PassedDevice, RootSight
from agent.durable.files import cc_mode, entries, link_name, read_bytes, read_number, read_text, vram_quota
from agent.durable.netlink import read_ports
from agent.errors import DriverDataError, UsageError
from drivers.host.domain_xml import DEFAULT_HUGE_PAGE_KIB

# The host

MEMINFO = Path("/proc/meminfo")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_HUGE_PAGE_SIZE = re.compile(r"^Hugepagesize: +([0-9]{1,12}) kB$", re.ASCII | re.MULTILINE)


@cache
def default_huge_page_kib(path: Path = MEMINFO) -> int:
    """The size in KiB of huge pages for which a domain gives none; it is fixed at the boot of the host."""
    match = _HUGE_PAGE_SIZE.search(read_text(path) or "")
    return int(match[1]) if match else DEFAULT_HUGE_PAGE_KIB


def boot_id(path: Path = BOOT_ID) -> str:
    """The random id of this boot; "" where the kernel does not tell it.

    Source: https://docs.kernel.org/admin-guide/sysctl/kernel.html#random
    """
    return read_text(path) or ""


def read_cells(sys: Path, cpus: Iterable[int]) -> dict[int, int | None]:
    """{CPU: its cell}, also of CPUs that are offline, which libvirt's capabilities leave out.

    None: sysfs does not tell, as on a kernel without NUMA. Source: the kernel's
    Documentation/ABI/stable/sysfs-devices-node; `cpuN/nodeM` stays while the CPU is offline.
    """
    cells: dict[int, int | None] = {}
    for cpu in cpus:
        links = entries(sys / "devices" / "system" / "cpu" / f"cpu{cpu}")
        numbers = (_cell_number(link.name) for link in links)
        cells[cpu] = next((number for number in numbers if number is not None), None)
    return cells


def _cell_number(name: str) -> int | None:
    text = name.removeprefix("node")
    return int(text) if name.startswith("node") and text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class PmemNamespace:
    """A namespace of persistent memory in mode devdax that has a name.

    `path` is its device, sizes are in bytes.
    """

    name: str
    path: str
    size: int
    align: int


def read_namespaces(sys: Path) -> tuple[PmemNamespace, ...]:
    """The namespaces in mode devdax that have a name, by name, as `ndctl list -X` shows them.

    One that cannot be read is left out. By the kernel's drivers/nvdimm a namespace's `alt_name` is its name,
    its `holder` the device that has it; in mode devdax that is a dax device, below which is the character
    device of the same kind. Older kernels have that one in a folder `dax`.
    """
    devices, found = sys / "bus" / "nd" / "devices", []
    for folder in (each for each in entries(devices) if each.name.startswith("namespace")):
        name, holder = read_text(folder / "alt_name"), read_text(folder / "holder") or ""
        if not name or not holder.startswith("dax") or "/" in holder:
            continue
        dax = devices / holder
        size, align = read_number(dax / "size"), read_number(dax / "align")
        nodes = [*dax.glob("dax[0-9]*.[0-9]*"), *dax.glob("dax/dax[0-9]*.[0-9]*")]
        device = next((node.name for node in sorted(nodes) if node.is_dir()), "")
        if device and size is not None and align is not None:
            found.append(PmemNamespace(name, f"/dev/{device}", size, align))
    return tuple(sorted(found, key=lambda namespace: namespace.name))


MEMORY_KINDS = ("cxl", "hbm", "pmem", "other")
"""The kinds of memory of cells without CPUs; "other" is any of which the kernel does not say what it is."""

UNKNOWN_KIND = "unknown"
"""What such a cell has while a dax device, which may be of its memory, does not tell its cell."""

_KINDS_OF_DAX = {"ndbus": "pmem", "dax_region": "cxl"}
"""{name, without its number, of a device above a dax device: kind of its memory}"""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """What the kernel tells of a NUMA cell that has memory alone.

    `kind` is one of MEMORY_KINDS, or UNKNOWN_KIND. `near` is the nearest cell that has CPUs, at `distance`
    (10 is that of a cell to itself); both are None where the kernel does not tell.
    """

    kind: str = "other"
    near: int | None = None
    distance: int | None = None


# PCI devices

_SHORT_ADDRESS = re.compile(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_BRIDGES = ("0x0604", "0x0609")
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_PLAIN_VFIO = "vfio_pci"
_MIGRATES = frozenset(f"{name}_vfio_pci" for name in ("mlx5", "hisi_acc", "pds", "qat", "virtio", "xe"))
"""The kernel's drivers of VFIO that migrate what they drive; others, such as nvgrace_gpu, drive a device that
the plain one cannot.
"""
_NEVER_MIGRATES = frozenset({"", _PLAIN_VFIO, "nvgrace_gpu_vfio_pci"})
"""The kernel's drivers of VFIO that migrate nothing; "" stands for no driver.

The name of a vendor's own driver tells nothing.
"""
_DEFAULT_ROUTE = "00000000"
_DEPTH_MAX = 8
SIGHT_SIZE_MAX = 2**20

_SAFE = re.compile(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_-]", re.ASCII)
_MAX_INSTANCE = re.compile(r"\bmax_instance=([0-9]{1,6})\b", re.ASCII)
_TYPE = re.compile(r"[0-9]{1,9}", re.ASCII)
_CREATABLE = re.compile(r"^([0-9]{1,9}) *: *(\S.{0,80}?) *$", re.ASCII | re.MULTILINE)


def parse_address(text: str) -> str:
    """The PCI address with its domain, in lower case. Raises UsageError where it is none."""
    address = text.strip().lower()
    if _SHORT_ADDRESS.fullmatch(address):
        address = f"0000:{address}"
    if not PCI_ADDRESS.fullmatch(address):
        raise UsageError(f"{text[:40]!r} is no PCI address such as 0000:41:00.0; `lspci -D` lists them.")
    return address


def is_address(text: str) -> bool:
    """Whether it is a PCI address with its domain, in lower case."""
    return PCI_ADDRESS.fullmatch(text) is not None


def has_vfio(device: Path) -> bool:
    """Whether a driver of VFIO is bound to the device in this folder."""
    return is_vfio(link_name(device / "driver")) or (device / "vfio-dev").is_dir()


class Sysfs:
    """Reads PCI devices below `sys`, what the host mounts and routes below `proc`, drivers in `modules`.

    `modules` is the folder of the running kernel's modules, `seen` the file of what root saw; None if
    unknown. Any thread may call.
    """

    def __init__(self, sys: Path, proc: Path, modules: Path | None = None, seen: Path | None = None) -> None:
        self._sys = sys
        self._proc = proc
        self._modules = modules
        self._devices = sys / "bus" / "pci" / "devices"
        self._aliases: tuple[int, tuple[tuple[str, str], ...]] = (0, ())
        self._seen = seen
        self._sight = (0, RootSight())

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
        cell, name = read_number(path / "numa_node"), itself.address
        migrate = (self.migration_driver(name), self.replacement(name, itself.driver)) if in_full else ()
        return HostDevice(
            itself.address,
            itself.driver,
            itself.vfio,
            itself.bridge,
            tuple(self._uses(path)) if itself.driver and not itself.vfio else (),
            link_name(path / "iommu_group") or None,
            tuple(self._member(other) for other in entries(path / "iommu_group" / "devices")),
            methods,
            cell,
            None if cell is None else self._nearest(cell),
            vfs,
            tuple(vf for vf in vfs if self._member(self._devices / vf).vfio),
            tuple(filter(None, migrate)),
            next((entry.name for entry in entries(path / "vfio-dev")), ""),
            (self._sys / "class" / "misc" / "iommu").exists(),
            cc_mode(path) if in_full else None,
            migration_doubt=self._migration_doubt(name) if in_full else "",
        )

    def passed(self, addresses: Mapping[str, bool], iommufd: Collection[str]) -> tuple[PassedDevice, ...]:
        """The devices of {address: whether libvirt binds it to VFIO's driver}."""
        return tuple(
            PassedDevice(address, managed, self.read(address, in_full=False), address in iommufd)
            for address, managed in addresses.items()
        )

    def _member(self, path: Path) -> GroupMember:
        bridge = (read_text(path / "class") or "").startswith(_BRIDGES)
        return GroupMember(path.name, link_name(path / "driver"), has_vfio(path), bridge)

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
        # The block devices of the root file system, with the disks below a volume or a RAID.
        lines = (read_text(self._proc / "self" / "mountinfo") or "").splitlines()
        numbers = {fields[2] for fields in map(str.split, lines) if len(fields) > 4 and fields[4] == "/"}
        start = [(self._sys / "dev" / "block" / number).resolve() for number in numbers]
        for name in _with_lower(
            (path for path in start if path.is_dir()), lambda path: entries(path / "slaves")
        ):
            if self._is_below(self._sys / "class" / "block" / name, real):
                yield f"has the host's root file system ({name})"
        # The interfaces of default routes, with those below a bridge, a bond or a VLAN.
        rows = [line.split() for line in (read_text(self._proc / "net" / "route") or "").splitlines()[1:]]
        names = {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == _DEFAULT_ROUTE}
        net = self._sys / "class" / "net"

        def lower(path: Path) -> list[Path]:
            ports = [entry.name for entry in entries(path / "brif")]
            ports += [entry.name.removeprefix("lower_") for entry in path.glob("lower_*")]
            return [net / port for port in ports]

        for name in _with_lower((net / name for name in names if (net / name).exists()), lower):
            if self._is_below(self._sys / "class" / "net" / name, real):
                yield f"has the host's default route ({name})"

    def _is_below(self, path: Path, device: Path) -> bool:
        """Whether the thing is of this device. A virtual function lies beside its physical one, not below."""
        try:
            return device in path.resolve().parents
        except OSError:
            return False

    # Topology

    def bridges(self, address: str) -> tuple[str, ...]:
        """The root complex and the bridges above the device, from the top; empty where there is no device.

        ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0"): below the root complex its root port,
        then the ports of switches.
        """
        parts = self._path(address).resolve().parts
        tops = [number for number, part in enumerate(parts) if _ROOT_COMPLEX.fullmatch(part)]
        return parts[tops[-1] : -1] if tops else ()

    def memory_cells(self) -> Mapping[int, MemoryCell]:
        """{cell without CPUs: what the kernel tells of it}

        Memory that a driver gave the kernel (daxctl's mode system-ram) is a dax device, whose place says what
        it is. That of the firmware is HBM if its table (HMAT) has a higher bandwidth for it than for the
        memory of the nearest cell with CPUs. A device with the cell -1 has none.
        """
        kinds: dict[int | None, str] = {}
        for dax in entries(self._sys / "bus" / "dax" / "devices"):
            above = [part.rstrip("0123456789") for part in dax.resolve().parts]
            for name, kind in _KINDS_OF_DAX.items():
                if name in above and read_text(dax / "target_node") != "-1":
                    kinds.setdefault(read_number(dax / "target_node"), kind)
        found, rate = {}, "access0/initiators/read_bandwidth"
        for cell in self._cells():
            near = self._nearest(cell)
            if near != cell:
                own, other = (read_number(self._node(each) / rate) or 0 for each in (cell, near))
                told = UNKNOWN_KIND if None in kinds else "hbm" if own > other > 0 else "other"
                found[cell] = MemoryCell(kinds.get(cell, told), near, self._distances(cell).get(near))
        return found

    def _nearest(self, cell: int) -> int | None:
        """The cell itself if it has CPUs, else the nearest that has some; of equally near ones the first."""
        cells = self._cells()
        with_cpus = []
        for number, folder in cells.items():
            with suppress(ValueError):
                if parse_cpu_set(read_text(folder / "cpulist") or ""):
                    with_cpus.append(number)
        if cell in with_cpus:
            return cell
        distances = self._distances(cell)
        known = [number for number in with_cpus if number in distances]
        return min(known, key=lambda number: (distances[number], number), default=None)

    def _node(self, cell: int | None) -> Path:
        return self._sys / "devices" / "system" / "node" / f"node{cell}"

    def _distances(self, cell: int) -> dict[int | None, int]:
        """{other cell: its distance}; empty where it has another number of them, as while a cell comes."""
        words, cells = (read_text(self._node(cell) / "distance") or "").split(), sorted(self._cells())
        if len(words) != len(cells) or not all(map(str.isdecimal, words)):
            return {}
        return dict(zip(cells, map(int, words), strict=True))

    def _cells(self) -> dict[int, Path]:
        """{cell: its folder} of the cells that are online."""
        folders = entries(self._sys / "devices" / "system" / "node")
        numbers = ((_cell_number(folder.name), folder) for folder in folders)
        return {number: folder for number, folder in numbers if number is not None}

    # Migration

    def root_sight(self) -> tuple[RootSight, str]:
        """(what root saw last, why its file cannot be used now): then what it said before goes on."""
        try:
            stamp = self._seen.stat().st_mtime_ns if self._seen is not None else 0
            if self._seen is not None and stamp != self._sight[0]:
                if not self._seen.is_file():
                    raise UsageError("it is no file")
                with self._seen.open(encoding="utf-8") as file:
                    sight = decode(RootSight, json.loads(file.read(SIGHT_SIZE_MAX)))
                if not all(map(is_address, (*sight.groups, *sight.groups.values()))):
                    raise UsageError("`groups` has what is no PCI address")
                modes = {card: mode for card, mode in sight.cc_modes.items() if mode in CC_MODES}
                self._sight = (stamp, replace(sight, cc_modes=modes))
        except FileNotFoundError:
            self._sight = (0, RootSight())
        except (OSError, ValueError, RecursionError, UsageError) as error:
            why = f"{self._seen} cannot be used ({error}): `plimsoll devices apply`, as root, writes it anew."
            return self._sight[1], why
        return self._sight[1], ""

    def migration_driver(self, address: str) -> str | None:
        """The driver of VFIO that can migrate this very device; None where none is known to.

        It is the one that is bound, else the one that libvirt (from 10.0) binds when a guest starts. A kernel
        that shows whether the bound one migrates (debugfs, Linux 6.8) decides: to root, who looks or looked.
        The answer is "" where it says that the bound one does not.

        Source: Documentation/ABI/testing/debugfs-vfio of Linux, and the device tables of its drivers/vfio.
        """
        path = self._path(address)
        driver = bound = link_name(path / "driver")
        if has_vfio(path):
            shown = self._sys / "kernel" / "debug" / "vfio" / address
            with suppress(OSError):  # only root may look
                if shown.is_dir():
                    return bound if (shown / "migration").is_dir() else ""
            migrates = self.root_sight()[0].migrates.get(address, {}).get(bound)
            if migrates is not None:
                return bound if migrates else ""
        else:
            driver = self.variant(address) or ""
        return driver if self._migrates(path, driver) else None

    def _migration_doubt(self, address: str) -> str:
        """Why a driver of VFIO may migrate the device that is not known to; a clause, "" where none does."""
        path = self._path(address)
        bound = link_name(path / "driver")
        driver = bound if has_vfio(path) and bound != PLAIN_VFIO else self.variant(address)
        if driver is None:
            return "the list of the running kernel's drivers (modules.alias) cannot be read"
        is_known = driver.replace("-", "_") in _MIGRATES | _NEVER_MIGRATES
        if is_known or self.migration_driver(address) is not None:
            return ""
        return (
            f"the agent does not know the driver {driver}, and the kernel does not say whether it migrates "
            "devices (it says so to root, of those that are bound, from Linux 6.8 on)"
        )

    def _migrates(self, path: Path, driver: str) -> bool:
        # These drivers migrate virtual functions alone, also where a whole card has the same ids.
        return driver.replace("-", "_") in _MIGRATES and (path / "physfn").exists()

    def variant(self, address: str) -> str | None:
        """The driver of VFIO that libvirt (from 10.0) binds to this device before the plain one; "" for none.

        None where the kernel's list cannot be read. If the domain has managed='yes', libvirt does so where
        any other driver is bound, also one of VFIO. Of several drivers it takes that whose pattern has the
        fewest wildcards.
        Source: virPCIDeviceBindToStub and virPCIDeviceFindBestVFIOVariant in src/util/virpci.c of libvirt.
        """
        aliases = self._vfio_aliases()
        if aliases is None:
            return None
        alias = (read_text(self._path(address) / "modalias") or "").replace("pci:", "vfio_pci:", 1)
        fitting = [each for each in aliases if fnmatchcase(alias, each[0])]
        return min(fitting, key=lambda each: each[0].count("*"), default=("", ""))[1]

    def replacement(self, address: str, bound: str) -> str | None:
        """The driver of VFIO that libvirt binds instead of this bound one of VFIO, as of `variant`.

        "" where that is not known to migrate the device, or could be any, since the kernel's list cannot be
        read and the plain driver is bound. None where libvirt binds no other one, or the plain one.
        """
        driver = self.variant(address) if is_vfio(bound) else ""
        if driver is None:
            return "" if bound == PLAIN_VFIO else None
        if driver in ("", bound.replace("-", "_")):
            return None
        return driver if self._migrates(self._path(address), driver) else ""

    def _vfio_aliases(self) -> Sequence[tuple[str, str]] | None:
        """(pattern of devices, driver of VFIO for just them) of the running kernel; read once a change."""
        if self._modules is None:
            return None
        aliases = self._modules / "modules.alias"
        with suppress(OSError):
            stamp = aliases.stat().st_mtime_ns
            if stamp != self._aliases[0]:
                with aliases.open(encoding="utf-8", errors="replace") as file:
                    words = [line.split() for line in file if " vfio_pci:" in line]
                of_one = [(each[1], each[2]) for each in words if len(each) == 3 and each[2] != _PLAIN_VFIO]
                self._aliases = (stamp, tuple(of_one))
            return self._aliases[1]
        return None

    def vgpu_driver_branch(self) -> str:
        """The branch of NVIDIA's vGPU driver on this host, such as "550"; empty where none says its own."""
        version = read_text(self._sys / "module" / "nvidia_vgpu_vfio" / "version") or ""
        branch = version.partition(".")[0]
        return branch if _TYPE.fullmatch(branch) else ""

    # Mediated devices, and vGPUs of a vendor's own VFIO driver

    def mdev_limits(self, address: str, types: Iterable[str]) -> dict[str, int]:
        """{mediated type: how many the whole card can have}, of the types whose driver reports it.

        Raises DriverDataError for what is no name of a type.
        """
        limits = {}
        for type_id in types:
            text = self._text(address, "mdev_supported_types", type_id, "description")
            match = _MAX_INSTANCE.search(text)
            if match:
                limits[type_id] = int(match[1])
        return limits

    def mdev_count(self, address: str) -> int | None:
        """How many mediated devices exist on the function; None where sysfs does not have it."""
        try:
            return sum(bool(DASHED_UUID.fullmatch(entry.name)) for entry in self._path(address).iterdir())
        except OSError:
            return None

    def vgpu_type(self, address: str) -> str | None:
        """The number of the virtual function's vGPU type, "0" for none; None if it cannot have one."""
        text = self._text(address, "nvidia", "current_vgpu_type")
        return text if _TYPE.fullmatch(text) else None

    def vgpu_place(self, address: str) -> int | None:
        """The slot of its card in which the function's vGPU starts, or is to start.

        None where the driver chooses it, or where the card has no places: it is not in mixed-size mode.
        """
        text = self._text(address, "nvidia", "placement_id")
        return int(text) if _TYPE.fullmatch(text) else None

    def vram(self, address: str) -> tuple[int | None, bool] | None:
        """(MiB of VRAM of the virtual function, whether they can be changed); None without a quota.

        The MiB are None where its quota is no number of bytes.
        """
        quota = vram_quota(self._path(address))
        if quota is None:
            return None
        size = read_number(quota[0])
        return None if size is None else size // 2**20, quota[1]

    def ports(self) -> dict[str, str]:
        """{virtual function: what its network card has for it}, see `agent.device_names.PORT`."""
        cards = self._sys / "class" / "net"
        found = {
            link_name(cards / interface / "device" / f"virtfn{number}"): port
            for interface, functions in read_ports().items()
            for number, port in functions.items()
        }
        return {address: port for address, port in found.items() if address}

    def vgpu_names(self, address: str) -> dict[str, str]:
        """{number of a vGPU type: its name} of those that can be made on the function now."""
        return dict(_CREATABLE.findall(self._text(address, "nvidia", "creatable_vgpu_types")))

    def _text(self, *parts: str) -> str:
        """The text of the file of a device; empty where it cannot be read. Raises as `_path` does."""
        return read_text(self._path(*parts)) or ""

    def _path(self, *parts: str) -> Path:
        """Raises DriverDataError where a part, which comes from XML, would lead out of the folder."""
        for part in parts:
            if not _SAFE.fullmatch(part):
                raise DriverDataError(f"{part[:60]!r} is not a name in sysfs")
        return self._devices.joinpath(*parts)


def _with_lower(start: Iterable[Path], lower: Callable[[Path], Iterable[Path]]) -> Iterable[str]:
    """The names of these things and of those below them."""
    names: dict[str, None] = {}
    level = list(start)
    for _ in range(_DEPTH_MAX):
        new = [path for path in level if path.name not in names]
        names |= dict.fromkeys(path.name for path in new)
        level = [below for path in new for below in lower(path)]
    return names


# Signs of health

CHECKS = ("answer", "driver", "link", "errors", "memory", "power")
"""What can be read of a device's health; the names are those of [devices] health_checks."""

HEADER_BYTES = 64
"""So much of the configuration space every user may read."""

_TOTAL = re.compile(r"^TOTAL_ERR_[A-Z]+ ([0-9]{1,19})$", re.ASCII | re.MULTILINE)
_UNCORRECTED = re.compile(r"^ue: ([0-9]{1,19})$", re.ASCII | re.MULTILINE)
PAGES, CELL = "pages", "numa:"
_NO_DRIVER = "(null)"


def device_addresses(providers: Iterable[DescribedProvider]) -> tuple[str, ...]:
    """The addresses of all PCI devices behind these providers, and of all functions among their units.

    For the NUMA cells with large pages that is "numa:" and the id of the cell.
    """
    addresses: set[str] = set()
    for provider in providers:
        kind, _, rest = provider.device.partition(":")
        if kind == PAGES:
            addresses.add(f"{CELL}{rest.partition(':')[0]}")
        functions = (address_of(unit) for units in provider.units.values() for unit in units)
        addresses |= set(filter(is_address, (rest, *functions)))
    return tuple(sorted(addresses))


def read_signs(
    sys: Path, addresses: Iterable[str], checks: Collection[str] = CHECKS
) -> tuple[DeviceSigns, ...]:
    """The signs of the devices below `sys`/bus/pci/devices that these `checks` of CHECKS read."""
    devices, nodes = sys / "bus" / "pci" / "devices", sys / "devices" / "system" / "node"
    found = []
    for address in addresses:
        device = devices / address
        if address.startswith(CELL):
            # Only pages that the kernel could not take out of use count: a guest may still be given those.
            failures = nodes / f"node{address.removeprefix(CELL)}" / "memory_failure"
            total, recovered = (read_number(failures / name) for name in ("total", "recovered"))
            unrecovered = None
            if "memory" in checks and total is not None and recovered is not None:
                unrecovered = max(0, total - recovered)
            found.append(DeviceSigns(address, memory_errors=unrecovered))
            continue
        if not device.is_dir():
            found.append(DeviceSigns(address, answers=False if "answer" in checks else None))
            continue
        only = read_text(device / "driver_override") or ""
        status = read_text(device / "power" / "runtime_status") or ""
        states = (read_text(device / "power_state"), status) if "power" in checks else ()
        header = has_link = None
        if "answer" in checks and not status.startswith("suspend"):
            # A device that has suspended itself is not asked: to read its configuration space would wake it.
            # It answers if any byte is not 0xff: the ids of a virtual function always read as ones.
            header = read_bytes(device / "config", HEADER_BYTES)
        if "link" in checks and any(device.glob("virtfn*")):
            # Only a card with virtual functions needs its own interface up, and a link, for them to work. The
            # kernel does not tell the carrier of an interface that is down.
            carriers = [read_text(each / "carrier") == "1" for each in entries(device / "net")]
            has_link = any(carriers) if carriers else None
        errors, memory = "errors" in checks, "memory" in checks
        found.append(
            DeviceSigns(
                address,
                answers=any(byte != 0xFF for byte in header) if header else None,
                driver=link_name(device / "driver") if "driver" in checks else None,
                vfio=has_vfio(device),
                only_driver="" if only == _NO_DRIVER else only,
                has_link=has_link,
                fatal_errors=_count(device / "aer_dev_fatal", _TOTAL) if errors else None,
                nonfatal_errors=_count(device / "aer_dev_nonfatal", _TOTAL) if errors else None,
                memory_errors=_count(device / "ras" / "umc_err_count", _UNCORRECTED) if memory else None,
                has_power="error" not in states if any(states) else None,
            )
        )
    return tuple(found)


def _count(file: Path, pattern: re.Pattern[str]) -> int | None:
    found = pattern.search(read_text(file) or "")
    return int(found[1]) if found else None
