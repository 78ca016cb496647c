"""The mediated devices that a reboot of the host removed and that the driver creates again. Pure.

They get the same uuid and type on the same parent. Only devices that a domain names and that existed in an
earlier boot are lost: a device that was removed since this boot stays removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from drivers.libvirt.describe.cards import UnitRecord
from drivers.libvirt.describe.devices import DeviceFacts


@dataclass(frozen=True, slots=True)
class LostMdev:
    """A mediated device to create on `parent`, the name of a node device.

    `defined_name` is the name of its own node device, if libvirt has its definition.
    """

    record: UnitRecord
    parent: str
    defined_name: str | None = None


def lost_mdevs(missing: Iterable[UnitRecord], facts: DeviceFacts, boot: str) -> list[LostMdev]:
    """The missing mediated devices whose parents exist; `boot` is the id of the current boot."""
    parents = {
        function.address: function.name
        for card in facts.cards
        for function in (card.device, *card.vfs)
        if function.mdev_types
    }
    defined_names = {
        (mdev.uuid, mdev.parent): mdev.name for card in facts.cards for mdev in card.mdevs if not mdev.active
    }
    return [
        LostMdev(record, parents[record.parent], defined_names.get((record.unit, parents[record.parent])))
        for record in missing
        if record.type_id and boot and record.boot not in ("", boot) and record.parent in parents
    ]


def mdev_xml(mdev: LostMdev) -> str:
    """The XML for nodeDeviceCreateXML. Source: https://libvirt.org/formatnode.html"""
    return (
        f"<device><parent>{mdev.parent}</parent><capability type='mdev'>"
        f"<type id={quoteattr(mdev.record.type_id)}/><uuid>{mdev.record.unit}</uuid></capability></device>"
    )
