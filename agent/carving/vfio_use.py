"""Which process has a PCI function open over VFIO.

libvirt leaves a function bound to VFIO's driver when its guest ends, so the driver alone says nothing. While
a process has the function open, the driver keeps it enabled; `enable` in sysfs is how often, and any user may
read it. Which process that is stands below /proc, as far as this process may see others.
Source: https://docs.kernel.org/driver-api/vfio.html and
https://www.kernel.org/doc/Documentation/filesystems/sysfs-pci.rst
"""

from collections.abc import Iterator
from pathlib import Path

from agent.carving.sysfs import entries_of, read_link, read_number


def vfio_uses(device: Path, driver: str, proc: Path) -> Iterator[str]:
    """Clauses on who has the function open; `device` is its folder in sysfs, `driver` one of VFIO's.

    There is one as well where the kernel does not tell.
    """
    processes = tuple(_processes(set(_nodes(device)), proc))
    yield from (f"{process} has it open" for process in processes)
    enabled = read_number(device / "enable")
    if enabled is None:
        yield f"its driver {driver} may give it to a guest"
    elif enabled and not processes:
        yield f"a guest or another program has it open over {driver}"


def _nodes(device: Path) -> Iterator[str]:
    """The files below /dev over which the function can be opened: its group's, and its own."""
    group = read_link(device / "iommu_group")
    if group:
        yield f"/dev/vfio/{group}"
    yield from (f"/dev/vfio/devices/{entry.name}" for entry in entries_of(device / "vfio-dev"))


def _processes(nodes: set[str], proc: Path) -> Iterator[str]:
    """The processes that have one of these files open, as a sentence names them."""
    for process in proc.glob("[0-9]*"):
        try:
            is_open = any(str(link.readlink()) in nodes for link in (process / "fd").iterdir())
            name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if is_open:
            yield f"process {process.name} ({''.join(each for each in name if each.isprintable())})"
