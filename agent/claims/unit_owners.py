"""Who has each exact unit of a host, and what is left of them: units that can be told apart, and cards. Pure.

A unit has at most one claim, and is given to no other consumer meanwhile. Guests may name it as well: one
that uses it without a claim has it until it is gone, and several that name one unit contest it. The book says
for which of them such a unit counts; here is only who has it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.claims.claim import Claim, Fit, Restriction
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import in_guests_beside
from agent.claims.refusal import no_place
from agent.device_names import address_of
from agent.driver import Guest
from agent.providers import device_health
from agent.providers.device_health import Cordoned
from agent.providers.divided_cards import Card, CardStock
from agent.shapes import Amounts, Makings, Units, UnitsToMake, Usages

ExactUnit = tuple[str, str]
"""(resource class, unit)"""


class UnitOwners:
    """The owners of a host's exact units; callers hold the tracker's lock.

    `to_make` are the units that do not exist yet, and `cards` {provider uuid: card} those whose classes share
    their room, as the driver describes them. `claimed` {unit: consumer} are those of the agent's claims,
    `in_guests` {unit: guest} those that guests use or that a definition names, a guest that runs first, and
    `contested` {unit: {guest: whether it is off}} those that several have. Read them only.
    """

    def __init__(self) -> None:
        self.to_make: UnitsToMake = {}
        self.cards: Mapping[str, Card] = {}
        self.cordoned: Cordoned = frozenset()
        self.claimed: dict[ExactUnit, str] = {}
        self.in_guests: dict[ExactUnit, str] = {}
        self.contested: dict[ExactUnit, Mapping[str, bool]] = {}
        self._in_use: dict[ExactUnit, str] = {}
        self._in_several: Mapping[ExactUnit, frozenset[str]] = {}
        self._claimed_on: dict[ExactUnit, str] = {}
        """The provider of each claimed unit."""
        self._in_place: set[ExactUnit] = set()
        """The claimed vGPUs in their places: few beside all units, also on a host with many claims."""

    def without(self, gone: Collection[str]) -> "UnitOwners":
        """A copy in which these consumers have nothing."""

        def others(owners: Mapping[ExactUnit, str]) -> dict[ExactUnit, str]:
            return {unit: owner for unit, owner in owners.items() if owner not in gone}

        copy = UnitOwners()
        copy.to_make, copy.cards, copy.cordoned = self.to_make, self.cards, self.cordoned
        copy.claimed, copy.in_guests = others(self.claimed), others(self.in_guests)
        copy._in_use, copy._in_several = others(self._in_use), self._in_several
        copy._claimed_on = {**self._claimed_on}
        copy._in_place = self._in_place & copy.claimed.keys()
        copy.contested = {
            unit: {guest: is_off for guest, is_off in guests.items() if guest not in gone}
            for unit, guests in self.contested.items()
        }
        return copy

    # Claims and guests

    def claim(self, claim: Claim, instance: str) -> None:
        """The claim of the instance has its units from now on; one that another guest uses is contested."""
        for uuid, name, unit in claim.exact:
            self.claimed[name, unit] = claim.consumer
            self._claimed_on[name, unit] = uuid
            if address_of(unit) != unit:
                self._in_place.add((name, unit))
            user = self.in_guests.get((name, unit), instance)
            if user != instance and (name, unit) not in self.contested:
                self.contested[name, unit] = {user: self._in_use.get((name, unit)) != user}

    def release(self, claim: Claim) -> None:
        """The claim has none of its units any more."""
        for _, name, unit in claim.exact:
            if self.claimed.get((name, unit)) == claim.consumer:
                del self.claimed[name, unit]
                self._in_place.discard((name, unit))

    def observe_guests(
        self, guests: Collection[Guest], instances: Mapping[str, str]
    ) -> Mapping[ExactUnit, frozenset[str]]:
        """Replace the known guests by these, those that run last: a guest that runs has what it uses.

        `instances` {migration: instance} are those of the moves under way. Returns {unit: guests} of the
        units that several guests use, or that only definitions name.
        """
        naming: dict[ExactUnit, dict[str, bool]] = {}
        for guest in guests:
            for used in guest.units:
                naming.setdefault((used.resource_class, used.unit), {})[guest.uuid] = guest.is_off
        self.in_guests = {unit: [*having][-1] for unit, having in naming.items()}
        self._in_use = {
            (used.resource_class, used.unit): guest.uuid
            for guest in guests
            if not guest.is_off
            for used in guest.units
        }
        several: dict[ExactUnit, frozenset[str]] = {}
        contested: dict[ExactUnit, Mapping[str, bool]] = {}
        for unit, having in naming.items():
            running = frozenset(guest for guest, is_off in having.items() if not is_off)
            if len(running) > 1 or (not running and len(having) > 1):
                several[unit] = running or frozenset(having)
            user = self.in_guests[unit]
            owner = self.claimed.get(unit, user)
            if len(having) > 1 or user not in (owner, instances.get(owner, owner)):
                contested[unit] = having
        self._in_several, self.contested = several, contested
        return several

    def owner(self, resource_class: str, unit: str, beside: Collection[str] = ()) -> str | None:
        """The consumer, none of those `beside`, that claimed the exact unit, or else whose guest uses it."""
        key = resource_class, unit
        if key in self.claimed:
            owners: Collection[str] = (self.claimed[key],)
        elif key in self._in_use:
            owners = self._in_several.get(key, (self._in_use[key],))
        else:
            return None
        return min((owner for owner in owners if owner not in beside), default=None)

    def owners(self) -> Mapping[ExactUnit, str]:
        """{(class, exact unit): consumer that claimed it, or whose guest uses it now}"""
        return {**self._in_use, **self.claimed}

    def others_with(self, unit: ExactUnit, guest: str) -> list[str]:
        """The others that keep a contested unit from the guest, which names it.

        That is who claims it, else the guests that run with it. A guest that is off keeps it from one that is
        off, too: neither is preferred.
        """
        if unit in self.claimed:
            return [self.claimed[unit]] if self.claimed[unit] != guest else []
        naming = self.contested.get(unit, {})
        others = sorted(naming.keys() - {guest})
        running = [other for other in others if not naming[other]]
        return running if running or not naming.get(guest, True) else others

    def made_instead(self, claim: Claim, offered: Units) -> dict[str, str]:
        """{unit that was to be made: unclaimed unit that the claim's guest uses in its place}"""
        instead: dict[str, str] = {}
        replaceable = claim.replaceable
        for uuid, classes in claim.units.items():
            for name, units in classes.items():
                missing = self.to_make.get(uuid, {}).get(name, {})
                missing_units = [unit for unit in units if unit in replaceable and unit in missing]
                used_units = [
                    unit
                    for unit in offered.get(uuid, {}).get(name, ())
                    if self.in_guests.get((name, unit)) == claim.consumer
                    and (name, unit) not in self.claimed
                    and (name, unit) not in self._in_several
                ]
                instead.update(zip(missing_units, used_units, strict=False))
        return instead

    def makings_of(self, units: Units) -> Makings:
        """How those of the units that do not exist yet are made."""
        return {
            unit: makings[unit]
            for uuid, classes in units.items()
            for name, exact in classes.items()
            for makings in (self.to_make.get(uuid, {}).get(name, {}),)
            for unit in exact
            if unit in makings
        }

    # What is left

    def cordon(self, cordoned: Cordoned) -> None:
        """From now on, give these exact units to no consumer that does not have them."""
        self.cordoned = cordoned

    def idle_cordoned(self, units: Units, cordoned: Cordoned) -> Usages:
        """{provider uuid: {class: number}} of the cordoned units among `units` that no consumer has."""
        if not cordoned:
            return {}
        return device_health.idle_cordoned(units, cordoned, {*self.claimed, *self.in_guests})

    def free(self, name: str, units: Iterable[str], consumer: str) -> list[str]:
        """Those of the units that no other consumer has, by claim or by its guest, and that are offered."""
        claimed, cordoned = self.claimed, self.cordoned
        in_guests = in_guests_beside(consumer, self.in_guests, self._in_several, claimed)
        return [
            unit
            for unit in units
            if claimed.get(key := (name, unit), consumer) == consumer
            and in_guests.get(key, consumer) == consumer
            and not (key in cordoned and key not in claimed and key not in in_guests)
        ]

    def choices(
        self,
        host: ProviderIndex,
        offered: Units,
        classes: Collection[str],
        consumer: str,
        restriction: Restriction,
        rooms: Mapping[str, Amounts],
    ) -> Units:
        """The units of these classes that the consumer may be given, first those that its guest uses.

        `host.cards` are the cards of these classes, whose units are as many as the card can still give, and
        `rooms` {provider uuid: {class: amount}} bounds the classes that exclude each other. Of a class of
        which the restriction names units, there are only these, unless it allows others.
        """
        choices: dict[str, dict[str, tuple[str, ...]]] = {}
        divided = self.divided_before(self.cards, consumer)
        for uuid, units_of in offered.items():
            if uuid in self.cards:
                if uuid in host.cards:
                    stock = host.cards[uuid]
                    choices[uuid] = {name: stock.units(name) for name in stock.classes if name in classes}
                continue
            if uuid in divided:
                choices[uuid] = dict.fromkeys(units_of.keys() & classes, ())
                continue
            room = rooms.get(uuid, {})
            for name in units_of.keys() & classes:
                free = self.free(name, units_of[name], consumer)
                if name in room:
                    for other in room:
                        free = free if other == name else self.free(other, free, consumer)
                used = [unit for unit in free if (name, unit) in self.in_guests] if self.in_guests else []
                ordered = (*used, *(unit for unit in free if unit not in used)) if used else tuple(free)
                choices.setdefault(uuid, {})[name] = ordered[: room.get(name)]
        named = restriction.units
        for name in {name for exact in named.values() for name in exact}.intersection(classes):
            for provider in host.by_class.get(name, ()):
                units = named.get(provider.uuid, {}).get(name, ())
                if provider.uuid in divided or (not units and name in restriction.others):
                    continue
                room = rooms.get(provider.uuid, {})
                sharing = {name, *room} if name in room else {name}
                allowed = tuple(
                    unit
                    for unit in units
                    if all(self._may_have((other, unit), consumer) for other in sharing)
                )
                if name in restriction.others and len(allowed) == len(units):
                    rest = choices.get(provider.uuid, {}).get(name, ())
                    allowed += tuple(unit for unit in rest if unit not in units)
                choices.setdefault(provider.uuid, {})[name] = allowed[: room.get(name)]
        return choices

    def _may_have(self, unit: ExactUnit, consumer: str) -> bool:
        """Whether the consumer may have a unit that its domain names."""
        if self.owner(*unit, beside=(consumer,)) is not None:
            return False
        return unit not in self.cordoned or self.owner(*unit) == consumer

    # Cards, whose classes share their room

    def divided_before(self, cards: Collection[str], consumer: str | None) -> frozenset[str]:
        """The providers where another consumer has a vGPU in its place, and that are none of the cards now.

        They give nothing else until it is released.
        """
        return frozenset(
            self._claimed_on[key]
            for key in self._in_place
            if self.claimed[key] != consumer and self._claimed_on[key] not in cards
        )

    def card_stock(self, uuid: str, card: Card, used: Amounts, consumer: str | None) -> CardStock:
        """What is left of a card; `used` is what other consumers than this one need of it.

        Another consumer's unit that the card does not have as it is divided now is `removed`, see
        `Card.stock`, until it is released. One whose class has another name now follows that at the next
        pass, which reads the card for no consumer (None).
        """
        owners = {
            unit: owner
            for unit in card.part_of
            if (owner := self.claimed.get(unit) or self.in_guests.get(unit)) is not None
        }
        taken = {unit for unit, owner in owners.items() if owner != consumer}
        removed = [
            key[1]
            for key, owner in self.claimed.items()
            if owner != consumer and self._claimed_on[key] == uuid
            if key not in card.part_of and (consumer is not None or key[1] not in card.units)
        ]
        return card.stock(taken, used, self.cordoned - owners.keys(), removed)

    def with_places(
        self, host: ProviderIndex, holder: str, result: Fit, stocks: Mapping[str, CardStock]
    ) -> Fit:
        """The fit with units of cards that have room for each other, those that the holder has first."""
        units = dict(result.units)
        for uuid, stock in stocks.items():
            amounts = result.allocations.get(uuid, {})
            wanted = {name: amount for name, amount in amounts.items() if name in stock.classes}
            if not any(wanted.values()):
                continue
            own = [
                unit
                for unit in stock.card.part_of
                if holder in (self.claimed.get(unit), self.in_guests.get(unit))
            ]
            found = stock.together(wanted, own)
            if found is None:
                provider, (name, amount) = host.tree.get(uuid), next(iter(wanted.items()))
                return Fit(False, {}, {}, (no_place(provider, name, amount, stock.left[name]),))
            units[uuid] = {**units.get(uuid, {}), **found}
        return replace(result, units=units)
