"""How much more a host can take: so many guests of a flavor, or one more after the fewest moves. Pure.

`capacity` says how many guests of a flavor the host can still get, why not one more, and what is stranded by
whom. Something that the flavor asks for is stranded while it is free and no such guest can have it, because
what else the guest needs is not free near it, or because a part of another size stands in its place on a
card. Every search here ends: so many guests, so many holders.

`defrag` finds the fewest moves that make room for a guest of a flavor; nothing is moved here. Sets of guests
are tried by their number: without each set, does the guest fit? Those of the set then find another place on
this host if they can; the others have to go to another host. Of sets of one size that is taken whose guests
stay here the most, and then that with the fewest guests that have to stop. After `FITS_MAX` fits a set is
taken that is small, and maybe not the smallest: all guests that could move are left out, and let in again one
by one while the guest still fits.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from agent.claims.book import Book
from agent.claims.claim import Claim, Fit, Shortfall, claim_of_fit
from agent.claims.request import ClaimRequest
from agent.shapes import Usages
from agent.tree import Provider, ProviderTree

OF_EVERY_GUEST = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})
"""The classes of which every guest has some; what is free of others is a device that a guest may need."""
GUESTS_MAX = 256
"""After so many guests the count ends."""
HOLDERS_MAX = 512
"""So many guests are looked at, one by one, as the cause of what is stranded."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """An amount of a class that is free on a provider, and that no guest of the flavor can have.

    `holders` are the consumers each of which alone strands some of it: without it, one more guest fits there.
    Of a size of a `divided` card nothing is free: `free` is what the card can give at least once one of the
    holders is gone.
    """

    provider: str
    provider_uuid: str
    resource_class: str
    free: int
    holders: tuple[str, ...] = ()
    divided: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many guests fit one after the other; `more`: maybe further ones. `shortfalls`: why not one more."""

    guests: int
    more: bool = False
    shortfalls: tuple[Shortfall, ...] = ()
    stranded: tuple[Stranded, ...] = ()


def capacity(book: Book, request: ClaimRequest) -> Capacity:
    """The host's capacity for guests that ask for this. Raises UsageError as a fit does."""
    trial = book.without()
    for number in range(GUESTS_MAX):
        next_guest = numbered(request, number)
        fit = trial.fit(next_guest)
        if not fit.fits:
            return Capacity(number, False, fit.shortfalls, tuple(_stranded(trial, book, next_guest)))
        trial.put(claim_of_fit(next_guest, fit))
    return Capacity(GUESTS_MAX, more=True)


def numbered(request: ClaimRequest, number: int) -> ClaimRequest:
    """The request of another guest of the flavor; its consumer is in no journal and not in Placement."""
    return replace(request, consumer=f"{request.consumer} #{number}")


