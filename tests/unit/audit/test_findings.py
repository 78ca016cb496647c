"""Each kind of finding: what it is, what explains it, its repair; a healthy host has none at all."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from importlib import import_module
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.audit import (
    CONSUMER,
    ELSEWHERE,
    HOST_INDEX,
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
from kits.tracker import HOST, POOL, UNITS, VFS, uuid_of

from agent.audit import findings
from agent.audit.cases import FindingKind, RowCase
from agent.audit.finding import (
    ClaimUse,
    Deliver,
    EndMove,
    Finding,
    FollowGuests,
    FollowReshape,
    RecordUse,
    TakeClaim,
    WriteAllocations,
)
from agent.audit.findings import FINDING_KINDS, KIND_NAMES, judge_consumer, judge_host, judge_move, judge_row
from agent.audit.findings.claims import (
    AmountsDiffer,
    Doubled,
    LeakedClaim,
    OrphanedAllocation,
    StuckConsumer,
    WrongProvider,
)
from agent.audit.findings.guests import (
    AbsentGuest,
    AnotherUnit,
    UnclaimedInstance,
    UsesLess,
    UsesMore,
    VanishedUnit,
)
from agent.audit.findings.host import SharedUnit, ShrunkInventory, UnhealthyDevice, UnknownDevice
from agent.audit.findings.moves import MovedAway, StaleMigration, UnlinkedMove
from agent.audit.observation import Observation, suspects
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.claims.guest_cells import PlacedCell
from agent.device_names import NO_MAC
from agent.driver import Guest, GuestState, MoveInstruction, UsedUnit
from agent.moves.states import END_STATES, MIGRATION_TYPE, MoveRole, MoveState, claims_of
from agent.providers.device_health import DeviceHealth, HealthState, Symptom
from agent.reshape.laws import Instruction, Relocation
from agent.shapes import Allocations
from agent.tree import Inventory, ProviderTree

# The registry of findings, and all kinds together: a healthy host has no finding, whatever was claimed


WANTED = st.fixed_dictionaries(
    {},
    optional={
        "VCPU": st.integers(1, 4),
        "PCPU": st.integers(1, 2),
        "VGPU": st.integers(1, 2),
        "MEMORY_MB": st.integers(1, 512),
        "DISK_GB": st.integers(1, 10),
        "SRIOV_NET_VF": st.integers(1, 1),
    },
).filter(bool)


def test_each_kind_that_a_module_defines_is_registered_once_and_has_the_name_of_its_class() -> None:
    modules = [
        import_module(f"{findings.__name__}.{each.name}") for each in pkgutil.iter_modules(findings.__path__)
    ]
    defined = [
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, FindingKind) and value is not FindingKind
    ]
    assert sorted(defined) == sorted(type(kind).__name__ for kind in FINDING_KINDS)
    assert [type(kind).__name__ for kind in FINDING_KINDS] == [
        name.title().replace(" ", "") for name in KIND_NAMES
    ]
    assert all(kind.rows for kind in FINDING_KINDS)


@given(st.lists(WANTED, max_size=8), st.booleans())
def test_a_healthy_host_has_no_finding(wanted: list[dict[str, int]], guests: bool) -> None:
    claims = claimed(*wanted)
    seen = [running(consumer, **claim.request.resources) for consumer, claim in claims.items()]
    observation = observe(claims, guests=seen if guests else ())
    assert not suspects(observation)
    assert [*judge_host(observation)] == []
    assert [*(finding for case in RowCase.all_of(observation) for finding in judge_row(case))] == []
    for consumer, claim in claims.items():
        assert judge_consumer(consumer_case(observation, claim.allocations, consumer)) is None


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_a_claim_with_neither_guest_nor_allocation_is_leaked(wanted: list[dict[str, int]]) -> None:
    claims = claimed(*wanted)
    lost = next(iter(claims))
    rest = {consumer: claim.allocations for consumer, claim in claims.items() if consumer != lost}
    observation = observe(claims, placed=rest)
    if any(HOST_INDEX.is_own(uuid) for uuid in claims[lost].allocations):
        assert lost in suspects(observation)
    finding = judge_consumer(consumer_case(observation, {}, lost))
    assert finding is not None and finding.kind == "leaked claim" and finding.own
    assert [str(step) for step in finding.repair] == [f"release the claim of {lost}"]


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_doubled_is_reduced_to_where_the_guest_is(wanted: list[dict[str, int]]) -> None:
    claims = claimed(*wanted)
    consumer, claim = next(iter(claims.items()))
    here = {uuid: amounts for uuid, amounts in claim.allocations.items() if HOST_INDEX.is_own(uuid)}
    if not here:
        return
    for guests in ((running(consumer),), ()):
        case = consumer_case(
            observe(claims, guests=guests), {**claim.allocations, ELSEWHERE: {"VCPU": 1}}, consumer
        )
        finding = judge_consumer(case)
        assert finding is not None and finding.kind == "doubled" and not finding.own
        (step,) = finding.repair
        left = step.write.allocations  # type: ignore[union-attr]
        assert (ELSEWHERE in left) is not bool(guests)
        assert all((uuid in left) is bool(guests) for uuid in here)


def test_a_move_under_way_is_no_finding() -> None:
    move = a_move(MoveState.BEGUN)
    instance = {ELSEWHERE: {"VCPU": 2}}
    assert judge_move(move_case(move, instance=instance, migration=move.handed)) is None
    observation = observe(moves=(move,), placed={MIGRATION: move.handed})
    assert judge_consumer(consumer_case(observation, move.handed, MIGRATION)) is None


# absent guest: a claim whose guest has not come for an hour


CLAIMS = claimed({"VCPU": 2})
AFTER_AN_HOUR = dict.fromkeys([CONSUMER], 3601.0)


def test_a_claim_without_a_guest_is_reported_after_an_hour() -> None:
    (finding,) = row_findings(AbsentGuest(), replace(observe(CLAIMS), ages=AFTER_AN_HOUR))
    assert finding.subject == CONSUMER and finding.repair == () and "release the claim" in finding.reason
    assert row_findings(AbsentGuest(), replace(observe(CLAIMS), ages={CONSUMER: 3600.0})) == []


def test_a_guest_a_move_or_an_operation_under_way_explains_it() -> None:
    move = a_move(MoveState.BEGUN)
    for observation in (
        observe(CLAIMS, guests=(running(CONSUMER),)),
        observe(claims_of(move), moves=(move,)),
        observe(claimed({"VCPU": 2}, state=ClaimState.RELEASING)),
        observe(CLAIMS, placed={}),  # a leaked claim
    ):
        assert row_findings(AbsentGuest(), replace(observation, ages=AFTER_AN_HOUR)) == []


# amounts differ: the claimed providers with other amounts, or no allocation


HERE = CLAIMS[CONSUMER].allocations
judge_amounts = AmountsDiffer().judge_consumer


def test_other_amounts_are_written_as_claimed() -> None:
    finding = judge_amounts(consumer_case(observe(CLAIMS), {uuid_of("host"): {"VCPU": 1}}))
    assert finding is not None and not finding.own
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations)
    assert (step.write.allocations, step.write.generation) == (HERE, 1)


def test_a_claim_without_an_allocation_is_a_finding_by_its_guest_or_where_placement_lost_it() -> None:
    gone = observe(CLAIMS, placed={})
    assert AmountsDiffer().judge_consumer(consumer_case(gone, {})) is None
    for lost in (replace(gone, lost=frozenset({CONSUMER})), observe(CLAIMS, guests=(running(CONSUMER),))):
        assert AmountsDiffer().judge_consumer(consumer_case(lost, {})) is not None


def test_what_has_vanished_while_it_is_allocated_is_told_once() -> None:
    host = uuid_of("host")
    seen = replace(
        observe(placed={CONSUMER: {host: {"FOREIGN": 1}}}), vanished=frozenset({(host, "FOREIGN")})
    )
    (finding,) = ShrunkInventory().judge_host(seen)
    assert finding.reason.startswith("This host has no FOREIGN on host any more, but 1 is allocated")
    of_the_pool = replace(seen, holders={POOL.uuid: {CONSUMER: {"DISK_GB": 10**9}}})
    assert [*ShrunkInventory().judge_host(of_the_pool)] == [], "a pool that several hosts share"


def test_a_claim_is_not_taken_for_what_the_agent_of_another_host_wrote() -> None:
    elsewhere = consumer_case(observe(guests=(running(CONSUMER, VCPU=1),)), {ELSEWHERE: {"VCPU": 1}})
    assert UnclaimedInstance().judge_consumer(elsewhere) is None


def test_a_guest_that_uses_one_of_something_is_claimed_for() -> None:
    for guest, repaired in ((running(CONSUMER, VCPU=1), True), (running(CONSUMER, VCPU=0), False)):
        finding = UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(guest,)), {}))
        assert finding is not None and bool(finding.repair) is repaired


def test_a_guest_without_allocation_gets_that_of_its_claim() -> None:
    finding = judge_amounts(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),)), {}))
    assert finding is not None
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations)
    assert (step.write.allocations, step.write.generation) == (HERE, None)


def test_a_claim_with_cells_that_is_older_than_its_guest_is_not_written_again() -> None:
    """Its cells were chosen together with its amounts, so it does not follow the guest either."""
    host, claim = uuid_of("host"), CLAIMS[CONSUMER]
    now = {host: {"VCPU": claim.allocations[host]["VCPU"] + 1}}
    guest = running(CONSUMER, **now[host])
    for cells in ((), (PlacedCell(0, 0, {}, frozenset({0}), 4, 0),)):
        observation = observe({CONSUMER: replace(claim, cells=cells)}, guests=[guest], placed={CONSUMER: now})
        finding = judge_amounts(consumer_case(observation, now))
        assert finding is not None and "record is older" in finding.reason
        assert [type(step) for step in finding.repair] == ([] if cells else [FollowGuests])
        assert (f"Release the claim (`plimsoll release {CONSUMER} --force`" in finding.reason) is bool(cells)


def test_it_is_another_finding_or_none_elsewhere() -> None:
    for allocations in ({uuid_of("gpu0"): {"VGPU": 1}}, {ELSEWHERE: {"VCPU": 2}}, HERE):
        assert judge_amounts(consumer_case(observe(CLAIMS), allocations)) is None
    assert judge_amounts(consumer_case(observe(), HERE)) is None


# another unit: other units than its claim's, and a claim that contradicts itself


ONE_VF = claimed({"SRIOV_NET_VF": 1})
((CLAIMED_VF, OTHER_VF),) = [
    VFS if ONE_VF[CONSUMER].units[uuid_of("nic0")]["SRIOV_NET_VF"] == VFS[:1] else VFS[::-1]
]


def vf(unit: str) -> UsedUnit:
    return UsedUnit("SRIOV_NET_VF", unit, "nic0")


def test_another_function_than_the_claimed_one_is_named_beside_it() -> None:
    guest = running(CONSUMER, vf(OTHER_VF), SRIOV_NET_VF=1)
    (finding,) = row_findings(AnotherUnit(), observe(ONE_VF, guests=(guest,)))
    assert finding.evidence["units"] == {"SRIOV_NET_VF": {"claimed": [CLAIMED_VF], "used": [OTHER_VF]}}
    assert f"the SRIOV_NET_VF {OTHER_VF} instead of {CLAIMED_VF}" in finding.reason
    same = running(CONSUMER, vf(CLAIMED_VF), SRIOV_NET_VF=1)
    assert row_findings(AnotherUnit(), observe(ONE_VF, guests=(same,))) == []


def test_a_guest_that_is_shut_off_or_could_not_be_read_is_not_compared() -> None:
    guest = running(CONSUMER, vf(OTHER_VF), SRIOV_NET_VF=1)
    for unclear in (in_state(GuestState.SHUTOFF, guest), replace(guest, problem="odd XML")):
        assert row_findings(AnotherUnit(), observe(ONE_VF, guests=(unclear,))) == []


@pytest.mark.parametrize(
    ("asked", "port", "found"),
    [
        ("52:54:00:00:00:01 VLAN 100", "52:54:00:00:00:01 VLAN 100", 0),
        ("52:54:00:00:00:01 VLAN 100", "52:54:00:00:00:01", 1),
        ("52:54:00:00:00:01", "00:00:00:00:00:00", 1),
        ("52:54:00:00:00:01", "", 0),
        ("", "52:54:00:00:00:01", 0),
    ],
)
def test_a_function_whose_card_has_another_mac_or_vlan_for_it_is_told(
    asked: str, port: str, found: int
) -> None:
    guest = running(CONSUMER, replace(vf(CLAIMED_VF), asked_port=asked, port=port), SRIOV_NET_VF=1)
    told = row_findings(AnotherUnit(), observe(ONE_VF, guests=(guest,)))
    assert len(told) == found
    for finding in told:
        assert f"{CLAIMED_VF} has {port}, and the guest {asked}" in finding.reason and not finding.repair
        assert ("or start the guest anew" in finding.reason) == (port != NO_MAC)
        assert finding.evidence["ports"] == {CLAIMED_VF: [asked, port]}
    for unclear in (in_state(GuestState.SHUTOFF, guest), replace(guest, problem="odd XML")):
        assert row_findings(AnotherUnit(), observe(ONE_VF, guests=(unclear,))) == []


def _pinned(*cpus: int) -> dict[str, Claim]:
    """A claim of the CPUs of UNITS, whose cell pins the guest to these."""
    ((consumer, claim),) = claimed({"PCPU": 2}).items()
    cell = PlacedCell(0, 0, dict(enumerate(cpus)), frozenset(), 4, 1024)
    return {consumer: replace(claim, cells=(cell,))}


def test_a_claims_cpus_and_cells_must_agree() -> None:
    claimed_cpus = tuple(int(cpu) for cpu in claimed({"PCPU": 2})[CONSUMER].units[uuid_of("host")]["PCPU"])
    others = tuple(int(cpu) for cpu in UNITS[uuid_of("host")]["PCPU"] if int(cpu) not in claimed_cpus)
    assert row_findings(AnotherUnit(), observe(_pinned(*claimed_cpus))) == []
    (finding,) = row_findings(AnotherUnit(), observe(_pinned(*others)))
    assert finding.subject == CONSUMER
    assert (finding.evidence["units"], finding.evidence["cells"]) == (sorted(claimed_cpus), sorted(others))


# doubled: allocations on this host and on another one


THERE = {ELSEWHERE: {"VCPU": 2}}


def test_a_shared_provider_is_not_another_host() -> None:
    shared = {uuid_of("pool"): {"DISK_GB": 5}}
    assert Doubled().judge_consumer(consumer_case(observe(CLAIMS), {**HERE, **shared})) is None


# leaked claim: neither a guest nor an allocation


ONE_CPU = claimed({"VCPU": 1})


def test_a_guest_or_an_allocation_keeps_it() -> None:
    with_guest = observe(ONE_CPU, guests=(running(CONSUMER),), placed={})
    assert LeakedClaim().judge_consumer(consumer_case(with_guest, {})) is None
    assert (
        LeakedClaim().judge_consumer(consumer_case(observe(ONE_CPU), ONE_CPU[CONSUMER].allocations)) is None
    )
    assert LeakedClaim().judge_consumer(consumer_case(observe(), {})) is None


# moved away: a guest on this host whose instance is on another one


judge_moved_away = MovedAway().judge_consumer


def test_a_claimed_guest_that_stayed_behind_is_reported_shut_off_or_not() -> None:
    for state in (GuestState.RUNNING, GuestState.SHUTOFF):
        guest = in_state(state, running(CONSUMER))
        finding = judge_moved_away(consumer_case(observe(CLAIMS, guests=(guest,), placed={}), THERE))
        assert finding is not None and finding.subject == CONSUMER and not finding.repair
        assert "remove the guest" in finding.reason


def test_while_a_consumer_holds_the_claims_place_the_move_is_under_way() -> None:
    held = {MIGRATION: CLAIMS[CONSUMER].allocations}
    assert (
        judge_moved_away(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),), placed=held), THERE))
        is None
    )


def test_a_consumer_that_is_no_migration_by_its_type_hides_no_guest() -> None:
    held = {MIGRATION: CLAIMS[CONSUMER].allocations}
    observation = observe(CLAIMS, guests=(running(CONSUMER),), placed=held)
    for consumer_type, found in (("INSTANCE", True), ("MIGRATION", False), ("unknown", False)):
        typed = replace(observation, types={MIGRATION: consumer_type})
        assert (judge_moved_away(consumer_case(typed, THERE)) is not None) == found


def test_a_guest_without_a_claim_is_reported_while_it_runs() -> None:
    guest = running(CONSUMER)
    finding = judge_moved_away(consumer_case(observe(guests=(guest,)), THERE))
    assert finding is not None and finding.repair == () and "move the guest" in finding.reason
    merely_defined = observe(guests=(in_state(GuestState.SHUTOFF, guest),))
    assert judge_moved_away(consumer_case(merely_defined, THERE)) is None
    left_behind = replace(merely_defined, moved_away=frozenset({CONSUMER}))
    told = judge_moved_away(consumer_case(left_behind, THERE))
    assert told is not None and told.repair == () and "remove the definition" in told.reason


def test_a_guest_whose_allocation_is_here_or_nowhere_is_another_finding() -> None:
    here = {uuid_of("host"): {"VCPU": 2}}
    for placed in (here, {**here, **THERE}, {}):
        assert judge_moved_away(consumer_case(observe(CLAIMS, guests=(running(CONSUMER),)), placed)) is None
    assert judge_moved_away(consumer_case(observe(CLAIMS), THERE)) is None


def test_a_guest_that_stays_after_its_move_is_reported_without_a_repair() -> None:
    move = a_move(MoveState.LEAVING)
    assert MovedAway().judge_move(move_case(move, instance=THERE, migration={})) is None
    finding = MovedAway().judge_move(
        move_case(move, instance=THERE, migration={}, guests=(running(CONSUMER),))
    )
    assert finding is not None and finding.subject == CONSUMER
    assert finding.repair == () and "remove the guest" in finding.reason


# orphaned allocation: a consumer that only Placement knows


OTHER_CONSUMER = str(UUID(int=2))
ONE_CPU_HERE = {uuid_of("host"): {"VCPU": 1}}
judge_orphan = OrphanedAllocation().judge_consumer


def test_its_part_on_this_host_is_deleted() -> None:
    for allocations, left in (
        (ONE_CPU_HERE, {}),
        ({**ONE_CPU_HERE, ELSEWHERE: {"VCPU": 1}}, {ELSEWHERE: {"VCPU": 1}}),
    ):
        finding = judge_orphan(consumer_case(observe(), allocations))
        assert finding is not None and not finding.own
        (step,) = finding.repair
        assert isinstance(step, WriteAllocations) and step.write.allocations == left
        assert "about to start" in finding.reason
        assert "move" not in finding.reason and "guess" not in finding.reason, "nothing points at a move"


def test_an_instance_that_a_control_plane_may_be_moving_here_is_left_alone() -> None:
    for migrations, told in (
        (1, "1 migration of its project and user has"),
        (2, "2 migrations of"),
        (None, "answers with an error where it is asked for the migrations"),
    ):
        observation = replace(observe(), migrations=migrations)
        finding = judge_orphan(consumer_case(observation, ONE_CPU_HERE))
        assert finding is not None and not finding.repair and told in finding.reason


def test_guests_claims_and_migrations_are_other_findings() -> None:
    for observation in (observe(guests=(running(CONSUMER),)), observe(claimed({"VCPU": 1}))):
        assert judge_orphan(consumer_case(observation, ONE_CPU_HERE)) is None
    assert judge_orphan(consumer_case(observe(), ONE_CPU_HERE, consumer_type="MIGRATION")) is None


def test_what_an_instance_may_have_left_in_a_move_is_listed_and_left_alone() -> None:
    """Below microversion 1.38 a new instance of the same size looks the same: no advice on a guess."""
    claims = claimed({"VCPU": 1})
    left = replace(observe(claims, placed={}), elsewhere={CONSUMER: {ELSEWHERE: {"VCPU": 1}}})
    finding = judge_orphan(consumer_case(left, ONE_CPU_HERE, OTHER_CONSUMER, consumer_type=""))
    assert finding is not None and finding.subject == OTHER_CONSUMER and finding.repair == ()
    assert CONSUMER in finding.reason
    assert "confirm" not in finding.reason and "revert" not in finding.reason
    nowhere = judge_orphan(
        consumer_case(observe(claims, placed={}), ONE_CPU_HERE, OTHER_CONSUMER, consumer_type="")
    )
    assert nowhere is not None and nowhere.repair


# shared unit: an exact unit with two owners


SECOND, THIRD = str(UUID(int=2)), str(UUID(int=3))


def with_vf(consumer: str, state: GuestState = GuestState.RUNNING) -> Guest:
    return in_state(state, running(consumer, UsedUnit("SRIOV_NET_VF", CLAIMED_VF, "nic0"), SRIOV_NET_VF=1))


def judge_shared(claims: dict[str, Claim], *guests: Guest) -> list[Finding]:
    return [*SharedUnit().judge_host(observe(claims, guests=guests))]


def test_a_unit_that_one_claims_and_another_names_is_reported_with_both() -> None:
    for state, column in ((GuestState.RUNNING, "used"), (GuestState.SHUTOFF, "named")):
        (finding,) = judge_shared(ONE_VF, with_vf(SECOND, state))
        assert finding.subject == CLAIMED_VF and not finding.repair
        assert finding.evidence["claimed"] == [CONSUMER] and finding.evidence[column] == [SECOND]


def test_a_claim_and_its_own_guest_are_one_owner() -> None:
    assert judge_shared(ONE_VF, with_vf(CONSUMER)) == []


def test_definitions_of_guests_that_are_all_shut_off_are_not_reported() -> None:
    off = GuestState.SHUTOFF
    assert judge_shared({}, with_vf(SECOND, off), with_vf(THIRD, off)) == []
    assert len(judge_shared({}, with_vf(SECOND), with_vf(THIRD, off))) == 1


# shrunk inventory: more is allocated than there is


NIC = uuid_of("nic0")
PLACED = {CONSUMER: {NIC: {"SRIOV_NET_VF": 2}}}


def with_inventory(inventory: Inventory) -> Observation:
    nic = next(provider for provider in HOST if provider.uuid == NIC)
    smaller = replace(nic, inventories={"SRIOV_NET_VF": inventory})
    tree = ProviderTree([*(provider for provider in HOST if provider.uuid != NIC), smaller, POOL])
    return replace(observe(placed=PLACED), host=ProviderIndex.of(tree, uuid_of("host")))


def test_the_consumers_of_what_is_too_small_are_named() -> None:
    (finding,) = ShrunkInventory().judge_host(with_inventory(Inventory(1)))
    assert finding.subject == NIC and finding.repair == () and CONSUMER in finding.reason
    assert finding.evidence == {
        "class": "SRIOV_NET_VF",
        "capacity": 1,
        "used": 2,
        "consumers": {CONSUMER: 2},
    }


def test_what_is_large_enough_or_fully_reserved_is_not_reported() -> None:
    for inventory in (Inventory(2), Inventory(1, reserved=1)):
        assert [*ShrunkInventory().judge_host(with_inventory(inventory))] == []


@pytest.mark.parametrize(("cap", "found"), [(0, True), (1, True), (2, False)])
def test_what_a_cap_reserves_whole_is_too_small_for_its_consumers(cap: int, found: bool) -> None:
    capped = with_inventory(Inventory(2, reserved=2))
    capped = replace(capped, host=replace(capped.host, caps={"SRIOV_NET_VF": cap, "PGPU": 0}))
    findings = [*ShrunkInventory().judge_host(capped)]
    assert [f"cap = SRIOV_NET_VF={cap}" in finding.reason for finding in findings] == [True] * found


def test_what_is_reserved_for_the_unclaimed_use_of_guests_makes_no_inventory_smaller() -> None:
    reserved = with_inventory(Inventory(3, reserved=2))
    assert [*ShrunkInventory().judge_host(reserved)] != []
    unreserved = with_inventory(Inventory(3)).host
    assert [*ShrunkInventory().judge_host(replace(reserved, unreserved=unreserved))] == []


# stale migration: what an ended move left, and a move that does not go on


HANDED = a_move(MoveState.BEGUN).handed


@pytest.mark.parametrize("state", sorted(END_STATES))
def test_what_an_ended_move_left_is_deleted_and_by_itself_if_it_cannot_begin_again(state: MoveState) -> None:
    observation = observe(moves=(a_move(state),))
    finding = StaleMigration().judge_consumer(consumer_case(observation, HANDED, MIGRATION))
    assert finding is not None and finding.own is (state is not MoveState.REVERTED)
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == {}


def test_an_unknown_migration_is_not_the_agents_and_keeps_what_it_has_elsewhere() -> None:
    there = {ELSEWHERE: {"VCPU": 1}}
    case = consumer_case(observe(), {**HANDED, **there}, MIGRATION, consumer_type="MIGRATION")
    finding = StaleMigration().judge_consumer(case)
    assert finding is not None and not finding.own and "does not know" in finding.reason
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == there
    assert StaleMigration().judge_consumer(consumer_case(observe(), HANDED)) is None


def test_a_move_whose_instance_was_deleted_may_be_confirmed() -> None:
    move = a_move(MoveState.BEGUN, MoveRole.SOURCE)
    finding = StaleMigration().judge_move(move_case(move, instance={}, migration=HANDED))
    assert finding is not None and not finding.own
    assert finding.repair == (EndMove(MIGRATION),)
    goes_on = move_case(move, instance={ELSEWHERE: {"VCPU": 2}}, migration=HANDED)
    assert StaleMigration().judge_move(goes_on) is None


def test_a_migration_that_may_be_of_an_instance_that_left_is_listed_and_left_alone() -> None:
    """Another client has changed its amounts, so whose migration it is cannot be told."""
    claims = claimed({"VCPU": 2})
    left = replace(observe(claims, placed={}), elsewhere={CONSUMER: {ELSEWHERE: {"VCPU": 2}}})
    smaller = {uuid: dict.fromkeys(amounts, 1) for uuid, amounts in HANDED.items()}
    case = consumer_case(left, smaller, MIGRATION, consumer_type="MIGRATION")
    assert case.is_comparable
    finding = StaleMigration().judge_consumer(case)
    assert finding is not None and finding.repair == () and CONSUMER in finding.reason
    assert "confirm" not in finding.reason


# stuck consumer: a claim or a release in doubt


def test_a_claim_that_is_not_final_is_delivered() -> None:
    for state in ClaimState:
        case = consumer_case(observe(claimed({"VCPU": 1}, state=state)), {})
        finding = StuckConsumer().judge_consumer(case)
        if state is ClaimState.CLAIMED:
            assert finding is None
        else:
            assert finding is not None and finding.own
            assert finding.repair == (Deliver(CONSUMER),)
            assert str(state) in finding.reason


# unclaimed instance: what a guest without a claim gets, and when that is not possible


def judge_unclaimed(guest: Guest) -> Finding:
    finding = UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(guest,)), {}))
    assert finding is not None and not finding.own
    return finding


def test_a_guest_claims_what_it_uses_where_its_devices_are() -> None:
    finding = judge_unclaimed(running(CONSUMER, UsedUnit("VGPU", "mdev", "gpu1"), VGPU=1, VCPU=2))
    (claim,) = finding.repair
    assert isinstance(claim, ClaimUse)
    assert claim.request.resources == {"VGPU": 1, "VCPU": 2}
    (vgpu,) = (group for group in claim.request.groups if group.suffix)
    assert vgpu.resources == {"VGPU": 1} and claim.restriction.bound == {vgpu.suffix: {uuid_of("gpu1")}}


def test_without_a_place_it_is_reported_with_the_reason() -> None:
    for guest, clause in (
        (running(CONSUMER, UsedUnit("VGPU", "mdev", "gpu7"), VGPU=1), "is on no provider of this host"),
        (running(CONSUMER), "are not known"),
    ):
        finding = judge_unclaimed(guest)
        assert finding.repair == () and clause in finding.reason


def test_only_an_allocation_that_the_agent_wrote_gets_its_claim_back() -> None:
    observation = observe(guests=(running(CONSUMER, VCPU=1),))
    finding = UnclaimedInstance().judge_consumer(consumer_case(observation, ONE_CPU_HERE))
    assert finding is not None and finding.own
    (take,) = finding.repair
    assert isinstance(take, TakeClaim) and take.request.resources == {"VCPU": 1}
    assert take.request.group_policy is None, "one group has none to be apart from"
    on_two = UnclaimedInstance().judge_consumer(
        consumer_case(observation, {**ONE_CPU_HERE, uuid_of("gpu0"): {"VGPU": 1}})
    )
    assert on_two is not None and isinstance(on_two.repair[0], TakeClaim)
    assert on_two.repair[0].request.group_policy == "none", "each group where its allocation is"
    assert [group.suffix for group in on_two.repair[0].request.groups] == ["_1", "_2"]
    others = consumer_case(observation, ONE_CPU_HERE, owner=("project", "user"))
    assert UnclaimedInstance().judge_consumer(others) is None


def test_a_guest_that_is_merely_defined_needs_no_allocation() -> None:
    off = in_state(GuestState.SHUTOFF, running(CONSUMER, VCPU=1))
    assert UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(off,)), {})) is None
    with_allocation = UnclaimedInstance().judge_consumer(consumer_case(observe(guests=(off,)), ONE_CPU_HERE))
    assert with_allocation is not None and with_allocation.own


# unhealthy device: a device that is withheld because it is not well


ILL = DeviceHealth(VFS[0], HealthState.UNHEALTHY, causes=frozenset({Symptom.NO_ANSWER}), since=7.0)
GUEST = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01"


def test_the_finding_names_the_symptom_and_who_has_the_device_by_claim_or_use() -> None:
    guest = running(GUEST, UsedUnit("SRIOV_NET_VF", VFS[0], "nic0"))
    seen = observe(claimed({"SRIOV_NET_VF": 1}), guests=(guest,))
    (finding,) = UnhealthyDevice().judge_host(replace(seen, unhealthy={VFS[0]: ILL}))
    assert (finding.subject, finding.own, finding.repair) == (VFS[0], False, ())
    assert finding.evidence == {"symptoms": ["no answer"], "since": 7.0, "consumers": [CONSUMER, GUEST]}
    assert finding.reason.startswith(ILL.sentence) and f"{CONSUMER}, {GUEST} have it." in finding.reason


def test_a_device_that_nobody_has_is_found_as_well() -> None:
    (finding,) = UnhealthyDevice().judge_host(replace(observe(), unhealthy={VFS[0]: ILL}))
    assert finding.reason == ILL.sentence and finding.evidence["consumers"] == []
    assert [*UnhealthyDevice().judge_host(observe())] == []


def test_who_has_a_part_of_a_card_has_the_card() -> None:
    claims = claimed({"SRIOV_NET_VF": 1})
    (provider,) = claims[CONSUMER].units
    seen = replace(observe(claims), devices={"pci:0000:41:00.0": provider})
    card = replace(ILL, address="0000:41:00.0")
    (finding,) = UnhealthyDevice().judge_host(replace(seen, unhealthy={card.address: card}))
    assert finding.evidence["consumers"] == [CONSUMER]


# unknown device: a guest uses what this host does not offer


LOST = "0000:99:00.1"


def test_only_units_of_a_class_whose_units_the_driver_names_are_unknown() -> None:
    guest = running(
        CONSUMER,
        UsedUnit("SRIOV_NET_VF", LOST, "nic9"),
        UsedUnit("SRIOV_NET_VF", VFS[0], "nic0"),
        UsedUnit("VGPU", "mdev", "gpu9"),
    )
    (finding,) = UnknownDevice().judge_host(observe(guests=(guest,)))
    assert finding.subject == LOST and finding.repair == ()
    assert finding.evidence == {"guest": CONSUMER, "class": "SRIOV_NET_VF", "device": "nic9"}


def test_a_guest_that_could_not_be_read_or_is_shut_off_is_not_compared() -> None:
    guest = running(CONSUMER, UsedUnit("SRIOV_NET_VF", LOST, "nic9"))
    for unclear in (replace(guest, problem="odd XML"), in_state(GuestState.SHUTOFF, guest)):
        assert [*UnknownDevice().judge_host(observe(guests=(unclear,)))] == []


# unlinked move: a move from this host whose migration the agent cannot name


MOVED = {uuid_of("gpu0"): {"VCPU": 2}}
CLAIM = claimed({"VCPU": 2})[CONSUMER]
TWIN = uuid_of("the twin")


def sentence(
    claims: dict[str, Claim], consumer_type: str = MIGRATION_TYPE, **placed: Allocations
) -> str | None:
    """What is found about CONSUMER, whose instance is elsewhere, as those of all these claims."""
    lost = observe(claims, placed={uuid_of(name): each for name, each in placed.items()})
    types = {uuid_of(name): consumer_type for name in placed}
    case = consumer_case(replace(lost, elsewhere=dict.fromkeys(claims, THERE), types=types), THERE)
    found = UnlinkedMove().judge_consumer(case)
    assert found is None or (found.subject, found.own, found.repair) == (CONSUMER, False, ())
    return found.reason if found else None


def test_a_migration_with_just_the_place_is_learned_of_at_the_next_look() -> None:
    assert sentence({CONSUMER: CLAIM}, migration=HERE) is None


def test_nobody_with_as_much_is_no_move_under_way() -> None:
    assert sentence({CONSUMER: CLAIM}) is None
    assert sentence({CONSUMER: CLAIM}, migration={uuid_of("host"): {"VCPU": 1}}) is None


def test_a_place_on_other_providers_is_named() -> None:
    found = sentence({CONSUMER: CLAIM}, migration=MOVED)
    assert found is not None and uuid_of("migration") in found and "on its other host" in found


def test_two_moves_that_look_alike_are_named() -> None:
    twins = {CONSUMER: CLAIM, TWIN: replace(CLAIM, consumer=TWIN)}
    found = sentence(twins, migration=HERE, other=HERE)
    assert found is not None and f"--instance {CONSUMER}" in found
    assert uuid_of("migration") in found and uuid_of("other") in found
    assert sentence(twins, migration=HERE) is not None, "whose it is, is as uncertain"


@pytest.mark.parametrize("consumer_type", ["", "unknown"])
def test_no_end_of_a_move_is_advised_where_the_consumer_may_be_an_instance(consumer_type: str) -> None:
    twins = {CONSUMER: CLAIM, TWIN: replace(CLAIM, consumer=TWIN)}
    for found in (
        sentence({CONSUMER: CLAIM}, consumer_type, migration=MOVED),
        sentence(twins, consumer_type, migration=HERE, other=HERE),
    ):
        assert found is not None and f"{uuid_of('migration')}" in found
        assert "confirm" not in found.lower() and "revert" not in found.lower()
        assert "may be an instance of its own" in found


def test_an_instance_that_is_here_or_nowhere_has_not_left() -> None:
    observation = observe({CONSUMER: CLAIM}, placed={MIGRATION: MOVED})
    for placed in (HERE, {}):
        assert UnlinkedMove().judge_consumer(consumer_case(observation, placed)) is None


# uses less: a guest without something that it has claimed


WITH_A_DISK = claimed({"VCPU": 2, "SRIOV_NET_VF": 1, "DISK_GB": 10})
(VF,) = WITH_A_DISK[CONSUMER].units[uuid_of("nic0")]["SRIOV_NET_VF"]
WITH_VF = running(CONSUMER, UsedUnit("SRIOV_NET_VF", VF, "nic0"), VCPU=2, SRIOV_NET_VF=1)


def test_a_guest_without_the_device_that_it_claimed_is_reported_with_the_unit() -> None:
    (finding,) = row_findings(UsesLess(), observe(WITH_A_DISK, guests=(running(CONSUMER, VCPU=2),)))
    assert finding.evidence["missing"] == {"SRIOV_NET_VF": 1} and finding.evidence["units"] == [VF]
    assert f"1 SRIOV_NET_VF ({VF}) are missing" in finding.reason and not finding.repair
    assert row_findings(UsesLess(), observe(WITH_A_DISK, guests=(WITH_VF,))) == []


def test_a_unit_is_named_with_the_amount_of_its_own_class() -> None:
    (finding,) = row_findings(UsesLess(), observe(WITH_A_DISK, guests=(running(CONSUMER, VCPU=1),)))
    assert f"1 SRIOV_NET_VF ({VF}), 1 VCPU are missing" in finding.reason


def test_a_guest_that_does_not_run_here_or_is_not_known_is_not_compared() -> None:
    without = running(CONSUMER, VCPU=2)
    states = (GuestState.SHUTOFF, GuestState.CRASHED, GuestState.STARTING, GuestState.MIGRATING)
    for guest in (*(in_state(state, without) for state in states), running(CONSUMER)):
        assert row_findings(UsesLess(), observe(WITH_A_DISK, guests=(guest,))) == []


def test_without_a_claim_the_allocation_counts() -> None:
    placed = {CONSUMER: {uuid_of("host"): {"VCPU": 4}}}
    (finding,) = row_findings(UsesLess(), observe(guests=(running(CONSUMER, VCPU=2),), placed=placed))
    assert finding.evidence["missing"] == {"VCPU": 2} and "its allocation" in finding.reason


def test_during_a_move_the_claim_of_the_migration_counts() -> None:
    move = a_move(MoveState.BEGUN)
    moving = observe(claims_of(move), guests=(running(CONSUMER, VCPU=1),), moves=(move,))
    (finding,) = row_findings(UsesLess(), moving)
    assert finding.evidence["missing"] == {"VCPU": 1}


# uses more: a guest that grew past what it has


ROOT = uuid_of("host")
FUNCTIONS = tuple(UsedUnit("SRIOV_NET_VF", vf, "nic0") for vf in VFS)
GROWN = running(CONSUMER, *FUNCTIONS, VCPU=8, MEMORY_MB=4000, SRIOV_NET_VF=2)
WITH_A_VF = claimed({"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 1})


def test_what_a_guest_grew_by_is_named_by_provider_and_claimed_by_its_repair() -> None:
    (finding,) = row_findings(UsesMore(), observe(WITH_A_VF, guests=(GROWN,)))
    assert finding.subject == CONSUMER and not finding.own
    assert finding.evidence["more"] == {ROOT: {"VCPU": 6, "MEMORY_MB": 1952}, NIC: {"SRIOV_NET_VF": 1}}
    (other,) = set(VFS) - set(WITH_A_VF[CONSUMER].units[NIC]["SRIOV_NET_VF"])
    assert f"1 SRIOV_NET_VF ({other}) on nic0" in finding.reason
    assert "1952 MEMORY_MB, 6 VCPU on host" in finding.reason and finding.reason.count("(") == 1
    (step,) = finding.repair
    assert isinstance(step, RecordUse) and step.before == WITH_A_VF[CONSUMER]
    assert step.after.allocations == {ROOT: {"VCPU": 8, "MEMORY_MB": 4000}, NIC: {"SRIOV_NET_VF": 2}}
    assert set(step.after.units[NIC]["SRIOV_NET_VF"]) == set(VFS)
    assert step.after.request.resources == {"VCPU": 8, "MEMORY_MB": 4000, "SRIOV_NET_VF": 2}
    assert "8" not in finding.evidence["claim"]


def test_a_guest_with_just_what_it_claimed_is_not_reported() -> None:
    claimed_vf = WITH_A_VF[CONSUMER].units[NIC]["SRIOV_NET_VF"][0]
    vf = UsedUnit("SRIOV_NET_VF", claimed_vf, "nic0")
    guest = running(CONSUMER, vf, VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)
    assert row_findings(UsesMore(), observe(WITH_A_VF, guests=(guest,))) == []


def test_without_a_claim_the_allocation_counts_and_nothing_is_repaired() -> None:
    placed = {CONSUMER: {ROOT: {"VCPU": 2, "MEMORY_MB": 2048}}}
    (finding,) = row_findings(UsesMore(), observe(guests=(GROWN,), placed=placed))
    assert finding.evidence["more"][NIC] == {"SRIOV_NET_VF": 2}
    assert finding.repair == () and "its allocation" in finding.reason
    assert row_findings(UsesMore(), observe(guests=(GROWN,), placed={})) == []  # an unclaimed instance


@pytest.mark.parametrize(("cpus", "more"), [(2, 0), (4, 0), (5, 1)])
def test_during_a_resize_a_guest_may_have_the_old_or_the_new_size(cpus: int, more: int) -> None:
    (new,) = claimed({"VCPU": 4}).values()
    move = replace(a_move(MoveState.BEGUN, MoveRole.BOTH), new=new)
    claims = claims_of(move)
    assert claims.keys() == {CONSUMER, MIGRATION}
    found = row_findings(UsesMore(), observe(claims, guests=(running(CONSUMER, VCPU=cpus),), moves=(move,)))
    assert [finding.evidence["more"] for finding in found] == ([{ROOT: {"VCPU": more}}] if more else [])
    assert not any(finding.repair for finding in found)


# vanished unit: a claimed unit that the host does not have any more


TWO_VFS = claimed({"SRIOV_NET_VF": 2})


def test_each_unit_that_is_gone_is_named_with_its_consumer() -> None:
    assert row_findings(VanishedUnit(), observe(TWO_VFS)) == []
    left = {**UNITS, NIC: {"SRIOV_NET_VF": VFS[:1]}}
    (finding,) = row_findings(VanishedUnit(), replace(observe(TWO_VFS), offered=left))
    assert finding.subject == CONSUMER and finding.evidence["units"] == [VFS[1]]
    assert VFS[1] in finding.reason and not finding.repair
    assert finding.reason.startswith(f"{CONSUMER} has claimed") and "virtual functions" in finding.reason
    named = replace(TWO_VFS[CONSUMER], request=replace(TWO_VFS[CONSUMER].request, name="web1"))
    (finding,) = row_findings(VanishedUnit(), replace(observe({CONSUMER: named}), offered=left))
    assert finding.reason.startswith(f"web1 ({CONSUMER}) has claimed")


def test_a_unit_that_is_still_to_be_made_has_not_vanished() -> None:
    claim = replace(TWO_VFS[CONSUMER], makings={vf: {"parent": "0000:41:00.0", "type": "t"} for vf in VFS})
    observation = replace(observe({CONSUMER: claim}), offered={})
    assert row_findings(VanishedUnit(), observation) == []


# wrong provider: an allocation on other providers than the claim


A_VGPU = claimed({"VGPU": 1})
ITS_CARD = A_VGPU[CONSUMER].allocations
OTHER_CARD = uuid_of("gpu1") if uuid_of("gpu0") in ITS_CARD else uuid_of("gpu0")
judge_provider = WrongProvider().judge_consumer


def test_the_claims_providers_are_written_again() -> None:
    finding = judge_provider(consumer_case(observe(A_VGPU), {OTHER_CARD: {"VGPU": 2}}))
    assert finding is not None and not finding.own
    (step,) = finding.repair
    assert isinstance(step, WriteAllocations) and step.write.allocations == ITS_CARD


@pytest.mark.parametrize("runs", [False, True])
def test_the_same_amounts_elsewhere_without_exact_units_are_moved_by_nobody(runs: bool) -> None:
    """A restored journal, or another client's write: the guest does not say on which card its VGPU is."""
    guests = [running(CONSUMER, VGPU=1)] if runs else []
    finding = judge_provider(consumer_case(observe(A_VGPU, guests=guests), {OTHER_CARD: {"VGPU": 1}}))
    assert finding is not None and not finding.repair
    assert "on a guess" in finding.reason and "plimsoll release" in finding.reason


def test_other_amounts_on_the_same_provider_are_another_finding() -> None:
    more = {uuid: {"VGPU": 2} for uuid in ITS_CARD}
    assert judge_provider(consumer_case(observe(A_VGPU), more)) is None


def test_a_claim_from_before_a_reshape_follows_it() -> None:
    """The card had another name, and the restored journal still has that."""
    former, (card,) = uuid_of("former name"), ITS_CARD
    before = replace(A_VGPU[CONSUMER], allocations={former: {"VGPU": 1}})
    lead = Instruction(MoveInstruction("former name", {"VGPU": 4}, "card"), former, card)
    observation = replace(observe({CONSUMER: before}, placed={CONSUMER: ITS_CARD}), leads=(lead,))
    finding = judge_provider(consumer_case(observation, ITS_CARD))
    assert finding is not None and finding.own
    assert finding.repair == (
        FollowReshape(CONSUMER, (Relocation(CONSUMER, "VGPU", 1, former, card, "VGPU"),)),
    )
    other = judge_provider(consumer_case(observation, {card: {"VGPU": 2}}))
    assert other is not None and isinstance(other.repair[0], WriteAllocations), "no reshape adds a unit"
