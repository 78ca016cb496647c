"""On which hosts of a fleet a request fits, why not on the others, and what would make room. Pure.

A request is a list of *conditions* in a fixed order: the traits of the root, then each amount of a class,
then the traits and aggregates of each group, then what concerns several groups at once. Adding a condition
makes a request harder to fit, so each host that does not fit has one *first obstacle*: the condition with
which the conditions before it fit no more. A host that would not fit with nothing in use has it *for good*;
the others have it now. A class of which all is reserved counts as withheld, and a host that takes no claims
as closed: both end when an operator says so.

The rules are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates, and one of the agent: cells of a guest come from different providers, unless the host shows none
and its root has them all. Exact CPUs, page sizes and threads are not in Placement; the host decides on them
when it is claimed from. tests/unit/fleet compares the answers with brute force.

Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from itertools import combinations, islice, pairwise, product
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

from agent.claims.fit_search import any_of_clause
from agent.claims.guest_cells import guest_cells, wants_cells
from agent.claims.host_cells import CELL_CLASSES
from agent.claims.request import ClaimRequest
from agent.errors import UsageError, counted
from agent.placement.knapsack import can_lie_apart
from agent.shapes import Allocations, Amounts, Holders, by_class
from agent.tree import Inventory

STEPS_MAX = 500_000
"""So many providers are tried for one request, on all hosts together."""
TRIES_MAX = 2000
"""So many sets of instances are tried for one host; then a small one is taken, maybe not the smallest."""
SET_MAX = 3
SHOWN_MAX = 5
SILENT = "silent"
"""Why a host is closed whose agent leaves no note begins so."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


class HostProvider(NamedTuple):
    """A provider as Placement has it; `used` is {class: amount in use}, `holders` who uses it, if known."""

    uuid: str
    name: str
    parent: str | None = None
    inventories: Mapping[str, Inventory] = NOTHING
    used: Amounts = NOTHING
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    holders: Holders = NOTHING


class FleetHost(NamedTuple):
    """A host: its own providers, the root first, and the sharing ones in reach.

    `closed` says why it takes no claims, "" where it does; `pending` why a reshape that is due waits: then it
    is not known what the host has after it. `moving` are the instances whose moves are under way here.
    """

    providers: tuple[HostProvider, ...]
    shared: tuple[HostProvider, ...] = ()
    closed: str = ""
    pending: str = ""
    moving: frozenset[str] = frozenset()

    @property
    def root(self) -> HostProvider:
        """The root provider, which has the host's name."""
        return self.providers[0]

    @property
    def is_silent(self) -> bool:
        """Whether its agent says nothing, so that no command reaches it."""
        return self.closed.startswith(SILENT)

    @property
    def reach(self) -> tuple[HostProvider, ...]:
        """All providers that can serve a guest of this host."""
        return self.providers + self.shared

    def without(self, consumers: Iterable[str]) -> "FleetHost":
        """The host as it is once these consumers hold nothing here."""
        gone = frozenset(consumers)

        def freed(provider: HostProvider) -> HostProvider:
            left = Counter(provider.used)
            for consumer in gone & provider.holders.keys():
                left.subtract(provider.holders[consumer])
            holders = {each: held for each, held in provider.holders.items() if each not in gone}
            return provider._replace(used=left, holders=holders)

        return self._replace(
            providers=tuple(map(freed, self.providers)), shared=tuple(map(freed, self.shared))
        )

    def limited_to(self, uuids: Collection[str]) -> "FleetHost":
        """The host of which these providers alone can give something."""
        root, *others = self.providers
        bare = root if root.uuid in uuids else root._replace(inventories=NOTHING)
        return self._replace(providers=(bare, *(each for each in others if each.uuid in uuids)))

    def without_use(self) -> "FleetHost":
        """The host with nothing in use, nothing withheld, and not closed."""

        def emptied(provider: HostProvider) -> HostProvider:
            offered = {
                name: replace(inventory, reserved=0) if inventory.reserved >= inventory.total else inventory
                for name, inventory in provider.inventories.items()
            }
            return provider._replace(inventories=offered, used=NOTHING)

        return FleetHost(tuple(map(emptied, self.providers)), tuple(map(emptied, self.shared)))

    def with_guest(self, allocations: Mapping[str, Amounts]) -> "FleetHost":
        """The host with a guest that has these allocations, {provider uuid: {class: amount}}."""

        def taken(provider: HostProvider) -> HostProvider:
            more = allocations.get(provider.uuid)
            return (
                provider if more is None else provider._replace(used=Counter(provider.used) + Counter(more))
            )

        return self._replace(
            providers=tuple(map(taken, self.providers)), shared=tuple(map(taken, self.shared))
        )


