"""What an observation says of a consumer and of the host as a whole."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, ELSEWHERE, MIGRATION, a_move, claimed, observe, running
from kits.tracker import uuid_of

from agent.moves.states import MoveState, claims_of

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


def test_an_allocation_counts_before_the_claim_of_its_consumer() -> None:
    claims = claimed({"VCPU": 2}, {"VCPU": 1})
    first, second = claims
    assert observe(claims, placed={first: {uuid_of("host"): {"VCPU": 4}}}).used == {
        uuid_of("host"): {"VCPU": 4 + claims[second].request.resources["VCPU"]}
    }


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
