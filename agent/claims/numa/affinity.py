"""Which device a guest may have, once it is known which of the host's NUMA cells the guest is on. Pure.

This is the seam between the fitting of cells (agent.claims.numa.fit) and what a group of devices wants of
them. `fit` asks it for each group that is not the guest's CPUs and memory, and for each provider that could
serve the group; the host cell that a provider is on comes from `HostCells.cell_of`:
its own `DescribedProvider.cell`, or that of the nearest provider above it. Among the ways to place the
guest, those where every group ranks 0 are tried first, in the order of placing; then all others.
"""

from collections.abc import Callable, Collection, Mapping

from agent.claims.request import RequestGroup

Affinity = Callable[[RequestGroup, int | None, Collection[int]], int | str]
"""(group, the host cell that a provider is on or None, the host cells of the guest) -> how good it is.

0 is as good as it gets, a larger number is taken only if nothing better fits; a text bars the provider, and
is the clause that says why: "is on NUMA cell 1, the guest would be on 0".
"""


def nova_affinity(sockets: Mapping[int, int]) -> Affinity:
    """nova's NUMA policies, as each group asks for one; `sockets` {cell id: CPU socket} where it is known.

    A group that asks for none gets the nearest.
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
                if sockets[cell] in {sockets.get(each) for each in guest}:
                    return 1
        told = "has no NUMA affinity" if cell is None else f"is on NUMA cell {cell}"
        where = ", ".join(map(str, sorted(guest)))
        return f"{told}, the guest would be on {where} (policy {group.numa_policy})"

    return affinity
