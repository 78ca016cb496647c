"""Memory of guests that is in files ([libvirt] file_backed_memory), as in nova. Pure.

The amount is the operator's. The host's own memory is a cache of the files, so the cells have equal shares,
and no large pages are for guests. Source: nova 34, nova/conf/libvirt.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.driver import Cell, HostSettings
from agent.errors import SettingsError
from drivers.host.inventory import shares

MEMORY_FILES = "COMPUTE_MEM_BACKING_FILE"
OPTION = "[libvirt] file_backed_memory"
KIB_PER_MIB = 1024
SMALL_KIB = 4


def check_file_backed_memory(memory_mb: int, settings: HostSettings) -> None:
    """Raises SettingsError where other settings contradict it, as nova's documentation says."""
    if not memory_mb:
        return
    for name, wrong, right in (
        ("ram_allocation_ratio", settings.ram_allocation_ratio not in (None, 1.0), "1.0"),
        ("initial_ram_allocation_ratio", settings.initial_ram_allocation_ratio != 1.0, "1.0"),
        ("reserved_host_memory_mb", settings.reserved_host_memory_mb != 0, "0"),
        ("reserved_huge_pages", bool(settings.reserved_huge_pages), "unset"),
    ):
        if wrong:
            raise SettingsError(
                f"{OPTION} = {memory_mb} needs [DEFAULT] {name} = {right}: the memory of guests is in files, "
                "and the host's own memory is only their cache",
                option="file_backed_memory",
                group="libvirt",
            )


def with_file_backed_memory(cells: Sequence[Cell], memory_mb: int) -> tuple[Cell, ...]:
    """The cells with an equal share each of `memory_mb` and without large pages; 0: as they are."""
    if not memory_mb or not cells:
        return tuple(cells)
    small = min((size for cell in cells for size in cell.pages), default=SMALL_KIB)
    parts = shares(memory_mb, len(cells))
    return tuple(
        replace(cell, memory_mb=part, pages={small: part * KIB_PER_MIB // small})
        for cell, part in zip(cells, parts, strict=True)
    )
