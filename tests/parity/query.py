"""What a flavor and an image ask of Placement, in one form for nova and for Plimsoll."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """A request group: {class: amount}, and the names of traits."""

    resources: Mapping[str, int] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Query:
    """The groups by suffix, and what is asked of the root."""

    groups: Mapping[str, Group]
    root_required: frozenset[str] = frozenset()
    root_forbidden: frozenset[str] = frozenset()
    group_policy: str | None = None


@dataclass(frozen=True)
class Cells:
    """A guest's cells (shared CPUs, dedicated CPUs, MiB each), page size (KiB or a word), and policies."""

    cells: tuple[tuple[frozenset[int], frozenset[int], int], ...]
    page_size: int | str | None = None
    thread_policy: str | None = None
    isolates_emulator: bool = False


@dataclass(frozen=True)
class Demand:
    """A flavor and an image, as an operator gives them; `image` None: no image is known."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    specs: Mapping[str, str]
    image: Mapping[str, str] | None = None
