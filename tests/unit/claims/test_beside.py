"""What guests have beside their devices, from the claims that have both."""

from __future__ import annotations

from uuid import UUID

from agent.claims.beside import beside_devices
from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup

CONSUMER = str(UUID(int=1))


def claim(*cells: PlacedCell, **resources: int) -> Claim:
    request = ClaimRequest(CONSUMER, (RequestGroup(resources=resources),))
    return Claim(CONSUMER, ClaimState.CLAIMED, request, {}, cells=cells)


def cell(page_kib: int) -> PlacedCell:
    return PlacedCell(0, 0, {}, frozenset(), page_kib, 4096)


def test_the_cpus_and_the_memory_are_shared_out_to_the_devices() -> None:
    found = beside_devices(claim(PCPU=8, MEMORY_MB=4096, VGPU=2, VF=1, DISK_GB=10))
    assert found == {"VGPU": {"PCPU": 4, "MEMORY_MB": 2048}, "VF": {"PCPU": 8, "MEMORY_MB": 4096}}


def test_a_guest_of_two_cells_has_half_of_them_beside_its_device() -> None:
    assert beside_devices(claim(cell(4), cell(4), PCPU=8, VGPU=1)) == {"VGPU": {"PCPU": 4}}


def test_memory_in_large_pages_counts_as_pages() -> None:
    found = beside_devices(claim(cell(2048), PCPU=2, MEMORY_MB=4096, VGPU=1))
    assert found == {"VGPU": {"PCPU": 2, "CUSTOM_HUGEPAGES_2048KIB": 2048}}


def test_guests_without_devices_or_without_cpus_say_nothing() -> None:
    assert beside_devices(claim(PCPU=2, MEMORY_MB=4096)) == {}
    assert beside_devices(claim(VGPU=1)) == {}
