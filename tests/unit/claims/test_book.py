"""The book against a model that computes everything anew from what was entered, in the most plain way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.host_cells import book_of_cells
from kits.uuids import uuid_of

from agent.claims.attribution import Place
from agent.claims.book import Book, Reading
from agent.claims.claim import Claim, ClaimState, Restriction, claim_of_fit
from agent.claims.fit import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.claims.rows import Row
from agent.driver import CardLayout, CardShape, Guest, GuestState, UsedUnit
from agent.providers.divided_cards import Card
from agent.shapes import Usages
from agent.tree import Inventory, Provider, ProviderTree

ROOT, NIC = uuid_of("host"), uuid_of("nic")
VF, VCPU = "SRIOV_NET_VF", "VCPU"
CONSUMERS = tuple(uuid_of(f"consumer {number}") for number in range(4))
MIGRATION = uuid_of("migration")
EVERYBODY = (*CONSUMERS, MIGRATION)
HOST = ProviderIndex.of(
    ProviderTree(
        [
            Provider(ROOT, "host", None, {VCPU: Inventory(40)}),
            Provider(NIC, "nic", ROOT, {VF: Inventory(4)}),
        ]
    )
)
VFS = ("vf0", "vf1", "vf2", "vf3")
UNITS = {NIC: {VF: VFS}}
SLOTS = ((ROOT, VCPU), (NIC, VF))

Amounts = dict[str, dict[str, int]]


@st.composite
def amounts(draw: st.DrawFn) -> Amounts:
    """Of VCPU and VFs, none of both at times."""
    vcpus, vfs = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    return {**({ROOT: {VCPU: vcpus}} if vcpus else {}), **({NIC: {VF: vfs}} if vfs else {})}


def claim(consumer: str, held: Amounts, vfs: tuple[str, ...] = ()) -> Claim:
    units = {NIC: {VF: vfs}} if vfs else {}
    return Claim(consumer, ClaimState.CLAIMED, ask(consumer, VCPU=1), held, units)


def ask(consumer: str, **resources: int) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup("", resources),))


@dataclass
class Model:
    """What was entered. A class is on one provider only, so that it is plain where a guest uses it."""

    held: dict[str, Amounts] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    guests: dict[str, Guest] = field(default_factory=dict)
    doubts: dict[str, list[dict[str, Amounts]]] = field(default_factory=dict)
    moves: dict[str, str] = field(default_factory=dict)
    found: frozenset[str] = frozenset()

    def groups(self) -> Iterator[set[str]]:
        for consumer in EVERYBODY:
            if consumer not in self.moves.values():
                yield {consumer, self.moves.get(consumer, consumer)}

    def columns(self, group: set[str], slot: tuple[str, str], beside: str = "") -> tuple[int, int, int, int]:
        """Held, claimed, used and the most that writes in doubt may give, of the group's row."""
        uuid, name = slot
        held = {who: self.held.get(who, {}).get(uuid, {}).get(name, 0) for who in group}
        claimed = sum(
            self.claims[who].allocations.get(uuid, {}).get(name, 0) for who in group & self.claims.keys()
        )
        used = 0
        for who in group & self.guests.keys():
            guest = self.guests[who]
            named = [each.unit for each in guest.units if each.resource_class == name]
            if self.counts(guest):
                used += max(
                    sum(self.counted_for(unit, beside) == who for unit in named), guest.resources.get(name, 0)
                )
        doubted = 0
        for who in group:
            writes = [write for row in self.doubts.values() for write in row if who in write]
            doubted += max([held[who], *(write[who].get(uuid, {}).get(name, 0) for write in writes)])
        return sum(held.values()), claimed, used, doubted

    def counts(self, guest: Guest) -> bool:
        """A guest that runs, and one that a new state directory found, until something is claimed for it."""
        return not is_off(guest) or guest.uuid in self.found

    def counted_for(self, unit: str, beside: str = "") -> str:
        """A unit that several have is one: of a claim whose guest is here, or of a guest that uses it.

        `beside`: of the others, where there are some, as this one may not have it.
        """
        users = [
            guest
            for guest in self.guests.values()
            if self.counts(guest) and any(used.unit == unit for used in guest.units)
        ]
        instances = {migration: instance for instance, migration in self.moves.items()}
        owners = {
            instances.get(who, who): claim.state
            for who, claim in self.claims.items()
            if unit in claim.units.get(NIC, {}).get(VF, ())
        }
        standing = {who for who, state in owners.items() if state is ClaimState.CLAIMED}
        if standing & self.guests.keys():
            return min(standing)
        others = [guest for guest in users if guest.uuid != beside]
        if len(others) < len(users):
            runs_alone = all(map(is_off, others)) and not is_off(self.guests[beside])
            if set(owners) == {beside} or (runs_alone and not owners):
                return beside
            users = others or users
        if holding := [
            guest for guest in users if guest.uuid not in self.claims and self.holds_vf(guest.uuid)
        ]:
            users = holding
        who = [guest.uuid for guest in users if not is_off(guest)] or [guest.uuid for guest in users]
        without_claim = [each for each in who if each not in self.claims]
        return min([each for each in who if each in owners] or without_claim or who)

    def holds_vf(self, instance: str) -> bool:
        members = {instance, self.moves.get(instance, instance)}
        return any(self.held.get(who, {}).get(NIC, {}).get(VF, 0) for who in members)

    def unheld(self, group: set[str], slot: tuple[str, str]) -> int:
        """max(claimed, used) - held: of the claims those that stay, or that a guest keeps here."""
        uuid, name = slot
        held, _, used, _ = self.columns(group, slot)
        states = {ClaimState.CLAIMED} | ({ClaimState.RELEASING} if group & self.guests.keys() else set())
        claims = [self.claims[who] for who in group & self.claims.keys()]
        standing = sum(each.allocations.get(uuid, {}).get(name, 0) for each in claims if each.state in states)
        return max(standing, used) - held

    def need(self, group: set[str], slot: tuple[str, str], beside: str = "") -> int:
        return max(self.columns(group, slot, beside))

    def free(self, slot: tuple[str, str], beside: str) -> int:
        """What another group than that of `beside` leaves."""
        provider = HOST.tree[slot[0]]
        others = sum(self.need(group, slot, beside) for group in self.groups() if beside not in group)
        return max(0, provider.inventories[slot[1]].capacity - others)

    def may_have(self, unit: str, consumer: str) -> bool:
        """Whether no other row has the unit. What two guests use stays with the one that claims it."""
        claimed = {who for who, claim in self.claims.items() if unit in claim.units.get(NIC, {}).get(VF, ())}
        having = {
            who: guest.state in (GuestState.SHUTOFF, GuestState.CRASHED)
            for who, guest in self.guests.items()
            if any(used.unit == unit for used in guest.units)
        }
        users = {who for who, idle in having.items() if not idle} or having.keys()
        return claimed <= {consumer} and (users <= {consumer} or consumer in claimed & users)


def is_off(guest: Guest) -> bool:
    return guest.state in (GuestState.SHUTOFF, GuestState.CRASHED)


