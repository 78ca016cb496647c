"""The file with what the driver remembers over a reboot of the host: unit records and device history.

A domain's XML has the uuid of a mediated device but not its parent, and the address of a virtual function but
not its card. While such a device is gone, neither libvirt nor the kernel can tell them.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from agent.durable.files import write_atomically
from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.history import DeviceHistory

LOG = logging.getLogger(__name__)
FILE = "libvirt-devices.json"
SIZE_MAX = 16 * 2**20
_NAMES = frozenset(key.name for key in fields(UnitRecord))


class DeviceState:
    """The content of the file in `folder`, read at its first use. With a folder of None nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        self._warned = ""
        self._content: _Content | None = None

    @property
    def units(self) -> Mapping[str, UnitRecord]:
        """{unit: its record}"""
        return self._read().units

    @property
    def history(self) -> DeviceHistory:
        """What devices were before, see `DeviceHistory`."""
        return self._read().history

    def _read(self) -> "_Content":
        if self._content is None:
            self._content = self._load()
        return self._content

    def save(self, units: Mapping[str, UnitRecord], history: DeviceHistory) -> None:
        """Replace the content. A failure to write it is logged once."""
        content = _Content(units, history)
        if content == self._read():
            return
        self._content = content
        if self._path is None:
            return
        data = {
            "units": [asdict(units[unit]) for unit in sorted(units)],
            "classes": {device: list(history[device]) for device in sorted(history)},
        }
        text = json.dumps(data, indent=1) + "\n"
        try:
            write_atomically(self._path, text)
        except OSError as error:
            self._warn(
                f"{self._path} cannot be written: {error.strerror}; after a reboot of the host the mediated "
                "devices of its domains cannot be created again"
            )
        else:
            self._warned = ""

    def _load(self) -> "_Content":
        """Read the file. One that is missing or malformed counts as empty, and stays until the next write."""
        if self._path is None:
            return _Content()
        try:
            with self._path.open(encoding="utf-8") as file:
                return _parse(json.loads(file.read(SIZE_MAX)))
        except FileNotFoundError:
            return _Content()
        except (OSError, ValueError, DriverDataError) as error:
            self._warn(f"{self._path} cannot be read, so the driver has forgotten earlier devices: {error}")
            return _Content()

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)


@dataclass(frozen=True, slots=True)
class _Content:
    units: Mapping[str, UnitRecord] = field(default_factory=dict)
    history: DeviceHistory = field(default_factory=dict)


def _parse(data: object) -> _Content:
    """The content of the file; a list is the format of an earlier version, which had units only."""
    content = data if isinstance(data, dict) else {"units": data}
    history = content.get("classes", {})
    if not isinstance(history, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in history.values()
    ):
        raise DriverDataError("`classes` must be an object of lists of text")
    return _Content(
        {record.unit: record for record in _parse_records(content.get("units"))},
        {device: tuple(names) for device, names in history.items()},
    )


def _parse_records(data: object) -> Iterable[UnitRecord]:
    for entry in data if isinstance(data, list) else [None]:
        if not isinstance(entry, dict) or not entry.keys() <= _NAMES or not {"unit", "card"} <= entry.keys():
            raise DriverDataError("`units` must be a list of objects with `unit` and `card`")
        if not all(isinstance(value, str) for value in entry.values()):
            raise DriverDataError("each value in `units` must be text")
        yield UnitRecord(**{"resource_class": "VGPU", **entry})
