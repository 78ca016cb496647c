"""What is kept of a reshape: first the intent, once it is done the receipt, with all that undoes it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.driver import MoveInstruction
from agent.json_checks import read_list, read_object, read_text, read_uuid, read_whole
from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.reshape.plan import inverse_moves
from agent.reshape.types import Instruction, Relocation, Reshape, Slot, inventory_at
from agent.shapes import Allocations
from agent.tree import MAX_UNIT, Inventory, Provider, ProviderTree

Slots = Mapping[Slot, Inventory | None]
"""{slot: its inventory, None for none}"""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One reshape. `at` is seconds since the epoch, UTC.

    `before` and `after` are the slots that exchange units; `sources` the providers that units left and what
    they hung under, as they were, so that they can be made again; `generations` {provider uuid: generation
    that was read before the request}; `allocations` {consumer: its whole set afterwards}. `undoes` is the
    receipt that this one undid.
    """

    id: str
    at: float
    moves: tuple[MoveInstruction, ...]
    back: tuple[MoveInstruction, ...]
    relocations: tuple[Relocation, ...]
    before: Slots
    after: Slots
    sources: tuple[Provider, ...]
    generations: Mapping[str, int] = field(default_factory=dict)
    allocations: Mapping[str, Allocations] = field(default_factory=dict)
    undoes: str | None = None

    @property
    def source_slots(self) -> frozenset[tuple[str, str]]:
        """(provider name, class) of what left."""
        return frozenset(
            (move.from_resource_provider, name) for move in self.moves for name in move.moved_resources
        )

    @property
    def target_slots(self) -> frozenset[tuple[str, str]]:
        """(provider name, class) of what came."""
        return frozenset(
            (move.to_resource_provider, move.becomes.get(name, name))
            for move in self.moves
            for name in move.moved_resources
        )

    def restored(self, desired: ProviderTree) -> ProviderTree:
        """`desired` with the slots as they were before the reshape."""
        providers = {each.uuid: each for each in desired}
        for source in self.sources:
            providers.setdefault(source.uuid, replace(source, inventories={}))
        for slot, inventory in self.before.items():
            provider = providers.get(slot.provider)
            if provider is None:
                continue
            inventories = {n: each for n, each in provider.inventories.items() if n != slot.resource_class}
            if inventory is not None:
                inventories[slot.resource_class] = inventory
            providers[slot.provider] = replace(provider, inventories=inventories)
        return ProviderTree(providers.values())

    def owned(self) -> OwnedProviders:
        """What is the agent's of what `restored` brings back."""
        found: dict[str, OwnedProvider] = {
            each.uuid: OwnedProvider(traits=each.traits, aggregates=each.aggregates) for each in self.sources
        }
        for slot, inventory in self.before.items():
            if inventory is not None:
                ours = OwnedProvider(frozenset({slot.resource_class}))
                found[slot.provider] = found.get(slot.provider, OwnedProvider()) | ours
        return OwnedProviders(found)

    def holds(self, tree: ProviderTree, slots: Slots) -> bool:
        """Whether `tree` has these slots so."""
        return all(inventory_at(tree, slot) == inventory for slot, inventory in slots.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "moves": [move_to_json(move) for move in self.moves],
            "back": [move_to_json(move) for move in self.back],
            "relocations": [list(each) for each in self.relocations],
            "before": slots_to_json(self.before),
            "after": slots_to_json(self.after),
            "sources": [
                [each.uuid, each.name, each.parent, sorted(each.traits), sorted(each.aggregates)]
                for each in self.sources
            ],
            "generations": dict(self.generations),
            "allocations": {who: dict(held) for who, held in self.allocations.items()},
            "undoes": self.undoes,
        }


