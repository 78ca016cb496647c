"""A guest's NUMA cells: which it asks for, and which host cells, pinned CPUs and page sizes they get. Pure.

As in nova, a guest has the cells that it asks for (`hw:numa_nodes`), or one implicit cell if it asks for
pinned CPUs or large pages. Each guest cell gets its own host cell. What a host cell can give does not
depend on the other cells, so the fit of each pair is computed once, and a small bipartite matching remains.

Source: the flavor extra specs `hw:numa_*`, `hw:cpu_policy`, `hw:cpu_thread_policy` and `hw:mem_page_size`
as documented for nova, https://docs.openstack.org/nova/latest/admin/cpu-topologies.html.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, combinations, islice
from typing import Annotated

from agent.claims.choice import NO_COST, CellCost, Strategy
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.codec import Key, whole
from agent.device_names import page_class
from agent.errors import UsageError, counted
from agent.shapes import shares

KIB_PER_MIB = 1024
SMALL_PAGE_KIB = 4
PLACEMENTS_MAX = 128


class ThreadPolicy(StrEnum):
    """hw:cpu_thread_policy.

    PREFER puts CPUs on sibling threads where possible, REQUIRE only on siblings, and ISOLATE each CPU on its
    own core.
    """

    PREFER = "prefer"
    ISOLATE = "isolate"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class FreeCell:
    """What a host cell can still give.

    `cores` are the cell's cores, each with the ids of all threads that guests may run on. `free_cpus` are the
    free CPUs for dedicated use; those in `favoured` are chosen first, and `emulator` is the only one for the
    emulator's threads (None: any). `shared_cpus` is the number of CPUs
    that floating guest CPUs share, and `floating` how many floating CPUs may still be placed on them (None:
    no limit but `shared_cpus` for each guest). `memory_mb` is the free memory in small pages (MiB), `pages`
    is {size in KiB: free count}. `loose_mb` is the free memory (MiB) for a guest that asks for no page size,
    which may be overcommitted (None: the same as `memory_mb`).
    """

    id: int
    cores: tuple[frozenset[int], ...] = ()
    free_cpus: frozenset[int] = frozenset()
    shared_cpus: int = 0
    memory_mb: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)
    favoured: frozenset[int] = frozenset()
    emulator: int | None = None
    floating: int | None = None
    loose_mb: int | None = None
    small_page_kib: int = SMALL_PAGE_KIB

    @property
    def room(self) -> dict[str, int]:
        """{class: amount} of what it can still give; a class for each size of large pages."""
        return {
            "PCPU": len(self.free_cpus),
            "VCPU": self.shared_cpus if self.floating is None else self.floating,
            "MEMORY_MB": self.memory_mb,
            **{page_class(size): number for size, number in self.pages.items()},
        }


@dataclass(frozen=True, slots=True)
class GuestCell:
    """A guest cell: the ids of its floating and of its pinned virtual CPUs, and its memory in MiB.

    `emulator` is the number of dedicated CPUs for the emulator's threads alone.
    """

    id: int
    floating: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    memory_mb: int = 0
    emulator: int = 0


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """A guest cell on its host cell.

    `pinning` is {guest CPU: host CPU}. `withheld` are host CPUs that no other guest may have: the unused
    siblings of isolated CPUs. `page_kib` is the page size that backs `memory_mb`. `floating` are guest CPUs
    that run on the cell's shared CPUs. `emulator` are host CPUs for the emulator's threads alone.
    """

    guest_cell: Annotated[int, Key("cell")]
    host_cell: int
    pinning: Annotated[Mapping[int, int], Key("pinned_cpus")]
    withheld: Annotated[frozenset[int], Key("withheld_cpus")]
    page_kib: Annotated[int, whole(1)]
    memory_mb: int
    floating: Annotated[frozenset[int], Key("shared_cpus")] = frozenset()
    emulator: Annotated[frozenset[int], Key("emulator_cpus")] = frozenset()

    @property
    def cpus(self) -> frozenset[int]:
        """The host CPUs that only this guest may have."""
        return self.withheld.union(self.pinning.values(), self.emulator)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a guest cell cannot be placed on a host cell: "has 3 free dedicated CPUs, 4 asked".

    `reason` is a clause. `asked` and `free` are amounts of `resource_class`. `host_cell` is -1 where the
    reason concerns no single cell.
    """

    guest_cell: int
    host_cell: int
    reason: str
    resource_class: str = ""
    asked: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class CellPairs:
    """Each guest cell paired with each host cell.

    `options` has, for each guest cell, the pairs that fit, in the order in which they are tried; `bad` has
    the pairs that do not fit.
    """

    guest: Sequence[GuestCell]
    host: Sequence[FreeCell]
    options: Sequence[Sequence[PlacedCell]]
    bad: tuple[Misfit, ...]

    @classmethod
    def of(
        cls,
        guest: Sequence[GuestCell],
        host: Sequence[FreeCell],
        *,
        thread_policy: ThreadPolicy = ThreadPolicy.PREFER,
        page_sizes_kib: Sequence[int] | None = (SMALL_PAGE_KIB,),
        near: frozenset[int] = frozenset(),
        at: Mapping[int, int] | None = None,
        bound: Mapping[int, int] | None = None,
        costs: Mapping[int, CellCost] | None = None,
        strategy: Strategy | None = None,
    ) -> "CellPairs":
        """Compute the fit of each pair.

        `page_sizes_kib` are the acceptable page sizes (KiB), the best first; None: any size. `near` are host
        cells that are tried first: the guest's devices are attached to them. `at` {guest cell: host cell} is
        where the guest already is; it is tried before all others. All other host cells are tried by `costs`
        {host cell: what the guest keeps there from others}, the least first, then as the `strategy` ranks
        what they have left of what the guest asks for, and then by id. `bound`
        {guest cell: host cell} are the guest's cells that must be there.
        """
        rank = _CellRank(guest, page_sizes_kib, costs or {}, strategy or Strategy())
        ranked = sorted(host, key=lambda cell: (cell.id not in near, *rank.of(cell), cell.id))
        options: list[list[PlacedCell]] = []
        misfits: list[Misfit] = []
        alike: dict[tuple[int, ...], PlacedCell | Misfit] = {}  # most guest cells are alike
        for wanted in guest:
            placed = []
            for cell in ranked:
                if bound and bound.get(wanted.id, cell.id) != cell.id:
                    reason = f"is not host cell {bound[wanted.id]}, to which the domain binds it"
                    misfits.append(Misfit(wanted.id, cell.id, reason, "MEMORY_MB", wanted.memory_mb))
                    continue
                cpus = (len(wanted.floating), len(wanted.pinned), wanted.emulator)
                key = (cell.id, *cpus, wanted.memory_mb)
                if key not in alike:
                    alike[key] = _fit_one(wanted, cell, thread_policy, page_sizes_kib)
                fitted = alike[key]
                if isinstance(fitted, Misfit):
                    misfits.append(replace(fitted, guest_cell=wanted.id))
                else:
                    placed.append(_for_alike(wanted, fitted))
            if at:
                placed.sort(key=lambda one: one.host_cell != at.get(one.guest_cell))
            options.append(placed)
        return cls(guest, host, options, tuple(misfits))

    def placements(self) -> Iterator[tuple[PlacedCell, ...]]:
        """At most PLACEMENTS_MAX placements of the guest, the best first, each on another set of cells."""
        first = _match(self.options)
        if first is None:
            return
        yield first
        taken = {cell.host_cell for cell in first}
        ranked = list(
            dict.fromkeys(option.host_cell for cell_options in self.options for option in cell_options)
        )
        subsets = combinations(ranked, len(self.options))
        for subset in islice(subsets, PLACEMENTS_MAX):
            if set(subset) == taken:
                continue
            placement = _match(
                [
                    [option for option in cell_options if option.host_cell in subset]
                    for cell_options in self.options
                ]
            )
            if placement is not None:
                yield placement

    def misfits(self) -> tuple[Misfit, ...]:
        """Why the guest has no placement: the reason for each pair, by guest cell and host cell."""
        bad = sorted(self.bad, key=lambda misfit: (misfit.guest_cell, misfit.host_cell))
        if len(self.guest) > len(self.host):
            wanted = counted(len(self.guest), "cell")
            reason = f"the guest wants {wanted} of their own, the host has {len(self.host)}"
            crowded = self.guest[len(self.host)].id
            return (*bad, Misfit(crowded, -1, reason, "", len(self.guest), len(self.host)))
        taken = tuple(
            Misfit(option.guest_cell, option.host_cell, "has room, and is needed for another guest cell")
            for cell_options in self.options
            for option in cell_options
        )
        return (*bad, *taken)


