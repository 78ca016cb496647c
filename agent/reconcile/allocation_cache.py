"""What the passes remember of Placement: the allocations on providers, and the sharing providers."""

from collections.abc import Collection
from dataclasses import replace

from agent.placement.client import PlacementClient
from agent.shapes import Held, Holders
from agent.tree import Provider, ProviderTree


class AllocationCache:
    """The allocations on each provider with inventory, read again where its generation has changed."""

    def __init__(self, client: PlacementClient, tree: ProviderTree, held: Held) -> None:
        """`held` has the allocations on `tree` as of its providers' generations."""
        self._client = client
        self._known = {provider.uuid: (provider.generation, held.get(provider.uuid, {})) for provider in tree}

    def follow_writes(self, before: ProviderTree, after: ProviderTree, foreign: set[str]) -> None:
        """Take over the generations that the agent's own writes made: those change no allocation.

        `foreign` are the providers that another client has written meanwhile.
        """
        for provider in after:
            if provider.uuid in foreign:
                continue
            former = before.get(provider.uuid)
            known = self._known.get(provider.uuid)
            if former is None or not former.inventories:
                self._known[provider.uuid] = (provider.generation, {})
            elif known is not None and known[0] == former.generation:
                self._known[provider.uuid] = (provider.generation, known[1])

    def read(self, tree: ProviderTree, doubted: Collection[str]) -> Held:
        """The allocations on the providers of `tree`; those on `doubted` ones are read in any case.

        Raises PlacementError.
        """
        self._known = {
            provider.uuid: self._read_provider(provider, doubted) for provider in tree if provider.inventories
        }
        return {uuid: holders for uuid, (_, holders) in self._known.items() if holders}

    def _read_provider(self, provider: Provider, doubted: Collection[str]) -> tuple[int | None, Holders]:
        known = self._known.get(provider.uuid)
        # A release by another client need not raise the generation, and a release by this agent raises it
        # after the tree was read; such providers are among the doubted ones.
        if known is not None and known[0] == provider.generation and provider.uuid not in doubted:
            return known
        return provider.generation, self._client.provider_allocations(provider.uuid).consumers


class SharingProvidersCache:
    """The providers that share inventory with the host through an aggregate, as they were last read."""

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self._aggregates: frozenset[str] = frozenset()
        self._known: tuple[Provider, ...] = ()

    def add_to(self, tree: ProviderTree, *, reread: bool) -> ProviderTree:
        """The host's tree with the sharing providers as further roots.

        They are read at first, with `reread`, and when the aggregates of the host's providers have changed; a
        host in no aggregate costs no request. Raises PlacementError.
        """
        aggregates = frozenset[str]().union(*(provider.aggregates for provider in tree))
        if reread or aggregates != self._aggregates:
            providers = self._client.sharing_providers(aggregates, self._known)
            self._known = tuple(
                replace(provider, parent=None) for provider in providers if provider.uuid not in tree
            )
            self._aggregates = aggregates
        return ProviderTree((*tree, *self._known))
