"""The export document: a Placement snapshot as JSON, and back. Pure.

docs/placement-export.md describes the format. The same snapshot always gives the same text: records are
ordered by uuid or name.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from agent.errors import UsageError
from agent.json_checks import below, fault, read_list, read_object, read_text, read_uuid, read_whole
from agent.placement.client import ConsumerAllocations
from agent.placement.transfer.snapshot import UNTYPED, PlacementSnapshot
from agent.tree import MAX_UNIT, Inventory, Provider

FORMAT = "plimsoll-placement"
VERSION = 1

_NAME = re.compile(r"[A-Z0-9_]+")
_CUSTOM_NAME = re.compile(r"CUSTOM_[A-Z0-9_]+")
_NAME_MAX = 200
_RATIO_MAX = 3.40282e38
_TOP = ("format", "version", "resource_classes", "traits", "resource_providers", "consumers")
_PROVIDER = (
    "uuid",
    "name",
    "parent_provider_uuid",
    "generation",
    "inventories",
    "traits",
    "aggregates",
)
_INVENTORY = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
_CONSUMER = ("uuid", "project_id", "user_id", "consumer_type", "generation", "allocations")


def to_document(snapshot: PlacementSnapshot) -> dict[str, Any]:
    """The document as a JSON-ready object."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "resource_classes": sorted(snapshot.resource_classes),
        "traits": sorted(snapshot.traits),
        "resource_providers": [_provider_json(provider) for provider in snapshot.providers.values()],
        "consumers": [_consumer_json(consumer) for consumer in snapshot.consumers.values()],
    }


def to_text(snapshot: PlacementSnapshot) -> str:
    """The document as text."""
    return json.dumps(to_document(snapshot), indent=1, ensure_ascii=False) + "\n"


def from_text(text: str) -> PlacementSnapshot:
    """The snapshot in the text of a document. Raises UsageError, with the place, for an invalid one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is no export document: it is not JSON ({error}).") from error
    return from_document(document)


def from_document(document: object) -> PlacementSnapshot:
    """The snapshot in a parsed document. Raises UsageError, with the place, for an invalid one."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"This is no export document: its format is not {FORMAT!r}.")
    if document.get("version") != VERSION:
        raise UsageError(
            f"This export document has version {document.get('version')!r}, and this plimsoll reads "
            f"version {VERSION}: use the plimsoll that wrote the document, or a newer one."
        )
    top = _complete_object(document, "", _TOP)
    return PlacementSnapshot.of(
        _distinct([_provider(*item) for item in _items(top, "resource_providers")], "resource_providers"),
        _distinct([_consumer(*item) for item in _items(top, "consumers")], "consumers"),
        _names(top["traits"], "traits", _CUSTOM_NAME),
        _names(top["resource_classes"], "resource_classes", _CUSTOM_NAME),
    )


def _provider_json(provider: Provider) -> dict[str, Any]:
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "parent_provider_uuid": provider.parent,
        "generation": provider.generation,
        "inventories": {
            name: inventory.to_json() for name, inventory in sorted(provider.inventories.items())
        },
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def _consumer_json(consumer: ConsumerAllocations) -> dict[str, Any]:
    return {
        "uuid": consumer.consumer,
        "project_id": consumer.project_id,
        "user_id": consumer.user_id,
        "consumer_type": None if consumer.consumer_type == UNTYPED else consumer.consumer_type,
        "generation": consumer.generation,
        "allocations": {
            provider: dict(sorted(amounts.items()))
            for provider, amounts in sorted(consumer.allocations.items())
        },
    }


