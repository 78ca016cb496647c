"""The planner: what has to be written so that placement holds the tree that is wanted. Pure.

`plan(current, desired)` compares two trees and answers ordered, typed operations, each of them one write to
placement. The order keeps every provider right before a scheduler can see it:

1. names: resource classes and traits that may not be known yet (creating one again does no harm);
2. take back: inventories of providers that go away, children first, and of providers that will have less.
   The same units may be offered elsewhere by this very plan, so they are taken back before they are offered;
3. build: from the root down, each provider is created, renamed or moved, then gets its traits and aggregates;
4. offer: inventories that are new or grew;
5. delete: providers that go away, children first. They offer nothing any more, so this may wait until their
   children were moved out; where their name is wanted before, they step aside to another one.

A plan may be cut off after any operation: planning again from there reaches the same end.
Moving inventory together with the allocations on it is not a plan but a reshape.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isclose
from typing import Any, ClassVar

from agent.tree import Inventories, Inventory, Provider, ProviderTree

Names = frozenset[str]

CUSTOM = "CUSTOM_"
_NAME_MAX = 200
_RATIO_TOLERANCE = 1e-5  # some databases keep a ratio in single precision


class _Record:
    """What every operation can do; `kind` is its stable name for programs."""

    __slots__ = ()
    kind: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """{"operation": kind, field: value, ...}, JSON-ready."""
        found: dict[str, Any] = {"operation": self.kind}
        for each in fields(self):  # type: ignore[arg-type]
            found[each.name] = _json_ready(getattr(self, each.name))
        return found


@dataclass(frozen=True, slots=True)
class CreateResourceClass(_Record):
    kind: ClassVar[str] = "create_resource_class"
    name: str

    def line(self) -> str:
        return f"Create the resource class {self.name}."


@dataclass(frozen=True, slots=True)
class CreateTrait(_Record):
    kind: ClassVar[str] = "create_trait"
    name: str

    def line(self) -> str:
        return f"Create the trait {self.name}."


@dataclass(frozen=True, slots=True)
class CreateProvider(_Record):
    """`parent` is a uuid, `parent_name` is for people; both None for a root."""

    kind: ClassVar[str] = "create_provider"
    provider: str
    name: str
    parent: str | None = None
    parent_name: str | None = None

    def line(self) -> str:
        return f"Create the provider {self.name} {_below(self.parent_name)}."


@dataclass(frozen=True, slots=True)
class RenameProvider(_Record):
    kind: ClassVar[str] = "rename_provider"
    provider: str
    before: str
    after: str

    def line(self) -> str:
        return f"Rename the provider {self.before} -> {self.after}."


@dataclass(frozen=True, slots=True)
class MoveProvider(_Record):
    """Give a provider another parent (microversion 1.37); parents are uuids, their names are for people."""

    kind: ClassVar[str] = "move_provider"
    provider: str
    name: str
    before: str | None
    after: str | None
    before_name: str | None = None
    after_name: str | None = None

    def line(self) -> str:
        return f"Move the provider {self.name} from {_below(self.before_name)} to {_below(self.after_name)}."


@dataclass(frozen=True, slots=True)
class _PutNames(_Record):
    what: ClassVar[str] = ""
    provider: str
    name: str
    before: Names
    after: Names

    def line(self) -> str:
        changes = (("add", self.after - self.before), ("remove", self.before - self.after))
        words = "; ".join(f"{verb} {', '.join(sorted(names))}" for verb, names in changes if names)
        return f"Put the {self.what} of {self.name}: {words}."


class PutTraits(_PutNames):
    __slots__ = ()
    kind = "put_traits"
    what = "traits"


class PutAggregates(_PutNames):
    __slots__ = ()
    kind = "put_aggregates"
    what = "aggregates"


@dataclass(frozen=True, slots=True)
class PutInventories(_Record):
    kind: ClassVar[str] = "put_inventories"
    provider: str
    name: str
    before: Inventories
    after: Inventories

    def line(self) -> str:
        return f"Put the inventories of {self.name}: {_inventory_change(self.before, self.after)}."


@dataclass(frozen=True, slots=True)
class DeleteInventories(_Record):
    kind: ClassVar[str] = "delete_inventories"
    provider: str
    name: str
    before: Inventories

    def line(self) -> str:
        return f"Delete the inventories of {self.name}: {_inventory_change(self.before, {})}."


@dataclass(frozen=True, slots=True)
class DeleteProvider(_Record):
    kind: ClassVar[str] = "delete_provider"
    provider: str
    name: str

    def line(self) -> str:
        return f"Delete the provider {self.name}."


ContentsOperation = PutTraits | PutAggregates | PutInventories | DeleteInventories
"""Operations that change what is on a provider, guarded by its generation."""

Operation = (
    CreateResourceClass
    | CreateTrait
    | CreateProvider
    | RenameProvider
    | MoveProvider
    | ContentsOperation
    | DeleteProvider
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations in the order in which they must be written."""

    operations: tuple[Operation, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.operations

    def lines(self) -> tuple[str, ...]:
        """One sentence an operation, with names, old -> new."""
        return tuple(operation.line() for operation in self.operations)

    def to_json(self) -> list[dict[str, Any]]:
        """JSON-ready: one {"operation": kind, ...} for each."""
        return [operation.to_json() for operation in self.operations]


def plan(current: ProviderTree, desired: ProviderTree) -> Plan:
    """What to write so that `current`, placement's tree, becomes `desired`; providers are told by uuid."""
    taken_back, settled = _take_back(current, desired)
    operations = [*taken_back, *_build(current, desired, settled), *_offer(current, desired)]
    names = _new_names(current, operations)
    return Plan((*names, *operations, *_delete(current, desired, operations)))


def apply_operation(tree: ProviderTree, operation: Operation) -> ProviderTree:
    """The tree as it is after one operation. Raises KeyError or TreeError where it makes no sense."""
    match operation:
        case CreateResourceClass() | CreateTrait():
            return tree
        case CreateProvider():
            return tree.with_provider(Provider(operation.provider, operation.name, operation.parent))
        case RenameProvider():
            return tree.with_provider(replace(tree[operation.provider], name=operation.after))
        case MoveProvider():
            return tree.with_provider(replace(tree[operation.provider], parent=operation.after))
        case DeleteProvider():
            return tree.without(operation.provider)
        case _:
            return tree.with_provider(with_contents(tree[operation.provider], operation))


def with_contents(provider: Provider, operation: ContentsOperation) -> Provider:
    """The provider as it is after an operation on its contents."""
    match operation:
        case PutTraits():
            return replace(provider, traits=operation.after)
        case PutAggregates():
            return replace(provider, aggregates=operation.after)
        case PutInventories():
            return replace(provider, inventories=operation.after)
        case DeleteInventories():
            return replace(provider, inventories={})


def same_inventories(one: Inventories, other: Inventories) -> bool:
    """Whether placement would answer the same for both."""
    if one == other:
        return True
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: Inventory, other: Inventory) -> bool:
    close = isclose(one.allocation_ratio, other.allocation_ratio, rel_tol=_RATIO_TOLERANCE)
    return close and one == replace(other, allocation_ratio=one.allocation_ratio)


