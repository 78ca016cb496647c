"""Reshapes, their previews and receipts: `/v1/reshape`."""

from collections.abc import Iterator
from typing import Annotated, TypedDict

from agent.api.shapes.columns import Column, consumer_text
from agent.api.shapes.schema import Moment, Positive, ResourcesShape, Uuid
from agent.api.shapes.tree import TreeShape
from agent.errors import counted

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
