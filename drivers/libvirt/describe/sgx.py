"""Memory for SGX enclaves (EPC) as providers, one for each NUMA cell that has some. Pure.

nova has nothing of the kind; its traits tell only that the processor has SGX. Source:
https://libvirt.org/formatdomaincaps.html#sgx-capabilities and
https://libvirt.org/formatdomain.html#memory-devices
"""

from collections.abc import Iterator
from dataclasses import replace

from agent.driver import DescribedInventory, DescribedProvider, Guest
from drivers.host.domain_xml import Domain
from drivers.host.providers import cell_provider_name
from drivers.libvirt.xml import DomainCapabilities

EPC_CLASS = "CUSTOM_SGX_EPC_MB"
BYTES_PER_MIB = 2**20


def epc_providers(
    name: str, guests: DomainCapabilities | None, *, report_numa: bool = False
) -> Iterator[DescribedProvider]:
    """A provider for each cell with such memory, in MiB, below the cell or the host."""
    for cell, size in sorted(guests.epc.items()) if guests is not None else ():
        below = cell_provider_name(name, cell)
        if size >= BYTES_PER_MIB:
            yield DescribedProvider(
                name=f"{below}_sgx_epc",
                parent=below if report_numa else name,
                inventories={
                    EPC_CLASS: DescribedInventory(total=size // BYTES_PER_MIB, allocation_ratio=1.0)
                },
                device=f"sgx:{cell}",
                cell=cell,
            )


def with_epc(guest: Guest, domain: Domain | None) -> Guest:
    """The guest with the memory for enclaves that its domain has."""
    if domain is None or not domain.epc_mb:
        return guest
    return replace(guest, resources={**guest.resources, EPC_CLASS: domain.epc_mb})
