"""What the embedded core holds: frozen records, the committed state in memory, and drafts of writes over it.

Records are values: a change puts a new record in place of the old one, so that a record that a reader holds
never changes. Their mappings must not be modified.

Each write makes a `Draft` over the state that it sees, reads and changes the state through it, and either
raises (the draft is discarded, nothing has changed) or returns. The writer thread keeps one draft for a group
of writes: the draft of each write is merged into it, the next write of the group reads through both, and
after the commit the group's draft is applied to the model. A record that maps to None is removed.

`Model` has what is on disk. A reader holds `model.lock` while it reads more than one record; the writer takes
it only while it applies a committed `Draft`. The public dictionaries are for reading; only `apply` and `load`
change them. They are ordered by creation.

Amounts are whole units of the resource class; times are seconds since 1970 (UTC).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"


class InventoryRecord(NamedTuple):
    """A provider's inventory of one resource class."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    updated_at: float

    @property
    def capacity(self) -> float:
        """The amount that all allocations together may have; provider summaries truncate it to an integer."""
        return (self.total - self.reserved) * self.allocation_ratio

    def admits(self, amount: int) -> bool:
        """Whether one allocation of `amount` respects min_unit, max_unit and step_size."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0


class ProviderRecord(NamedTuple):
    """A resource provider with inventories, traits and aggregates, without usage."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str
    inventories: Mapping[str, InventoryRecord]
    traits: frozenset[str]
    aggregates: frozenset[str]
    updated_at: float

    def at_next_generation(self, now: float) -> ProviderRecord:
        """The provider after a write at `now`, with the contents of this record itself."""
        return self._replace(generation=self.generation + 1, updated_at=now)

    def shares_contents(self, other: ProviderRecord) -> bool:
        """Whether one record was made of the other, and only generation and time differ."""
        return (
            self.inventories is other.inventories
            and self.traits is other.traits
            and self.aggregates is other.aggregates
            and self.name is other.name
            and self.parent_uuid is other.parent_uuid
            and self.root_uuid is other.root_uuid
        )

    @property
    def is_sharing(self) -> bool:
        """Whether the provider shares its inventory through its aggregates."""
        return SHARING_TRAIT in self.traits


class ConsumerRecord(NamedTuple):
    """A consumer with its allocations, {provider uuid: {resource class: amount}}.

    They are empty only at generation 0: the consumer is barred, so that a first write that comes late is
    rejected, and no request shows it. `consumer_type` is None for a consumer that was last written before
    microversion 1.38 ("unknown").
    """

    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int
    allocations: Mapping[str, Mapping[str, int]]
    updated_at: float

    @property
    def is_barred(self) -> bool:
        """Whether it holds nothing, so that only a write that names generation 0 is accepted."""
        return not self.allocations


class CoreState(Protocol):
    """The questions that rules ask. The model and the drafts over it both answer them."""

    def provider(self, uuid: str) -> ProviderRecord | None:
        """The provider with that uuid."""

    def provider_named(self, name: str) -> ProviderRecord | None:
        """The provider with that name."""

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """The consumer with that uuid."""

    def used(self, provider_uuid: str, resource_class: str) -> int:
        """The sum of the allocations of the resource class on the provider."""

    def children_of(self, provider_uuid: str) -> list[ProviderRecord]:
        """The direct children of the provider."""

    def has_trait(self, name: str) -> bool:
        """Whether the trait exists."""

    def has_resource_class(self, name: str) -> bool:
        """Whether the resource class exists."""

    def consumers_of(self, provider_uuid: str) -> list[ConsumerRecord]:
        """The consumers with allocations on the provider."""

    def barred(self) -> list[ConsumerRecord]:
        """The consumers that are barred and hold nothing."""

    def providers_with_trait(self, name: str) -> list[ProviderRecord]:
        """The providers that have the trait."""

    def providers_with_class(self, name: str) -> list[ProviderRecord]:
        """The providers that have an inventory of the resource class."""