@dataclass(frozen=True, slots=True)
class _CellRank:
    """Ranks the host cells for a guest; see `CellPairs.of`."""

    guest: Sequence[GuestCell]
    page_sizes_kib: Sequence[int] | None
    costs: Mapping[int, CellCost]
    strategy: Strategy

    def of(self, cell: FreeCell) -> tuple[bool, float, float, float]:
        """(has idle devices, lost ones, rank of the dedicated CPUs if some are asked for, of the memory)

        The dedicated CPUs are ranked by what is left of them beyond what guests with the cell's devices need.
        """
        cost = self.costs.get(cell.id, NO_COST)
        pinned = max(len(wanted.pinned) + wanted.emulator for wanted in self.guest)
        spare = len(cell.free_cpus) - pinned - cost.needed.get("PCPU", 0.0)
        # The free memory in pages that the guest accepts.
        free_mb = cell.memory_mb
        if self.page_sizes_kib is not None:
            free_mb = sum(
                cell.memory_mb
                if size == cell.small_page_kib
                else cell.pages.get(size, 0) * size // KIB_PER_MIB
                for size in self.page_sizes_kib
            )
        return (
            cost.has_idle,
            cost.lost,
            self.strategy.rank("PCPU", spare) if pinned else 0.0,
            self.strategy.rank("MEMORY_MB", free_mb),
        )


