"""Which node devices are listed; a stand-in for libvirt, whose test driver defines no mediated devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libvirt
import pytest

from drivers.host.sysfs import Sysfs
from drivers.libvirt.io.connection import Session
from drivers.libvirt.io.deadline import CallDeadline
from drivers.libvirt.io.device_reader import DeviceReader
from drivers.libvirt.io.pending_reads import PendingReads
from drivers.libvirt.xml import MediatedDevice

ACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_ACTIVE
INACTIVE = libvirt.VIR_CONNECT_LIST_NODE_DEVICES_INACTIVE
RUNNING = "11111111-1111-4111-8111-111111111111"
DEFINED = "22222222-2222-4222-8222-222222222222"


@dataclass
class Device:
    uuid: str

    def name(self) -> str:
        return f"mdev_{self.uuid.replace('-', '_')}"

    def XMLDesc(self) -> str:
        return (
            f"<device><name>{self.name()}</name><parent>pci_0000_42_00_0</parent>"
            f"<capability type='mdev'><type id='nvidia-11'/><uuid>{self.uuid}</uuid></capability></device>"
        )


class Libvirt:
    """Lists as libvirt does: both kinds where the flags name neither."""

    def __init__(self, known: int) -> None:
        self._known = known

    def listAllDevices(self, flags: int) -> list[Device]:
        chosen = flags & (ACTIVE | INACTIVE)
        if chosen & ~self._known:
            error = libvirt.libvirtError("unsupported flags")
            error.err = (libvirt.VIR_ERR_INVALID_ARG, 0, "unsupported flags", 2, "", "", "", 0, 0)
            raise error
        inactive = [Device(DEFINED)] if self._known else []  # an old libvirt has none
        return [
            *([Device(RUNNING)] if chosen != INACTIVE else []),
            *(inactive if chosen != ACTIVE else []),
        ]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (ACTIVE | INACTIVE, {(RUNNING, True), (DEFINED, False)}),
        (0, {(RUNNING, True)}),
    ],
    ids=["libvirt", "an old libvirt"],
)
def test_what_is_only_defined_is_not_taken_for_active(
    tmp_path: Path, known: int, found: set[tuple[str, bool]]
) -> None:
    session = Session(CallDeadline(10))
    session.libvirt = Libvirt(known)
    reader = DeviceReader(PendingReads(), Sysfs(tmp_path, tmp_path), 60.0)
    for _ in range(2):
        reading: Any = reader.read(session)
        devices = [each.device for each in reading.known.values()]
        assert {(each.uuid, each.active) for each in devices if isinstance(each, MediatedDevice)} == found
        assert len(devices) == len(found)
