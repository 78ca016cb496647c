"""The provider tree: frozen value types, indexed by uuid and by name. Pure.

Terms are OpenStack Placement's: a *resource provider* has an *inventory* per resource class, *traits* and
*aggregates*, and a *generation* that placement raises with each change.
Source: https://docs.openstack.org/api-ref/placement/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields

from agent.errors import TreeError

MAX_UNIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Inventory:
    """How much of one resource class a provider has.

    `reserved` is not for guests; capacity is `(total - reserved) * allocation_ratio`; one consumer may hold
    between `min_unit` and `max_unit`, in multiples of `step_size`.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MAX_UNIT
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.allocation_ratio)

    def to_json(self) -> dict[str, int | float]:
        """As the Placement API writes it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


Inventories = Mapping[str, Inventory]
"""{resource class: inventory} of one provider"""

InventoriesByProvider = Mapping[str, Inventories]
"""{provider uuid: {resource class: inventory}}"""


@dataclass(frozen=True, slots=True)
class Provider:
    """One resource provider. `parent` is a uuid, None for a root.

    `generation` is what placement last said, None if placement does not have the provider; it is no part of
    what a provider *is*, so equality leaves it out.
    """

    uuid: str
    name: str
    parent: str | None = None
    inventories: Inventories = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    generation: int | None = field(default=None, compare=False)


class ProviderTree:
    """An immutable set of providers whose parents are in it; a change makes a new tree.

    Iteration goes from the roots down, parents before their children, siblings by name; two trees are equal
    when their providers are. Making a tree raises TreeError for a uuid or a name given twice, a parent that
    is not in it, or a provider that is its own ancestor.
    """

    __slots__ = ("_by_uuid", "_children", "_uuid_by_name")

    def __init__(self, providers: Iterable[Provider] = ()) -> None:
        self._by_uuid: dict[str, Provider] = {}
        self._uuid_by_name: dict[str, str] = {}
        for provider in providers:
            self._add(provider)
        self._children = self._linked()
        self._check_cycles()

    def _add(self, provider: Provider) -> None:
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
                "rename one, a name stands for one provider."
            )
        self._by_uuid[provider.uuid] = provider
        self._uuid_by_name[provider.name] = provider.uuid

    def _linked(self) -> dict[str | None, tuple[str, ...]]:
        """{parent: its children's uuids, by name}; the roots stand under None."""
        children: dict[str | None, list[Provider]] = {}
        for provider in self._by_uuid.values():
            if provider.parent is not None and provider.parent not in self._by_uuid:
                raise TreeError(
                    f"Provider {provider.name!r} ({provider.uuid}) hangs under {provider.parent}, "
                    "which is not in the tree."
                )
            children.setdefault(provider.parent, []).append(provider)
        return {
            parent: tuple(child.uuid for child in sorted(below, key=lambda child: child.name))
            for parent, below in children.items()
        }

    def _check_cycles(self) -> None:
        reached = {provider.uuid for provider in self}
        for provider in self._by_uuid.values():
            if provider.uuid not in reached:
                raise TreeError(f"Provider {provider.name!r} ({provider.uuid}) is among its own ancestors.")

    def get(self, uuid: str) -> Provider | None:
        return self._by_uuid.get(uuid)

    def __getitem__(self, uuid: str) -> Provider:
        """Raises KeyError for a provider that is not in the tree."""
        return self._by_uuid[uuid]

    def by_name(self, name: str) -> Provider | None:
        uuid = self._uuid_by_name.get(name)
        return None if uuid is None else self._by_uuid[uuid]

    def children(self, uuid: str) -> tuple[Provider, ...]:
        return tuple(self._by_uuid[child] for child in self._children.get(uuid, ()))

    @property
    def roots(self) -> tuple[Provider, ...]:
        return tuple(self._by_uuid[root] for root in self._children.get(None, ()))

    def subtree(self, uuid: str) -> tuple[Provider, ...]:
        """The provider and all below it, parents first. Raises KeyError for one that is not in the tree."""
        return tuple(self._walk((self._by_uuid[uuid].uuid,)))

    def ancestors(self, uuid: str) -> tuple[Provider, ...]:
        """From the parent up to the root. Raises KeyError for a provider that is not in the tree."""
        found = []
        parent = self._by_uuid[uuid].parent
        while parent is not None:
            provider = self._by_uuid[parent]
            found.append(provider)
            parent = provider.parent
        return tuple(found)

    def root_of(self, uuid: str) -> Provider:
        """Raises KeyError for a provider that is not in the tree."""
        above = self.ancestors(uuid)
        return above[-1] if above else self._by_uuid[uuid]

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
        """The tree with this provider added, or put in the place of the one with its uuid."""
        before = self._by_uuid.get(provider.uuid)
        if before is None or (before.name, before.parent) != (provider.name, provider.parent):
            return ProviderTree({**self._by_uuid, provider.uuid: provider}.values())
        tree = ProviderTree.__new__(ProviderTree)
        tree._by_uuid = {**self._by_uuid, provider.uuid: provider}
        tree._uuid_by_name = self._uuid_by_name
        tree._children = self._children
        return tree

    def without(self, uuid: str) -> "ProviderTree":
        """The tree without one provider. Raises TreeError if it has children, KeyError if it is not there."""
        gone = self._by_uuid[uuid]
        below = self.children(uuid)
        if below:
            raise TreeError(
                f"Provider {gone.name!r} ({uuid}) cannot leave the tree: "
                f"{', '.join(child.name for child in below)} would hang under nothing."
            )
        return ProviderTree(provider for provider in self._by_uuid.values() if provider.uuid != uuid)