class Draft:
    """Changes over `below`, which is the model or another draft.

    `now`, in seconds since 1970, is the time of the changes; `age_s` tells how long ago such a time was,
    also after an operator set the wall clock.
    """

    def __init__(self, below: CoreState, now: float, age_s: Callable[[float], float] | None = None) -> None:
        self.below = below
        self.now = now
        self.age_s = age_s or (lambda stamp: now - stamp)
        self.providers: dict[str, ProviderRecord | None] = {}
        self.consumers: dict[str, ConsumerRecord | None] = {}
        self.traits: dict[str, float | None] = {}
        self.resource_classes: dict[str, float | None] = {}
        self._used: dict[tuple[str, str], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the draft changes nothing."""
        return not (self.providers or self.consumers or self.traits or self.resource_classes)

    # -- changes --

    def put_provider(self, provider: ProviderRecord) -> None:
        """Add or replace the provider."""
        self.providers[provider.uuid] = provider

    def drop_provider(self, uuid: str) -> None:
        """Remove the provider."""
        self.providers[uuid] = None

    def put_consumer(self, uuid: str, consumer: ConsumerRecord | None) -> None:
        """Add or replace the consumer; None removes it. The usage changes with it."""
        old = self.consumer(uuid)
        if old is not None:
            self._add_usage(old, -1)
        if consumer is not None:
            self._add_usage(consumer, 1)
        self.consumers[uuid] = consumer

    def put_trait(self, name: str) -> None:
        """Add the trait."""
        self.traits[name] = self.now

    def drop_trait(self, name: str) -> None:
        """Remove the trait."""
        self.traits[name] = None

    def put_resource_class(self, name: str) -> None:
        """Add the resource class."""
        self.resource_classes[name] = self.now

    def drop_resource_class(self, name: str) -> None:
        """Remove the resource class."""
        self.resource_classes[name] = None

    def next(self, now: float) -> Draft:
        """A draft for the next write of the group: over this one, once this one has changes."""
        return Draft(self.below if self.is_empty else self, now, self.age_s)

    def merge(self, other: Draft) -> None:
        """Take over the changes of the draft that `next` made."""
        self.providers.update(other.providers)
        self.consumers.update(other.consumers)
        self.traits.update(other.traits)
        self.resource_classes.update(other.resource_classes)
        self._used.update(other._used)

    def _add_usage(self, consumer: ConsumerRecord, sign: int) -> None:
        for provider_uuid, resources in consumer.allocations.items():
            for resource_class, amount in resources.items():
                before = self.used(provider_uuid, resource_class)
                self._used[provider_uuid, resource_class] = before + sign * amount

    # -- the state with the changes --

    def provider(self, uuid: str) -> ProviderRecord | None:
        """See `CoreState.provider`."""
        return self.providers[uuid] if uuid in self.providers else self.below.provider(uuid)

    def provider_named(self, name: str) -> ProviderRecord | None:
        """See `CoreState.provider_named`."""
        for provider in self.providers.values():
            if provider is not None and provider.name == name:
                return provider
        below = self.below.provider_named(name)
        return None if below is None or below.uuid in self.providers else below

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """See `CoreState.consumer`."""
        return self.consumers[uuid] if uuid in self.consumers else self.below.consumer(uuid)

    def consumers_of(self, provider_uuid: str) -> list[ConsumerRecord]:
        """See `CoreState.consumers_of`."""
        below = [c for c in self.below.consumers_of(provider_uuid) if c.uuid not in self.consumers]
        return below + [
            c for c in self.consumers.values() if c is not None and provider_uuid in c.allocations
        ]

    def barred(self) -> list[ConsumerRecord]:
        """See `CoreState.barred`."""
        below = [c for c in self.below.barred() if c.uuid not in self.consumers]
        return below + [c for c in self.consumers.values() if c is not None and c.is_barred]

    def used(self, provider_uuid: str, resource_class: str) -> int:
        """See `CoreState.used`."""
        used = self._used.get((provider_uuid, resource_class))
        return self.below.used(provider_uuid, resource_class) if used is None else used

    def children_of(self, provider_uuid: str) -> list[ProviderRecord]:
        """See `CoreState.children_of`."""
        changed = [p for p in self.providers.values() if p is not None and p.parent_uuid == provider_uuid]
        return self._unchanged(self.below.children_of(provider_uuid)) + changed

    def _unchanged(self, providers: list[ProviderRecord]) -> list[ProviderRecord]:
        return [provider for provider in providers if provider.uuid not in self.providers]

    def has_trait(self, name: str) -> bool:
        """See `CoreState.has_trait`."""
        return self.traits[name] is not None if name in self.traits else self.below.has_trait(name)

    def has_resource_class(self, name: str) -> bool:
        """See `CoreState.has_resource_class`."""
        if name in self.resource_classes:
            return self.resource_classes[name] is not None
        return self.below.has_resource_class(name)

    def providers_with_trait(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_trait`."""
        changed = [p for p in self.providers.values() if p is not None and name in p.traits]
        return self._unchanged(self.below.providers_with_trait(name)) + changed

    def providers_with_class(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_class`."""
        changed = [p for p in self.providers.values() if p is not None and name in p.inventories]
        return self._unchanged(self.below.providers_with_class(name)) + changed


class WriterFirstLock:
    """A mutual exclusion of all holders, in which a waiting writer goes before readers that come after it.

    A thread that releases a plain lock may take it again before the threads that wait for it. A few busy
    readers could so keep the writer out for seconds, and with it all threads that wait for a write.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._writer_waits = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock as a reader."""
        if self._writer_waits:
            with self._turn:  # the writer holds it until it has the lock and is done
                pass
        with self._lock:
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock as the writer."""
        with self._turn:
            self._writer_waits = True
            try:
                with self._lock:
                    yield
            finally:
                self._writer_waits = False


OrderedSet = dict[str, None]
"""A set of uuids in insertion order."""


class Model:
    """The state. `traits` and `resource_classes` map each existing name to its creation time."""

    def __init__(self, traits: Mapping[str, float], resource_classes: Mapping[str, float]) -> None:
        self.lock = WriterFirstLock()
        self.traits: dict[str, float] = dict(traits)
        self.resource_classes: dict[str, float] = dict(resource_classes)
        self.providers: dict[str, ProviderRecord] = {}
        self.consumers: dict[str, ConsumerRecord] = {}
        # Indexes, derived from the records above. A missing key stands for an empty entry.
        self.uuid_by_name: dict[str, str] = {}
        self.children: dict[str, OrderedSet] = {}
        """Provider uuid -> uuids of its direct children."""
        self.trees: dict[str, OrderedSet] = {}
        """Root uuid -> uuids of the whole tree, the root included."""
        self.providers_by_trait: dict[str, OrderedSet] = {}
        self.providers_by_aggregate: dict[str, OrderedSet] = {}
        self.providers_by_class: dict[str, OrderedSet] = {}
        """Resource class -> uuids of the providers with an inventory of it."""
        self.usages: dict[str, Mapping[str, int]] = {}
        """Provider uuid -> {resource class: sum of the allocations}, without zeros, as a value."""
        self.consumers_by_provider: dict[str, OrderedSet] = {}
        self.barred_consumers: OrderedSet = {}
        self.changes = 0
        """The number of applied drafts: a key for caches of what a reader derives from the model."""

    # -- CoreState --

    def provider(self, uuid: str) -> ProviderRecord | None:
        """See `CoreState.provider`."""
        return self.providers.get(uuid)

    def provider_named(self, name: str) -> ProviderRecord | None:
        """See `CoreState.provider_named`."""
        uuid = self.uuid_by_name.get(name)
        return None if uuid is None else self.providers[uuid]

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """See `CoreState.consumer`."""
        return self.consumers.get(uuid)

    def consumers_of(self, provider_uuid: str) -> list[ConsumerRecord]:
        """See `CoreState.consumers_of`."""
        return [self.consumers[uuid] for uuid in self.consumers_by_provider.get(provider_uuid, ())]

    def barred(self) -> list[ConsumerRecord]:
        """See `CoreState.barred`."""
        return [self.consumers[uuid] for uuid in self.barred_consumers]

    def used(self, provider_uuid: str, resource_class: str) -> int:
        """See `CoreState.used`."""
        usage = self.usages.get(provider_uuid)
        return 0 if usage is None else usage.get(resource_class, 0)

    def children_of(self, provider_uuid: str) -> list[ProviderRecord]:
        """See `CoreState.children_of`."""
        return [self.providers[uuid] for uuid in self.children.get(provider_uuid, ())]

    def tree(self, root_uuid: str) -> list[ProviderRecord]:
        """All providers with that root, including the root."""
        return [self.providers[uuid] for uuid in self.trees.get(root_uuid, ())]

    def has_trait(self, name: str) -> bool:
        """See `CoreState.has_trait`."""
        return name in self.traits

    def has_resource_class(self, name: str) -> bool:
        """See `CoreState.has_resource_class`."""
        return name in self.resource_classes

    def providers_with_trait(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_trait`."""
        return [self.providers[uuid] for uuid in self.providers_by_trait.get(name, ())]

    def providers_with_class(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_class`."""
        return [self.providers[uuid] for uuid in self.providers_by_class.get(name, ())]

    # -- writing --

    def apply(self, draft: Draft) -> None:
        """Take over the changes of a committed draft; the caller holds the lock."""
        for names, changes in ((self.traits, draft.traits), (self.resource_classes, draft.resource_classes)):
            for name, created_at in changes.items():
                if created_at is None:
                    names.pop(name, None)
                else:
                    names[name] = created_at
        for uuid, provider in draft.providers.items():
            self._put_provider(uuid, provider)
        for uuid, consumer in draft.consumers.items():
            self._put_consumer(uuid, consumer)
        self.changes += 1

    def load(self, providers: Iterable[ProviderRecord], consumers: Iterable[ConsumerRecord]) -> None:
        """Fill an empty model, in the order in which the records were created."""
        for provider in providers:
            self._put_provider(provider.uuid, provider)
        for consumer in consumers:
            self._put_consumer(consumer.uuid, consumer)

    def _put_provider(self, uuid: str, new: ProviderRecord | None) -> None:
        old = self.providers.get(uuid)
        if new is None:
            self.providers.pop(uuid, None)
        else:
            self.providers[uuid] = new
            if old is not None and new.shares_contents(old):
                return  # no index changes
        if old is not None and self.uuid_by_name.get(old.name) == uuid:
            # Another provider of the same draft may already have the name: then the entry stays.
            del self.uuid_by_name[old.name]
        if new is not None:
            self.uuid_by_name[new.name] = uuid
        _reindex(self.children, uuid, _as_keys(old and old.parent_uuid), _as_keys(new and new.parent_uuid))
        _reindex(self.trees, uuid, _as_keys(old and old.root_uuid), _as_keys(new and new.root_uuid))
        _reindex(self.providers_by_trait, uuid, old.traits if old else (), new.traits if new else ())
        _reindex(
            self.providers_by_aggregate, uuid, old.aggregates if old else (), new.aggregates if new else ()
        )
        _reindex(
            self.providers_by_class, uuid, old.inventories if old else (), new.inventories if new else ()
        )

    def _put_consumer(self, uuid: str, new: ConsumerRecord | None) -> None:
        old = self.consumers.get(uuid)
        old_allocations: Mapping[str, Mapping[str, int]] = old.allocations if old else {}
        new_allocations: Mapping[str, Mapping[str, int]] = new.allocations if new else {}
        if new is None:
            self.consumers.pop(uuid, None)
        else:
            self.consumers[uuid] = new
        self.barred_consumers.pop(uuid, None)
        if new is not None and new.is_barred:
            self.barred_consumers[uuid] = None
        for provider_uuid, resources in old_allocations.items():
            self._add_usage(provider_uuid, resources, -1)
        for provider_uuid, resources in new_allocations.items():
            self._add_usage(provider_uuid, resources, 1)
        _reindex(self.consumers_by_provider, uuid, old_allocations, new_allocations)

    def _add_usage(self, provider_uuid: str, resources: Mapping[str, int], sign: int) -> None:
        usage = dict(self.usages.get(provider_uuid, {}))
        for resource_class, amount in resources.items():
            left = usage.get(resource_class, 0) + sign * amount
            if left:
                usage[resource_class] = left
            else:
                usage.pop(resource_class, None)
        if usage:
            self.usages[provider_uuid] = usage
        else:
            del self.usages[provider_uuid]


def _as_keys(key: str | None) -> tuple[str, ...]:
    return () if key is None else (key,)


def _reindex(
    index: dict[str, OrderedSet], uuid: str, old_keys: Iterable[str], new_keys: Iterable[str]
) -> None:
    """Remove `uuid` from the index under the keys that it lost, and add it under those that it gained."""
    if old_keys is new_keys or old_keys == new_keys:
        return
    kept = set(new_keys)
    for key in old_keys:
        if key not in kept:
            entry = index[key]
            del entry[uuid]
            if not entry:
                del index[key]
    before = set(old_keys)
    for key in new_keys:
        if key not in before:
            index.setdefault(key, {})[uuid] = None
