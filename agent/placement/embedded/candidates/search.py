"""The search through one tree: every way to fill the slots of a query.

It is depth first, and a generator, so it searches no further than the caller iterates. A branch that failed
is remembered by its state, because isolated or crowded groups reach the same hopeless state in very many
orders.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from agent.placement.embedded.candidates.query import CandidateQuery
from agent.placement.embedded.candidates.slots import CandidateSlot
from agent.placement.embedded.candidates.view import TreeView
from agent.placement.embedded.microversions import CANDIDATES_TREES
from agent.placement.embedded.records import ProviderRecord

_State = tuple[int, frozenset[tuple[tuple[str, str], int]], frozenset[str], frozenset[str]]


class TreeSearch:
    """Fills the slots for one tree, each with one of its options."""

    def __init__(self, view: TreeView, query: CandidateQuery, slots: list[CandidateSlot]) -> None:
        self._view = view
        self._query = query
        self._slots = slots
        self._unsuffixed = sum(1 for slot in slots if not slot.group.suffix)
        demanded = Counter(name for slot in slots for name in slot.resources)
        self._contended = {name for name, times in demanded.items() if times > 1}
        self._required = slots[0].group.traits.required if self._unsuffixed else ()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._chosen: list[ProviderRecord] = []
        self._hopeless: set[_State] = set()

    def fill(self) -> Iterator[tuple[ProviderRecord, ...]]:
        """Every way to fill all slots: a provider for each, in the order of the slots."""
        subtrees = self._query.same_subtrees
        if not subtrees:
            yield from self._fill(0, [slot.options for slot in self._slots])
            return
        # The top of a subtree is one of the providers chosen in it; each possible top is tried in turn.
        for tops in itertools.product(*(self._tops(suffixes) for suffixes in subtrees)):
            options = self._below(tops)
            if all(options):
                self._hopeless.clear()
                for chosen in self._fill(0, options):
                    if self._tops_are_chosen(tops, chosen):
                        yield chosen

    def _fill(self, depth: int, options: list[list[ProviderRecord]]) -> Iterator[tuple[ProviderRecord, ...]]:
        if depth == self._unsuffixed and not self._traits_are_met():
            return
        if depth == len(self._slots):
            yield tuple(self._chosen)
            return
        if self._hopeless and self._state(depth) in self._hopeless:
            return
        slot, fruitful = self._slots[depth], False
        for provider in options[depth]:
            if self._fits(slot, provider):
                self._take(slot, provider, 1)
                for chosen in self._fill(depth + 1, options):
                    fruitful = True
                    yield chosen
                self._take(slot, provider, -1)
        if not fruitful:
            self._hopeless.add(self._state(depth))

    def _fits(self, slot: CandidateSlot, provider: ProviderRecord) -> bool:
        """Whether the provider can fill this slot beside those that it already fills."""
        if self._query.isolate and slot.group.suffix and provider in self._chosen[self._unsuffixed :]:
            return False
        if self._query.minor < CANDIDATES_TREES and any(
            chosen.root_uuid == provider.root_uuid and chosen.uuid != provider.uuid for chosen in self._chosen
        ):
            return False
        for name, amount in slot.resources.items():
            if name not in self._contended:
                continue
            inventory = provider.inventories[name]
            total = amount + self._taken[provider.uuid, name]
            if total > inventory.max_unit:
                return False
            if self._view.used(provider.uuid, name) + total > inventory.capacity:
                return False
        return True

    def _take(self, slot: CandidateSlot, provider: ProviderRecord, sign: int) -> None:
        if sign > 0:
            self._chosen.append(provider)
        else:
            self._chosen.pop()
        for name, amount in slot.resources.items():
            if name in self._contended:
                self._taken[provider.uuid, name] += sign * amount

    def _state(self, depth: int) -> _State:
        """All that decides whether the slots from `depth` on can be filled."""
        first = self._unsuffixed
        return (
            depth,
            frozenset((key, amount) for key, amount in self._taken.items() if amount),
            frozenset(provider.uuid for provider in self._chosen[:first]),
            frozenset(provider.uuid for provider in self._chosen[first:]),
        )

    def _traits_are_met(self) -> bool:
        """Whether the unsuffixed group's providers together have its required traits."""
        if not self._required:
            return True
        traits = frozenset().union(*(provider.traits for provider in self._chosen[: self._unsuffixed]))
        return all(any_of & traits for any_of in self._required)

    # -- same_subtree --

    def _tops(self, suffixes: frozenset[str]) -> list[tuple[frozenset[str], ProviderRecord]]:
        """Each provider that could be the top of the subtree, with the suffixes of the subtree."""
        options = (slot.options for slot in self._slots if slot.group.suffix in suffixes)
        distinct = {provider.uuid: provider for some in options for provider in some}
        return [(suffixes, provider) for provider in distinct.values()]

    def _below(self, tops: Iterable[tuple[frozenset[str], ProviderRecord]]) -> list[list[ProviderRecord]]:
        """The options of each slot that are under the tops of its subtrees."""
        options = [slot.options for slot in self._slots]
        for suffixes, top in tops:
            for number, slot in enumerate(self._slots):
                if slot.group.suffix in suffixes:
                    options[number] = [
                        provider for provider in options[number] if self._is_under(provider, top.uuid)
                    ]
        return options

    def _is_under(self, provider: ProviderRecord, top: str) -> bool:
        above: ProviderRecord | None = provider
        while above is not None:
            if above.uuid == top:
                return True
            above = None if above.parent_uuid is None else self._view.providers[above.parent_uuid]
        return False

    def _tops_are_chosen(
        self, tops: Iterable[tuple[frozenset[str], ProviderRecord]], chosen: tuple[ProviderRecord, ...]
    ) -> bool:
        filled = list(zip(self._slots, chosen, strict=True))
        return all(
            any(slot.group.suffix in suffixes and provider.uuid == top.uuid for slot, provider in filled)
            for suffixes, top in tops
        )
