"""The devices of this host: `GET /v1/devices` and the cordons."""

from collections.abc import Iterable
from typing import Annotated, NotRequired, TypedDict

from agent.api.shapes.columns import Column
from agent.api.shapes.schema import Count, Moment, Schema, Uuid, Values

Address = Annotated[
    str,
    Schema(minLength=1, maxLength=64),
    "a PCI address, of a card or of one of its functions, or the uuid of a mediated device",
]


def _symptoms() -> Iterable[str]:
    from agent.providers.device_health import Symptom  # late, see `Values`

    return (symptom.value for symptom in Symptom)


SymptomName = Annotated[str, Values(_symptoms)]


class CordonShape(TypedDict):
    """An operator's word that a device is given to no guest."""

    address: Address
    reason: str
    uid: Annotated[Count, "the user who asked for it"]
    since: Moment


class DeviceHealthShape(TypedDict):
    """Why a device is unhealthy, and given to no guest."""

    address: Annotated[
        str, "the device, or the card that has it; `plimsoll devices clear` takes this address"
    ]
    symptoms: Annotated[list[SymptomName], "what made it unhealthy"]
    reason: Annotated[str, "the same in words"]
    since: Moment
    recovering: Annotated[bool, "it shows none of that now; after some more looks it is offered again"]


class DeviceShape(TypedDict):
    """An exact unit that the host offers to guests."""

    unit: Annotated[str, "a PCI address, or the uuid of a mediated device"]
    resource_class: str
    provider: Annotated[str, "the name of the resource provider that has it"]
    holder: Annotated[Uuid | None, "the instance or the migration that has it; null: no consumer has it"]
    holder_name: Annotated[str, "the instance's; empty: it has none, or no consumer has the device"]
    cordon: Annotated[CordonShape | None, "null: not cordoned"]
    health: Annotated[DeviceHealthShape | None, "null: well, or not known to be unhealthy"]


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


def _withheld(device: DeviceShape) -> str:
    cordon, health = device["cordon"], device["health"]
    clauses = []
    if cordon is not None:
        clauses.append(f"cordoned: {cordon['reason']}" if cordon["reason"] else "cordoned")
    if health is not None:
        state = "recovering" if health["recovering"] else "unhealthy"
        where = "" if health["address"] == device["unit"] else f" ({health['address']})"
        clauses.append(f"{state}{where}: {', '.join(health['symptoms'])}")
    return "; ".join(clauses) or "-"


DEVICE_COLUMNS: tuple[Column[DeviceShape], ...] = (
    Column("DEVICE", lambda device: device["unit"]),
    Column("CLASS", lambda device: device["resource_class"]),
    Column("PROVIDER", lambda device: device["provider"]),
    Column("HOLDER", lambda device: device["holder"] or "-"),
    Column("NAME", lambda device: device["holder_name"] or "-"),
    Column("WITHHELD", _withheld),
)
"""The table of `plimsoll devices`."""
