"""Making mediated devices again over a connection; which ones, says `drivers.libvirt.describe.lost_mdevs`.

One that cannot be made again is named in the log, once.
"""

import logging
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import libvirt

from drivers.libvirt.describe.lost_mdevs import Lost, mdev_xml
from drivers.libvirt.io.connection import Session

LOG = logging.getLogger(__name__)


class Restorer:
    """Makes them over a connection of its own, because the other one is read-only."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._told: dict[str, str] = {}

    def restore(self, session: Session, lost: Iterable[Lost]) -> list[str]:
        """The uuids of those that are there again. Raises libvirtError where the connection broke."""
        session.beat()
        try:
            with closing(libvirt.open(self._uri)) as connection:
                return [each.unit.unit for each in lost if self._make(session, connection, each)]
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            for each in lost:
                self._tell(each, error)
            return []

    def _make(self, session: Session, connection: Any, lost: Lost) -> bool:
        session.beat()
        try:
            if lost.defined is not None:
                connection.nodeDeviceLookupByName(lost.defined).create()
            else:
                connection.nodeDeviceCreateXML(mdev_xml(lost))
        except libvirt.libvirtError as error:
            if not connection.isAlive():
                raise
            self._tell(lost, error)
            return False
        LOG.info("made mediated device %s again, as %s on %s", lost.unit.unit, lost.unit.type_id, lost.parent)
        return True

    def _tell(self, lost: Lost, error: libvirt.libvirtError) -> None:
        unit = lost.unit
        if self._told.get(unit.unit) != str(error):
            self._told[unit.unit] = str(error)
            LOG.warning(
                "mediated device %s (%s on %s), which a domain names, was lost by a reboot and cannot be "
                "made again: %s; make it by hand, or let this user manage libvirt",
                unit.unit,
                unit.type_id,
                unit.parent,
                error,
            )
