"""The search behind fitting: which provider gives what. Pure.

A request is cut into *slots*, each filled by one provider: one slot for each class of the unsuffixed group,
one for each suffixed group. The slots are filled depth first; a state that failed is remembered, because
isolated or crowded groups come to the same hopeless state in very many orders, and `STEPS_MAX` bounds what is
left.

Order, so that the same question always has the same answer: own providers from the root down, siblings by
name, then sharing providers by name. Within the unsuffixed group a provider that can give more of its classes
goes first, and one that gives something already goes before all, so that a guest is not torn apart between
cells.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.claims.request import ClaimRequest, RequestGroup
from agent.providers.exclusive import WaysOf, can_give_together, excluding_class, room
from agent.shapes import Units, Usages
from agent.tree import Inventory, Provider, ProviderTree

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
STEPS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ProviderIndex:
    """The providers that can serve this host: those of its tree, and the sharing ones of its aggregates.

    `providers` and `by_class` are in the order of choice. Made once for each tree. `bound` {group's suffix:
    uuid of the one provider that may serve it}.
    """

    tree: ProviderTree
    root: Provider | None
    providers: tuple[Provider, ...]
    by_class: Mapping[str, tuple[Provider, ...]]
    ways: WaysOf = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ProviderTree, root: str | None = None, ways: WaysOf | None = None) -> "ProviderIndex":
        """The host whose root has that uuid; without one, the first root that is not a sharing provider."""
        anchor = tree.get(root) if root else _first_root(tree)
        own = tree.subtree(anchor.uuid) if anchor else ()
        aggregates = frozenset().union(*(provider.aggregates for provider in own))
        ours = {provider.uuid for provider in own}
        sharing = sorted(
            (
                provider
                for provider in tree
                if SHARING_TRAIT in provider.traits
                and provider.uuid not in ours
                and aggregates & provider.aggregates
            ),
            key=lambda provider: provider.name,
        )
        providers = (*own, *sharing)
        by_class: dict[str, list[Provider]] = {}
        for provider in providers:
            for name in provider.inventories:
                by_class.setdefault(name, []).append(provider)
        classes = {name: tuple(found) for name, found in by_class.items()}
        return cls(tree, anchor, providers, classes, ways or {})

    def without(self, classes: Collection[str]) -> "ProviderIndex":
        """The same host, which gives these classes only from providers that it shares."""
        kept = {
            name: tuple(each for each in found if name not in classes or not self.is_own(each.uuid))
            for name, found in self.by_class.items()
        }
        return replace(self, by_class=kept)

    def is_own(self, uuid: str) -> bool:
        """Whether the provider is in this host's own tree, and not a sharing one."""
        return uuid in self.tree and self.root is not None and self.tree.root_of(uuid).uuid == self.root.uuid


def _first_root(tree: ProviderTree) -> Provider | None:
    roots = sorted(tree.roots, key=lambda root: (SHARING_TRAIT in root.traits, root.name))
    return roots[0] if roots else None


@dataclass(frozen=True, slots=True)
class FitSlot:
    """A group, or one class of the unsuffixed group, and the providers that could serve it by itself.

    `barred` {provider uuid: clause} are those that could, were it not for where they are.
    """

    group: RequestGroup
    resources: Mapping[str, int]
    options: tuple[Provider, ...]
    barred: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStock:
    """What is left: the host, what is in use on it, and the exact units that are free."""

    host: ProviderIndex
    used: Usages
    units: Units

    def free(self, provider: Provider, name: str) -> int:
        """How much of the class the provider could still give, never below 0."""
        inventory = provider.inventories.get(name)
        if inventory is None:
            return 0
        left = inventory.capacity - self.used.get(provider.uuid, {}).get(name, 0)
        units = self.units.get(provider.uuid, {}).get(name)
        return max(0, left if units is None else min(left, len(units)))

    def obstacles(
        self, group: RequestGroup, resources: Mapping[str, int], provider: Provider
    ) -> Iterator[tuple[str, str]]:
        """(class, reason) for each thing that keeps the provider from serving these resources by itself."""
        first = next(iter(resources), "")
        for name, amount in resources.items():
            reason = self._short(provider, name, amount)
            if reason:
                yield name, reason
        if self.host.bound.get(group.suffix, provider.uuid) != provider.uuid:
            yield first, "the guest is bound to another one"
        barred = group.forbidden & provider.traits
        if barred:
            yield first, f"has the forbidden trait {', '.join(sorted(barred))}"
        if group.suffix:
            for any_of in group.required:
                if not any_of & provider.traits:
                    yield first, f"lacks {any_of_clause('trait', any_of)}"
        if group.member_of and not self._in_aggregates(group, provider):
            wanted = " and ".join(any_of_clause("aggregate", any_of) for any_of in group.member_of)
            yield first, f"is not in {wanted}"

    def _short(self, provider: Provider, name: str, amount: int) -> str | None:
        inventory = provider.inventories.get(name)
        if inventory is None:
            return f"has no {name}"
        if amount > inventory.max_unit:
            return f"max_unit is {inventory.max_unit}"
        if amount < inventory.min_unit:
            return f"min_unit is {inventory.min_unit}"
        if amount % inventory.step_size:
            return f"step_size is {inventory.step_size}"
        if amount > self.free(provider, name):
            return self.scarcity_clause(provider, name, inventory)
        return None

    def scarcity_clause(self, provider: Provider, name: str, inventory: Inventory) -> str:
        """The clause that says how little of the class is free."""
        used = self.used.get(provider.uuid, {})
        left = inventory.capacity - used.get(name, 0)
        free = self.free(provider, name)
        other = excluding_class(self.host.ways.get(provider.uuid, ()), name, used)
        if other is not None:
            return f"nothing of it can be given while its {other} is in use"
        if free < left:
            return f"only {free} of its exact units are free"
        return f"only {free} of {inventory.capacity} are free"

    def can_give_together(self, provider: Provider, wanted: Mapping[str, int]) -> bool:
        """Whether nothing of it excludes the rest, beside what is in use."""
        ways = self.host.ways.get(provider.uuid, ())
        there = {name: each.total - each.reserved for name, each in provider.inventories.items()}
        return can_give_together(ways, room(ways, there, self.used.get(provider.uuid, {})), wanted)

    def _in_aggregates(self, group: RequestGroup, provider: Provider) -> bool:
        """`member_of` of a suffixed group looks at the provider; of the unsuffixed one also at its root."""
        memberships = [provider.aggregates]
        if not group.suffix:
            memberships.append(self.host.tree.root_of(provider.uuid).aggregates)
        return any(all(any_of & one for any_of in group.member_of) for one in memberships)


