"""Check whether a host has the memory that a guest needs on certain cells or in large pages. Pure.

A guest that starts with its own domain XML is checked for what its hypervisor will need: memory that is bound
to a cell must be free on that cell, memory that is bound to several cells on these cells together, and large
pages that are bound to no cell on all cells together.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.claims.claim import Claim, Shortfall
from agent.claims.fit_search import HostStock
from agent.claims.numa.cell_fit import KIB_PER_MIB
from agent.claims.numa.host_cells import CellStock, CellUse, HostCells, cell_use, memory_use, page_key
from agent.driver import Guest, UsedMemory
from agent.errors import counted
from agent.tree import Provider

_MEMORY = "MEMORY_MB"
_PAGES = "pages:"


def memory_shortfalls(
    guest: Guest, claim: Claim | None, cells: CellStock, stock: HostStock
) -> tuple[Shortfall, ...]:
    """The shortfalls of the guest's bound memory, against its claim's cells if it has any, else the host's.

    There are none if the driver has not reported the host's cells.
    """
    if not cells.host.cells or not guest.memory:
        return ()
    if claim is not None and claim.cells:
        available: CellUse = cell_use(claim.cells, cells.host.small_page_kib)
        return tuple(_compare(guest.memory, available, cells.host, stock, "its claim has"))
    return tuple(_compare(guest.memory, _free_by_cell(cells, stock), cells.host, stock, "there are"))


def _free_by_cell(cells: CellStock, stock: HostStock) -> Counter[tuple[int, str]]:
    room: Counter[tuple[int, str]] = Counter()
    for cell in cells.free(stock):
        room[cell.id, "memory_mb"] = cell.memory_mb if cell.loose_mb is None else cell.loose_mb
        for size, count in cell.pages.items():
            room[cell.id, page_key(size)] = count
    return room


def _compare(
    memory: Collection[UsedMemory], room: CellUse, host: HostCells, stock: HostStock, has: str
) -> Iterator[Shortfall]:
    left = Counter(room)
    for (where, what), asked in _asked_by_cells(memory, host).items():
        among = sorted(where or {cell.id for cell in host.cells})
        free = sum(max(0, left[cell, what]) for cell in among)
        if asked > free:
            yield _memory_shortfall(among, what, asked, free, host, stock, has)
        rest = asked
        for cell in among:
            part = min(rest, max(0, left[cell, what]))
            left[cell, what] -= part
            rest -= part


def _asked_by_cells(
    memory: Collection[UsedMemory], host: HostCells
) -> Mapping[tuple[frozenset[int], str], int]:
    """{(cells, empty for any; resource): amount}, the tightest binding first; see `CellUse`."""
    asked: Counter[tuple[frozenset[int], str]] = Counter()
    together: dict[str, set[int]] = {}
    split: Counter[str] = Counter()
    anywhere: Counter[tuple[frozenset[int], str]] = Counter()
    for part in memory:
        what, amount = memory_use(part.memory_mb, part.page_kib, host.small_page_kib)
        if part.cell is None:
            anywhere[frozenset(), what] += amount
        elif part.guest_cell is None:
            together.setdefault(what, set()).add(part.cell)
            split[what] += amount
        else:
            asked[frozenset({part.cell}), what] += amount
    asked.update({(frozenset(together[what]), what): amount for what, amount in split.items()})
    asked.update(anywhere)
    return asked


def _memory_shortfall(
    among: Sequence[int], what: str, asked: int, free: int, host: HostCells, stock: HostStock, has: str
) -> Shortfall:
    provider = _provider(among, host, stock)
    size = what.removeprefix(_PAGES) if what.startswith(_PAGES) else ""
    unit_kib = int(size) if size else KIB_PER_MIB
    cells = f"host {'cell' if len(among) == 1 else 'cells'} {', '.join(map(str, among))}"
    room = f"{counted(free, 'page')} of {size} KiB" if size else f"{free} MiB"
    return Shortfall.at(
        provider,
        _MEMORY,
        asked * unit_kib // KIB_PER_MIB,
        free * unit_kib // KIB_PER_MIB,
        f"{has} {room} {'' if has.startswith('its') else 'free '}on {cells}, {asked} asked",
    )


def _provider(among: Collection[int], host: HostCells, stock: HostStock) -> Provider | None:
    uuids = {cell.provider for cell in host.cells if cell.id in among}
    return stock.host.tree.get(uuids.pop()) if len(uuids) == 1 else stock.host.root