class World:
    """A book, its model, and a read of Placement under way."""

    def __init__(self) -> None:
        self.book, self.model = Book(), Model()
        self.book.refresh(HOST, {}, UNITS)
        self.reading: Reading | None = None
        self.seen: dict[str, Amounts] = {}
        self.read_later: set[str] = set()

    def claim(self, data: st.DataObject) -> None:
        consumer, what = data.draw(st.sampled_from(EVERYBODY)), data.draw(amounts())
        owned = {
            unit
            for other in self.model.claims.values()
            if other.consumer != consumer
            for *_, unit in other.exact
        }
        free = [unit for unit in VFS if unit not in owned]
        chosen = tuple(free[: what.get(NIC, {}).get(VF, 0)])
        state = data.draw(st.sampled_from(ClaimState))
        self.model.claims[consumer] = claim(consumer, what, chosen).in_state(state)
        if state is ClaimState.CLAIMED:
            self.model.found -= {consumer}
        self.book.put(self.model.claims[consumer])

    def drop(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(EVERYBODY))
        self.model.claims.pop(consumer, None)
        self.book.remove(consumer)

    def write(self, data: st.DataObject) -> None:
        """The agent writes: a read under way is older, whatever it returns."""
        consumer, what = data.draw(st.sampled_from(EVERYBODY)), data.draw(amounts())
        self.model.held[consumer] = what
        self.seen.pop(consumer, None)
        self.book.enter_written(consumer, what)

    def read_one(self, data: st.DataObject) -> None:
        consumer, what = data.draw(st.sampled_from(EVERYBODY)), data.draw(amounts())
        self.model.held[consumer] = what
        self.read_later.add(consumer)
        self.book.enter_held(consumer, what)

    def read_provider(self, data: st.DataObject) -> None:
        uuid, name = data.draw(st.sampled_from(SLOTS))
        holders = data.draw(st.dictionaries(st.sampled_from(EVERYBODY), st.integers(1, 9)))
        self.read_later |= {who for who, held in self.model.held.items() if uuid in held} | holders.keys()
        for consumer in EVERYBODY:
            held = {where: what for where, what in self.model.held.get(consumer, {}).items() if where != uuid}
            self.model.held[consumer] = {
                **held,
                **({uuid: {name: holders[consumer]}} if consumer in holders else {}),
            }
        self.book.observe_provider(uuid, {who: {name: amount} for who, amount in holders.items()})

    def begin_pass(self, data: st.DataObject) -> None:
        if self.reading is None:
            self.reading = self.book.begin_reading()
            self.seen = {consumer: data.draw(amounts()) for consumer in EVERYBODY}
            self.read_later = set()

    def end_pass(self, data: st.DataObject) -> None:
        """All that was read is entered, but what the agent has written since.

        Of what another read has entered that began later, the most of both: either may be newer.
        """
        if self.reading is None:
            return
        kept = data.draw(st.sets(st.sampled_from((ROOT, NIC))))
        stale = {who: data.draw(amounts()) for who in EVERYBODY if who not in self.seen}
        held: dict[str, dict[str, dict[str, int]]] = {}
        for consumer, what in {**self.seen, **stale}.items():
            for uuid, of_provider in what.items():
                if uuid not in kept:
                    held.setdefault(uuid, {})[consumer] = of_provider
        for consumer in self.seen:
            before = self.model.held.get(consumer, {})
            self.model.held[consumer] = {
                uuid: max(
                    (source[uuid] for source in sources if uuid in source), key=lambda n: sum(n.values())
                )
                for uuid in (ROOT, NIC)
                for sources in (self._sources(consumer, before, is_kept=uuid in kept),)
                if any(uuid in source for source in sources)
            }
        self.book.refresh(HOST, held, UNITS, kept=kept, reading=self.reading)
        self.book.end_reading(self.reading)
        self.reading, self.seen = None, {}

    def _sources(self, consumer: str, before: Amounts, *, is_kept: bool) -> tuple[Amounts, ...]:
        """What may be held after the pass; the most of it counts. Each class is on one provider only."""
        if is_kept:
            return (before,)
        return (before, self.seen[consumer]) if consumer in self.read_later else (self.seen[consumer],)

    def see_guests(self, data: st.DataObject) -> None:
        """Two guests may have the same unit, although the book gave it to one of them at most."""
        guests = []
        for consumer in data.draw(st.sets(st.sampled_from(CONSUMERS))):
            unit = data.draw(st.sampled_from((*VFS, None)))
            mine = (UsedUnit(VF, unit, "pci:nic"),) if unit is not None else ()
            state = data.draw(st.sampled_from(GuestState))
            guests.append(Guest(consumer, "guest", state, {VCPU: data.draw(st.integers(0, 9))}, mine))
        self.model.guests = {guest.uuid: guest for guest in guests}
        new = sorted(self.model.guests.keys() - self.model.claims.keys())
        self.model.found = frozenset(data.draw(st.sets(st.sampled_from(new)))) if new else frozenset()
        self.book.observe_guests(guests, self.model.found)

    def doubt(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(CONSUMERS))
        writes = [{consumer: data.draw(amounts())} for _ in range(data.draw(st.integers(0, 2)))]
        if self.model.moves:
            return  # writes in doubt are entered by row, and rows change with the moves
        self.model.doubts[consumer] = writes
        self.book.enter_doubts(consumer, writes)

    def move(self, data: st.DataObject) -> None:
        moves = data.draw(st.sampled_from([{}, {CONSUMERS[0]: MIGRATION}, {CONSUMERS[1]: MIGRATION}]))
        self.model.moves = dict(moves)
        self.book.follow_moves(moves)


STEPS = (
    World.claim,
    World.drop,
    World.write,
    World.read_one,
    World.read_provider,
    World.begin_pass,
    World.end_pass,
    World.see_guests,
    World.doubt,
    World.move,
)


@given(st.data(), st.lists(st.sampled_from(STEPS), max_size=14))
def test_free_is_what_no_column_of_another_row_needs(data: st.DataObject, steps: list) -> None:  # type: ignore[type-arg]
    world = World()
    for step in steps:
        step(world, data)
        book, model = world.book, world.model
        for uuid, name in SLOTS:
            needs = sum(model.need(group, (uuid, name)) for group in model.groups())
            assert book.used.get(uuid, {}).get(name, 0) == needs
            assert book.free(uuid, name, "somebody new") == model.free((uuid, name), "somebody new")
            unheld = sum(max(0, model.unheld(group, (uuid, name))) for group in model.groups())
            assert book.unheld_of_others("somebody new").get(uuid, {}).get(name, 0) == unheld
            for consumer in CONSUMERS:
                alone = consumer not in model.moves
                if alone:
                    assert book.free(uuid, name, consumer) == model.free((uuid, name), consumer)
        assert {who for who in EVERYBODY if book.holds(who)} == {who for who in model.held if model.held[who]}
        others = {who: held for who, held in model.held.items() if who not in model.claims}
        for uuid in (ROOT, NIC):
            assert book.others_on([uuid]) is any(uuid in held for held in others.values())
        for who in EVERYBODY:
            assert book.other_allocations(who) == ({} if who in model.claims else model.held.get(who, {}))
        for group in model.groups():
            instance = next(who for who in group if who not in model.moves.values())
            assert book.unheld().get(instance, {}) == {
                uuid: {name: amount}
                for uuid, name in SLOTS
                if (amount := model.unheld(group, (uuid, name))) > 0
            }