def _for_alike(wanted: GuestCell, fitted: PlacedCell) -> PlacedCell:
    """The result for another guest cell of the same size, with the CPU ids of `wanted`."""
    if fitted.guest_cell == wanted.id:
        return fitted
    pinning = dict(zip(sorted(wanted.pinned), fitted.pinning.values(), strict=True))
    return replace(fitted, guest_cell=wanted.id, pinning=pinning, floating=wanted.floating)


def _match(options: Sequence[Sequence[PlacedCell]]) -> tuple[PlacedCell, ...] | None:
    """One option for each guest cell, no host cell twice, the first options preferred (augmenting paths)."""
    taken: dict[int, int] = {}  # host cell -> index of the guest cell that has it
    placed: dict[int, PlacedCell] = {}

    def place(index: int, tried: set[int]) -> bool:
        for option in sorted(
            options[index], key=lambda option: option.host_cell in taken
        ):  # free cells first
            if option.host_cell in tried:
                continue
            tried.add(option.host_cell)
            holder = taken.get(option.host_cell)
            if holder is None or place(holder, tried):
                taken[option.host_cell] = index
                placed[index] = option
                return True
        return False

    if not all(place(index, set()) for index in range(len(options))):
        return None
    return tuple(placed[index] for index in range(len(options)))


