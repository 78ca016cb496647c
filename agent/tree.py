"""The provider tree: immutable values, found by uuid and by name. Pure.

Terms are OpenStack Placement's: a *resource provider* has an *inventory* per resource class, *traits* and
*aggregates*, and a *generation* that Placement raises with each change.
Source: https://docs.openstack.org/api-ref/placement/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from agent.errors import TreeError

MAX_UNIT = 2**31 - 1
NIL_UUID = "00000000-0000-0000-0000-000000000000"
"""Stands for the root's uuid where a tree is only drawn up, and not written to Placement"""


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much of one resource class a provider has.

    `reserved` is not available to consumers. One consumer may have from `min_unit` to `max_unit`, in
    multiples of `step_size`.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MAX_UNIT
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        """(total - reserved) * allocation_ratio, rounded down: all that consumers may have together."""
        return int((self.total - self.reserved) * self.allocation_ratio)

    def to_json(self) -> dict[str, int | float]:
        """The inventory as in the Placement API."""
        return {key.name: getattr(self, key.name) for key in fields(self)}


Inventories = Mapping[str, Inventory]
"""{resource class: inventory} of one provider"""

InventoriesByProvider = Mapping[str, Inventories]
"""{provider uuid: {resource class: inventory}}"""


@dataclass(frozen=True, slots=True)
class Provider:
    """One resource provider. `parent` is a uuid, None for a root.

    `generation` is the last one known of Placement, None if Placement does not have the provider. Equality
    ignores it.
    """

    uuid: str
    name: str
    parent: str | None = None
    inventories: Inventories = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    generation: int | None = field(default=None, compare=False)

    def with_inventory(self, resource_class: str, inventory: Inventory | None) -> "Provider":
        """The provider with this inventory of the class; None: without one."""
        inventories = dict(self.inventories)
        if inventory is None:
            inventories.pop(resource_class, None)
        else:
            inventories[resource_class] = inventory
        return replace(self, inventories=inventories)


class ProviderTree:
    """An immutable set of providers that contains their parents.

    Iteration starts at the roots: parents come before children, siblings in the order of their names. Trees
    are equal if their providers are. The constructor raises TreeError where two providers have the same uuid
    or name, a parent is missing, or a provider is its own ancestor.
    """

    __slots__ = ("_by_uuid", "_children", "_uuid_by_name")

    def __init__(self, providers: Iterable[Provider] = ()) -> None:
        self._by_uuid: dict[str, Provider] = {}
        self._uuid_by_name: dict[str, str] = {}
        for provider in providers:
            twin = self._by_uuid.get(provider.uuid)
            if twin is not None:
                raise TreeError(
                    f"Providers {twin.name!r} and {provider.name!r} both have the uuid {provider.uuid}: "
                    "give each its own."
                )
            holder = self._uuid_by_name.get(provider.name)
            if holder is not None:
                raise TreeError(
                    f"Two providers are named {provider.name!r} ({holder} and {provider.uuid}): "
                    "rename one of them."
                )
            self._by_uuid[provider.uuid] = provider
            self._uuid_by_name[provider.name] = provider.uuid
        children: dict[str | None, list[Provider]] = {}
        for provider in self._by_uuid.values():
            if provider.parent is not None and provider.parent not in self._by_uuid:
                raise TreeError(
                    f"Provider {provider.name!r} ({provider.uuid}) has the parent {provider.parent}, "
                    "which is not in the tree."
                )
            children.setdefault(provider.parent, []).append(provider)
        # {parent uuid: uuids of its children, in the order of names}; the roots are under None.
        self._children = {
            parent: tuple(child.uuid for child in sorted(below, key=lambda child: child.name))
            for parent, below in children.items()
        }
        reached = {provider.uuid for provider in self}
        for provider in self._by_uuid.values():
            if provider.uuid not in reached:
                raise TreeError(f"Provider {provider.name!r} ({provider.uuid}) is among its own ancestors.")

    def get(self, uuid: str) -> Provider | None:
        """The provider with this uuid, None if it is not in the tree."""
        return self._by_uuid.get(uuid)

    def __getitem__(self, uuid: str) -> Provider:
        """Raises KeyError for a provider that is not in the tree."""
        return self._by_uuid[uuid]

    def by_name(self, name: str) -> Provider | None:
        """The provider with this name, None if it is not in the tree."""
        uuid = self._uuid_by_name.get(name)
        return None if uuid is None else self._by_uuid[uuid]

    @property
    def roots(self) -> tuple[Provider, ...]:
        """The providers without a parent, in the order of their names."""
        return tuple(self._by_uuid[root] for root in self._children.get(None, ()))

    def subtree(self, uuid: str) -> tuple[Provider, ...]:
        """The provider and its descendants, parents first. Raises KeyError where it is not in the tree."""
        return tuple(self._walk((self._by_uuid[uuid].uuid,)))

    def ancestors(self, uuid: str) -> tuple[Provider, ...]:
        """The ancestors, from the parent to the root. Raises KeyError where `uuid` is not in the tree."""
        ancestors = []
        parent = self._by_uuid[uuid].parent
        while parent is not None:
            provider = self._by_uuid[parent]
            ancestors.append(provider)
            parent = provider.parent
        return tuple(ancestors)

    def root_of(self, uuid: str) -> Provider:
        """The root above a provider, or the provider itself. Raises KeyError where it is not in the tree."""
        ancestors = self.ancestors(uuid)
        return ancestors[-1] if ancestors else self._by_uuid[uuid]

    def _walk(self, uuids: Iterable[str]) -> Iterator[Provider]:
        waiting = list(uuids)[::-1]
        while waiting:
            uuid = waiting.pop()
            yield self._by_uuid[uuid]
            waiting.extend(reversed(self._children.get(uuid, ())))

    def __iter__(self) -> Iterator[Provider]:
        return self._walk(self._children.get(None, ()))

    def bottom_up(self) -> Iterator[Provider]:
        """Children before their parents."""
        return reversed(list(self))

    def __len__(self) -> int:
        return len(self._by_uuid)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._by_uuid

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProviderTree):
            return NotImplemented
        return self._by_uuid == other._by_uuid

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProviderTree({list(self)!r})"

    def with_provider(self, provider: Provider) -> "ProviderTree":
        """The tree with this provider added, or in the place of the one with its uuid."""
        before = self._by_uuid.get(provider.uuid)
        if before is None or (before.name, before.parent) != (provider.name, provider.parent):
            return ProviderTree({**self._by_uuid, provider.uuid: provider}.values())
        tree = ProviderTree.__new__(ProviderTree)
        tree._by_uuid = {**self._by_uuid, provider.uuid: provider}
        tree._uuid_by_name = self._uuid_by_name
        tree._children = self._children
        return tree
