"""The host that the fake driver pretends to run on. Frozen values; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agent.driver import Cell, Guest, MoveInstruction
from agent.words import counted
from drivers.fake.devices import Device, DividedGpu, Gpu, Nic
from drivers.fake.schema import (
    AMOUNT,
    CELL,
    FLAG,
    GUEST,
    MOVE,
    SECONDS,
    TEXT,
    TRAITS,
    dataclass_schema,
    file_key,
    list_of,
)


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
