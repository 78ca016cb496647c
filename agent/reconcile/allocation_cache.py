"""What the passes remember of Placement: the allocations on providers, and the sharing providers."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from agent.placement.client import PlacementClient
from agent.reconcile.one_writer import is_writer_mark
from agent.shapes import Held, Holders, Usages
from agent.tree import Provider, ProviderTree


class FreshAllocations(NamedTuple):
    """`held` on the providers that were read; on the providers in `kept` nothing has changed."""

    held: Held
    kept: frozenset[str]


class AllocationCache:
    """Knows on which providers the allocations may have changed since they were entered into the book."""

    def __init__(self, client: PlacementClient, tree: ProviderTree, held: Held) -> None:
        """`held` has the allocations on `tree` as of its providers' generations."""
        self._client = client
        self._known = {provider.uuid: provider.generation for provider in tree}
        self._saved = {provider.uuid: held.get(provider.uuid, {}) for provider in tree}

    def follow_writes(self, before: ProviderTree, after: ProviderTree, foreign: set[str]) -> None:
        """Take over the generations that the agent's own writes made: those change no allocation.

        `foreign` are the providers that another client has written meanwhile.
        """
        for provider in after:
            if provider.uuid in foreign:
                continue
            former = before.get(provider.uuid)
            is_new = former is None or not former.inventories
            if is_new or (former and self._known.get(provider.uuid, -1) == former.generation):
                self._known[provider.uuid] = provider.generation
            if is_new:
                self._saved.pop(provider.uuid, None)

    def read(self, tree: ProviderTree, doubted: Collection[str]) -> FreshAllocations:
        """Read the allocations on the providers of `tree` that may have changed, `doubted` ones in any case.

        The caller enters them into the book, or calls `forget`. Raises PlacementError.
        """
        held: dict[str, Holders] = {}
        kept = set()
        for provider in (provider for provider in tree if provider.inventories):
            uuid = provider.uuid
            # A release by another client need not raise the generation.
            if uuid in doubted or self._known.get(uuid, -1) != provider.generation:
                held[uuid] = self._client.provider_allocations(uuid).consumers
            elif uuid in self._saved:
                held[uuid] = self._saved[uuid]
            else:
                kept.add(uuid)
        self._known = {provider.uuid: provider.generation for provider in tree if provider.inventories}
        self._saved = {}
        return FreshAllocations({uuid: holders for uuid, holders in held.items() if holders}, frozenset(kept))

    @property
    def is_saved(self) -> bool:
        """Whether what is known is of an earlier run of the agent, and nothing has been read since."""
        return bool(self._saved)

    def used_otherwise(self, root: str, tree: ProviderTree, held: Held) -> frozenset[str]:
        """The providers of this host's tree on which not as much is in use as `held` says, in one request.

        What is known of an earlier run counts instead, as long as nothing was read. Another client may have
        deleted an allocation, or taken a provider out of one: that raises no generation there. All providers,
        where Placement cannot tell that at once. Raises PlacementError.
        """
        in_use = {provider.uuid: Counter[str]() for provider in tree if provider.inventories}
        held = self._saved or held
        for uuid in in_use.keys() & held.keys():
            for amounts in held[uuid].values():
                in_use[uuid].update(amounts)
        if not any(in_use.values()):
            return frozenset()
        asked = _roomiest(tree, in_use)
        used = self._client.tree_usages(root, *asked) if asked is not None else None
        if used is None:
            return frozenset(in_use)
        return frozenset(uuid for uuid, amounts in in_use.items() if amounts != Counter(used.get(uuid, {})))

    def forget(self) -> None:
        """Read all anew the next time: what was read last was not entered."""
        self._known, self._saved = {}, {}


class SharingProvidersCache:
    """The providers that share inventory with the host through an aggregate, as they were last read."""

    def __init__(self, client: PlacementClient, root_uuid: str = "") -> None:
        self._client = client
        self._root_uuid = root_uuid
        self._aggregates: frozenset[str] = frozenset()
        self._known: tuple[Provider, ...] = ()

    def add_to(self, tree: ProviderTree, *, reread: bool) -> ProviderTree:
        """The host's tree with the sharing providers as further roots.

        They are read at first, with `reread`, and when the aggregates of the host's providers have changed; a
        host in no aggregate costs no request. Raises PlacementError.
        """
        aggregates = frozenset(
            aggregate
            for provider in tree
            for aggregate in provider.aggregates
            if provider.uuid != self._root_uuid or not is_writer_mark(aggregate, self._root_uuid)
        )
        if reread or aggregates != self._aggregates:
            providers = self._client.sharing_providers(aggregates, self._known)
            self._known = tuple(
                replace(provider, parent=None) for provider in providers if provider.uuid not in tree
            )
            self._aggregates = aggregates
        return self.around(tree)

    def around(self, tree: ProviderTree) -> ProviderTree:
        """The tree with the sharing providers as they are known; no request is made."""
        return ProviderTree((*tree, *(provider for provider in self._known if provider.uuid not in tree)))


def _roomiest(tree: ProviderTree, in_use: Usages) -> tuple[str, int] | None:
    """(class, the least amount of it that a consumer can have) with the most room on one provider, if any."""
    room: dict[tuple[str, int], int] = {}
    for provider in tree:
        for name, inventory in provider.inventories.items():
            least = -(-inventory.min_unit // inventory.step_size) * inventory.step_size
            left = inventory.capacity - in_use[provider.uuid].get(name, 0)
            if least <= inventory.max_unit:
                room[name, least] = max(room.get((name, least), 0), left // least)
    most = max(room, key=lambda asked: room[asked], default=None)
    return most if most is not None and room[most] > 0 else None