@given(st.data(), st.lists(st.sampled_from(STEPS), max_size=14))
def test_whatever_fits_needs_nothing_that_another_row_needs(data: st.DataObject, steps: list) -> None:  # type: ignore[type-arg]
    """A claim, and an allocation that somebody else wrote and that is taken over."""
    world = World()
    for step in steps:
        step(world, data)
    book, model = world.book, world.model
    consumer = data.draw(st.sampled_from([who for who in CONSUMERS if who not in model.moves]))
    vcpus, vfs = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 2))
    request = ask(consumer, VCPU=vcpus, **({VF: vfs} if vfs else {}))
    guest = model.guests.get(consumer)
    uses = guest is not None and model.counts(guest)
    own_vcpus = guest.resources[VCPU] if guest is not None and uses else 0
    own_vfs = (
        sum(model.counted_for(each.unit, consumer) == consumer for each in guest.units)
        if guest is not None and uses
        else 0
    )
    enough = vcpus <= max(own_vcpus, model.free((ROOT, VCPU), consumer))
    free_vfs = [unit for unit in VFS if model.may_have(unit, consumer)]
    enough = enough and vfs <= max(own_vfs, model.free((NIC, VF), consumer)) and vfs <= len(free_vfs)
    fit = book.fit(request)
    assert fit.fits == enough
    _check_units(fit.units.get(NIC, {}).get(VF, ()), vfs if fit.fits else 0, free_vfs)

    held = {ROOT: {VCPU: vcpus}, **({NIC: {VF: vfs}} if vfs else {})}
    book.enter_held(consumer, held)
    model.held[consumer] = held
    taken_over = book.cover(request, held, exact=True)
    assert taken_over.fits == enough
    chosen = taken_over.units.get(NIC, {}).get(VF, ())
    _check_units(chosen, vfs if taken_over.fits else 0, free_vfs)
    if taken_over.fits:
        before = {slot: book.used.get(slot[0], {}).get(slot[1], 0) for slot in SLOTS}
        book.put(claim(consumer, held, chosen))
        for slot, capacity in zip(SLOTS, (40, 4), strict=True):
            # Its own write in doubt may hold more. That is on top where the claim leaves the unit that its
            # guest shares with another guest to that one.
            own = [write[consumer] for write in model.doubts.get(consumer, ())]
            most_written = max((each.get(slot[0], {}).get(slot[1], 0) for each in own), default=0)
            on_top = max(0, most_written - held.get(slot[0], {}).get(slot[1], 0))
            most = max(capacity + on_top, before[slot])
            assert book.used.get(slot[0], {}).get(slot[1], 0) <= most


def _check_units(chosen: tuple[str, ...], count: int, free: list[str]) -> None:
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= set(free), "a unit has one owner"


def test_a_row_is_the_instance_with_the_migration_of_its_move() -> None:
    book = Book()
    book.refresh(HOST, {ROOT: {MIGRATION: {VCPU: 4}, CONSUMERS[0]: {VCPU: 2}}}, UNITS)
    running = Guest(CONSUMERS[0], "g", GuestState.RUNNING, {VCPU: 5})
    book.observe_guests([running])
    book.put(claim(CONSUMERS[0], {ROOT: {VCPU: 2}}))
    assert book.rows().keys() == {MIGRATION, CONSUMERS[0]}
    assert book.used[ROOT][VCPU] == 4 + 5
    book.follow_moves({CONSUMERS[0]: MIGRATION})
    (row,) = book.rows().values()
    assert row == book.row(MIGRATION) == book.row(CONSUMERS[0])
    assert (row.instance, row.consumers, row.guest) == (CONSUMERS[0], {CONSUMERS[0], MIGRATION}, running)
    assert row.held_amounts == {ROOT: {VCPU: 6}} and row.claimed_amounts == {ROOT: {VCPU: 2}}
    assert row.need == book.need(MIGRATION) == {ROOT: {VCPU: 6}}
    book.follow_moves({})
    assert book.rows().keys() == {MIGRATION, CONSUMERS[0]}
    assert book.used[ROOT][VCPU] == 4 + 5
    book.observe_guests([])
    book.remove(CONSUMERS[0])
    book.observe_provider(ROOT, {})
    assert book.rows() == {} and book.row(CONSUMERS[0]) == Row(CONSUMERS[0])


def test_units_of_a_guest_are_its_own_first_and_go_to_no_other() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(CONSUMERS[0], "g", GuestState.RUNNING, {}, (UsedUnit(VF, "vf2", "pci:nic"),))])
    assert book.fit(ask(CONSUMERS[0], SRIOV_NET_VF=2)).units == {NIC: {VF: ("vf2", "vf0")}}
    assert book.fit(ask(CONSUMERS[1], SRIOV_NET_VF=3)).units == {NIC: {VF: ("vf0", "vf1", "vf3")}}


@pytest.mark.parametrize(("uses", "asked", "fits"), [(30, 30, True), (30, 31, False), (40, 40, True)])
def test_a_guest_that_runs_may_have_what_it_uses_of_an_over_committed_host_and_no_more(
    uses: int, asked: int, *, fits: bool
) -> None:
    """Of 40 CPUs, of which another instance has a claim of 20."""
    book = Book([claim(CONSUMERS[1], {ROOT: {VCPU: 20}})])
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(CONSUMERS[0], "g", GuestState.RUNNING, {VCPU: uses})])
    assert book.fit(ask(CONSUMERS[0], VCPU=asked)).fits is fits


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_unit_that_two_guests_use_is_given_to_neither_and_stays_with_a_claim_of_it(
    order: tuple[int, int],
) -> None:
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    one, other = (CONSUMERS[number] for number in order)
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(who, "g", GuestState.RUNNING, {}, used) for who in CONSUMERS[:2]])
    assert book.fit(ask(one, SRIOV_NET_VF=1)).units == {NIC: {VF: ("vf1",)}}
    assert book.units.owner(VF, "vf0", beside=(one,)) == other
    book.put(claim(one, {NIC: {VF: 1}}, ("vf0",)))
    assert book.fit(ask(one, SRIOV_NET_VF=1)).units == {NIC: {VF: ("vf0",)}}
    assert book.fit(ask(other, SRIOV_NET_VF=1)).units == {NIC: {VF: ("vf1",)}}
    assert book.units.owner(VF, "vf0", beside=(one,)) is None
    assert book.units.owner(VF, "vf0", beside=(other,)) == one


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_guest_that_runs_may_have_its_unit_though_the_definition_of_another_names_it(
    order: tuple[int, int],
) -> None:
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    runs, idle = (CONSUMERS[number] for number in order)
    guests = {
        runs: Guest(runs, "g", GuestState.RUNNING, {}, used),
        idle: Guest(idle, "g", GuestState.SHUTOFF, {}, used),
    }
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([guests[who] for who in CONSUMERS[:2]])
    assert book.fit(ask(runs, SRIOV_NET_VF=1)).units == {NIC: {VF: ("vf0",)}}
    assert book.fit(ask(idle, SRIOV_NET_VF=1)).units == {NIC: {VF: ("vf1",)}}


RUNNING, OFF = GuestState.RUNNING, GuestState.SHUTOFF
STOP, TAKE = "stop all but one of these guests", "take it from one of them"


@pytest.mark.parametrize(
    ("states", "claimed", "advice"),
    [
        ((RUNNING, RUNNING), False, (STOP, STOP)),
        ((RUNNING, OFF), False, ("", TAKE)),
        ((OFF, OFF), False, (TAKE, TAKE)),
        ((RUNNING, RUNNING), True, ("", TAKE)),
    ],
    ids=["both run", "one runs", "neither runs", "one is claimed"],
)
def test_what_to_do_about_a_unit_that_two_guests_name(
    states: tuple[GuestState, ...], claimed: bool, advice: tuple[str, ...]
) -> None:
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    book = Book([claim(CONSUMERS[0], {NIC: {VF: 1}}, ("vf0",))] if claimed else [])
    book.refresh(HOST, {}, UNITS)
    guests = zip(CONSUMERS, states, strict=False)
    book.observe_guests([Guest(who, "g", state, {}, used) for who, state in guests])
    told = book.survey(Place(HOST, UNITS)).remedies
    for who, words in zip(CONSUMERS, advice, strict=False):
        assert words in told.get(who, "") and (who in told) == bool(words)


