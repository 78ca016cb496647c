"""Read what libvirt does not report from sysfs and /proc.

That is: how many mediated devices of a type a card can have, which vGPU type a virtual function of a vendor's
own VFIO driver has, and the default size of huge pages.
Source: https://docs.kernel.org/driver-api/vfio-mediated-device.html and
https://docs.kernel.org/admin-guide/mm/hugetlbpage.html
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from agent.errors import DriverDataError
from drivers.host.domain_memory import DEFAULT_HUGE_PAGE_KIB

SIZE_MAX = 65536
_SAFE = re.compile(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_-]", re.ASCII)
_MAX_INSTANCE = re.compile(r"\bmax_instance=([0-9]{1,6})\b", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TYPE = re.compile(r"[0-9]{1,9}", re.ASCII)
_CREATABLE = re.compile(r"^([0-9]{1,9}) *: *(\S.{0,80}?) *$", re.ASCII | re.MULTILINE)


MEMINFO = Path("/proc/meminfo")
_HUGE_PAGE_SIZE = re.compile(r"^Hugepagesize: +([0-9]{1,12}) kB$", re.ASCII | re.MULTILINE)


@cache
def default_huge_page_kib(path: Path = MEMINFO) -> int:
    """The size in KiB of huge pages for which a domain gives none; it is fixed at the boot of the host."""
    try:
        match = _HUGE_PAGE_SIZE.search(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        match = None
    return int(match[1]) if match else DEFAULT_HUGE_PAGE_KIB


class Sysfs:
    """The devices below `root`/bus/pci/devices. A file that is missing or cannot be read has no value."""

    def __init__(self, root: Path) -> None:
        self._devices = root / "bus" / "pci" / "devices"

    def mdev_limits(self, address: str, types: Iterable[str]) -> dict[str, int]:
        """{mediated type: how many the whole card can have}, of the types whose driver reports it."""
        limits = {}
        for type_id in types:
            text = self._read(address, "mdev_supported_types", type_id, "description")
            match = _MAX_INSTANCE.search(text or "")
            if match:
                limits[type_id] = int(match[1])
        return limits

    def mdev_count(self, address: str) -> int | None:
        """How many mediated devices exist on the function; None where sysfs does not have it."""
        self._check(address)
        try:
            return sum(bool(_UUID.fullmatch(entry.name)) for entry in (self._devices / address).iterdir())
        except OSError:
            return None

    def vgpu_type(self, address: str) -> str | None:
        """The number of the virtual function's vGPU type, NO_TYPE for none; None if it cannot have one."""
        text = self._read(address, "nvidia", "current_vgpu_type")
        return text.strip() if text is not None and _TYPE.fullmatch(text.strip()) else None

    def vgpu_place(self, address: str) -> int | None:
        """The slot of its card in which the function's vGPU starts, or is to start.

        None where the driver chooses it, or where the card has no places: it is not in mixed-size mode.
        """
        text = (self._read(address, "nvidia", "placement_id") or "").strip()
        return int(text) if _TYPE.fullmatch(text) else None

    def vgpu_names(self, address: str) -> dict[str, str]:
        """{number of a vGPU type: its name} of those that can be made on the function now."""
        text = self._read(address, "nvidia", "creatable_vgpu_types") or ""
        return dict(_CREATABLE.findall(text))

    def _check(self, *parts: str) -> None:
        """Raises DriverDataError where a part, which comes from XML, would lead out of the folder."""
        for part in parts:
            if not _SAFE.fullmatch(part):
                raise DriverDataError(f"{part[:60]!r} is not a name in sysfs")

    def _read(self, *parts: str) -> str | None:
        self._check(*parts)
        try:
            with self._devices.joinpath(*parts).open(encoding="utf-8", errors="replace") as file:
                return file.read(SIZE_MAX)
        except OSError:
            return None
