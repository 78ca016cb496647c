"""What a pass tells: its result, with one sentence on what it did and why, and the preview of a reshape.
Pure.

The preview says what a reshape would do, for the operator to see before it is requested.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import shorten

from agent.driver import MoveInstruction
from agent.errors import PlimsollError, ReshapeRefused, counted
from agent.providers.plan import Plan
from agent.reshape.laws import Relocation
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.tree import ProviderTree

LINES_MAX = 3
LINE_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class PassReport:
    """The result of one pass; `error` says why it failed.

    `at` is seconds since the epoch, UTC. `providers` is how many Placement has of this host, `changed` how
    many of them the pass wrote, with so many `operations`. `problems` are sentences on what the operator has
    to mend, `notices` others that are logged once. `pending` says why a reshape that is due was not carried
    out; the rest of the pass was.
    """

    sentence: str
    at: float
    duration_ms: float
    providers: int = 0
    changed: int = 0
    operations: int = 0
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    error: PlimsollError | None = None
    pending: ReshapeRefused | None = None


def pass_sentence(why: str, written: Plan | None) -> str:
    """What the pass did, on one line; `written` is None where only the driver was asked."""
    if written is None:
        return f"After {why}: nothing changed."
    if written.empty:
        return f"After {why}: Placement already holds what the driver describes."
    lines = written.lines()
    listed = " ".join(shorten(line, LINE_CHARS_MAX, placeholder=" ...") for line in lines[:LINES_MAX])
    more = f" And {counted(len(lines) - LINES_MAX, 'more operation')}." if len(lines) > LINES_MAX else ""
    return f"After {why}: {listed}{more}"


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