def test_a_unit_that_is_offered_elsewhere_by_now_is_still_its_owners() -> None:
    """The driver reports it on another provider before a reshape has moved the claim."""
    book = Book()
    card = Provider(uuid_of("card"), "card", ROOT, {VF: Inventory(4)})
    moved = ProviderIndex.of(HOST.tree.with_provider(card))
    book.put(claim(CONSUMERS[0], {NIC: {VF: 1}}, ("vf0",)))
    book.refresh(moved, {NIC: {CONSUMERS[0]: {VF: 1}}}, {card.uuid: {VF: VFS}})
    fit = book.fit(ask(CONSUMERS[1], SRIOV_NET_VF=3))
    assert fit.units == {card.uuid: {VF: ("vf1", "vf2", "vf3")}}
    assert book.units.owner(VF, "vf0") == CONSUMERS[0]


@pytest.mark.parametrize("whole", [False, True])
def test_a_read_that_began_earlier_takes_nothing_from_what_a_later_one_found(whole: bool) -> None:
    """It may have been answered before another client wrote; nothing says which of the two is newer."""
    book = Book()
    book.refresh(HOST, {}, UNITS)
    earlier, later = book.begin_reading(), book.begin_reading()
    book.enter_held(CONSUMERS[0], {ROOT: {VCPU: 2}}, later)
    book.end_reading(later)
    if whole:
        book.refresh(HOST, {ROOT: {}}, UNITS, reading=earlier)
    else:
        book.observe_provider(ROOT, {}, earlier)
    book.end_reading(earlier)
    assert book.held() == {ROOT: {CONSUMERS[0]: {VCPU: 2}}}
    assert book.doubtful == {ROOT}, "it is read again"
    book.refresh(HOST, {ROOT: {}}, UNITS, reading=book.begin_reading())
    assert book.held() == {} and not book.doubtful


def test_what_contradicts_a_write_is_read_again() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    reading = book.begin_reading()
    book.enter_written(CONSUMERS[0], {ROOT: {VCPU: 2}})
    book.refresh(HOST, {ROOT: {CONSUMERS[0]: {VCPU: 9}}}, UNITS, reading=reading)
    book.end_reading(reading)
    assert book.held() == {ROOT: {CONSUMERS[0]: {VCPU: 2}}}
    assert book.doubtful == {ROOT}
    book.refresh(HOST, {ROOT: {CONSUMERS[0]: {VCPU: 9}}}, UNITS, reading=book.begin_reading())
    assert book.held() == {ROOT: {CONSUMERS[0]: {VCPU: 9}}}, "another service wrote it since"
    assert not book.doubtful


def test_a_survey_counts_as_on_another_host_and_changes_nothing() -> None:
    book = Book([claim(CONSUMERS[1], {ROOT: {VCPU: 3}})])
    book.observe_guests([Guest(CONSUMERS[0], "g", GuestState.RUNNING, {VCPU: 5})])
    assert book.unclaimed() == {}, "no provider of the book has the class"
    survey = book.survey(Place(HOST, UNITS))
    assert survey.used == {ROOT: {VCPU: 8}} and survey.unclaimed == {CONSUMERS[0]: {ROOT: {VCPU: 5}}}
    assert book.unclaimed() == {} and book.host.root is None


@pytest.mark.parametrize(("used", "beyond_the_claim"), [(2, 0), (3, 0), (5, 2)])
def test_what_a_claim_grows_by_is_unheld_once_it_is_written(used: int, beyond_the_claim: int) -> None:
    """Placement would refuse the claim's own write beside a reservation of that."""
    book, consumer = Book(), CONSUMERS[0]
    book.refresh(HOST, {ROOT: {consumer: {VCPU: 2}}}, UNITS)
    book.observe_guests([Guest(consumer, "guest", GuestState.RUNNING, {VCPU: used})])
    book.grow(consumer, on=True)
    book.put(claim(consumer, {ROOT: {VCPU: 3}}))
    unheld = {consumer: {ROOT: {VCPU: beyond_the_claim}}} if beyond_the_claim else {}
    assert book.unheld() == unheld
    book.grow(consumer, on=False)
    assert book.unheld() == {consumer: {ROOT: {VCPU: max(3, used) - 2}}}


def test_a_claim_that_placement_does_not_hold_is_suspect() -> None:
    book = Book([claim(consumer, {ROOT: {VCPU: 2}}) for consumer in CONSUMERS[:2]])
    book.refresh(HOST, {ROOT: {CONSUMERS[0]: {VCPU: 2}}}, UNITS)
    assert book.suspects == {CONSUMERS[1]}


SECOND_NIC = uuid_of("second nic")
WITH_SECOND_NIC: Amounts = {ROOT: {VCPU: 2}, SECOND_NIC: {VF: 1}}


@pytest.mark.parametrize(
    ("place", "other_place", "other_left", "may_hold"),
    [
        (WITH_SECOND_NIC, WITH_SECOND_NIC, True, False),
        (WITH_SECOND_NIC, {ROOT: {VCPU: 3}, SECOND_NIC: {VF: 1}}, True, True),
        (WITH_SECOND_NIC, WITH_SECOND_NIC, False, True),
        ({ROOT: {VCPU: 2}}, {ROOT: {VCPU: 2}}, True, True),
    ],
    ids=["another's place", "a free place", "another's, which holds it", "a part of both"],
)
def test_a_migration_with_the_same_cpus_holds_no_part_of_a_claim_where_it_has_the_place_of_another(
    place: Amounts, other_place: Amounts, other_left: bool, may_hold: bool
) -> None:
    tree = ProviderTree(
        [
            Provider(ROOT, "host", None, {VCPU: Inventory(40)}),
            Provider(NIC, "nic", ROOT, {VF: Inventory(4)}),
            Provider(SECOND_NIC, "second nic", ROOT, {VF: Inventory(4)}),
        ]
    )
    left, other = claim(CONSUMERS[0], {ROOT: {VCPU: 2}, NIC: {VF: 1}}, ("vf0",)), CONSUMERS[1]
    held = {MIGRATION: place, **({} if other_left else {other: other_place})}
    book = Book([left, claim(other, other_place)])
    book.refresh(
        ProviderIndex.of(tree),
        {
            uuid: {who: each[uuid] for who, each in held.items() if uuid in each}
            for uuid in (ROOT, SECOND_NIC)
        },
        {NIC: {VF: VFS}, SECOND_NIC: {VF: ("vf4", "vf5", "vf6", "vf7")}},
    )
    assert book.possible_holders(left) == ((MIGRATION,) if may_hold else ())


def test_a_refusal_names_who_has_the_most_first() -> None:
    held = {uuid_of(f"instance {number}"): {NIC: {VF: 1 + number % 2}} for number in range(7)}
    vfs = tuple(f"vf{number}" for number in range(10))
    free = iter(vfs)
    book = Book(
        [
            claim(consumer, amounts, tuple(next(free) for _ in range(amounts[NIC][VF])))
            for consumer, amounts in held.items()
        ]
    )
    tree = ProviderTree(
        [
            Provider(ROOT, "host", None, {VCPU: Inventory(8)}),
            Provider(NIC, "nic", ROOT, {VF: Inventory(len(vfs))}),
        ]
    )
    book.refresh(
        ProviderIndex.of(tree), {NIC: {who: each[NIC] for who, each in held.items()}}, {NIC: {VF: vfs}}
    )
    (shortfall,) = book.fit(ask(CONSUMERS[0], SRIOV_NET_VF=1)).shortfalls
    most = sorted(who for who, amounts in held.items() if amounts[NIC][VF] == 2)
    assert shortfall.reason.endswith(f": {', '.join(f'{who} has 2' for who in most)} and 4 more")


