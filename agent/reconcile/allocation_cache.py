"""Who holds what, read again only where the generation says that somebody wrote."""

from collections.abc import Collection
from dataclasses import replace

from agent.placement.client import PlacementClient
from agent.shapes import Held, Holders
from agent.tree import Provider, ProviderTree


class AllocationCache:
    """What placement was last seen to say, of the providers that have inventory."""

    def __init__(self, client: PlacementClient, tree: ProviderTree, held: Held) -> None:
        """`held` is what was held on `tree` at its providers' generations."""
        self._client = client
        self._known = {each.uuid: (each.generation, held.get(each.uuid, {})) for each in tree}

    def keep(self, before: ProviderTree, after: ProviderTree, foreign: set[str]) -> None:
        """Who holds what did not change on providers that nobody but ourselves wrote to: not on `foreign`."""
        for provider in after:
            if provider.uuid in foreign:
                continue
            was = before.get(provider.uuid)
            known = self._known.get(provider.uuid)
            if was is None or not was.inventories:
                self._known[provider.uuid] = (provider.generation, {})
            elif known is not None and known[0] == was.generation:
                self._known[provider.uuid] = (provider.generation, known[1])

    def on(self, tree: ProviderTree, doubted: Collection[str]) -> Held:
        """Who holds what on these providers; on those of `doubted` it is read whatever the generation."""
        self._known = {each.uuid: self._read(each, doubted) for each in tree if each.inventories}
        return {uuid: held for uuid, (_, held) in self._known.items() if held}

    def _read(self, provider: Provider, doubted: Collection[str]) -> tuple[int | None, Holders]:
        known = self._known.get(provider.uuid)
        # A release need not raise the generation; where too much is in use, it is waited for. Nor is the
        # generation of a tree that is not read again the one that our own release made.
        if known is not None and known[0] == provider.generation and provider.uuid not in doubted:
            return known
        return provider.generation, self._client.provider_allocations(provider.uuid).consumers


class SharingProviders:
    """The sharing providers as they were last read."""

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self._aggregates: frozenset[str] = frozenset()
        self._known: tuple[Provider, ...] = ()

    def beside(self, tree: ProviderTree, *, reread: bool) -> ProviderTree:
        """The host's tree, and the providers that share with it as roots of their own.

        They are read at first, when `reread` says so, and when the aggregates of the host's providers are
        others than before; a host in no aggregate costs no request. Raises PlacementError.
        """
        aggregates = frozenset[str]().union(*(provider.aggregates for provider in tree))
        if reread or aggregates != self._aggregates:
            found = self._client.sharing_providers(aggregates, self._known)
            self._known = tuple(replace(each, parent=None) for each in found if each.uuid not in tree)
            self._aggregates = aggregates
        return ProviderTree((*tree, *self._known))
