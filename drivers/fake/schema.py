"""The JSON schema of a host file; the description of each key is also the one in docs/drivers.md."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from agent.driver import GuestState

Schema = Mapping[str, Any]
"""A JSON schema, draft 2020-12."""

ADDRESS: Schema = {"type": "string", "pattern": r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"}
CLASS: Schema = {"type": "string", "pattern": r"^[A-Z0-9_]{1,255}$"}
AMOUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
AMOUNTS: Schema = {"type": "object", "propertyNames": CLASS, "additionalProperties": AMOUNT}
FLAG: Schema = {"type": "boolean"}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": 3600}
TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "array", "items": TEXT, "uniqueItems": True}
ADDRESSES: Schema = {"type": "array", "items": ADDRESS, "uniqueItems": True}
TRAITS: Schema = {"type": "array", "items": CLASS, "uniqueItems": True}
INTERFACE: Schema = {"type": "string", "pattern": r"^[^\s/]{1,15}$"}
_UUID: Schema = {"type": "string", "pattern": r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"}


def described(schema: Schema, description: str) -> Schema:
    """The schema with a description, which docs/drivers.md shows."""
    return {**schema, "description": description}


def file_key(schema: Schema, description: str, *, unique: bool = False) -> Mapping[str, Any]:
    """The metadata of a dataclass field that is a key of the host file.

    With `unique` no two devices of the kind may have the same value.
    """
    return {"schema": described(schema, description), "unique": unique}


def record(required: Sequence[str] = (), **properties: Schema) -> Schema:
    """The schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def list_of(items: Schema) -> Schema:
    """The schema of a list of such items."""
    return {"type": "array", "items": items}


def dataclass_schema(kind: type) -> Schema:
    """The schema of a dataclass with `file_key` metadata; a field without default is a required key."""
    keys = fields(kind)
    required = [key.name for key in keys if key.default is MISSING and key.default_factory is MISSING]
    return record(required, **{key.name: key.metadata["schema"] for key in keys})


def key_rows(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, description) of each property, and of those of the objects below it: `gpus[].address`."""
    for name, part in schema.get("properties", {}).items():
        yield f"{prefix}{name}", part["description"]
        yield from key_rows(part.get("items", {}), f"{prefix}{name}[].")


CELL = record(
    ("id", "cpus", "memory_mb"),
    id=described(AMOUNT, "the id of the cell"),
    cpus=described({"type": ["string", "integer"]}, "the ids of its CPUs, such as `0-15,32-47`"),
    memory_mb=described(AMOUNT, "its memory in MiB, huge pages included"),
    threads=described(
        {"type": "integer", "minimum": 1, "maximum": 8}, "the number of hardware threads of a core; default 1"
    ),
    pages=described(
        {
            "type": "object",
            "propertyNames": {"type": "integer", "minimum": 1},
            "additionalProperties": AMOUNT,
        },
        "the number of pages of each size in KiB",
    ),
)
_UNIT = record(
    ("resource_class", "unit", "device"),
    resource_class=described(CLASS, "the resource class of the unit"),
    unit=described(TEXT, "a CPU id, a PCI address or the uuid of a mediated device"),
    device=described(TEXT, "the device that has it: `host`, `numa:0` or `pci:0000:41:00.0`"),
)
_MEMORY = record(
    ("cell", "memory_mb"),
    cell=described(AMOUNT, "the host's cell to which the memory is bound"),
    memory_mb=described(AMOUNT, "the amount in MiB"),
    page_kib=described({"type": "integer", "minimum": 1}, "the size of its pages in KiB"),
    guest_cell=described(AMOUNT, "the cell of the guest that has the memory"),
)
GUEST = record(
    ("uuid", "name"),
    uuid=described(_UUID, "the uuid of the guest"),
    name=described(TEXT, "its name"),
    state=described(
        {"enum": [state.value for state in GuestState]},
        "`running` (default), `starting`, `migrating`, `paused`, `shutoff`, `crashed` or `suspended`",
    ),
    resources=described(AMOUNTS, "the amount that it uses of each resource class"),
    units=described(list_of(_UNIT), "its exact units, each counted where `resources` lacks the class"),
    memory=described(list_of(_MEMORY), "memory that is bound to cells or in huge pages"),
)
MOVE = record(
    ("from_resource_provider", "moved_resources", "to_resource_provider"),
    from_resource_provider=described({"type": "string"}, "the name of the provider that had the inventory"),
    moved_resources=described(AMOUNTS, "the amount of each resource class that moved"),
    to_resource_provider=described({"type": "string"}, "the name of the provider that has it now"),
    consumers=described(
        {"type": "object", "propertyNames": _UUID, "additionalProperties": AMOUNTS},
        "the amounts that each consumer uses, where they are known",
    ),
    becomes=described(
        {"type": "object", "propertyNames": CLASS, "additionalProperties": CLASS},
        "the new resource class, where the class changes",
    ),
)
