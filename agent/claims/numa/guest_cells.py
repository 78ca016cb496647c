"""From what a claim asks for to the guest's NUMA cells. Pure.

As in nova, a guest has cells if it asks for any (`hw:numa_nodes`), and one implicit cell if it asks for
pinned CPUs (`hw:cpu_policy`) or for a page size (`hw:mem_page_size`). Any other guest floats over the host.
"""

from collections.abc import Sequence

from agent.claims.numa.cell_fit import GuestCell, ThreadPolicy
from agent.claims.request import ClaimRequest, TopologyRequest
from agent.errors import UsageError


def wants_cells(topology: TopologyRequest) -> bool:
    """Whether such a guest is fitted onto cells."""
    return bool(topology.cells or topology.cpu_policy != "shared" or topology.mem_page_size is not None)


def guest_cells(request: ClaimRequest) -> tuple[GuestCell, ...]:
    """The cells; their CPUs and memory are what the unsuffixed group asks for of VCPU, PCPU and MEMORY_MB.

    Raises UsageError where the two do not agree.
    """
    topology = request.topology
    asked = _unsuffixed(request)
    vcpus, memory_mb = asked["VCPU"] + asked["PCPU"], asked["MEMORY_MB"]
    count = topology.cells or 1
    if vcpus < count:
        raise UsageError(f"topology: {count} cells are asked for and {vcpus} CPUs: each cell needs one.")
    pinned = _pinned(topology, asked)
    cpus = topology.cell_cpus or _evenly(vcpus, count)
    memory = topology.cell_memory_mb or _shares(memory_mb, count)
    if len(cpus) != count or len(memory) != count:
        raise UsageError(
            f"topology: {count} cells are asked for, with CPUs for {len(cpus)} and memory for {len(memory)}."
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
        GuestCell(number, floating=cpus[number] - pinned, pinned=cpus[number] & pinned, memory_mb=each)
        for number, each in enumerate(memory)
    )


def thread_policy(topology: TopologyRequest) -> ThreadPolicy:
    return ThreadPolicy(topology.cpu_thread_policy or ThreadPolicy.PREFER)


def page_sizes(topology: TopologyRequest, sizes_kib: Sequence[int]) -> tuple[int, ...] | None:
    """The acceptable page sizes in KiB, the best first, None where the guest does not care.

    `sizes_kib` are those of the host, the largest first; the last is the small one.
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
    """The guest's CPUs that are pinned. Raises UsageError where the amounts say another policy."""
    vcpus, pcpus = asked["VCPU"], asked["PCPU"]
    if not vcpus:
        return frozenset(range(pcpus))  # PCPU alone says dedicated, too
    if not pcpus and topology.cpu_policy == "shared":
        return frozenset()
    if topology.cpu_policy == "mixed" and len(topology.dedicated_cpus) == pcpus:
        return topology.dedicated_cpus
    raise UsageError(
        f"topology: {vcpus} VCPU and {pcpus} PCPU are asked for, and the CPU policy {topology.cpu_policy} "
        f"says that {len(topology.dedicated_cpus) if topology.cpu_policy == 'mixed' else 'all or none'} of "
        "the CPUs are pinned: say mixed, and which ones."
    )


def _evenly(vcpus: int, count: int) -> tuple[frozenset[int], ...]:
    """Consecutive CPUs; the first cells have one more where they do not divide."""
    first, found = 0, []
    for share in _shares(vcpus, count):
        found.append(frozenset(range(first, first + share)))
        first += share
    return tuple(found)


def _shares(amount: int, parts: int) -> tuple[int, ...]:
    each, rest = divmod(amount, parts)
    return tuple(each + (1 if part < rest else 0) for part in range(parts))
