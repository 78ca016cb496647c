"""The receipt of a reshape, with all that it takes to undo it, and the reshapes that are undone. Pure.

Before the request a receipt records the intent, so that a crash leaves a trace; afterwards it is the
receipt.

A driver repeats its move instructions as long as it likes. A reshape that the operator has undone therefore
stays undone until the operator requests it again: in the desired tree, what it moved is where it was, as it
was, and the driver's instructions for those units are ignored (`UndoneReceipts`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any

from agent.driver import Description, MoveInstruction
from agent.json_checks import read_list, read_object, read_text, read_uuid, read_whole
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.laws import Instruction, Relocation, Reshape, Slot, inventory_at
from agent.shapes import Allocations
from agent.tree import MAX_UNIT, Inventory, Provider, ProviderTree

SlotInventories = Mapping[Slot, Inventory | None]
"""{slot: its inventory, None where the provider has none}"""

NamedSlot = tuple[str, str]
"""(provider name, class)"""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One reshape. `at` is seconds since the epoch, UTC.

    `moves` were carried out; `back` are the instructions that undo them. `before` and `after` are the slots
    that exchanged units. `sources` are the removed providers that units left, and their ancestors, as they
    were, so that an undo can create them again. `generations` {provider uuid: generation read before the
    request}; `allocations` {consumer: its whole allocation afterwards}. `undoes` is the id of the receipt
    that this one undid. `records` are relocations of claims whose consumers held nothing in Placement.
    """

    id: str
    at: float
    moves: tuple[MoveInstruction, ...]
    back: tuple[MoveInstruction, ...]
    relocations: tuple[Relocation, ...]
    before: SlotInventories
    after: SlotInventories
    sources: tuple[Provider, ...]
    generations: Mapping[str, int] = field(default_factory=dict)
    allocations: Mapping[str, Allocations] = field(default_factory=dict)
    undoes: str | None = None
    records: tuple[Relocation, ...] = ()

    @property
    def source_slots(self) -> frozenset[NamedSlot]:
        """The slots that units left."""
        return frozenset(
            (move.from_resource_provider, name) for move in self.moves for name in move.moved_resources
        )

    @property
    def target_slots(self) -> frozenset[NamedSlot]:
        """The slots that units came to."""
        return frozenset(
            (move.to_resource_provider, move.becomes.get(name, name))
            for move in self.moves
            for name in move.moved_resources
        )

    def restore(self, desired: ProviderTree) -> ProviderTree:
        """`desired` with the slots as they were before the reshape."""
        providers = {provider.uuid: provider for provider in desired}
        for source in self.sources:
            providers.setdefault(source.uuid, replace(source, inventories={}))
        for slot, inventory in self.before.items():
            if slot.provider in providers:
                restored = providers[slot.provider].with_inventory(slot.resource_class, inventory)
                providers[slot.provider] = restored
        return ProviderTree(providers.values())

    def restored_ownership(self) -> OwnedProviders:
        """What the agent owns of what `restore` brings back."""
        owned: dict[str, OwnedProvider] = {
            source.uuid: OwnedProvider(traits=source.traits, aggregates=source.aggregates)
            for source in self.sources
        }
        for slot, inventory in self.before.items():
            if inventory is not None:
                addition = OwnedProvider(frozenset({slot.resource_class}))
                owned[slot.provider] = owned.get(slot.provider, OwnedProvider()) | addition
        return OwnedProviders(owned)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, without `id` and `at`."""
        return {
            "moves": [_instruction_to_json(move) for move in self.moves],
            "back": [_instruction_to_json(move) for move in self.back],
            "relocations": [list(relocation) for relocation in self.relocations],
            "records": [list(relocation) for relocation in self.records],
            "before": slots_to_json(self.before),
            "after": slots_to_json(self.after),
            "sources": [
                [source.uuid, source.name, source.parent, sorted(source.traits), sorted(source.aggregates)]
                for source in self.sources
            ],
            "generations": dict(self.generations),
            "allocations": {consumer: dict(held) for consumer, held in self.allocations.items()},
            "undoes": self.undoes,
        }


def make_receipt(
    receipt_id: str,
    at: float,
    trees: tuple[ProviderTree, ProviderTree, ProviderTree],
    instructions: Iterable[Instruction],
    reshape: Reshape,
    originals: Mapping[Slot, Inventory],
    undoes: str | None,
) -> Receipt:
    """The receipt of `reshape`, which carries out the instructions.

    `trees` are Placement's tree, the staged one and the desired one. `originals` are the inventories of the
    slots that are reserved only because this reshape was pending.
    """
    current, stage, desired = trees
    moving = tuple(instruction for instruction in instructions if not instruction.move.stays)
    slots = [slot for instruction in moving for pair in instruction.slot_pairs() for slot in pair[:2]]
    moves = tuple(instruction.move for instruction in moving)
    removed: dict[str, Provider] = {}  # each after its ancestors, so that an undo can create them
    for source in (instruction.source for instruction in moving):
        if source in current and source not in desired:
            for provider in (*reversed(current.ancestors(source)), current[source]):
                if provider.uuid not in desired:
                    removed[provider.uuid] = replace(provider, inventories={})
    return Receipt(
        receipt_id,
        at,
        moves,
        inverse_moves(moves, reshape, current, stage),
        reshape.relocations,
        {slot: originals.get(slot) or inventory_at(current, slot) for slot in slots},
        {slot: inventory_at(desired, slot) for slot in slots},
        tuple(removed.values()),
        {
            uuid: generation
            for uuid in reshape.inventories
            if (generation := stage[uuid].generation) is not None
        },
        reshape.allocations,
        undoes,
        reshape.records,
    )


def inverse_moves(
    moves: Sequence[MoveInstruction], reshape: Reshape, before: ProviderTree, tree: ProviderTree
) -> tuple[MoveInstruction, ...]:
    """The instructions that undo `moves` and bring each relocated amount back to its source.

    `before` is the tree before the reshape; `tree` has every provider that the moves name.
    """
    # {(target name, source name): {consumer: {(class at the source, class at the target): amount}}}
    returns: dict[tuple[str, str], dict[str, dict[tuple[str, str], int]]] = {}
    for relocation in (*reshape.relocations, *reshape.records):
        consumer, source_class, amount, source, target, target_class = relocation
        shares = returns.setdefault((tree[target].name, tree[source].name), {}).setdefault(consumer, {})
        shares[source_class, target_class] = shares.get((source_class, target_class), 0) + amount
    # {source slot: how much more it lost than its targets gained}: the host's count need not equal the sum
    # over its cards, and an undo restores the count all the same.
    shortfalls: dict[NamedSlot, int] = {}
    for move in moves:
        provider = before.by_name(move.from_resource_provider)
        for name, amount in move.moved_resources.items():
            inventory = provider.inventories.get(name) if provider else None
            if provider is None or inventory is None:
                continue
            left = reshape.inventories.get(provider.uuid, {}).get(name)
            lost = inventory.total - (left.total if left else 0)
            shortfalls[provider.name, name] = shortfalls.get((provider.name, name), lost) - amount
    inverse = []
    for move in moves:
        origin, goal = move.to_resource_provider, move.from_resource_provider
        names = {name: move.becomes.get(name, name) for name in move.moved_resources}
        consumers = {
            consumer: {
                target_class: amount
                for (source_class, target_class), amount in shares.items()
                if names.get(source_class) == target_class
            }
            for consumer, shares in returns.get((origin, goal), {}).items()
        }
        moved = {
            names[name]: amount + max(0, shortfalls.pop((goal, name), 0))
            for name, amount in move.moved_resources.items()
        }
        inverse.append(
            MoveInstruction(
                origin,
                moved,
                goal,
                {consumer: shares for consumer, shares in consumers.items() if shares},
                {new_name: name for name, new_name in names.items() if name != new_name},
            )
        )
    return tuple(inverse)


def read_receipt(receipt_id: str, at: float, document: Any) -> Receipt:
    """The inverse of `Receipt.to_json`.

    Raises UsageError, KeyError, TypeError or ValueError for a document that `to_json` did not write.
    """
    record = read_object(document, "receipt")
    return Receipt(
        receipt_id,
        at,
        tuple(_read_instruction(move) for move in read_list(record["moves"], "moves")),
        tuple(_read_instruction(move) for move in read_list(record["back"], "back")),
        tuple(Relocation(*fields) for fields in read_list(record["relocations"], "relocations")),
        read_slots(record["before"]),
        read_slots(record["after"]),
        tuple(
            Provider(uuid, name, parent, {}, frozenset(traits), frozenset(aggregates))
            for uuid, name, parent, traits, aggregates in read_list(record["sources"], "sources")
        ),
        {read_uuid(uuid, "provider"): generation for uuid, generation in record["generations"].items()},
        record["allocations"],
        record["undoes"],
        tuple(Relocation(*fields) for fields in read_list(record.get("records", []), "records")),
    )


def _instruction_to_json(move: MoveInstruction) -> dict[str, Any]:
    """As seed 2018 writes it, with `consumers` and `becomes` where there are any."""
    document: dict[str, Any] = {
        "from_resource_provider": move.from_resource_provider,
        "moved_resources": dict(move.moved_resources),
        "to_resource_provider": move.to_resource_provider,
    }
    if move.consumers is not None:
        document["consumers"] = {consumer: dict(shares) for consumer, shares in move.consumers.items()}
    if move.becomes:
        document["becomes"] = dict(move.becomes)
    return document


def _read_instruction(document: Any) -> MoveInstruction:
    record = read_object(document, "move")
    return MoveInstruction(
        read_text(record["from_resource_provider"], "from_resource_provider"),
        _read_amounts(record["moved_resources"]),
        read_text(record["to_resource_provider"], "to_resource_provider"),
        {consumer: _read_amounts(shares) for consumer, shares in record["consumers"].items()}
        if "consumers" in record
        else None,
        dict(record.get("becomes", {})),
    )


def _read_amounts(document: Any) -> dict[str, int]:
    return {
        name: read_whole(amount, name, 0, MAX_UNIT)
        for name, amount in read_object(document, "amounts").items()
    }


def slots_to_json(slots: SlotInventories) -> list[list[Any]]:
    """[[provider uuid, class, inventory or None], ...]"""
    return [[*slot, inventory.to_json() if inventory else None] for slot, inventory in slots.items()]


def read_slots(document: Any) -> dict[Slot, Inventory | None]:
    """The inverse of `slots_to_json`. Raises UsageError, TypeError or ValueError for anything else."""
    return {
        Slot(uuid, name): Inventory(**inventory) if inventory else None
        for uuid, name, inventory in read_list(document, "slots")
    }


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
        remaining = []
        for move in description.moves:
            staying = {name for source, name in sources | beyond if source == move.from_resource_provider}
            moved = {name: amount for name, amount in move.moved_resources.items() if name not in staying}
            if moved:
                remaining.append(replace(move, moved_resources=moved))
        return tuple(remaining)

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
            if provider is not None:
                now = inventory_at(current, Slot(provider.uuid, resource_class))
                desired = desired.with_provider(provider.with_inventory(resource_class, now))
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
