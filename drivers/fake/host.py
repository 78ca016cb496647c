"""The host that the fake driver pretends to run on: its values, its kinds of devices, and its file.

A kind of device is one class here: its fields are the keys of the host file, and its methods give the
inventory. From them come the file's JSON schema, the provider, the moves and the table in docs/drivers.md.
Errors name the file and the key.
"""

import re
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from agent.cpuset import parse_cpu_set
from agent.device_names import physical_network_trait
from agent.driver import (
    CardLayout,
    Cell,
    DescribedInventory,
    DescribedProvider,
    Guest,
    GuestState,
    MoveInstruction,
    UsedMemory,
    UsedUnit,
)
from agent.errors import DriverDataError, counted
from agent.providers.divided_cards import MIG, MIXED_SIZES, CardModel, layout_of
from agent.strict_text import UniqueKeyLoader, key_path

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


VFS_OF_A_CARD = 32
"""So many virtual functions each card of the fake host has; a part of a mixed size takes one."""

CARD_TABLES: Mapping[str, CardModel] = {
    **{
        f"mixed {card}": sizes.model({str(gib): gib for gib in sizes.starts}, VFS_OF_A_CARD)
        for card, sizes in MIXED_SIZES.items()
    },
    **{f"MIG {card}": model for card, model in MIG.items()},
}
"""{`table` of a divided card: its model}"""

_NUMA = file_key(AMOUNT, "the id of the cell that it is on; none if it has no affinity")
_TRAITS = file_key(TRAITS, "more traits of its provider")


class Device(ABC):
    """A device with a provider of its own; `numa` is the id of its cell, None without affinity."""

    __slots__ = ()

    address: str
    traits: frozenset[str]
    numa: int | None

    @abstractmethod
    def name_suffix(self) -> str:
        """The end of the provider's name, after the name of the host and "_"."""

    @abstractmethod
    def totals(self) -> Mapping[str, int]:
        """{resource class: total}; a class with a total of 0 is not reported."""

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `DescribedProvider`."""
        return {}

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `DescribedProvider`."""
        return ()

    def own_traits(self) -> frozenset[str]:
        """The traits that follow from the other fields."""
        return frozenset()

    def addresses(self) -> tuple[str, ...]:
        """All its PCI addresses; each may be on the host only once."""
        return (self.address,)

    def describe(self, host_name: str, parent: str) -> DescribedProvider:
        """The provider of the device, below the provider called `parent`. Devices are never overcommitted."""
        return DescribedProvider(
            name=f"{host_name}_{self.name_suffix()}",
            parent=parent,
            inventories={
                resource_class: DescribedInventory(total, allocation_ratio=1.0)
                for resource_class, total in self.totals().items()
                if total
            },
            traits=self.traits | self.own_traits(),
            device=f"pci:{self.address}",
            units=self.exact_units(),
            cell=self.numa,
            ways=self.ways(),
        )