class ConditionKind(StrEnum):
    """What a condition asks of a host; the order is that of the conditions."""

    ROOT_TRAIT = "root trait"
    RESOURCE = "resource"
    TRAIT = "trait"
    AGGREGATE = "aggregate"
    APART = "cells"
    ISOLATE = "isolate"
    SUBTREE = "subtree"
    CLOSED = "closed"


class Condition(NamedTuple):
    """One thing that the request asks. `group` is a suffix, or `cell N` for a cell of the guest.

    `name` is a resource class, and `amount` how much of it; or `any_of` are names of which one must be there
    (`forbidden`: none). `words` are those of the request that say so.
    """

    kind: ConditionKind
    group: str = ""
    name: str = ""
    amount: int = 0
    any_of: frozenset[str] = frozenset()
    forbidden: bool = False
    words: str = ""

    @property
    def text(self) -> str:
        """The condition in a sentence: "4 VGPU", "trait CUSTOM_X"."""
        match self.kind:
            case ConditionKind.RESOURCE:
                return f"{self.amount} {self.name}"
            case ConditionKind.ROOT_TRAIT | ConditionKind.TRAIT:
                clause = any_of_clause("trait", self.any_of)
                return f"no {clause}" if self.forbidden else clause
            case ConditionKind.AGGREGATE:
                return any_of_clause("aggregate", self.any_of)
            case ConditionKind.APART:
                return f"{counted(self.amount, 'NUMA cell')} at once"
            case ConditionKind.ISOLATE:
                return f"{counted(self.amount, 'group')}, each on a provider of its own"
            case ConditionKind.SUBTREE:
                return f"the groups {', '.join(sorted(self.any_of))} in one subtree"
        return "closed or silent"


CLOSED = Condition(ConditionKind.CLOSED)


def conditions_of(request: ClaimRequest) -> tuple[Condition, ...]:
    """The conditions of the request, in their order, without words.

    Raises UsageError where the request's topology and amounts do not agree.
    """
    kind = ConditionKind
    found = [Condition(kind.ROOT_TRAIT, any_of=frozenset({name})) for name in sorted(request.root_required)]
    found += [
        Condition(kind.ROOT_TRAIT, any_of=frozenset({name}), forbidden=True)
        for name in sorted(request.root_forbidden)
    ]
    cells = guest_cells(request) if wants_cells(request.topology) else ()
    groups = sorted(request.groups, key=lambda group: group.suffix)
    for group in groups:
        found += [
            Condition(kind.RESOURCE, group.suffix, name, amount)
            for name, amount in group.resources.items()
            if group.suffix or not cells or name not in CELL_CLASSES
        ]
    for cell in cells:
        amounts = {
            "VCPU": len(cell.floating),
            "PCPU": len(cell.pinned) + cell.emulator,
            "MEMORY_MB": cell.memory_mb,
        }
        found += [
            Condition(kind.RESOURCE, f"cell {cell.id}", name, amount)
            for name, amount in amounts.items()
            if amount
        ]
    for group in groups:
        found += [Condition(kind.TRAIT, group.suffix, any_of=any_of) for any_of in group.required]
        found += [
            Condition(kind.TRAIT, group.suffix, any_of=frozenset({name}), forbidden=True)
            for name in sorted(group.forbidden)
        ]
        found += [Condition(kind.AGGREGATE, group.suffix, any_of=any_of) for any_of in group.member_of]
    if len(cells) > 1:
        found.append(Condition(kind.APART, amount=len(cells)))
    suffixed = sum(bool(group.suffix) for group in groups)
    if request.group_policy == "isolate" and suffixed > 1:
        found.append(Condition(kind.ISOLATE, amount=suffixed))
    found += [Condition(kind.SUBTREE, any_of=suffixes) for suffixes in request.same_subtree]
    return tuple(found)


