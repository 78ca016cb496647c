"""A directory that looks like sysfs, and a thread in place of the kernel that reacts to what is written.

The thread makes and removes virtual functions, binds drivers and creates mediated devices, some milliseconds
after the write, as drivers do that probe in the background.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01


@dataclass(frozen=True)
class SysfsCard:
    """A card: how many virtual functions it can have, where they begin, and what they offer."""

    address: str
    driver: str
    vfs_max: int = 0
    offset: int = 0
    stride: int = 1
    vf_driver: str = "vf"
    vendor_vfio: bool = False
    vf_mdev_type: str = ""
    mdev_type: str = ""

    def vf_address(self, number: int) -> str:
        """The address of a virtual function by the rule of SR-IOV."""
        domain, bus, slot = self.address.split(":")
        device, _, function = slot.partition(".")
        own = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        routing_id = own + self.offset + number * self.stride
        return f"{domain}:{routing_id >> 8:02x}:{routing_id >> 3 & 31:02x}.{routing_id & 7}"


class CarvedSysfs:
    """Below `root`/sys: the devices of `cards`. Use it as a context, in which the thread runs."""

    def __init__(self, root: Path, *cards: SysfsCard) -> None:
        self.sys, self.proc = root / "sys", root / "proc"
        self.cards = cards
        self._bus = self.sys / "bus" / "pci"
        self._devices = self._bus / "devices"
        self._mdevs = self.sys / "bus" / "mdev" / "devices"
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        for folder in (self._devices, self._mdevs, self._bus / "drivers"):
            folder.mkdir(parents=True)
        for driver in ("vfio-pci", *(name for card in cards for name in (card.driver, card.vf_driver))):
            (self._bus / "drivers" / driver).mkdir(exist_ok=True)
            (self._bus / "drivers" / driver / "unbind").write_text("")
        (self._bus / "drivers_probe").write_text("")
        for card in cards:
            self._add_card(card)

    def __enter__(self) -> CarvedSysfs:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def at(self, address: str) -> Path:
        """The folder of a device."""
        return self._devices / address

    def driver(self, address: str) -> str:
        """The driver that is bound to it."""
        link = self.at(address) / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def vfs(self, address: str) -> list[str]:
        """The virtual functions of a card."""
        return sorted(link.resolve().name for link in self.at(address).glob("virtfn*"))

    def mdevs(self) -> dict[str, tuple[str, str]]:
        """{uuid: (parent, type)}"""
        return {
            link.name: (link.resolve().parent.name, (link / "mdev_type").readlink().name)
            for link in self._mdevs.iterdir()
        }

    def shape(self) -> dict[str, object]:
        """All that a carving makes, to compare one moment with another."""
        return {
            "mdevs": self.mdevs(),
            **{
                link.name: (
                    self.driver(link.name),
                    (link / "driver_override").read_text(),
                    self._text(link / "nvidia" / "current_vgpu_type"),
                    self._text(link / "sriov_numvfs"),
                    self._text(link / "sriov_drivers_autoprobe"),
                )
                for link in sorted(self._devices.iterdir())
            },
        }

    def open_over_vfio(self, address: str, process: int | None = None) -> None:
        """A guest has the function open; `process` is seen to have it, None: none that may be looked at."""
        (self.at(address) / "enable").write_text("1\n")
        if process is not None:
            (self.at(address) / "iommu_group").symlink_to(self.sys / "kernel" / "iommu_groups" / "17")
            files = self.proc / str(process) / "fd"
            files.mkdir(parents=True)
            (files / "3").symlink_to("/dev/vfio/17")
            (files.parent / "comm").write_text("qemu-system-x86\n")

    def reboot(self) -> None:
        """Take away what a boot takes away."""
        with self._lock:
            self._reboot()

    def _reboot(self) -> None:
        for card in self.cards:
            if card.vfs_max:
                self._remove_vfs(card)
                (self.at(card.address) / "sriov_numvfs").write_text("0\n")
                (self.at(card.address) / "sriov_drivers_autoprobe").write_text("1\n")
            for uuid, (parent, _) in self.mdevs().items():
                if parent == card.address:
                    self._remove_mdev(uuid)
            (self.at(card.address) / "driver_override").write_text("(null)\n")
            self._bind(card.address, card.driver)

    # The devices

    def _add_card(self, card: SysfsCard) -> None:
        self._add_device(card.address)
        self._bind(card.address, card.driver)
        if card.vfs_max:
            texts = {
                "sriov_totalvfs": card.vfs_max,
                "sriov_numvfs": 0,
                "sriov_offset": card.offset,
                "sriov_stride": card.stride,
                "sriov_drivers_autoprobe": 1,
            }
            for name, value in texts.items():
                (self.at(card.address) / name).write_text(f"{value}\n")
        self._offer(card.address, card.mdev_type)

    def _add_device(self, address: str) -> Path:
        real = self.sys / "devices" / f"pci{address[:7]}" / address
        real.mkdir(parents=True)
        (real / "driver_override").write_text("(null)\n")
        (real / "enable").write_text("0\n")
        self.at(address).symlink_to(real)
        return real

    def _offer(self, address: str, mdev_type: str) -> None:
        if mdev_type:
            folder = self.at(address) / "mdev_supported_types" / mdev_type
            folder.mkdir(parents=True)
            (folder / "create").write_text("")

    def _bind(self, address: str, driver: str) -> None:
        link = self.at(address) / "driver"
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(self._bus / "drivers" / driver)

    def _remove_tree(self, folder: Path) -> None:
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                self._remove_tree(entry)
            else:
                entry.unlink()
        folder.rmdir()

    def _remove_mdev(self, uuid: str) -> None:
        real = (self._mdevs / uuid).resolve()
        (self._mdevs / uuid).unlink()
        self._remove_tree(real)

    def _remove_vfs(self, card: SysfsCard) -> None:
        for link in self.at(card.address).glob("virtfn*"):
            real = link.resolve()
            for uuid, (parent, _) in self.mdevs().items():
                if parent == real.name:
                    self._remove_mdev(uuid)
            link.unlink()
            self.at(real.name).unlink()
            self._remove_tree(real)

    # The kernel

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            with self._lock:
                self._react()

    def _react(self) -> None:
        for card in self.cards:
            number = self._text(self.at(card.address) / "sriov_numvfs")
            if number and int(number) != len(self.vfs(card.address)):
                self._remove_vfs(card)
                for index in range(int(number)):
                    self._add_vf(card, index)
        for address in self._taken(self._bus / "drivers_probe"):
            self._probe(address)
        for driver in (self._bus / "drivers").iterdir():
            for address in self._taken(driver / "unbind"):
                self._bind(address, "")
        for device in self._devices.iterdir():
            types = device / "mdev_supported_types"
            for create in types.glob("*/create") if types.is_dir() else ():
                for uuid in self._taken(create):
                    self._add_mdev(device.resolve(), create.parent.name, uuid)
        for mdev in self._mdevs.iterdir():
            if any(self._taken(mdev / "remove")):
                self._remove_mdev(mdev.name)

    def _add_vf(self, card: SysfsCard, index: int) -> None:
        address = card.vf_address(index)
        real = self._add_device(address)
        (real / "physfn").symlink_to(self.at(card.address).resolve())
        if self._text(self.at(card.address) / "sriov_drivers_autoprobe") == "1":
            self._bind(address, card.vf_driver)
        if card.vendor_vfio:
            (real / "nvidia").mkdir()
            (real / "nvidia" / "current_vgpu_type").write_text("0\n")
            (real / "nvidia" / "placement_id").write_text("-1\n")
        self._offer(address, card.vf_mdev_type)
        (self.at(card.address) / f"virtfn{index}").symlink_to(real)

    def _probe(self, address: str) -> None:
        named = self._text(self.at(address) / "driver_override")
        if not self.driver(address) and named not in (None, "", "(null)"):
            self._bind(address, str(named))

    def _add_mdev(self, parent: Path, mdev_type: str, uuid: str) -> None:
        real = parent / uuid
        real.mkdir()
        (real / "mdev_type").symlink_to(parent / "mdev_supported_types" / mdev_type)
        (real / "remove").write_text("")
        (self._mdevs / uuid).symlink_to(real)

    def _taken(self, path: Path) -> Iterator[str]:
        """What was written to the file since the last look."""
        text = self._text(path) or ""
        if not re.fullmatch(r"[0-9a-f:.-]+", text):
            return
        path.write_text("")
        yield text

    def _text(self, path: Path) -> str | None:
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            return None
