"""Read a host file: a `FakeHost` in YAML. Errors name the file and the key."""

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from agent.cpuset import parse_cpu_set
from agent.driver import Cell, Guest, GuestState, MoveInstruction, UsedMemory, UsedUnit
from agent.errors import DriverDataError
from agent.strict_yaml import UniqueKeyLoader
from drivers.fake.devices import Device
from drivers.fake.host import DEVICE_KINDS, FakeHost, cell
from drivers.fake.schema import dataclass_schema

SIZE_MAX_BYTES = 8 * 2**20

HOST_SCHEMA = dataclass_schema(FakeHost)
"""The JSON schema of a host file."""


class _HostFileLoader(UniqueKeyLoader):
    """YAML with the numbers of version 1.2: in 1.1, 0000:41:00.0 is a number in base sixty."""


_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"^[0-9]{1,18}$"),
    "tag:yaml.org,2002:float": re.compile(r"^[0-9]{1,18}\.[0-9]{1,18}$"),
}
_HostFileLoader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _regex in _NUMBERS.items():
    _HostFileLoader.add_implicit_resolver(_tag, _regex, list("0123456789"))


def load_host(path: Path) -> FakeHost:
    """The host that the file describes. Raises DriverDataError naming file and key; OSError if unreadable."""
    with path.open("rb") as file:
        text = file.read(SIZE_MAX_BYTES + 1)
    if len(text) > SIZE_MAX_BYTES:
        raise DriverDataError(f"{path}: a host file has at most {SIZE_MAX_BYTES} bytes")
    return parse_host(text, str(path))


def parse_host(text: str | bytes, source: str = "host file") -> FakeHost:
    """The host that `text` describes. Raises DriverDataError naming `source` and the key."""
    try:
        data = yaml.load(text, Loader=_HostFileLoader)  # noqa: S506 - a SafeLoader, see above
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DriverDataError(f"{source}: this is not YAML: {' '.join(str(error).split())}") from error
    _check_schema(data, source)
    host = _host(data, source)
    _check_references(host, source)
    return host


def _check_schema(data: object, source: str) -> None:
    from jsonschema import Draft202012Validator  # late: it is slow to import, and only a file needs it
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(HOST_SCHEMA).iter_errors(data))
    if error is not None:
        raise DriverDataError(f"{source}: {_key(error.absolute_path) or 'the top level'}: {error.message}")


def _key(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _host(data: Mapping[str, Any], source: str) -> FakeHost:
    converted: dict[str, Any] = {
        "cells": tuple(
            _cell(record, f"{source}: cells[{index}]") for index, record in enumerate(data["cells"])
        ),
        "traits": frozenset(data.get("traits", ())),
        "guests": tuple(sorted(map(_guest, data.get("guests", ())), key=lambda guest: guest.uuid)),
        "moves": tuple(MoveInstruction(**record) for record in data.get("moves", ())),
        **{
            key: tuple(_device(kind, record) for record in data.get(key, ()))
            for key, kind in DEVICE_KINDS.items()
        },
    }
    return FakeHost(**{**data, **converted})


def _device(kind: type[Device], data: Mapping[str, Any]) -> Device:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return kind(**{**values, "traits": frozenset(values.get("traits", ()))})


def _cell(data: Mapping[str, Any], where: str) -> Cell:
    try:
        cpus = parse_cpu_set(str(data["cpus"]))
        return cell(data["id"], cpus, data["memory_mb"], data.get("threads", 1), data.get("pages"))
    except ValueError as error:
        raise DriverDataError(f"{where}.cpus: {error}") from error


def _guest(data: Mapping[str, Any]) -> Guest:
    units = tuple(UsedUnit(**unit) for unit in data.get("units", ()))
    return Guest(
        uuid=str(uuid.UUID(data["uuid"])),
        name=data["name"],
        state=GuestState(data.get("state", "running")),
        resources={**Counter(unit.resource_class for unit in units), **data.get("resources", {})},
        units=units,
        memory=tuple(UsedMemory(**record) for record in data.get("memory", ())),
    )


def _check_references(host: FakeHost, source: str) -> None:
    """Raises DriverDataError for a value that is repeated, and for a cell that does not exist."""
    cell_ids = [cell.id for cell in host.cells]
    _refuse_repeated(cell_ids, source, "cells: id")
    _refuse_repeated([cpu for cell in host.cells for cpu in cell.cpus], source, "cells: CPU")
    _refuse_repeated([guest.uuid for guest in host.guests], source, "guests: uuid")
    addresses = [
        address for devices in host.devices.values() for device in devices for address in device.addresses()
    ]
    _refuse_repeated(addresses, source, f"{' and '.join(DEVICE_KINDS)}: address")
    for section, kind in DEVICE_KINDS.items():
        for key in fields(kind):  # type: ignore[arg-type]  # each kind is a dataclass
            if key.metadata["unique"]:
                values = [getattr(device, key.name) for device in host.devices[section]]
                _refuse_repeated(values, source, f"{section}: {key.name}")
    for where, cell_id in _named_cells(host):
        if cell_id is not None and cell_id not in cell_ids:
            raise DriverDataError(f"{source}: {where}: there is no cell {cell_id}")


def _named_cells(host: FakeHost) -> Iterator[tuple[str, int | None]]:
    """(place in the file, id of a cell) for each cell that a device or a guest names."""
    for section, devices in host.devices.items():
        for index, device in enumerate(devices):
            yield f"{section}[{index}].numa", device.numa
    for guest in host.guests:
        for memory in guest.memory:
            yield f"the memory of guest {guest.uuid}", memory.cell


def _refuse_repeated(values: Sequence[object], source: str, what: str) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise DriverDataError(f"{source}: {what} {value} is there twice")
        seen.add(value)