def _take_back(current: ProviderTree, desired: ProviderTree) -> tuple[list[Operation], set[str]]:
    """The writes that offer less, and the uuids of the kept providers whose contents they settle."""
    found: list[Operation] = []
    settled = set()
    for before in current.bottom_up():
        after = desired.get(before.uuid)
        if after is before:
            continue
        if after is None:
            if before.inventories:
                found.append(DeleteInventories(before.uuid, before.name, before.inventories))
        elif _shrinks(before.inventories, after.inventories):
            settled.add(before.uuid)
            found.extend(_describe(before, after, before.name))
            found.append(
                PutInventories(after.uuid, before.name, before.inventories, after.inventories)
                if after.inventories
                else DeleteInventories(after.uuid, before.name, before.inventories)
            )
    return found, settled


def _build(current: ProviderTree, desired: ProviderTree, settled: set[str]) -> Iterator[Operation]:
    holders = {provider.name: provider.uuid for provider in current}
    aside: dict[str, str] = {}
    for after in desired:
        before = current.get(after.uuid)
        if after is before:
            continue
        name = None if before is None else aside.get(before.uuid, before.name)
        if name != after.name:
            holder = holders.get(after.name)
            if holder is not None:
                aside[holder] = _free_name(after.name, holder, holders, desired)
                holders[aside[holder]] = holder
                yield RenameProvider(holder, after.name, aside[holder])
            holders[after.name] = after.uuid
            if name is not None:
                del holders[name]
                yield RenameProvider(after.uuid, name, after.name)
        if before is None:
            yield CreateProvider(after.uuid, after.name, after.parent, _name_in(desired, after.parent))
            before = Provider(after.uuid, after.name, after.parent)
        elif before.parent != after.parent:
            # The new parent stands in its place already, so it cannot be below this provider.
            yield MoveProvider(
                after.uuid,
                after.name,
                before.parent,
                after.parent,
                _name_in(current, before.parent),
                _name_in(desired, after.parent),
            )
        if after.uuid not in settled:
            yield from _describe(before, after, after.name)