class _Slot(NamedTuple):
    """What one provider gives: a class of the unsuffixed group, a cell of the guest, or a suffixed group.

    Of the unsuffixed group and the cells, the providers together have the required traits.
    """

    group: str
    resources: tuple[tuple[str, int], ...]
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()

    @property
    def is_cell(self) -> bool:
        return " " in self.group  # which no suffix has

    @property
    def is_unsuffixed(self) -> bool:
        return not self.group or self.is_cell


class _Rules(NamedTuple):
    """What a question asks of the providers together, beside what each slot asks of its own."""

    slots: Sequence[_Slot]
    required: tuple[frozenset[str], ...]
    isolate: bool
    apart: bool
    subtrees: Sequence[frozenset[str]]
    contended: frozenset[str]


_Top = tuple[frozenset[str], str]
"""The suffixes of one same_subtree, and the uuid of the provider that is above those of all its groups."""


class Steps:
    """Counts the providers that are tried for a request whose parts concern each other."""

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def take(self) -> None:
        """Raises UsageError after STEPS_MAX of them."""
        self._left -= 1
        if self._left < 0:
            raise UsageError(
                f"The groups can be arranged in too many ways: {STEPS_MAX} tries did not settle where they "
                "fit. Ask for fewer groups at once."
            )


class Question:
    """Some conditions, in the form in which they are tried on host after host."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        bare: frozenset[str] = frozenset(),
        steps: Steps | None = None,
    ) -> None:
        """`bare` are the groups that have no resources, but traits, and a place in a subtree."""
        self._steps = steps or Steps()
        kind = ConditionKind
        self._root_required = [
            each.any_of for each in conditions if each.kind is kind.ROOT_TRAIT and not each.forbidden
        ]
        self._root_forbidden = frozenset[str]().union(
            *(each.any_of for each in conditions if each.kind is kind.ROOT_TRAIT and each.forbidden)
        )
        resources: dict[str, dict[str, int]] = {}
        for each in conditions:
            if each.kind is kind.RESOURCE:
                resources.setdefault(each.group, {})[each.name] = each.amount
        subtrees = [each.any_of for each in conditions if each.kind is kind.SUBTREE]
        for suffix in sorted(bare & frozenset[str]().union(*subtrees)):
            resources[suffix] = {}
        slots: list[_Slot] = []
        together: tuple[frozenset[str], ...] = ()
        for group, amounts in resources.items():
            of_group = "" if " " in group else group
            traits = [each for each in conditions if each.kind is kind.TRAIT and each.group == of_group]
            required = tuple(each.any_of for each in traits if not each.forbidden)
            forbidden = frozenset[str]().union(*(each.any_of for each in traits if each.forbidden))
            member_of = tuple(
                each.any_of for each in conditions if each.kind is kind.AGGREGATE and each.group == of_group
            )
            if not amounts and not required and not member_of:
                continue  # its conditions are not among these
            if not of_group:
                together, required = required, ()
            parts = [tuple(amounts.items())] if group else [(pair,) for pair in amounts.items()]
            slots += [_Slot(group, part, required, forbidden, member_of) for part in parts]
        present = {slot.group for slot in slots}
        subtrees = [both for suffixes in subtrees if len(both := suffixes & present) > 1]
        asked = Counter(name for slot in slots for name, _ in slot.resources)
        contended = frozenset(name for name, times in asked.items() if times > 1)
        isolate = any(each.kind is kind.ISOLATE for each in conditions)
        apart = any(each.kind is kind.APART for each in conditions)
        self._rules = _Rules(slots, together, isolate, apart, subtrees, contended)
        self.is_simple = not any(self._rules[1:])

    def fit(self, host: FleetHost, *, empty: bool = False, lifted: bool = False) -> Allocations | None:
        """The allocations of a place on the host, None if it has none.

        `empty`: as if nothing were in use; `lifted`: as if nothing were withheld.
        """
        options = self._options(host, empty, lifted or empty)
        if options is None:
            return None
        if self.is_simple:
            return self._sums([serving[0] for serving in options])
        return next(self._choices(host, options, empty, lifted or empty), None)

    def ways(self, host: FleetHost) -> Iterator[Allocations]:
        """The allocations of each place on the host, in turn; some come more than once."""
        options = self._options(host, empty=False, lifted=False)
        if options is None:
            return iter(())
        if self.is_simple:
            return map(self._sums, product(*options))
        return self._choices(host, options, empty=False, lifted=False)

    def _options(self, host: FleetHost, empty: bool, lifted: bool) -> list[list[HostProvider]] | None:
        """The providers that could fill each slot alone; None where some slot has none."""
        traits = host.root.traits
        if self._root_forbidden & traits or not all(any_of & traits for any_of in self._root_required):
            return None
        options: list[list[HostProvider]] = []
        reach = host.reach
        for slot in self._rules.slots:
            first = slot.resources[0][0] if slot.resources else ""
            serving = [
                each
                for each in reach
                if (not first or first in each.inventories) and self._serves(slot, each, host, empty, lifted)
            ]
            if not serving:
                return None
            options.append(serving)
        return options

    def _choices(
        self, host: FleetHost, options: Sequence[Sequence[HostProvider]], empty: bool, lifted: bool
    ) -> Iterator[Allocations]:
        together = [
            [each.uuid for each in serving]
            for slot, serving in zip(self._rules.slots, options, strict=True)
            if self._rules.isolate and not slot.is_unsuffixed
        ]
        if not can_lie_apart(together):
            return
        for name in self._rules.contended:
            asked = sum(
                amount for slot in self._rules.slots for each, amount in slot.resources if each == name
            )
            able = {each.uuid: each for serving in options for each in serving if name in each.inventories}
            if asked > sum(free_of(each, name, empty=empty, lifted=lifted) for each in able.values()):
                return
        search = _Search(self._rules, host, empty, lifted, self._steps)
        # The top of a subtree is one of the providers chosen in it, so each possible top is tried on its own.
        possible: list[list[_Top]] = []
        for suffixes in self._rules.subtrees:
            within = (
                each.uuid
                for slot, serving in zip(self._rules.slots, options, strict=True)
                if slot.group in suffixes
                for each in serving
            )
            possible.append([(suffixes, uuid) for uuid in dict.fromkeys(within)])
        for tops in product(*possible):
            yield from map(self._sums, search.fill(self._below(tops, options, host), tops))

    def usable(self, provider: HostProvider, name: str, free: int) -> int:
        """Of so much that is free of a class, what parts of guests can have: whole ones, by the traits."""
        parts = [
            amount
            for slot in self._rules.slots
            for each, amount in slot.resources
            if each == name
            and amount <= provider.inventories[name].max_unit
            and not slot.forbidden & provider.traits
            and all(any_of & provider.traits for any_of in slot.required)
        ]
        return free - free % gcd(*parts) if parts and free > 0 else 0

    def _sums(self, chosen: Sequence[HostProvider]) -> Allocations:
        sums: dict[str, dict[str, int]] = {}
        for slot, provider in zip(self._rules.slots, chosen, strict=True):
            given = sums.setdefault(provider.uuid, {})
            for name, amount in slot.resources:
                given[name] = given.get(name, 0) + amount
        return {uuid: amounts for uuid, amounts in sums.items() if amounts}

    def _serves(
        self, slot: _Slot, provider: HostProvider, host: FleetHost, empty: bool, lifted: bool
    ) -> bool:
        for name, amount in slot.resources:
            inventory = provider.inventories.get(name)
            if inventory is None or not inventory.min_unit <= amount <= inventory.max_unit:
                return False
            if amount % inventory.step_size or amount > free_of(provider, name, empty=empty, lifted=lifted):
                return False
        if slot.forbidden & provider.traits:
            return False
        if not all(any_of & provider.traits for any_of in slot.required):
            return False
        if not slot.member_of:
            return True
        memberships = [provider.aggregates]
        if slot.is_unsuffixed and provider in host.providers:
            memberships.append(host.root.aggregates)
        return any(all(any_of & names for any_of in slot.member_of) for names in memberships)

    def _below(
        self,
        tops: Sequence[_Top],
        options: Sequence[Sequence[HostProvider]],
        host: FleetHost,
    ) -> list[list[HostProvider]]:
        parents = {provider.uuid: provider.parent for provider in host.reach}

        def is_below(uuid: str | None, top: str) -> bool:
            while uuid is not None and uuid != top:
                uuid = parents.get(uuid)
            return uuid is not None

        return [
            [
                provider
                for provider in serving
                if all(is_below(provider.uuid, top) for suffixes, top in tops if slot.group in suffixes)
            ]
            for slot, serving in zip(self._rules.slots, options, strict=True)
        ]


class _Search:
    """Fills the slots of a question on one host, depth first."""

    def __init__(self, rules: _Rules, host: FleetHost, empty: bool, lifted: bool, steps: Steps) -> None:
        self._rules = rules
        self._host = host
        self._room = {"empty": empty, "lifted": lifted}
        self._chosen: list[HostProvider] = []
        self._taken: Counter[tuple[str, str]] = Counter()
        self._hopeless: set[object] = set()
        self._in_subtrees = frozenset[str]().union(*rules.subtrees)
        # Those whose slot asks for the same as the one before it: they are filled in the order of providers.
        self._equals = {
            number
            for number, (one, other) in enumerate(pairwise(rules.slots), 1)
            if (one.is_cell, one[1:]) == (other.is_cell, other[1:])
            and not {one.group, other.group} & {"", *self._in_subtrees}
        }
        self._steps = steps

    def fill(
        self, options: Sequence[Sequence[HostProvider]], tops: Sequence[_Top]
    ) -> Iterator[list[HostProvider]]:
        """Each choice of a provider for each slot; those that differ by equal slots alone come once."""
        self._hopeless.clear()
        return self._fill_from(0, 0, options, tops) if all(options) else iter(())

    def _fill_from(
        self, depth: int, first: int, options: Sequence[Sequence[HostProvider]], tops: Sequence[_Top]
    ) -> Iterator[list[HostProvider]]:
        if depth == len(self._rules.slots):
            # What concerns all: the traits that those of the unsuffixed group have together, and the tops.
            filled = list(self._filled())
            traits = frozenset[str]().union(*(each.traits for slot, each in filled if slot.is_unsuffixed))
            if all(any_of & traits for any_of in self._rules.required) and all(
                any(slot.group in suffixes and each.uuid == top for slot, each in filled)
                for suffixes, top in tops
            ):
                yield self._chosen
            return
        # All that decides whether the slots from here on can be filled: states that failed come again.
        places = frozenset(
            (slot.group if slot.group in self._in_subtrees else slot.is_unsuffixed, slot.is_cell, each.uuid)
            for slot, each in self._filled()
        )
        state = (depth, first, places, frozenset(item for item in self._taken.items() if item[1]))
        if state in self._hopeless:
            return
        slot, is_fruitful = self._rules.slots[depth], False
        contended = [(name, amount) for name, amount in slot.resources if name in self._rules.contended]
        for number, provider in enumerate(options[depth][first:], first):
            self._steps.take()
            if not self._admits(slot, contended, provider):
                continue
            self._chosen.append(provider)
            for name, amount in contended:
                self._taken[provider.uuid, name] += amount
            start = number if depth + 1 in self._equals else 0
            for chosen in self._fill_from(depth + 1, start, options, tops):
                is_fruitful = True
                yield chosen
            self._chosen.pop()
            for name, amount in contended:
                self._taken[provider.uuid, name] -= amount
        if not is_fruitful:
            self._hopeless.add(state)

    def _filled(self) -> Iterator[tuple[_Slot, HostProvider]]:
        return zip(self._rules.slots, self._chosen, strict=False)

    def _admits(self, slot: _Slot, contended: Iterable[tuple[str, int]], provider: HostProvider) -> bool:
        """Whether the provider can fill the slot beside those that it fills already."""
        rules, is_root = self._rules, provider.uuid == self._host.root.uuid
        for before, other in self._filled():
            if provider.uuid != other.uuid:
                continue
            if rules.isolate and not (slot.is_unsuffixed or before.is_unsuffixed):
                return False
            if rules.apart and slot.is_cell and before.is_cell and not is_root:
                return False
        return all(
            self._taken[provider.uuid, name] + amount
            <= min(provider.inventories[name].max_unit, free_of(provider, name, **self._room))
            for name, amount in contended
        )


def free_of(provider: HostProvider, name: str, *, empty: bool = False, lifted: bool = False) -> int:
    """What the provider can give of the class; `empty` and `lifted` as for `Question.fit`."""
    inventory = provider.inventories[name]
    if lifted and inventory.reserved >= inventory.total:
        capacity = int(inventory.total * inventory.allocation_ratio)
    else:
        capacity = inventory.capacity
    return capacity if empty else capacity - provider.used.get(name, 0)


class Obstacle(NamedTuple):
    """The first condition that a host does not meet; `forever`: not with nothing in use, either.

    `alone`: without this condition the host would fit. `met` is how many conditions stand before it.
    """

    condition: Condition
    forever: bool
    alone: bool
    met: int = 0


class Demand:
    """A request whose conditions are asked of host after host."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = tuple(conditions)
        kinds, numbers = ConditionKind, range(len(self.conditions))
        giving = {each.group for each in self.conditions if each.kind is kinds.RESOURCE}
        bare = frozenset(each.group for each in self.conditions if each.kind is kinds.TRAIT) - giving
        steps = Steps()
        self.whole = Question(conditions, bare, steps)
        self._first = [Question(conditions[: number + 1], bare, steps) for number in numbers]
        self._every = Question(conditions, bare)
        self._of_root = Question([each for each in conditions if each.kind is kinds.ROOT_TRAIT])
        self.has_cells = any(" " in each.group for each in self.conditions)
        self._without = [
            Question([*conditions[:number], *conditions[number + 1 :]], bare, steps) for number in numbers
        ]
        self.asked = by_class(
            {each.name: each.amount} for each in self.conditions if each.kind is ConditionKind.RESOURCE
        )

    def ways(self, host: FleetHost, most: int) -> tuple[list[Allocations], bool]:
        """The different places of one guest on the host, and whether these are all: `most` are looked at."""
        found: dict[frozenset[tuple[str, frozenset[tuple[str, int]]]], Allocations] = {}
        with suppress(UsageError):  # too many steps
            for number, way in enumerate(self._every.ways(host)):
                if number >= most:
                    break
                found[frozenset((uuid, frozenset(part.items())) for uuid, part in way.items())] = way
            else:
                return list(found.values()), True
        return list(found.values()), False

    def obstacle(self, host: FleetHost) -> Obstacle | None:
        """The host's first obstacle, None where it fits. A closed host that could fit has CLOSED."""
        fits = self.whole.fit(host) is not None
        forever = not fits and self.whole.fit(host, empty=True) is None
        if host.pending and forever:  # a reshape can bring all but the traits of the root
            forever = self._of_root.fit(host) is None
        if host.closed and not forever:
            return Obstacle(CLOSED, forever=False, alone=fits, met=len(self.conditions))
        if fits:
            return None
        number = bisect_left(self._first, True, key=lambda part: part.fit(host, empty=forever) is None)
        alone = not host.closed and self._without[number].fit(host) is not None
        return Obstacle(self.conditions[number], forever, alone, number)


