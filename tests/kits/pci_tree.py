"""A directory like a host's root, with the PCI devices that a test gives it, for the readers of sysfs."""

from __future__ import annotations

import ast
from pathlib import Path

from kits.libvirt_node import DATA


class PciTree:
    """Below `root`: sys, proc and modules, as Linux lays them out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sys, self.proc, self.modules = (root / name for name in ("sys", "proc", "modules"))
        self.devices = self.sys / "bus" / "pci" / "devices"
        for folder in (self.devices, self.proc / "self", self.proc / "net", self.modules):
            folder.mkdir(parents=True)

    def add(
        self,
        address: str,
        driver: str = "",
        group: int | None = None,
        *,
        class_: str = "0x020000",
        numa: int | None = None,
        pf: str | None = None,
        below: str = "",
        **files: str,
    ) -> Path:
        """A device with these files, below these bridges ("pci0000:15/0000:15:01.0"), or a bus of its own."""
        real = self.sys / "devices" / (below or f"pci{address[:7]}") / address
        real.mkdir(parents=True)
        (self.devices / address).symlink_to(real)
        (real / "class").write_text(f"{class_}\n")
        (real / "numa_node").write_text(f"{-1 if numa is None else numa}\n")
        for name, text in files.items():
            (real / name).write_text(f"{text}\n")
        if driver:
            self._link(real / "driver", self.sys / "bus" / "pci" / "drivers" / driver)
        if group is not None:
            folder = self.sys / "kernel" / "iommu_groups" / str(group)
            self._link(real / "iommu_group", folder)
            (folder / "devices").mkdir(exist_ok=True)
            (folder / "devices" / address).symlink_to(real)
        if pf is not None:
            parent = self.devices / pf
            (parent / f"virtfn{len(list(parent.glob('virtfn*')))}").symlink_to(real)
            (real / "physfn").symlink_to(parent.resolve())
        return real

    def add_h100(self, address: str, word: int, **files: str) -> Path:
        """An H100 with this word in the register of its mode; VFIO has it, and no guest."""
        known = {"vendor": "0x10de", "device": "0x2330", "power_state": "D0", "enable": "0"} | files
        card = self.add(address, "vfio-pci", **known)
        (card / "config").write_bytes(bytes([0xDE, 0x10, 0x30, 0x23, 0x06, 0]) + bytes(58))
        (card / "power").mkdir()
        (card / "power" / "control").write_text("auto\n")
        with (card / "resource0").open("wb") as bar:
            bar.truncate(0x119000)
            bar.seek(0x1182CC)
            bar.write(word.to_bytes(4, "little"))
        return card

    def bind(self, address: str, driver: str) -> None:
        """Bind the device to this driver instead; the driver's folder then lists it."""
        link = self.devices / address / "driver"
        (link / address).unlink(missing_ok=True)
        link.unlink(missing_ok=True)
        self._link(link, self.sys / "bus" / "pci" / "drivers" / driver)
        (link / address).symlink_to(self.devices / address)

    def cells(self, **cpulists: str) -> None:
        """NUMA cells, as node0="0-3"; `distances` are written by `distance`."""
        for name, cpus in cpulists.items():
            node = self.sys / "devices" / "system" / "node" / name
            node.mkdir(parents=True, exist_ok=True)
            (node / "cpulist").write_text(f"{cpus}\n")

    def distance(self, cell: int, *distances: int) -> None:
        """The distances of a cell to each cell, in the order of their numbers."""
        file = self.sys / "devices" / "system" / "node" / f"node{cell}" / "distance"
        file.write_text(" ".join(map(str, distances)) + "\n")

    def dax(self, **places: tuple[str, int]) -> None:
        """The dax devices dax0_0=(the place of the device above it below /sys/devices, its target cell)."""
        for name, (place, cell) in places.items():
            device = self.sys / "devices" / place / name.replace("_", ".")
            self._link(self.sys / "bus" / "dax" / "devices" / device.name, device)
            (device / "target_node").write_text(f"{cell}\n")

    def interface(self, name: str, device: Path | None = None) -> Path:
        """A network interface of the device, or a virtual one."""
        place = (device or self.sys / "devices" / "virtual") / "net" / name
        place.mkdir(parents=True)
        return self._class("net", name, place)

    def disk(self, name: str, number: str, device: Path | None = None) -> Path:
        """A block device with this number (major:minor)."""
        place = (device or self.sys / "devices" / "virtual") / "block" / name
        (place / "slaves").mkdir(parents=True)
        self._link(self.sys / "dev" / "block" / number, place)
        return self._class("block", name, place)

    def route(self, interface: str) -> None:
        """The host's default route."""
        (self.proc / "net" / "route").write_text(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
            f"{interface}\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth9\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        )

    def mount_root(self, number: str) -> None:
        """The root file system, on the block device with this number."""
        (self.proc / "self" / "mountinfo").write_text(
            f"22 1 {number} / / rw,relatime shared:1 - ext4 /dev/root rw\n"
            "23 22 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw\n"
        )

    def _class(self, kind: str, name: str, place: Path) -> Path:
        self._link(self.sys / "class" / kind / name, place)
        return place

    def _link(self, link: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def recorded_tree(root: Path, moment: str = "vfs") -> PciTree:
    """The devices of the recorded host at a moment."""
    tree = PciTree(root)
    for line in (DATA / "sysfs" / f"{moment}.txt").read_text(encoding="utf-8").splitlines():
        path, is_file, value = line.partition(": ")
        link, is_link, target = line.partition(" -> ")
        address = (path if is_file else link).split("/")[0]
        if not (tree.devices / address).exists():
            tree.add(address)
        here = tree.devices / address
        if is_file:
            file = tree.devices / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(ast.literal_eval(value), encoding="utf-8")
        elif is_link and link.endswith("/driver"):
            tree.bind(address, target)
        elif is_link and link.endswith("/iommu_group"):
            folder = tree.sys / "kernel" / "iommu_groups" / target
            (folder / "devices").mkdir(parents=True, exist_ok=True)
            (here / "iommu_group").symlink_to(folder)
            (folder / "devices" / address).symlink_to(here.resolve())
        elif is_link and link.endswith("/physfn"):
            number = len(list((tree.devices / target).glob("virtfn*")))
            (tree.devices / target / f"virtfn{number}").symlink_to(here.resolve())
            (here / "physfn").symlink_to((tree.devices / target).resolve())
        elif is_link and link.endswith("/device"):
            (tree.devices / link).symlink_to(tree.devices / target)
    return tree
