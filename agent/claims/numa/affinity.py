"""NUMA affinity: which devices suit a guest that is on given host cells. Pure.

agent.claims.numa.fit calls an `Affinity` for each group other than the guest's CPUs and memory, and for each
provider that could serve the group. `HostCells.cell_of` has the host cell of a provider: its own
`DescribedProvider.cell`, or that of the nearest provider above it. The placements of the guest in which each
group has rank 0 are tried first, in the order of placing, then all others.

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (numa_policy).
"""

from collections.abc import Callable, Collection, Mapping

from agent.claims.request import RequestGroup

Affinity = Callable[[RequestGroup, int | None, Collection[int]], int | str]
"""(group, host cell of the provider or None, host cells of the guest) -> rank of the provider, or why not.

Rank 0 is the best; a larger rank is used only if nothing better fits. A text excludes the provider and is the
clause that says why: "is on NUMA cell 1, the guest would be on 0".
"""


def nova_affinity(sockets: Mapping[int, int]) -> Affinity:
    """The affinity under nova's NUMA policies; `sockets` is {cell id: CPU socket} where it is known.

    A group without a policy gets the nearest device.
    """

    def affinity(group: RequestGroup, cell: int | None, guest: Collection[int]) -> int | str:
        if cell is not None and cell in guest:
            return 0
        match group.numa_policy:
            case None:
                return 0 if cell is None else 1
            case "preferred":
                return 1 if cell is None else 2
            case "legacy" if cell is None:
                return 1
            case "socket" if cell is not None and cell in sockets:
                if sockets[cell] in {sockets.get(cell_id) for cell_id in guest}:
                    return 1
        position = "has no NUMA affinity" if cell is None else f"is on NUMA cell {cell}"
        where = ", ".join(map(str, sorted(guest)))
        return f"{position}, the guest would be on {where} (policy {group.numa_policy})"

    return affinity