@dataclass(frozen=True, slots=True)
class Gpu(Device):
    """A graphics card that offers `total` of `resource_class` (VGPU, PGPU or a CUSTOM_ class).

    `units` are its exact units where they exist (for VGPU the uuids of existing mediated devices). `types`
    {resource class: total} are alternatives to all that: classes with the same total share the card, others
    exclude each other.
    """

    address: str = field(metadata=file_key(ADDRESS, "the PCI address of the card"))
    resource_class: str = field(
        default="VGPU", metadata=file_key(CLASS, "`VGPU` (default), `PGPU` or a `CUSTOM_` class")
    )
    total: int = field(default=1, metadata=file_key(AMOUNT, "how many of the class the card has; default 1"))
    units: tuple[str, ...] = field(default=(), metadata=file_key(TEXTS, "its exact units, if they exist"))
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)
    types: Mapping[str, int] = field(
        default_factory=dict,
        metadata=file_key(
            AMOUNTS,
            "in place of `resource_class` and `total`: the total of each class into which the card can be "
            "divided; classes of one total share the card, others exclude each other",
        ),
    )

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"pci_{self.address}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`."""
        return self.types or {self.resource_class: self.total}

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        if self.types:
            return {
                resource_class: tuple(f"{self.address}/{number}" for number in range(total))
                for resource_class, total in self.types.items()
            }
        return {self.resource_class: self.units} if self.units else {}

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `Device`."""
        classes_by_total: dict[int, set[str]] = {}
        for resource_class, total in self.types.items():
            classes_by_total.setdefault(total, set()).add(resource_class)
        return tuple(map(frozenset, classes_by_total.values()))


@dataclass(frozen=True, slots=True)
class DividedGpu(Device):
    """A graphics card that is divided into several sizes at once, each in certain places only.

    `shapes` {resource class: GiB of a vGPU, or a slice of MIG} are of the card's table.
    """

    address: str = field(metadata=file_key(ADDRESS, "the PCI address of the card"))
    table: str = field(
        metadata=file_key(
            {"enum": sorted(CARD_TABLES)}, "the card, and how it is divided: in mixed sizes, or by MIG"
        )
    )
    shapes: Mapping[str, str] = field(
        metadata=file_key(
            {"type": "object", "propertyNames": CLASS, "additionalProperties": TEXT, "minProperties": 1},
            "the size of each class: the GiB of a vGPU (`8`), or a slice of MIG (`1g.5gb`)",
        )
    )
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"pci_{self.address}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`. Raises DriverDataError for a shape that the card does not have."""
        return self._layout()[1]

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        return {name: tuple(shape.units) for name, shape in self._layout()[0].shapes.items()}

    def describe(self, host_name: str, parent: str) -> DescribedProvider:
        """See `Device`."""
        described = Device.describe(self, host_name, parent)
        return replace(described, card=self._layout()[0])

    def _layout(self) -> tuple[CardLayout, Mapping[str, int]]:
        try:
            return layout_of(
                CARD_TABLES[self.table], self.shapes, lambda name, start: f"{self.address}/{name}@{start}"
            )
        except KeyError as error:
            raise DriverDataError(f"{self.address}: {self.table} has no shape {error}") from error