def _fit_one(
    wanted: GuestCell, cell: FreeCell, policy: ThreadPolicy, page_sizes_kib: Sequence[int] | None
) -> PlacedCell | Misfit:
    short = _floating_misfit(wanted, cell)
    if short is not None:
        return short
    page_kib = _choose_page_size(wanted.memory_mb, cell, page_sizes_kib)
    if page_kib is None:
        reason, free_mb = _memory_clause(wanted.memory_mb, cell, page_sizes_kib)
        return Misfit(wanted.id, cell.id, reason, "MEMORY_MB", wanted.memory_mb, free_mb)
    emulator: frozenset[int] | None
    if wanted.emulator and cell.emulator is not None:
        left = replace(cell, free_cpus=cell.free_cpus - {cell.emulator})
        pins, emulator = _pins(len(wanted.pinned), left, policy), frozenset({cell.emulator})
        core = next((core for core in cell.cores if core & emulator), emulator)
        if not (core if policy is ThreadPolicy.ISOLATE else emulator) <= cell.free_cpus:
            reason = f"does not have CPU {cell.emulator} free, on which the domain has the emulator's threads"
            return Misfit(wanted.id, cell.id, reason, "PCPU", 1, 0)
    else:
        pins = _pins(len(wanted.pinned), cell, policy)
        emulator = None
        if pins is not None:
            # The CPUs of the emulator's threads are beside the guest's own where these leave a sibling free.
            # They need no siblings themselves, but with isolated CPUs a core of their own.
            left = replace(
                cell, free_cpus=cell.free_cpus.difference(pins), favoured=cell.favoured.difference(pins)
            )
            beside = ThreadPolicy.PREFER if policy is ThreadPolicy.REQUIRE else policy
            chosen = _pins(wanted.emulator, left, beside)
            emulator = None if chosen is None else frozenset(chosen)
    if pins is None or emulator is None:
        asked, free = len(wanted.pinned) + wanted.emulator, len(cell.free_cpus)
        own = ", one of them for the emulator's threads," if wanted.emulator else ""
        reason = f"has {counted(free, 'free dedicated CPU')}, {asked} asked{own} with thread policy {policy}"
        return Misfit(wanted.id, cell.id, reason, "PCPU", asked, free)
    withheld = frozenset[int]()
    if policy is ThreadPolicy.ISOLATE:
        taken = emulator.union(pins)
        withheld = frozenset().union(*(core for core in cell.cores if core & taken)) - taken
    pinning = dict(zip(sorted(wanted.pinned), pins, strict=True))
    return PlacedCell(
        wanted.id, cell.id, pinning, withheld, page_kib, wanted.memory_mb, wanted.floating, emulator
    )


def _floating_misfit(wanted: GuestCell, cell: FreeCell) -> Misfit | None:
    asked = len(wanted.floating)
    if not asked:
        return None
    free = cell.shared_cpus if cell.floating is None else cell.floating
    if not cell.shared_cpus:
        reason = "has no CPUs for shared use"
    elif asked > cell.shared_cpus:
        reason = (
            f"has {counted(cell.shared_cpus, 'shared CPU')}, {asked} asked: a guest is never overcommitted "
            "against itself"
        )
    elif asked > free:
        room = counted(free, "more virtual CPU")
        reason = f"has room for {room} on its {counted(cell.shared_cpus, 'shared one')}, {asked} asked"
    else:
        return None
    return Misfit(wanted.id, cell.id, reason, "VCPU", asked, max(0, min(free, cell.shared_cpus)))


def _choose_page_size(memory_mb: int, cell: FreeCell, sizes_kib: Sequence[int] | None) -> int | None:
    if sizes_kib is None:
        return cell.small_page_kib if memory_mb <= _loose_mb(cell) else None
    for size in sizes_kib:
        if size == cell.small_page_kib:
            if memory_mb <= cell.memory_mb:
                return size
        elif memory_mb * KIB_PER_MIB % size == 0 and memory_mb * KIB_PER_MIB // size <= cell.pages.get(
            size, 0
        ):
            return size
    return None


def _loose_mb(cell: FreeCell) -> int:
    return cell.memory_mb if cell.loose_mb is None else cell.loose_mb