# Why not


class Miss(NamedTuple):
    """What a host lacks: the first obstacle, on the provider that has the most free of it.

    `free` and `total` are None for what is no amount. `holders` {consumer: amount} use it there.
    """

    host: FleetHost
    obstacle: Obstacle
    asked: int | None
    free: int | None
    total: int | None
    provider: HostProvider
    holders: Mapping[str, int] = NOTHING
    max_unit: int | None = None
    """Where one provider gives less at once than is asked."""

    @property
    def short(self) -> float:
        """The share of the amount asked that is missing; 1 for what is no amount."""
        if self.asked is None or self.free is None:
            return 1.0
        return max(0, self.asked - self.free) / self.asked

    def nearness(self) -> tuple[bool, bool, int, float, str]:
        """The rank of hosts that do not fit: could ever, lacks one thing alone, meets most, lacks least."""
        obstacle = self.obstacle
        return obstacle.forever, not obstacle.alone, -obstacle.met, self.short, self.host.root.name


def miss_of(demand: Demand, host: FleetHost, obstacle: Obstacle) -> Miss:
    """What the host lacks."""
    condition = obstacle.condition
    if condition.kind is not ConditionKind.RESOURCE:
        return Miss(host, obstacle, None, None, None, host.root)
    name = condition.name
    having = [provider for provider in host.reach if name in provider.inventories]
    if not having:
        return Miss(host, obstacle, condition.amount, 0, 0, host.root)
    provider = max(having, key=lambda each: free_of(each, name))
    free, asked = max(0, free_of(provider, name)), condition.amount
    if free >= asked:  # beside what the conditions before it ask of the class, there is not as much
        before = demand.conditions[: demand.conditions.index(condition)]
        asked += sum(each.amount for each in before if each.name == name)
    total = provider.inventories[name].total
    holders = {who: held[name] for who, held in provider.holders.items() if held.get(name)}
    at_once = provider.inventories[name].max_unit
    limit = at_once if at_once < condition.amount else None
    return Miss(host, obstacle, asked, free, total, provider, holders, limit)


