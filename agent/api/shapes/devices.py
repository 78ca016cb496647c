"""The devices of this host: `GET /v1/devices` and the cordons."""

from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.columns import Column
from agent.api.shapes.schema import Count, Moment, Schema, Uuid

Address = Annotated[
    str,
    Schema(minLength=1, maxLength=64),
    "a PCI address, of a card or of one of its functions, or the uuid of a mediated device",
]


class CordonShape(TypedDict):
    """An operator's word that a device is given to no guest."""

    address: Address
    reason: str
    uid: Annotated[Count, "the user who asked for it"]
    since: Moment


class DeviceShape(TypedDict):
    """An exact unit that the host offers to guests."""

    unit: Annotated[str, "a PCI address, or the uuid of a mediated device"]
    resource_class: str
    provider: Annotated[str, "the name of the resource provider that has it"]
    holder: Annotated[Uuid | None, "the instance or the migration that has it; null: no consumer has it"]
    cordon: Annotated[CordonShape | None, "null: not cordoned"]


class DevicesShape(TypedDict):
    """All devices of this host."""

    devices: list[DeviceShape]


class CordonBodyShape(TypedDict):
    """The device to cordon."""

    address: Address
    reason: NotRequired[Annotated[str, Schema(maxLength=255, default="")]]


class ClearBodyShape(TypedDict):
    """The device whose cordon is to end."""

    address: Address


def _cordon(device: DeviceShape) -> str:
    cordon = device["cordon"]
    return "-" if cordon is None else f"cordoned: {cordon['reason']}" if cordon["reason"] else "cordoned"


DEVICE_COLUMNS: tuple[Column[DeviceShape], ...] = (
    Column("DEVICE", lambda device: device["unit"]),
    Column("CLASS", lambda device: device["resource_class"]),
    Column("PROVIDER", lambda device: device["provider"]),
    Column("HOLDER", lambda device: device["holder"] or "-"),
    Column("CORDON", _cordon),
)
"""The table of `plimsoll devices`."""