def _stranded(trial: Book, book: Book, request: ClaimRequest) -> Iterator[Stranded]:
    """`trial` is the host with as many guests as fit, `book` the host as it is."""
    on_cards = {(uuid, name) for uuid, card in trial.units.cards.items() for name in card.model.shapes}
    # The smallest amount of each class that one group asks for, or one cell of the guest, and what is free of
    # the class where that is as much.
    least: dict[str, int] = {}
    for group in request.groups:
        for name, amount in group.resources.items():
            part = max(1, amount // max(1, request.topology.cells))
            least[name] = min(part, least.get(name, part))
    free = {
        (provider.uuid, name): amount
        for name, needed in least.items()
        for provider in trial.host.by_class.get(name, ())
        if (amount := trial.free(provider.uuid, name, request.consumer)) >= needed
        and (provider.uuid, name) not in on_cards
    }
    if not free and request.resources.keys().isdisjoint(name for _, name in on_cards):
        return
    holders: dict[tuple[str, str], list[str]] = {}
    for instance in book.movable()[:HOLDERS_MAX]:
        alone = trial.without([instance])
        taken = alone.fit(request).allocations
        for uuid, name in ((uuid, name) for uuid, amounts in taken.items() for name in amounts):
            if (uuid, name) in on_cards:
                if name in book.claims[instance].allocations.get(uuid, {}):
                    continue  # it has a part of this size itself
                left = alone.left_on_cards({uuid: trial.units.cards[uuid]}, {})[uuid][name]
                free[uuid, name] = min(left, free.get((uuid, name), left))
            holders.setdefault((uuid, name), []).append(instance)
    for key, amount in free.items():
        uuid, name = key
        provider = trial.host.tree[uuid].name
        yield Stranded(provider, uuid, name, amount, tuple(holders.get(key, ())), key in on_cards)


def stranded_for_all(tree: ProviderTree, used: Usages) -> dict[str, int]:
    """{class: free units that no guest can have at all}: on their cell no CPU is free, or no memory.

    A cell is the nearest provider above the units that has CPUs, or memory. What every guest has is no unit.
    """
    stranded = Counter[str]()

    def is_short(provider: Provider, names: tuple[str, ...]) -> bool:
        """Whether the nearest provider that has one of these classes has nothing of them free."""
        for each in (provider, *tree.ancestors(provider.uuid)):
            having = [name for name in names if name in each.inventories]
            if having:
                return all(
                    each.inventories[name].capacity <= used.get(each.uuid, {}).get(name, 0) for name in having
                )
        return False

    for provider in tree:
        for name, inventory in provider.inventories.items():
            free = inventory.capacity - used.get(provider.uuid, {}).get(name, 0)
            if name in OF_EVERY_GUEST or free <= 0:
                continue
            if is_short(provider, ("VCPU", "PCPU")) or is_short(provider, ("MEMORY_MB",)):
                stranded[name] += free
    return dict(stranded)


MOVES_MAX = 3
"""Larger sets are not tried one by one."""
FITS_MAX = 1500
CPUS = "PCPU"
_SMALL_PAGES = (None, "small")
_LIVE = (CPUS, "SRIOV_NET_VF")


@dataclass(frozen=True, slots=True)
class DefragMove:
    """A guest that has to move: `here` is its new place on this host, None for another host."""

    claim: Claim
    here: Fit | None

    @property
    def is_live(self) -> bool:
        """Whether it can move while it runs, as far as its devices and its pages tell.

        Network ports can, other devices may not. Large pages can to another host; on this host they stay on
        the cell where QEMU has them.
        """
        topology = self.claim.request.topology
        if self.here is not None and topology is not None and topology.mem_page_size not in _SMALL_PAGES:
            return False
        return all(name in _LIVE for _, name, _ in self.claim.exact)


@dataclass(frozen=True, slots=True)
class Defrag:
    """What makes room for one guest of the flavor, which then fits by `fit`.

    `moves` are in the order in which each finds its place free; none where the guest fits already. `fewest`:
    no smaller number does. `fit` None: no moves of guests make room, and `shortfalls` say what is missing.
    """

    fit: Fit | None
    moves: tuple[DefragMove, ...] = ()
    fewest: bool = True
    shortfalls: tuple[Shortfall, ...] = ()


def defrag(book: Book, request: ClaimRequest) -> Defrag:
    """The moves that make room for the request. Raises UsageError as a fit does."""
    fit = book.fit(request)
    if fit.fits:
        return Defrag(fit)
    movable = book.movable()
    emptied = book.without(movable).fit(request)
    if not emptied.fits:
        return Defrag(None, shortfalls=emptied.shortfalls)
    # Guests without which it fits, none of them to spare; those with the most memory stay first.
    fallback = list(movable)
    for instance in sorted(movable, key=lambda each: (-_memory_mb(book.claims[each]), each)):
        rest = [other for other in fallback if other != instance]
        if book.without(rest).fit(request).fits:
            fallback = rest
    fits = len(movable) + 2
    for size in range(1, min(MOVES_MAX, len(fallback)) + 1):
        best: Defrag | None = None
        for chosen in combinations(movable, size):
            fits += 1
            if fits > FITS_MAX:
                return best or replace(_with_places(book, request, fallback), fewest=False)
            found = _with_places(book, request, chosen)
            fits += len(found.moves)
            if found.fit is not None and (best is None or _burden(found) < _burden(best)):
                best = found
        if best is not None:
            return best
    return replace(_with_places(book, request, fallback), fewest=len(fallback) <= MOVES_MAX + 1)


def _memory_mb(claim: Claim) -> int:
    return sum(amounts.get("MEMORY_MB", 0) for amounts in claim.allocations.values())


def _burden(found: Defrag) -> tuple[int, int]:
    """How many guests go to another host, and how many have to stop for their move."""
    return sum(move.here is None for move in found.moves), sum(not move.is_live for move in found.moves)


def _with_places(book: Book, request: ClaimRequest, chosen: Iterable[str]) -> Defrag:
    """The request without these guests on the host, and each of them in another place, the largest first."""
    claims = sorted(
        (book.claims[instance] for instance in chosen), key=lambda claim: (-_memory_mb(claim), claim.consumer)
    )
    trial = book.without([claim.consumer for claim in claims])
    fit = trial.fit(request)
    if not fit.fits:
        return Defrag(None, shortfalls=fit.shortfalls)
    trial.put(claim_of_fit(request, fit))
    moves = []
    for claim in claims:
        place = trial.fit(claim.request)
        if place.fits:
            trial.put(claim_of_fit(claim.request, place))
        same = (claim.allocations, claim.units, claim.cells) == (place.allocations, place.units, place.cells)
        if not place.fits or not same:
            moves.append(DefragMove(claim, place if place.fits else None))
    return Defrag(fit, tuple(_in_order(moves)))


def _in_order(moves: Sequence[DefragMove]) -> Iterable[DefragMove]:
    """Those to other hosts first; then each after those that have its new units now, if possible."""
    yield from (move for move in moves if move.here is None)
    left = [move for move in moves if move.here is not None]
    while left:
        free = next(
            (
                move
                for move in left
                if move.here is not None
                and not any(
                    (not _exact(claim_of_fit(other.claim.request, move.here)).isdisjoint(_exact(other.claim)))
                    for other in left
                    if other is not move
                )
            ),
            left[0],
        )
        left.remove(free)
        yield free


def _exact(claim: Claim) -> set[tuple[str, str]]:
    cpus = {(CPUS, str(cpu)) for cell in claim.cells for cpu in cell.cpus}
    return cpus | {(name, unit) for _, name, unit in claim.exact}
