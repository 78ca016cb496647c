"""The export document: a placement's whole content as JSON, and back. Pure.

docs/placement-export.md describes it. The same content always makes the same document: everything stands in
the order of its uuid or name.
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


def to_document(content: PlacementSnapshot) -> dict[str, Any]:
    """The document, JSON-ready."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "resource_classes": sorted(content.resource_classes),
        "traits": sorted(content.traits),
        "resource_providers": [_provider_json(each) for each in content.providers.values()],
        "consumers": [_consumer_json(each) for each in content.consumers.values()],
    }


def to_text(content: PlacementSnapshot) -> str:
    return json.dumps(to_document(content), indent=1, ensure_ascii=False) + "\n"


def from_text(text: str) -> PlacementSnapshot:
    """Raises UsageError, which says where, for anything that is not such a document."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is no export document: it is no JSON ({error}).") from error
    return from_document(document)


def from_document(document: object) -> PlacementSnapshot:
    """Raises UsageError, which says where, for anything that is not such a document."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"This is no export document: it does not say {FORMAT!r} as its format.")
    if document.get("version") != VERSION:
        raise UsageError(
            f"This export document has version {document.get('version')!r}; version {VERSION} is what can be "
            "read here: use the plimsoll that wrote it, or a newer one."
        )
    top = _whole_object(document, "", _TOP)
    return PlacementSnapshot.of(
        _distinct([_provider(*each) for each in _items(top, "resource_providers")], "resource_providers"),
        _distinct([_consumer(*each) for each in _items(top, "consumers")], "consumers"),
        _names(top["traits"], "traits", _CUSTOM_NAME),
        _names(top["resource_classes"], "resource_classes", _CUSTOM_NAME),
    )


def _provider_json(provider: Provider) -> dict[str, Any]:
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "parent_provider_uuid": provider.parent,
        "generation": provider.generation,
        "inventories": {name: each.to_json() for name, each in sorted(provider.inventories.items())},
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
    said = _whole_object(value, path, _PROVIDER)
    parent = said["parent_provider_uuid"]
    return Provider(
        uuid=_uuid(said["uuid"], f"{path}.uuid"),
        name=_filled(said["name"], f"{path}.name", _NAME_MAX),
        parent=None if parent is None else _uuid(parent, f"{path}.parent_provider_uuid"),
        inventories={
            _class_name(name, f"{path}.inventories"): _inventory(each, f"{path}.inventories.{name}")
            for name, each in read_object(said["inventories"], f"{path}.inventories").items()
        },
        traits=_names(said["traits"], f"{path}.traits", _NAME),
        aggregates=frozenset(
            _uuid(each, f"{path}.aggregates[{index}]")
            for index, each in enumerate(read_list(said["aggregates"], f"{path}.aggregates"))
        ),
        generation=_generation(said["generation"], f"{path}.generation"),
    )


def _inventory(value: object, path: str) -> Inventory:
    said = _whole_object(value, path, _INVENTORY)
    ratio = said["allocation_ratio"]
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 <= ratio <= _RATIO_MAX:
        raise fault(f"{path}.allocation_ratio", "a number from 0 on", ratio)
    least = {"total": 1, "reserved": 0, "min_unit": 1, "max_unit": 1, "step_size": 1}
    whole = {name: read_whole(said[name], f"{path}.{name}", low, MAX_UNIT) for name, low in least.items()}
    return Inventory(**whole, allocation_ratio=float(ratio))


def _consumer(value: object, path: str) -> ConsumerAllocations:
    said = _whole_object(value, path, _CONSUMER)
    kind = said["consumer_type"]
    allocations = read_object(said["allocations"], f"{path}.allocations")
    return ConsumerAllocations(
        consumer=_uuid(said["uuid"], f"{path}.uuid"),
        allocations={
            _uuid(provider, f"{path}.allocations"): _amounts(each, f"{path}.allocations.{provider}")
            for provider, each in allocations.items()
        },
        generation=_generation(said["generation"], f"{path}.generation"),
        project_id=_filled(said["project_id"], f"{path}.project_id"),
        user_id=_filled(said["user_id"], f"{path}.user_id"),
        consumer_type=UNTYPED if kind is None else _class_name(kind, f"{path}.consumer_type"),
    )


def _amounts(value: object, path: str) -> dict[str, int]:
    return {
        _class_name(name, path): read_whole(amount, f"{path}.{name}", 1, MAX_UNIT)
        for name, amount in read_object(value, path).items()
    }


def _items(top: Mapping[str, Any], key: str) -> list[tuple[object, str]]:
    return [(value, f"{key}[{index}]") for index, value in enumerate(read_list(top[key], key))]


def _distinct(values: list[Any], path: str) -> list[Any]:
    """Raises UsageError where two have one uuid."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        uuid = value.consumer if isinstance(value, ConsumerAllocations) else value.uuid
        if uuid in seen:
            raise UsageError(
                f"{path}[{index}].uuid: {uuid} stands at {path}[{seen[uuid]}] already.", path=path
            )
        seen[uuid] = index
    return values


def _whole_object(value: object, path: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    said = read_object(value, path, keys)
    for key in keys:
        if key not in said:
            raise UsageError(f"{below(path, key)}: missing.", path=below(path, key))
    return said


def _names(value: object, path: str, pattern: re.Pattern[str]) -> frozenset[str]:
    return frozenset(
        read_text(each, f"{path}[{index}]", pattern, f"a name like {pattern.pattern}")
        for index, each in enumerate(read_list(value, path))
    )


def _class_name(value: object, path: str) -> str:
    return read_text(value, path, _NAME, f"a name like {_NAME.pattern}")


def _uuid(value: object, path: str) -> str:
    """A uuid as it is written: placement compares some of them by their letters."""
    read_uuid(value, path)
    return str(value)


def _filled(value: object, path: str, longest: int = 255) -> str:
    text = read_text(value, path, wanted=f"a text of 1 to {longest} characters", longest=longest)
    if not text:
        raise fault(path, f"a text of 1 to {longest} characters", value)
    return text


def _generation(value: object, path: str) -> int | None:
    return None if value is None else read_whole(value, path, 0, 2**63 - 1)
