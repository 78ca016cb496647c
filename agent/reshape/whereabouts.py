"""Where a place may be now: a claim follows reshapes that moved its allocation under another consumer. Pure.

While a host was down, or between two of its looks, a migration may take the allocation of a claim, and a
reshape then moves what the migration holds. The agent's records follow a reshape by consumer, so the claim
stays behind. The receipts of the reshapes say what became of an allocation like the claim's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.claims.claim import Claim
from agent.moves.states import Move
from agent.reshape.claimed_units import ExactUnits
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import relocate_allocations, relocate_records
from agent.reshape.types import Relocation, slots_of
from agent.shapes import Allocations

_NO_MOVES: Mapping[str, Move] = {}


@dataclass(frozen=True, slots=True)
class Passage:
    """What one reshape did with one allocation; `after` is the whole allocation of its consumer afterwards.

    The relocations name no consumer: they apply to every place that was just such an allocation.
    """

    relocations: tuple[Relocation, ...]
    after: Allocations

    def leads_from(self, allocations: Allocations) -> bool:
        """Whether these allocations were what the reshape moved, or that and some that it did not touch.

        A migration holds nothing of what stays with its instance on shared providers.
        """
        before = slots_of(allocations)
        if not any(relocation.slots[0] in before for relocation in self.relocations):
            return False
        moved = slots_of(relocate_allocations(allocations, self.relocations))
        return moved != before and slots_of(self.after).items() <= moved.items()


def passages(receipts: Iterable[Receipt]) -> tuple[Passage, ...]:
    """What the executed reshapes did, each kind of allocation once for each reshape; the oldest first."""
    found: list[Passage] = []
    for receipt in receipts:
        by_consumer: dict[str, list[Relocation]] = {}
        for relocation in receipt.relocations:
            by_consumer.setdefault(relocation.consumer, []).append(relocation._replace(consumer=""))
        kinds: dict[str, Passage] = {}
        for consumer, relocations in by_consumer.items():
            passage = Passage(tuple(relocations), receipt.allocations.get(consumer, {}))
            kinds.setdefault(repr((passage.relocations, sorted(slots_of(passage.after).items()))), passage)
        found += kinds.values()
    return tuple(found)


def whereabouts(
    place: Claim, known: Iterable[Passage], claims: Mapping[str, Claim], exact: ExactUnits
) -> tuple[Claim, ...]:
    """The place as it is recorded, and then as it is wherever one of the passages may have led it.

    `claims` are all claims of the host, whose exact units the place does not get.
    """
    found = [place]
    for passage in known:
        for each in tuple(found):
            if passage.leads_from(each.allocations):
                moved = _follow(each, passage, claims, exact)
                if all(moved.allocations != other.allocations for other in found):
                    found.append(moved)
    return tuple(found)


def _follow(place: Claim, passage: Passage, claims: Mapping[str, Claim], exact: ExactUnits) -> Claim:
    relocations = [each._replace(consumer=place.consumer) for each in passage.relocations]
    records = relocate_records(relocations, {**claims, place.consumer: place}, _NO_MOVES, exact)
    return next((claim for claim in records.claims if claim.consumer == place.consumer), place)
