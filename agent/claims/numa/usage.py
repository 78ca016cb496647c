"""What claims and guests use of the host's NUMA cells; a part of the book. Pure.

A guest whose claim has cells is counted by its claim. Of any other guest, the memory that the driver reports
is counted, and the CPUs that it is pinned to.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.claims.claim import Claim
from agent.claims.numa.host_cells import CellStock, HostCells, cell_use, cell_use_of_guests, charged_pages
from agent.driver import Guest, GuestState
from agent.shapes import Usages

CPUS = "PCPU"
_ABSENT = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})
"""Guests in these states use no memory; their CPUs stay theirs, as all exact units do."""


class CellUsage:
    """What of the host's cells claims and guests use; `host` is what there is.

    `put` and `remove` follow the book's claims, `observe_guests` the driver's guests.
    """

    def __init__(self) -> None:
        self.host = HostCells()
        self._claims: dict[str, Claim] = {}
        self._use: Counter[tuple[int, str]] = Counter()
        self._charged: Counter[str] = Counter()
        self._owners: dict[int, str] = {}
        self._in_guests: dict[int, str] = {}
        self._guests: dict[str, Guest] = {}
        self._coming: dict[str, Guest] = {}

    def without(self, consumers: Collection[str]) -> "CellUsage":
        """A copy in which these consumers have no claim and no guest."""
        copy = CellUsage()
        copy.host = self.host
        copy._claims, copy._owners = dict(self._claims), dict(self._owners)
        copy._use, copy._charged = Counter(self._use), Counter(self._charged)
        copy._in_guests = {cpu: who for cpu, who in self._in_guests.items() if who not in consumers}
        copy._guests = {who: guest for who, guest in self._guests.items() if who not in consumers}
        copy._coming = {who: guest for who, guest in self._coming.items() if who not in consumers}
        for consumer in consumers:
            copy.remove(consumer)
        return copy

    def refresh(self, host: HostCells) -> None:
        """Replace the host's cells, and count all claims anew."""
        self.host = host
        self._use, self._charged = Counter(), Counter()
        for claim in self._claims.values():
            self._count(claim)

    def put(self, claim: Claim) -> None:
        """Add the claim, in place of an earlier one of its consumer."""
        self.remove(claim.consumer)
        self._claims[claim.consumer] = claim
        self._count(claim)
        for cpu in _cpus_of(claim):
            self._owners[cpu] = claim.consumer

    def remove(self, consumer: str) -> None:
        """Remove the consumer's claim, if it has one."""
        claim = self._claims.pop(consumer, None)
        if claim is None:
            return
        if claim.cells:
            use = cell_use(claim.cells, self.host.small_page_kib)
            self._use.subtract(use)
            self._charged.subtract(charged_pages(claim.allocations, use, self.host))
        for cpu in _cpus_of(claim):
            if self._owners.get(cpu) == consumer:
                del self._owners[cpu]

    def _count(self, claim: Claim) -> None:
        if claim.cells:
            use = cell_use(claim.cells, self.host.small_page_kib)
            self._use.update(use)
            self._charged.update(charged_pages(claim.allocations, use, self.host))

    def observe_guests(self, guests: Iterable[Guest]) -> None:
        """Replace the known guests by those that the driver reports now."""
        known = tuple(guests)
        self._in_guests = {
            int(used.unit): guest.uuid
            for guest in known
            for used in guest.units
            if used.resource_class == CPUS and used.unit.isdecimal()
        }
        present = {guest.uuid: guest for guest in known if guest.state not in _ABSENT}
        self._guests = {uuid: guest for uuid, guest in present.items() if guest.memory}
        self._coming = {uuid: guest for uuid, guest in self._coming.items() if uuid not in present}

    def expect_guest(self, consumer: str, guest: Guest | None) -> None:
        """Count the memory of a guest that will start soon until `observe_guests` sees it; None ends that."""
        self._coming.pop(consumer, None)
        if guest is not None:
            self._coming[consumer] = guest

    def stock(
        self,
        consumer: str,
        moving: Mapping[str, str],
        needs: Mapping[str, Usages],
        *,
        keeps: bool = False,
    ) -> CellStock:
        """What is left of the cells for the consumer, including what it has already.

        `keeps`: not including that, because a migration takes it over. `moving` {instance: migration} are the
        moves under way: a moving guest is counted by its migration. `needs` {instance: {provider: {class:
        amount}}} is what the book counts for each row.
        """
        use, held = Counter(self._use), Counter(self._charged)
        own = None if keeps else self._claims.get(consumer)
        if own is not None:
            own_use = cell_use(own.cells, self.host.small_page_kib)
            use.subtract(own_use)
            held.subtract(charged_pages(own.allocations, own_use, self.host))
        holder = None if keeps else consumer
        guests = {**self._guests, **self._coming}
        counted = [guest for guest in guests.values() if self._is_counted(guest, holder, moving)]
        use.update(cell_use_of_guests(counted, self.host, use))
        held.update(self._charged_to(counted, needs))
        cpus = frozenset(cpu for cpu, who in self._in_guests.items() if who == holder)
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
        on |= {cell.id for cell in self.host.cells if cell.dedicated & cpus}
        return CellStock(self.host, use, busy, cpus, frozenset(on), {} if keeps else at, held)

    def _charged_to(self, guests: Iterable[Guest], needs: Mapping[str, Usages]) -> Counter[str]:
        """{provider uuid: pages} that these guests use and that the book counts on the pages' providers."""
        pages: Counter[str] = Counter()
        providers = {uuid for cell in self.host.cells for uuid in cell.page_providers.values()}
        for guest in guests:
            counted = needs.get(guest.uuid, {})
            if not providers.isdisjoint(counted):
                bound = replace(
                    guest, memory=tuple(memory for memory in guest.memory if memory.cell is not None)
                )
                pages.update(charged_pages(counted, cell_use_of_guests([bound], self.host, {}), self.host))
        return pages

    def _is_counted(self, guest: Guest, holder: str | None, moving: Mapping[str, str]) -> bool:
        claims = (self._claims.get(guest.uuid), self._claims.get(moving.get(guest.uuid, "")))
        return guest.uuid != holder and not any(claim and claim.cells for claim in claims)


def _cpus_of(claim: Claim) -> Iterable[int]:
    """The host CPUs that only this claim's consumer may have."""
    for classes in claim.units.values():
        yield from (int(unit) for unit in classes.get(CPUS, ()) if unit.isdecimal())
    for cell in claim.cells:
        yield from cell.cpus
