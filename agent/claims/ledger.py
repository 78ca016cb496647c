"""Who holds what of this host, in memory: our claims, what others hold, and the exact units of both.

No I/O and no lock: whoever has the tracker's lock may call. Sums are kept up to date, so that fitting a claim
does not depend on how many there are.
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
"""{provider uuid: the consumers whose claims have gone from it}"""


class Ledger:
    """`host` is what may be claimed; `claims` {consumer: claim} is for reading only.

    `suspects` are the consumers that, at the last refresh, did not hold what they claimed on this host.
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
        """What the driver says of units that do not exist yet."""
        self.moves_under_way: Callable[[], Mapping[str, str]] = dict
        """Tells {instance: migration} of the moves under way."""
        for claim in claims:
            self.put(claim)

    # What the host is, and what others do on it

    def refresh(
        self,
        host: ProviderIndex,
        held: Held,
        units: Units,
        cells: HostCells | None = None,
        departed: DepartedConsumers | None = None,
    ) -> None:
        """Start over from what placement holds; of our own claims we know better ourselves.

        `departed` is what the property said before `held` was read, None: `held` is of this moment.
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
        """Where claims have gone since placement was last read: it may have said that they are there."""
        return dict(self._departed)

    def _departed_since(self, before: DepartedConsumers | None) -> dict[str, frozenset[str]]:
        if before is None:
            return {}
        since = {uuid: gone - before.get(uuid, frozenset()) for uuid, gone in self._departed.items()}
        return {uuid: gone for uuid, gone in since.items() if gone}

    def observe_provider(self, uuid: str, consumers: Holders) -> None:
        """What placement says just now about one provider."""
        for consumer in [name for name, held in self._others.items() if uuid in held]:
            rest = {where: amounts for where, amounts in self._others[consumer].items() if where != uuid}
            self.set_other(consumer, rest)
        for consumer, amounts in consumers.items():
            if consumer not in self.claims:
                self.set_other(consumer, {**self._others.get(consumer, {}), uuid: amounts})

    def set_other(self, consumer: str, allocations: Allocations) -> None:
        """What a consumer without a claim holds."""
        self._count(self._others.pop(consumer, {}), -1)
        if allocations:
            self._others[consumer] = dict(allocations)
            self._count(allocations, 1)

    def other_allocations(self, consumer: str) -> Allocations:
        """What a consumer without a claim is known to hold."""
        return self._others.get(consumer, {})

    def others_on(self, uuids: Collection[str]) -> bool:
        """Whether consumers without a claim are known to hold anything there."""
        return any(uuid in held for held in self._others.values() for uuid in uuids)

    def observe_guests(self, guests: Collection[Guest]) -> None:
        """The exact units that guests use, claimed or not, are not given to anybody else."""
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
        """Its guest is about to come, so its memory counts until it is seen; None: it does not come."""
        self._cells.expect_guest(consumer, guest)

    def restrict_units(
        self, consumer: str, units: Units | None, bound: Mapping[str, str] | None = None
    ) -> None:
        """From now on the consumer gets just these units of their classes, and no others; None: as all do.

        `bound`: see `ProviderIndex`.
        """
        self._named.pop(consumer, None)
        self._bound.pop(consumer, None)
        if units is not None:
            self._named[consumer] = units
            self._bound[consumer] = bound or {}

    def owner(self, uuid: str, resource_class: str, unit: str) -> str | None:
        """The consumer that claimed the unit, or whose guest uses it now."""
        return self._taken.get((uuid, resource_class, unit)) or self._in_use.get((resource_class, unit))

    def made_instead(self, claim: Claim) -> dict[str, str]:
        """{unit that was to be made: one that the claim's guest holds in its place, and nobody claimed}"""
        found: dict[str, str] = {}
        for uuid, classes in claim.units.items():
            for name, units in classes.items():
                missing = self.to_make.get(uuid, {}).get(name, {})
                idle = [unit for unit in units if unit in claim.makings and unit in missing]
                held = [
                    unit
                    for unit in self._offered.get(uuid, {}).get(name, ())
                    if self._in_guests.get((name, unit)) == claim.consumer
                    and (uuid, name, unit) not in self._taken
                ]
                found.update(zip(idle, held, strict=False))
        return found

    @property
    def offered(self) -> Units:
        """The exact units there are, free or not."""
        return self._offered

    @property
    def used(self) -> Usages:
        """What is in use, by whomever."""
        return self._used

    @property
    def others(self) -> Mapping[str, Allocations]:
        """{consumer without a claim: what it holds on this host}"""
        return self._others

    @property
    def cells(self) -> HostCells:
        """The host's NUMA cells as they were last told."""
        return self._cells.host

    # Our claims

    def put(self, claim: Claim) -> None:
        """Count the claim, in the place of the one that its consumer had."""
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

    # Questions

    def fit(self, request: ClaimRequest) -> Fit:
        """Where the request fits, leaving aside what its consumer holds already."""
        own = self._own(request.consumer)
        used = self._without(own) if own else self._used
        units = self._free_units(request.resources, request.consumer)
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others)
        return self._with_makings(fit(request, self._host_for(request.consumer), used, units, cells))

    def cover(self, request: ClaimRequest, held: Allocations, *, exact: bool) -> Fit:
        """Whether what the consumer holds covers its request; `exact`: its units must be free, too."""
        classes = {name for amounts in held.values() for name in amounts}
        units = self._free_units(classes, request.consumer) if exact else {}
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others) if exact else None
        return self._with_makings(cover(request, self.host, held, units, cells))

    def free(self, uuid: str, name: str, consumer: str) -> int:
        """How much of the class the consumer could have there."""
        provider = self.host.tree.get(uuid)
        inventory = provider.inventories.get(name) if provider else None
        own = self._own(consumer).get(uuid, {}).get(name, 0)
        used = self._used.get(uuid, {}).get(name, 0) - own
        return max(0, inventory.capacity - used) if inventory else 0

    def memory_shortfalls(self, guest: Guest) -> tuple[Shortfall, ...]:
        """What is not there of the memory that the guest must have on certain cells, or in large pages."""
        own = self._own(guest.uuid)
        stock = HostStock(self.host, self._without(own) if own else self._used, {})
        cells = self._cells.stock(guest.uuid, self.moves_under_way(), self._others)
        return memory_shortfalls(guest, self.claims.get(guest.uuid), cells, stock)

    def fit_move(self, request: ClaimRequest, migration: str, held: Allocations) -> Fit:
        """Where the request of a moving instance fits, while what it has on this host goes to the migration.

        `held` is all that the instance has. What of it is on providers shared with this host stays its own,
        and if it can it stays there: its data is there.
        """
        known = self._own(request.consumer)
        shared = {uuid for uuid in held if uuid in self.host.tree and not self.host.is_own(uuid)}
        aside = {uuid: amounts for uuid, amounts in known.items() if uuid in shared}
        here = request.consumer in self.claims
        units = self._free_units(request.resources, migration if here else request.consumer)
        cells = self._cells.stock(request.consumer, self.moves_under_way(), self._others, keeps=here)
        used = self._without(aside) if aside else self._used
        host = self._host_for(request.consumer)
        if shared:
            classes = {name for uuid in shared for name in held[uuid]}
            found = fit(request, host.without(classes), used, units, cells)
            if found.fits:
                return self._with_makings(found)
        return self._with_makings(fit(request, host, used, units, cells))

    def holders_of(self, allocations: Allocations) -> tuple[str, ...]:
        """The consumers without a claim that hold just that of this host's own tree."""
        wanted = self._on_own(allocations)
        return tuple(
            consumer for consumer, held in self._others.items() if wanted and self._on_own(held) == wanted
        )

    def possible_holders(self, claim: Claim) -> tuple[str, ...]:
        """The consumers without a claim that hold just what the claim has here, or may have its units."""
        alike = self.holders_of(claim.allocations)
        exact = {(uuid, name) for uuid, classes in claim.units.items() for name in classes}
        return tuple(
            consumer
            for consumer, held in self._others.items()
            if consumer in alike or any(name in held.get(uuid, {}) for uuid, name in exact)
        )

    def _on_own(self, allocations: Allocations) -> Allocations:
        return {uuid: amounts for uuid, amounts in allocations.items() if self.host.is_own(uuid)}

    def _differs(self, claim: Claim, held: Held) -> bool:
        return claim.state is ClaimState.CLAIMED and any(
            held.get(uuid, {}).get(claim.consumer) != amounts
            for uuid, amounts in claim.allocations.items()
            if self.host.is_own(uuid)
        )

    def _with_makings(self, found: Fit) -> Fit:
        """With what is to be made for its units that do not exist yet."""
        makings = {
            unit: makings[unit]
            for uuid, classes in found.units.items()
            for name, units in classes.items()
            for makings in (self.to_make.get(uuid, {}).get(name, {}),)
            for unit in units
            if unit in makings
        }
        return replace(found, makings=makings) if makings else found

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
        """The free units of these classes in the host's order; those in the guest's own hands come first."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for uuid, offered in self._offered.items():
            room = self._room(uuid, consumer) if uuid in self.host.ways else {}
            for name in offered.keys() & classes:
                beside = [each for each in room if each != name] if name in room else []
                free = [
                    unit
                    for unit in offered[name]
                    if self._taken.get((uuid, name, unit), consumer) == consumer
                    and self._in_guests.get((name, unit), consumer) == consumer
                    and (not beside or all(self._is_free(uuid, each, unit, consumer) for each in beside))
                ]
                used = [unit for unit in free if (name, unit) in self._in_guests] if self._in_guests else []
                ordered = (*used, *(unit for unit in free if unit not in used)) if used else tuple(free)
                found.setdefault(uuid, {})[name] = ordered[: room.get(name)]
        self._only_named(found, classes, consumer)
        return found

    def _is_free(self, uuid: str, name: str, unit: str, consumer: str) -> bool:
        """Whether nobody else has it, claimed or not."""
        return (
            self._taken.get((uuid, name, unit), consumer) == consumer
            and self._in_guests.get((name, unit), consumer) == consumer
        )

    def _room(self, uuid: str, consumer: str) -> dict[str, int]:
        """How much the consumer could have of classes that exclude each other, beside what others have."""
        provider, own = self.host.tree.get(uuid), self._own(consumer).get(uuid, {})
        if provider is None:
            return {}
        used = {name: n - own.get(name, 0) for name, n in self._used.get(uuid, {}).items()}
        moving = self.moves_under_way()
        for name, units in self._offered.get(uuid, {}).items():
            holders = (self._in_guests.get((name, unit), consumer) for unit in units)
            strangers = sum(
                each != consumer
                and not any(name in self._own(who).get(uuid, {}) for who in (each, moving.get(each, "")))
                for each in holders
            )
            used[name] = used.get(name, 0) + strangers
        there = {name: each.total - each.reserved for name, each in provider.inventories.items()}
        return room(self.host.ways[uuid], there, used)

    def _only_named(
        self, found: dict[str, dict[str, tuple[str, ...]]], classes: Collection[str], consumer: str
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
                    if all(self.owner(provider.uuid, each, unit) in (None, consumer) for each in sharing)
                )
                found.setdefault(provider.uuid, {})[name] = free[: room.get(name)]

    def _count(self, allocations: Allocations, sign: int) -> None:
        for uuid, amounts in allocations.items():
            used = self._used.setdefault(uuid, {})
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + sign * amount