def test_who_was_beside_a_claim_stays_known_when_its_instance_has_left() -> None:
    """Who was listed with it on one provider of the host, as they were then; not in a pool."""
    instance, stranger, late = CONSUMERS[:3]
    pool = Provider(uuid_of("pool"), "pool", None, {"DISK_GB": Inventory(100)})
    host = ProviderIndex.of(ProviderTree([*HOST.tree, pool]), ROOT)
    book = Book([claim(instance, {ROOT: {VCPU: 2}})])
    disk = {pool.uuid: {instance: {"DISK_GB": 1}, late: {"DISK_GB": 1}}}
    book.refresh(
        host, {ROOT: {instance: {VCPU: 2}, stranger: {VCPU: 3}}, NIC: {late: {VF: 1}}, **disk}, UNITS
    )
    assert book.unclaimed_beside(instance) == {stranger: {ROOT: {VCPU: 3}}}
    assert book.unclaimed_beside(stranger) == {}, "it has no claim"
    assert (book.beside(instance), book.beside(stranger)) == ({stranger}, set())
    book.observe_provider(ROOT, {late: {VCPU: 2}, stranger: {VCPU: 1}})
    assert book.unclaimed_beside(instance) == {stranger: {ROOT: {VCPU: 3}}}
    book.observe_provider(ROOT, {instance: {VCPU: 2}, late: {VCPU: 2}})
    assert book.unclaimed_beside(instance) == {late: {ROOT: {VCPU: 2}}}
    book.put(claim(instance, {ROOT: {VCPU: 1}}))
    assert book.unclaimed_beside(instance) == {late: {ROOT: {VCPU: 2}}}
    book.remove(instance)
    assert book.unclaimed_beside(instance) == {}


LEFT, OTHER = CONSUMERS[:2]
FIRST, SECOND = MIGRATION, uuid_of("second migration")
MEMORY = "MEMORY_MB"
WITH_MEMORY = ProviderIndex.of(
    HOST.tree.with_provider(Provider(ROOT, "host", None, {VCPU: Inventory(40), MEMORY: Inventory(4096)})),
    ROOT,
)
PLACE: Amounts = {ROOT: {VCPU: 2, MEMORY: 64}, NIC: {VF: 1}}
CPUS_ALONE: Amounts = {ROOT: {VCPU: 2, MEMORY: 64}}
LESS_MEMORY: Amounts = {ROOT: {VCPU: 2}, NIC: {VF: 1}}


def the_guest(instance: str, *, state: GuestState = GuestState.RUNNING) -> Guest:
    """It uses what PLACE has."""
    return Guest(instance, "g", state, {VCPU: 2, MEMORY: 64}, (UsedUnit(VF, "vf0", "pci:nic"),))


@pytest.mark.parametrize(
    ("held", "stays", "away", "unheld"),
    [
        ({FIRST: PLACE}, False, "", {}),
        ({FIRST: PLACE}, True, "", {}),
        ({FIRST: CPUS_ALONE}, False, FIRST, {NIC: {VF: 1}}),
        ({FIRST: CPUS_ALONE}, True, FIRST, {NIC: {VF: 1}}),
        ({FIRST: CPUS_ALONE, SECOND: LESS_MEMORY}, False, "", {ROOT: {MEMORY: 64}, NIC: {VF: 1}}),
        ({FIRST: PLACE, SECOND: CPUS_ALONE}, False, "", {}),
        ({SECOND: PLACE, FIRST: CPUS_ALONE}, False, "", {}),
        ({FIRST: {ROOT: {VCPU: 2, MEMORY: 64}, NIC: {VF: 2}}}, False, "", {}),
        ({FIRST: LESS_MEMORY}, True, None, PLACE),
        ({FIRST: {ROOT: {VCPU: 3, MEMORY: 64}}}, True, None, PLACE),
        ({LEFT: CPUS_ALONE}, False, "", {}),
        ({LEFT: {NIC: {VF: 1}}, FIRST: CPUS_ALONE, SECOND: {ROOT: {VCPU: 2}}}, False, "", {}),
        ({}, False, "", {}),
        ({}, True, None, PLACE),
    ],
    ids=[
        "its place",
        "its place, and its guest is here",
        "a part of it",
        "all but a device, and its guest is here",
        "one of two that hold a part",
        "its place and a part",
        "its place after a part",
        "more than its place",
        "its devices, and its guest is here",
        "other CPUs, and its guest is here",
        "what it holds itself",
        "the rest of its place",
        "nothing",
        "nothing, and its guest is here",
    ],
)
def test_what_of_a_departed_instances_place_its_migration_does_not_hold_is_unheld(
    held: dict[str, Amounts], stays: bool, away: str | None, unheld: Amounts
) -> None:
    """Without its guest nothing is, unless a migration holds a part; while its guest is here all of it is."""
    book = Book([claim(LEFT, PLACE, ("vf0",))])
    book.refresh(WITH_MEMORY, {}, UNITS)
    for consumer, allocations in held.items():
        book.enter_held(consumer, allocations)
    book.observe_guests([the_guest(LEFT)] if stays else [])
    departed = {LEFT: [each for each in (FIRST, SECOND) if each in held]}
    book.note_departed(departed)
    assert book.departed() == departed
    assert book.away() == ({} if away is None else {LEFT: away})
    assert book.unheld() == ({LEFT: unheld} if unheld else {})


def test_a_migration_is_that_of_one_departed_instance_first_of_one_whose_guest_has_gone() -> None:
    """Both have the same place, so one migration leaves all of the other's to be reserved."""
    second = {**PLACE, NIC: {VF: 1}}
    for gone, here in ((LEFT, OTHER), (OTHER, LEFT)):
        book = Book([claim(gone, PLACE, ("vf1",)), claim(here, second, ("vf0",))])
        book.refresh(WITH_MEMORY, {}, UNITS)
        book.enter_held(FIRST, PLACE)
        book.observe_guests([the_guest(here)])
        book.note_departed({LEFT: [FIRST], OTHER: [FIRST]})
        assert book.unheld() == {here: PLACE}
        assert book.away() == {gone: ""}


@pytest.mark.parametrize(("moving", "reserved"), [(False, False), (True, True)])
def test_a_departed_instance_whose_move_has_ended_has_no_other_migration(
    moving: bool, reserved: bool
) -> None:
    """Its claim is being released, and its guest is to leave."""
    book = Book([claim(LEFT, PLACE, ("vf0",)).in_state(ClaimState.RELEASING)])
    book.refresh(WITH_MEMORY, {}, UNITS)
    book.observe_guests([the_guest(LEFT)])
    book.enter_held(FIRST, PLACE)
    if moving:
        book.follow_moves({LEFT: SECOND})
    book.note_departed({LEFT: [FIRST]})
    assert book.unheld() == ({LEFT: PLACE} if reserved else {})


