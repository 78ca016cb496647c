"""Reshapes that an operator undid: their receipts, and what the pass makes of them.

A driver goes on saying what moved for as long as it likes, so an undone reshape is *withheld*: in the tree
that a pass shall reach, what it moved is where it was before, as it was then, and whatever the driver says
about those units is left aside, until somebody asks for the reshape again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from agent.driver import Description, MoveInstruction
from agent.providers.resolve import OwnedProviders
from agent.reshape.receipt import Receipt
from agent.reshape.types import Slot, inventory_at
from agent.tree import ProviderTree

NamedSlot = tuple[str, str]
"""(provider name, class)"""


@dataclass(frozen=True, slots=True)
class Withheld:
    """What is withheld; empty, nothing is."""

    receipts: tuple[Receipt, ...] = ()

    def told(self) -> tuple[str, ...]:
        """A sentence each."""
        return tuple(
            f"The reshape {each.id} was undone and is not done again by itself: `plimsoll reshape` does it."
            for each in self.receipts
        )

    def owned(self) -> OwnedProviders:
        return reduce(or_, (receipt.owned() for receipt in self.receipts), OwnedProviders())

    def moves(self, description: Description) -> tuple[MoveInstruction, ...]:
        """The driver's moves without those of units that are withheld."""
        kept, beyond = self._kept(description)
        found = (_without(move, kept | beyond) for move in description.moves)
        return tuple(move for move in found if move.moved_resources)

    def back(self) -> tuple[MoveInstruction, ...]:
        """The moves that bring the units back."""
        return tuple(move for receipt in self.receipts for move in receipt.back)

    def undone_by(self, back: Iterable[MoveInstruction]) -> str | None:
        """The receipt that these moves undo."""
        keys = {_key(move) for move in back}
        return next((r.id for r in self.receipts if keys & {_key(move) for move in r.back}), None)

    def restored(
        self, desired: ProviderTree, current: ProviderTree, description: Description
    ) -> ProviderTree:
        """`desired` with the units where they were, and nowhere else."""
        _, beyond = self._kept(description)
        for name, resource_class in sorted(beyond):
            provider = desired.by_name(name)
            if provider is None:
                continue
            now = inventory_at(current, Slot(provider.uuid, resource_class))
            inventories = {n: each for n, each in provider.inventories.items() if n != resource_class}
            if now is not None:
                inventories[resource_class] = now
            desired = desired.with_provider(replace(provider, inventories=inventories))
        for receipt in self.receipts:
            desired = receipt.restored(desired)
        return desired

    def _kept(self, description: Description) -> tuple[set[NamedSlot], set[NamedSlot]]:
        """The slots that the units left, and those that they have come to, or would from there."""
        kept = {slot for receipt in self.receipts for slot in receipt.source_slots}
        beyond = {slot for receipt in self.receipts for slot in receipt.target_slots}
        if not kept:
            return kept, beyond
        while True:
            more = {
                (move.to_resource_provider, move.becomes.get(name, name))
                for move in description.moves
                for name in move.moved_resources
                if (move.from_resource_provider, name) in kept | beyond
            }
            if more <= beyond | kept:
                return kept, beyond - kept
            beyond |= more


def _key(move: MoveInstruction) -> NamedSlot:
    return move.from_resource_provider, move.to_resource_provider


def _without(move: MoveInstruction, kept: set[NamedSlot]) -> MoveInstruction:
    source = move.from_resource_provider
    moved = {name: amount for name, amount in move.moved_resources.items() if (source, name) not in kept}
    return move if len(moved) == len(move.moved_resources) else replace(move, moved_resources=moved)
