"""The search for the providers that serve a request. Pure.

A request is divided into *slots*, each to be filled by one provider: one slot for each class of the
unsuffixed group, and one for each suffixed group. The search (agent.placement.slot_search) stops after
`STEPS_MAX` steps.

The order of choice is fixed, so that the same request always has the same result: own providers before
sharing ones, as agent.claims.choice ranks them, those of equal rank with the fewest free peers (below their
PCIe switch, or in their group of GPUs) first, then from the root down, siblings by name. Within the
unsuffixed group, a provider that was already chosen goes first, then one that can serve more of the group's
classes, so that a guest is spread over few providers.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agent.claims.choice import NO_COST, CellCost, Choice
from agent.claims.request import ClaimRequest, RequestGroup, card_obstacle, is_confidential
from agent.errors import UsageError
from agent.placement.slot_search import SlotRules, SlotSearch, Steps
from agent.providers.divided_cards import CardStock
from agent.providers.limits import Caps
from agent.providers.reservations import WaysOf, can_give_together, excluding_class, room
from agent.shapes import Classes, Units, Usages
from agent.tree import Inventory, Provider, ProviderTree

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
STEPS_MAX = 10_000
SCARCE = "only "
"""So begins the clause on a class of which less is free than is asked, because others have the rest."""


@dataclass(frozen=True, slots=True)
class ProviderIndex:
    """The providers that can serve this host: those of its tree, and the sharing ones of its aggregates.

    `providers` and `by_class` {class: providers with inventory of it} are in the order of choice. `ways` are
    the classes that exclude each other on a provider. `bound` are the only providers that may serve a group,
    as in a Restriction, `cordoned` {provider uuid: {class: number}} are the idle units that are withheld:
    cordoned by an operator, or unhealthy. `cards` {provider uuid: what is left} are cards whose classes share
    their room, `caps` {class: most} hold for the whole host. `withheld` are the classes of which a consumer
    gets no more than it has, `unit_drivers` {provider uuid: {exact unit: trait}}; see `DescribedProvider`.
    The index is made once for each tree.
    """

    tree: ProviderTree
    root: Provider | None
    providers: tuple[Provider, ...]
    by_class: Mapping[str, tuple[Provider, ...]]
    ways: WaysOf = field(default_factory=dict)
    bound: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cordoned: Usages = field(default_factory=dict)
    cards: Mapping[str, CardStock] = field(default_factory=dict)
    caps: Caps = field(default_factory=dict)
    withheld: Classes = field(default_factory=dict)
    unit_drivers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ProviderTree, root: str | None = None, ways: WaysOf | None = None) -> "ProviderIndex":
        """The index of the host with the root `root`; None: the first root that is no sharing provider."""
        roots = sorted(tree.roots, key=lambda each: (SHARING_TRAIT in each.traits, each.name))
        root_provider = tree.get(root) if root else next(iter(roots), None)
        own = tree.subtree(root_provider.uuid) if root_provider else ()
        aggregates = frozenset().union(*(provider.aggregates for provider in own))
        own_uuids = {provider.uuid for provider in own}
        sharing = sorted(
            (
                provider
                for provider in tree
                if SHARING_TRAIT in provider.traits
                and provider.uuid not in own_uuids
                and aggregates & provider.aggregates
            ),
            key=lambda provider: provider.name,
        )
        providers = (*own, *sharing)
        by_class: dict[str, list[Provider]] = {}
        for provider in providers:
            for name in provider.inventories:
                by_class.setdefault(name, []).append(provider)
        classes = {name: tuple(having) for name, having in by_class.items()}
        return cls(tree, root_provider, providers, classes, ways or {})

    def without(self, classes: Collection[str]) -> "ProviderIndex":
        """The index without these classes on own providers: only sharing providers can serve them."""
        by_class = {
            name: tuple(
                provider for provider in providers if name not in classes or not self.is_own(provider.uuid)
            )
            for name, providers in self.by_class.items()
        }
        return replace(self, by_class=by_class)

    def without_providers(self, uuids: Collection[str]) -> "ProviderIndex":
        """The index without these providers: nothing is chosen on them."""
        return replace(
            self,
            providers=tuple(provider for provider in self.providers if provider.uuid not in uuids),
            by_class={
                name: tuple(provider for provider in providers if provider.uuid not in uuids)
                for name, providers in self.by_class.items()
            },
        )

    def is_own(self, uuid: str) -> bool:
        """Whether the provider is in this host's own tree, and not a sharing provider."""
        return uuid in self.tree and self.root is not None and self.tree.root_of(uuid).uuid == self.root.uuid