def test_strangers_beside_a_reservation_have_such_amounts_and_neither_claim_nor_guest() -> None:
    book = Book([claim(LEFT, CPUS_ALONE)])
    book.refresh(WITH_MEMORY, {}, UNITS)
    stranger, guest, device, migration = (uuid_of(name) for name in ("stranger", "guest", "device", "moving"))
    for consumer in (stranger, guest, migration):
        book.enter_held(consumer, {ROOT: {VCPU: 1}})
    book.enter_held(device, {NIC: {VF: 1}})
    book.follow_moves({guest: migration})
    book.observe_guests([Guest(guest, "g", GuestState.RUNNING, {VCPU: 1})])
    assert book.strangers_beside() == {LEFT: [stranger]}


@pytest.mark.parametrize("whole", [False, True])
def test_a_whole_read_that_began_later_counts_beside_one_that_began_earlier(whole: bool) -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    earlier, later = book.begin_reading(), book.begin_reading()
    book.refresh(HOST, {ROOT: {LEFT: {VCPU: 2}}}, UNITS, reading=later)
    book.end_reading(later)
    if whole:
        book.refresh(HOST, {ROOT: {}}, UNITS, reading=earlier)
    else:
        book.enter_held(LEFT, {}, earlier)
    assert book.held() == {ROOT: {LEFT: {VCPU: 2}}} and book.doubtful == {ROOT}


@pytest.mark.parametrize("holder", [LEFT, OTHER])
def test_a_unit_that_two_guests_use_counts_for_the_one_that_placement_holds_it_for(holder: str) -> None:
    """At once, when that is read or the claim of the unit ends; and not where that has a claim of another."""
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(who, "g", GuestState.RUNNING, {}, used) for who in (LEFT, OTHER)])
    book.enter_held(holder, {NIC: {VF: 1}})
    assert book.used[NIC][VF] == 1
    book.enter_held(holder, {})
    book.refresh(HOST, {NIC: {holder: {VF: 1}}}, UNITS)
    assert book.used[NIC][VF] == 1
    for who in (LEFT, OTHER):
        book.put(claim(who, {NIC: {VF: 1}}, ("vf0",)))
        assert book.used[NIC][VF] == (1 if who == holder else 2)
        book.remove(who)
        assert book.used[NIC][VF] == 1
    book.put(claim(holder, {NIC: {VF: 1}}, ("vf1",)))
    assert book.used[NIC][VF] == 2, "the claim stands for vf1, and the other guest uses vf0"
    book.remove(holder)
    book.refresh(HOST, {NIC: {MIGRATION: {VF: 1}}}, UNITS)
    assert book.used[NIC][VF] == 2
    book.follow_moves({holder: MIGRATION})
    assert book.used[NIC][VF] == 1


def test_a_refusal_names_the_unit_of_the_domain_that_another_guest_has() -> None:
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(who, "g", GuestState.RUNNING, {}, used) for who in (LEFT, OTHER)])
    (shortfall,) = book.fit(ask(LEFT, SRIOV_NET_VF=4)).shortfalls
    assert shortfall.reason.endswith(
        f"; vf0 of its domain belongs to g ({OTHER}) as well: take it from one of them"
    )
    (cpus,) = book.fit(ask(LEFT, VCPU=99)).shortfalls
    assert cpus.reason == "only 40 of 40 are free"


def test_of_two_migrations_the_one_with_just_the_place_is_taken_before_one_that_holds_as_much() -> None:
    """The other has the device on another card, and the place itself would be offered."""
    card = Provider(SECOND_NIC, "second nic", ROOT, {VF: Inventory(4)})
    book = Book([claim(LEFT, PLACE, ("vf0",))])
    book.refresh(ProviderIndex.of(WITH_MEMORY.tree.with_provider(card), ROOT), {}, UNITS)
    for consumer, nic in ((FIRST, SECOND_NIC), (SECOND, NIC)):
        book.enter_held(consumer, {**CPUS_ALONE, nic: {VF: 1}})
    for candidates in ([FIRST, SECOND], [SECOND, FIRST]):
        book.note_departed({LEFT: candidates})
        assert book.unheld() == {}
    book.note_departed({LEFT: [FIRST]})
    assert book.unheld() == {LEFT: {NIC: {VF: 1}}} and book.away() == {LEFT: ""}


@pytest.mark.parametrize(("disk", "lacking"), [(60, {}), (20, {ROOT: {"DISK_GB": 20}, NIC: {VF: 1}})])
def test_a_migration_with_less_disk_than_a_guest_uses_is_not_the_one_that_holds_as_much(
    disk: int, lacking: Usages
) -> None:
    """A driver may see less disk than the guest has, and never more: it may be the other one's, too."""
    inventories = {**WITH_MEMORY.tree[ROOT].inventories, "DISK_GB": Inventory(100)}
    root = replace(WITH_MEMORY.tree[ROOT], inventories=inventories)
    book = Book()
    book.refresh(ProviderIndex.of(WITH_MEMORY.tree.with_provider(root), ROOT), {}, UNITS)
    uses = {VCPU: 2, MEMORY: 64, "DISK_GB": 40, VF: 1}
    book.observe_guests([Guest(LEFT, "g", GuestState.RUNNING, uses, (UsedUnit(VF, "vf0", "pci:nic"),))])
    book.enter_held(FIRST, {ROOT: {**PLACE[ROOT], "DISK_GB": disk}, NIC: {VF: 1}})
    book.enter_held(SECOND, {ROOT: {**PLACE[ROOT], "DISK_GB": 40}})
    for candidates in ([FIRST, SECOND], [SECOND, FIRST]):
        book.note_departed({LEFT: candidates})
        assert book.unheld().get(LEFT, {}) == lacking


@pytest.mark.parametrize(("uses", "told"), [(2, False), (3, True)])
def test_what_to_do_where_no_claim_for_a_guest_fits_beside_those_of_others(uses: int, told: bool) -> None:
    book = Book([claim(OTHER, {ROOT: {VCPU: 38}})])
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(LEFT, "g", GuestState.RUNNING, {VCPU: uses})])
    remedies = book.survey(Place(HOST, UNITS)).remedies
    clause = "No claim for it fits beside what others have: 41 VCPU of host are needed, of 40."
    assert remedies.keys() == ({LEFT} if told else set())
    assert all(remedy.startswith(clause) for remedy in remedies.values())


def test_a_claim_in_place_of_an_earlier_one_has_its_own_units_alone() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    for unit in ("vf0", "vf1"):
        book.put(claim(LEFT, {NIC: {VF: 1}}, (unit,)))
    assert [book.units.owner(VF, unit) for unit in ("vf0", "vf1")] == [None, LEFT]


def test_what_a_consumer_has_of_one_class_frees_nothing_of_another() -> None:
    book = Book([claim(LEFT, {ROOT: {VCPU: 2}}), claim(OTHER, {ROOT: {MEMORY: 4096}})])
    book.refresh(WITH_MEMORY, {}, UNITS)
    assert (book.free(ROOT, VCPU, LEFT), book.free(ROOT, MEMORY, LEFT)) == (40, 0)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({ROOT: {VCPU: 30}}, None),
        ({ROOT: {VCPU: 31}}, "its guest uses it already"),
        ({NIC: {VF: 2}}, None),
        ({NIC: {VF: 3}}, "max_unit is 2"),
    ],
)
def test_a_claim_grows_into_what_is_free_and_no_amount_that_it_has_is_in_its_way(
    after: Amounts, reason: str | None
) -> None:
    """The host is over-committed: others have 20 of 40 CPUs beside its own 30."""
    nic = Provider(NIC, "nic", ROOT, {VF: Inventory(4, max_unit=2)})
    before = claim(LEFT, {ROOT: {VCPU: 30}, NIC: {VF: 1}})
    book = Book([before, claim(OTHER, {ROOT: {VCPU: 20}})])
    book.refresh(ProviderIndex.of(HOST.tree.with_provider(nic), ROOT), {}, UNITS)
    found = [each.reason for each in book.growth_shortfalls(before, claim(LEFT, after))]
    assert found == ([reason] if reason else [])


