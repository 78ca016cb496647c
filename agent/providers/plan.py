"""The planner: the writes that turn Placement's current provider tree into the desired one. Pure.

`plan(current, desired)` compares two trees and returns ordered, typed operations. Each operation is one write
to Placement. The order ensures that a scheduler never sees a provider with inventory and without its traits,
nor the same units offered twice:

1. names: create resource classes and traits that Placement may not know yet (twice does no harm);
2. take back: remove the inventories of providers that go away, children first, and lower those that shrink.
   The same plan may offer these units elsewhere, so it takes them back first;
3. build: from the root down, create, rename or move each provider, then put its traits and aggregates;
4. offer: put inventories that are new or grow;
5. delete: delete providers that go away, children first. They offer nothing any more, so this can wait until
   their children were moved out. A provider whose name is needed earlier is renamed first.

A plan may be interrupted after any operation: a new plan from there reaches the same end.
To move inventory together with its allocations is not a plan but a reshape (`agent.reshape`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import isclose
from typing import Any, ClassVar

from agent.tree import Inventories, Inventory, Provider, ProviderTree

CUSTOM = "CUSTOM_"
_NAME_MAX = 200
_RATIO_TOLERANCE = 1e-5  # some databases keep a ratio in single precision


class _Operation:
    """Base of all operations; `kind` is the stable name of an operation for programs."""

    __slots__ = ()
    kind: ClassVar[str] = ""

    def to_json(self) -> dict[str, Any]:
        """{"operation": kind, field: value, ...}, JSON-ready."""
        record: dict[str, Any] = {"operation": self.kind}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, frozenset):
                value = sorted(value)
            elif isinstance(value, Mapping):
                value = {name: inventory.to_json() for name, inventory in sorted(value.items())}
            record[field.name] = value
        return record


@dataclass(frozen=True, slots=True)
class CreateResourceClass(_Operation):
    """Create a custom resource class (PUT /resource_classes/{name})."""

    kind: ClassVar[str] = "create_resource_class"
    name: str

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Create the resource class {self.name}."


@dataclass(frozen=True, slots=True)
class CreateTrait(_Operation):
    """Create a custom trait (PUT /traits/{name})."""

    kind: ClassVar[str] = "create_trait"
    name: str

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Create the trait {self.name}."


@dataclass(frozen=True, slots=True)
class CreateProvider(_Operation):
    """Create a provider. `parent` is a uuid, `parent_name` its name for `line`; both are None for a root."""

    kind: ClassVar[str] = "create_provider"
    provider: str
    name: str
    parent: str | None = None
    parent_name: str | None = None

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Create the provider {self.name} {_below(self.parent_name)}."


@dataclass(frozen=True, slots=True)
class RenameProvider(_Operation):
    """Change the name of a provider from `before` to `after`."""

    kind: ClassVar[str] = "rename_provider"
    provider: str
    before: str
    after: str

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Rename the provider {self.before} -> {self.after}."


@dataclass(frozen=True, slots=True)
class MoveProvider(_Operation):
    """Give a provider another parent (microversion 1.37); parents are uuids, their names are for `line`."""

    kind: ClassVar[str] = "move_provider"
    provider: str
    name: str
    before: str | None
    after: str | None
    before_name: str | None = None
    after_name: str | None = None

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Move the provider {self.name} from {_below(self.before_name)} to {_below(self.after_name)}."


@dataclass(frozen=True, slots=True)
class _PutNames(_Operation):
    what: ClassVar[str] = ""
    provider: str
    name: str
    before: frozenset[str]
    after: frozenset[str]

    def line(self) -> str:
        """One sentence for an operator."""
        changes = (("add", self.after - self.before), ("remove", self.before - self.after))
        words = "; ".join(f"{verb} {', '.join(sorted(names))}" for verb, names in changes if names)
        return f"Put the {self.what} of {self.name}: {words}."


class PutTraits(_PutNames):
    """Replace the traits of a provider."""

    __slots__ = ()
    kind = "put_traits"
    what = "traits"


class PutAggregates(_PutNames):
    """Replace the aggregates of a provider; aggregates are uuids."""

    __slots__ = ()
    kind = "put_aggregates"
    what = "aggregates"


@dataclass(frozen=True, slots=True)
class PutInventories(_Operation):
    """Replace all inventories of a provider, {class: inventory}."""

    kind: ClassVar[str] = "put_inventories"
    provider: str
    name: str
    before: Inventories
    after: Inventories

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Put the inventories of {self.name}: {_inventory_change(self.before, self.after)}."


@dataclass(frozen=True, slots=True)
class DeleteInventories(_Operation):
    """Delete all inventories of a provider."""

    kind: ClassVar[str] = "delete_inventories"
    provider: str
    name: str
    before: Inventories

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Delete the inventories of {self.name}: {_inventory_change(self.before, {})}."


@dataclass(frozen=True, slots=True)
class DeleteProvider(_Operation):
    """Delete a provider that has no inventories and no children any more."""

    kind: ClassVar[str] = "delete_provider"
    provider: str
    name: str

    def line(self) -> str:
        """One sentence for an operator."""
        return f"Delete the provider {self.name}."


ContentsOperation = PutTraits | PutAggregates | PutInventories | DeleteInventories
"""Operations that change the contents of a provider; Placement guards them by the provider's generation."""

