"""What a driver must remember over a reboot of the host: whose the units are that domains name.

A domain's XML has a mediated device's uuid but not its parent, and a virtual function's address but not its
card; while those are not there, nobody else knows either.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from agent.durable.files import write_atomically
from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import Remembered
from drivers.libvirt.describe.history import Classes

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


class DriverMemory:
    """What is kept in `folder` where there is one, and read when first asked for."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._warned = ""
        self._known: _Known | None = None

    @property
    def units(self) -> Mapping[str, Remembered]:
        """{unit: what is known of it}"""
        return self._read().units

    @property
    def classes(self) -> Classes:
        """The classes that the units of devices have had."""
        return self._read().classes

    def _read(self) -> "_Known":
        if self._known is None:
            self._known = self._load()
        return self._known

    def keep(self, units: Mapping[str, Remembered], classes: Classes) -> None:
        """Take these in the place of those of before; a disk that does not take them is warned of once."""
        known = _Known(units, classes)
        if known == self._read():
            return
        self._known = known
        if self._path is None:
            return
        said = {
            "units": [asdict(units[unit]) for unit in sorted(units)],
            "classes": {device: list(classes[device]) for device in sorted(classes)},
        }
        text = json.dumps(said, indent=1) + "\n"
        try:
            write_atomically(self._path, text)
        except OSError as error:
            self._warn(
                f"{self._path} cannot be written: {error.strerror}; after a reboot of the host the mediated "
                "devices of its domains cannot be made again"
            )
        else:
            self._warned = ""

    def _load(self) -> "_Known":
        """What is not there is empty; what makes no sense is left alone until it is written anew."""
        if self._path is None:
            return _Known()
        try:
            with self._path.open(encoding="utf-8") as file:
                return _known(json.loads(file.read(SIZE_MAX)))
        except FileNotFoundError:
            return _Known()
        except (OSError, ValueError, DriverDataError) as error:
            self._warn(f"{self._path} cannot be read, so nothing is known of devices from before: {error}")
            return _Known()

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)


@dataclass(frozen=True, slots=True)
class _Known:
    units: Mapping[str, Remembered] = field(default_factory=dict)
    classes: Classes = field(default_factory=dict)


def _known(data: object) -> _Known:
    """From the file; one that is a list is an earlier version's, which kept the units only."""
    said = data if isinstance(data, dict) else {"units": data}
    classes = said.get("classes", {})
    if not isinstance(classes, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in classes.values()
    ):
        raise DriverDataError("lists of classes by device were expected")
    return _Known(
        {each.unit: each for each in _entries(said.get("units"))},
        {device: tuple(names) for device, names in classes.items()},
    )


def _entries(data: object) -> Iterable[Remembered]:
    for each in data if isinstance(data, list) else [None]:
        if not isinstance(each, dict) or not each.keys() <= _NAMES or not {"unit", "card"} <= each.keys():
            raise DriverDataError("a list of objects with unit and card was expected")
        if not all(isinstance(value, str) for value in each.values()):
            raise DriverDataError("text was expected")
        yield Remembered(**{"resource_class": "VGPU", **each})
