"""The committed state of the embedded core in memory: frozen records, and indexes for the questions of rules.

Records are values: a change puts a new record in place of the old one, so that a record that a reader holds
never changes. Their mappings must not be modified.

`Model` has what is on disk. A reader holds `model.lock` while it reads more than one record; the writer takes
it only while it applies a committed `Draft` (see draft.py). The public dictionaries are for reading; only
`apply` and `load` change them. They are ordered by creation.

Amounts are whole units of the resource class; times are seconds since 1970 (UTC).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from agent.placement.embedded.locks import WriterFirstLock
from agent.placement.embedded.records import ConsumerRecord, ProviderRecord

if TYPE_CHECKING:
    from agent.placement.embedded.draft import Draft

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
        """See `CoreState.tree`."""
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
        _replace_all(self.traits, draft.traits)
        _replace_all(self.resource_classes, draft.resource_classes)
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


def _replace_all(names: dict[str, float], changes: Mapping[str, float | None]) -> None:
    for name, created_at in changes.items():
        if created_at is None:
            names.pop(name, None)
        else:
            names[name] = created_at


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
