"""NUMA fitting: which host cell, which pinned CPUs and which pages each guest cell gets. Pure.

Every guest cell gets a host cell of its own. What one cell can give does not depend on the others, so the
fit is worked out once for each pair, and what remains is a small matching. Source: the flavor extra specs
`hw:numa_*`, `hw:cpu_policy`, `hw:cpu_thread_policy` and `hw:mem_page_size` as documented for nova,
https://docs.openstack.org/nova/latest/admin/cpu-topologies.html.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

KIB_PER_MIB = 1024
SMALL_PAGE_KIB = 4


class ThreadPolicy(StrEnum):
    """PREFER siblings of one core together; ISOLATE every CPU on a core of its own; REQUIRE siblings."""

    PREFER = "prefer"
    ISOLATE = "isolate"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class FreeCell:
    """What a host cell still has to give.

    `cores` are the cell's cores, each with the ids of all threads that guests might run on; `free_cpus` are
    those for dedicated use that nobody holds; `shared_cpus` is the number of CPUs that floating guests share
    (what they may overcommit is placement's business); `memory_mb` is free memory in small pages, and `pages`
    {size in KiB: free count}.
    """

    id: int
    cores: tuple[frozenset[int], ...] = ()
    free_cpus: frozenset[int] = frozenset()
    shared_cpus: int = 0
    memory_mb: int = 0
    pages: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GuestCell:
    """What a guest wants of one cell: the ids of its floating and of its pinned virtual CPUs, and memory."""

    id: int
    floating: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class PlacedCell:
    """A guest cell on its host cell.

    `pinning` {guest CPU: host CPU}; `withheld` are host CPUs nobody else may have while this guest does (the
    silent siblings of isolated CPUs); `page_kib` the page size that backs `memory_mb`.
    """

    guest_cell: int
    host_cell: int
    pinning: Mapping[int, int]
    withheld: frozenset[int]
    page_kib: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why one guest cell cannot go onto one host cell, as a clause: "has 3 free dedicated CPUs, 4 asked"."""

    guest_cell: int
    host_cell: int
    reason: str


@dataclass(frozen=True, slots=True)
class NumaFit:
    """`cells` in the guest's order, empty if the guest does not fit; then `misfits` says why, each pair."""

    cells: tuple[PlacedCell, ...]
    misfits: tuple[Misfit, ...] = ()

    @property
    def fits(self) -> bool:
        return bool(self.cells)


def fit_cells(
    guest: Sequence[GuestCell],
    host: Sequence[FreeCell],
    *,
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER,
    page_sizes_kib: Sequence[int] = (SMALL_PAGE_KIB,),
    near: frozenset[int] = frozenset(),
) -> NumaFit:
    """Place every guest cell on a host cell of its own.

    :param page_sizes_kib: acceptable page sizes, the best first
    :param near: host cells that the guest's devices are attached to; they are tried first
    Otherwise the cells with the most free memory are tried first, so that guests spread; equal ones by id.
    """
    ranked = sorted(host, key=lambda cell: (cell.id not in near, -cell.memory_mb, cell.id))
    options: list[list[PlacedCell]] = []
    misfits: list[Misfit] = []
    for wanted in guest:
        placed = []
        for cell in ranked:
            fitted = _fit_one(wanted, cell, thread_policy, page_sizes_kib)
            if isinstance(fitted, Misfit):
                misfits.append(fitted)
            else:
                placed.append(fitted)
        options.append(placed)
    chosen = _match(options)
    if chosen is not None:
        return NumaFit(chosen)
    if not misfits:
        reason = f"the guest wants {len(guest)} cells of their own, the host has {len(host)}"
        misfits = [Misfit(guest[len(host)].id if len(guest) > len(host) else guest[-1].id, -1, reason)]
    return NumaFit((), tuple(misfits))


def _match(options: Sequence[Sequence[PlacedCell]]) -> tuple[PlacedCell, ...] | None:
    """One option for each guest cell, no host cell twice: augmenting paths, the first options preferred."""
    taken: dict[int, int] = {}  # host cell -> index of the guest cell that has it
    placed: dict[int, PlacedCell] = {}

    def place(index: int, tried: set[int]) -> bool:
        for option in options[index]:
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
    wanted: GuestCell, cell: FreeCell, policy: ThreadPolicy, page_sizes_kib: Sequence[int]
) -> PlacedCell | Misfit:
    if wanted.floating and not cell.shared_cpus:
        return Misfit(wanted.id, cell.id, "has no CPUs for shared use")
    if len(wanted.floating) > cell.shared_cpus:
        return Misfit(
            wanted.id,
            cell.id,
            f"has {cell.shared_cpus} shared CPUs, {len(wanted.floating)} asked: a guest is never "
            "overcommitted against itself",
        )
    page_kib = _page_size(wanted.memory_mb, cell, page_sizes_kib)
    if page_kib is None:
        return Misfit(wanted.id, cell.id, _no_memory(wanted.memory_mb, cell, page_sizes_kib))
    pins = _pins(len(wanted.pinned), cell, policy)
    if pins is None:
        return Misfit(
            wanted.id,
            cell.id,
            f"has {len(cell.free_cpus)} free dedicated CPUs, {len(wanted.pinned)} asked with thread policy "
            f"{policy}",
        )
    withheld = frozenset[int]()
    if policy is ThreadPolicy.ISOLATE:
        withheld = frozenset().union(*(core for core in cell.cores if core & set(pins))) - set(pins)
    pinning = dict(zip(sorted(wanted.pinned), pins, strict=True))
    return PlacedCell(wanted.id, cell.id, pinning, withheld, page_kib, wanted.memory_mb)


