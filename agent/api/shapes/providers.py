"""The resource providers of this host: the tree (`GET /v1/tree`), the devices and their cordons
(`/v1/devices`), what a reshape moves between providers (`/v1/reshape`), and what the next pass changes
(`GET /v1/plan`).
"""

from collections.abc import Iterator
from typing import Annotated, Any, NotRequired, TypedDict

from agent.api.shapes.schema import (
    Column,
    Count,
    From,
    Moment,
    Positive,
    ResourcesShape,
    Schema,
    Uuid,
    Values,
    consumer_text,
)
from agent.errors import counted


class InventoryShape(TypedDict):
    """An inventory, in Placement's terms."""

    total: Count
    reserved: Count
    min_unit: Count
    max_unit: Count
    step_size: Count
    allocation_ratio: float
    capacity: Annotated[int, "(total - reserved) * allocation_ratio"]


class ResourceProviderShape(TypedDict):
    """A resource provider, with its inventories and usages."""

    uuid: Uuid
    name: str
    parent_provider_uuid: Annotated[str | None, From("parent")]
    root_provider_uuid: Uuid
    generation: int | None
    inventories: Annotated[dict[str, InventoryShape], "{resource class: inventory}"]
    usages: Annotated[
        dict[str, Count], "{resource class: amount in use}, by any consumer; 0 where nothing is in use"
    ]
    unclaimed: Annotated[
        dict[str, Count],
        "{resource class: amount} that guests use without a claim; the agent reserves it",
    ]
    traits: list[str]
    aggregates: list[Uuid]


class TreeShape(TypedDict):
    """The provider tree of this host."""

    resource_providers: Annotated[list[ResourceProviderShape], "depth first, each parent before its children"]
    warnings: Annotated[list[str], "sentences on what is offered and not there"]


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
    since: Annotated[Moment, From("at")]


class DeviceHealthShape(TypedDict):
    """Why a device is unhealthy, and given to no guest."""

    address: Annotated[
        str, "the device, or the card that has it; `plimsoll devices clear` takes this address"
    ]
    symptoms: Annotated[
        list[Annotated[str, Values("agent.providers.device_health:Symptom")]], "what made it unhealthy"
    ]
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


_Ends = TypedDict("_Ends", {"from": str, "from_uuid": Uuid, "to": str, "to_uuid": Uuid})


class RelocationShape(_Ends):
    """An amount that goes from one provider to another."""

    consumer: Uuid
    name: Annotated[str, "the consumer's, or that of its migration's instance; empty: it has none"]
    resource_class: str
    amount: Positive
    becomes: Annotated[str, "the resource class at the target, nearly always the same"]


class MoveInstructionShape(TypedDict):
    """What the driver asked to move from one provider to another."""

    from_resource_provider: str
    moved_resources: ResourcesShape
    to_resource_provider: str


class ReceiptShape(TypedDict):
    """A reshape that was done, kept so that it can be undone."""

    id: str
    at: Moment
    undone: Annotated[bool, "true: it was undone, and the agent does not repeat it until asked to"]
    undoes: Annotated[str | None, "the receipt that this reshape undid"]
    allocations: Annotated[int, "the number of allocations that were moved"]
    moves: list[MoveInstructionShape]


class PreviewShape(TypedDict):
    """What a reshape would do."""

    due: bool
    refused: Annotated[str | None, "why the reshape would not be done"]
    before: TreeShape
    after: TreeShape
    moves: Annotated[list[RelocationShape], "by consumer"]
    parked: Annotated[list[str], "sentences on units whose device is gone: they stay allocated or reserved"]
    receipts: Annotated[list[ReceiptShape], "the newest first"]


class ReshapedShape(TypedDict):
    """What a reshape did."""

    receipts: list[ReceiptShape]


class ReshapeBodyShape(TypedDict, total=False):
    """A reshape to do or to undo."""

    undo: Annotated[str | None, "the receipt to undo"]


def _class(relocation: RelocationShape) -> str:
    before, after = relocation["resource_class"], relocation["becomes"]
    return before if before == after else f"{before} -> {after}"


RELOCATION_COLUMNS: tuple[Column[RelocationShape], ...] = (
    Column("class", _class),
    Column("amount", lambda relocation: relocation["amount"]),
    Column("consumer", lambda relocation: consumer_text(relocation["consumer"], relocation["name"])),
    Column("from", lambda relocation: relocation["from"]),
    Column("to", lambda relocation: relocation["to"]),
)


def _moved(receipt: ReceiptShape) -> Iterator[str]:
    """A clause for each set of classes: the provider that they left, and the one that they went to."""
    ways: dict[str, tuple[set[str], set[str]]] = {}
    for move in receipt["moves"]:
        sources, targets = ways.setdefault(", ".join(move["moved_resources"]), (set(), set()))
        sources.add(move["from_resource_provider"])
        targets.add(move["to_resource_provider"])
    for classes, (sources, targets) in ways.items():
        yield f"{classes}: {_name_or_number(sources)} -> {_name_or_number(targets)}"


def _name_or_number(providers: set[str]) -> str:
    return next(iter(providers)) if len(providers) == 1 else counted(len(providers), "provider")


def _undo(receipt: ReceiptShape) -> str:
    if receipt["undone"]:
        return "undone"
    return f"undid {receipt['undoes']}" if receipt["undoes"] else ""


RECEIPT_COLUMNS: tuple[Column[ReceiptShape], ...] = (
    Column("receipt", lambda receipt: receipt["id"]),
    Column("at", lambda receipt: receipt["at"]),
    Column("allocations", lambda receipt: receipt["allocations"]),
    Column("moved", lambda receipt: "; ".join(_moved(receipt))),
    Column("", _undo),
)


PlanOperation = Annotated[
    dict[str, Any],
    Schema(properties={"operation": {"type": "string"}}, required=["operation"]),
    "`operation` is the kind: create_provider, put_inventories and others, each with further keys of its own",
]


class PlanShape(TypedDict):
    """The operations of the next pass."""

    operations: Annotated[list[PlanOperation], "in their order"]
    lines: Annotated[list[str], "the operations for people"]
