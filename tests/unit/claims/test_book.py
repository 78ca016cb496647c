"""The book's running sums against sums made anew."""

from __future__ import annotations

from collections import Counter
from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.claims.parse_request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, UsedUnit
from agent.tree import Inventory, Provider, ProviderTree


def uuid_of(name: str) -> str:
    return str(uuid5(UUID(int=9), name))


PROVIDERS = (uuid_of("host"), uuid_of("gpu"))
CONSUMERS = tuple(uuid_of(f"consumer {number}") for number in range(4))
HOST = ProviderIndex.of(
    ProviderTree(
        [
            Provider(PROVIDERS[0], "host", None, {"VCPU": Inventory(50), "PCPU": Inventory(4)}),
            Provider(PROVIDERS[1], "gpu", PROVIDERS[0], {"VCPU": Inventory(50), "PCPU": Inventory(50)}),
        ]
    )
)
UNITS = {PROVIDERS[0]: {"PCPU": ("0", "1", "2", "3")}}

consumers = st.sampled_from(CONSUMERS)
amounts = st.dictionaries(st.sampled_from(["VCPU", "PCPU"]), st.integers(1, 9), min_size=1)
allocations = st.dictionaries(st.sampled_from(PROVIDERS), amounts, min_size=1)


def claim(consumer: str, held: dict[str, dict[str, int]], state: ClaimState = ClaimState.CLAIMED) -> Claim:
    return Claim(consumer, state, ask(consumer, VCPU=1), held)


def ask(consumer: str, **resources: int) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup("", resources),))


def put(book: Book, data: st.DataObject) -> None:
    book.put(claim(data.draw(consumers), data.draw(allocations)))


def drop(book: Book, data: st.DataObject) -> None:
    book.remove(data.draw(consumers))


def hold(book: Book, data: st.DataObject) -> None:
    consumer = data.draw(consumers)
    if consumer not in book.claims:
        book.set_other(consumer, data.draw(st.one_of(st.just({}), allocations)))


def observe(book: Book, data: st.DataObject) -> None:
    book.observe_provider(
        data.draw(st.sampled_from(PROVIDERS)), data.draw(st.dictionaries(consumers, amounts))
    )


def refresh(book: Book, data: st.DataObject) -> None:
    held = st.dictionaries(st.sampled_from(PROVIDERS), st.dictionaries(consumers, amounts))
    book.refresh(HOST, data.draw(held), UNITS)


@given(st.data(), st.lists(st.sampled_from([put, put, drop, hold, observe, refresh]), max_size=12))
def test_running_sums_are_the_sums(data: st.DataObject, steps: list) -> None:  # type: ignore[type-arg]
    book = Book()
    book.refresh(HOST, {}, UNITS)
    for step in steps:
        step(book, data)
        used: Counter[tuple[str, str]] = Counter()
        for consumer in CONSUMERS:
            mine = book.claims.get(consumer)
            assert not (mine and book.other_allocations(consumer)), "counted twice"
            for uuid, each in (mine.allocations if mine else book.other_allocations(consumer)).items():
                used.update({(uuid, name): amount for name, amount in each.items()})
        for provider in HOST.providers:
            for name, inventory in provider.inventories.items():
                free = max(0, inventory.capacity - used[provider.uuid, name])
                assert book.free(provider.uuid, name, "another consumer") == free


def test_a_consumer_is_fitted_as_if_it_held_nothing() -> None:
    book = Book()
    book.refresh(HOST, {PROVIDERS[0]: {CONSUMERS[1]: {"PCPU": 1}}}, UNITS)
    book.put(claim(CONSUMERS[0], {PROVIDERS[0]: {"PCPU": 3}, PROVIDERS[1]: {"PCPU": 50}}))
    assert book.fit(ask(CONSUMERS[0], PCPU=3)).allocations == {PROVIDERS[0]: {"PCPU": 3}}
    assert not book.fit(ask(CONSUMERS[2], PCPU=1)).fits
    assert book.fit(ask(CONSUMERS[1], PCPU=1)).fits


def test_units_in_a_guests_hands_are_its_own_first_and_nobody_elses() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    book.observe_guests([Guest(CONSUMERS[0], "g", GuestState.RUNNING, {}, (UsedUnit("PCPU", "2", "host"),))])
    assert book.fit(ask(CONSUMERS[0], PCPU=2)).units == {PROVIDERS[0]: {"PCPU": ("2", "0")}}
    assert book.fit(ask(CONSUMERS[1], PCPU=3)).units == {PROVIDERS[0]: {"PCPU": ("0", "1", "3")}}


def test_who_left_while_placement_was_read_is_not_counted_again() -> None:
    book = Book()
    book.refresh(HOST, {}, UNITS)
    here, there = PROVIDERS[:2]
    book.put(claim(CONSUMERS[0], {here: {"PCPU": 1}}))
    before = book.departed
    held = {here: {CONSUMERS[0]: {"PCPU": 1}}}
    book.remove(CONSUMERS[0])
    book.refresh(HOST, held, UNITS, departed=before)
    assert not book.other_allocations(CONSUMERS[0])
    before = book.departed
    assert before == {here: {CONSUMERS[0]}}, "it is to be read again"
    book.refresh(HOST, held, UNITS, departed=before)
    assert book.other_allocations(CONSUMERS[0]), "another service wrote it since"
    assert not book.departed
    book.put(claim(CONSUMERS[0], {here: {"PCPU": 1}}))
    book.put(claim(CONSUMERS[0], {there: {"PCPU": 1}}))
    assert book.departed == {here: {CONSUMERS[0]}}
