"""Create the mediated devices that a reboot removed; `describe.lost_mdevs` says which ones.

A warning in the log names each device that cannot be created, once.
Source: https://libvirt.org/html/libvirt-libvirt-nodedev.html#virNodeDeviceCreateXML
"""

import logging
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import libvirt

from drivers.libvirt.describe.lost_mdevs import LostMdev, mdev_xml
from drivers.libvirt.io.connection import Session

LOG = logging.getLogger(__name__)


class MdevRestorer:
    """Creates the devices over a connection of its own, because the driver's connection is read-only."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._logged_errors: dict[str, str] = {}

    def restore(self, session: Session, lost: Iterable[LostMdev]) -> list[str]:
        """Create the devices, and return the uuids of those that exist again.

        Raises libvirtError where the connection broke.
        """
        session.deadline.extend()
        try:
            with closing(libvirt.open(self._uri)) as connection:
                return [mdev.record.unit for mdev in lost if self._create(session, connection, mdev)]
        except libvirt.libvirtError as error:
            if not session.alive():
                raise
            for mdev in lost:
                self._log_failure(mdev, error)
            return []

    def _create(self, session: Session, connection: Any, mdev: LostMdev) -> bool:
        session.deadline.extend()
        try:
            if mdev.defined_name is not None:
                connection.nodeDeviceLookupByName(mdev.defined_name).create()
            else:
                connection.nodeDeviceCreateXML(mdev_xml(mdev))
        except libvirt.libvirtError as error:
            if not connection.isAlive():
                raise
            self._log_failure(mdev, error)
            return False
        LOG.info(
            "created mediated device %s again, as %s on %s",
            mdev.record.unit,
            mdev.record.type_id,
            mdev.parent,
        )
        return True

    def _log_failure(self, mdev: LostMdev, error: libvirt.libvirtError) -> None:
        record = mdev.record
        if self._logged_errors.get(record.unit) != str(error):
            self._logged_errors[record.unit] = str(error)
            LOG.warning(
                "mediated device %s (%s on %s), which a domain names, was lost in a reboot and cannot be "
                "created again: %s; create it by hand, or let this user manage libvirt",
                record.unit,
                record.type_id,
                record.parent,
                error,
            )
