"""Mediated devices over a reboot of the host, by how they were made; what lists them is recorded, what makes
them again is a stand-in for libvirt, whose test driver makes none. The real one: tests/lab.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import libvirt
import pytest

from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.lost_mdevs import LostMdev, mdev_xml
from drivers.libvirt.io.connection import Session
from drivers.libvirt.io.deadline import CallDeadline
from drivers.libvirt.io.restore_mdevs import MdevRestorer

M60 = "0000:42:00.0"
PARENT = "pci_0000_42_00_0"
UUID = "11111111-1111-4111-8111-111111111111"
NAME = f"mdev_{UUID.replace('-', '_')}_0000_42_00_0"
UNIT = UnitRecord(UUID, M60, "VGPU", M60, "nvidia-11", "boot-1")


class Connection:
    """Makes what it is told to, but for those in `refused`."""

    def __init__(self, *refused: str) -> None:
        self.made: list[str] = []
        self._refused = refused

    def nodeDeviceCreateXML(self, xml: str) -> None:
        self._make(xml)

    def nodeDeviceLookupByName(self, name: str) -> Defined:
        return Defined(self, name)

    def _make(self, what: str) -> None:
        if any(each in what for each in self._refused):
            raise libvirt.libvirtError("no room on the card")
        self.made.append(what)

    def isAlive(self) -> bool:
        return True

    def close(self) -> None: ...


class Defined:
    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, name

    def create(self) -> None:
        self._connection._make(self._name)


def opened(monkeypatch: pytest.MonkeyPatch, connection: Any) -> Session:
    monkeypatch.setattr(libvirt, "open", lambda _: connection)
    session = Session(CallDeadline(10))
    session.libvirt = connection
    return session


def test_each_kind_is_made_again_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection()
    transient = LostMdev(replace(UNIT, unit=UUID.replace("1", "2")), PARENT)
    made = MdevRestorer("test:///").restore(
        opened(monkeypatch, connection), [LostMdev(UNIT, PARENT, NAME), transient]
    )
    assert made == [UUID, transient.record.unit]
    assert connection.made == [NAME, mdev_xml(transient)]


def test_one_that_cannot_be_made_is_told_once_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(NAME)
    other = LostMdev(replace(UNIT, unit=UUID.replace("1", "2")), PARENT)
    restorer = MdevRestorer("test:///")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            session = opened(monkeypatch, connection)
            assert restorer.restore(session, [LostMdev(UNIT, PARENT, NAME), other]) == [other.record.unit]
    (record,) = caplog.records
    assert UUID in record.message and "no room on the card; create it by hand" in record.message
