"""What a claim gave to its guest, in the terms of the driver that writes the guest's domain. Pure."""

from collections.abc import Iterator

from agent.claims.claim import Claim
from agent.claims.host_cells import HostCells
from agent.driver import GivenCell, GivenDevice, GivenResources
from agent.tree import ProviderTree

CPU_CLASSES = ("VCPU", "PCPU")


def given_resources(claim: Claim, tree: ProviderTree, cells: HostCells) -> GivenResources:
    """All that the claim gave; `tree` are the providers of this host, `cells` its NUMA cells."""
    amounts = claim.request.resources
    given_cells = tuple(_given_cells(claim, cells))
    vcpus = sum(len(cell.cpus) for cell in given_cells) or sum(amounts.get(name, 0) for name in CPU_CLASSES)
    return GivenResources(
        claim.consumer,
        claim.request.name,
        vcpus,
        amounts.get("MEMORY_MB", 0),
        tuple(_given_devices(claim, tree, cells)),
        given_cells,
        {} if given_cells else dict(enumerate(_dedicated_cpus(claim))),
    )


def _given_devices(claim: Claim, tree: ProviderTree, cells: HostCells) -> Iterator[GivenDevice]:
    labelled = [(mapping.label, mapping.units) for mapping in claim.mappings(tree)] or [("", claim.units)]
    for label, units in labelled:
        for uuid, classes in units.items():
            for name, exact in classes.items():
                if name not in CPU_CLASSES:
                    cell = cells.cell_of(uuid, tree)
                    yield from (GivenDevice(label, name, unit, cell) for unit in exact)


def _given_cells(claim: Claim, cells: HostCells) -> Iterator[GivenCell]:
    shared = {cell.id: cell.shared for cell in cells.cells}
    for placed in claim.cells:
        yield GivenCell(
            placed.guest_cell,
            placed.host_cell,
            placed.memory_mb,
            placed.pinning,
            placed.floating,
            shared.get(placed.host_cell, frozenset()),
            None if placed.page_kib == cells.small_page_kib else placed.page_kib,
            placed.emulator,
        )


def _dedicated_cpus(claim: Claim) -> list[int]:
    """The host CPUs for this guest alone, of a claim without cells."""
    units = (unit for classes in claim.units.values() for unit in classes.get("PCPU", ()))
    return sorted(int(unit) for unit in units if unit.isdecimal())