def test_a_move_on_one_host_leaves_the_data_where_it_is() -> None:
    """On the pool that the instance holds, although the host has disks of its own, which come first."""
    rack = frozenset({"rack"})
    pool = Provider(
        uuid_of("pool"),
        "pool",
        None,
        {"DISK_GB": Inventory(100)},
        frozenset({"MISC_SHARES_VIA_AGGREGATE"}),
        rack,
    )
    root = Provider(ROOT, "host", None, {VCPU: Inventory(4), "DISK_GB": Inventory(100)}, aggregates=rack)
    held = {ROOT: {VCPU: 1}, pool.uuid: {"DISK_GB": 10}}
    book = Book([claim(LEFT, held)])
    book.refresh(ProviderIndex.of(ProviderTree([root, pool]), ROOT), {}, {})
    book.enter_held(LEFT, held)
    request = ask(LEFT, VCPU=2, DISK_GB=10)
    assert book.fit_move(request, MIGRATION, held).allocations == {
        ROOT: {VCPU: 2},
        pool.uuid: {"DISK_GB": 10},
    }
    assert book.fit(ask(OTHER, VCPU=2, DISK_GB=10)).allocations == {ROOT: {VCPU: 2, "DISK_GB": 10}}
    refused = book.fit_move(ask(LEFT, VCPU=4, DISK_GB=10), MIGRATION, held)
    assert [each.reason for each in refused.shortfalls] == ["only 3 of 4 are free"]


def test_the_holders_of_what_is_not_free_are_named_on_the_parts_of_the_host_alone() -> None:
    """On the root all guests are, and what no inventory could give has no holder."""
    vfs = claim(OTHER, {ROOT: {VCPU: 30}, NIC: {VF: 2}}, ("vf0", "vf1"))
    book = Book([vfs])
    book.refresh(HOST, {}, UNITS)
    reasons = {
        name: [each.reason for each in book.fit(ask(LEFT, **{name: amount})).shortfalls]
        for name, amount in ((VCPU, 11), (VF, 3))
    }
    assert reasons == {
        VCPU: ["only 10 of 40 are free"],
        VF: [f"only 2 of 4 are free: {OTHER} has 2"],
    }
    nic = Provider(NIC, "nic", ROOT, {VF: Inventory(4, max_unit=1)})
    book.refresh(ProviderIndex.of(HOST.tree.with_provider(nic), ROOT), {}, UNITS)
    (shortfall,) = book.fit(ask(LEFT, SRIOV_NET_VF=2)).shortfalls
    assert shortfall.reason == "max_unit is 1"
    (taken,) = book.unit_shortfalls(LEFT, {NIC: {VF: ("vf0", "vf2")}})
    assert (taken.asked, taken.free, taken.provider) == (1, 0, "nic")
    assert taken.reason == f"vf0 belongs to {OTHER}"


@pytest.mark.parametrize(("others", "free"), [(17, 3), (18, 2), (25, 0)])
def test_what_is_held_is_kept_on_a_provider_that_is_reserved_whole_as_far_as_others_leave_it(
    others: int, free: int
) -> None:
    """A reservation of all keeps new consumers out, and not those that hold; the ratio applies to them."""
    root = Provider(ROOT, "host", None, {VCPU: Inventory(10, reserved=10, allocation_ratio=2.0)})
    book = Book([claim(OTHER, {ROOT: {VCPU: others}})])
    book.refresh(ProviderIndex.of(ProviderTree([root]), ROOT), {}, {})
    held = {ROOT: {VCPU: 3}}
    book.enter_held(LEFT, held)
    found = book.cover(ask(LEFT, VCPU=3), held, exact=True)
    reasons = [each.reason for each in found.shortfalls]
    assert (found.fits, reasons) == (free >= 3, [] if free >= 3 else [f"other consumers need all but {free}"])


GPU, SMALL, LARGE = uuid_of("gpu"), "CUSTOM_SMALL", "CUSTOM_LARGE"
SLOTS_OF = {"s0": {0}, "s1": {1}, "s2": {2}, "s3": {3}, "l0": {0, 1}, "l2": {2, 3}}
"""{unit: the slots of the card that it takes}"""
IN_SIZES = {SMALL: ("s0", "s1", "s2", "s3"), LARGE: ("l0", "l2")}
DIVIDED = Card.of(
    CardLayout(
        4,
        {},
        {
            name: CardShape(size, {unit: min(SLOTS_OF[unit]) for unit in IN_SIZES[name]})
            for name, size in ((SMALL, 1), (LARGE, 2))
        },
    )
)
WANTED = st.tuples(st.integers(0, 3), st.integers(0, 2)).filter(any)


def ways(taken: set[int], wanted: tuple[int, int]) -> bool:
    """Whether so many small and large parts fit into the slots that are left: every way is tried."""
    small, large = wanted
    return any(
        len(slots) == small + 2 * large and not slots & taken
        for units in combinations(SLOTS_OF, small + large)
        if sum(unit in IN_SIZES[LARGE] for unit in units) == large
        for slots in (frozenset[int]().union(*(SLOTS_OF[unit] for unit in units)),)
    )


@given(
    st.lists(st.tuples(st.sampled_from(CONSUMERS[:3]), st.none() | WANTED), max_size=6),
    st.none() | st.sampled_from(sorted(SLOTS_OF)),
    WANTED,
)
def test_parts_of_a_card_are_where_no_other_part_is(
    steps: list[tuple[str, tuple[int, int] | None]], used: str | None, wanted: tuple[int, int]
) -> None:
    """Claims come and go, and a guest without a claim uses a part: what fits beside them is found."""
    card = Provider(GPU, "gpu", ROOT, {SMALL: Inventory(4), LARGE: Inventory(2)})
    book, stranger = Book(), CONSUMERS[3]
    book.units.cards = {GPU: DIVIDED}
    book.refresh(ProviderIndex.of(HOST.tree.with_provider(card), ROOT), {}, {**UNITS, GPU: IN_SIZES})
    if used is not None:
        name = SMALL if used in IN_SIZES[SMALL] else LARGE
        book.observe_guests([Guest(stranger, "g", GuestState.RUNNING, {}, (UsedUnit(name, used, "gpu"),))])

    def taken(beside: str = "") -> set[int]:
        has = {unit for who, claim in book.claims.items() if who != beside for *_, unit in claim.exact}
        return set[int]().union(*(SLOTS_OF[unit] for unit in (*has, *({used} - {None}))))

    for consumer, asked in (*steps, (MIGRATION, wanted)):
        if asked is None:
            book.remove(consumer)
            continue
        small, large = asked
        request = ask(
            consumer, VCPU=1, **({SMALL: small} if small else {}), **({LARGE: large} if large else {})
        )
        fit = book.fit(request)
        assert fit.fits is ways(taken(consumer), asked)
        if fit.fits:
            made = claim_of_fit(request, fit, ClaimState.CLAIMED)
            units = [unit for *_, unit in made.exact]
            assert sum(unit in IN_SIZES[LARGE] for unit in units) == large and len(units) == small + large
            slots = [slot for unit in units for slot in SLOTS_OF[unit]]
            assert len(slots) == len(set(slots)) and not {*slots} & taken(consumer)
            book.put(made)
    left = {
        SMALL: max(n for n in range(5) if not n or ways(taken(), (n, 0))),
        LARGE: max(n for n in range(3) if not n or ways(taken(), (0, n))),
    }
    assert book.left_on_cards({GPU: DIVIDED}, book.offered) == {GPU: left}
    assert book.left_on_cards({}, book.offered) == {}


