"""What the book counts while a step is on its way to the disk: all that is there before or after it. Pure.

The disk may refuse the step, or not answer. So the book gives a unit that the step frees to no other
consumer before the step is on disk, and one that the step takes to no other consumer from the start.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.claims.claim import Claim
from agent.claims.guest_cells import PlacedCell
from agent.shapes import Allocations, Units


def claims_until_durable(before: Collection[Claim], after: Collection[Claim]) -> Mapping[str, Claim]:
    """{consumer: the claim to count} for a step that changes the claims `before` into those `after`.

    Together they have all units of either side, and of each class on each provider the larger amount. What
    one consumer hands to another in the step is counted once.
    """
    if not after:
        return {claim.consumer: claim for claim in before}
    counted = {claim.consumer: claim for claim in after}
    if not before or (len(before) == len(after) == 1 and _have_the_same(*before, *after)):
        return counted
    amounts, units = _freed_amounts(before, after), _freed_units(before, after)
    cells = _freed_cells(before, after)
    if amounts or units or cells:
        known = {claim.consumer for claim in before}
        keeper = next((claim for claim in after if claim.consumer in known), next(iter(after)))
        counted[keeper.consumer] = replace(
            keeper,
            allocations=_plus(keeper.allocations, amounts),
            units=_with_units(keeper.units, units),
            cells=(*keeper.cells, *cells),
        )
    return counted


def _have_the_same(one: Claim, other: Claim) -> bool:
    return (one.allocations, one.units, one.cells) == (other.allocations, other.units, other.cells)


def _freed_amounts(before: Iterable[Claim], after: Iterable[Claim]) -> Counter[tuple[str, str]]:
    def total(claims: Iterable[Claim]) -> Counter[tuple[str, str]]:
        sums: Counter[tuple[str, str]] = Counter()
        for claim in claims:
            for uuid, amounts in claim.allocations.items():
                for name, amount in amounts.items():
                    sums[uuid, name] += amount
        return sums

    return total(before) - total(after)


def _freed_units(before: Iterable[Claim], after: Iterable[Claim]) -> frozenset[tuple[str, str, str]]:
    kept = {key for claim in after for key in claim.exact}
    return frozenset(key for claim in before for key in claim.exact if key not in kept)


def _freed_cells(before: Iterable[Claim], after: Iterable[Claim]) -> tuple[PlacedCell, ...]:
    left = [cell for claim in after for cell in claim.cells]
    freed = []
    for cell in (cell for claim in before for cell in claim.cells):
        if cell in left:
            left.remove(cell)
        else:
            freed.append(cell)
    return tuple(freed)


def _plus(allocations: Allocations, more: Mapping[tuple[str, str], int]) -> Allocations:
    result = {uuid: dict(amounts) for uuid, amounts in allocations.items()}
    for (uuid, name), amount in more.items():
        amounts = result.setdefault(uuid, {})
        amounts[name] = amounts.get(name, 0) + amount
    return result


def _with_units(units: Units, more: Iterable[tuple[str, str, str]]) -> Units:
    result = {uuid: dict(classes) for uuid, classes in units.items()}
    for uuid, name, unit in sorted(more):
        classes = result.setdefault(uuid, {})
        classes[name] = (*classes.get(name, ()), unit)
    return result
