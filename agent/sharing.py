"""Providers of others that share with this host by an aggregate: a storage pool, mostly.

They are seen, claimed from, and never changed. They hang under none of the host's providers, so its tree does
not show them: placement is asked for them, in one request for all the aggregates of the host's providers.
"""

from dataclasses import replace

from agent.placement.client import PlacementClient
from agent.tree import Provider, ProviderTree


class Sharing:
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
            found = self._client.sharing(aggregates, self._known)
            self._known = tuple(replace(each, parent=None) for each in found if each.uuid not in tree)
            self._aggregates = aggregates
        return ProviderTree((*tree, *self._known))