class SummaryRow(NamedTuple):
    """How many hosts have this first obstacle, how many of them for good, how many would fit without it."""

    condition: Condition
    hosts: int
    forever: int
    fit_without: int


def summary_of(demand: Demand, obstacles: Iterable[Obstacle]) -> tuple[SummaryRow, ...]:
    """The hosts by their first obstacle, each once; closed ones first, then in the order of the request."""
    found = list(obstacles)
    counts = Counter(each.condition for each in found)
    return tuple(
        SummaryRow(
            condition,
            counts[condition],
            sum(each.forever for each in found if each.condition == condition),
            sum(each.alone for each in found if each.condition == condition),
        )
        for condition in (CLOSED, *demand.conditions)
        if counts[condition]
    )


class Change(NamedTuple):
    """What makes room on a host.

    `kind`: "resume" a closed host, "lift" what is withheld on `providers`, or "move" the `instances`,
    {consumer: the host that has room for what it holds here, "" if none has}; then `providers` are the shared
    ones of which they have a part: a release alone gives that back. Of the instances, `migrations` hold the
    old place of an instance that moves, and give it back when the move is confirmed; `reverts` have a new
    place here, and give it back when their move is reverted. "reshape": the host's pending reshape may make
    room once it is done, which waits for the `reason`; until then all of `providers` is withheld.
    """

    kind: str
    host: str
    providers: tuple[str, ...] = ()
    instances: Mapping[str, str] = NOTHING
    migrations: tuple[str, ...] = ()
    reason: str = ""
    reverts: tuple[str, ...] = ()


