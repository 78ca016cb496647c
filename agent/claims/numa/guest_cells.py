"""Derive a guest's NUMA cells from its claim request. Pure.

As in nova, a guest has the cells that it asks for (`hw:numa_nodes`), or one implicit cell if it asks for
pinned CPUs (`hw:cpu_policy`) or a page size (`hw:mem_page_size`). Any other guest floats over the host's
shared CPUs.

Source: https://docs.openstack.org/nova/latest/admin/cpu-topologies.html
"""

from collections.abc import Sequence

from agent.claims.numa.cell_fit import GuestCell, ThreadPolicy
from agent.claims.request import ClaimRequest, TopologyRequest
from agent.errors import UsageError, counted


def wants_cells(topology: TopologyRequest) -> bool:
    """Whether a guest with this topology has NUMA cells."""
    asks_for_cpus = topology.cpu_policy != "shared" or topology.isolate_emulator
    return bool(topology.cells or asks_for_cpus or topology.mem_page_size is not None)


def guest_cells(request: ClaimRequest) -> tuple[GuestCell, ...]:
    """The guest's cells, with the VCPU, PCPU and MEMORY_MB (MiB) of the request's unsuffixed group.

    Raises UsageError where the topology and these amounts do not agree.
    """
    topology = request.topology
    asked = _unsuffixed(request)
    emulator = int(topology.isolate_emulator)
    if emulator and asked["PCPU"] < 2:
        raise UsageError("topology: isolate_emulator needs a PCPU for it and one for the guest.")
    asked["PCPU"] -= emulator
    vcpus, memory_mb = asked["VCPU"] + asked["PCPU"], asked["MEMORY_MB"]
    count = topology.cells or 1
    if vcpus < count:
        raise UsageError(
            f"topology: {counted(count, 'cell is', 'cells are')} asked for and {counted(vcpus, 'CPU')}: "
            "each cell needs one."
        )
    pinned = _pinned(topology, asked)
    cpus = topology.cell_cpus or _evenly(vcpus, count)
    memory = topology.cell_memory_mb or _shares(memory_mb, count)
    if len(cpus) != count or len(memory) != count:
        raise UsageError(
            f"topology: {counted(count, 'cell is', 'cells are')} asked for, with CPUs for {len(cpus)} and "
            f"memory for {len(memory)}."
        )
    if sorted(cpu for cell in cpus for cpu in cell) != list(range(vcpus)):
        raise UsageError(
            f"topology: the cells' CPUs must be the guest's {vcpus}, 0-{vcpus - 1}, each of them once."
        )
    if sum(memory) != memory_mb:
        raise UsageError(
            f"topology: the cells have {sum(memory)} MiB together, and {memory_mb} MEMORY_MB are asked for."
        )
    return tuple(
        GuestCell(
            number,
            floating=cpus[number] - pinned,
            pinned=cpus[number] & pinned,
            memory_mb=cell_memory_mb,
            emulator=0 if number else emulator,
        )
        for number, cell_memory_mb in enumerate(memory)
    )


def thread_policy(topology: TopologyRequest) -> ThreadPolicy:
    """The guest's thread policy; PREFER if it has none."""
    return ThreadPolicy(topology.cpu_thread_policy or ThreadPolicy.PREFER)


def page_sizes(topology: TopologyRequest, sizes_kib: Sequence[int]) -> tuple[int, ...] | None:
    """The acceptable page sizes in KiB, the best first; None where the guest accepts any.

    `sizes_kib` are the host's page sizes, the largest first; the last is the base page.
    """
    wanted = topology.mem_page_size
    if wanted is None:
        return None
    if isinstance(wanted, int):
        return (wanted,)
    larger, small = tuple(sizes_kib[:-1]), tuple(sizes_kib[-1:])
    return {"small": small, "large": larger}.get(wanted, (*larger, *small))


def _unsuffixed(request: ClaimRequest) -> dict[str, int]:
    asked = {"VCPU": 0, "PCPU": 0, "MEMORY_MB": 0}
    for group in request.groups:
        if not group.suffix:
            asked |= {name: amount for name, amount in group.resources.items() if name in asked}
    return asked


def _pinned(topology: TopologyRequest, asked: dict[str, int]) -> frozenset[int]:
    """The guest's pinned CPUs. Raises UsageError where the amounts contradict the CPU policy."""
    vcpus, pcpus = asked["VCPU"], asked["PCPU"]
    if not vcpus:
        return frozenset(range(pcpus))  # PCPU alone implies dedicated
    if not pcpus and topology.cpu_policy == "shared":
        return frozenset()
    if topology.cpu_policy == "mixed" and len(topology.dedicated_cpus) == pcpus:
        return topology.dedicated_cpus
    raise UsageError(
        f"topology: {vcpus} VCPU and {pcpus} PCPU are asked for, but the CPU policy {topology.cpu_policy} "
        f"pins {len(topology.dedicated_cpus) if topology.cpu_policy == 'mixed' else 'all or none'} of "
        "the CPUs: use the policy mixed, with as many dedicated_cpus as PCPU."
    )


def _evenly(vcpus: int, count: int) -> tuple[frozenset[int], ...]:
    """Consecutive CPUs for each cell; if they do not divide evenly, the first cells have one more."""
    first, cells = 0, []
    for share in _shares(vcpus, count):
        cells.append(frozenset(range(first, first + share)))
        first += share
    return tuple(cells)


def _shares(amount: int, parts: int) -> tuple[int, ...]:
    share, rest = divmod(amount, parts)
    return tuple(share + (1 if part < rest else 0) for part in range(parts))
