"""What an observation says of a consumer and of the host; which consumers and moves are read in full."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from kits.audit import CONSUMER, ELSEWHERE, HOST_INDEX, MIGRATION, a_move, claimed, observe, running
from kits.tracker import uuid_of

from agent.audit.observation import suspect_moves, suspects
from agent.claims.claim import ClaimState
from agent.claims.fit import ProviderIndex
from agent.moves.states import MoveRole, MoveState, claims_of

HERE = {uuid_of("host"): {"VCPU": 2}}


def test_only_providers_of_this_host_are_here() -> None:
    allocations = {**HERE, uuid_of("pool"): {"DISK_GB": 5}, ELSEWHERE: {"VCPU": 1}}
    observation = observe(placed={CONSUMER: allocations})
    assert observation.allocations_here(CONSUMER) == HERE
    assert observation.own_part(allocations) == HERE
    assert observation.own_part({uuid_of("host"): {}}) == {}
    assert observation.consumers == {CONSUMER}


def test_both_consumers_of_a_move_are_in_it_until_it_ends() -> None:
    assert observe(moves=(a_move(MoveState.BEGUN),)).consumers_in_moves == {CONSUMER, MIGRATION}
    assert observe(moves=(a_move(MoveState.CONFIRMED),)).consumers_in_moves == frozenset()


def test_what_others_hold_or_need_is_lacking_and_what_is_reserved_for_the_consumer_is_not() -> None:
    """The host has 16 VCPU and 4096 MEMORY_MB."""
    host = uuid_of("host")
    seen = observe(placed={CONSUMER: {host: {"VCPU": 4}}, MIGRATION: {host: {"VCPU": 10}}})
    assert seen.lacking(CONSUMER, {host: {"VCPU": 6}, ELSEWHERE: {"VCPU": 99}}) == ()
    (short,) = seen.lacking(CONSUMER, {host: {"VCPU": 7}})
    assert (short.resource_class, short.asked, short.free) == ("VCPU", 7, 6)
    (limit,) = seen.lacking(CONSUMER, {host: {"FOREIGN": 1}})
    assert limit.free == 0
    full = observe(placed={CONSUMER: {host: {"MEMORY_MB": 1}}, MIGRATION: {host: {"VCPU": 16}}})
    assert full.lacking(MIGRATION, {host: {"VCPU": 16}}) == ()
    assert [each.free for each in full.lacking(CONSUMER, {host: {"VCPU": 1}})] == [0]
    reserved = replace(seen, unheld={CONSUMER: {host: {"VCPU": 6}}, "other": {host: {"VCPU": 2}}})
    assert reserved.lacking(CONSUMER, {host: {"VCPU": 4}}) == ()
    assert [each.free for each in reserved.lacking(CONSUMER, {host: {"VCPU": 5}})] == [4]


def test_a_limit_of_one_consumer_is_lacking_where_there_is_room() -> None:
    host = uuid_of("host")
    limited = HOST_INDEX.tree[host]
    inventories = {**limited.inventories, "VCPU": replace(limited.inventories["VCPU"], max_unit=4)}
    tree = HOST_INDEX.tree.with_provider(replace(limited, inventories=inventories))
    seen = replace(observe(), unreserved=ProviderIndex.of(tree, host))
    assert seen.lacking(CONSUMER, {host: {"VCPU": 4}}) == ()
    (short,) = seen.lacking(CONSUMER, {host: {"VCPU": 5}})
    assert (short.asked, short.free, short.reason) == (5, 16, "max_unit is 4")


@pytest.mark.parametrize(
    ("uuid", "name", "amount", "told"),
    [
        (uuid_of("host"), "VCPU", 16, ""),
        (uuid_of("host"), "VCPU", 17, "17 VCPU on host"),
        (uuid_of("host"), "FOREIGN", 1, "1 FOREIGN on host"),
        (ELSEWHERE, "VCPU", 1, f"1 VCPU on {ELSEWHERE}"),
        (uuid_of("pool"), "FOREIGN", 1, ""),
    ],
    ids=["all of it", "more", "a class that is not there", "a provider that is gone", "of a shared provider"],
)
def test_there_is_no_room_for_what_no_provider_of_the_host_has(
    uuid: str, name: str, amount: int, told: str
) -> None:
    assert observe().without_room({uuid: {name: amount}}) == told


def test_a_row_has_the_shared_part_too_and_what_its_guest_uses_where_it_is() -> None:
    pool = {uuid_of("pool"): {"DISK_GB": 5}}
    guest = running(CONSUMER, VCPU=3, DISK_GB=5)
    observation = replace(observe(guests=(guest,), placed={CONSUMER: HERE}), shared={CONSUMER: pool})
    (row,) = observation.rows().values()
    assert row.held == {CONSUMER: {**HERE, **pool}} and row.guest is guest
    assert row.used.amounts == {uuid_of("host"): {"VCPU": 3}, **pool}


def test_the_migration_of_a_move_under_way_is_in_the_row_of_its_instance() -> None:
    move = a_move(MoveState.BEGUN)
    (row,) = observe(claims_of(move), moves=(move,)).rows().values()
    assert (row.instance, row.consumers) == (CONSUMER, {MIGRATION})
    ended = observe(moves=(a_move(MoveState.CONFIRMED),), placed={MIGRATION: HERE})
    assert ended.rows().keys() == {MIGRATION}


def test_a_claim_without_an_allocation_here_is_lost() -> None:
    claims = claimed({"VCPU": 2}, {"VCPU": 1})
    first, second = claims
    assert observe(claims, placed={first: HERE}).lost_claims() == (claims[second],)


CLAIMS = claimed({"VCPU": 2})


def test_a_consumer_whose_sources_agree_is_no_suspect() -> None:
    assert suspects(observe(CLAIMS)) == frozenset()
    assert suspects(observe(guests=(running(CONSUMER),), placed={CONSUMER: HERE})) == frozenset()
    assert suspects(observe(moves=(a_move(MoveState.BEGUN),), placed={MIGRATION: HERE})) == frozenset()


def test_a_consumer_whose_sources_differ_is_one() -> None:
    for observation in (
        observe(CLAIMS, placed={}),
        observe(CLAIMS, placed={CONSUMER: {uuid_of("host"): {"VCPU": 1}}}),
        observe(claimed({"VCPU": 2}, state=ClaimState.RELEASING)),
        observe(guests=(running(CONSUMER),)),
        observe(placed={CONSUMER: HERE}),
    ):
        assert suspects(observation) == {CONSUMER}
    other = str(UUID(int=2))
    assert suspects(observe(CLAIMS, placed={CONSUMER: CLAIMS[CONSUMER].allocations, other: HERE})) == {other}


def test_the_migration_of_a_move_is_a_suspect_while_it_has_something_else_here_than_the_move_gave_it() -> (
    None
):
    move = a_move(MoveState.BEGUN)
    other = {uuid_of("host"): {"VCPU": 1}}
    for placed, suspected in ((HERE, frozenset()), (other, {MIGRATION}), ({}, frozenset())):
        observation = observe(claims_of(move), moves=(move,), placed={MIGRATION: placed} if placed else {})
        assert suspects(observation) == suspected


@pytest.mark.parametrize(
    ("state", "role", "adopted", "guest", "placed", "suspect"),
    [
        (MoveState.LEAVING, MoveRole.SOURCE, False, True, {}, True),
        (MoveState.LEAVING, MoveRole.SOURCE, False, False, {}, False),
        (MoveState.CONFIRMING, MoveRole.SOURCE, False, True, {}, False),
        (MoveState.BEGUN, MoveRole.SOURCE, False, False, {}, True),
        (MoveState.BEGUN, MoveRole.BOTH, False, False, {}, True),
        (MoveState.BEGUN, MoveRole.BOTH, False, False, {MIGRATION: HERE}, False),
        (MoveState.BEGUN, MoveRole.DESTINATION, False, False, {}, False),
        (MoveState.BEGUN, MoveRole.DESTINATION, True, False, {}, True),
        (MoveState.BEGUN, MoveRole.DESTINATION, True, False, {CONSUMER: HERE}, False),
    ],
)
def test_a_move_is_one_where_another_program_may_have_ended_it(
    state: MoveState,
    role: MoveRole,
    adopted: bool,
    guest: bool,
    placed: dict[str, dict[str, dict[str, int]]],
    suspect: bool,
) -> None:
    move = a_move(state, role, adopted=adopted)
    guests = (running(CONSUMER),) if guest else ()
    assert bool([*suspect_moves(observe(guests=guests, moves=(move,), placed=placed))]) is suspect