NewPlaceOf = Callable[[str, frozenset[str]], str | None]
"""A host that has none of these names, with room for all that the consumer holds; "" for none.

None: the consumer is a migration, whose place is that of a move.
"""


def smallest_changes(demand: Demand, near: Sequence[FleetHost], new_place: NewPlaceOf) -> tuple[Change, ...]:
    """For each kind of change the smallest that makes room on a host that is `near`; its holders are known.

    Each instance that leaves gets a place on another host, if there are so many.
    """
    found: dict[str, Change] = {}
    fewest: tuple[FleetHost, tuple[str, ...]] | None = None
    for host in near:
        name = host.root.name
        if host.closed:
            if not host.is_silent and demand.whole.fit(host) is not None:
                found.setdefault("resume", Change("resume", name))
            continue
        place = demand.whole.fit(host, lifted=True)
        if place is not None or host.pending:
            lifted = [
                each
                for each in host.reach
                if any(
                    each.inventories[of].reserved >= each.inventories[of].total
                    for of in (place or {}).get(each.uuid, ())
                )
            ]
            kind = "reshape" if host.pending else "lift"
            names = tuple(each.name for each in lifted)
            found.setdefault(kind, Change(kind, name, names, reason=host.pending))
        leaving = _fewest_to_leave(demand, host, SET_MAX + 1 if fewest is None else len(fewest[1]) - 1)
        if leaving is not None and (fewest is None or len(leaving) < len(fewest[1])):
            fewest = host, leaving
    if fewest is not None:
        host, leaving = fewest
        targets = dict.fromkeys(leaving, "")
        # What is free of a shared provider grows by no move within its reach.
        pools = [each.name for each in host.shared if not each.holders.keys().isdisjoint(leaving)]
        migrations = []
        reverts = [consumer for consumer in leaving if consumer in host.moving]
        for consumer in leaving[:SET_MAX]:
            if consumer in reverts:
                continue
            place_of_it = new_place(consumer, frozenset({host.root.name, *targets.values()}))
            if place_of_it is None:
                migrations.append(consumer)
            elif not pools:
                targets[consumer] = place_of_it
        if migrations:  # of one move, not both ends make room: its instance is released
            reverts = []
        found["move"] = Change(
            "move", host.root.name, tuple(pools), targets, tuple(migrations), reverts=tuple(reverts)
        )
    return tuple(found[kind] for kind in ("move", "reshape", "lift", "resume") if kind in found)


def _fewest_to_leave(demand: Demand, host: FleetHost, most: int) -> tuple[str, ...] | None:
    """The smallest set of consumers without which the request fits, None if none is; those with least first.

    Above `most`, or after TRIES_MAX sets, a set is taken of which none is to spare.
    """
    held: dict[str, float] = {}
    for provider in host.reach:
        for consumer, amounts in provider.holders.items():
            share = sum(amounts.get(name, 0) / asked for name, asked in demand.asked.items())
            held[consumer] = held.get(consumer, 0.0) + share
    holders = sorted((who for who, share in held.items() if share), key=lambda who: (held[who], who))
    if demand.whole.fit(host.without(holders)) is None:
        return None
    tries = 0
    for size in range(1, min(most, SET_MAX, len(holders)) + 1):
        for chosen in islice(combinations(holders, size), TRIES_MAX - tries):
            tries += 1
            if demand.whole.fit(host.without(chosen)) is not None:
                return chosen
    if most <= SET_MAX:
        return None  # another host has a smaller one
    kept = list(holders)
    for who in sorted(holders, key=lambda each: (-held[each], each)):
        rest = [other for other in kept if other != who]
        if demand.whole.fit(host.without(rest)) is not None:
            kept = rest
    return tuple(kept)