Operation = (
    CreateResourceClass
    | CreateTrait
    | CreateProvider
    | RenameProvider
    | MoveProvider
    | ContentsOperation
    | DeleteProvider
)
"""One write to Placement; providers are named by uuid."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations in the order in which they must be written."""

    operations: tuple[Operation, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.operations

    def lines(self) -> tuple[str, ...]:
        """One sentence an operation, with names, old -> new."""
        return tuple(operation.line() for operation in self.operations)

    def to_json(self) -> list[dict[str, Any]]:
        """JSON-ready: one {"operation": kind, ...} for each."""
        return [operation.to_json() for operation in self.operations]


def plan(current: ProviderTree, desired: ProviderTree) -> Plan:
    """The operations that turn `current`, Placement's tree, into `desired`; providers are matched by uuid."""
    operations: list[Operation] = []
    settled = set()  # providers that stay, and whose contents are complete when their inventories shrink
    for before in current.bottom_up():
        wanted = desired.get(before.uuid)
        if wanted is before:
            continue
        if wanted is None:
            if before.inventories:
                operations.append(DeleteInventories(before.uuid, before.name, before.inventories))
        elif _shrinks(before.inventories, wanted.inventories):
            settled.add(before.uuid)
            operations.extend(_put_traits_and_aggregates(before, wanted, before.name))
            operations.append(
                PutInventories(wanted.uuid, before.name, before.inventories, wanted.inventories)
                if wanted.inventories
                else DeleteInventories(wanted.uuid, before.name, before.inventories)
            )
    operations.extend(_build(current, desired, settled))
    for after in desired:
        present = current.get(after.uuid)
        if after is not present:
            old = present.inventories if present else {}
            if not same_inventories(old, after.inventories) and not _shrinks(old, after.inventories):
                operations.append(PutInventories(after.uuid, after.name, old, after.inventories))
    classes = _custom(name for each in operations if isinstance(each, PutInventories) for name in each.after)
    traits = _custom(name for each in operations if isinstance(each, PutTraits) for name in each.after)
    if classes:
        classes -= {name for provider in current for name in provider.inventories}
    if traits:
        traits -= {name for provider in current for name in provider.traits}
    renamed = {each.provider: each.after for each in operations if isinstance(each, RenameProvider)}
    return Plan(
        (
            *(CreateResourceClass(name) for name in sorted(classes)),
            *(CreateTrait(name) for name in sorted(traits)),
            *operations,
            *(
                DeleteProvider(gone.uuid, renamed.get(gone.uuid, gone.name))
                for gone in current.bottom_up()
                if gone.uuid not in desired
            ),
        )
    )


def _custom(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(CUSTOM)}


def same_inventories(one: Inventories, other: Inventories) -> bool:
    """Whether Placement would return the same for both; its database may round a ratio."""
    if one == other:
        return True
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: Inventory, other: Inventory) -> bool:
    close = isclose(one.allocation_ratio, other.allocation_ratio, rel_tol=_RATIO_TOLERANCE)
    return close and one == replace(other, allocation_ratio=one.allocation_ratio)


def _build(current: ProviderTree, desired: ProviderTree, settled: set[str]) -> Iterator[Operation]:
    holders = {provider.name: provider.uuid for provider in current}
    aside: dict[str, str] = {}
    for after in desired:
        before = current.get(after.uuid)
        name = None if before is None else aside.get(before.uuid, before.name)
        if name != after.name:
            holder = holders.get(after.name)
            if holder is not None:
                # A name that is unused in both trees, for the provider that must give up this one.
                unused = f"{after.name[: _NAME_MAX - len(holder) - 10]}~{holder}"
                while unused in holders or desired.by_name(unused) is not None:
                    unused += "~"
                aside[holder], holders[unused] = unused, holder
                yield RenameProvider(holder, after.name, unused)
            holders[after.name] = after.uuid
            if name is not None:
                del holders[name]
                yield RenameProvider(after.uuid, name, after.name)
        if before is None:
            yield CreateProvider(after.uuid, after.name, after.parent, _name_in(desired, after.parent))
            before = Provider(after.uuid, after.name, after.parent)
        elif before.parent != after.parent:
            # The new parent has reached its place already, so it cannot be below this provider.
            yield MoveProvider(
                after.uuid,
                after.name,
                before.parent,
                after.parent,
                _name_in(current, before.parent),
                _name_in(desired, after.parent),
            )
        if after.uuid not in settled:
            yield from _put_traits_and_aggregates(before, after, after.name)


def _put_traits_and_aggregates(before: Provider, after: Provider, name: str) -> Iterator[Operation]:
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


def _name_in(tree: ProviderTree, uuid: str | None) -> str | None:
    return None if uuid is None else tree[uuid].name


def _below(name: str | None) -> str:
    return "at the root" if name is None else f"under {name}"


def _inventory_change(before: Inventories, after: Inventories) -> str:
    changes = []
    for name in sorted({**before, **after}):
        if name not in after:
            changes.append(f"{name} {before[name].total} -> none")
        elif name not in before:
            plain = Inventory(after[name].total, max_unit=after[name].max_unit)
            changes.append(f"{name} none -> {after[name].total}{_details(plain, after[name])}")
        elif not _same(before[name], after[name]):
            totals = f"{before[name].total} -> {after[name].total}"
            changes.append(f"{name} {totals}{_details(before[name], after[name])}")
    return "; ".join(changes)


def _details(before: Inventory, after: Inventory) -> str:
    changes = [
        f"{field.name} {getattr(before, field.name)} -> {getattr(after, field.name)}"
        for field in fields(Inventory)
        if field.name != "total" and getattr(before, field.name) != getattr(after, field.name)
    ]
    return f" ({', '.join(changes)})" if changes else ""