@dataclass(frozen=True, slots=True)
class FitSlot:
    """A suffixed group, or one class of the unsuffixed group, and the providers that can serve it alone.

    `resources` {class: amount} are those of the slot, `options` the providers in the order of choice.
    `barred` {provider uuid: clause} are providers that the NUMA policy excludes, or their cards' CC mode.
    """

    group: RequestGroup
    resources: Mapping[str, int]
    options: tuple[Provider, ...]
    barred: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStock:
    """What is left on the host: its providers, the usages of others, and the free exact units.

    `choice` says which of several providers that can serve is taken first.
    """

    host: ProviderIndex
    used: Usages
    units: Units
    choice: Choice = field(default_factory=Choice)

    def free(self, provider: Provider, name: str) -> int:
        """The amount of the class that the provider can still give, at least 0."""
        inventory = provider.inventories.get(name)
        if inventory is None:
            return 0
        left = inventory.capacity - self.used.get(provider.uuid, {}).get(name, 0)
        units = self.units.get(provider.uuid, {}).get(name)
        return max(0, left if units is None else min(left, len(units)))

    def obstacles(
        self, group: RequestGroup, resources: Mapping[str, int], provider: Provider
    ) -> Iterator[tuple[str, str]]:
        """(class, clause) for each reason why the provider cannot serve these resources alone."""
        first = next(iter(resources), "")
        for name, amount in resources.items():
            reason = self._short(provider, name, amount)
            if reason:
                yield name, reason
        if provider.uuid not in self.host.bound.get(group.suffix or f":{first}", (provider.uuid,)):
            yield first, "the guest is bound to another one"
        for clause in self.trait_obstacles(group, provider):
            yield first, clause
        if group.member_of:
            # It applies to the provider, and for the unsuffixed group also to the provider's root.
            memberships = [provider.aggregates]
            if not group.suffix:
                memberships.append(self.host.tree.root_of(provider.uuid).aggregates)
            if not any(all(any_of & names for any_of in group.member_of) for names in memberships):
                wanted = " and ".join(any_of_clause("aggregate", any_of) for any_of in group.member_of)
                yield first, f"is not in {wanted}"

    def trait_obstacles(self, group: RequestGroup, provider: Provider) -> dict[str, frozenset[str]]:
        """{clause: the traits that it is about} of the reasons that concern traits."""
        barred = group.forbidden & provider.traits
        found = {f"has the forbidden trait {', '.join(sorted(barred))}": barred} if barred else {}
        if group.suffix:  # the providers of the unsuffixed group have its traits together
            found |= {
                f"lacks {any_of_clause('trait', any_of)}": any_of
                for any_of in group.required
                if not any_of & provider.traits
            }
        return found

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
        """The clause that says how much of the class is free, and why not more."""
        used = self.used.get(provider.uuid, {})
        left = inventory.capacity - used.get(name, 0)
        free = self.free(provider, name)
        other = excluding_class(self.host.ways.get(provider.uuid, ()), name, used)
        if other is not None:
            return f"nothing of it can be given while its {other} is in use"
        card = self.host.cards.get(provider.uuid)
        if card is not None and free < inventory.total - used.get(name, 0):
            withheld = " and what is cordoned or unhealthy (`plimsoll devices list`)" if card.missing else ""
            return f"beside what is on the card{withheld}, it has room for {free} of it"
        number = self.host.cordoned.get(provider.uuid, {}).get(name, 0)
        cordoned = f", {number} more cordoned or unhealthy (`plimsoll devices list`)" if number else ""
        if free < left:
            return f"{SCARCE}{free} of its exact units are free{cordoned}"
        has_cap = inventory.reserved and name in self.host.caps
        cap = f", with [DEFAULT] cap = {name}={self.host.caps[name]}" if has_cap else ""
        if not inventory.capacity and not cordoned:
            return f"none of it is offered{cap}" if cap else "all of it is reserved"
        return f"{SCARCE}{free} of {inventory.capacity} {'is' if free == 1 else 'are'} free{cordoned}{cap}"

    def cell_costs(
        self, asked: Mapping[str, int], room: Mapping[int, Mapping[str, int]]
    ) -> dict[int, CellCost]:
        """`Choice.costs` of the devices that are free now."""
        tree = self.host.tree
        return self.choice.costs(
            asked, room, lambda uuid, name: self.free(tree[uuid], name) if uuid in tree else 0
        )

    def can_give_together(self, provider: Provider, wanted: Mapping[str, int]) -> bool:
        """Whether no class in `wanted` {class: amount}, nor any in use, excludes another.

        Classes that share their units share those that are free, too: a definition may keep some from both.
        """
        card = self.host.cards.get(provider.uuid)
        if card is not None:
            parts = {name: amount for name, amount in wanted.items() if amount and name in card.classes}
            if len(parts) > 1 and card.together(parts) is None:
                return False
        ways, units = self.host.ways.get(provider.uuid, ()), self.units.get(provider.uuid, {})
        for way in ways:
            free = frozenset[str]().union(*(units[name] for name in way if name in units))
            if sum(wanted.get(name, 0) for name in way if name in units) > len(free):
                return False
        offered = {
            name: inventory.total - inventory.reserved for name, inventory in provider.inventories.items()
        }
        return can_give_together(ways, room(ways, offered, self.used.get(provider.uuid, {})), wanted)


