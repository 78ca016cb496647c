"""The fewest moves that make room for a guest of a flavor. Pure, and nothing is moved here.

Sets of guests are tried by their number: without each set, does the guest fit? Those of the set then find
another place on this host if they can; the others have to go to another host. Of sets of one size that is
taken whose guests stay here the most, and then that with the fewest guests that have to stop. After
`FITS_MAX` fits a set is taken that is small, and maybe not the smallest: all guests that could move are left
out, and let in again one by one while the guest still fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from agent.claims.book import Book
from agent.claims.claim import Claim, Fit, Shortfall, claim_of_fit
from agent.claims.request import ClaimRequest

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
    fallback = _small_set(book, request, movable)
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


def _small_set(book: Book, request: ClaimRequest, movable: Sequence[str]) -> tuple[str, ...]:
    """Guests without which the request fits, none of them to spare; those with the most memory stay first."""
    gone = list(movable)
    for instance in sorted(movable, key=lambda each: (-_memory_mb(book.claims[each]), each)):
        rest = [other for other in gone if other != instance]
        if book.without(rest).fit(request).fits:
            gone = rest
    return tuple(gone)


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
        if not place.fits or not _is_same(claim, place):
            moves.append(DefragMove(claim, place if place.fits else None))
    return Defrag(fit, tuple(_in_order(moves)))


def _is_same(claim: Claim, place: Fit) -> bool:
    return (claim.allocations, claim.units, claim.cells) == (place.allocations, place.units, place.cells)


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
                and not any(_has(other.claim, move.here) for other in left if other is not move)
            ),
            left[0],
        )
        left.remove(free)
        yield free


def _has(claim: Claim, place: Fit) -> bool:
    """Whether the claim has an exact unit or a CPU of the place."""
    return not _exact(claim_of_fit(claim.request, place)).isdisjoint(_exact(claim))


def _exact(claim: Claim) -> set[tuple[str, str]]:
    cpus = {(CPUS, str(cpu)) for cell in claim.cells for cpu in cell.cpus}
    return cpus | {(name, unit) for _, name, unit in claim.exact}
