"""What a driver must remember over a reboot of the host: whose the units are that domains name.

A domain's XML has a mediated device's uuid but not its parent, and a virtual function's address but not its
card; while those are not there, nobody else knows either.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path

from agent.errors import DriverDataError
from agent.files import write_atomically
from drivers.libvirt.cards import Remembered

LOG = logging.getLogger(__name__)
FILE = "libvirt-devices.json"
SIZE_MAX = 16 * 2**20
_NAMES = frozenset(each.name for each in fields(Remembered))


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(path: Path = BOOT_ID) -> str:
    """What the kernel drew at this boot; "" where it does not say."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class Memory:
    """{unit: what is known of it}; kept in `folder` where there is one, and read when first asked for."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._warned = ""
        self._units: Mapping[str, Remembered] | None = None

    @property
    def units(self) -> Mapping[str, Remembered]:
        if self._units is None:
            self._units = self._load()
        return self._units

    def keep(self, units: Mapping[str, Remembered]) -> None:
        """Take `units` in the place of those of before; a disk that does not take them is warned of once."""
        if units == self.units:
            return
        self._units = units
        if self._path is None:
            return
        text = json.dumps([asdict(units[unit]) for unit in sorted(units)], indent=1) + "\n"
        try:
            write_atomically(self._path, text)
        except OSError as error:
            self._warn(
                f"{self._path} cannot be written: {error.strerror}; after a reboot of the host the mediated "
                "devices of its domains cannot be made again"
            )
        else:
            self._warned = ""

    def _load(self) -> dict[str, Remembered]:
        """What is not there is empty; what makes no sense is left alone until it is written anew."""
        if self._path is None:
            return {}
        try:
            with self._path.open(encoding="utf-8") as file:
                return {each.unit: each for each in _entries(json.loads(file.read(SIZE_MAX)))}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, DriverDataError) as error:
            self._warn(f"{self._path} cannot be read, so nothing is known of devices from before: {error}")
            return {}

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)


def _entries(data: object) -> Iterable[Remembered]:
    for each in data if isinstance(data, list) else [None]:
        if not isinstance(each, dict) or not each.keys() <= _NAMES or not {"unit", "card"} <= each.keys():
            raise DriverDataError("a list of objects with unit and card was expected")
        if not all(isinstance(value, str) for value in each.values()):
            raise DriverDataError("text was expected")
        yield Remembered(**{"resource_class": "VGPU", **each})