def any_of_clause(kind: str, names: frozenset[str]) -> str:
    """A clause for a choice of names; `kind` is "trait" or "aggregate"."""
    if len(names) == 1:
        return f"{kind} {next(iter(names))}"
    return f"any of the {kind}s {', '.join(sorted(names))}"


def fit_slots(request: ClaimRequest, stock: HostStock) -> list[FitSlot]:
    """The slots of the request with their options, those of the unsuffixed group first."""
    slots, confidential = [], is_confidential(request)
    for group in sorted(request.groups, key=lambda group: group.suffix):
        slot_resources = (
            [group.resources]
            if group.suffix
            else [{name: class_name} for name, class_name in group.resources.items()]
        )
        for resources in slot_resources:
            within = stock.host.by_class.get(next(iter(resources)), ()) if resources else stock.host.providers
            barred = {
                provider.uuid: clause
                for provider in within
                if (clause := card_obstacle(confidential, group, resources, provider))
            }
            options = (
                provider
                for provider in within
                if provider.uuid not in barred
                and next(stock.obstacles(group, resources, provider), None) is None
            )
            slots.append(FitSlot(group, resources, tuple(options), barred))
    if all(len(slot.options) < 2 for slot in slots):
        return slots  # there is nothing to choose
    # What the guest would cost on each cell; nothing where no slot can be filled by one cell or another.
    costs: dict[int, CellCost] = {}
    tree, cell_of = stock.host.tree, stock.choice.cell_of
    if any(sum(provider.uuid in cell_of for provider in slot.options) > 1 for slot in slots):
        room = {
            cell: {name: stock.free(tree[uuid], name) for name in tree[uuid].inventories}
            for uuid, cell in cell_of.items()
            if uuid in tree
        }
        costs = stock.cell_costs(request.resources, room)
    slots = [_best_first(slot, stock, costs) for slot in slots]
    serves = Counter(provider.uuid for slot in slots if not slot.group.suffix for provider in slot.options)
    return [
        slot
        if slot.group.suffix or len(slot.options) < 2
        else replace(slot, options=tuple(sorted(slot.options, key=lambda each: -serves[each.uuid])))
        for slot in slots
    ]


