"""Reshapes that the operator has undone, and what they change in a pass. Pure.

A driver repeats its move instructions as long as it likes. An undone reshape therefore stays undone until the
operator requests it again: in the desired tree, what it moved is where it was, as it was, and the driver's
instructions for those units are ignored.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from agent.driver import Description, MoveInstruction
from agent.providers.resolve import OwnedProviders
from agent.reshape.receipt import NamedSlot, Receipt
from agent.reshape.types import Slot, inventory_at
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class UndoneReceipts:
    """The receipts of the reshapes that are undone."""

    receipts: tuple[Receipt, ...] = ()

    def notices(self) -> tuple[str, ...]:
        """A sentence for each undone reshape, for the operator."""
        return tuple(
            f"The reshape {receipt.id} is undone until `plimsoll reshape` does it again."
            for receipt in self.receipts
        )

    def restored_ownership(self) -> OwnedProviders:
        """What the agent owns of what `restore` brings back."""
        return reduce(or_, (receipt.restored_ownership() for receipt in self.receipts), OwnedProviders())

    def remaining_moves(self, description: Description) -> tuple[MoveInstruction, ...]:
        """The driver's moves without those of the units that stay where they were."""
        sources, beyond = self._affected_slots(description)
        moves = (_without_slots(move, sources | beyond) for move in description.moves)
        return tuple(move for move in moves if move.moved_resources)

    def inverse_moves(self) -> tuple[MoveInstruction, ...]:
        """The moves that bring the units back."""
        return tuple(move for receipt in self.receipts for move in receipt.back)

    def receipt_of(self, inverse: Iterable[MoveInstruction]) -> str | None:
        """The id of the receipt that these inverse moves undo."""
        ends = {_ends(move) for move in inverse}
        return next(
            (receipt.id for receipt in self.receipts if ends & {_ends(move) for move in receipt.back}), None
        )

    def restore(self, desired: ProviderTree, current: ProviderTree, description: Description) -> ProviderTree:
        """`desired` with the units where they were before the reshapes, and nowhere else."""
        _, beyond = self._affected_slots(description)
        for name, resource_class in sorted(beyond):
            provider = desired.by_name(name)
            if provider is None:
                continue
            now = inventory_at(current, Slot(provider.uuid, resource_class))
            inventories = {
                other_class: inventory
                for other_class, inventory in provider.inventories.items()
                if other_class != resource_class
            }
            if now is not None:
                inventories[resource_class] = now
            desired = desired.with_provider(replace(provider, inventories=inventories))
        for receipt in self.receipts:
            desired = receipt.restore(desired)
        return desired

    def _affected_slots(self, description: Description) -> tuple[set[NamedSlot], set[NamedSlot]]:
        """The slots that the units left, and all those that they have reached, or would reach from there."""
        sources = {slot for receipt in self.receipts for slot in receipt.source_slots}
        beyond = {slot for receipt in self.receipts for slot in receipt.target_slots}
        if not sources:
            return sources, beyond
        while True:
            reached = {
                (move.to_resource_provider, move.becomes.get(name, name))
                for move in description.moves
                for name in move.moved_resources
                if (move.from_resource_provider, name) in sources | beyond
            }
            if reached <= beyond | sources:
                return sources, beyond - sources
            beyond |= reached


def _ends(move: MoveInstruction) -> tuple[str, str]:
    return move.from_resource_provider, move.to_resource_provider


def _without_slots(move: MoveInstruction, slots: set[NamedSlot]) -> MoveInstruction:
    source = move.from_resource_provider
    moved = {name: amount for name, amount in move.moved_resources.items() if (source, name) not in slots}
    return move if len(moved) == len(move.moved_resources) else replace(move, moved_resources=moved)
