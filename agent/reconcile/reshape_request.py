"""Reshapes on demand: what asking for one would do, and doing it, in the daemon and offline alike."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.driver import Description, MoveInstruction
from agent.errors import PlacementUnavailable, PlimsollError, ReshapeRefused, StateError
from agent.placement.client import PlacementClient
from agent.providers.resolve import ResolvedDescription
from agent.reconcile.reshape_runner import Goal, ReshapeRunner
from agent.reconcile.undone_reshapes import UndoneReshapes
from agent.reshape.receipt import Receipt
from agent.reshape.types import Relocation
from agent.shapes import Usages
from agent.tree import ProviderTree

WHY = "a reshape that was asked for"


class Report(Protocol):
    """What a pass says; see `agent.reconcile.reconciler.PassReport`."""

    @property
    def error(self) -> PlimsollError | None: ...

    @property
    def pending(self) -> ReshapeRefused | None: ...


@dataclass(frozen=True, slots=True)
class Preview:
    """What a reshape would do: the trees `before` and `after` it, and what is used in each.

    `refused` says why it would not be done; `relocations` is empty then. `parked` names what would stay where
    it is, a sentence for each consumer. `receipts` are those of the reshapes that were done, `undone` the ids
    of those that are withheld now.
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


def preview(
    reshape_runner: ReshapeRunner,
    client: PlacementClient,
    seen: tuple[Description, ProviderTree, ResolvedDescription],
    undo: str | None,
) -> Preview:
    """What asking for a reshape, or for undoing the receipt `undo`, would do; nothing is written.

    `seen` is what the driver says, what placement holds, and what follows from the two. Raises UsageError,
    PlacementError, StateError.
    """
    description, current, resolved = seen
    undone = reshape_runner.undone
    withheld = undone.asked(undo)
    refused: str | None = None
    relocations: tuple[Relocation, ...] = ()
    goal = Goal(resolved.tree, resolved.owned)
    try:
        goal = reshape_runner.goal(description, current, resolved, withheld)
        if goal.due:
            relocations = reshape_runner.prepare(current, goal).reshape.relocations
    except ReshapeRefused as refusal:
        refused = refusal.message
    used = {each.uuid: dict(client.provider_usages(each.uuid)) for each in current if each.inventories}
    return Preview(
        current,
        goal.tree,
        used,
        _used_after(used, relocations, goal.tree),
        goal.due,
        relocations,
        refused,
        undone.receipts(),
        undone.ids(),
        goal.parked,
    )


def ask(
    undone: UndoneReshapes,
    look: Callable[[str], Report],
    undo: str | None,
) -> tuple[Receipt, ...]:
    """Do what is due, or undo the receipt `undo`, in a pass of its own, `look`: the receipts it made.

    Where it is refused, what was asked for is forgotten, and a second pass leaves all as it was. Where
    placement is away it stays asked for, and the loop goes on with it. Raises PlimsollError.
    """
    before, known = undone.ids(), {receipt.id for receipt in undone.receipts()}
    wanted = undone.asked(undo)
    undone.keep(wanted)
    report = look(WHY)
    problem = report.error or report.pending
    if problem is not None:
        if wanted != before and not isinstance(problem, PlacementUnavailable | StateError):
            undone.keep(before)
            look("a reshape that was refused")
        raise problem
    return tuple(receipt for receipt in undone.receipts() if receipt.id not in known)


def _used_after(used: Usages, relocations: Iterable[Relocation], tree: ProviderTree) -> Usages:
    after = {each.uuid: dict(used.get(each.uuid, {})) for each in tree}
    for each in relocations:
        for change, (uuid, name) in zip((-each.amount, each.amount), each.slots, strict=True):
            if uuid in after:
                after[uuid][name] = after[uuid].get(name, 0) + change
    return {
        each.uuid: {
            name: amount for name, amount in after[each.uuid].items() if amount or name in each.inventories
        }
        for each in tree
    }
