"""The book: the host's inventory, the agent's claims, and the allocations and exact units of others. Pure.

It is kept in memory, without I/O and without a lock: callers hold the tracker's lock. The usages are kept up
to date with each change, so that the time of a fit does
not depend on the number of claims.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from agent.claims.claim import Claim, ClaimState, Fit, Shortfall
from agent.claims.fit import ProviderIndex, cover, fit
from agent.claims.fit_search import HostStock
from agent.claims.numa.host_cells import HostCells
from agent.claims.numa.memory_check import memory_shortfalls
from agent.claims.numa.usage import CellUsage
from agent.claims.parse_request import ClaimRequest
from agent.driver import Guest, GuestState
from agent.providers.exclusive import room
from agent.shapes import Allocations, Held, Holders, Units, UnitsToMake, Usages
from agent.tree import ProviderTree

DepartedConsumers = Mapping[str, frozenset[str]]
"""{provider uuid: consumers whose claims have left it}"""


class Book:
    """What of the host is claimed, by whom, and what is left.

    `host` are the providers that may be claimed from, `claims` {consumer uuid: claim} the agent's claims
    (read them only), and `suspects` the consumers whose allocations differed from their claims at the last
    `refresh`.
    """

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self.host = ProviderIndex.of(ProviderTree())
        self.claims: dict[str, Claim] = {}
        self.suspects: frozenset[str] = frozenset()
        self._others: dict[str, dict[str, Mapping[str, int]]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._offered: Units = {}
        self._taken: dict[tuple[str, str, str], str] = {}
        self._in_guests: dict[tuple[str, str], str] = {}
        self._in_use: dict[tuple[str, str], str] = {}
        self._named: dict[str, Units] = {}
        self._bound: dict[str, Mapping[str, str]] = {}
        self._departed: dict[str, frozenset[str]] = {}
        self._cells = CellUsage()
        self.to_make: UnitsToMake = {}
        """The units that do not exist yet, as the driver describes them."""
        self.moves_under_way: Callable[[], Mapping[str, str]] = dict
        """Returns {instance uuid: migration uuid} of the moves under way."""
        for claim in claims:
            self.put(claim)

    # The host, and the allocations of others on it

    def refresh(
        self,
        host: ProviderIndex,
        held: Held,
        units: Units,
        cells: HostCells | None = None,
        departed: DepartedConsumers | None = None,
    ) -> None:
        """Replace the host and the allocations of others by what was read from Placement.

        The agent's own claims stay: the book knows them better. `held` are the allocations on the host's
        providers, `units` all exact units that the host offers. `departed` is the value of the property
        before `held` was read; None: nothing has changed since.
        """
        self.host, self._offered = host, units
        self._cells.refresh(cells or HostCells())
        gone = self._departed_since(departed)
        self._departed = gone
        self._others = {}
        for uuid, consumers in held.items():
            left = gone.get(uuid, frozenset()) if host.is_own(uuid) else frozenset()
            for consumer, amounts in consumers.items():
                if consumer not in self.claims and consumer not in left:
                    self._others.setdefault(consumer, {})[uuid] = amounts
        self.suspects = frozenset(
            consumer for consumer, claim in self.claims.items() if self._differs(claim, held)
        )
        self._used = {}
        for allocations in (*self._others.values(), *(claim.allocations for claim in self.claims.values())):
            self._count(allocations, 1)

    @property
    def departed(self) -> DepartedConsumers:
        """The consumers whose claims have left a provider since Placement was last read."""
        return dict(self._departed)

    def _departed_since(self, before: DepartedConsumers | None) -> dict[str, frozenset[str]]:
        if before is None:
            return {}
        since = {uuid: gone - before.get(uuid, frozenset()) for uuid, gone in self._departed.items()}
        return {uuid: gone for uuid, gone in since.items() if gone}

    def observe_provider(self, uuid: str, consumers: Holders) -> None:
        """Replace what others hold on the provider `uuid` by `consumers`, just read from Placement."""
        for consumer in [name for name, held in self._others.items() if uuid in held]:
            rest = {where: amounts for where, amounts in self._others[consumer].items() if where != uuid}
            self.set_other(consumer, rest)
        for consumer, amounts in consumers.items():
            if consumer not in self.claims:
                self.set_other(consumer, {**self._others.get(consumer, {}), uuid: amounts})

    def set_other(self, consumer: str, allocations: Allocations) -> None:
        """Replace the allocations of a consumer without a claim."""
        self._count(self._others.pop(consumer, {}), -1)
        if allocations:
            self._others[consumer] = dict(allocations)
            self._count(allocations, 1)

    def other_allocations(self, consumer: str) -> Allocations:
        """The known allocations of a consumer without a claim."""
        return self._others.get(consumer, {})

    def others_on(self, uuids: Collection[str]) -> bool:
        """Whether consumers without a claim have known allocations on any of these providers."""
        return any(uuid in held for held in self._others.values() for uuid in uuids)

    def observe_guests(self, guests: Collection[Guest]) -> None:
        """Replace the known guests; the exact units that they use are given to no other consumer."""
        self._in_guests = {
            (used.resource_class, used.unit): guest.uuid for guest in guests for used in guest.units
        }
        self._cells.observe_guests(guests)
        self._in_use = {
            (used.resource_class, used.unit): guest.uuid
            for guest in guests
            if guest.state is not GuestState.SHUTOFF
            for used in guest.units
        }

    def expect_guest(self, consumer: str, guest: Guest | None) -> None:
        """Count the memory of a guest that will start soon, until it is observed; None ends that."""
        self._cells.expect_guest(consumer, guest)

    def restrict_units(
        self, consumer: str, units: Units | None, bound: Mapping[str, str] | None = None
    ) -> None:
        """Give the consumer only these units of their classes in later fits; None lifts the restriction.

        `bound` {group suffix: provider uuid} restricts its groups to one provider each (`ProviderIndex`).
        """
        self._named.pop(consumer, None)
        self._bound.pop(consumer, None)
        if units is not None:
            self._named[consumer] = units
            self._bound[consumer] = bound or {}

    def owner(self, uuid: str, resource_class: str, unit: str) -> str | None:
        """The consumer that claimed the exact unit, or whose guest uses it now."""
        return self._taken.get((uuid, resource_class, unit)) or self._in_use.get((resource_class, unit))

    def made_instead(self, claim: Claim) -> dict[str, str]:
        """{unit that was to be made: unclaimed unit that the claim's guest uses in its place}"""
        instead: dict[str, str] = {}
        for uuid, classes in claim.units.items():
            for name, units in classes.items():
                missing = self.to_make.get(uuid, {}).get(name, {})
                missing_units = [unit for unit in units if unit in claim.makings and unit in missing]
                used_units = [
                    unit
                    for unit in self._offered.get(uuid, {}).get(name, ())
                    if self._in_guests.get((name, unit)) == claim.consumer
                    and (uuid, name, unit) not in self._taken
                ]
                instead.update(zip(missing_units, used_units, strict=False))
        return instead

    @property
    def offered(self) -> Units:
        """All exact units of the host, free or not."""
        return self._offered

    @property
    def used(self) -> Usages:
        """The usages of each provider, by claims and by others."""
        return self._used

    @property
    def others(self) -> Mapping[str, Allocations]:
        """{consumer without a claim: its allocations on this host}"""
        return self._others

    @property
    def cells(self) -> HostCells:
        """The host's NUMA cells as of the last `refresh`."""
        return self._cells.host

    # The agent's claims

    def put(self, claim: Claim) -> None:
        """Add the claim, in place of an earlier one of its consumer."""
        before = self._take_out(claim.consumer)
        if before is not None:
            self._depart(claim.consumer, before.allocations.keys() - claim.allocations.keys())
        self.set_other(claim.consumer, {})
        self.claims[claim.consumer] = claim
        self._cells.put(claim)
        self._count(claim.allocations, 1)
        for key in claim.exact:
            self._taken[key] = claim.consumer

    def remove(self, consumer: str) -> None:
        """Remove the consumer's claim, if it has one."""
        claim = self._take_out(consumer)
        if claim is not None:
            self._depart(consumer, claim.allocations)

    def _depart(self, consumer: str, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._departed[uuid] = self._departed.get(uuid, frozenset()) | {consumer}

    def _take_out(self, consumer: str) -> Claim | None:
        claim = self.claims.pop(consumer, None)
        if claim is not None:
            self._cells.remove(consumer)
            self._count(claim.allocations, -1)
            for key in claim.exact:
                if self._taken.get(key) == consumer:
                    del self._taken[key]
        return claim

    # Queries

    def fit(self, request: ClaimRequest) -> Fit:
        """Where the request fits, not counting what its consumer already has. Raises UsageError."""
        own = self._own(request.consumer)
        used = self._without(own) if own else self._used
        units = self._free_units(request.resources, request.consumer)
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others)
        return self._with_makings(fit(request, self._host_for(request.consumer), used, units, cells))

    def cover(self, request: ClaimRequest, held: Allocations, *, exact: bool) -> Fit:
        """Whether the allocations `held` cover the request; `exact`: with exact units and cells."""
        classes = {name for amounts in held.values() for name in amounts}
        units = self._free_units(classes, request.consumer) if exact else {}
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others) if exact else None
        return self._with_makings(cover(request, self.host, held, units, cells))

    def free(self, uuid: str, name: str, consumer: str) -> int:
        """The amount of the class `name` that the consumer could have there, with what it already has."""
        provider = self.host.tree.get(uuid)
        inventory = provider.inventories.get(name) if provider else None
        own = self._own(consumer).get(uuid, {}).get(name, 0)
        used = self._used.get(uuid, {}).get(name, 0) - own
        return max(0, inventory.capacity - used) if inventory else 0

    def memory_shortfalls(self, guest: Guest) -> tuple[Shortfall, ...]:
        """The shortfalls of the memory that the guest must have on certain cells or in large pages."""
        own = self._own(guest.uuid)
        stock = HostStock(self.host, self._without(own) if own else self._used, {})
        cells = self._cells.stock(guest.uuid, self.moves_under_way(), self._others)
        return memory_shortfalls(guest, self.claims.get(guest.uuid), cells, stock)

    def fit_move(self, request: ClaimRequest, migration: str, held: Allocations) -> Fit:
        """Where a moving instance's request fits, while the migration takes over what it has here.

        `held` are all allocations of the instance. Those on providers that this host shares stay the
        instance's, and are preferred, because its data is there.
        """
        current = self._own(request.consumer)
        shared = {uuid for uuid in held if uuid in self.host.tree and not self.host.is_own(uuid)}
        shared_part = {uuid: amounts for uuid, amounts in current.items() if uuid in shared}
        claimed_here = request.consumer in self.claims
        units = self._free_units(request.resources, migration if claimed_here else request.consumer)
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others, keeps=claimed_here)
        used = self._without(shared_part) if shared_part else self._used
        host = self._host_for(request.consumer)
        if shared:
            classes = {name for uuid in shared for name in held[uuid]}
            result = fit(request, host.without(classes), used, units, cells)
            if result.fits:
                return self._with_makings(result)
        return self._with_makings(fit(request, host, used, units, cells))

    def holders_of(self, allocations: Allocations) -> tuple[str, ...]:
        """The consumers without a claim that have exactly these allocations in this host's own tree."""
        wanted = self._in_own_tree(allocations)
        return tuple(
            consumer
            for consumer, held in self._others.items()
            if wanted and self._in_own_tree(held) == wanted
        )

    def possible_holders(self, claim: Claim) -> tuple[str, ...]:
        """The consumers without a claim that have the claim's allocations here, or may have its units."""
        alike = self.holders_of(claim.allocations)
        exact = {(uuid, name) for uuid, classes in claim.units.items() for name in classes}
        return tuple(
            consumer
            for consumer, held in self._others.items()
            if consumer in alike or any(name in held.get(uuid, {}) for uuid, name in exact)
        )

    def _in_own_tree(self, allocations: Allocations) -> Allocations:
        return {uuid: amounts for uuid, amounts in allocations.items() if self.host.is_own(uuid)}

    def _differs(self, claim: Claim, held: Held) -> bool:
        return claim.state is ClaimState.CLAIMED and any(
            held.get(uuid, {}).get(claim.consumer) != amounts
            for uuid, amounts in claim.allocations.items()
            if self.host.is_own(uuid)
        )

    def _with_makings(self, result: Fit) -> Fit:
        """The fit with the makings of those of its units that do not exist yet."""
        makings = {
            unit: makings[unit]
            for uuid, classes in result.units.items()
            for name, units in classes.items()
            for makings in (self.to_make.get(uuid, {}).get(name, {}),)
            for unit in units
            if unit in makings
        }
        return replace(result, makings=makings) if makings else result

    def _host_for(self, consumer: str) -> ProviderIndex:
        bound = self._bound.get(consumer)
        return replace(self.host, bound=bound) if bound else self.host

    def _own(self, consumer: str) -> Allocations:
        claim = self.claims.get(consumer)
        return claim.allocations if claim else self._others.get(consumer, {})

    def _without(self, own: Allocations) -> Usages:
        return {
            **self._used,
            **{
                uuid: {
                    name: amount - own[uuid].get(name, 0) for name, amount in self._used.get(uuid, {}).items()
                }
                for uuid in own
            },
        }

    def _free_units(self, classes: Collection[str], consumer: str) -> Units:
        """The free units of these classes, first those that the consumer's guest uses."""
        free_units: dict[str, dict[str, tuple[str, ...]]] = {}
        for uuid, offered in self._offered.items():
            room = self._room(uuid, consumer) if uuid in self.host.ways else {}
            for name in offered.keys() & classes:
                excluded_with = [other for other in room if other != name] if name in room else []
                free = [
                    unit
                    for unit in offered[name]
                    if self._taken.get((uuid, name, unit), consumer) == consumer
                    and self._in_guests.get((name, unit), consumer) == consumer
                    and (
                        not excluded_with
                        or all(self._is_free(uuid, other, unit, consumer) for other in excluded_with)
                    )
                ]
                used = [unit for unit in free if (name, unit) in self._in_guests] if self._in_guests else []
                ordered = (*used, *(unit for unit in free if unit not in used)) if used else tuple(free)
                free_units.setdefault(uuid, {})[name] = ordered[: room.get(name)]
        self._restrict_to_named(free_units, classes, consumer)
        return free_units

    def _is_free(self, uuid: str, name: str, unit: str, consumer: str) -> bool:
        """Whether no other consumer has the unit, by claim or by its guest."""
        return (
            self._taken.get((uuid, name, unit), consumer) == consumer
            and self._in_guests.get((name, unit), consumer) == consumer
        )

    def _room(self, uuid: str, consumer: str) -> dict[str, int]:
        """{class: amount} that the consumer could have of classes that exclude each other."""
        provider, own = self.host.tree.get(uuid), self._own(consumer).get(uuid, {})
        if provider is None:
            return {}
        used = {name: n - own.get(name, 0) for name, n in self._used.get(uuid, {}).items()}
        moving = self.moves_under_way()
        for name, units in self._offered.get(uuid, {}).items():
            holders = (self._in_guests.get((name, unit), consumer) for unit in units)
            foreign = sum(
                owner != consumer
                and not any(name in self._own(who).get(uuid, {}) for who in (owner, moving.get(owner, "")))
                for owner in holders
            )
            used[name] = used.get(name, 0) + foreign
        offered = {
            name: inventory.total - inventory.reserved for name, inventory in provider.inventories.items()
        }
        return room(self.host.ways[uuid], offered, used)

    def _restrict_to_named(
        self, free_units: dict[str, dict[str, tuple[str, ...]]], classes: Collection[str], consumer: str
    ) -> None:
        named = self._named.get(consumer, {})
        for name in {name for exact in named.values() for name in exact}.intersection(classes):
            for provider in self.host.by_class.get(name, ()):
                units = named.get(provider.uuid, {}).get(name, ())
                room = self._room(provider.uuid, consumer) if provider.uuid in self.host.ways else {}
                sharing = {name, *room} if name in room else {name}
                free = tuple(
                    unit
                    for unit in units
                    if all(self.owner(provider.uuid, other, unit) in (None, consumer) for other in sharing)
                )
                free_units.setdefault(provider.uuid, {})[name] = free[: room.get(name)]

    def _count(self, allocations: Allocations, sign: int) -> None:
        for uuid, amounts in allocations.items():
            used = self._used.setdefault(uuid, {})
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + sign * amount
