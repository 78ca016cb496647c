"""One tree as a search reads it: its providers and their usage at one moment.

The search works on the view without a lock, so that no write waits for it. Trees that are searched one after
the other may be of different moments; a candidate is of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.placement.embedded.model import Model
from agent.placement.embedded.records import SHARING_TRAIT, ProviderRecord


class TreeView:
    """The providers in reach of a tree (`reachable`), and the records that a question about them needs.

    `providers` has these, the ancestors of the sharing ones, and the providers that the query names.
    """

    def __init__(
        self,
        reachable: list[ProviderRecord],
        providers: Mapping[str, ProviderRecord],
        usages: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.reachable = reachable
        self.providers = providers
        self._usages = usages

    def used(self, uuid: str, resource_class: str) -> int:
        """The sum of the allocations of the resource class on the provider."""
        usage = self._usages.get(uuid)
        return 0 if usage is None else usage.get(resource_class, 0)

    def usage(self, uuid: str) -> Mapping[str, int]:
        """{resource class: sum of the allocations} of the provider, without zeros."""
        return self._usages.get(uuid, {})


class ProviderReach:
    """The providers that serve each tree: its own, and sharing ones."""

    def __init__(self, model: Model, named: Iterable[str] = ()) -> None:
        """The caller holds `model.lock`; `named` are providers that the query names."""
        self._model = model
        self._named = tuple(named)
        self._sharing: dict[str, list[str]] = {}
        for uuid in model.providers_by_trait.get(SHARING_TRAIT, ()):
            for aggregate in model.providers[uuid].aggregates:
                self._sharing.setdefault(aggregate, []).append(uuid)

    def view(self, root: str) -> TreeView | None:
        """The tree's view; None if there is no such root any more. Takes `model.lock` for that."""
        model = self._model
        with model.lock.reading():
            if root not in model.trees:
                return None
            reachable = model.tree(root)
            providers = {provider.uuid: provider for provider in reachable}
            if self._sharing:
                for provider in self._sharing_with(reachable):
                    if provider.uuid not in providers:
                        reachable.append(provider)
                        self._add_with_ancestors(providers, provider)
            for uuid in self._named:
                if uuid in model.providers:
                    providers.setdefault(uuid, model.providers[uuid])
            usages = {uuid: usage for uuid in providers if (usage := model.usages.get(uuid)) is not None}
        return TreeView(reachable, providers, usages)

    def _sharing_with(self, tree: Iterable[ProviderRecord]) -> Iterator[ProviderRecord]:
        aggregates = {name for provider in tree for name in provider.aggregates}
        for aggregate in sorted(aggregates & self._sharing.keys()):
            for uuid in self._sharing[aggregate]:
                provider = self._model.providers.get(uuid)
                if provider is not None and provider.is_sharing and aggregate in provider.aggregates:
                    yield provider

    def _add_with_ancestors(self, providers: dict[str, ProviderRecord], provider: ProviderRecord) -> None:
        above: ProviderRecord | None = provider
        while above is not None:
            providers.setdefault(above.uuid, above)
            above = None if above.parent_uuid is None else self._model.providers[above.parent_uuid]

    def roots(self, uuid: str) -> list[str]:
        """The roots of the trees that the provider can serve; none if it is gone. Takes `model.lock`."""
        model = self._model
        provider = model.providers.get(uuid)
        if provider is None:
            return []
        roots = [provider.root_uuid]
        if provider.is_sharing:
            with model.lock.reading():
                for aggregate in provider.aggregates:
                    members = model.providers_by_aggregate.get(aggregate, ())
                    roots += [model.providers[member].root_uuid for member in members]
        return roots