def make_receipt(
    receipt_id: str,
    at: float,
    trees: tuple[ProviderTree, ProviderTree, ProviderTree],
    told: Iterable[Instruction],
    reshape: Reshape,
    originals: Mapping[Slot, Inventory],
    undoes: str | None,
) -> Receipt:
    """`trees`: as placement has it, staged, and as it is wanted.

    `originals`: what was in the slots that are only reserved because this reshape has been due.
    """
    current, stage, desired = trees
    told = tuple(each for each in told if not each.move.stays)
    slots = [slot for each in told for source, target, _ in each.pairs() for slot in (source, target)]
    moves = tuple(each.move for each in told)
    return Receipt(
        receipt_id,
        at,
        moves,
        inverse_moves(moves, reshape, current, stage),
        reshape.relocations,
        {slot: originals.get(slot) or inventory_at(current, slot) for slot in slots},
        {slot: inventory_at(desired, slot) for slot in slots},
        _going(told, current, desired),
        {
            uuid: generation
            for uuid in reshape.inventories
            if (generation := stage[uuid].generation) is not None
        },
        reshape.allocations,
        undoes,
    )


def _going(told: Iterable[Instruction], current: ProviderTree, desired: ProviderTree) -> tuple[Provider, ...]:
    """The sources that are not there any more, each after those above it: an undo makes them again."""
    going: dict[str, Provider] = {}
    for each in told:
        if each.source in current and each.source not in desired:
            for provider in (*reversed(current.ancestors(each.source)), current[each.source]):
                if provider.uuid not in desired:
                    going[provider.uuid] = replace(provider, inventories={})
    return tuple(going.values())


def read_receipt(receipt_id: str, at: float, said: Any) -> Receipt:
    """The inverse of `to_json`. Raises UsageError, KeyError, TypeError or ValueError for anything else."""
    record = read_object(said, "receipt")
    return Receipt(
        receipt_id,
        at,
        tuple(_move(each) for each in read_list(record["moves"], "moves")),
        tuple(_move(each) for each in read_list(record["back"], "back")),
        tuple(Relocation(*each) for each in read_list(record["relocations"], "relocations")),
        read_slots(record["before"]),
        read_slots(record["after"]),
        tuple(
            Provider(uuid, name, parent, {}, frozenset(traits), frozenset(aggregates))
            for uuid, name, parent, traits, aggregates in read_list(record["sources"], "sources")
        ),
        {read_uuid(uuid, "provider"): each for uuid, each in record["generations"].items()},
        record["allocations"],
        record["undoes"],
    )


def move_to_json(move: MoveInstruction) -> dict[str, Any]:
    """As seed 2018 writes it, with `consumers` and `becomes` where there are any."""
    said: dict[str, Any] = {
        "from_resource_provider": move.from_resource_provider,
        "moved_resources": dict(move.moved_resources),
        "to_resource_provider": move.to_resource_provider,
    }
    if move.consumers is not None:
        said["consumers"] = {who: dict(shares) for who, shares in move.consumers.items()}
    if move.becomes:
        said["becomes"] = dict(move.becomes)
    return said


def _move(said: Any) -> MoveInstruction:
    record = read_object(said, "move")
    return MoveInstruction(
        read_text(record["from_resource_provider"], "from_resource_provider"),
        _amounts(record["moved_resources"]),
        read_text(record["to_resource_provider"], "to_resource_provider"),
        {who: _amounts(shares) for who, shares in record["consumers"].items()}
        if "consumers" in record
        else None,
        dict(record.get("becomes", {})),
    )


def _amounts(said: Any) -> dict[str, int]:
    return {name: read_whole(n, name, 0, MAX_UNIT) for name, n in read_object(said, "amounts").items()}


def slots_to_json(slots: Slots) -> list[list[Any]]:
    """[[provider uuid, class, inventory or None], ...]"""
    return [[*slot, inventory.to_json() if inventory else None] for slot, inventory in slots.items()]


def read_slots(said: Any) -> dict[Slot, Inventory | None]:
    return {
        Slot(uuid, name): Inventory(**inventory) if inventory else None
        for uuid, name, inventory in read_list(said, "slots")
    }