def _best_first(slot: FitSlot, stock: HostStock, costs: Mapping[int, CellCost]) -> FitSlot:
    """The slot with its options in the order of choice: own providers first, then as `Choice` says."""
    if len(slot.options) < 2 or not slot.resources:
        return slot
    name, amount = next(iter(slot.resources.items()))
    cell_of, rank = stock.choice.cell_of, stock.choice.strategy.rank
    below = Counter(provider.parent for provider in slot.options)

    def place(provider: Provider) -> tuple[bool, bool, float, float, int]:
        cost = costs.get(cell_of.get(provider.uuid, -1), NO_COST)
        spare = stock.free(provider, name) - amount - cost.needed.get(name, 0.0)
        own = stock.host.is_own(provider.uuid)
        # How many others below its switch, or in its group of GPUs, a guest could have beside it.
        above = stock.host.tree.get(provider.parent or "")
        is_group = above is not None and above.parent is not None and not above.inventories
        peers = below[provider.parent] - 1 if is_group else 0
        return not own, cost.has_idle, cost.lost, rank(name, spare), peers

    return replace(slot, options=tuple(sorted(slot.options, key=place)))


class FitSearch(SlotSearch[Provider]):
    """One search for a way to fill the slots; call `run` once, then read `found`.

    `isolated`, `traits` and `subtrees` disable a rule each, to find the rule that a failure is due to.
    """

    def __init__(
        self,
        request: ClaimRequest,
        stock: HostStock,
        slots: Sequence[FitSlot],
        *,
        isolated: bool = True,
        traits: bool = True,
        subtrees: bool = True,
    ) -> None:
        host = stock.host
        rules = SlotRules(
            [(slot.group.suffix, slot.resources) for slot in slots],
            required=next((slot.group.required for slot in slots if traits and not slot.group.suffix), ()),
            isolate=isolated and request.group_policy == "isolate",
            subtrees=request.same_subtree if subtrees else (),
            exclusive={
                *(name for ways in host.ways.values() for way in ways for name in way),
                *(name for card in host.cards.values() for name in card.classes),
            },
        )
        options, root = [slot.options for slot in slots], host.root.uuid if host.root else ""
        self._tried = Steps(STEPS_MAX)
        super().__init__(rules, options, root, stock.free, lambda uuid: host.tree[uuid].parent, self._tried)
        self._stock = stock
        self.found: tuple[Provider, ...] = ()
        """A provider for each slot."""

    @property
    def steps(self) -> int:
        """How many providers the search has tried."""
        return self._tried.taken

    @property
    def gave_up(self) -> bool:
        """Whether the search stopped at STEPS_MAX without a result."""
        return self.steps > STEPS_MAX

    def run(self) -> bool:
        """Whether the slots can be filled; then `found` has one provider for each slot."""
        with suppress(UsageError, StopIteration):  # too many steps, or none leads to a way
            self.found = next(self.fill())
            return True
        return False

    def in_order(self, depth: int, options: Sequence[Provider]) -> Iterable[Provider]:
        """Within the unsuffixed group, providers that were already chosen go first."""
        if not self.chosen or not self.rules.kinds[depth][0] or len(options) < 2:
            return options
        giving = {provider.uuid for provider in self.chosen}
        return sorted(options, key=lambda provider: provider.uuid not in giving)

    def admits(self, depth: int, provider: Provider) -> bool:
        """Whether it can give, with this slot, what it would give of the classes with exclusions, too."""
        exclusive, (_, resources) = self.rules.exclusive, self.rules.slots[depth]
        return super().admits(depth, provider) and (
            not exclusive
            or self._stock.can_give_together(
                provider,
                {name: self.taken[provider.uuid, name] + resources.get(name, 0) for name in exclusive},
            )
        )


def first_units(allocations: Usages, units: Units) -> dict[str, dict[str, tuple[str, ...]]]:
    """The first free exact units for these amounts, for classes that have exact units.

    Classes that share the units of a provider get different ones.
    """
    chosen: dict[str, dict[str, tuple[str, ...]]] = {}
    for uuid, amounts in allocations.items():
        free = units.get(uuid, {})
        for name in (name for name in amounts if name in free):
            given = {unit for exact in chosen.get(uuid, {}).values() for unit in exact}
            left = tuple(unit for unit in free[name] if unit not in given) if given else free[name]
            chosen.setdefault(uuid, {})[name] = left[: amounts[name]]
    return chosen
