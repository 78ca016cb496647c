"""The values of a reshape: slots, instructions by uuid, relocations, and the content of the request. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.providers.plan import CUSTOM
from agent.shapes import Allocations
from agent.tree import InventoriesByProvider, Inventory, ProviderTree


class Slot(NamedTuple):
    """One resource class of one provider (uuid): where there is inventory, and where units are allocated."""

    provider: str
    resource_class: str


class Relocation(NamedTuple):
    """`amount` units allocated to `consumer` go from provider `source` to provider `target` (uuids).

    They are of `resource_class` on the source and of `target_class` on the target, mostly the same class.
    """

    consumer: str
    resource_class: str
    amount: int
    source: str
    target: str
    target_class: str

    @property
    def slots(self) -> tuple[Slot, Slot]:
        """(source slot, target slot)"""
        return Slot(self.source, self.resource_class), Slot(self.target, self.target_class)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A move instruction with the uuids of its providers; see `agent.driver.MoveInstruction`."""

    move: MoveInstruction
    source: str
    target: str

    def slot_pairs(self) -> Iterator[tuple[Slot, Slot, int]]:
        """(source slot, target slot, amount) for each class."""
        for resource_class, amount in self.move.moved_resources.items():
            target_class = self.move.becomes.get(resource_class, resource_class)
            yield Slot(self.source, resource_class), Slot(self.target, target_class), amount


@dataclass(frozen=True, slots=True)
class Reshape:
    """The content of one `POST /reshaper`, and the relocations that led to it.

    `inventories` {provider uuid: all its inventories afterwards}; `allocations` {consumer uuid: its whole
    allocation afterwards}. `records` are relocations of claims whose consumers hold nothing there, so that
    only the agent's records follow.
    Source: https://docs.openstack.org/api-ref/placement/#reshaper
    """

    inventories: InventoriesByProvider
    allocations: Mapping[str, Allocations]
    relocations: tuple[Relocation, ...]
    records: tuple[Relocation, ...] = ()


def resolve_instructions(
    moves: Iterable[MoveInstruction], current: ProviderTree, desired: ProviderTree
) -> tuple[Instruction, ...]:
    """The moves with uuids: names are looked up in the desired tree, a source's also in the current one.

    Raises ReshapeRefused for a name that is in neither.
    """
    return tuple(
        Instruction(
            move,
            _uuid(move.from_resource_provider, desired, current),
            _uuid(move.to_resource_provider, desired),
        )
        for move in moves
    )


def slots_of(allocations: Allocations) -> dict[Slot, int]:
    """One consumer's allocation as {slot: amount}."""
    return {
        Slot(provider, resource_class): amount
        for provider, resources in allocations.items()
        for resource_class, amount in resources.items()
    }


def allocations_of(slots: Mapping[Slot, int]) -> Allocations:
    """The inverse of `slots_of`."""
    allocations: dict[str, dict[str, int]] = {}
    for slot, amount in slots.items():
        allocations.setdefault(slot.provider, {})[slot.resource_class] = amount
    return allocations


def inventory_at(tree: ProviderTree, slot: Slot) -> Inventory | None:
    """The inventory of the slot, None where the tree has none."""
    provider = tree.get(slot.provider)
    return provider.inventories.get(slot.resource_class) if provider else None


def total_at(tree: ProviderTree, slot: Slot) -> int:
    """The total of the slot's inventory, 0 where the tree has none."""
    inventory = inventory_at(tree, slot)
    return inventory.total if inventory else 0


def new_custom_classes(slots: Iterable[Slot], current: ProviderTree) -> list[str]:
    """The custom resource classes of these slots that Placement may not know yet, sorted."""
    known = {name for provider in current for name in provider.inventories}
    names = {slot.resource_class for slot in slots} - known
    return sorted(name for name in names if name.startswith(CUSTOM))


def name_of(uuid: str, *trees: ProviderTree) -> str:
    """The provider's name in the first of the trees that has it; its uuid where none has."""
    for tree in trees:
        provider = tree.get(uuid)
        if provider is not None:
            return provider.name
    return uuid


def _uuid(name: str, *trees: ProviderTree) -> str:
    for tree in trees:
        provider = tree.by_name(name)
        if provider is not None:
            return provider.uuid
    raise ReshapeRefused(
        f"A move instruction names provider {name}, which does not exist: the driver's description is wrong",
        reasons=[f"unknown provider {name}"],
    )
