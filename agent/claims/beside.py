"""What a guest has beside its devices: CPUs and memory that a device is of no use without. Pure."""

from collections.abc import Mapping

from agent.claims.claim import Claim
from agent.claims.guest_cells import KIB_PER_MIB, SMALL_PAGE_KIB
from agent.claims.host_cells import CELL_CLASSES
from agent.device_names import is_page_class, page_class

_NO_DEVICES = frozenset({*CELL_CLASSES, "DISK_GB"})


def beside_devices(claim: Claim) -> dict[str, Mapping[str, float]]:
    """{class of a device: {class of CPUs or memory: amount beside one}}, on one of the guest's cells.

    Nothing for a guest without dedicated or shared CPUs. Large pages count as their class.
    """
    resources = claim.request.resources
    if not resources.keys() & {"PCPU", "VCPU"}:
        return {}
    cells = max(1, len(claim.cells))
    amounts = {name: resources[name] / cells for name in CELL_CLASSES if resources.get(name)}
    page_kib = claim.cells[0].page_kib if claim.cells else SMALL_PAGE_KIB
    if page_kib >= KIB_PER_MIB and "MEMORY_MB" in amounts:
        amounts[page_class(page_kib)] = amounts.pop("MEMORY_MB") * KIB_PER_MIB / page_kib
    return {
        name: {each: amount / number for each, amount in amounts.items()}
        for name, number in resources.items()
        if name not in _NO_DEVICES and not is_page_class(name)
    }
