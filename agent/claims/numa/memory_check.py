"""Whether the memory is there that a guest must have on certain cells, or in large pages. Pure.

A guest that comes with a domain of its own is asked no more than its hypervisor will ask of the host: memory
bound to a cell must be on it, memory bound to several must be on all of them together, and so must large
pages that are bound to none.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.claims.claim import Claim, Shortfall
from agent.claims.fit_search import HostStock
from agent.claims.numa.cell_fit import KIB_PER_MIB
from agent.claims.numa.host_cells import CellStock, CellUse, HostCells, cell_use, memory_use, page_key
from agent.driver import Guest, UsedMemory
from agent.tree import Provider

_MEMORY = "MEMORY_MB"
_PAGES = "pages:"


def memory_shortfalls(
    guest: Guest, claim: Claim | None, cells: CellStock, stock: HostStock
) -> tuple[Shortfall, ...]:
    """What its cells do not have free of the guest's memory, or what its claim does not have that has cells.

    Nothing where the host has not told its cells.
    """
    if not cells.host.cells or not guest.memory:
        return ()
    if claim is not None and claim.cells:
        room: CellUse = cell_use(claim.cells, cells.host.small_page_kib)
        return tuple(_lacking(guest.memory, room, cells.host, stock, "its claim has"))
    return tuple(_lacking(guest.memory, _room(cells, stock), cells.host, stock, "there are"))


def _room(cells: CellStock, stock: HostStock) -> Counter[tuple[int, str]]:
    room: Counter[tuple[int, str]] = Counter()
    for cell in cells.free(stock):
        room[cell.id, "memory_mb"] = cell.memory_mb if cell.loose_mb is None else cell.loose_mb
        for size, count in cell.pages.items():
            room[cell.id, page_key(size)] = count
    return room


def _lacking(
    memory: Collection[UsedMemory], room: CellUse, host: HostCells, stock: HostStock, has: str
) -> Iterator[Shortfall]:
    left = Counter(room)
    for (where, what), asked in _asked(memory, host).items():
        among = sorted(where or {cell.id for cell in host.cells})
        free = sum(max(0, left[cell, what]) for cell in among)
        if asked > free:
            yield _shortfall(among, what, asked, free, host, stock, has)
        rest = asked
        for cell in among:
            part = min(rest, max(0, left[cell, what]))
            left[cell, what] -= part
            rest -= part


def _asked(memory: Collection[UsedMemory], host: HostCells) -> Mapping[tuple[frozenset[int], str], int]:
    """{(cells, none for any, what): how much}, what is bound the closest first."""
    asked: Counter[tuple[frozenset[int], str]] = Counter()
    together: dict[str, set[int]] = {}
    split: Counter[str] = Counter()
    anywhere: Counter[tuple[frozenset[int], str]] = Counter()
    for each in memory:
        what, amount = memory_use(each.memory_mb, each.page_kib, host.small_page_kib)
        if each.cell is None:
            anywhere[frozenset(), what] += amount
        elif each.guest_cell is None:
            together.setdefault(what, set()).add(each.cell)
            split[what] += amount
        else:
            asked[frozenset({each.cell}), what] += amount
    asked.update({(frozenset(together[what]), what): amount for what, amount in split.items()})
    asked.update(anywhere)
    return asked


def _shortfall(
    among: Sequence[int], what: str, asked: int, free: int, host: HostCells, stock: HostStock, has: str
) -> Shortfall:
    provider = _provider(among, host, stock)
    size = what.removeprefix(_PAGES) if what.startswith(_PAGES) else ""
    each = int(size) if size else KIB_PER_MIB
    cells = f"host cell{'s' if len(among) > 1 else ''} {', '.join(map(str, among))}"
    counted = f"{free} pages of {size} KiB" if size else f"{free} MiB"
    return Shortfall(
        _MEMORY,
        asked * each // KIB_PER_MIB,
        free * each // KIB_PER_MIB,
        provider.name if provider else "",
        provider.uuid if provider else "",
        f"{has} {counted} {'' if has.startswith('its') else 'free '}on {cells}, {asked} asked",
    )


def _provider(among: Collection[int], host: HostCells, stock: HostStock) -> Provider | None:
    uuids = {cell.provider for cell in host.cells if cell.id in among}
    return stock.host.tree.get(uuids.pop()) if len(uuids) == 1 else stock.host.root