def _memory_clause(memory_mb: int, cell: FreeCell, sizes_kib: Sequence[int] | None) -> tuple[str, int]:
    """The clause, and the most memory (MiB) that is free in one acceptable page size."""
    if sizes_kib is None:
        return f"has {_loose_mb(cell)} MiB free, {memory_mb} MiB asked", max(0, _loose_mb(cell))
    amounts, most_mb = [], 0
    for size in sizes_kib:
        if size == cell.small_page_kib:
            free_mb = cell.memory_mb
            amounts.append(f"{free_mb} MiB")
        else:
            free = cell.pages.get(size, 0)
            free_mb = free * size // KIB_PER_MIB
            divides = memory_mb * KIB_PER_MIB % size == 0
            amounts.append(
                f"{counted(free, 'page')} of {size} KiB" + ("" if divides else " (which do not divide it)")
            )
        most_mb = max(most_mb, free_mb)
    return f"has {' or '.join(amounts) or 'no pages'} free, {memory_mb} MiB asked", most_mb


def _pins(count: int, cell: FreeCell, policy: ThreadPolicy) -> list[int] | None:
    """`count` free CPUs under the policy, siblings next to each other; None if there are not enough."""
    if not count:
        return []
    preferred = cell.favoured & cell.free_cpus
    if policy is ThreadPolicy.ISOLATE:
        free_cores = [core for core in cell.cores if core <= cell.free_cpus]
        if preferred:
            free_cores.sort(key=lambda core: not core & preferred)
        return (
            [min(core & preferred or core) for core in free_cores[:count]]
            if len(free_cores) >= count
            else None
        )
    if len(preferred) >= count:
        pins = _threads(count, [core & preferred for core in cell.cores], policy)
        if pins is not None:
            return pins
    return _threads(count, [core & cell.free_cpus for core in cell.cores], policy)


def _threads(count: int, free: Sequence[frozenset[int]], policy: ThreadPolicy) -> list[int] | None:
    if policy is ThreadPolicy.REQUIRE:
        # Sibling groups of equal size: the largest size that divides `count` and has enough groups.
        for size in range(max(map(len, free), default=0), 1, -1):
            if count % size:
                continue
            groups = [sorted(threads)[:size] for threads in free if len(threads) >= size]
            if len(groups) * size >= count:
                return [cpu for group in groups[: count // size] for cpu in group]
        return None
    if sum(len(threads) for threads in free) < count:
        return None
    # Whole cores first, then the core with the fewest free threads that has room for the rest.
    packed: list[int] = []
    remaining = sorted((sorted(threads) for threads in free if threads), key=lambda threads: -len(threads))
    while len(packed) < count:
        left = count - len(packed)
        enough = [threads for threads in remaining if len(threads) >= left]
        chosen = min(enough, key=len) if enough else remaining[0]
        remaining.remove(chosen)
        packed += chosen[:left]
    return packed


def wants_cells(topology: TopologyRequest) -> bool:
    """Whether a guest with this topology has NUMA cells."""
    asks_for_cpus = topology.cpu_policy != "shared" or topology.isolate_emulator
    return bool(topology.cells or asks_for_cpus or topology.mem_page_size is not None)


def guest_cells(request: ClaimRequest) -> tuple[GuestCell, ...]:
    """The guest's cells, with the VCPU, PCPU and MEMORY_MB (MiB) of the request's unsuffixed group.

    Raises UsageError where the topology and these amounts do not agree.
    """
    topology = request.topology
    asked = {"VCPU": 0, "PCPU": 0, "MEMORY_MB": 0}
    asked |= {name: amount for name, amount in request.unsuffixed.resources.items() if name in asked}
    emulator = int(topology.isolate_emulator)
    all_float = topology.cpu_policy == "mixed" and not topology.dedicated_cpus
    if emulator and asked["PCPU"] < (1 if all_float else 2):
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
    even = shares(vcpus, count)  # consecutive CPUs
    cpus = topology.cell_cpus or tuple(
        frozenset(range(end - share, end)) for share, end in zip(even, accumulate(even), strict=True)
    )
    memory = topology.cell_memory_mb or shares(memory_mb, count)
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


# The devices near a guest's cells

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
