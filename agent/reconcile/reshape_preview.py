"""What a reshape would do, for the operator to see before it is requested."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.driver import MoveInstruction
from agent.reshape.laws import Relocation
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class Preview:
    """What a reshape would do: the trees `before` and `after` it, and what is used in each.

    `refused` says why it would not be done; `relocations` is empty then. `parked` names what would stay where
    it is, a sentence for each consumer. `receipts` are those of the reshapes that were done, `undone` the ids
    of those that are withheld now. `names` is {consumer: name}.
    """

    before: ProviderTree
    after: ProviderTree
    used_before: Usages
    used_after: Usages
    moves: tuple[MoveInstruction, ...]
    relocations: tuple[Relocation, ...]
    refused: str | None
    receipts: tuple[Receipt, ...]
    undone: tuple[str, ...]
    parked: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def usages_after(usages: Usages, relocations: Iterable[Relocation], tree: ProviderTree) -> Usages:
    """The usages of the providers of `tree`, which the relocations lead to."""
    after = {provider.uuid: dict(usages.get(provider.uuid, {})) for provider in tree}
    for relocation in relocations:
        changes = zip((-relocation.amount, relocation.amount), relocation.slots, strict=True)
        for change, (uuid, resource_class) in changes:
            if uuid in after:
                after[uuid][resource_class] = after[uuid].get(resource_class, 0) + change
    return {
        provider.uuid: {
            resource_class: amount
            for resource_class, amount in after[provider.uuid].items()
            if amount or resource_class in provider.inventories
        }
        for provider in tree
    }
