"""Read from sysfs which NUMA cells the CPUs are on: libvirt's capabilities leave out CPUs that are offline.

Source: the kernel's Documentation/ABI/stable/sysfs-devices-node; `cpuN/nodeM` stays while the CPU is offline.
"""

import re
from collections.abc import Iterable
from pathlib import Path

_NODE = re.compile(r"node(\d{1,5})")


def read_cells(sysfs: Path, cpus: Iterable[int]) -> dict[int, int | None]:
    """{CPU: its cell}; None: sysfs does not tell, as on a kernel without NUMA."""
    return {cpu: _cell(sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}") for cpu in cpus}


def _cell(folder: Path) -> int | None:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return None
    return next((int(match[1]) for name in names if (match := _NODE.fullmatch(name))), None)
