"""The changes of writes that are not committed yet, over the state below them.

Each write makes a `Draft` over the state that it sees, reads and changes the state through it, and either
raises (the draft is discarded, nothing has changed) or returns. The writer thread keeps one draft for a group
of writes: the draft of each write is merged into it, the next write of the group reads through both, and
after the commit the group's draft is applied to the model.

A record that maps to None is removed.
"""

from __future__ import annotations

from typing import Protocol

from agent.placement.embedded.records import ConsumerRecord, ProviderRecord


class CoreState(Protocol):
    """The questions that rules ask. The model and the drafts over it both answer them."""

    def provider(self, uuid: str) -> ProviderRecord | None:
        """The provider with that uuid."""
        ...

    def provider_named(self, name: str) -> ProviderRecord | None:
        """The provider with that name."""
        ...

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """The consumer with that uuid."""
        ...

    def used(self, provider_uuid: str, resource_class: str) -> int:
        """The sum of the allocations of the resource class on the provider."""
        ...

    def children_of(self, provider_uuid: str) -> list[ProviderRecord]:
        """The direct children of the provider."""
        ...

    def tree(self, root_uuid: str) -> list[ProviderRecord]:
        """All providers with that root, including the root."""
        ...

    def has_trait(self, name: str) -> bool:
        """Whether the trait exists."""
        ...

    def has_resource_class(self, name: str) -> bool:
        """Whether the resource class exists."""
        ...

    def consumers_of(self, provider_uuid: str) -> list[ConsumerRecord]:
        """The consumers with allocations on the provider."""
        ...

    def barred(self) -> list[ConsumerRecord]:
        """The consumers that are barred and hold nothing."""
        ...

    def providers_with_trait(self, name: str) -> list[ProviderRecord]:
        """The providers that have the trait."""
        ...

    def providers_with_class(self, name: str) -> list[ProviderRecord]:
        """The providers that have an inventory of the resource class."""
        ...


class Draft:
    """Changes over `below`, which is the model or another draft.

    `now`, in seconds since 1970, is the time of the changes.
    """

    def __init__(self, below: CoreState, now: float) -> None:
        self._below = below
        self.now = now
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
        return Draft(self._below if self.is_empty else self, now)

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
        return self.providers[uuid] if uuid in self.providers else self._below.provider(uuid)

    def provider_named(self, name: str) -> ProviderRecord | None:
        """See `CoreState.provider_named`."""
        for provider in self.providers.values():
            if provider is not None and provider.name == name:
                return provider
        below = self._below.provider_named(name)
        return None if below is None or below.uuid in self.providers else below

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """See `CoreState.consumer`."""
        return self.consumers[uuid] if uuid in self.consumers else self._below.consumer(uuid)

    def consumers_of(self, provider_uuid: str) -> list[ConsumerRecord]:
        """See `CoreState.consumers_of`."""
        below = [c for c in self._below.consumers_of(provider_uuid) if c.uuid not in self.consumers]
        return below + [
            c for c in self.consumers.values() if c is not None and provider_uuid in c.allocations
        ]

    def barred(self) -> list[ConsumerRecord]:
        """See `CoreState.barred`."""
        below = [c for c in self._below.barred() if c.uuid not in self.consumers]
        return below + [c for c in self.consumers.values() if c is not None and c.is_barred]

    def used(self, provider_uuid: str, resource_class: str) -> int:
        """See `CoreState.used`."""
        used = self._used.get((provider_uuid, resource_class))
        return self._below.used(provider_uuid, resource_class) if used is None else used

    def children_of(self, provider_uuid: str) -> list[ProviderRecord]:
        """See `CoreState.children_of`."""
        changed = [p for p in self.providers.values() if p is not None and p.parent_uuid == provider_uuid]
        return self._unchanged(self._below.children_of(provider_uuid)) + changed

    def tree(self, root_uuid: str) -> list[ProviderRecord]:
        """See `CoreState.tree`."""
        changed = [p for p in self.providers.values() if p is not None and p.root_uuid == root_uuid]
        return self._unchanged(self._below.tree(root_uuid)) + changed

    def _unchanged(self, providers: list[ProviderRecord]) -> list[ProviderRecord]:
        return [provider for provider in providers if provider.uuid not in self.providers]

    def has_trait(self, name: str) -> bool:
        """See `CoreState.has_trait`."""
        return self.traits[name] is not None if name in self.traits else self._below.has_trait(name)

    def has_resource_class(self, name: str) -> bool:
        """See `CoreState.has_resource_class`."""
        if name in self.resource_classes:
            return self.resource_classes[name] is not None
        return self._below.has_resource_class(name)

    def providers_with_trait(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_trait`."""
        changed = [p for p in self.providers.values() if p is not None and name in p.traits]
        return self._unchanged(self._below.providers_with_trait(name)) + changed

    def providers_with_class(self, name: str) -> list[ProviderRecord]:
        """See `CoreState.providers_with_class`."""
        changed = [p for p in self.providers.values() if p is not None and name in p.inventories]
        return self._unchanged(self._below.providers_with_class(name)) + changed