def any_of_clause(kind: str, names: frozenset[str]) -> str:
    """ "trait A", or "any of the traits A, B"."""
    if len(names) == 1:
        return f"{kind} {next(iter(names))}"
    return f"any of the {kind}s {', '.join(sorted(names))}"


def fit_slots(request: ClaimRequest, stock: HostStock) -> list[FitSlot]:
    """The slots of the request with their options, the unsuffixed ones first; an option list may be empty."""
    slots = []
    for group in sorted(request.groups, key=lambda group: group.suffix):
        parts = [group.resources] if group.suffix else [{name: n} for name, n in group.resources.items()]
        for resources in parts:
            within = stock.host.by_class.get(next(iter(resources)), ()) if resources else stock.host.providers
            options = (one for one in within if next(stock.obstacles(group, resources, one), None) is None)
            slots.append(FitSlot(group, resources, tuple(options)))
    return _most_useful_first(slots)


def _most_useful_first(slots: list[FitSlot]) -> list[FitSlot]:
    serves = Counter(provider.uuid for slot in slots if not slot.group.suffix for provider in slot.options)
    return [
        slot
        if slot.group.suffix or len(slot.options) < 2
        else FitSlot(
            slot.group, slot.resources, tuple(sorted(slot.options, key=lambda one: -serves[one.uuid]))
        )
        for slot in slots
    ]


_Top = tuple[frozenset[str], str]
"""The suffixes of one same_subtree, and the uuid of the provider above all of theirs."""

_State = tuple[int, frozenset[tuple[tuple[str, str], int]], frozenset[str], frozenset[str], frozenset[_Top]]


