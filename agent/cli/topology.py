"""A guest's NUMA cells as a table: which host cell each is on, and its CPUs and memory there. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

HEADINGS = ("GUEST CELL", "HOST CELL", "PINNED CPUS", "SHARED CPUS", "WITHHELD", "MEMORY_MB", "PAGE_KIB")


def cell_rows(cells: Sequence[Json]) -> Iterator[tuple[object, ...]]:
    """A row for each; pinned as guest CPU->host CPU."""
    for cell in cells:
        pinned = ",".join(f"{cpu}->{pin}" for cpu, pin in cell["pinned_cpus"].items())
        yield (
            cell["cell"],
            cell["host_cell"],
            pinned or "-",
            ",".join(map(str, cell["shared_cpus"])) or "-",
            ",".join(map(str, cell["withheld_cpus"])) or "-",
            cell["memory_mb"],
            cell["page_kib"],
        )
