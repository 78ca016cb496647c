"""Mediated devices that a reboot of the host took, and that are to be made again: the same uuid and type on
the same parent. Pure.

Only those that a domain names, and that were there in an earlier boot: what somebody removed in this one
stays removed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from drivers.libvirt.describe.cards import Remembered
from drivers.libvirt.describe.devices import DeviceFacts


@dataclass(frozen=True, slots=True)
class Lost:
    """A mediated device to make again on `parent`, a node device's name.

    `defined` is its own, where libvirt has its definition.
    """

    unit: Remembered
    parent: str
    defined: str | None = None


def lost_mdevs(missing: Iterable[Remembered], facts: DeviceFacts, boot: str) -> list[Lost]:
    """Those of the missing that can be made again now, because their parents are there."""
    parents = {
        function.address: function.name
        for card in facts.cards
        for function in (card.device, *card.vfs)
        if function.mdev_types
    }
    defined = {
        (mdev.uuid, mdev.parent): mdev.name for card in facts.cards for mdev in card.mdevs if not mdev.active
    }
    return [
        Lost(each, parents[each.parent], defined.get((each.unit, parents[each.parent])))
        for each in missing
        if each.type_id and boot and each.boot not in ("", boot) and each.parent in parents
    ]


def mdev_xml(lost: Lost) -> str:
    """What nodeDeviceCreateXML takes. Source: https://libvirt.org/formatnode.html"""
    return (
        f"<device><parent>{lost.parent}</parent><capability type='mdev'>"
        f"<type id={quoteattr(lost.unit.type_id)}/><uuid>{lost.unit.unit}</uuid></capability></device>"
    )
