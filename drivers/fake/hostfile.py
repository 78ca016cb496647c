"""Host files: a `FakeHost` written in YAML. Errors name the file and the key."""

import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agent.cpuset import parse_cpu_set
from agent.driver import Cell, Guest, GuestState, MoveInstruction, UsedMemory, UsedUnit
from agent.errors import DriverDataError
from drivers.fake.host import FakeHost, Gpu, Nic, cell

SIZE_MAX_BYTES = 8 * 2**20

_ADDRESS = {"type": "string", "pattern": r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$"}
_CLASS = {"type": "string", "pattern": r"^[A-Z0-9_]{1,255}$"}
_AMOUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_AMOUNTS = {"type": "object", "propertyNames": _CLASS, "additionalProperties": _AMOUNT}
_STRINGS = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
_TRAITS = {"type": "array", "items": _CLASS, "uniqueItems": True}
_UUID = {"type": "string", "pattern": r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"}


def _record(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list_of(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": record}


_CELL = _record(
    ("id", "cpus", "memory_mb"),
    id=_AMOUNT,
    cpus={"type": ["string", "integer"]},
    memory_mb=_AMOUNT,
    threads={"type": "integer", "minimum": 1, "maximum": 8},
    pages={
        "type": "object",
        "propertyNames": {"type": "integer", "minimum": 1},
        "additionalProperties": _AMOUNT,
    },
)
_GPU = _record(
    ("address",),
    address=_ADDRESS,
    resource_class=_CLASS,
    total=_AMOUNT,
    units=_STRINGS,
    traits=_TRAITS,
    numa=_AMOUNT,
    types=_AMOUNTS,
)
_NIC = _record(
    ("ifname", "address"),
    ifname={"type": "string", "pattern": r"^[^\s/]{1,15}$"},
    address=_ADDRESS,
    vfs={"type": "array", "items": _ADDRESS, "uniqueItems": True},
    physical_network={"type": "string", "minLength": 1},
    egress_kbps=_AMOUNT,
    ingress_kbps=_AMOUNT,
    traits=_TRAITS,
    numa=_AMOUNT,
    whole=_CLASS,
)
_UNIT = _record(
    ("resource_class", "unit", "device"),
    resource_class=_CLASS,
    unit={"type": "string", "minLength": 1},
    device={"type": "string", "minLength": 1},
)
_MEMORY = _record(
    ("cell", "memory_mb"),
    cell=_AMOUNT,
    memory_mb=_AMOUNT,
    page_kib={"type": "integer", "minimum": 1},
    guest_cell=_AMOUNT,
)
_GUEST = _record(
    ("uuid", "name"),
    uuid=_UUID,
    name={"type": "string", "minLength": 1},
    state={"enum": [state.value for state in GuestState]},
    resources=_AMOUNTS,
    units=_list_of(_UNIT),
    memory=_list_of(_MEMORY),
)
_MOVE = _record(
    ("from_resource_provider", "moved_resources", "to_resource_provider"),
    from_resource_provider={"type": "string"},
    moved_resources=_AMOUNTS,
    to_resource_provider={"type": "string"},
    consumers={"type": "object", "propertyNames": _UUID, "additionalProperties": _AMOUNTS},
    becomes={"type": "object", "propertyNames": _CLASS, "additionalProperties": _CLASS},
)
_HOST = _record(
    ("cells",),
    cells={**_list_of(_CELL), "minItems": 1},
    disk_gb=_AMOUNT,
    traits=_TRAITS,
    gpus=_list_of(_GPU),
    nics=_list_of(_NIC),
    guests=_list_of(_GUEST),
    moves=_list_of(_MOVE),
    report_numa={"type": "boolean"},
    flat_devices={"type": "boolean"},
    unavailable={"type": "string", "minLength": 1},
    delay_s={"type": "number", "minimum": 0, "maximum": 3600},
)


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2: in 1.1, 0000:41:00.0 is a number in base sixty."""


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"^[0-9]{1,18}$"),
    "tag:yaml.org,2002:float": re.compile(r"^[0-9]{1,18}\.[0-9]{1,18}$"),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _regex in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, _regex, list("0123456789"))


def load_host(path: Path) -> FakeHost:
    """The host that the file describes. Raises DriverDataError naming file and key; OSError if unreadable."""
    with path.open("rb") as file:
        text = file.read(SIZE_MAX_BYTES + 1)
    if len(text) > SIZE_MAX_BYTES:
        raise DriverDataError(f"{path}: a host file has at most {SIZE_MAX_BYTES} bytes")
    return parse_host(text, str(path))


def parse_host(text: str | bytes, source: str = "host file") -> FakeHost:
    """Raises DriverDataError with `source` and the key that is wrong."""
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader, see above
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DriverDataError(f"{source}: this is no YAML: {' '.join(str(error).split())}") from error
    _check_schema(data, source)
    host = _host(data, source)
    _check_references(host, source)
    return host


def _check_schema(data: object, source: str) -> None:
    from jsonschema import Draft202012Validator  # late: it is slow to import, and only a file needs it
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(_HOST).iter_errors(data))
    if error is not None:
        raise DriverDataError(f"{source}: {_key(error.absolute_path) or 'the top level'}: {error.message}")


def _key(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _host(data: Mapping[str, Any], source: str) -> FakeHost:
    lists = ("cells", "gpus", "nics", "guests", "moves", "traits")
    return FakeHost(
        cells=tuple(_cell(each, f"{source}: cells[{index}]") for index, each in enumerate(data["cells"])),
        traits=frozenset(data.get("traits", ())),
        gpus=tuple(Gpu(**_frozen(each)) for each in data.get("gpus", ())),
        nics=tuple(Nic(**_frozen(each)) for each in data.get("nics", ())),
        guests=tuple(sorted(map(_guest, data.get("guests", ())), key=lambda guest: guest.uuid)),
        moves=tuple(MoveInstruction(**each) for each in data.get("moves", ())),
        **{key: value for key, value in data.items() if key not in lists},
    )


def _frozen(record: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    if "traits" in fields:
        fields["traits"] = frozenset(fields["traits"])
    return fields


def _cell(data: Mapping[str, Any], where: str) -> Cell:
    try:
        cpus = parse_cpu_set(str(data["cpus"]))
        return cell(data["id"], cpus, data["memory_mb"], data.get("threads", 1), data.get("pages"))
    except ValueError as error:
        raise DriverDataError(f"{where}.cpus: {error}") from error


def _guest(data: Mapping[str, Any]) -> Guest:
    units = tuple(UsedUnit(**unit) for unit in data.get("units", ()))
    counted: dict[str, int] = {}
    for unit in units:
        counted[unit.resource_class] = counted.get(unit.resource_class, 0) + 1
    return Guest(
        uuid=str(uuid.UUID(data["uuid"])),
        name=data["name"],
        state=GuestState(data.get("state", "running")),
        resources=counted | data.get("resources", {}),
        units=units,
        memory=tuple(UsedMemory(**each) for each in data.get("memory", ())),
    )


def _check_references(host: FakeHost, source: str) -> None:
    """What a schema cannot say: nothing twice, and cells that exist."""
    cells = [each.id for each in host.cells]
    _no_doubles(cells, source, "cells: id")
    _no_doubles([cpu for each in host.cells for cpu in each.cpus], source, "cells: CPU")
    cards = [gpu.address for gpu in host.gpus] + [nic.address for nic in host.nics]
    _no_doubles(cards + [vf for nic in host.nics for vf in nic.vfs], source, "gpus and nics: address")
    _no_doubles([nic.ifname for nic in host.nics], source, "nics: ifname")
    _no_doubles([guest.uuid for guest in host.guests], source, "guests: uuid")
    numa = [(f"gpus[{index}].numa", gpu.numa) for index, gpu in enumerate(host.gpus)]
    numa += [(f"nics[{index}].numa", nic.numa) for index, nic in enumerate(host.nics)]
    numa += [
        (f"the memory of guest {guest.uuid}", used.cell) for guest in host.guests for used in guest.memory
    ]
    for key, cell_id in numa:
        if cell_id is not None and cell_id not in cells:
            raise DriverDataError(f"{source}: {key}: there is no cell {cell_id}")


def _no_doubles(values: Sequence[object], source: str, what: str) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise DriverDataError(f"{source}: {what} {value} is there twice")
        seen.add(value)
