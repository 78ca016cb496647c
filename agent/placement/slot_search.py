"""The search for providers that serve a request together: each of its *slots* is filled by one. Pure.

A slot is one class of the request's unsuffixed group, or all that a suffixed group asks for. The caller says
which providers could fill each slot alone, its options, in the order of choice; what concerns several slots
at once is decided here. The search is depth first, and a generator, so it goes no further than the caller
iterates. It remembers the states that failed, because isolated or crowded groups reach the same hopeless
state in many orders.

Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from agent.errors import UsageError


class Giver(Protocol):
    """A provider that may fill slots; its inventories have a `max_unit`."""

    @property
    def uuid(self) -> str:
        """Its uuid."""

    @property
    def traits(self) -> frozenset[str]:
        """Its traits."""

    @property
    def inventories(self) -> Mapping[str, Any]:
        """{resource class: inventory}"""


P = TypeVar("P", bound=Giver)
Slot = tuple[str, Mapping[str, int]]
"""The suffix of the group, and {class: amount} of the slot."""


class Steps:
    """Counts the providers that are tried, in one search or in several."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    def take(self) -> None:
        """Raises UsageError after `most` of them."""
        self.taken += 1
        if self.taken > self._most:
            raise UsageError(
                f"The groups can be arranged in too many ways: {self._most} tries did not settle where they "
                "fit. Ask for fewer groups at once."
            )


