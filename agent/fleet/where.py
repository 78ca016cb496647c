"""On which hosts of a fleet a request fits and where best, why not on others, what would make room. Pure.

A request is a list of *conditions* in a fixed order: the traits of the root, then each amount of a class,
then the traits and aggregates of each group, then what concerns several groups at once. Adding a condition
makes a request harder to fit, so each host that does not fit has one *first obstacle*: the condition with
which the conditions before it fit no more. A host that would not fit with nothing in use has it *for good*;
the others have it now. A class of which all is reserved counts as withheld, and a host that takes no claims
as closed: both end when an operator says so.

The rules are those of Placement's allocation candidates for one tree and the sharing providers of its
aggregates, and one of the agent: cells of a guest come from different providers, unless the host shows none
and its root has them all. Exact CPUs, page sizes and threads are not in Placement; the host decides on them
when it is claimed from.

Several guests are placed one after the other, each on the best host. Where that finds too few places, the
hosts on which another choice could have room for more are packed anew: agent.placement.knapsack compares the
ways in which one guest can lie on the host. Hosts concern each other only by the pools that they share. After
so many steps the number of places is a lower bound. tests/unit/fleet compares all answers with brute force.

Source: https://docs.openstack.org/placement/latest/user/provider-tree.html.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import combinations, islice, pairwise, product
from math import gcd
from types import MappingProxyType
from typing import Any, NamedTuple

from agent.claims.capacity import OF_EVERY_GUEST
from agent.claims.choice import Order
from agent.claims.fit_search import any_of_clause
from agent.claims.guest_cells import guest_cells, wants_cells
from agent.claims.host_cells import CELL_CLASSES
from agent.claims.request import ClaimRequest, is_confidential
from agent.device_names import CC, CC_DEVTOOLS, CC_ON, CC_WRONG, is_device_class
from agent.errors import UsageError, counted
from agent.placement.knapsack import pack
from agent.placement.slot_search import SlotRules, SlotSearch, Steps
from agent.shapes import Allocations, Amounts, Holders, by_class, total
from agent.tree import Inventory

PACKING_STEPS_MAX = 100_000
"""So many steps are spent on the most guests that fit on all hosts together."""
WAYS_MAX = 1000
"""So many ways of a guest are compared on a host, or on hosts that are packed together."""
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


_CARDS = {
    frozenset({CC}): f"a card without trait {CC} (only guests with SEV-SNP or TDX get one that has it)",
    frozenset(CC_WRONG): "a card in the mode of confidential computing that its [pci] device_spec states",
}
"""{what a guest's card must not have: the card, in words}"""


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
            case ConditionKind.TRAIT if self.forbidden and self.any_of in _CARDS:
                return _CARDS[self.any_of]
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


def card_conditions(request: ClaimRequest) -> Iterator[Condition]:
    """What the encryption of the guest's memory asks of its cards, which are told by their classes.

    Any class of an operator's own is taken for one of cards. The host decides by the cards themselves, see
    `agent.claims.request.card_obstacle`.
    """
    confidential = is_confidential(request)
    for group in request.groups:
        if not any(map(is_device_class, group.resources)):
            continue
        wanted = frozenset(CC_WRONG if confidential is None else {CC_ON if confidential else CC})
        if confidential and any(CC_DEVTOOLS in any_of for any_of in group.required):
            wanted |= {CC_DEVTOOLS}
        yield Condition(ConditionKind.TRAIT, group.suffix, any_of=wanted, forbidden=not confidential)


def without_contradictions(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """The conditions, but no group forbids a trait that it asks for: Placement refuses such a query."""
    asked = {
        (each.kind, each.group, name) for each in conditions if not each.forbidden for name in each.any_of
    }

    def askable(condition: Condition) -> Condition:
        if not condition.forbidden:
            return condition
        names = (name for name in condition.any_of if (condition.kind, condition.group, name) not in asked)
        return condition._replace(any_of=frozenset(names))

    return tuple(each for each in map(askable, conditions) if each.any_of or not each.forbidden)


class _Slot(NamedTuple):
    """What one provider gives: a class of the unsuffixed group, a cell of the guest, or a suffixed group.

    Of the unsuffixed group and the cells, the providers together have the required traits.
    """

    group: str
    resources: Mapping[str, int]
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()

    @property
    def is_cell(self) -> bool:
        return " " in self.group  # which no suffix has


class Question:
    """Some conditions, in the form in which they are tried on host after host."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        bare: frozenset[str] = frozenset(),
        steps: Steps | None = None,
    ) -> None:
        """`bare` are the groups that have no resources, but traits, and a place in a subtree."""
        self._steps = steps or Steps(STEPS_MAX)
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
            parts = [amounts] if group else [{name: amount} for name, amount in amounts.items()]
            slots += [_Slot(group, part, required, forbidden, member_of) for part in parts]
        present = {slot.group for slot in slots}
        subtrees = [both for suffixes in subtrees if len(both := suffixes & present) > 1]
        cells = {slot.group for slot in slots if slot.is_cell}
        single = frozenset[str]({""}).union(*subtrees)
        self._slots = slots
        self._rules = SlotRules(
            [(slot.group, slot.resources) for slot in slots],
            unsuffixed={"", *cells},
            required=together,
            isolate=any(each.kind is kind.ISOLATE for each in conditions),
            cells=cells if any(each.kind is kind.APART for each in conditions) else (),
            subtrees=subtrees,
            alike={
                number
                for number, (one, other) in enumerate(pairwise(slots), 1)
                if (one.is_cell, one[1:]) == (other.is_cell, other[1:])
                and not {one.group, other.group} & single
            },
        )
        self.is_simple = self._rules.is_simple

    def fit(self, host: FleetHost, *, empty: bool = False, lifted: bool = False) -> Allocations | None:
        """The allocations of a place on the host, None if it has none.

        `empty`: as if nothing were in use; `lifted`: as if nothing were withheld.
        """
        options = self._options(host, empty, lifted or empty)
        if options is None:
            return None
        if self.is_simple:
            return self._rules.allocations(serving[0] for serving in options)
        return next(self._choices(host, options, empty, lifted or empty), None)

    def ways(self, host: FleetHost) -> Iterator[Allocations]:
        """The allocations of each place on the host, in turn; some come more than once."""
        options = self._options(host, empty=False, lifted=False)
        if options is None:
            return iter(())
        if self.is_simple:
            return map(self._rules.allocations, product(*options))
        return self._choices(host, options, empty=False, lifted=False)

    def _options(self, host: FleetHost, empty: bool, lifted: bool) -> list[list[HostProvider]] | None:
        """The providers that could fill each slot alone; None where some slot has none."""
        traits = host.root.traits
        if self._root_forbidden & traits or not all(any_of & traits for any_of in self._root_required):
            return None
        options: list[list[HostProvider]] = []
        reach = host.reach
        for slot in self._slots:
            first = next(iter(slot.resources), "")
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
        free = partial(free_of, empty=empty, lifted=lifted)
        if self._rules.may_be_filled(options, free):
            parents = {provider.uuid: provider.parent for provider in host.reach}
            search = SlotSearch(self._rules, options, host.root.uuid, free, parents.get, self._steps)
            yield from map(self._rules.allocations, search.fill())

    def usable(self, provider: HostProvider, name: str, free: int) -> int:
        """Of so much that is free of a class, what parts of guests can have: whole ones, by the traits."""
        parts = [
            amount
            for slot in self._slots
            for each, amount in slot.resources.items()
            if each == name
            and amount <= provider.inventories[name].max_unit
            and not slot.forbidden & provider.traits
            and all(any_of & provider.traits for any_of in slot.required)
        ]
        return free - free % gcd(*parts) if parts and free > 0 else 0

    def _serves(
        self, slot: _Slot, provider: HostProvider, host: FleetHost, empty: bool, lifted: bool
    ) -> bool:
        for name, amount in slot.resources.items():
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
        if (not slot.group or slot.is_cell) and provider in host.providers:
            memberships.append(host.root.aggregates)
        return any(all(any_of & names for any_of in slot.member_of) for names in memberships)


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
        steps = Steps(STEPS_MAX)
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
    reverts: tuple[str, ...] = ()
    reason: str = ""


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
            "move", host.root.name, tuple(pools), targets, tuple(migrations), tuple(reverts)
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


# Places: which host is best, and places for several guests at once


class Candidate(NamedTuple):
    """A place on a host: {provider uuid: (name, {class: amount})}, and what is left beside the guest.

    `left` is {class: (free, capacity, usable)}, summed over the host's own providers, of all classes. Of a
    class that is asked, that is usable which is free in whole parts of a guest on providers that may give it.
    """

    host: str
    root: str
    allocations: Mapping[str, tuple[str, Amounts]]
    left: Mapping[str, Sequence[int]]

    @property
    def amounts(self) -> Allocations:
        """The allocations without names."""
        return {uuid: amounts for uuid, (_, amounts) in self.allocations.items()}

    def hides_cells(self, demand: Demand) -> bool:
        """Whether the host reports no NUMA cells, so that those of the guest would come from its root."""
        _, of_root = self.allocations.get(self.root, ("", NOTHING))
        return demand.has_cells and not of_root.keys().isdisjoint(CELL_CLASSES)

    def rank(self, demand: Demand, order: Order) -> tuple[bool, float, bool, float, str]:
        """The rank among hosts that fit, the lowest is best.

        Hosts that hide their cells are last where the guest asks for some. The fullest host is first
        (`pack`) or the emptiest (`spread`), in steps of a tenth of what was asked. Of equal ones that is
        first where the guest lies beside no idle device, and then where the least of the classes asked is
        stranded: when as many further guests of this kind as fit are there, too.
        """
        asked = demand.asked
        of_asked = {name: self.left[name] for name in asked if name in self.left}
        share = sum(free / max(1, capacity) for free, capacity, _ in of_asked.values()) / max(
            1, len(of_asked)
        )
        more = min((usable // asked[name] for name, (_, _, usable) in of_asked.items()), default=0)
        stranded = sum(
            (free - more * asked[name]) / max(1, capacity) for name, (free, capacity, _) in of_asked.items()
        )
        idle = any(
            free > 0
            for name, (free, *_) in self.left.items()
            if name not in asked and name not in OF_EVERY_GUEST
        )
        return (
            self.hides_cells(demand),
            (round(share, 1) if order is Order.PACK else -round(share, 1)),
            idle,
            round(stranded, 6),
            self.host,
        )


def candidate_of(demand: Demand, host: FleetHost, allocations: Allocations) -> Candidate:
    """The candidate of a place that `Question.fit` found."""
    names = {provider.uuid: provider.name for provider in host.reach}
    left: dict[str, tuple[int, int, int]] = {}
    for provider in host.providers:
        for name, inventory in provider.inventories.items():
            free, capacity, usable = left.get(name, (0, 0, 0))
            taken = allocations.get(provider.uuid, {}).get(name, 0)
            here = free_of(provider, name) - taken
            usable += demand.whole.usable(provider, name, here) if name in demand.asked else 0
            left[name] = free + here, capacity + inventory.capacity, usable
    by_provider = {uuid: (names[uuid], amounts) for uuid, amounts in allocations.items()}
    return Candidate(host.root.name, host.root.uuid, by_provider, left)


class Together(NamedTuple):
    """Places for several guests, each beside the others; `hosts` are all hosts with the guests in them.

    No more than `most` have places at once; the number of places, where that is known for certain.
    """

    places: Sequence[Candidate]
    hosts: Sequence[FleetHost]
    most: int


def places_together(
    demand: Demand, hosts: Sequence[FleetHost], count: int, order: Order, *, empty: bool = False
) -> Together:
    """Places for `count` guests, or for as many as have places.

    They are placed one after the other, each on the best host. If that ends too early, the hosts on which
    more might fit are packed anew, those that share a pool together. `empty`: as if nothing were in use now,
    and no host closed.
    """
    hosts = [host.without_use() for host in hosts] if empty else hosts
    places = _in_turn(demand, hosts, count, order)
    most, steps = len(places), PACKING_STEPS_MAX
    groups = _sharing_pools(demand, hosts) if most < count else ()
    for group in groups:
        if demand.whole.is_simple and len(group) == 1:
            continue  # none of its slots concerns another one
        roots = {host.root.uuid for host in group}
        here = sum(place.root in roots for place in places)
        need = min(here + count - len(places), _at_most(demand, group))
        if need > here:
            anew, at_most, steps = _packed(demand, group, need, steps)
            most += max(here, at_most) - here
            if len(anew) > here:
                places = [place for place in places if place.root not in roots] + anew
    filled = _filled(hosts, places)
    if groups:  # a host that was packed in few steps may have room for more
        more = _in_turn(demand, filled, count - len(places), order)
        places, filled = places + more, _filled(filled, more)
    return Together(places, filled, min(most, count))


def _filled(hosts: Iterable[FleetHost], places: Iterable[Candidate]) -> list[FleetHost]:
    taken = total(place.amounts for place in places)
    return [host.with_guest(taken) for host in hosts]


def _in_turn(demand: Demand, hosts: Sequence[FleetHost], count: int, order: Order) -> list[Candidate]:
    left = list(hosts)

    def offer_of(number: int) -> Iterator[tuple[tuple[bool, float, bool, float, str], int, Candidate]]:
        host = left[number]
        found = None if host.closed else demand.whole.fit(host)
        if found is not None:
            candidate = candidate_of(demand, host, found)
            yield candidate.rank(demand, order), number, candidate

    offers = {number: offer for number in range(len(left)) for offer in offer_of(number)}
    sharing: dict[str, list[int]] = {}
    for number in offers:
        for pool in left[number].shared:
            sharing.setdefault(pool.uuid, []).append(number)
    pools: dict[str, HostProvider] = {}
    outdated: set[int] = set()
    places: list[Candidate] = []
    while offers and len(places) < count:
        _, number, best = min(offers.values())
        if number not in outdated:
            places.append(best)
            left[number] = left[number].with_guest(best.amounts)
            taken_from = {pool.uuid: pool for pool in left[number].shared if pool.uuid in best.allocations}
            pools |= taken_from
            outdated.update(*(sharing[uuid] for uuid in taken_from))
        outdated.discard(number)
        shared = tuple(pools.get(pool.uuid, pool) for pool in left[number].shared)
        left[number] = left[number]._replace(shared=shared)
        offers.pop(number)
        offers.update((number, offer) for offer in offer_of(number))
    return places


def _packed(
    demand: Demand, group: Sequence[FleetHost], need: int, steps: int
) -> tuple[list[Candidate], int, int]:
    """Places for at most `need` guests on the hosts; the bound, and the steps that are left."""
    free = {
        provider.uuid: {name: free_of(provider, name) for name in demand.asked.keys() & provider.inventories}
        for host in group
        for provider in host.reach
    }
    left = {uuid: dict(amounts) for uuid, amounts in free.items()}
    ways: list[tuple[FleetHost, Allocations]] = []
    chosen: list[tuple[FleetHost, Allocations]] = []
    most, tried_all = 0, True
    for host in group:  # each as if the others left the pools to it
        own, all_of_host = demand.ways(host, min(steps, WAYS_MAX))
        packed = pack(own, free, need, steps)
        steps = max(0, steps - len(own) - packed.steps)
        most += packed.most if all_of_host else min(need, _at_most(demand, [host]))
        tried_all = tried_all and all_of_host
        ways += [(host, way) for way in own]
        for way, times in zip(own, packed.times, strict=True):
            spots = [(left[uuid], *each) for uuid, amounts in way.items() for each in amounts.items()]
            fitting = min(times, *(there[name] // amount for there, name, amount in spots))
            for there, name, amount in spots:
                there[name] -= fitting * amount
            chosen += [(host, way)] * fitting
    most = min(most, need)
    if len(chosen) < most and len(group) > 1 and len(ways) <= WAYS_MAX:
        packed = pack([way for _, way in ways], free, most, steps)
        steps -= packed.steps
        most = packed.most if tried_all else most
        if sum(packed.times) > len(chosen):
            chosen = [each for each, times in zip(ways, packed.times, strict=True) for _ in range(times)]
    places, filled = [], {host.root.uuid: host for host in group}
    for host, way in chosen[:need]:
        places.append(candidate_of(demand, filled[host.root.uuid], way))
        filled[host.root.uuid] = filled[host.root.uuid].with_guest(way)
    return places, most, steps


def _at_most(demand: Demand, hosts: Iterable[FleetHost]) -> int:
    """No more guests fit than what is free of each class allows."""
    providers = {provider.uuid: provider for host in hosts for provider in host.reach}.values()
    return min(
        sum(max(0, free_of(each, name)) for each in providers if name in each.inventories) // asked
        for name, asked in demand.asked.items()
    )


def _sharing_pools(demand: Demand, hosts: Iterable[FleetHost]) -> list[list[FleetHost]]:
    """The open hosts in groups of which none has a pool in reach that another one has."""
    groups: list[tuple[set[str], list[FleetHost]]] = []
    for host in hosts:
        if host.closed:
            continue
        pools = {pool.uuid for pool in host.shared if not demand.asked.keys().isdisjoint(pool.inventories)}
        touched = [group for group in groups if pools and not pools.isdisjoint(group[0])]
        groups = [group for group in groups if group not in touched]
        of_group = [each for _, members in touched for each in members]
        groups.append((pools.union(*(known for known, _ in touched)), [*of_group, host]))
    return [members for _, members in groups]
