"""A described host: what the fake driver pretends to run on. Frozen values; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.driver import Cell, Guest, MoveInstruction


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics card at `address`, offering `total` of `resource_class` (VGPU, PGPU or a CUSTOM_ class).

    `units` are its exact units where they exist (for VGPU the uuids of the mediated devices made so far).
    `types` {class: how many} are ways to divide it, instead of all that: those of one number share the card,
    others exclude each other.
    """

    address: str
    resource_class: str = "VGPU"
    total: int = 1
    units: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    numa: int | None = None
    types: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card's physical function; `vfs` are its virtual functions' addresses, bandwidth in kbit/s.

    `whole` is its class where it may be given away whole as well.
    """

    ifname: str
    address: str
    vfs: tuple[str, ...] = ()
    physical_network: str | None = None
    egress_kbps: int = 0
    ingress_kbps: int = 0
    traits: frozenset[str] = frozenset()
    numa: int | None = None
    whole: str | None = None


@dataclass(frozen=True, slots=True)
class FakeHost:
    """A host. `report_numa` puts CPUs, memory and devices under one provider a cell.

    `flat_devices` counts the cards' inventory on the root, as hosts did before they were nested.
    `unavailable` is what every call fails with while it is set, `delay_s` how long every call takes.
    """

    cells: tuple[Cell, ...]
    disk_gb: int = 0
    traits: frozenset[str] = frozenset()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    guests: tuple[Guest, ...] = ()
    moves: tuple[MoveInstruction, ...] = ()
    report_numa: bool = False
    flat_devices: bool = False
    unavailable: str | None = None
    delay_s: float = 0.0


def cell(
    cell_id: int,
    cpus: frozenset[int],
    memory_mb: int,
    threads: int = 1,
    pages: Mapping[int, int] | None = None,
) -> Cell:
    """A cell whose cores have `threads` hardware threads each, numbered as Linux does on x86.

    The ids in order are split into `threads` equal runs; the n-th of each run make a core. Raises ValueError
    where they do not divide evenly.
    """
    ids = sorted(cpus)
    cores, rest = divmod(len(ids), threads)
    if rest:
        raise ValueError(f"{len(ids)} CPUs cannot be cores of {threads} threads")
    siblings = tuple(frozenset(ids[core::cores]) for core in range(cores))
    return Cell(cell_id, cpus, memory_mb, siblings, dict(pages or {}))
