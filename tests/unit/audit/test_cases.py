"""When a consumer can be compared, how its allocations are divided, and which claim is older than its
guest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from kits.audit import (
    CONSUMER,
    ELSEWHERE,
    MIGRATION,
    a_move,
    claimed,
    consumer_case,
    in_state,
    move_case,
    observe,
    row_findings,
    running,
)
from kits.tracker import UNITS, VFS, uuid_of

from agent.audit.cases import (
    FindingKind,
    RowCase,
    as_used,
    follow_together,
    held_of,
    is_older,
    is_undecided,
    obstacle,
)
from agent.audit.finding import FollowGuests, WriteAllocations
from agent.audit.findings import judge_consumer
from agent.claims.claim import ClaimState
from agent.driver import Guest, GuestState, UsedUnit
from agent.moves.states import MoveRole, MoveState, claims_of
from agent.placement.client import ConsumerAllocations
from agent.shapes import Allocations

HERE = {uuid_of("host"): {"VCPU": 2}}
SHARED = {uuid_of("pool"): {"DISK_GB": 5}}
THERE = {ELSEWHERE: {"VCPU": 2}}
CLAIMS = claimed({"VCPU": 2})


def test_a_guest_that_could_not_be_read_is_comparable_only_by_its_claim() -> None:
    guests = (replace(running(CONSUMER), problem="odd XML"),)
    assert not consumer_case(observe(guests=guests), HERE).is_comparable
    assert consumer_case(observe(CLAIMS, guests=guests), HERE).is_comparable


def test_during_a_move_a_consumer_is_comparable_while_it_has_what_the_move_gave_it() -> None:
    move = a_move(MoveState.BEGUN)
    claims = claims_of(move)
    begun = observe(claims, moves=(move,))
    assert consumer_case(begun, HERE, MIGRATION).is_comparable
    assert not consumer_case(begun, {}, MIGRATION).is_comparable  # the move has ended: the agent will see
    assert not consumer_case(begun, THERE, CONSUMER).is_comparable
    for state in (MoveState.BEGINNING, MoveState.CONFIRMING, MoveState.REVERTING, MoveState.LEAVING):
        under_way = observe(claims, moves=(replace(move, state=state),))
        assert not consumer_case(under_way, HERE, MIGRATION).is_comparable


def test_in_a_move_on_one_host_the_old_place_is_no_difference_once_the_migration_has_nothing() -> None:
    move = replace(a_move(MoveState.BEGUN, MoveRole.BOTH), new=CLAIMS[CONSUMER])
    claims = claims_of(move)
    both = observe(claims, moves=(move,), placed={CONSUMER: HERE, MIGRATION: HERE})
    assert consumer_case(both, HERE).is_comparable
    reverted = observe(claims, moves=(move,), placed={CONSUMER: HERE})
    assert not consumer_case(reverted, HERE).is_comparable


def test_a_migration_that_this_host_has_yet_to_learn_of_is_not_comparable() -> None:
    left = replace(observe(CLAIMS, placed={}), elsewhere={CONSUMER: THERE})
    typed = partial(consumer_case, consumer=MIGRATION, consumer_type="MIGRATION")
    assert not typed(left, HERE).is_comparable
    assert typed(left, {uuid_of("host"): {"VCPU": 1}}).is_comparable
    assert consumer_case(left, HERE, MIGRATION).is_comparable
    assert typed(observe(CLAIMS, placed={}), HERE).is_comparable  # its instance is nowhere
    assert typed(observe(CLAIMS), HERE).is_comparable


@pytest.mark.parametrize(
    ("state", "here", "found"),
    [
        (ClaimState.CLAIMED, HERE, True),
        (ClaimState.CLAIMED, {uuid_of("host"): {"VCPU": 1}}, True),
        (ClaimState.CLAIMED, {uuid_of("gpu0"): {"VGPU": 1}}, False),
        (ClaimState.RELEASING, HERE, True),
    ],
)
def test_what_an_instance_that_left_may_have_handed_over_names_its_claim(
    state: ClaimState, here: Allocations, found: bool
) -> None:
    lost = observe(claimed({"VCPU": 2}, state=state), placed={MIGRATION: here})
    left = replace(lost, elsewhere={CONSUMER: THERE})
    untyped = partial(consumer_case, consumer=MIGRATION, consumer_type="unknown")
    assert untyped(left, here).possible_origins == ((CONSUMER,) if found else ())
    assert untyped(lost, here).possible_origins == ()
    assert consumer_case(left, here, MIGRATION).possible_origins == (), "an instance, by its type"
    assert consumer_case(left, here, MIGRATION).is_comparable


@pytest.mark.parametrize(
    ("project", "here", "found"),
    [("demo", HERE, True), ("another", HERE, False), ("demo", {uuid_of("host"): {"VCPU": 1}}, True)],
)
def test_a_guest_whose_instance_is_elsewhere_may_have_handed_its_place_over_within_its_project(
    project: str, here: Allocations, *, found: bool
) -> None:
    gone = ConsumerAllocations(CONSUMER, THERE, 1, "demo", "user", "INSTANCE")
    seen = observe(guests=(running(CONSUMER, VCPU=2),), placed={MIGRATION: here})
    left = replace(seen, departed={CONSUMER: gone})
    untyped = partial(consumer_case, consumer=MIGRATION, owner=(project, "user"), consumer_type="unknown")
    assert untyped(left, here).possible_origins == ((CONSUMER,) if found else ())
    claim = replace(CLAIMS[CONSUMER], consumer=MIGRATION)
    assert untyped(replace(left, claims={MIGRATION: claim}), here).possible_origins == ()
    runs = {**left.guests, MIGRATION: running(MIGRATION, VCPU=2)}
    assert untyped(replace(left, guests=runs), here).possible_origins == ()


def test_only_a_guest_of_which_placement_has_nothing_may_have_its_place_in_a_migration() -> None:
    runs = (running(CONSUMER, VCPU=2),)
    unknown = replace(observe(guests=runs, placed={MIGRATION: HERE}), types={MIGRATION: "unknown"})
    assert consumer_case(unknown, {}).possible_migrations == (MIGRATION,)
    assert consumer_case(unknown, THERE).possible_migrations == ()
    assert consumer_case(replace(unknown, guests={}), {}).possible_migrations == ()
    claim = {MIGRATION: replace(CLAIMS[CONSUMER], consumer=MIGRATION)}
    guests = {**unknown.guests, MIGRATION: running(MIGRATION, VCPU=2)}
    moves = (replace(a_move(MoveState.BEGUN), instance=uuid_of("moving")),)
    for known in (replace(unknown, claims=claim), replace(unknown, guests=guests)):
        assert consumer_case(known, {}).possible_migrations == (), "it has a claim or a guest of its own"
    assert consumer_case(replace(unknown, moves=moves), {}).possible_migrations == (), "it is of another one"


def test_a_consumer_with_a_claim_or_a_guest_of_its_own_is_no_migration() -> None:
    typed = partial(consumer_case, consumer=MIGRATION, consumer_type="MIGRATION")
    assert typed(observe(), HERE).is_migration
    assert not typed(observe({MIGRATION: replace(CLAIMS[CONSUMER], consumer=MIGRATION)}), HERE).is_migration
    assert not typed(observe(guests=(running(MIGRATION),)), HERE).is_migration
    assert not consumer_case(observe(), HERE, MIGRATION).is_migration
    assert consumer_case(observe(moves=(a_move(MoveState.BEGUN),)), HERE, MIGRATION).is_migration


def test_a_claim_without_allocation_here_may_have_its_migration_here() -> None:
    """A consumer that has a claim or a guest of its own is no migration."""
    unknown = observe(CLAIMS, placed={MIGRATION: HERE})
    assert consumer_case(unknown, THERE).possible_holders == (MIGRATION,)
    smaller = observe(CLAIMS, placed={MIGRATION: {uuid_of("host"): {"VCPU": 1}}})
    assert consumer_case(smaller, THERE).possible_holders == ()
    assert consumer_case(observe(CLAIMS, placed={}), THERE).possible_holders == ()
    (claim,) = CLAIMS.values()
    of_its_own = {**CLAIMS, MIGRATION: replace(claim, consumer=MIGRATION)}
    assert consumer_case(observe(of_its_own, placed={MIGRATION: HERE}), THERE).possible_holders == ()
    runs = observe(CLAIMS, placed={MIGRATION: HERE}, guests=(running(MIGRATION, VCPU=2),))
    assert consumer_case(runs, THERE).possible_holders == ()


@pytest.mark.parametrize(
    ("placed", "evident"),
    [
        ({MIGRATION: HERE}, True),
        ({}, False),
        ({MIGRATION: HERE, uuid_of("another"): HERE}, False),
        ({MIGRATION: {uuid_of("host"): {"VCPU": 1}}}, False),
    ],
    ids=["one consumer", "none", "two consumers", "one with less"],
)
def test_the_place_of_a_claim_is_evident_where_one_consumer_alone_has_just_that(
    placed: dict[str, Allocations], *, evident: bool
) -> None:
    left = replace(observe(CLAIMS, placed=placed), elsewhere={CONSUMER: THERE})
    assert consumer_case(left, THERE).place_is_evident is evident
    assert consumer_case(replace(left, claims={}), THERE).place_is_evident is False


def test_a_row_has_what_the_instance_and_its_migration_have() -> None:
    move = a_move(MoveState.BEGUN)
    guest = running(CONSUMER, VCPU=2)
    case = RowCase.of(observe(claims_of(move), guests=(guest,), moves=(move,)), CONSUMER)
    assert case.is_moving and case.instance == CONSUMER
    assert case.evidence == {"guest": {"VCPU": 2}, "claim": {MIGRATION: HERE}, "placement": {MIGRATION: HERE}}


def test_what_remains_elsewhere_takes_its_shared_part_with_it() -> None:
    assert consumer_case(observe(), {**HERE, **SHARED}).remainder == {}
    assert consumer_case(observe(), {**HERE, **SHARED, **THERE}).remainder == {**SHARED, **THERE}


def test_a_claim_differs_only_where_something_is_placed_here() -> None:
    claimed_here = CLAIMS[CONSUMER].allocations
    assert consumer_case(observe(CLAIMS), claimed_here).claimed_otherwise is None
    assert consumer_case(observe(CLAIMS), THERE).claimed_otherwise is None
    assert consumer_case(observe(CLAIMS), {uuid_of("gpu0"): {"VGPU": 1}}).claimed_otherwise == claimed_here


def test_evidence_is_what_each_source_shows() -> None:
    case = consumer_case(observe(CLAIMS, guests=(running(CONSUMER, VCPU=3),)), HERE)
    assert case.evidence == {
        "guest": {"VCPU": 3},
        "claim": CLAIMS[CONSUMER].allocations,
        "placement": HERE,
        "generation": 1,
    }
    move = move_case(a_move(MoveState.BEGUN), instance=THERE, migration=HERE)
    assert move.evidence == {
        "move": "cold_migrate, source, begun",
        "instance": CONSUMER,
        "placement": {CONSUMER: THERE, MIGRATION: HERE},
        "generation": 1,
    }


NIC = uuid_of("nic0")
((_, CLAIM),) = claimed({"SRIOV_NET_VF": 1, "VCPU": 1}).items()
((_, _, OWN),) = CLAIM.exact
(FREE,) = set(VFS) - {OWN}
SECOND = replace(CLAIM, consumer=uuid_of("second"), units={NIC: {"SRIOV_NET_VF": (FREE,)}})


def user(consumer: str, unit: str, cpus: int = 1) -> Guest:
    return running(consumer, UsedUnit("SRIOV_NET_VF", unit, "nic0"), SRIOV_NET_VF=1, VCPU=cpus)


def test_a_guest_with_another_unit_of_what_placement_has_is_newer_than_its_claim() -> None:
    observation = observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE)])
    held = held_of(observation, CLAIM)
    assert held == CLAIM.allocations and is_older(observation, CLAIM, held)
    now = as_used(observation, CLAIM, held)
    assert now == replace(CLAIM, units={NIC: {"SRIOV_NET_VF": (FREE,)}}), "the request is as before"
    assert not is_older(observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, OWN)]), CLAIM, held)
    assert not is_older(observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE, 3)]), CLAIM, held)
    assert not is_older(observe({CONSUMER: CLAIM}), CLAIM, held), "no guest tells"
    assert not is_older(replace(observation, moves=(a_move(MoveState.BEGUN),)), CLAIM, held), "it moves"


def test_a_claim_of_which_placement_has_just_that_is_not_outdated() -> None:
    """Its units are another finding."""
    observation = observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE)])
    assert consumer_case(observation, CLAIM.allocations).is_outdated is False
    assert consumer_case(replace(observation, claims={}), CLAIM.allocations).is_outdated is False
    more = {**CLAIM.allocations, uuid_of("host"): {"VCPU": 3}}
    grown = observe({CONSUMER: CLAIM}, guests=[user(CONSUMER, FREE, 3)], placed={CONSUMER: more})
    assert consumer_case(grown, more).is_outdated


def test_what_placement_has_of_a_claim_is_as_the_claim_says_on_pools() -> None:
    (claim,) = CLAIMS.values()
    both = replace(claim, allocations={**claim.allocations, **SHARED})
    less = {uuid_of("host"): {"VCPU": 1}}
    assert held_of(observe({CONSUMER: both}, placed={CONSUMER: less}), both) == {**less, **SHARED}


def test_claims_follow_together_where_both_guests_tell() -> None:
    claims = {CONSUMER: CLAIM, SECOND.consumer: SECOND}
    guests = [user(CONSUMER, FREE), user(SECOND.consumer, OWN)]
    (step,), told_why = follow_together(observe(claims, guests=guests), CLAIM, CLAIM.allocations)
    assert isinstance(step, FollowGuests) and not told_why
    assert {after.consumer: [unit for *_, unit in after.exact] for _, after in step.records} == {
        CONSUMER: [FREE],
        SECOND.consumer: [OWN],
    }


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ((), f"while the claim of {SECOND.consumer} has the SRIOV_NET_VF {FREE}"),
        ((in_state(GuestState.SHUTOFF, user(SECOND.consumer, OWN)),), f"the claim of {SECOND.consumer} has"),
        ((user(SECOND.consumer, FREE),), f"have the same SRIOV_NET_VF {FREE}: take it from one of them"),
    ],
    ids=["no guest", "shut off, and Placement tells nothing", "uses it too"],
)
def test_claims_do_not_follow_where_one_of_their_units_stays_with_another(
    second: tuple[Guest, ...], told: str
) -> None:
    """The step would be refused, so it is not offered; what stands in its way is named with a remedy."""
    observation = observe({CONSUMER: CLAIM, SECOND.consumer: SECOND}, guests=[user(CONSUMER, FREE), *second])
    steps, told_why = follow_together(observation, CLAIM, CLAIM.allocations)
    assert steps == () and told_why.startswith("Nothing is repaired") and told in told_why


def test_two_claims_do_not_follow_to_the_same_unit() -> None:
    """No claim has it; the guests of both name it."""
    claims = claimed({"PCPU": 1}, {"PCPU": 1})
    host = uuid_of("host")
    given = {unit for claim in claims.values() for _, _, unit in claim.exact}
    free = next(unit for unit in UNITS[host]["PCPU"] if unit not in given)
    guests = [running(consumer, UsedUnit("PCPU", free, "host"), PCPU=1) for consumer in claims]
    first, second = claims.values()
    later = observe(claims, guests=guests)
    assert obstacle(later, [replace(each, units={host: {"PCPU": (free,)}}) for each in (first, second)]) == (
        f"Nothing is repaired while the guests {first.consumer} and {second.consumer} have the same "
        f"PCPU {free}: take it from one of them."
    )


def test_a_finding_says_what_a_claim_that_is_older_than_its_guest_waits_for() -> None:
    more = {uuid_of("host"): {"VCPU": 2}, NIC: {"SRIOV_NET_VF": 1}}
    claims = {CONSUMER: CLAIM, SECOND.consumer: SECOND}
    placed = {CONSUMER: more, SECOND.consumer: SECOND.allocations}
    observation = observe(claims, guests=[user(CONSUMER, FREE, 2)], placed=placed)
    finding = judge_consumer(consumer_case(observation, more))
    assert finding is not None and finding.kind == "amounts differ" and not finding.repair
    assert f"Nothing is repaired while the claim of {SECOND.consumer} has" in finding.reason
    assert f"Release the claim (`plimsoll release {CONSUMER}" not in finding.reason


def test_a_claim_does_not_follow_to_a_unit_that_an_unclaimed_guest_uses_too() -> None:
    guests = [user(CONSUMER, FREE), user(uuid_of("other"), FREE)]
    steps, told_why = follow_together(observe({CONSUMER: CLAIM}, guests=guests), CLAIM, CLAIM.allocations)
    assert steps == () and "have the same" in told_why and uuid_of("other") in told_why


def test_a_claim_that_ends_by_itself_does_not_stand_in_the_way() -> None:
    guests = [user(CONSUMER, FREE)]
    claims = {CONSUMER: CLAIM, SECOND.consumer: SECOND}
    leaked = observe(claims, guests=guests, placed={CONSUMER: CLAIM.allocations})
    released = observe(
        {**claims, SECOND.consumer: replace(SECOND, state=ClaimState.RELEASING)}, guests=guests
    )
    for observation in (leaked, released):
        (step,), told_why = follow_together(observation, CLAIM, CLAIM.allocations)
        assert [before.consumer for before, _ in step.records] == [CONSUMER] and not told_why
    move = replace(a_move(MoveState.CONFIRMING), instance=uuid_of("moving"), migration=SECOND.consumer)
    leaves = observe(claims, guests=guests, moves=(move,))
    assert follow_together(leaves, CLAIM, CLAIM.allocations)[0], "its move ends it"
    lost = replace(leaked, lost=frozenset({SECOND.consumer}))
    assert not follow_together(lost, CLAIM, CLAIM.allocations)[0], "it is kept, and written again"


def test_a_claim_that_follows_its_guest_away_from_a_unit_does_not_stand_in_the_way() -> None:
    """Its repair comes before that of the guest which uses more, and by now has the unit."""
    ((consumer, second),) = claimed({"PCPU": 1}).items()
    ((host, name, cpu),) = second.exact
    other = next(each for each in UNITS[host][name] if each != cpu)
    grown = replace(SECOND, units={host: {name: (cpu,)}})
    for used, is_free in ((other, True), (cpu, False)):
        guest = running(consumer, UsedUnit(name, used, "host"), PCPU=1)
        observation = observe({consumer: second, SECOND.consumer: SECOND}, guests=[guest])
        assert (obstacle(observation, [grown]) == "") == is_free


def test_a_guest_that_is_shut_off_tells_only_with_placement_and_by_a_unit() -> None:
    """Its definition may be from before the claim; it is believed where Placement says just the same."""
    host, nic = uuid_of("host"), {"SRIOV_NET_VF": 1}
    more = {host: {"VCPU": 2}, NIC: nic}
    one = CLAIM.allocations
    told = in_state(GuestState.SHUTOFF, user(CONSUMER, FREE, 2))

    def tells(held: Allocations, guest: Guest) -> bool:
        return is_older(observe({CONSUMER: CLAIM}, guests=[guest], placed={CONSUMER: held}), CLAIM, held)

    assert tells(more, told)
    assert not tells(one, replace(told, resources={**told.resources, "VCPU": 1})), "as claimed: a guess"
    assert not tells(one, told), "Placement has as many CPUs as the claim"
    assert not tells(more, in_state(GuestState.SHUTOFF, user(CONSUMER, OWN, 2))), "it has the claim's unit"
    assert not tells(more, replace(told, units=())), "no unit tells"
    assert not tells(more, replace(told, problem="odd XML"))


def test_a_claim_whose_unit_another_guest_uses_is_not_written_again() -> None:
    """Its record is from before it was given to the other one, so Placement is newer."""
    other = uuid_of("other")
    guests = [user(other, OWN)]
    placed = {uuid_of("host"): {"VCPU": 2}}
    finding = judge_consumer(consumer_case(observe({CONSUMER: CLAIM}, guests=guests), placed))
    assert finding is not None and finding.kind == "wrong provider" and not finding.repair
    assert other in finding.reason and "is older" in finding.reason
    free = judge_consumer(consumer_case(observe({CONSUMER: CLAIM}, guests=[user(other, FREE)]), placed))
    assert free is not None and [type(step) for step in free.repair] == [WriteAllocations]


def test_only_amounts_without_units_and_without_a_telling_guest_are_undecided() -> None:
    (claim,) = claimed({"VGPU": 1}).values()
    ((card, amounts),) = claim.allocations.items()
    other = uuid_of("gpu1") if card == uuid_of("gpu0") else uuid_of("gpu0")
    assert is_undecided(observe({CONSUMER: claim}), claim, {other: amounts})
    assert not is_undecided(observe({CONSUMER: claim}), claim, {other: {"VGPU": 2}})
    for used in (1, 2):
        alike = observe({CONSUMER: claim}, guests=(running(CONSUMER, VGPU=used),), placed={CONSUMER: {}})
        assert is_undecided(alike, claim, {other: amounts}), "the guest runs with the one as with the other"
    named = replace(claim, units={card: {"VGPU": ("mdev0",)}})
    assert not is_undecided(observe({CONSUMER: named}), named, {other: amounts}), "its unit is on the card"


def test_a_kind_that_overrides_nothing_reports_nothing() -> None:
    kind = FindingKind()
    assert kind.judge_consumer(consumer_case(observe(), {})) is None
    assert kind.judge_move(move_case(a_move(MoveState.BEGUN), instance={}, migration={})) is None
    assert [*kind.judge_host(observe())] == []
    assert row_findings(kind, observe(claimed({"VCPU": 1}))) == []