class SlotRules:
    """What a request asks of the providers of its slots together.

    Those of the suffixes in `unsuffixed` have a trait of each of `required` together. `isolate`: each other
    slot has a provider of its own. No provider but the root serves two of the slots with a suffix in `cells`.
    The providers of each set of suffixes in `subtrees` are below one of them. The classes in `exclusive`
    concern each other. `alike` are the numbers of slots that ask for the same as the one before: of choices
    that differ by these alone, one comes.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        unsuffixed: Collection[str] = ("",),
        required: Collection[frozenset[str]] = (),
        isolate: bool = False,
        cells: Collection[str] = (),
        subtrees: Sequence[frozenset[str]] = (),
        exclusive: Collection[str] = (),
        alike: Collection[int] = (),
    ) -> None:
        self.slots = slots
        self.required = required
        self.isolate = isolate
        self.subtrees = subtrees
        self.exclusive = exclusive
        self.alike = alike
        self.kinds = [(suffix in unsuffixed, suffix in cells) for suffix, _ in slots]
        """Of each slot: whether it is of the unsuffixed group, and whether of a cell."""
        self.together = max((number for number, kind in enumerate(self.kinds, 1) if kind[0]), default=0)
        """So many slots have all of the unsuffixed group."""
        kinds, numbers = self.kinds, range(len(slots))
        self.apart_at_root = [
            [before for before in range(each if isolate else 0) if not (kinds[each][0] or kinds[before][0])]
            for each in numbers
        ]
        """Of each slot, the slots before it that the same provider must not fill, if it is the root."""
        self.apart = [
            self.apart_at_root[each]
            + [before for before in range(each if kinds[each][1] else 0) if kinds[before][1]]
            for each in numbers
        ]
        """The same, if it is another one."""
        asked = Counter(name for _, resources in slots for name in resources)
        self.contended = [name for name, times in asked.items() if times > 1 or name in exclusive]
        self.parts = [
            [(name, amount) for name, amount in resources.items() if name in self.contended]
            for _, resources in slots
        ]
        """Of each slot, the amounts that other slots can make impossible."""

    @property
    def is_simple(self) -> bool:
        """Whether no slot concerns another, so that any option of each will do."""
        return not (self.required or any(self.apart) or self.subtrees or self.contended)

    def may_be_filled(self, options: Sequence[Sequence[P]], free: Callable[[P, str], float]) -> bool:
        """False where providers or sums are too few for all slots: so a full tree costs no search."""
        isolated = (
            [provider.uuid for provider in serving]
            for (is_unsuffixed, _), serving in zip(self.kinds, options, strict=True)
            if not is_unsuffixed
        )
        if self.isolate and not can_lie_apart(list(isolated)):
            return False
        for name in self.contended:
            asked, giving = 0, dict[str, P]()
            for (_, resources), serving in zip(self.slots, options, strict=True):
                if name in resources:
                    asked += resources[name]
                    giving.update((provider.uuid, provider) for provider in serving)
            if asked > sum(free(provider, name) for provider in giving.values()):
                return False
        return True

    def allocations(self, chosen: Iterable[Giver]) -> dict[str, dict[str, int]]:
        """{provider uuid: {class: amount}} where these providers fill the slots."""
        sums: dict[str, dict[str, int]] = {}
        for (_, resources), provider in zip(self.slots, chosen, strict=True):
            for name, amount in resources.items():
                given = sums.setdefault(provider.uuid, {})
                given[name] = given.get(name, 0) + amount
        return sums


def can_lie_apart(choices: Sequence[Sequence[str]]) -> bool:
    """Whether each can have one of its choices for itself: a bipartite matching, by augmenting paths."""
    owners: dict[str, int] = {}

    def place(number: int, tried: set[str]) -> bool:
        for choice in choices[number]:
            if choice in tried:
                continue
            tried.add(choice)
            owner = owners.get(choice)
            if owner is None or place(owner, tried):
                owners[choice] = number
                return True
        return False

    return all(place(number, set()) for number in range(len(choices)))


class SlotSearch(Generic[P]):
    """Fills the slots in the tree of `root`.

    `free` is how much of a class a provider can give, `parent_of` the uuid above a provider, None above none.
    While it searches, `chosen` are the providers of the first slots, and `taken` what they give of contended
    classes, {(provider uuid, class): amount}. A subclass may choose in another order, or admit less.
    """

    def __init__(
        self,
        rules: SlotRules,
        options: Sequence[Sequence[P]],
        root: str,
        free: Callable[[P, str], float],
        parent_of: Callable[[str], str | None],
        steps: Steps | None = None,
    ) -> None:
        self.rules = rules
        self.chosen: list[P] = []
        self.taken: Counter[tuple[str, str]] = Counter()
        self._options = options
        self._root = root
        self._free = free
        self._parent_of = parent_of
        self._steps = steps
        self._tops: Sequence[tuple[frozenset[str], str]] = ()
        self._hopeless: set[object] = set()

    def fill(self) -> Iterator[tuple[P, ...]]:
        """Every way to fill all slots: a provider for each, in their order. Raises what `Steps` raises."""
        # The top of a subtree is one of the providers chosen in it; each possible top is tried in turn.
        possible = []
        for suffixes in self.rules.subtrees:
            within = (
                provider.uuid
                for (suffix, _), serving in zip(self.rules.slots, self._options, strict=True)
                if suffix in suffixes
                for provider in serving
            )
            possible.append([(suffixes, uuid) for uuid in dict.fromkeys(within)])
        for self._tops in itertools.product(*possible):
            # Each slot has the options that are below the tops of its subtrees.
            options = list(self._options)
            for suffixes, top in self._tops:
                for number, (suffix, _) in enumerate(self.rules.slots):
                    if suffix in suffixes:
                        options[number] = [each for each in options[number] if self._is_below(each.uuid, top)]
            self._hopeless.clear()
            if all(options):
                yield from self._fill(0, 0, options)

    def _is_below(self, uuid: str, top: str) -> bool:
        above: str | None = uuid
        while above is not None and above != top:
            above = self._parent_of(above)
        return above is not None

    def _fill(self, depth: int, first: int, options: Sequence[Sequence[P]]) -> Iterator[tuple[P, ...]]:
        """Every way to fill the slots from `depth` on, this one by its options from `first` on."""
        rules, chosen = self.rules, self.chosen
        if depth == rules.together and not self._has_traits():
            return
        if depth == len(options):
            if not self._tops or self._reached() == frozenset(self._tops):
                yield tuple(chosen)
            return
        if self._hopeless and self._state(first) in self._hopeless:
            return
        parts, is_fruitful = rules.parts[depth], False
        for number, provider in itertools.islice(
            enumerate(self.in_order(depth, options[depth])), first, None
        ):
            if self._steps is not None:
                self._steps.take()
            if not self.admits(depth, provider):
                continue
            chosen.append(provider)
            for name, amount in parts:
                self.taken[provider.uuid, name] += amount
            for filled in self._fill(depth + 1, number if depth + 1 in rules.alike else 0, options):
                is_fruitful = True
                yield filled
            chosen.pop()
            for name, amount in parts:
                self.taken[provider.uuid, name] -= amount
        if not is_fruitful:
            self._hopeless.add(self._state(first))

    def _has_traits(self) -> bool:
        """Whether the providers of the unsuffixed group together have the traits that it requires."""
        if not self.rules.required:
            return True
        pairs = zip(self.rules.kinds, self.chosen, strict=False)
        traits = frozenset[str]().union(*(each.traits for (is_its, _), each in pairs if is_its))
        return all(any_of & traits for any_of in self.rules.required)

    def in_order(self, depth: int, options: Sequence[P]) -> Iterable[P]:
        """The options of this slot in the order in which they are tried."""
        return options

    def admits(self, depth: int, provider: P) -> bool:
        """Whether the provider can fill this slot beside those that it fills already."""
        rules = self.rules
        for number in (rules.apart_at_root if provider.uuid == self._root else rules.apart)[depth]:
            if self.chosen[number].uuid == provider.uuid:
                return False
        for name, amount in rules.parts[depth]:
            total = amount + self.taken[provider.uuid, name]
            if total > provider.inventories[name].max_unit or total > self._free(provider, name):
                return False
        return True

    def _state(self, first: int) -> object:
        """All that decides whether the slots after the chosen ones can be filled."""
        return (
            len(self.chosen),
            first,
            frozenset(item for item in self.taken.items() if item[1]),
            frozenset(zip(self.rules.kinds, (provider.uuid for provider in self.chosen), strict=False)),
            self._reached() if self._tops else None,
        )

    def _reached(self) -> frozenset[tuple[frozenset[str], str]]:
        """The tops whose provider is chosen for one of their own groups."""
        return frozenset(
            (suffixes, top)
            for suffixes, top in self._tops
            for (suffix, _), provider in zip(self.rules.slots, self.chosen, strict=False)
            if suffix in suffixes and provider.uuid == top
        )