def two_cards() -> Book:
    book = Book()
    tree = HOST.tree
    for uuid, name in ((GPU, "gpu"), (SECOND_NIC, "gpu2")):
        tree = tree.with_provider(Provider(uuid, name, ROOT, {SMALL: Inventory(4), LARGE: Inventory(2)}))
    book.units.cards = {GPU: DIVIDED, SECOND_NIC: DIVIDED}
    book.refresh(ProviderIndex.of(tree, ROOT), {}, {GPU: IN_SIZES, SECOND_NIC: IN_SIZES})
    return book


def test_a_card_of_which_nothing_is_taken_has_no_units_in_a_claim() -> None:
    assert two_cards().fit(ask(LEFT, CUSTOM_SMALL=1)).units == {GPU: {SMALL: ("s3",)}}


def test_what_is_held_without_a_place_on_its_card_is_refused() -> None:
    """Another service wrote it: no parts of the card are that large together."""
    book, held = two_cards(), {GPU: {SMALL: 3, LARGE: 1}}
    book.enter_held(LEFT, held)
    found = book.cover(ask(LEFT, CUSTOM_SMALL=1), held, exact=True)
    assert not found.fits and found.allocations == {}
    (shortfall,) = found.shortfalls
    assert shortfall.reason == "the card has no place for all of it beside what is on it"


@pytest.mark.parametrize(
    ("unit", "consumer", "gives"),
    [
        ("s0", None, True),
        ("s0", OTHER, False),
        ("s0", LEFT, True),
        ("gone", None, False),
        ("gone", LEFT, True),
    ],
)
def test_a_unit_whose_class_has_another_name_now_keeps_others_from_its_card_until_the_next_pass(
    unit: str, consumer: str | None, gives: bool
) -> None:
    """A pass, which reads the card for no consumer, follows the name; a unit that is gone has none."""
    units = two_cards().units
    units.claim(Claim(LEFT, ClaimState.CLAIMED, ask(LEFT), {}, {GPU: {"CUSTOM_OLD": (unit,)}}), LEFT)
    left = units.card_stock(GPU, DIVIDED, {}, consumer).left
    assert left == ({SMALL: 4, LARGE: 2} if gives else {SMALL: 0, LARGE: 0})
    assert units.card_stock(SECOND_NIC, DIVIDED, {}, consumer).left == {SMALL: 4, LARGE: 2}


@pytest.mark.parametrize("asking", [LEFT, OTHER])
def test_a_unit_that_two_guests_use_is_not_free_to_either_beside_what_others_have(asking: str) -> None:
    used = (UsedUnit(VF, "vf0", "pci:nic"),)
    book = Book([claim(CONSUMERS[2], {NIC: {VF: 3}}, ("vf1", "vf2", "vf3"))])
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(who, "g", GuestState.RUNNING, {}, used) for who in (LEFT, OTHER)])
    (shortfall,) = book.fit(ask(asking, SRIOV_NET_VF=1)).shortfalls
    assert (shortfall.free, shortfall.reason.split(":")[0]) == (0, "only 0 of 4 are free")


EITHER, OR_ELSE, WHOLE = "CUSTOM_A", "CUSTOM_B", "CUSTOM_WHOLE"
PARTS = ("u0", "u1", "u2")
IN_WAYS = {EITHER: PARTS, OR_ELSE: PARTS, WHOLE: ("whole",)}
OF_WAYS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)).filter(any)


@example([], (EITHER, "u0"), OFF, (1, 2, 0))
@given(
    st.lists(st.tuples(st.sampled_from(CONSUMERS[:3]), st.none() | OF_WAYS), max_size=6),
    st.none() | st.sampled_from([(name, unit) for name, units in IN_WAYS.items() for unit in units]),
    st.sampled_from([RUNNING, OFF]),
    OF_WAYS,
)
def test_classes_that_exclude_each_other_are_never_given_together_and_their_parts_once(
    steps: list[tuple[str, tuple[int, int, int] | None]],
    used: tuple[str, str] | None,
    state: GuestState,
    wanted: tuple[int, int, int],
) -> None:
    """A card is given whole, or in parts of two classes; a part that a definition names stays with it."""
    inventories = {name: Inventory(len(units)) for name, units in IN_WAYS.items()}
    card = Provider(GPU, "gpu", ROOT, inventories)
    either_way = {GPU: (frozenset({EITHER, OR_ELSE}), frozenset({WHOLE}))}
    index = ProviderIndex.of(HOST.tree.with_provider(card), ROOT, either_way)
    book, stranger = Book(), CONSUMERS[3]
    book.refresh(index, {}, {**UNITS, GPU: IN_WAYS})
    if used is not None:
        book.observe_guests([Guest(stranger, "g", state, {}, (UsedUnit(*used, "gpu"),))])
    for consumer, asked in (*steps, (MIGRATION, wanted)):
        if asked is None:
            book.remove(consumer)
            continue
        others = {unit for who, made in book.claims.items() if who != consumer for *_, unit in made.exact}
        others |= {used[1]} if used is not None else set()
        resources = {name: n for name, n in zip(IN_WAYS, asked, strict=True) if n}
        request = ask(consumer, VCPU=1, **resources)
        fit = book.fit(request)
        parts, whole = asked[0] + asked[1], asked[2]
        free = {unit for unit in (*PARTS, "whole") if unit not in others}
        able = parts <= len(free & {*PARTS}) and (not parts or "whole" in free)
        assert fit.fits is (able and not (parts and whole) and (not whole or len(free) == 4))
        if fit.fits:
            made = claim_of_fit(request, fit, ClaimState.CLAIMED)
            given_ = [unit for *_, unit in made.exact]
            assert len(given_) == len(set(given_)) == parts + whole and free.issuperset(given_)
            book.put(made)


def test_a_guest_that_was_found_counts_as_its_claim_says_once_it_has_one() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(LEFT, "g", OFF, {VCPU: 5})], frozenset({LEFT}))
    assert book.used[ROOT][VCPU] == 5
    book.put(claim(OTHER, {ROOT: {VCPU: 1}}))
    assert book.used[ROOT][VCPU] == 6
    book.put(claim(LEFT, {ROOT: {VCPU: 2}}))
    assert book.used[ROOT][VCPU] == 3


@pytest.mark.parametrize(("others", "fits"), [(0, True), (1, False)])
def test_what_is_held_beyond_what_there_is_is_kept_while_others_need_nothing(others: int, fits: bool) -> None:
    """Another service wrote it, or the host has shrunk."""
    book, held = Book([claim(OTHER, {ROOT: {VCPU: others}})] if others else []), {ROOT: {VCPU: 50}}
    book.refresh(HOST, {ROOT: {LEFT: {VCPU: 50}}}, UNITS)
    assert book.cover(ask(LEFT, VCPU=50), held, exact=True).fits is fits


def test_the_emulators_threads_are_on_the_cpu_that_is_restricted_also_without_cells() -> None:
    book = book_of_cells({})
    topology = TopologyRequest("dedicated", isolate_emulator=True)
    request = replace(ask(LEFT, PCPU=3, MEMORY_MB=64), topology=topology)
    book.restrict(LEFT, Restriction(emulator=3))
    (cell,) = book.fit(request).cells
    assert cell.emulator == {3} and 3 not in cell.pinning.values()
