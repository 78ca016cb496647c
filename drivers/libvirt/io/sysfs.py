"""What only the kernel says: how many mediated devices of a type fit on a card, which type a virtual
function of a vendor's own VFIO driver has, how large a large page is.

Source: https://docs.kernel.org/driver-api/vfio-mediated-device.html and admin-guide/mm/hugetlbpage.html
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from agent.errors import DriverDataError
from drivers.host.domain_memory import DEFAULT_HUGE_PAGE_KIB

SIZE_MAX = 65536
_SAFE = re.compile(r"[A-Za-z0-9_.:-]*[A-Za-z0-9_-]", re.ASCII)
_MOST = re.compile(r"\bmax_instance=([0-9]{1,6})\b", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_TYPE = re.compile(r"[0-9]{1,9}", re.ASCII)


MEMINFO = Path("/proc/meminfo")
_USUAL = re.compile(r"^Hugepagesize: +([0-9]{1,12}) kB$", re.ASCII | re.MULTILINE)


@cache
def usual_page_kib(path: Path = MEMINFO) -> int:
    """The size in KiB of this host's large pages where a domain names none; the kernel's from the boot on."""
    try:
        found = _USUAL.search(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        found = None
    return int(found[1]) if found else DEFAULT_HUGE_PAGE_KIB


class Sysfs:
    """The devices below `root`/bus/pci/devices; what is not there or cannot be read is None."""

    def __init__(self, root: Path) -> None:
        self._devices = root / "bus" / "pci" / "devices"

    def most(self, address: str, types: Iterable[str]) -> dict[str, int]:
        """{mediated type: how many fit on the whole card}, of the types whose driver says so."""
        found = {}
        for type_id in types:
            text = self._read(address, "mdev_supported_types", type_id, "description")
            match = _MOST.search(text or "")
            if match:
                found[type_id] = int(match[1])
        return found

    def made(self, address: str) -> int | None:
        """How many mediated devices the kernel has on the function; None where it does not say."""
        self._check(address)
        try:
            return sum(bool(_UUID.fullmatch(each.name)) for each in (self._devices / address).iterdir())
        except OSError:
            return None

    def vgpu_type(self, address: str) -> str | None:
        """The number of the type that the virtual function has, NO_TYPE for none, None if it is of no such
        kind.
        """
        text = self._read(address, "nvidia", "current_vgpu_type")
        return text.strip() if text is not None and _TYPE.fullmatch(text.strip()) else None

    def _check(self, *parts: str) -> None:
        """The parts come from XML: none of them may lead out of the folder. Raises DriverDataError."""
        for part in parts:
            if not _SAFE.fullmatch(part):
                raise DriverDataError(f"{part[:60]!r} cannot be a name in sysfs")

    def _read(self, *parts: str) -> str | None:
        self._check(*parts)
        try:
            with self._devices.joinpath(*parts).open(encoding="utf-8", errors="replace") as file:
                return file.read(SIZE_MAX)
        except OSError:
            return None