def _provider(value: object, path: str) -> Provider:
    record = _complete_object(value, path, _PROVIDER)
    parent = record["parent_provider_uuid"]
    return Provider(
        uuid=_uuid(record["uuid"], f"{path}.uuid"),
        name=_text(record["name"], f"{path}.name", _NAME_MAX),
        parent=None if parent is None else _uuid(parent, f"{path}.parent_provider_uuid"),
        inventories={
            _class_name(name, f"{path}.inventories"): _inventory(inventory, f"{path}.inventories.{name}")
            for name, inventory in read_object(record["inventories"], f"{path}.inventories").items()
        },
        traits=_names(record["traits"], f"{path}.traits", _NAME),
        aggregates=frozenset(
            _uuid(aggregate, f"{path}.aggregates[{index}]")
            for index, aggregate in enumerate(read_list(record["aggregates"], f"{path}.aggregates"))
        ),
        generation=_generation(record["generation"], f"{path}.generation"),
    )


def _inventory(value: object, path: str) -> Inventory:
    record = _complete_object(value, path, _INVENTORY)
    ratio = record["allocation_ratio"]
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 <= ratio <= _RATIO_MAX:
        raise fault(f"{path}.allocation_ratio", "a number from 0 on", ratio)
    least = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
    whole = {name: read_whole(record[name], f"{path}.{name}", low, MAX_UNIT) for name, low in least.items()}
    return Inventory(**whole, allocation_ratio=float(ratio))


def _consumer(value: object, path: str) -> ConsumerAllocations:
    record = _complete_object(value, path, _CONSUMER)
    consumer_type = record["consumer_type"]
    allocations = read_object(record["allocations"], f"{path}.allocations")
    return ConsumerAllocations(
        consumer=_uuid(record["uuid"], f"{path}.uuid"),
        allocations={
            _uuid(provider, f"{path}.allocations"): _amounts(amounts, f"{path}.allocations.{provider}")
            for provider, amounts in allocations.items()
        },
        generation=_generation(record["generation"], f"{path}.generation"),
        project_id=_text(record["project_id"], f"{path}.project_id"),
        user_id=_text(record["user_id"], f"{path}.user_id"),
        consumer_type=UNTYPED
        if consumer_type is None
        else _class_name(consumer_type, f"{path}.consumer_type"),
    )


def _amounts(value: object, path: str) -> dict[str, int]:
    return {
        _class_name(name, path): read_whole(amount, f"{path}.{name}", 1, MAX_UNIT)
        for name, amount in read_object(value, path).items()
    }


def _items(top: Mapping[str, Any], key: str) -> list[tuple[object, str]]:
    return [(value, f"{key}[{index}]") for index, value in enumerate(read_list(top[key], key))]


def _distinct(values: list[Any], path: str) -> list[Any]:
    """The values, unchanged. Raises UsageError where two have the same uuid."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        uuid = value.consumer if isinstance(value, ConsumerAllocations) else value.uuid
        if uuid in seen:
            raise UsageError(
                f"{path}[{index}].uuid: {path}[{seen[uuid]}] has the uuid {uuid} too.", path=path
            )
        seen[uuid] = index
    return values


def _complete_object(value: object, path: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    record = read_object(value, path, keys)
    for key in keys:
        if key not in record:
            raise UsageError(f"{below(path, key)}: missing.", path=below(path, key))
    return record


def _names(value: object, path: str, pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(
        read_text(name, f"{path}[{index}]", pattern, f"a name like {pattern.pattern}")
        for index, name in enumerate(read_list(value, path))
    )


def _class_name(value: object, path: str) -> str:
    return read_text(value, path, _NAME, f"a name like {_NAME.pattern}")


def _uuid(value: object, path: str) -> str:
    """The uuid, unchanged: Placement compares some uuids as text."""
    read_uuid(value, path)
    return str(value)


def _text(value: object, path: str, longest: int = 255) -> str:
    text = read_text(value, path, wanted=f"a text of 1 to {longest} characters", longest=longest)
    if not text:
        raise fault(path, f"a text of 1 to {longest} characters", value)
    return text


def _generation(value: object, path: str) -> int | None:
    return None if value is None else read_whole(value, path, 0, 2**63 - 1)