def _offer(current: ProviderTree, desired: ProviderTree) -> Iterator[Operation]:
    for after in desired:
        before = current.get(after.uuid)
        if after is before:
            continue
        old = before.inventories if before else {}
        if not same_inventories(old, after.inventories) and not _shrinks(old, after.inventories):
            yield PutInventories(after.uuid, after.name, old, after.inventories)


def _delete(
    current: ProviderTree, desired: ProviderTree, operations: Iterable[Operation]
) -> Iterator[Operation]:
    names = {each.provider: each.after for each in operations if isinstance(each, RenameProvider)}
    for before in current.bottom_up():
        if before.uuid not in desired:
            yield DeleteProvider(before.uuid, names.get(before.uuid, before.name))


def _describe(before: Provider, after: Provider, name: str) -> Iterator[Operation]:
    if before.traits != after.traits:
        yield PutTraits(after.uuid, name, before.traits, after.traits)
    if before.aggregates != after.aggregates:
        yield PutAggregates(after.uuid, name, before.aggregates, after.aggregates)


def _shrinks(before: Inventories, after: Inventories) -> bool:
    if before is after:
        return False
    return any(
        name not in after or after[name].capacity < inventory.capacity for name, inventory in before.items()
    )


def _free_name(wanted: str, holder: str, holders: Mapping[str, str], desired: ProviderTree) -> str:
    """A name nobody has or will have, for a provider that holds a name wanted by another."""
    name = f"{wanted[: _NAME_MAX - len(holder) - 10]}~{holder}"
    while name in holders or desired.by_name(name) is not None:
        name += "~"
    return name


def _new_names(current: ProviderTree, operations: Iterable[Operation]) -> Iterator[Operation]:
    classes: set[str] = set()
    traits: set[str] = set()
    for operation in operations:
        if isinstance(operation, PutInventories):
            classes.update(name for name in operation.after if name.startswith(CUSTOM))
        elif isinstance(operation, PutTraits):
            traits.update(name for name in operation.after if name.startswith(CUSTOM))
    if classes:
        classes -= {name for provider in current for name in provider.inventories}
    if traits:
        traits -= {name for provider in current for name in provider.traits}
    yield from (CreateResourceClass(name) for name in sorted(classes))
    yield from (CreateTrait(name) for name in sorted(traits))


def _name_in(tree: ProviderTree, uuid: str | None) -> str | None:
    return None if uuid is None else tree[uuid].name


def _below(name: str | None) -> str:
    return "at the root" if name is None else f"under {name}"


def _inventory_change(before: Inventories, after: Inventories) -> str:
    found = []
    for name in sorted({**before, **after}):
        if name not in after:
            found.append(f"{name} {before[name].total} -> none")
        elif name not in before:
            plain = Inventory(after[name].total, max_unit=after[name].max_unit)
            found.append(f"{name} none -> {after[name].total}{_details(plain, after[name])}")
        elif not _same(before[name], after[name]):
            totals = f"{before[name].total} -> {after[name].total}"
            found.append(f"{name} {totals}{_details(before[name], after[name])}")
    return "; ".join(found)


def _details(before: Inventory, after: Inventory) -> str:
    changes = [
        f"{each.name} {getattr(before, each.name)} -> {getattr(after, each.name)}"
        for each in fields(Inventory)
        if each.name != "total" and getattr(before, each.name) != getattr(after, each.name)
    ]
    return f" ({', '.join(changes)})" if changes else ""


def _json_ready(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {name: inventory.to_json() for name, inventory in sorted(value.items())}
    return value
