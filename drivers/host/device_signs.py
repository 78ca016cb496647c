"""Read from sysfs what the kernel shows of the health of devices and memory. No file here needs privileges.

A device that has suspended itself is not asked: to read its configuration space would wake it.
Source: https://docs.kernel.org/PCI/sysfs-pci.html,
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats,
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci (power_state, driver_override),
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net (carrier),
https://docs.kernel.org/gpu/amdgpu/ras.html and
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-node (memory_failure)
"""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from agent.device_names import address_of
from agent.driver import DescribedProvider, DeviceSigns
from drivers.host.pci_sysfs import has_vfio, is_address
from drivers.host.sysfs_files import entries, link_name, read_bytes, read_number, read_text

CHECKS = ("answer", "driver", "link", "errors", "memory", "power")
"""What can be read of a device's health; the names are those of [devices] health_checks."""

HEADER_BYTES = 64
"""So much of the configuration space every user may read."""

_TOTAL = re.compile(r"^TOTAL_ERR_[A-Z]+ ([0-9]{1,19})$", re.ASCII | re.MULTILINE)
_UNCORRECTED = re.compile(r"^ue: ([0-9]{1,19})$", re.ASCII | re.MULTILINE)
PAGES, CELL = "pages", "numa:"
_NO_DRIVER = "(null)"


def device_addresses(providers: Iterable[DescribedProvider]) -> tuple[str, ...]:
    """The addresses of all PCI devices behind these providers, and of all functions among their units.

    For the NUMA cells with large pages that is "numa:" and the id of the cell.
    """
    return tuple(sorted({address for provider in providers for address in _addresses(provider)}))


def _addresses(provider: DescribedProvider) -> Iterator[str]:
    kind, _, rest = provider.device.partition(":")
    if kind == PAGES:
        yield f"{CELL}{rest.partition(':')[0]}"
    yield from filter(is_address, [rest])
    for units in provider.units.values():
        yield from filter(is_address, map(address_of, units))


def read_signs(
    sys: Path, addresses: Iterable[str], checks: Collection[str] = CHECKS
) -> tuple[DeviceSigns, ...]:
    """The signs of the devices below `sys`/bus/pci/devices that these `checks` of CHECKS read."""
    devices, nodes = sys / "bus" / "pci" / "devices", sys / "devices" / "system" / "node"
    return tuple(
        _memory_signs(nodes / f"node{address.removeprefix(CELL)}", address, checks)
        if address.startswith(CELL)
        else _signs(devices / address, address, checks)
        for address in addresses
    )


def _memory_signs(node: Path, address: str, checks: Collection[str]) -> DeviceSigns:
    """Only pages that the kernel could not take out of use count: a guest may still be given those."""
    counts = [read_number(node / "memory_failure" / name) for name in ("total", "recovered")]
    total, recovered = counts if "memory" in checks else (None, None)
    errors = None if total is None or recovered is None else max(0, total - recovered)
    return DeviceSigns(address, memory_errors=errors)


def _signs(device: Path, address: str, checks: Collection[str]) -> DeviceSigns:
    if not device.is_dir():
        return DeviceSigns(address, answers=False if "answer" in checks else None)
    only = read_text(device / "driver_override") or ""
    return DeviceSigns(
        address,
        answers=_answers(device) if "answer" in checks else None,
        driver=(link_name(device / "driver") or "") if "driver" in checks else None,
        vfio=has_vfio(device),
        only_driver="" if only == _NO_DRIVER else only,
        has_link=_has_link(device) if "link" in checks else None,
        fatal_errors=_count(device / "aer_dev_fatal", _TOTAL) if "errors" in checks else None,
        nonfatal_errors=_count(device / "aer_dev_nonfatal", _TOTAL) if "errors" in checks else None,
        memory_errors=_count(device / "ras" / "umc_err_count", _UNCORRECTED) if "memory" in checks else None,
        has_power=_has_power(device) if "power" in checks else None,
    )


def _answers(device: Path) -> bool | None:
    """Whether any byte of the header is not 0xff. The ids of a virtual function always read as ones."""
    if (read_text(device / "power" / "runtime_status") or "").startswith("suspend"):
        return None
    header = read_bytes(device / "config", HEADER_BYTES)
    return any(byte != 0xFF for byte in header) if header else None


def _has_link(device: Path) -> bool | None:
    """Only a card with virtual functions needs its own interface up, and a link, for them to work.

    The kernel does not tell the carrier of an interface that is down.
    """
    interfaces = entries(device / "net") if any(device.glob("virtfn*")) else []
    return any(read_text(each / "carrier") == "1" for each in interfaces) if interfaces else None


def _has_power(device: Path) -> bool | None:
    states = (read_text(device / "power_state"), read_text(device / "power" / "runtime_status"))
    return "error" not in states if any(states) else None


def _count(file: Path, pattern: re.Pattern[str]) -> int | None:
    found = pattern.search(read_text(file) or "")
    return int(found[1]) if found else None