def _page_size(memory_mb: int, cell: FreeCell, sizes_kib: Sequence[int]) -> int | None:
    for size in sizes_kib:
        if size == SMALL_PAGE_KIB:
            if memory_mb <= cell.memory_mb:
                return size
        elif memory_mb * KIB_PER_MIB % size == 0 and memory_mb * KIB_PER_MIB // size <= cell.pages.get(
            size, 0
        ):
            return size
    return None


def _no_memory(memory_mb: int, cell: FreeCell, sizes_kib: Sequence[int]) -> str:
    free = (
        f"{cell.memory_mb} MiB"
        if size == SMALL_PAGE_KIB
        else f"{cell.pages.get(size, 0)} pages of {size} KiB"
        for size in sizes_kib
    )
    return f"has {' or '.join(free)} free, {memory_mb} MiB asked"


def _pins(count: int, cell: FreeCell, policy: ThreadPolicy) -> list[int] | None:
    """`count` free CPUs of the cell under the policy, siblings next to each other; None if there are not."""
    if policy is ThreadPolicy.ISOLATE:
        whole = [core for core in cell.cores if core <= cell.free_cpus]
        return [min(core) for core in whole[:count]] if len(whole) >= count else None
    free = [core & cell.free_cpus for core in cell.cores]
    if policy is ThreadPolicy.REQUIRE:
        return _paired(count, free)
    if sum(len(threads) for threads in free) < count:
        return None
    return list(_packed(count, free))


def _paired(count: int, free: Sequence[frozenset[int]]) -> list[int] | None:
    """Only sibling groups of equal size, the largest size that divides `count` and is there often enough."""
    for size in range(max(map(len, free), default=0), 1, -1):
        if count % size:
            continue
        groups = [sorted(threads)[:size] for threads in free if len(threads) >= size]
        if len(groups) * size >= count:
            return [cpu for group in groups[: count // size] for cpu in group]
    return [] if count == 0 else None


def _packed(count: int, free: Sequence[frozenset[int]]) -> Iterator[int]:
    """Whole cores while they are needed whole, then the core with the fewest threads that holds the rest."""
    left = count
    remaining = sorted((sorted(threads) for threads in free if threads), key=lambda threads: -len(threads))
    while left:
        enough = [threads for threads in remaining if len(threads) >= left]
        threads = min(enough, key=len) if enough else remaining[0]
        remaining.remove(threads)
        yield from threads[:left]
        left -= min(left, len(threads))