@dataclass(frozen=True, slots=True)
class Nic(Device):
    """The physical function of a network card, with its virtual functions and its bandwidth."""

    ifname: str = field(metadata=file_key(INTERFACE, "the name of its network interface", unique=True))
    address: str = field(metadata=file_key(ADDRESS, "the PCI address of its physical function"))
    vfs: tuple[str, ...] = field(
        default=(),
        metadata=file_key(ADDRESSES, "the PCI addresses of its virtual functions (`SRIOV_NET_VF`)"),
    )
    physical_network: str | None = field(
        default=None, metadata=file_key(TEXT, "the network that it is on (trait `CUSTOM_PHYSNET_<NAME>`)")
    )
    egress_kbps: int = field(default=0, metadata=file_key(AMOUNT, "`NET_BW_EGR_KILOBIT_PER_SEC`, in kbit/s"))
    ingress_kbps: int = field(default=0, metadata=file_key(AMOUNT, "`NET_BW_IGR_KILOBIT_PER_SEC`, in kbit/s"))
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)
    whole: str | None = field(
        default=None,
        metadata=file_key(CLASS, "the class of the physical function, where a guest may have the whole card"),
    )

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"net_{self.ifname}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`."""
        return {
            **{resource_class: len(addresses) for resource_class, addresses in self.exact_units().items()},
            "NET_BW_EGR_KILOBIT_PER_SEC": self.egress_kbps,
            "NET_BW_IGR_KILOBIT_PER_SEC": self.ingress_kbps,
        }

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        units = {"SRIOV_NET_VF": self.vfs} if self.vfs else {}
        return {**units, self.whole: (self.address,)} if self.whole else units

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `Device`."""
        classes = self.exact_units()
        return tuple(frozenset({resource_class}) for resource_class in classes) if len(classes) > 1 else ()

    def own_traits(self) -> frozenset[str]:
        """See `Device`."""
        return physical_network_trait(self.physical_network)

    def addresses(self) -> tuple[str, ...]:
        """See `Device`."""
        return (self.address, *self.vfs)


def _device_key(kind: type[Device], description: str) -> Mapping[str, Any]:
    """The metadata of a field that lists the devices of a kind."""
    return {**file_key(list_of(dataclass_schema(kind)), description), "kind": kind}


@dataclass(frozen=True, slots=True)
class FakeHost:
    """A host; each field is a key of the host file, and its description there says what it means."""

    cells: tuple[Cell, ...] = field(
        metadata=file_key({**list_of(CELL), "minItems": 1}, "the NUMA cells of the host")
    )
    disk_gb: int = field(default=0, metadata=file_key(AMOUNT, "the size of its disk in GiB"))
    traits: frozenset[str] = field(
        default=frozenset(), metadata=file_key(TRAITS, "the traits of the host, besides `COMPUTE_NODE`")
    )
    gpus: tuple[Gpu, ...] = field(default=(), metadata=_device_key(Gpu, "graphics cards"))
    divided_gpus: tuple[DividedGpu, ...] = field(
        default=(), metadata=_device_key(DividedGpu, "graphics cards that are divided into several sizes")
    )
    nics: tuple[Nic, ...] = field(default=(), metadata=_device_key(Nic, "network cards with SR-IOV"))
    guests: tuple[Guest, ...] = field(
        default=(), metadata=file_key(list_of(GUEST), "the guests, running or only defined")
    )
    moves: tuple[MoveInstruction, ...] = field(
        default=(),
        metadata=file_key(
            list_of(MOVE), "move instructions; if there are none, the driver derives them from the host"
        ),
    )
    report_numa: bool = field(
        default=False,
        metadata=file_key(FLAG, "`true`: report CPUs, memory and devices below a provider for each cell"),
    )
    flat_devices: bool = field(
        default=False,
        metadata=file_key(
            FLAG, "`true`: count the inventory of all but divided devices on the host's own provider"
        ),
    )
    root_path: str | None = field(
        default=None,
        metadata=file_key(
            TEXT,
            "a directory with `sys`, `proc` and `modules` as a host has them, where the driver reads how "
            "PCI devices are bound; none: nothing is known of that",
        ),
    )
    unavailable: str | None = field(
        default=None, metadata=file_key(TEXT, "a sentence; while it is set, every call fails with it")
    )
    delay_s: float = field(default=0.0, metadata=file_key(SECONDS, "how long every call takes, in seconds"))
    disk_free_gb: int | None = field(
        default=None,
        metadata=file_key(AMOUNT, "how much of its file system is free, in GiB; none: that is not known"),
    )

    @property
    def devices(self) -> Mapping[str, tuple[Device, ...]]:
        """{key of the host file: devices of that kind}"""
        return {key: getattr(self, key) for key in DEVICE_KINDS}


DEVICE_KINDS: Mapping[str, type[Device]] = {
    key.name: key.metadata["kind"] for key in fields(FakeHost) if "kind" in key.metadata
}
"""{key of the host file: kind of device}, in the order in which devices are described."""


def cell(
    cell_id: int,
    cpus: frozenset[int],
    memory_mb: int,
    threads: int = 1,
    pages: Mapping[int, int] | None = None,
) -> Cell:
    """A cell whose cores have `threads` hardware threads each, numbered as Linux numbers them on x86.

    The sorted ids are split into `threads` equal runs; the n-th ids of all runs are one core. Raises
    ValueError where the ids do not divide evenly.
    """
    ids = sorted(cpus)
    cores, rest = divmod(len(ids), threads)
    if rest:
        raise ValueError(f"{counted(len(ids), 'CPU')} cannot be cores of {counted(threads, 'thread')}")
    siblings = tuple(frozenset(ids[core::cores]) for core in range(cores))
    return Cell(cell_id, cpus, memory_mb, siblings, dict(pages or {}))


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
    from jsonschema import Draft202012Validator  # late: it is slow to import, and only a file needs it
    from jsonschema.exceptions import best_match

    fault = best_match(Draft202012Validator(HOST_SCHEMA).iter_errors(data))
    if fault is not None:
        raise DriverDataError(
            f"{source}: {key_path(fault.absolute_path) or 'the top level'}: {fault.message}"
        )
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
    host = FakeHost(**{**data, **converted})
    # Nothing is given twice that must be unique, and each cell that is named exists.
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
    named = [
        (f"{section}[{index}].numa", device.numa)
        for section, devices in host.devices.items()
        for index, device in enumerate(devices)
    ]
    named += [
        (f"the memory of guest {guest.uuid}", memory.cell) for guest in host.guests for memory in guest.memory
    ]
    for where, cell_id in named:
        if cell_id is not None and cell_id not in cell_ids:
            raise DriverDataError(f"{source}: {where}: there is no cell {cell_id}")
    return host


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


def _refuse_repeated(values: Sequence[object], source: str, what: str) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise DriverDataError(f"{source}: {what} {value} is there twice")
        seen.add(value)
