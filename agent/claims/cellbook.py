"""Who uses what of the host's NUMA cells, in memory: claims with cells of their own, and guests. Pure.

Part of the ledger. A guest whose claim says which cells it has is counted by its claim; of any other guest
counts what the driver tells of its memory, and the CPUs that it is pinned to.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from agent.claims.cells import CellStock, HostCells, use_of, use_of_guests
from agent.claims.claim import Claim
from agent.driver import Guest, GuestState
from agent.naming import is_page_class

CPUS = "PCPU"
_ABSENT = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})
"""Their memory is free; their CPUs are kept for them, as every exact unit is."""


class CellBook:
    """`host` is what there is. `put` and `drop` follow the ledger's claims, `saw` the driver's guests."""

    def __init__(self) -> None:
        self.host = HostCells()
        self._claims: dict[str, Claim] = {}
        self._use: Counter[tuple[int, str]] = Counter()
        self._pages: Counter[str] = Counter()
        self._owners: dict[int, str] = {}
        self._in_guests: dict[int, str] = {}
        self._guests: dict[str, Guest] = {}
        self._coming: dict[str, Guest] = {}

    def refresh(self, host: HostCells) -> None:
        self.host = host
        self._use = Counter()
        for claim in self._claims.values():
            self._use.update(use_of(claim.cells, host.small_page_kib))

    def put(self, claim: Claim) -> None:
        """Count the claim, in the place of the one that its consumer had."""
        self.drop(claim.consumer)
        self._claims[claim.consumer] = claim
        if claim.cells:
            self._use.update(use_of(claim.cells, self.host.small_page_kib))
        self._pages.update(_pages_of(claim))
        for cpu in _cpus_of(claim):
            self._owners[cpu] = claim.consumer

    def drop(self, consumer: str) -> None:
        claim = self._claims.pop(consumer, None)
        if claim is None:
            return
        if claim.cells:
            self._use.subtract(use_of(claim.cells, self.host.small_page_kib))
        self._pages.subtract(_pages_of(claim))
        for cpu in _cpus_of(claim):
            if self._owners.get(cpu) == consumer:
                del self._owners[cpu]

    def saw(self, guests: Iterable[Guest]) -> None:
        seen = tuple(guests)
        self._in_guests = {
            int(used.unit): guest.uuid
            for guest in seen
            for used in guest.units
            if used.resource_class == CPUS and used.unit.isdecimal()
        }
        here = {guest.uuid: guest for guest in seen if guest.state not in _ABSENT}
        self._guests = {uuid: guest for uuid, guest in here.items() if guest.memory}
        self._coming = {uuid: guest for uuid, guest in self._coming.items() if uuid not in here}

    def expect(self, consumer: str, guest: Guest | None) -> None:
        """Its guest is about to come: its memory counts until `saw` is told of it. None: it does not come."""
        self._coming.pop(consumer, None)
        if guest is not None:
            self._coming[consumer] = guest

    def stock(self, consumer: str, moving: Mapping[str, str], *, keeps: bool = False) -> CellStock:
        """What is left for the consumer; `keeps`: besides what it has already, which goes to a migration.

        `moving` {instance: migration} are the moves under way: a guest that moves is counted by its
        migration.
        """
        use = Counter(self._use)
        own = None if keeps else self._claims.get(consumer)
        if own is not None and own.cells:
            use.subtract(use_of(own.cells, self.host.small_page_kib))
        charged = Counter(self._pages)
        if own is not None:
            charged.subtract(_pages_of(own))
        holder = None if keeps else consumer
        guests = {**self._guests, **self._coming}
        counted = [guest for guest in guests.values() if self._counts(guest, holder, moving)]
        use.update(use_of_guests(counted, self.host, use))
        mine = frozenset(cpu for cpu, who in self._in_guests.items() if who == holder)
        busy = frozenset(
            cpu for held in (self._owners, self._in_guests) for cpu, who in held.items() if who != holder
        )
        memory = self._guests[consumer].memory if consumer in self._guests else ()
        at = {
            used.guest_cell: used.cell
            for used in memory
            if used.guest_cell is not None and used.cell is not None
        }
        on = {used.cell for used in memory if used.cell is not None}
        on |= {cell.id for cell in self.host.cells if cell.dedicated & mine}
        return CellStock(self.host, use, busy, mine, frozenset(on), {} if keeps else at, charged)

    def _counts(self, guest: Guest, holder: str | None, moving: Mapping[str, str]) -> bool:
        claims = (self._claims.get(guest.uuid), self._claims.get(moving.get(guest.uuid, "")))
        return guest.uuid != holder and not any(claim and claim.cells for claim in claims)


def _pages_of(claim: Claim) -> Counter[str]:
    """{provider uuid: large pages} that it holds in placement, which has those of a size on one provider."""
    return Counter(
        {
            uuid: amount
            for uuid, amounts in claim.allocations.items()
            for name, amount in amounts.items()
            if is_page_class(name)
        }
    )


def _cpus_of(claim: Claim) -> Iterable[int]:
    """The host CPUs that nobody else may have."""
    for classes in claim.units.values():
        yield from (int(unit) for unit in classes.get(CPUS, ()) if unit.isdecimal())
    for cell in claim.cells:
        yield from cell.cpus
