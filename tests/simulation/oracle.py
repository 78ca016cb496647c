"""The laws of the book, checked from outside: guests, the journals' rows, Placement's records, answers.

Nothing here calls the agent. An agent can only be held to what it could know: what somebody wrote to
Placement counts once the agent has verified since, a guest once the agent has looked since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, permutations, product
from typing import Any, NamedTuple, TypeVar

from simulation.machine import POOL, Host, SimGuest
from simulation.network import Network, Write
from simulation.tasks import Scheduler

T = TypeVar("T")
Amounts = Mapping[str, int]
Column = dict[tuple[str, str], Counter[str]]
"""{(provider uuid, class): {party: amount}}"""
FLOATING = ("VCPU", "MEMORY_MB")
"""The classes of CPUs and memory without exact units."""

NEVER = float("-inf")
NEXT_LIFE_MAX = 16
"""To a higher generation, no consumer that was made anew is written while an earlier write may come."""
UNANSWERED_S = 600.0
"""Twice the default interval of verifications."""
PENDING: frozenset[str] = frozenset()
"""Laws that the agent does not keep yet: they are not checked."""


class Violation(AssertionError):
    """A law is broken; `law` is its name."""

    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(f"{law}: {sentence}")
        self.law = law


class Row(NamedTuple):
    """A claim in a journal."""

    consumer: str
    state: str
    allocations: Mapping[str, Amounts]
    units: frozenset[tuple[str, str]]
    adopted: bool


@dataclass
class Promise:
    """What an agent answered: the consumer has these amounts and exact units on this host, until it is asked
    for something else. `party` are the consumers one of which has them (instance, migration)."""

    host: str
    party: frozenset[str]
    amounts: Amounts
    units: frozenset[tuple[str, str]]
    at: float


@dataclass
class Oracle:
    """Watches a world. `names` are of consumers, for people."""

    scheduler: Scheduler
    network: Network
    hosts: Mapping[str, Host]
    names: dict[str, str] = field(default_factory=dict)
    promises: dict[tuple[str, str], Promise] = field(default_factory=dict)
    written_at: dict[str, tuple[float, str]] = field(default_factory=dict)
    allocated_at: dict[str, float] = field(default_factory=dict)
    """{consumer: when a client wrote what it holds}; a reshape that an agent carries out is no such write."""
    excused: set[tuple[str, str, str, str]] = field(default_factory=set)
    needs: dict[tuple[str, str, str], dict[str, int]] = field(default_factory=dict)
    totals: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    party_of: dict[str, str] = field(default_factory=dict)
    disturbed: set[str] = field(default_factory=set)
    """Consumers that somebody else wrote to."""
    foreign_migrations: set[str] = field(default_factory=set)
    """Consumers that a control plane made for its own moves."""
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    """(host, consumer): asked for before the host lost its disk, so nothing can be known of it."""

    clones: dict[str, str] = field(default_factory=dict)
    """{machine with a copy of a host's disk: that host}; what either granted, the other must leave alone."""

    healed: set[str] = field(default_factory=set)
    """Consumers that held nothing when an audit gave them what they have."""

    found: Violation | None = None
    """The first violation; the agent's own code must not catch it, so it is kept here."""

    # What happens

    def wrote(self, write: Write) -> None:
        """A request changed allocations in Placement."""
        self._judge(lambda: self._wrote(write))

    def committed(self, host: Host, known_at: float) -> None:
        """An agent's journal changed. `known_at`: what the agent had seen when it asked for that, see `Disk`.

        What a pass sees while a commit waits for its turn comes too late for the claim in it.
        """
        self._judge(lambda: self._committed(host, known_at))

    def reserved(self, host: Host) -> None:
        """An agent has chosen what it extends a claim by, from what it knows now."""
        self._judge(lambda: self._counted(host, self.rows(host), host.seen_at))

    def _judge(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            self.found = self.found or violation
            self.scheduler.stopped = True

    def _wrote(self, write: Write) -> None:
        task = self.scheduler.current
        by_audit = write.author in self.hosts and task is not None and task.name == "call audit"
        for consumer, (before, after) in write.changed.items():
            if not before:
                (self.healed.add if by_audit else self.healed.discard)(consumer)
            if write.reshaped:
                self._conserved(consumer, before, after, write)
                _, author = self.written_at.get(consumer, (0.0, write.author))
                self.written_at[consumer] = (write.at, author)
            elif before or after:  # an agent that bars its own late write writes a record that holds nothing
                self.written_at[consumer] = (write.at, write.author)
                self.allocated_at[consumer] = write.at
            if write.author in self.hosts and consumer in self.foreign_migrations and before and not after:
                self._guest_is_gone(self.hosts[write.author], consumer)
        if write.author not in self.hosts:
            self.disturbed |= write.changed.keys()
        if write.author not in self.hosts and not self._is_bound_copy(write):
            for key, promise in list(self.promises.items()):
                if promise.party & write.changed.keys():
                    del self.promises[key]
        self._promises_are_held(write)

    def _is_bound_copy(self, write: Write) -> bool:
        """Whether it is a copy of a host's disk that must leave alone what the first machine granted.

        "By the marks it is the first machine after a reboot" where that one's agent does not answer: it
        "takes nothing away for twice the interval of verifications" (docs/decisions/0016).
        """
        first = self.clones.get(write.author)
        return first is not None and write.at - self.hosts[first].answered_at < UNANSWERED_S

    def _providers_of(self, host: Host) -> set[str]:
        return {uuid for uuid, each in self.network.model.providers.items() if each.root_uuid == host.uuid}

    def _guest_is_gone(self, host: Host, migration: str) -> None:
        """A control plane's migration holds a guest's place until that has left, or has its own again.

        A place that an audit gave it on its own is none: two guesses in a row are one. A guest that came
        since the agent listed the guests last is not known to it yet.
        """
        instance, mine = self.party(migration), self._providers_of(host)
        guest = host.guests.get(instance)
        if guest is None or guest.since >= host.listed_at:
            return
        if instance in self.healed or not mine & self.network.holdings().get(instance, {}).keys():
            raise Violation(
                "a guess is never an action",
                f"host {host.name} deleted what {self.name(migration)} holds for the guest "
                f"{self.name(self.party(migration))}, which is still there",
            )

    def _committed(self, host: Host, known_at: float) -> None:
        rows = self.rows(host)
        self._one_owner(host, rows, known_at)
        self._promises_are_kept(host, rows)
        self._counted(host, rows, known_at)

    # What is there

    def name(self, consumer: str) -> str:
        return self.names.get(consumer, consumer[:8])

    def rows(self, host: Host) -> dict[str, Row]:
        """{consumer: its claim in the host's journal}"""
        found = {}
        for consumer, state, allocations, units, adopted in host.disk.rows(
            "SELECT consumer, state, allocations, units, adopted FROM claims ORDER BY consumer"
        ):
            exact = frozenset(
                (name, unit)
                for classes in json.loads(units).values()
                for name, each in classes.items()
                for unit in each
            )
            found[consumer] = Row(consumer, state, json.loads(allocations), exact, bool(adopted))
        return found

    def moves(self, host: Host) -> list[dict[str, object]]:
        """The moves in the host's journal."""
        return [json.loads(move) for (move,) in host.disk.rows("SELECT move FROM moves ORDER BY migration")]

    def party(self, consumer: str) -> str:
        """The instance of a migration that the story or a journal knows; the consumer itself otherwise."""
        return self.party_of.get(consumer, consumer)

    def _learn_parties(self, host: Host) -> None:
        for (text,) in host.disk.rows("SELECT move FROM moves"):
            move = json.loads(text)
            migration, instance = move["migration"], move["instance"]
            former = self.party_of.get(migration, instance)
            for other in self.foreign_migrations if former != instance else ():
                if self.party_of.get(other) == instance and self._hold_alike(migration, other):
                    self.party_of[other] = former  # Placement does not say which of them is whose
            self.party_of[migration] = instance

    def _hold_alike(self, *consumers: str) -> bool:
        """Whether each holds as much of each class as the others, on one host."""
        providers, held = self.network.model.providers, self.network.holdings()
        places = [held.get(each, {}) for each in consumers]
        roots = {providers[uuid].root_uuid for place in places for uuid in place}
        return len(roots) == 1 and all(_sum(each) == _sum(places[0]) for each in places)

    # Law 1: a unit has one owner

    def _one_owner(self, host: Host, rows: Mapping[str, Row], known_at: float) -> None:
        self._learn_parties(host)
        owners: dict[tuple[str, str], str] = {}
        for consumer, row in rows.items():
            for unit in row.units:
                owner = owners.setdefault(unit, self.party(consumer))
                if owner != self.party(consumer):
                    self._doubled(host, unit, owner, self.party(consumer), "two claims have it")
        for uuid, guest in host.guests.items():
            for unit in guest.units if guest.runs else ():  # a definition keeps it from no guest that runs
                owner = owners.get(unit, uuid)
                if owner == uuid or guest.since >= min(host.seen_at, known_at):
                    if owner != uuid:
                        self.excused.add((host.name, unit[1], owner, uuid))
                    continue
                if (host.name, unit[1], owner, uuid) not in self.excused:
                    self._doubled(host, unit, owner, uuid, "one claims it, the other's guest uses it")

    def _doubled(self, host: Host, unit: tuple[str, str], one: str, other: str, how: str) -> None:
        raise Violation(
            "a unit has one owner",
            f"{unit[0]} {unit[1]} of host {host.name} belongs to {self.name(one)} "
            f"and {self.name(other)}: {how}",
        )

    # Law 2: free is what no column needs

    def _counted(self, host: Host, rows: Mapping[str, Row], known_at: float) -> None:
        providers = {
            uuid: provider
            for uuid, provider in self.network.model.providers.items()
            if provider.root_uuid == host.uuid
        }
        if not providers:
            return
        rows = self._with_reserved(host, rows)
        needs = self._needs(host, rows, providers, known_at=known_at)
        used = self._used(host, self.scheduler.now + 1, set(providers), seen=False)
        shared = self._shared_units(host, rows)
        totals = {party: self._total(rows, party) for party in map(self.party, rows)}
        former = self.totals.get(host.name, {})
        new = totals.keys() - former.keys()
        larger = {who for who, total in totals.items() if total - former.get(who, Counter())}
        self.totals[host.name] = totals
        before = self.needs
        capacities = {
            (uuid, name): self._capacity(host, provider.name, name, inventory)
            for uuid, provider in providers.items()
            for name, inventory in provider.inventories.items()
        }
        for uuid, provider in providers.items():
            for name in provider.inventories:
                key = (host.name, uuid, name)
                need = needs.get((uuid, name), {})
                running = used.get((uuid, name), {})
                grown = [
                    who
                    for who, amount in need.items()
                    if who in new or amount > before.get(key, {}).get(who, 0)
                ]
                before[key] = need
                capacity = capacities[uuid, name]
                # A claim of what its guest uses takes nothing from others, and its party may hold more.
                claimed = [who for who in grown if self._claimed(rows, who, uuid, name) > running.get(who, 0)]
                claimed = [who for who in claimed if host.gone_at.get(who, NEVER) < known_at]
                claimed = [who for who in claimed if not self._uses(host, who, name, need[who])]
                targets = {slot: each for slot, each in capacities.items() if slot[1] == name}
                needed = sum(amount for slot in targets for amount in needs.get(slot, {}).values())
                largest = max(targets.values()) if needed <= sum(targets.values()) else 0.0
                if len(need) == 1:
                    claimed = [who for who in claimed if not self._is_taken_over(host, rows, who, uuid, name)]
                    largest = capacity
                # Else a claim follows a reshape, and is larger than any target, or all claims are than all of
                # them. What changes in the very moment in which a verification begins may have come after it.
                claimed = [who for who in claimed if who in larger or need[who] <= largest]
                if (
                    claimed
                    and sum(need.values()) - shared[uuid, name] > capacity
                    and host.changed_at < known_at
                ):
                    ask = partial(self._needed, host, rows, (uuid, name), known_at)
                    if any(needed <= capacity for needed in self._each_way(host, rows, ask)):
                        continue
                    parts = ", ".join(f"{self.name(who)} {amount}" for who, amount in sorted(need.items()))
                    raise Violation(
                        "free is what no column needs",
                        f"{name} of {provider.name}: {sum(need.values())} of {capacity:g} are needed "
                        f"({parts}), "
                        f"after a claim for {', '.join(map(self.name, claimed))}",
                    )

    def _needed(self, host: Host, rows: Mapping[str, Row], slot: tuple[str, str], known_at: float) -> int:
        """What all need of a class of a provider, each exact unit once."""
        need = self._needs(host, rows, self._providers_of(host), known_at).get(slot, {})
        return sum(need.values()) - self._shared_units(host, rows)[slot]

    @staticmethod
    def _with_reserved(host: Host, rows: Mapping[str, Row]) -> dict[str, Row]:
        """The claims, with what the agent's memory has reserved to extend them."""
        extended = dict(rows)
        for consumer, allocations in host.reserved.items():
            if row := rows.get(consumer):
                extended[consumer] = row._replace(allocations=_largest(row.allocations, allocations))
        return extended

    @staticmethod
    def _capacity(host: Host, provider: str, name: str, inventory: object) -> float:
        """Without what is reserved for guests: only the operator's own reservation counts.

        At least what there is: a write of less, which the agent gave up, may be done late, and the next
        verification finds that. Until then Placement refuses what the agent takes to fit.
        """
        for described in host.described():
            if described.name == provider and name in described.inventories:
                there = described.inventories[name]
                total = max(inventory.total, there.total)  # type: ignore[attr-defined]
                return (total - there.reserved) * inventory.allocation_ratio  # type: ignore[attr-defined,no-any-return]
        return inventory.total * inventory.allocation_ratio  # type: ignore[attr-defined,no-any-return]

    def _claimed(self, rows: Mapping[str, Row], party: str, provider: str, name: str) -> int:
        return sum(
            row.allocations.get(provider, {}).get(name, 0)
            for consumer, row in rows.items()
            if self.party(consumer) == party
        )

    def _total(self, rows: Mapping[str, Row], party: str) -> Counter[str]:
        """What the claims of the party come to, by class."""
        mine = (row.allocations for consumer, row in rows.items() if self.party(consumer) == party)
        return sum(map(_sum, mine), Counter())

    def _needs(
        self, host: Host, rows: Mapping[str, Row], providers: Iterable[str], known_at: float
    ) -> dict[tuple[str, str], dict[str, int]]:
        """{(provider, class): {party: what it needs there}}, as far as the agent could know at that time."""
        held, claimed, used = self._columns(host, rows, set(providers), known_at, releasing=True)
        needs: dict[tuple[str, str], dict[str, int]] = {}
        for key in {*held, *claimed, *used}:
            columns = [column.get(key, Counter()) for column in (held, claimed, used)]
            parties = {party for column in columns for party in column}
            needs[key] = {party: max(column[party] for column in columns) for party in parties}
        return needs

    def _uses(self, host: Host, consumer: str, name: str, amount: int) -> bool:
        """Whether its guest uses so many units of the class, also of a device that has vanished since.

        A claim of just these takes nothing from others that they could have had.
        """
        guest = host.guests.get(consumer)
        return guest is not None and guest.runs and [each for each, _ in guest.units].count(name) >= amount

    def _is_taken_over(
        self, host: Host, rows: Mapping[str, Row], consumer: str, provider: str, name: str
    ) -> bool:
        """Whether the claim is what a scheduler wrote for the consumer, also of a device that has vanished.

        "A scheduler wrote an allocation that covers the request: the agent assigns units and writes nothing"
        (docs/claims.md). Where no other consumer needs any of it, the claim takes nothing from others. The
        audit tells of it as a "shrunk inventory". With a new state directory, an agent cannot tell what it
        wrote itself before from what a scheduler wrote.
        """
        row = rows.get(consumer)
        is_known = self.allocated_at.get(consumer, NEVER) > host.emptied_at
        if row is None or not row.adopted or (is_known and self._by_agents(consumer)):
            return False
        held = self.network.holdings().get(consumer, {})
        return row.allocations.get(provider, {}).get(name, 0) <= held.get(provider, {}).get(name, 0)

    def _columns(
        self,
        host: Host,
        rows: Mapping[str, Row],
        mine: set[str],
        known_at: float,
        *,
        releasing: bool = False,
    ) -> list[Column]:
        """Held, claimed and used, as far as the agent could know at that time.

        `releasing`: also claims whose release is not done; they are given to no other.
        """
        held: Column = {}
        claimed: Column = {}
        for consumer, allocations in self.network.holdings().items():
            at, author = self.written_at.get(consumer, (0.0, ""))
            if author == host.name or at < min(host.verified_at, known_at):
                _add(held, self.party(consumer), allocations, mine)
        for consumer, row in rows.items():
            if releasing or row.state != "releasing":
                _add(claimed, self.party(consumer), row.allocations, mine)
        return [held, claimed, self._used(host, known_at, mine)]

    def _used(self, host: Host, known_at: float, mine: set[str], *, seen: bool = True) -> Column:
        """What guests use: exact units where they are, the rest of classes that one provider has.

        Of a guest that is shut off, the same where it was here before the state directory.
        """
        found, place_of = self._found(host), self._place_of_unit(host)
        having: dict[str, list[str]] = {}
        for uuid in sorted(mine):
            for name in self.network.model.providers[uuid].inventories:
                having.setdefault(name, []).append(uuid)
        used: Column = {}
        for uuid, guest in host.guests.items():
            if not (guest.runs or uuid in found) or (seen and guest.since >= min(host.seen_at, known_at)):
                continue
            for name, unit in guest.units:
                place = place_of.get((name, unit))
                if place is not None and name in self.network.model.providers[place].inventories:
                    used.setdefault((place, name), Counter())[self.party(uuid)] += 1
            exact = {name for name, _ in guest.units}
            for name, amount in guest.resources.items():
                if name not in exact and len(having.get(name, ())) == 1:
                    used.setdefault((having[name][0], name), Counter())[self.party(uuid)] += amount
        return used

    @staticmethod
    def _found(host: Host) -> set[str]:
        """The guests that were here before the state directory."""
        facts = host.disk.rows("SELECT value FROM facts WHERE name = 'found guests'")
        return {uuid for (text,) in facts for uuid in json.loads(text)}

    def _place_of_unit(self, host: Host) -> dict[tuple[str, str], str | None]:
        """{(class, unit): provider uuid}"""
        providers = self.network.model.providers
        uuids = {each.name: uuid for uuid, each in providers.items() if each.root_uuid == host.uuid}
        return {
            (name, unit): uuids.get(described.name)
            for described in host.described()
            for name, units in described.units.items()
            for unit in units
        }

    def _shared_units(self, host: Host, rows: Mapping[str, Row]) -> Counter[tuple[str, str]]:
        """{(provider, class): how often units there count once too often} that several have: each is one."""
        found, having = self._found(host), dict[tuple[str, str], set[str]]()
        for uuid, guest in host.guests.items():
            for unit in guest.units if guest.runs or uuid in found else ():
                having.setdefault(unit, set()).add(self.party(uuid))
        for consumer, row in rows.items():
            for unit in row.units:
                having.setdefault(unit, set()).add(self.party(consumer))
        surplus: Counter[tuple[str, str]] = Counter()
        places = self._place_of_unit(host)
        for (name, unit), parties in having.items():
            surplus[places.get((name, unit)) or "", name] += len(parties) - 1
        return surplus

    # What an agent answered stays true

    def promise(self, promise: Promise) -> None:
        for member in promise.party:
            self.forget(promise.host, member)
        if promise.party & self.disturbed:
            # The agent answers a claim that is asked for again, and gives back nothing that others took.
            held = self._held_for(promise)
            promise.amounts = {name: min(n, held[name]) for name, n in promise.amounts.items()}
        self.promises[promise.host, min(promise.party)] = promise
        self._judge(lambda: self._is_held(promise, "the answer"))

    def is_written_by_others(self, consumer: str, since: float) -> bool:
        """Whether the last who gave the consumer something since then, or took it away, is no agent.

        An agent that answers a claim after that cannot know it. "A claim whose guest and whose allocation are
        both gone. The agent releases the claim" (docs/audit.md, "leaked claim").
        """
        at, author = self.written_at.get(consumer, (NEVER, ""))
        return at >= since and author not in self.hosts

    def forget(self, host: str, consumer: str) -> None:
        """Somebody asks for something else."""
        for key, promise in list(self.promises.items()):
            if key[0] == host and consumer in promise.party:
                del self.promises[key]

    def forget_host(self, host: str) -> None:
        """Its records are gone."""
        self.forgotten |= {(host, consumer) for consumer in self.names}
        for key in [key for key in self.promises if key[0] == host]:
            del self.promises[key]

    def _promises_are_kept(self, host: Host, rows: Mapping[str, Row]) -> None:
        for (name, _), promise in self.promises.items():
            if name != host.name:
                continue
            row = [rows[consumer] for consumer in promise.party if consumer in rows]
            units = frozenset(unit for each in row for unit in each.units)
            who = " or ".join(sorted(map(self.name, promise.party)))
            if not row:
                raise Violation(
                    "what was answered stays true", f"the claim of {who} is gone from host {name}"
                )
            promise.units = self._with_guests_units(host, promise, units)
            if not promise.units <= units:
                raise Violation(
                    "a unit stays the same unit",
                    f"{who} was given {_units(promise.units)} on host {name} and has {_units(units)} now",
                )

    @staticmethod
    def _with_guests_units(
        host: Host, promise: Promise, units: frozenset[tuple[str, str]]
    ) -> frozenset[tuple[str, str]]:
        """What the claim was given, with what its guest uses in place of that since it got just these.

        "The claim gets the units that the guest uses" (docs/audit.md, "another unit"), and "a guest that runs
        with other units than it was told is followed" (docs/reshape.md): as many as it lost, and no others.
        Of a guest that left or lost a device since the agent's last pass, which may have seen it, also what
        it used before.
        """
        before = {
            who: each for who, each in host.before.items() if host.gone_at.get(who, NEVER) >= host.seen_at
        }
        seen = [each[who] for each in (host.guests, before) for who in promise.party if who in each]
        guest, used = next(iter(seen), None), frozenset(unit for each in seen for unit in each.units)
        if guest is None or not (guest.runs or guest.since >= host.seen_at):
            return promise.units
        lost = promise.units - units - used
        got = (units - promise.units) & used
        if Counter(name for name, _ in lost) <= Counter(name for name, _ in got):
            # Of more than it lost, part came to the guest while it ran, and may go again.
            return promise.units - lost | (got if len(got) == len(lost) else frozenset())
        return promise.units

    def _promises_are_held(self, write: Write) -> None:
        for promise in self.promises.values():
            if promise.party & write.changed.keys():
                self._is_held(promise, f"{write.author}'s {write.request}")

    def _held_for(self, promise: Promise) -> Counter[str]:
        """What Placement holds on the host and in the pool, by class."""
        root = self.hosts[self.clones.get(promise.host, promise.host)].uuid
        total: Counter[str] = Counter()
        for consumer in promise.party:
            for provider, amounts in self.network.holdings().get(consumer, {}).items():
                record = self.network.model.providers.get(provider)
                if record is not None and record.root_uuid in (root, POOL):
                    total.update(amounts)
        return total

    def _is_held(self, promise: Promise, after: str) -> None:
        total = self._held_for(promise)
        if any(total[name] < amount for name, amount in promise.amounts.items()):
            who = " or ".join(sorted(map(self.name, promise.party)))
            raise Violation(
                "what was answered stays true",
                f"{who} was granted {dict(promise.amounts)} on host {promise.host}, and after {after} "
                f"Placement holds {dict(total)} for it there",
            )

    def released(self, host: Host, consumer: str) -> None:
        """A release is answered: nothing of the consumer is counted any more.

        Not even a write for it whose outcome is unknown: Placement rejects that from now on. Where a commit
        failed, or the agent was not told of it, the disk may still have what the agent has forgotten.
        """
        if not (host.disk.has_failed or host.disk.lags):
            self._judge(lambda: self._in_no_doubt(host, consumer))

    def _in_no_doubt(self, host: Host, consumer: str) -> None:
        for (text,) in host.disk.rows("SELECT doubt FROM doubts ORDER BY since, id"):
            doubt = json.loads(text)
            if doubt["state"] == "open" and consumer in {write["consumer"] for write in doubt["writes"]}:
                raise Violation(
                    "what was released is free",
                    f"the release of {self.name(consumer)} is answered, and host {host.name} goes on to "
                    f"count what a {doubt['kind']} of it may give",
                )

    def refused_end(self, host: Host, migration: str) -> None:
        """A confirm or a revert was refused, and not because another operation is under way."""
        self._judge(lambda: self._has_begun(host, migration))

    def _has_begun(self, host: Host, migration: str) -> None:
        for move in self.moves(host):
            if move["migration"] == migration and move["state"] == "beginning":
                raise Violation(
                    "a move can be ended",
                    f"the end of {self.name(migration)} was refused on host {host.name}, because the agent "
                    "does not know yet what became of its begin",
                )

    # Law 4: sums are conserved

    def _conserved(
        self, consumer: str, before: Mapping[str, Amounts], after: Mapping[str, Amounts], write: Write
    ) -> None:
        if _with_cpus_alike(_sum(before)) != _with_cpus_alike(_sum(after)):
            raise Violation(
                "a reshape conserves sums",
                f"{self.name(consumer)} had {dict(_sum(before))} and has {dict(_sum(after))} "
                f"after {write.request}",
            )

    # At rest

    def at_rest(self, expected_guests: Iterable[str] = ()) -> None:
        """No fault is left, and all had the time to settle. Raises Violation."""
        if self.network.internal_errors:
            raise Violation("Placement never fails by itself", self.network.internal_errors[0])
        self.network.cluster.check()
        if self.network.cluster.forgot:
            raise Violation("the journal has what was acknowledged", self.network.cluster.forgot[0])
        for host in self.hosts.values():
            if host.broken:
                raise Violation("no job breaks", host.broken[0])
            rows = self.rows(host)
            self._one_owner(host, rows, self.scheduler.now)
            self._promises_are_kept(host, rows)
            self._rows_agree(host, rows)
            self._nothing_is_in_doubt(host)
            self._nothing_leaked(host, rows)
            self._nothing_needed_is_offered(host, rows)
            self._claims_have_their_places(host, rows)
        self._pool_is_claimed()

    def _rows_agree(self, host: Host, rows: Mapping[str, Row]) -> None:
        held = self.network.holdings()
        for consumer, row in rows.items():
            who = self.name(consumer)
            waits = row.state == "releasing" and self.party(consumer) in host.guests
            if row.state != "claimed" and not waits:
                raise Violation("all comes to rest", f"the claim of {who} on host {host.name} is {row.state}")
            if {consumer, self.party(consumer)} & self.disturbed or row.state != "claimed":
                continue
            there = held.get(consumer, {})
            lacking = {
                provider: amounts
                for provider, amounts in row.allocations.items()
                if there.get(provider) != amounts
            }
            if lacking and not (
                self._is_one_of_several_alike(host, row, rows)
                or self._is_handed_onward(host, row, rows)
                or self._is_left_to_its_guest(host, consumer)
            ):
                raise Violation(
                    "nothing is lost",
                    f"{who} claims {lacking} on host {host.name}, and Placement holds {dict(there)}",
                )

    def _nothing_is_in_doubt(self, host: Host) -> None:
        """Each write without an answer is known to be done, or made impossible: else it counts for ever.

        Where devices of its consumer have vanished, Placement takes neither that write nor one of what the
        consumer holds already. The agent ends the doubt when they are back, or when the claim is released.
        So it is where they have vanished on another host, which the consumer was made anew on: it may have
        the generation again that the write names, but for one that is too high for that.
        """
        if host.disk.lags:
            return  # it may show what the agent has ended since; the next start ends that once more
        for (text,) in host.disk.rows("SELECT doubt FROM doubts ORDER BY since, id"):
            doubt = json.loads(text)
            if doubt["state"] == "open" and not any(
                self._asks_for_vanished(write["allocations"])
                or (
                    (write["generation"] or 0) <= NEXT_LIFE_MAX
                    and self._holds_vanished_elsewhere(host, write)
                )
                for write in doubt["writes"]
            ):
                who = ", ".join(self.name(write["consumer"]) for write in doubt["writes"])
                raise Violation(
                    "all comes to rest",
                    f"the outcome of the {doubt['kind']} of {who} on host {host.name} is not known",
                )

    def _asks_for_vanished(self, allocations: Mapping[str, Amounts]) -> bool:
        """Whether Placement rejects a write of these, even where no other consumer holds any."""
        providers = self.network.model.providers
        return any(
            name not in providers[uuid].inventories or amount > providers[uuid].inventories[name].max_unit
            for uuid, amounts in allocations.items()
            if uuid in providers
            for name, amount in amounts.items()
        )

    def _holds_vanished_elsewhere(self, host: Host, write: Mapping[str, Any]) -> bool:
        """Whether Placement rejects what the consumer of the write holds, all of it on other hosts."""
        held = self.network.holdings().get(write["consumer"], {})
        return self._lives_elsewhere(host, write["consumer"]) and self._asks_for_vanished(held)

    def _is_one_of_several_alike(self, host: Host, row: Row, rows: Mapping[str, Row]) -> bool:
        """Whether a migration holds just this place, and more than one instance that left may be its own.

        Or more than one migration holds just this, or a control plane's: that one may be of a guest without a
        claim. The source cannot know which, so it keeps the places of all until an operator names it. What
        is in the pool stays with the instance. A migration that others narrowed may be that of each of
        several alike, too: "it keeps the devices of both until it can" tell them apart (docs/moves.md). So
        may any be that of an instance without a claim "whose guest is still here": what that had is unknown.
        A claim that a reshape left behind may have its place wherever that led the migrations.
        """
        held = {consumer: _own(allocations) for consumer, allocations in self.network.holdings().items()}
        mine, place = self._providers_of(host), _own(row.allocations)
        is_left_behind = bool(self._without_inventory(place))

        def is_alike(allocations: Mapping[str, Amounts]) -> bool:
            is_here = is_left_behind and allocations.keys() <= mine
            return allocations == place or (is_here and _sum(allocations) == _sum(place))

        migrations = [
            consumer
            for consumer, instance in self.party_of.items()
            if consumer != instance and consumer not in rows and is_alike(held.get(consumer, {}))
        ]
        left = [
            other
            for consumer, other in rows.items()
            if is_alike(_own(other.allocations)) and not held.get(consumer, {}).keys() & mine
        ]
        several = len(left) > 1 and bool(migrations or self._holders_of_part(row, rows))
        is_foreign = not self.foreign_migrations.isdisjoint(migrations)
        strays = (who for who in host.guests if who not in rows and self._lives_elsewhere(host, who))
        has_rival = bool(migrations) and any(strays)
        return row in left and (several or is_foreign or has_rival or len(migrations) > 1)

    def _is_handed_onward(self, host: Host, row: Row, rows: Mapping[str, Row]) -> bool:
        """Whether a second move took the instance onward before the move to this host was ended.

        The second migration holds just this place, without what is in the pool; the agent keeps it until one
        of the moves is ended.
        """
        arriving = any(
            move["instance"] == row.consumer and move["state"] == "begun" and move["role"] != "source"
            for move in self.moves(host)
        )
        held = self.network.holdings()
        return arriving and any(
            instance == row.consumer and _sum(_own(held.get(consumer, {}))) == _sum(_own(row.allocations))
            for consumer, instance in self.party_of.items()
            if consumer != instance and consumer not in rows
        )

    def _is_left_to_its_guest(self, host: Host, consumer: str) -> bool:
        """Whether the instance lives on another host, and its guest is here all the same.

        "Its claim counts here" until the guest is gone, however it came: what Placement does not hold of it
        is reserved, as `_nothing_needed_is_offered` sees. So it is if that host took the instance back by a
        revert, although the guest had moved, and has released it since: it has no guest of it.
        """
        held = _own(self.network.holdings().get(consumer, {}))
        _, author = self.written_at.get(consumer, (0.0, host.name))
        if not held and author in self.hosts and author != host.name:
            moves = self.moves(self.hosts[author])
            is_elsewhere = any(move["instance"] == consumer and move["state"] == "reverted" for move in moves)
        else:
            records = (self.network.model.providers.get(provider) for provider in held)
            roots = {record.root_uuid for record in records if record is not None}
            is_elsewhere = bool(roots) and host.uuid not in roots
        return consumer in host.guests and is_elsewhere

    def _nothing_leaked(self, host: Host, rows: Mapping[str, Row]) -> None:
        """What agents hold is claimed, or is the place of a move that a host knows.

        Where the destination lost its disk, and the source cannot tell several moves apart, each instance
        still claims there what its migration holds: "the agent frees nothing until an operator names it".
        """
        moving = self._moving()
        for consumer, allocations in self.network.holdings().items():
            if not self._by_agents(consumer) or (host.name, consumer) in self.forgotten:
                continue
            if self.party(consumer) in moving | self.disturbed:
                continue
            left = rows.get(self.party(consumer))
            is_place = left is not None and _own(left.allocations) == _own(allocations)
            if left is not None and is_place and self._is_one_of_several_alike(host, left, rows):
                continue
            for provider in allocations:
                record = self.network.model.providers.get(provider)
                if record is not None and record.root_uuid == host.uuid and consumer not in rows:
                    raise Violation(
                        "nothing is leaked",
                        f"Placement holds {dict(allocations)} for {self.name(consumer)} on host {host.name}, "
                        "which has no claim of it",
                    )

    def _pool_is_claimed(self) -> None:
        """What agents hold in the pool is claimed on a host."""
        moving = self._moving()
        rows = {consumer for host in self.hosts.values() for consumer in self.rows(host)}
        for record in self.network.model.consumers_of(POOL):
            consumer = record.uuid
            known = consumer in rows or self.party(consumer) in moving | self.disturbed
            if known or not self._by_agents(consumer) or any(who == consumer for _, who in self.forgotten):
                continue
            raise Violation(
                "nothing is leaked",
                f"Placement holds {dict(record.allocations)} for {self.name(consumer)}, part of it in the "
                "pool, and no host has a claim of it",
            )

    def nothing_needed_is_offered(self, host: Host) -> None:
        """What is claimed or used on the host is not on offer now. Raises Violation."""
        self._nothing_needed_is_offered(host, self.rows(host))
        self._claims_have_their_places(host, self.rows(host))

    def _nothing_needed_is_offered(self, host: Host, rows: Mapping[str, Row]) -> None:
        """What is claimed or used beyond what is held for it is reserved: no scheduler is offered it."""
        wrong = []
        for violation in self._each_way(host, rows, partial(self._misoffered, host, rows)):
            if violation is None:
                return
            wrong.append(violation)
        raise wrong[0]

    def _each_way(self, host: Host, rows: Mapping[str, Row], ask: Callable[[], T]) -> Iterator[T]:
        """What `ask` says with the migrations as they are, and as they may be for all that the host can know.

        Of migrations that look alike the sum counts, and Placement does not say whose each of them is. One
        without a claim may be that of any instance that lives elsewhere and needs as much of each class here,
        but for disks, which drivers need not see. Each of these has one as long as there are any, but for
        those of instances that are nowhere. One that is left over may be that of an instance whose guest is
        here and has got or lost devices since. Else it belongs to no instance of this host where its own is
        nowhere, is here, "beside a place of the instance's own it is another instance's" (docs/moves.md), or
        needs other CPUs or memory: to offer what its guest uses were a guess, which frees nothing.
        """
        yield ask()
        mine, held = self._providers_of(host), self.network.holdings()
        places = {
            who: _sum({uuid: held[who][uuid] for uuid in held.get(who, {}).keys() & mine})
            for who in sorted(self.party_of.keys() - rows.keys())
        }
        left = {
            who: self._total(rows, who) | Counter(host.guests[who].resources if who in host.guests else {})
            for who in sorted({*rows, *host.guests} - self.party_of.keys())
            if self._lives_elsewhere(host, who)
        }
        for amounts in (*places.values(), *left.values()):
            del amounts["DISK_GB"]
        spare = {
            migration: migration
            for migration, place in places.items()
            if any(place[name] != left.get(self.party(migration), Counter())[name] for name in FLOATING)
        }
        ways = []
        for place in {str(sorted(each.items())): each for each in places.values() if each}.values():
            migrations = [migration for migration, each in places.items() if each == place]
            alike = [who for who, needs in left.items() if needs == place]
            changed = [
                who
                for who, needs in left.items()
                if who in host.guests
                and who not in alike
                and all(needs[name] == place[name] for name in FLOATING)
            ]
            takers = alike if len(alike) >= len(migrations) else alike + changed
            most = min(len(migrations), len(takers))
            gone = sum(not held.get(self.party(migration)) for migration in migrations)
            ways.append(
                [
                    tuple(zip(some, those, strict=True))
                    for dealt in range(max(0, min(most, len(alike)) - gone), most + 1)
                    for some in combinations(migrations, dealt)
                    for those in permutations(takers, dealt)
                    if dealt <= len(alike) or {*alike} <= {*those}
                ]
            )
        known = self.party_of
        for way in product(*ways):
            self.party_of = {**known, **spare, **dict(chain.from_iterable(way))}
            try:
                answer = ask()
            finally:
                self.party_of = known
            yield answer

    def _misoffered(self, host: Host, rows: Mapping[str, Row]) -> Violation | None:
        model, mine = self.network.model, self._providers_of(host)
        here = {
            who: row
            for who, row in rows.items()
            if self._is_here(host, who, row) or self._is_held_in_part(row, rows)
        }
        held, claimed, used = self._columns(host, here, mine, self.scheduler.now, releasing=True)
        shared = self._shared_units(host, rows)
        untold: Column = {}
        kept: Column = {}
        for who, row in rows.items():
            if who not in here and self._is_one_of_several_alike(host, row, rows):
                _add(kept, self.party(who), row.allocations, mine)
            if len(holders := self._holders_of_part(row, rows)) > 1:
                _add(kept, who, row.allocations, mine)
                for migration in holders:
                    _add(untold, self.party(migration), self.network.holdings()[migration], mine)
        for uuid, name in {*claimed, *used}:
            inventory = model.providers[uuid].inventories.get(name)
            if inventory is None:
                continue
            columns = [column.get((uuid, name), Counter()) for column in (claimed, used)]
            beyond = (columns[0] | columns[1]) - held.get((uuid, name), Counter())
            told = held.get((uuid, name), Counter()) - untold.get((uuid, name), Counter())
            most = columns[0] | columns[1] | kept.get((uuid, name), Counter())
            guessed = sum((most - told).values()) - sum(beyond.values())
            hidden, twice = sum(beyond.values()), shared[uuid, name]
            offered = int(inventory.capacity) - model.used(uuid, name)
            capacity = self._capacity(host, model.providers[uuid].name, name, inventory)
            free = int(capacity) - model.used(uuid, name) - hidden
            if hidden > twice and offered > max(0, free + twice):
                parts = ", ".join(f"{self.name(who)} {n}" for who, n in sorted(beyond.items()))
                return Violation(
                    "what is needed is not offered",
                    f"Placement offers {offered} {name} of {model.providers[uuid].name}, where {free} are "
                    f"free: more is claimed or used than held ({parts})",
                )
            least = min(free, int(inventory.capacity)) - guessed - inventory.allocation_ratio
            if offered < least and host.changed_at < 0:
                return Violation(
                    "what is free is offered",
                    f"Placement offers {offered} {name} of {model.providers[uuid].name}, and {free} are free",
                )
        return None

    def _claims_have_their_places(self, host: Host, rows: Mapping[str, Row]) -> None:
        """A claim of what has no units names providers that have the class: else nothing is reserved.

        Not where it may have either of several places: the migrations hold these.
        """
        for who, row in rows.items():
            if row.state != "claimed" or not self._is_here(host, who, row):
                continue
            for uuid, lost in self._without_inventory(_own(row.allocations)).items():
                if not self._is_one_of_several_alike(host, row, rows):
                    record = self.network.model.providers.get(uuid)
                    where = record.name if record is not None else "a provider that is gone"
                    raise Violation(
                        "a claim follows what moved",
                        f"{self.name(who)} claims {lost} of {where}, which has no such inventory",
                    )

    def _without_inventory(self, allocations: Mapping[str, Amounts]) -> dict[str, list[str]]:
        """{provider: the classes without units of these allocations that it does not have}"""
        providers = self.network.model.providers
        lost = {
            uuid: sorted(
                {"VCPU", "MEMORY_MB"}
                & amounts.keys() - (providers[uuid].inventories.keys() if uuid in providers else set())
            )
            for uuid, amounts in allocations.items()
        }
        return {uuid: names for uuid, names in lost.items() if names}

    def _is_here(self, host: Host, consumer: str, row: Row) -> bool:
        """Whether the claim needs its place here: its instance is not elsewhere, or its guest is here."""
        if self.party(consumer) in host.guests:
            return True
        is_migration = consumer != self.party(consumer)  # its claim is the place to revert to
        return row.state == "claimed" and (is_migration or not self._lives_elsewhere(host, consumer))

    def _is_held_in_part(self, row: Row, rows: Mapping[str, Row]) -> bool:
        """Whether the instance's migration holds a part of the place, as where others narrowed it before.

        The move can still be reverted, and the agent keeps the claim for that. It reserves what the claim has
        beyond that part, as for each row of its book, whichever client took the rest away.
        """
        return [self.party(each) for each in self._holders_of_part(row, rows)] == [row.consumer]

    def _holders_of_part(self, row: Row, rows: Mapping[str, Row]) -> list[str]:
        """The migrations without a claim that hold a part of a claimed place, and not all of it.

        Of several, the source cannot tell which is the instance's: it may reserve what any of them lacks.
        """
        held, place = self.network.holdings(), _own(row.allocations)
        return [
            migration
            for migration, instance in self.party_of.items()
            if migration not in (instance, *rows)
            and row.state == "claimed"
            and (part := _own(held.get(migration, {})))
            and _is_less(part, place)
        ]

    def _lives_elsewhere(self, host: Host, consumer: str) -> bool:
        held = self.network.holdings().get(self.party(consumer), {})
        roots = {self.network.model.providers[uuid].root_uuid for uuid in held} - {POOL}
        return bool(roots) and host.uuid not in roots

    def _moving(self) -> set[str]:
        """The instances of the moves that neither host has ended, or whose end waits for the guest.

        "State `reverting` at the destination, or `confirming` at the source: the guest is still there. The
        agent goes on when the guest has left" (docs/moves.md).
        """
        waiting = {("destination", "reverting"), ("source", "confirming")}
        return {
            str(move["instance"])
            for host in self.hosts.values()
            for move in self.moves(host)
            if move["state"] == "begun"
            or ((move["role"], move["state"]) in waiting and move["instance"] in host.guests)
        }

    def _by_agents(self, consumer: str) -> bool:
        return self.written_at.get(consumer, (0.0, "somebody"))[1] in self.hosts

    def explained(self, host: Host) -> set[str]:
        """The consumers about which an audit may say something: the story itself made them differ."""
        rows, explained = self.rows(host), set(self.disturbed)
        # A migration that its destination forgot is unknown to the source, too, where no claim was moved.
        explained |= {
            consumer
            for name, consumer in self.forgotten
            if name == host.name or self.party(consumer) != consumer
        }
        present = {
            (name, unit)
            for provider in host.described()
            for name, exact in provider.units.items()
            for unit in exact
        }
        for consumer in {*rows, *host.guests}:
            row, guest = rows.get(consumer), host.guests.get(consumer)
            alike = row is not None and guest is not None and guest.runs and _alike(row, guest)
            if not alike or (row is not None and not row.units <= present):
                explained.add(consumer)
        for move in (move for each in self.hosts.values() for move in self.moves(each)):
            if move["state"] not in ("confirmed", "reverted", "deleted"):
                explained |= {str(move["instance"]), str(move["migration"])}
        return explained

    def audited(self, host: Host, findings: Iterable[Any]) -> None:
        """What an audit at rest says must come from the story. Raises Violation.

        So does an "unlinked move" of an instance that left, where several migrations may hold its place
        (docs/audit.md), as where the destination of two moves alike forgot them.
        """
        explained = self.explained(host) | {each.uuid for each in self.hosts.values()}
        rows = self.rows(host)
        alike = {who for who, row in rows.items() if self._is_one_of_several_alike(host, row, rows)}
        for finding in findings:
            if finding.kind == "unlinked move" and finding.subject in alike:
                continue
            if finding.subject in self.names and finding.subject not in explained:
                raise Violation(
                    "an audit at rest finds nothing",
                    f"host {host.name}: {finding.kind}: {self.name(finding.subject)}: {finding.reason}",
                )

    # For people

    def table(self) -> Iterator[str]:
        """All there is, by host and consumer."""
        for host in self.hosts.values():
            for consumer, row in self.rows(host).items():
                amounts = dict(row.allocations)
                yield f"{host.name}: {self.name(consumer)} {row.state} {_units(row.units)} {amounts}"
            for uuid, guest in host.guests.items():
                used = f"{dict(guest.resources)} {guest.units}"
                yield f"{host.name}: guest {self.name(uuid)} {guest.state} {used}"
        for consumer, allocations in self.network.holdings().items():
            yield f"Placement: {self.name(consumer)} {dict(allocations)}"


def _own(allocations: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Without what is in the pool."""
    return {provider: amounts for provider, amounts in allocations.items() if provider != POOL}


def _with_cpus_alike(amounts: Counter[str]) -> Counter[str]:
    """The driver says that VCPU of a guest whose CPUs are pinned are PCPU from now on."""
    alike = Counter(amounts)
    alike["VCPU"] += alike.pop("PCPU", 0)
    return alike


def _alike(row: Row, guest: SimGuest) -> bool:
    return (frozenset(guest.units), Counter(guest.resources)) == (row.units, _sum(row.allocations))


def _largest(one: Mapping[str, Amounts], other: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """The larger of both amounts, for each provider and class."""
    return {
        uuid: dict(Counter(one.get(uuid, {})) | Counter(other.get(uuid, {}))) for uuid in {**one, **other}
    }


def _add(
    column: Column,
    party: str,
    allocations: Mapping[str, Amounts],
    mine: set[str],
) -> None:
    for provider, amounts in allocations.items():
        if provider in mine:
            for name, amount in amounts.items():
                column.setdefault((provider, name), Counter())[party] += amount


def _is_less(one: Mapping[str, Amounts], other: Mapping[str, Amounts]) -> bool:
    """Whether it is a part of the other, and not all of it."""
    return one != other and all(Counter(n) <= Counter(other.get(uuid, {})) for uuid, n in one.items())


def _sum(allocations: Mapping[str, Amounts]) -> Counter[str]:
    total: Counter[str] = Counter()
    for amounts in allocations.values():
        total.update(amounts)
    return total


def _units(units: Iterable[tuple[str, str]]) -> str:
    return " ".join(sorted(unit for _, unit in units)) or "no exact units"
