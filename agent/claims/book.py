"""The book: what is held in Placement, claimed, used by guests and in doubt, by instance. Pure.

It is kept in memory, without I/O and without a lock: callers hold the tracker's lock. What a row needs is the
largest of its columns, and what is free is the capacity without the needs of all rows. The sums of the needs
are kept up to date with each change, so that the time of a fit does not depend on the number of rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from agent.claims.attribution import Place, use_of
from agent.claims.choice import Choice, Strategy
from agent.claims.claim import (
    UNRESTRICTED,
    Claim,
    ClaimState,
    Fit,
    Restriction,
    Shortfall,
    map_groups,
    units_of_groups,
)
from agent.claims.fit import ProviderIndex, cover, fit
from agent.claims.fit_search import HostStock
from agent.claims.guest_cells import wants_cells
from agent.claims.host_cells import (
    CellStock,
    CellUsage,
    HostCells,
    beside_devices,
)
from agent.claims.refusal import memory_shortfalls
from agent.claims.request import ClaimRequest
from agent.claims.rows import NOT_USED, Doubted, Row, Use
from agent.claims.unit_owners import UnitOwners
from agent.claims.use_difference import UNSEEN
from agent.driver import Guest, UsedMemory
from agent.providers.divided_cards import Card, CardStock
from agent.providers.reservations import room
from agent.shapes import (
    Allocations,
    Amounts,
    Held,
    Holders,
    Units,
    Usages,
    beyond,
    by_class,
    largest,
    total,
    turned,
)

Key = TypeVar("Key")
Value = TypeVar("Value")

HOLDERS_NAMED_MAX = 3


class Reading:
    """A read of Placement under way. What the agent writes meanwhile is newer than what it returns.

    `overtaken` are the consumers that the agent has written since the read began, and `read_later` those that
    another read has entered which began later: which of the two is newer, nothing says.
    """

    def __init__(self) -> None:
        self.overtaken: set[str] = set()
        self.read_later: set[str] = set()


class Survey(NamedTuple):
    """What a host's inventories follow from: what all rows need, and what of that Placement does not hold.

    `unheld` {instance: {provider: {class: amount}}} is what must be reserved; `claimed` and `unclaimed` are
    its two parts, with a claim and used without one. `names` are of the instances in it, for people.
    `found`: see `Place`. The instances that are `departed` live on other hosts; those in `claiming` have a
    claim here. `remedies` {instance: sentence} are for guests without a claim, for which none would fit.
    """

    used: Usages
    unheld: Mapping[str, Usages]
    claimed: Mapping[str, Usages]
    unclaimed: Mapping[str, Usages]
    names: Mapping[str, str]
    found: frozenset[str]
    departed: frozenset[str]
    claiming: frozenset[str]
    remedies: Mapping[str, str]


class Book:
    """What of the host is held, claimed and used, by whom, and what is left.

    `claims` {consumer uuid: claim} are the agent's claims: read them only. `units` says who has each exact
    unit. `choice` compares places that fit; its devices and cells come with each `refresh`, and what
    guests have beside a device is what the claim that was put last has.
    """

    def __init__(self, claims: Iterable[Claim] = (), choice: Choice | None = None) -> None:
        self._beside_devices = dict(choice.beside) if choice else {}
        self._choice = replace(choice or Choice(), beside=self._beside_devices)
        self.claims: dict[str, Claim] = {}
        self.units = UnitOwners()
        self._place = Place()
        self._rows: dict[str, Row] = {}
        self._needs: dict[str, Usages] = {}
        self._unclaimed: dict[str, Usages] = {}
        self._unheld: dict[str, Usages] = {}
        self._growing: set[str] = set()
        self._departed: Mapping[str, Collection[str]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._held: dict[str, Allocations] = {}
        self._instances: dict[str, str] = {}
        self._moving: dict[str, str] = {}
        self._listed: dict[str, dict[str, tuple[Holders, Holders]]] = {}
        self._readings: list[Reading] = []
        self._doubtful: frozenset[str] = frozenset()
        self._counted: Mapping[str, frozenset[tuple[str, str]]] = {}
        self._restrictions: dict[str, Restriction] = {}
        self._cells = CellUsage()
        for claim in claims:
            self.put(claim)

    # The rows

    def rows(self) -> Mapping[str, Row]:
        """{instance uuid: row}; a migration of an unknown instance has a row of its own, under its uuid."""
        return dict(self._rows)

    def row(self, consumer: str) -> Row:
        """The row of that instance or migration; an empty one where the book has none."""
        key = self._instances.get(consumer, consumer)
        return self._rows.get(key) or Row(key)

    def label(self, consumer: str) -> str:
        """The consumer in a sentence: "name (uuid)", "migration UUID of name (uuid)", or a uuid alone."""
        row = self.row(consumer)
        name = _name_of(row)
        named = f"{name} ({row.instance})" if name not in ("", row.instance) else ""
        if consumer != row.instance:
            return f"migration {consumer} of {named or row.instance}"
        return named or consumer

    def need(self, consumer: str) -> Usages:
        """{provider: {class: amount}} that the consumer's row needs, and that no other row may have."""
        return self._needs.get(self._instances.get(consumer, consumer), {})

    def unclaimed(self) -> Mapping[str, Usages]:
        """{instance: {provider: {class: amount}}} that guests use, and that is neither held nor claimed."""
        return dict(self._unclaimed)

    def unheld(self) -> Mapping[str, Usages]:
        """{instance: {provider: {class: amount}}} that is claimed or used, and that Placement does not hold.

        Placement is told to offer nothing of it. What may be a departed instance's migration holds the place
        for it. A claim that grows is counted once that is written.
        """
        unheld: dict[str, Usages] = {}
        migrations = self._migrations()
        for instance in sorted(self._unheld):
            row, rest = self._rows[instance], self._unheld[instance]
            if instance in migrations:
                rest = largest(
                    self._with_place(row, each).unheld
                    for each in self._possible_migrations(instance, migrations[instance])
                )
                row = self._with_place(row, migrations[instance])
            elif self._has_gone(row):
                continue  # the instance is on another host, and so is its guest; no migration holds its place
            if self._growing & row.claimed.keys():
                rest = row.unclaimed
            if rest:
                unheld[instance] = rest
        return unheld

    def away(self) -> Mapping[str, str]:
        """{instance on another host: its migration, which holds a part of its place here, or ""}

        It is "" where the migration holds all of the place, where another one may be it, too, and where the
        claim needs nothing here any more.
        """
        gone = (each for each in self._departed if each in self._rows and self._has_gone(self._rows[each]))
        found = dict.fromkeys(gone, "")
        for instance, migration in self._migrations().items():
            whole = self.holds_place(migration, instance) or self._holds_as_much(migration, instance)
            alone = len(self._possible_migrations(instance, migration)) == 1
            found[instance] = migration if alone and not whole else ""
        return found

    def _has_gone(self, row: Row) -> bool:
        """Whether the instance lives on another host, without a guest here or a migration with a claim."""
        others = row.claimed.keys() - {row.instance}
        return row.instance in self._departed and row.guest is None and not others & row.held.keys()

    def _migrations(self) -> Mapping[str, str]:
        """{departed instance: the consumer that is taken for its migration}

        An instance has one migration, and each is that of one instance. One that holds just the place comes
        first, then one that holds as much of each class, then one that may hold a part. An instance whose
        guest has gone comes before others: else the place would count as that of a guest which is still here
        although its own move was confirmed, and what that uses would be offered. It takes the one that the
        fewest others may have. An instance whose move has ended, and whose guest is to leave, has none.
        """
        found: dict[str, str] = {}
        departed = sorted(
            (
                each
                for each in self._unheld.keys() & self._departed.keys()
                if each not in self._moving
                or all(claim.state is not ClaimState.RELEASING for claim in self._rows[each].claimed.values())
            ),
            key=lambda instance: (self._rows[instance].guest is not None, instance),
        )
        wanted = Counter(consumer for instance in departed for consumer in self._departed[instance])
        for holds in (self.holds_place, self._holds_as_much, self._holds_part):
            for instance in departed:
                if instance in found:
                    continue
                for consumer in sorted(self._departed[instance], key=wanted.__getitem__):
                    if consumer in self._instances or consumer in found.values():
                        continue
                    if holds(consumer, instance):
                        found[instance] = consumer
                        break
        return found

    def _possible_migrations(self, instance: str, taken: str) -> Collection[str]:
        """The consumer that was taken for the instance's migration; with a part, also others that may be it.

        Each may be that of another one of these instances, so what any of them lacks is reserved.
        """
        if self.holds_place(taken, instance) or self._holds_as_much(taken, instance):
            return (taken,)
        others = (each for each in self._departed[instance] if each not in self._instances)
        return [each for each in others if self._holds_part(each, instance)]

    def unheld_by(self, consumer: str) -> Usages:
        """{provider: {class: amount}} of the consumer's row that Placement does not hold.

        Of units that others have as well, with those that it may have.
        """
        row = self.row(consumer)
        if not self.units.contested or row.guest is None:
            return row.unheld
        counted = self._counted_once(row.instance).get(row.instance, ())
        return replace(row, used=use_of(row, self._place, counted)).unheld

    def unheld_of_others(self, consumer: str) -> Usages:
        """{provider: {class: amount}} of `unheld` of all rows but the consumer's.

        Without the units that count for the consumer if it is given them.
        """
        instance = self._instances.get(consumer, consumer)
        unheld = {each: amounts for each, amounts in self.unheld().items() if each != instance}
        for each, row in self._recounted(instance).items():
            unheld[each] = beyond(unheld.get(each, {}), beyond(self._rows[each].unheld, row.unheld))
        return total(unheld.values())

    def strangers_beside(self) -> Mapping[str, Collection[str]]:
        """{instance with something unheld: the consumers without a claim or guest that have such amounts}"""
        strangers = {
            consumer: held
            for consumer, held in sorted(self.others.items())
            if consumer not in self._instances and self.row(consumer).guest is None
        }
        return {
            instance: [
                consumer
                for consumer, held in strangers.items()
                if any(name in held.get(uuid, {}) for uuid, amounts in unheld.items() for name in amounts)
            ]
            for instance, unheld in sorted(self._unheld.items())
            if any(self.host.is_own(uuid) for uuid in unheld)
        }

    def holds_place(self, consumer: str, instance: str) -> bool:
        """Whether the consumer holds here just what the instance does not; its guest may be in any cell."""
        row = self._with_place(self.row(instance), consumer)
        has = self._in_own_tree(self.held_by(consumer))
        return not (self._in_own_tree(row.unheld) or beyond(has, row.needed))

    def _holds_as_much(self, consumer: str, instance: str) -> bool:
        """Whether the consumer holds of each class what the instance needs, be it on other providers.

        Where the guest is here, of the classes of which drivers may not see all, not less.
        """
        row, held = self._rows[instance], self.held_by(consumer)
        if self._seen_here(held) != self._seen_here(row.needed):
            return False
        has, needs = (by_class(self._in_own_tree(each).values()) for each in (held, row.needed))
        return row.guest is None or all(has.get(name, 0) >= needs.get(name, 0) for name in UNSEEN)

    def _holds_part(self, consumer: str, instance: str) -> bool:
        """Whether the consumer may hold a part of what the instance needs.

        Where the instance's guest is here, only with the same CPUs and memory: it may have lost devices,
        or got some. With others it may as well be the migration of another instance, and the agent offers
        nothing on a guess.
        """
        row, held = self._rows[instance], self._in_own_tree(self.held_by(consumer))
        if row.guest is None:
            return bool(held) and not beyond(held, row.claimed_amounts)
        return self._with_place(row, consumer).unheld != row.unheld and self._differs_by_devices(
            held, row.needed
        )

    def _differs_by_devices(self, held: Allocations, place: Allocations) -> bool:
        """Whether these have the same CPUs and memory here, and so on: only exact units differ, if any."""
        exact = {name for classes in self.offered.values() for name in classes}
        has, needed = self._seen_here(held), self._seen_here(place)
        others = (has.keys() | needed.keys()) - exact
        return bool(others) and all(has.get(name, 0) == needed.get(name, 0) for name in others)

    def _seen_here(self, allocations: Allocations) -> Amounts:
        """The part in this host's own tree, by class, of the classes of which drivers see all."""
        here = by_class(self._in_own_tree(allocations).values())
        return {name: amount for name, amount in here.items() if name not in UNSEEN}

    def _with_place(self, row: Row, consumer: str) -> Row:
        """The row with what the consumer holds, as its migration. That says where its guest is."""
        whole = row.with_held({**row.held, consumer: self.held_by(consumer)})
        return whole if row.guest is None else replace(whole, used=self._use_of(whole))

    def _use_of(self, row: Row) -> Use:
        return use_of(row, self._place, self._counted.get(row.instance, ()))

    def departed(self) -> Mapping[str, Collection[str]]:
        """{instance that lives on another host: the consumers that may hold its place here}"""
        return self._departed

    def note_departed(self, departed: Mapping[str, Collection[str]]) -> None:
        """These instances live on other hosts: {instance: consumers that may hold its place here}."""
        self._departed = departed

    def grow(self, consumer: str, *, on: bool) -> None:
        """Whether the consumer's claim has more than is written to Placement yet."""
        (self._growing.add if on else self._growing.discard)(consumer)

    def _enter(self, row: Row) -> None:
        """Replace the row of that instance, and count it instead of the former one."""
        if row.guest is not None:
            row = replace(row, used=self._use_of(row))
        before, after = self._needs.pop(row.instance, {}), {} if row.is_empty else row.need
        if before != after:
            self._count(before, -1)
            self._count(after, 1)
        if row.is_empty:
            self._rows.pop(row.instance, None)
        else:
            self._rows[row.instance] = row
            self._needs[row.instance] = after
        self._unclaimed.pop(row.instance, None)
        self._unheld.pop(row.instance, None)
        if row.guest is not None and (unclaimed := row.unclaimed):
            self._unclaimed[row.instance] = unclaimed
        if unheld := row.unheld:
            self._unheld[row.instance] = unheld

    def _count(self, amounts_of: Usages, sign: int) -> None:
        for uuid, amounts in amounts_of.items():
            used = self._used.setdefault(uuid, {})
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + sign * amount

    # The host

    @property
    def place(self) -> Place:
        """The host as of the last `refresh`; the same object until the next one."""
        return self._place

    @property
    def host(self) -> ProviderIndex:
        """The providers that may be claimed from."""
        return self._place.host

    @property
    def offered(self) -> Units:
        """All exact units of the host, free or not."""
        return self._place.offered

    @property
    def cells(self) -> HostCells:
        """The host's NUMA cells as of the last `refresh`."""
        return self._place.cells

    def refresh(
        self,
        host: ProviderIndex,
        held: Held,
        units: Units,
        cells: HostCells | None = None,
        *,
        kept: Collection[str] = (),
        reading: Reading | None = None,
    ) -> None:
        """Replace the host, and the held column by what was read from Placement.

        `held` are the allocations on the host's providers but those in `kept`, which have not changed since
        they were last read. `units` are all exact units that the host offers. `reading` began before `held`
        was read; None: `held` is of this moment.
        """
        overtaken = reading.overtaken if reading else frozenset[str]()
        columns: dict[str, dict[str, Mapping[str, int]]] = {}
        for consumer, allocations in self._held.items():
            for uuid, amounts in allocations.items():
                if uuid in host.tree and (uuid in kept or consumer in overtaken):
                    columns.setdefault(consumer, {})[uuid] = amounts
        doubtful = set()
        for uuid, consumers in held.items():
            for consumer, amounts in consumers.items():
                if consumer not in overtaken:
                    columns.setdefault(consumer, {})[uuid] = amounts
                elif self._held.get(consumer, {}).get(uuid) != amounts:
                    doubtful.add(uuid)
        later = reading.read_later if reading else frozenset[str]()
        for consumer in later & self._held.keys():
            known = {uuid: amounts for uuid, amounts in self._held[consumer].items() if uuid in host.tree}
            read = columns.get(consumer, {})
            columns[consumer] = {uuid: dict(amounts) for uuid, amounts in largest((read, known)).items()}
            doubtful |= {uuid for uuid, amounts in columns[consumer].items() if amounts != read.get(uuid)}
        self._overtake(reading, {*columns, *self._held})
        self._doubtful = frozenset(doubtful)
        self._place = Place(host, units, cells or HostCells(), self._place.found)
        self.choose_by(self._choice.strategy)
        self._cells.refresh(self._place.cells)
        self.note_listed(held)
        changed = {*columns, *self._held}
        self._held = dict(columns)
        self._used, self._needs = {}, {}
        for instance in sorted({self._instances.get(who, who) for who in changed}.union(self._rows)):
            self._enter(self._with_held(instance))
        self._count_once()

    def choose_by(self, strategy: Strategy) -> None:
        """From now on, choose by this strategy where several places fit."""
        self._choice = replace(
            self._choice, strategy=strategy, devices=self.cells.devices, cell_of=self.cells.providers
        )

    def left_on_cards(self, cards: Mapping[str, Card], offered: Units) -> Usages:
        """{provider uuid: {class: number}} that these cards can still give to a new consumer.

        With those that are `offered` another way now, although a consumer has a vGPU in its place: they give
        nothing.
        """
        left = {
            uuid: dict.fromkeys(offered.get(uuid, {}), 0) for uuid in self.units.divided_before(cards, None)
        }
        return left | {
            uuid: self.units.card_stock(uuid, card, self._used.get(uuid, {}), None).left
            for uuid, card in cards.items()
        }

    def leave_out(self, uuids: Collection[str]) -> None:
        """Choose nothing on these providers until the next `refresh`: Placement does not have them."""
        self._place = replace(self._place, host=self._place.host.without_providers(uuids))

    def at(self, place: Place) -> "Book":
        """A copy of the columns as they are on a host with these providers; without the units' owners."""
        book = Book()
        book._place = replace(place, found=self._place.found)
        book.claims, book._held = dict(self.claims), dict(self._held)
        book._instances, book._moving = dict(self._instances), dict(self._moving)
        book._growing, book._departed = self._growing, self._departed
        book._counted = self._counted
        for row in self._rows.values():
            book._enter(row)
        return book

    def survey(self, place: Place) -> Survey:
        """What all rows need, and what of it Placement does not hold, on a host with these providers.

        A pass asks before it writes: then the providers that it describes need not be in Placement yet.
        """
        book = self.at(place)
        unheld = book.unheld()
        claimed = {
            instance: part
            for instance, amounts in unheld.items()
            if (part := beyond(amounts, book._unclaimed.get(instance, {})))
        }
        unclaimed = {
            instance: part
            for instance, amounts in unheld.items()
            if (part := beyond(amounts, claimed.get(instance, {})))
        }
        names = {instance: _name_of(self._rows[instance]) for instance in unheld}
        departed = frozenset(self._departed)
        claiming = frozenset(instance for instance in unheld if self._rows[instance].claimed)
        found, remedies = self._place.found, self._remedies(place, book.used, unclaimed)
        return Survey(book.used, unheld, claimed, unclaimed, names, found, departed, claiming, remedies)

    def _remedies(self, place: Place, used: Usages, unclaimed: Mapping[str, Usages]) -> Mapping[str, str]:
        """{instance without a claim: what to do}, where others have a unit or the room of its guest."""
        remedies = {}
        for instance, uuid, name in (
            (instance, uuid, name)
            for instance, amounts_of in unclaimed.items()
            for uuid, amounts in amounts_of.items()
            for name in amounts
        ):
            provider, needed = place.host.tree.get(uuid), used.get(uuid, {}).get(name, 0)
            inventory = provider.inventories.get(name) if provider is not None else None
            if provider is not None and inventory is not None and needed > inventory.capacity:
                remedies[instance] = (
                    f"No claim for it fits beside what others have: {needed} {name} of {provider.name} are "
                    f"needed, of {inventory.capacity}. Stop a guest, or release a claim, then claim for this "
                    "one: `plimsoll gate claim-running`."
                )
        for (name, unit), guests in sorted(self.units.contested.items()):
            for instance in sorted(guests.keys() - self.claims.keys()):
                others = self.units.others_with((name, unit), instance)
                labels = " and ".join(map(self.label, others))
                is_claimed = (name, unit) in self.units.claimed
                if not is_claimed and others and not any(guests[each] for each in (instance, *others)):
                    remedies[instance] = (
                        f"The {name} {unit} is in use by {labels} as well: stop all but one of these guests, "
                        "then claim for that one: `plimsoll gate claim-running`."
                    )
                elif others:
                    remedies[instance] = (
                        f"The {name} {unit} of its domain belongs to {labels} as well: take it from one of "
                        "them, then claim for the guest: `plimsoll gate claim-running`."
                    )
        return remedies

    # Held: what Placement was read to hold, and what the agent wrote

    def begin_reading(self) -> Reading:
        """A read of Placement begins; end it with `end_reading`."""
        reading = Reading()
        self._readings.append(reading)
        return reading

    def end_reading(self, reading: Reading) -> None:
        """The read has ended, whether it was entered or failed."""
        self._readings.remove(reading)

    @property
    def doubtful(self) -> frozenset[str]:
        """The providers of which a read contradicted what the agent wrote or read since: read them again."""
        return self._doubtful

    def enter_written(self, consumer: str, allocations: Allocations) -> None:
        """Enter what the agent has just written to Placement; a read that began before does not undo it."""
        for reading in self._readings:
            reading.overtaken.add(consumer)
        self.enter_held(consumer, allocations)

    def enter_held(
        self,
        consumer: str,
        allocations: Allocations,
        reading: Reading | None = None,
        *,
        on: str | None = None,
    ) -> None:
        """Replace all that Placement holds for the consumer by what was read since `reading` began.

        What is on other hosts is left out; the provider `on` is this host's, even if it is new.
        """
        if reading is not None and consumer in reading.overtaken:
            return
        here = {
            uuid: amounts
            for uuid, amounts in allocations.items()
            if self.host.root is None or uuid in self.host.tree or uuid == on
        }
        known = self._held.get(consumer, {})
        self._overtake(reading, {consumer})
        if reading is not None and consumer in reading.read_later:
            read, here = here, dict(largest((here, known)))
            self._doubtful |= {uuid for uuid, amounts in here.items() if amounts != read.get(uuid)}
        if here == known:
            return
        if here:
            self._held[consumer] = here
        else:
            self._held.pop(consumer, None)
        self._enter(self._with_held(self._instances.get(consumer, consumer)))
        self._count_once()

    def _overtake(self, reading: Reading | None, consumers: Collection[str]) -> None:
        """Reads that began before this one may be older. The most that they and this one found counts."""
        for each in self._readings:
            if each is reading:
                return
            each.read_later.update(consumers)

    def observe_provider(self, uuid: str, consumers: Holders, reading: Reading | None = None) -> None:
        """Replace what is held on the provider by `consumers`, as it was read since `reading` began."""
        self.note_listed({uuid: consumers})
        for consumer in [name for name, held in self._held.items() if uuid in held]:
            if consumer not in consumers:
                rest = {where: amounts for where, amounts in self._held[consumer].items() if where != uuid}
                self.enter_held(consumer, rest, reading)
        for consumer, amounts in consumers.items():
            self.enter_held(consumer, {**self._held.get(consumer, {}), uuid: amounts}, reading, on=uuid)

    def note_listed(self, held: Held) -> None:
        """Each of these listings of a provider was read at once: {provider: {consumer: {class: amount}}}."""
        for uuid, consumers in held.items():
            if self.host.is_own(uuid):
                strangers = {who: consumers[who] for who in consumers.keys() - self.claims.keys()}
                for consumer in consumers.keys() - strangers.keys():
                    self._listed.setdefault(consumer, {})[uuid] = consumers, strangers

    def beside(self, instance: str) -> frozenset[str]:
        """The consumers last listed together with the instance, which has a claim.

        None of these has taken over what the instance had here.
        """
        listed = self._listed.get(instance, {}).values()
        return frozenset(consumer for consumers, _ in listed for consumer in consumers) - {instance}

    def unclaimed_beside(self, instance: str) -> Mapping[str, Allocations]:
        """{consumer: what it had here} of those among `beside` that had no claim then."""
        listed = self._listed.get(instance, {})
        return turned({uuid: strangers for uuid, (_, strangers) in listed.items()})

    def holds(self, consumer: str) -> bool:
        """Whether Placement has an allocation of the consumer here, as far as was read."""
        return consumer in self._held

    def held(self) -> Held:
        """{provider: {consumer: {class: amount}}}: the whole column."""
        return turned(self._held)

    def held_by(self, consumer: str) -> Allocations:
        """What Placement holds for the consumer on the providers that serve this host."""
        return self._held.get(consumer, {})

    def other_allocations(self, consumer: str) -> Allocations:
        """The known allocations of a consumer without a claim."""
        return {} if consumer in self.claims else self.held_by(consumer)

    @property
    def others(self) -> Mapping[str, Allocations]:
        """{consumer without a claim: its allocations on this host}"""
        return {consumer: held for consumer, held in self._held.items() if consumer not in self.claims}

    def others_on(self, uuids: Collection[str]) -> bool:
        """Whether consumers without a claim have known allocations on any of these providers."""
        return any(uuid in held for held in self.others.values() for uuid in uuids)

    def _with_held(self, instance: str) -> Row:
        """The row with the present held column of its consumers."""
        consumers = (instance, self._moving.get(instance, instance))
        held = {consumer: self._held[consumer] for consumer in consumers if consumer in self._held}
        return (self._rows.get(instance) or Row(instance)).with_held(held)

    # Doubt: writes to Placement whose outcome is unknown

    def enter_doubts(self, consumer: str, writes: Iterable[Doubted]) -> None:
        """Replace the writes in doubt of the row that the consumer is in."""
        self._enter(replace(self.row(consumer), doubted=tuple(writes)))

    # Moves, and guests

    @property
    def moves_under_way(self) -> Mapping[str, str]:
        """{instance: migration}"""
        return self._moving

    def follow_moves(self, under_way: Mapping[str, str]) -> None:
        """Make one row of the instance and the migration of each move under way: {instance: migration}."""
        before = self._moving
        changed = {consumer for pair in before.items() ^ under_way.items() for consumer in pair}
        self._moving = dict(under_way)
        self._instances = {migration: instance for instance, migration in under_way.items()}
        # The columns of the consumers whose row is another one are dealt anew.
        former = [row for row in map(self._rows.get, sorted(changed)) if row is not None]
        guests = {row.instance: row.guest for row in former if row.guest is not None}
        claims = {who: claim for row in former for who, claim in row.claimed.items()}
        doubts = [write for row in former for write in row.doubted]
        for row in former:
            self._enter(Row(row.instance))
        for instance in sorted({self._instances.get(who, who) for who in (*changed, *claims)}):
            members = {instance, self._moving.get(instance, instance)}
            self._enter(
                replace(
                    self._with_held(instance),
                    claimed={who: claim for who, claim in claims.items() if who in members},
                    guest=guests.get(instance),
                    doubted=tuple(write for write in doubts if not members.isdisjoint(write)),
                )
            )
        self._count_once()

    def observe_guests(self, guests: Collection[Guest], found: frozenset[str] = frozenset()) -> None:
        """Replace the known guests; what they use is given to no other consumer. See `Place.found`."""
        otherwise = found ^ self._place.found
        if otherwise:
            self._place = replace(self._place, found=found)
        # A guest that runs has a unit, although the definition of another one names it, too.
        ordered = sorted(guests, key=lambda guest: not guest.is_off)
        self._cells.observe_guests(ordered, self.units.observe_guests(ordered, self._instances))
        present = {guest.uuid: guest for guest in guests}
        gone = [row for row in self._rows.values() if row.guest and row.instance not in present]
        for row in gone:
            self._enter(replace(row, guest=None, used=NOT_USED))
        for uuid, guest in present.items():
            row = self._rows.get(uuid) or Row(uuid)
            if row.guest != guest or uuid in otherwise:
                self._enter(replace(row, guest=guest))
        self._count_once()

    def _count_once(self) -> None:
        """Count each unit that several instances have for one of them; see `_counted_once`."""
        if not (self.units.contested or self._counted):
            return
        before, self._counted = self._counted, self._counted_once()
        for instance in sorted(before.keys() | self._counted.keys()):
            if instance in self._rows and before.get(instance) != self._counted.get(instance):
                self._enter(self._rows[instance])

    def _counted_once(self, consumer: str = "") -> Mapping[str, frozenset[tuple[str, str]]]:
        """{instance: the units that its guest uses, and that count for another instance}

        A unit counts for the instance that claims it, as long as its guest is here, running or not; else for
        one without a claim that Placement holds the class for; else for a guest that runs, before a
        definition that a new state directory found; of several, for one without a claim, since a claim may
        stand for another unit than its guest uses. With a `consumer`, it counts for that one if it may have
        it, and otherwise for another one.
        """
        counted: dict[str, set[tuple[str, str]]] = {}
        for key, guests in self.units.contested.items():
            using = {who: idle for who, idle in guests.items() if not idle or who in self._place.found}
            claim = self.claims.get(self.units.claimed.get(key, ""))
            owner = self._instances.get(claim.consumer, claim.consumer) if claim else ""
            if claim is not None and claim.state is ClaimState.CLAIMED and self.row(owner).guest is not None:
                one = owner
            elif consumer in using and self._may_keep(key, consumer):
                one = consumer
            else:
                ranks = {
                    who: (self._holds_none(who, key), idle, who != owner, who in self.claims, who)
                    for who, idle in using.items()
                    if who != consumer or len(using) == 1
                }
                one = min(ranks, key=ranks.__getitem__, default="")
            for guest in using.keys() - {one}:
                counted.setdefault(guest, set()).add(key)
        return {guest: frozenset(units) for guest, units in counted.items()}

    def _may_keep(self, unit: tuple[str, str], consumer: str) -> bool:
        """Whether a unit that the consumer's guest and others name may be given to the consumer.

        A definition that is off keeps it from no guest that runs, or that starts with it.
        """
        if unit in self.units.claimed:
            return self.units.claimed[unit] == consumer
        named = self._restrictions.get(consumer, UNRESTRICTED).units.values()
        starts = any(unit[1] in classes.get(unit[0], ()) for classes in named)
        others_idle = all(idle for who, idle in self.units.contested[unit].items() if who != consumer)
        return others_idle and (starts or not self.units.contested[unit].get(consumer, True))

    def _holds_none(self, instance: str, unit: tuple[str, str]) -> bool:
        """Whether the instance has a claim, or Placement holds nothing of the unit's class for it there."""
        uuid = self._place.provider_of_unit.get(unit, "")
        return instance in self.claims or not self.row(instance).held_amounts.get(uuid, {}).get(unit[0])

    def expect_guest(self, consumer: str, guest: Guest | None) -> None:
        """Count the memory of a guest that will start soon, until it is observed; None ends that."""
        self._cells.expect_guest(consumer, guest)

    # What later fits must give

    def restrict(self, consumer: str, restriction: Restriction | None) -> None:
        """Give the consumer in later fits what the restriction says; None lifts it."""
        self._restrictions.pop(consumer, None)
        if restriction is not None:
            self._restrictions[consumer] = restriction

    def restriction(self, consumer: str) -> Restriction | None:
        """The restriction that is in force for the consumer."""
        return self._restrictions.get(consumer)

    @property
    def used(self) -> Usages:
        """{provider: {class: amount}} that all rows together need."""
        return self._used

    # Searches

    def without(self, instances: Collection[str] = ()) -> "Book":
        """A copy for a search, in which these instances and their migrations have and use nothing."""
        gone = frozenset(instances).union(self._moving[each] for each in instances if each in self._moving)

        def stays(column: Mapping[Key, Value]) -> dict[Key, Value]:
            return {key: value for key, value in column.items() if key not in gone}

        copy = Book(choice=self._choice)
        copy.units, copy._place = self.units.without(gone), self._place
        copy.claims, copy._held = stays(self.claims), stays(self._held)
        copy._rows, copy._needs, copy._unclaimed = (
            stays(self._rows),
            stays(self._needs),
            stays(self._unclaimed),
        )
        copy._moving, copy._restrictions = stays(self._moving), stays(self._restrictions)
        copy._instances = stays(self._instances)
        copy._used = {uuid: dict(amounts) for uuid, amounts in self._used.items()}
        for instance in gone & self._needs.keys():
            copy._count(self._needs[instance], -1)
        copy._cells = self._cells.without(gone)
        copy._counted = self._counted
        copy._count_once()
        return copy

    def movable(self) -> tuple[str, ...]:
        """The instances whose claim alone says what they have, and that are in no move, in order."""
        return tuple(
            consumer
            for consumer, claim in sorted(self.claims.items())
            if claim.state is ClaimState.CLAIMED
            and consumer not in self._moving
            and consumer not in self._instances
            and consumer in self._rows
            and not self._rows[consumer].doubted
        )

    # The agent's claims

    def put(self, claim: Claim) -> None:
        """Add the claim, in place of an earlier one of its consumer."""
        self._take_out(claim.consumer)
        self.claims[claim.consumer] = claim
        if claim.consumer in self._place.found and claim.state is ClaimState.CLAIMED:
            self._place = replace(self._place, found=self._place.found - {claim.consumer})
        self._cells.put(claim)
        self._beside_devices.update(beside_devices(claim))
        row = self.row(claim.consumer)
        self.units.claim(claim, row.instance)
        self._enter(row.with_claimed({**row.claimed, claim.consumer: claim}))
        self._count_once()

    def remove(self, consumer: str) -> None:
        """Remove the consumer's claim, if it has one."""
        self._listed.pop(consumer, None)
        if self._take_out(consumer) is not None:
            row = self.row(consumer)
            self._enter(
                row.with_claimed({who: claim for who, claim in row.claimed.items() if who != consumer})
            )
            self._count_once()

    def _take_out(self, consumer: str) -> Claim | None:
        claim = self.claims.pop(consumer, None)
        if claim is not None:
            self._cells.remove(consumer)
            self.units.release(claim)
        return claim

    @property
    def suspects(self) -> frozenset[str]:
        """The consumers whose allocations on this host's own providers are not those of their claims.

        Also those whose claims name a provider that is gone: a reshape removed it.
        """
        return frozenset(
            consumer
            for consumer, claim in self.claims.items()
            if claim.state is ClaimState.CLAIMED
            and any(
                self.held_by(consumer).get(uuid) != amounts
                for uuid, amounts in claim.allocations.items()
                if self.host.is_own(uuid) or uuid not in self.host.tree
            )
        )

    # Decisions

    def fit(self, request: ClaimRequest) -> Fit:
        """Where the request fits, not counting what its consumer already has. Raises UsageError.

        A guest that runs may have what it uses, also on a host that is over-committed.
        """
        consumer = request.consumer
        host = self._host_for(consumer, consumer, request.resources)
        units = self._free_units(host, request.resources, consumer)
        used, cells = self._beside(consumer), self._stock(request)
        result = fit(request, host, used, units, cells, self._choice)
        result = self._with_holders_named(self._complete(request, result, consumer, host.cards), consumer)
        if result.fits or not self.units.contested:
            return result
        # Name the units of the consumer's guest that it may not have, as others have them.
        shortfalls = []
        for each in result.shortfalls:
            clauses = [
                f"{unit} of its domain belongs to {' and '.join(map(self.label, others))} as well: take it "
                "from one of them"
                for (name, unit), guests in sorted(self.units.contested.items())
                if name == each.resource_class
                and consumer in guests
                and self._place.provider_of_unit.get((name, unit)) == each.provider_uuid
                and (others := self.units.others_with((name, unit), consumer))
            ]
            shortfalls.append(replace(each, reason="; ".join((each.reason, *clauses))))
        return replace(result, shortfalls=tuple(shortfalls))

    def _with_holders_named(self, result: Fit, consumer: str) -> Fit:
        """The fit whose shortfalls on the parts of the host say who has what is not free, the most first."""
        if result.fits:
            return result
        own = self._instances.get(consumer, consumer)
        shortfalls = list(result.shortfalls)
        for number, each in enumerate(shortfalls):
            uuid, name = each.provider_uuid, each.resource_class
            provider = self.host.tree.get(uuid)
            if provider is None or provider.parent is None or not each.is_scarce:
                continue
            holders = sorted(
                (-need[uuid][name], instance)
                for instance, need in self._needs.items()
                if uuid in need and need[uuid].get(name) and instance != own
            )
            if holders:
                first, others = holders[:HOLDERS_NAMED_MAX], len(holders) - HOLDERS_NAMED_MAX
                named = ", ".join(f"{self.label(instance)} has {-amount}" for amount, instance in first)
                more = f" and {others} more" if others > 0 else ""
                shortfalls[number] = replace(each, reason=f"{each.reason}: {named}{more}")
        return replace(result, shortfalls=tuple(shortfalls))

    def cover(
        self, request: ClaimRequest, held: Allocations, *, exact: bool, avoided: Collection[str] = ()
    ) -> Fit:
        """Whether the allocations `held` cover the request.

        `exact`: also whether the consumer may have them, with their exact units and cells: no other row needs
        any of it. It is not given units that are `avoided`.
        """
        if not exact:
            return cover(request, self.host, held, {})
        classes = {name for amounts in held.values() for name in amounts}
        consumer = request.consumer
        host = self._host_for(consumer, consumer, classes)
        units = self._free_units(host, classes, consumer, avoided)
        result = cover(request, host, held, units, self._stock(request))
        crowded = self._crowded(consumer, result.allocations) if result.fits else ()
        if crowded:
            return Fit(False, {}, {}, crowded)
        return self._complete(request, result, consumer, host.cards)

    def free(self, uuid: str, name: str, consumer: str) -> int:
        """The amount of the class `name` that the consumer could have there, with what it already has."""
        own = self._own(consumer).get(uuid, {}).get(name, 0)
        if name in self.host.withheld.get(uuid, ()):
            return own
        return max(0, self._capacity(uuid, name) - self._used.get(uuid, {}).get(name, 0) + own)

    def memory_shortfalls(self, consumer: str, memory: Collection[UsedMemory]) -> tuple[Shortfall, ...]:
        """The shortfalls of the memory that its guest must have on certain cells or in large pages."""
        if not memory:
            return ()
        stock = HostStock(self.host, self._without(self._own(consumer)), {})
        cells = self._cells.stock(consumer, self._moving, self._needs)
        return memory_shortfalls(memory, self.claims.get(consumer), cells, stock)

    def unit_shortfalls(self, consumer: str, units: Units) -> Iterator[Shortfall]:
        """A shortfall for each of the exact units that another consumer has."""
        for uuid, classes in units.items():
            for name, exact in classes.items():
                for unit in exact:
                    owner = self.units.owner(name, unit, beside=(consumer,))
                    if owner is not None:
                        reason = f"{unit} belongs to {self.label(owner)}"
                        yield Shortfall.at(self.host.tree.get(uuid), name, 1, 0, reason)

    def growth_shortfalls(self, before: Claim, after: Claim) -> Iterator[Shortfall]:
        """What the host lacks for the claim after: amounts beyond those of before, units of others."""
        for uuid, amounts in after.allocations.items():
            for name, amount in amounts.items():
                if amount <= before.allocations.get(uuid, {}).get(name, 0):
                    continue
                provider, free = self.host.tree.get(uuid), self.free(uuid, name, after.consumer)
                inventory = provider.inventories.get(name) if provider else None
                if amount > free:
                    yield Shortfall.at(provider, name, amount, free, "its guest uses it already")
                elif inventory is not None and amount > inventory.max_unit:
                    yield Shortfall.at(provider, name, amount, free, f"max_unit is {inventory.max_unit}")
        yield from self.unit_shortfalls(after.consumer, after.units)

    def fit_move(
        self, request: ClaimRequest, migration: str, held: Allocations, avoided: Collection[str] = ()
    ) -> Fit:
        """Where a moving instance's request fits, while the migration takes over what it has here.

        `held` are all allocations of the instance. Those on providers that this host shares stay the
        instance's, and are preferred, because its data is there. It is not given units that are `avoided`.
        """
        current = self._own(request.consumer)
        claimed_here = request.consumer in self.claims
        shared = {uuid for uuid in held if uuid in self.host.tree and not self.host.is_own(uuid)}
        stays = (
            {uuid: amounts for uuid, amounts in current.items() if uuid in shared}
            if claimed_here
            else current
        )
        holder = migration if claimed_here else request.consumer
        host = self._host_for(request.consumer, holder, request.resources)
        units = self._free_units(host, request.resources, holder, avoided)
        cells, used = self._stock(request, keeps=claimed_here), self._without(stays)
        if shared:
            classes = {name for uuid in shared for name in held[uuid]}
            result = fit(request, host.without(classes), used, units, cells, self._choice)
            if result.fits:
                return self._complete(request, result, holder, host.cards)
        result = fit(request, host, used, units, cells, self._choice)
        return self._with_holders_named(self._complete(request, result, holder, host.cards), request.consumer)

    def holders_of(self, allocations: Allocations) -> tuple[str, ...]:
        """The consumers without a claim that have exactly these allocations in this host's own tree."""
        wanted = self._in_own_tree(allocations)
        return tuple(
            consumer for consumer, held in self.others.items() if wanted and self._in_own_tree(held) == wanted
        )

    def possible_holders(self, claim: Claim) -> tuple[str, ...]:
        """The consumers without a claim that have the claim's allocations here, or may have a part of them.

        Another client may have narrowed the claim's migration. What is left are some of its units, or the
        same CPUs and memory: that could be taken for the place of another guest (`_holds_part`), were this
        claim dropped. Not where it is just the place of another instance that has left.
        """
        alike = self.holders_of(claim.allocations)
        exact = {(uuid, name) for uuid, classes in claim.units.items() for name in classes}
        return tuple(
            consumer
            for consumer, held in self.others.items()
            if consumer in alike
            or any(name in held.get(uuid, {}) for uuid, name in exact)
            or (
                self._differs_by_devices(held, claim.allocations)
                and not self._is_place_of_another(held, claim)
            )
        )

    def _is_place_of_another(self, held: Allocations, claim: Claim) -> bool:
        """Whether this is just what another claim has here, whose consumer holds nothing here any more.

        Nothing that is a part of the claim's own place: then it may be that of either.
        """
        place, has = self._in_own_tree(claim.allocations), self._in_own_tree(held)
        return bool(beyond(has, place)) and any(
            self._in_own_tree(other.allocations) == has and not self._in_own_tree(self.held_by(consumer))
            for consumer, other in self.claims.items()
            if consumer != claim.consumer
        )

    def _in_own_tree(self, allocations: Allocations) -> Allocations:
        return {uuid: amounts for uuid, amounts in allocations.items() if self.host.is_own(uuid)}

    def _stock(self, request: ClaimRequest, *, keeps: bool = False) -> CellStock | None:
        """What is left of the cells, for a request that needs some."""
        if not wants_cells(request.topology):
            return None
        stock = self._cells.stock(request.consumer, self._moving, self._needs, keeps=keeps)
        restriction = self._restrictions.get(request.consumer, UNRESTRICTED)
        if not restriction.cells and restriction.emulator is None:
            return stock
        return replace(stock, bound=restriction.cells, emulator=restriction.emulator)

    def _crowded(self, consumer: str, allocations: Allocations) -> tuple[Shortfall, ...]:
        """The shortfalls of what the consumer may not have, because other rows need it.

        What the consumer's own guest uses is given to it already.
        """
        uses, others = self._uses(consumer), self._without(self._own(consumer))
        crowded = []
        for uuid, amounts in allocations.items():
            provider = self.host.tree.get(uuid)
            for name, amount in amounts.items():
                needed = others.get(uuid, {}).get(name, 0)
                most = self._capacity(uuid, name)
                inventory = provider.inventories.get(name) if provider else None
                if inventory is not None and inventory.reserved >= inventory.total:
                    # A reservation of all keeps new consumers out, and not those that hold.
                    most = int(inventory.total * inventory.allocation_ratio)
                free = max(0, most - needed)
                if needed > 0 and amount > max(free, uses.get(uuid, {}).get(name, 0)):
                    reason = f"other consumers need all but {free}"
                    crowded.append(Shortfall.at(provider, name, amount, free, reason))
        return tuple(crowded)

    def _complete(
        self, request: ClaimRequest, result: Fit, holder: str, stocks: Mapping[str, CardStock]
    ) -> Fit:
        """The fit with the places of its units on cards, their makings and the units by group.

        `stocks` are what is left of the cards beside others than the holder.
        """
        if result.fits and stocks:
            result = self.units.with_places(self.host, holder, result, stocks)
            if not result.fits:
                return result
        restriction = self._restrictions.get(request.consumer, UNRESTRICTED)
        result, makings = restriction.pin(result), self.units.makings_of(result.units)
        groups = any(group.suffix for group in request.groups) and bool(result.units)
        if not makings and not groups:
            return result
        mappings = (
            map_groups(request, result.allocations, result.units, self.host.tree, restriction.dealt)
            if groups
            else ()
        )
        return replace(result, makings=makings, group_units=units_of_groups(mappings))

    def _host_for(self, consumer: str, holder: str, classes: Collection[str]) -> ProviderIndex:
        bound = self._restrictions.get(consumer, UNRESTRICTED).bound
        host = replace(self.host, bound=bound) if bound else self.host
        cards, cordoned = self.units.cards, self.units.cordoned
        if cards:
            stocks = {
                uuid: self.units.card_stock(uuid, card, self._used_beside(uuid, holder), holder)
                for uuid, card in cards.items()
                if not card.model.shapes.keys().isdisjoint(classes)
            }
            host = replace(host, cards=stocks)
        if not cordoned:
            return host
        units = {uuid: classes for uuid, classes in self.offered.items() if uuid not in cards}
        idle = self.units.idle_cordoned(units, cordoned)
        return replace(host, cordoned=idle) if idle else host

    def _own(self, consumer: str) -> Usages:
        """The part of its row's need that goes with the consumer."""
        row = self._rows.get(self._instances.get(consumer, consumer))
        if row is None:
            return {}
        rest = row.without(consumer)
        own = self._needs[row.instance] if rest.is_empty else beyond(self._needs[row.instance], rest.need)
        if consumer != row.instance:
            return own
        for other, recounted in self._recounted(consumer).items():
            before, need = self._needs[other], recounted.need
            own = beyond(total((own, beyond(before, need))), beyond(need, before))
        return own

    def _used_beside(self, uuid: str, consumer: str) -> dict[str, int]:
        """{class: amount} that the other consumers need of the provider."""
        own = self._own(consumer).get(uuid, {})
        return {name: amount - own.get(name, 0) for name, amount in self._used.get(uuid, {}).items()}

    def _recounted(self, consumer: str) -> Mapping[str, Row]:
        """{other instance: its row} where that is another one once the consumer has what it may have."""
        if not self.units.contested:
            return {}
        counted = self._counted_once(consumer)
        rows = {}
        for other in sorted((self._counted.keys() | counted.keys()) - {consumer}):
            if counted.get(other) != self._counted.get(other) and other in self._rows:
                row = self._rows[other]
                rows[other] = replace(row, used=use_of(row, self._place, counted.get(other, ())))
        return rows

    def _uses(self, consumer: str) -> Usages:
        """What the consumer's guest uses, of units that others have as well those that it may have."""
        row = self.row(consumer)
        if consumer not in self._counted and not any(
            consumer in each for each in self.units.contested.values()
        ):
            return row.used.amounts
        return use_of(row, self._place, self._counted_once(consumer).get(consumer, ())).amounts

    def _without(self, own: Usages) -> Usages:
        """The needs of all rows without this part of them; of what is withheld, all but this part.

        What a release frees of that is reserved in the next pass, and given to no consumer before it.
        """
        used: Usages = self._used
        if self.host.withheld:
            withheld = self.host.withheld.items()
            whole = {uuid: {name: self._capacity(uuid, name) for name in names} for uuid, names in withheld}
            used = largest((used, whole))
        if not own:
            return used
        return {
            **used,
            **{
                uuid: {name: amount - own[uuid].get(name, 0) for name, amount in used.get(uuid, {}).items()}
                for uuid in own
            },
        }

    def _beside(self, consumer: str) -> Usages:
        """What other consumers need, without what the consumer's own guest uses in spite of them."""
        others = self._without(self._own(consumer))
        uses = self._uses(consumer) if consumer in self._rows else {}
        if not uses:
            return others
        left = {
            uuid: {
                name: min(amount, max(0, self._capacity(uuid, name) - uses[uuid].get(name, 0)))
                for name, amount in others.get(uuid, {}).items()
            }
            for uuid in uses
        }
        return {**others, **left}

    def _capacity(self, uuid: str, name: str) -> int:
        provider = self.host.tree.get(uuid)
        inventory = provider.inventories.get(name) if provider else None
        return inventory.capacity if inventory else 0

    def _free_units(
        self, host: ProviderIndex, classes: Collection[str], consumer: str, avoided: Collection[str] = ()
    ) -> Units:
        """The units of these classes that the consumer may be given, first those that its guest uses."""
        rooms: dict[str, dict[str, int]] = {}  # of classes that exclude each other
        for uuid in host.ways:
            provider = self.host.tree.get(uuid)
            if provider is None:
                rooms[uuid] = {}
                continue
            used, offered = self._used_beside(uuid, consumer), self.offered.get(uuid, {})
            for name, units in offered.items():
                having = {unit: self.units.in_guests.get((name, unit), consumer) for unit in units}
                owners = (
                    who for unit, who in having.items() if (name, unit) not in self._counted.get(who, ())
                )
                used[name] = used.get(name, 0) + sum(
                    owner != consumer and name not in self.need(owner).get(uuid, {}) for owner in owners
                )
            idle = self.units.idle_cordoned({uuid: offered}, self.units.cordoned).get(uuid, {})
            total = {
                name: inventory.total - inventory.reserved + idle.get(name, 0)
                for name, inventory in provider.inventories.items()
            }
            taken = {**used, **{name: used.get(name, 0) + amount for name, amount in idle.items()}}
            rooms[uuid] = room(self.host.ways[uuid], total, taken)
        restriction = self._restrictions.get(consumer, UNRESTRICTED)
        left = self.offered
        if avoided:
            left = {
                uuid: {
                    name: tuple(unit for unit in exact if unit not in avoided) for name, exact in of.items()
                }
                for uuid, of in left.items()
            }
        return self.units.choices(host, left, classes, consumer, restriction, rooms)


def _name_of(row: Row) -> str:
    """The guest's name, or that of a claim."""
    names = (claim.request.name for claim in row.claimed.values() if claim.request.name)
    return row.guest.name if row.guest is not None else next(names, row.instance)