class FitSearch:
    """One search for a way to fill the slots; `run` once.

    `isolated`, `traits` and `subtrees` switch a rule off, to find out what a failure is due to.
    """

    def __init__(
        self,
        request: ClaimRequest,
        stock: HostStock,
        slots: list[FitSlot],
        *,
        isolated: bool = True,
        traits: bool = True,
        subtrees: bool = True,
    ) -> None:
        self._stock = stock
        self._slots = slots
        self._isolate = isolated and request.group_policy == "isolate"
        self._subtrees = request.same_subtree if subtrees else ()
        self._unsuffixed = sum(1 for slot in slots if not slot.group.suffix)
        self._required = slots[0].group.required if self._unsuffixed and traits else ()
        demanded = Counter(name for slot in slots for name in slot.resources)
        self._contended = {name for name, times in demanded.items() if times > 1}
        self._excluding = {name for ways in stock.host.ways.values() for way in ways for name in way}
        self._contended |= self._excluding & demanded.keys()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._hopeless: set[_State] = set()
        self._steps = 0
        self.chosen: list[Provider] = []

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def gave_up(self) -> bool:
        return self._steps > STEPS_MAX

    def run(self) -> bool:
        """Whether there is a way; then `chosen` has one provider for each slot."""
        if not self._subtrees:
            return self._fill(0, [slot.options for slot in self._slots], ())
        # The top of a subtree is one of the providers chosen in it, so each possible top is tried on its own.
        for tops in itertools.product(*(self._tops(suffixes) for suffixes in self._subtrees)):
            options = self._below(tops)
            self._hopeless.clear()
            if all(options) and self._fill(0, options, tops):
                return True
            if self.gave_up:
                break
        return False

    def _fill(self, depth: int, options: list[tuple[Provider, ...]], tops: tuple[_Top, ...]) -> bool:
        if depth == self._unsuffixed and not self._traits_are_met():
            return False
        if depth == len(self._slots):
            return self._chosen_tops(tops) == frozenset(tops)
        if self._hopeless and self._state(depth, tops) in self._hopeless:
            return False
        slot = self._slots[depth]
        for provider in self._ordered(slot, options[depth]):
            self._steps += 1
            if self.gave_up:
                return False
            if self._fits(slot, provider):
                self._take(slot, provider, 1)
                if self._fill(depth + 1, options, tops):
                    return True
                self._take(slot, provider, -1)
        self._hopeless.add(self._state(depth, tops))
        return False

    def _ordered(self, slot: FitSlot, options: tuple[Provider, ...]) -> Iterable[Provider]:
        if slot.group.suffix or not self.chosen or len(options) < 2:
            return options
        giving = {provider.uuid for provider in self.chosen}
        return sorted(options, key=lambda one: one.uuid not in giving)

    def _fits(self, slot: FitSlot, provider: Provider) -> bool:
        """Whether the provider can take this slot besides those it has taken already."""
        if self._isolate and slot.group.suffix and provider in self.chosen[self._unsuffixed :]:
            return False
        for name, amount in slot.resources.items():
            if name in self._contended:
                total = amount + self._taken[provider.uuid, name]
                if total > min(provider.inventories[name].max_unit, self._stock.free(provider, name)):
                    return False
        return not self._excluding or self._stock.can_give_together(provider, self._with(slot, provider))

    def _with(self, slot: FitSlot, provider: Provider) -> dict[str, int]:
        """What the provider would give of classes that exclude each other, with this slot."""
        return {
            name: self._taken[provider.uuid, name] + slot.resources.get(name, 0) for name in self._excluding
        }

    def _take(self, slot: FitSlot, provider: Provider, sign: int) -> None:
        if sign > 0:
            self.chosen.append(provider)
        else:
            self.chosen.pop()
        for name, amount in slot.resources.items():
            if name in self._contended:
                self._taken[provider.uuid, name] += sign * amount

    def _state(self, depth: int, tops: tuple[_Top, ...]) -> _State:
        """All that decides whether the slots from `depth` on can be filled."""
        return (
            depth,
            frozenset((key, amount) for key, amount in self._taken.items() if amount),
            frozenset(provider.uuid for provider in self.chosen[: self._unsuffixed]),
            frozenset(provider.uuid for provider in self.chosen[self._unsuffixed :]),
            self._chosen_tops(tops),
        )

    def _traits_are_met(self) -> bool:
        """The unsuffixed group's traits are met by the providers that give its resources, together."""
        if not self._required:
            return True
        traits = frozenset().union(*(provider.traits for provider in self.chosen[: self._unsuffixed]))
        return all(any_of & traits for any_of in self._required)

    def _tops(self, suffixes: frozenset[str]) -> list[_Top]:
        options = (slot.options for slot in self._slots if slot.group.suffix in suffixes)
        distinct = dict.fromkeys(provider.uuid for some in options for provider in some)
        return [(suffixes, uuid) for uuid in distinct]

    def _below(self, tops: tuple[_Top, ...]) -> list[tuple[Provider, ...]]:
        """The options of every slot, cut down to what lies under the tops of its subtrees."""
        options = [slot.options for slot in self._slots]
        for suffixes, top in tops:
            under = {provider.uuid for provider in self._stock.host.tree.subtree(top)}
            for number, slot in enumerate(self._slots):
                if slot.group.suffix in suffixes:
                    options[number] = tuple(one for one in options[number] if one.uuid in under)
        return options

    def _chosen_tops(self, tops: tuple[_Top, ...]) -> frozenset[_Top]:
        """Those whose provider was chosen for one of their own groups."""
        filled = list(zip(self._slots, self.chosen, strict=False))
        return frozenset(
            (suffixes, top)
            for suffixes, top in tops
            if any(slot.group.suffix in suffixes and one.uuid == top for slot, one in filled)
        )


def first_units(allocations: Usages, units: Units) -> dict[str, dict[str, tuple[str, ...]]]:
    """The first free exact units for these amounts, where the host has exact units.

    Classes that share a provider's units get different ones.
    """
    chosen: dict[str, dict[str, tuple[str, ...]]] = {}
    for uuid, amounts in allocations.items():
        free = units.get(uuid, {})
        for name in (name for name in amounts if name in free):
            given = {unit for exact in chosen.get(uuid, {}).values() for unit in exact}
            left = tuple(unit for unit in free[name] if unit not in given) if given else free[name]
            chosen.setdefault(uuid, {})[name] = left[: amounts[name]]
    return chosen
