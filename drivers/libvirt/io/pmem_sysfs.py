"""Read the namespaces of persistent memory from sysfs, as `ndctl list -X` shows them.

Source: https://docs.kernel.org/driver-api/nvdimm/nvdimm.html and the kernel's drivers/nvdimm: a namespace's
`alt_name` is its name, its `holder` the device that has it; in mode devdax that is a dax device, below which
is the character device of the same kind.
"""

from pathlib import Path

from drivers.libvirt.describe.pmem import PmemNamespace

SIZE_MAX = 4096


def read_namespaces(sysfs: Path) -> tuple[PmemNamespace, ...]:
    """The namespaces in mode devdax that have a name, by name. One that cannot be read is left out."""
    devices = sysfs / "bus" / "nd" / "devices"
    try:
        folders = sorted(path for path in devices.iterdir() if path.name.startswith("namespace"))
    except OSError:
        return ()
    found = (_read(devices, folder) for folder in folders)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def _read(devices: Path, folder: Path) -> PmemNamespace | None:
    name, holder = _text(folder / "alt_name"), _text(folder / "holder")
    if not name or not holder.startswith("dax") or "/" in holder:
        return None
    dax = devices / holder
    size, align = _text(dax / "size"), _text(dax / "align")
    device = next((entry.name for entry in _dax_devices(dax)), "")
    if not device or not size.isdecimal() or not align.isdecimal():
        return None
    return PmemNamespace(name, f"/dev/{device}", int(size), int(align))


def _dax_devices(dax: Path) -> list[Path]:
    """The character devices of a region; older kernels have them in a folder `dax`."""
    entries = [*dax.glob("dax[0-9]*.[0-9]*"), *dax.glob("dax/dax[0-9]*.[0-9]*")]
    return sorted(entry for entry in entries if entry.is_dir())


def _text(path: Path) -> str:
    """The file's text; empty where it is missing or cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(SIZE_MAX).strip()
    except OSError:
        return ""
