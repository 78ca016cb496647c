"""Amounts, claims and moves follow the claimed units: random hosts against a count by hand.

Between two descriptions cards get other names, VFs change cards, devices are counted on the root or on their
cards. Where each unit is now is drawn first; the trees, the instructions and the expectation follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.reshape_trees import ROOT, consumer

from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import DescribedProvider, Description, Guest, GuestState, MoveInstruction, UsedUnit
from agent.errors import ReshapeRefused
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, claims_of
from agent.reshape.claimed_units import (
    ExactUnits,
    HostRecords,
    claimed_places,
    name_claimed_cells,
    name_migrations,
    places_of_units,
    relocations_of_record,
    with_missing,
    without_claimed,
)
from agent.reshape.due_instructions import due_instructions
from agent.reshape.laws import Reshape, Slot, resolve_instructions
from agent.reshape.plan import plan_reshape
from agent.reshape.relocate import relocate_records
from agent.shapes import Allocations
from agent.tree import Inventory, Provider, ProviderTree

VF = "SRIOV_NET_VF"
CARD = {name: f"00000000-0000-0000-0000-00000000c{ord(name):03d}" for name in "abcdef"}
UUID = {"host": ROOT, **CARD}


@dataclass(frozen=True)
class Case:
    """{unit: card} before and after, {owner: units}; a migration holds those of each of the `moving` ones."""

    before: dict[str, str]
    after: dict[str, str]
    owners: dict[str, tuple[str, ...]]
    moving: frozenset[str]
    seen: frozenset[str]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    units = [f"0000:00:{number:02x}.0" for number in range(draw(st.integers(1, 8)))]
    old = draw(st.sampled_from([("host",), ("a", "b"), ("a", "b", "c")]))
    new = draw(st.sampled_from([("b", "c"), ("host",), ("a", "b"), ("d", "e", "f"), ("a", "d")]))
    before = {unit: draw(st.sampled_from(old)) for unit in units}
    after = {unit: draw(st.sampled_from(new)) for unit in units}
    free = list(draw(st.permutations(units)))
    owners = {}
    for number in range(draw(st.integers(0, 4))):
        taken = free[: draw(st.integers(1, 2))]
        free = free[len(taken) :]
        if taken:
            owners[consumer(number)] = tuple(taken)
    moving = frozenset(name for name in owners if draw(st.booleans()))
    return Case(before, after, owners, moving, frozenset(name for name in owners if draw(st.booleans())))


def tree(places: dict[str, str]) -> ProviderTree:
    totals = Counter(places.values())
    host = {"VCPU": Inventory(64), **({VF: Inventory(totals["host"])} if totals["host"] else {})}
    cards = [
        Provider(CARD[name], name, ROOT, {VF: Inventory(total)})
        for name, total in sorted(totals.items())
        if name != "host"
    ]
    return ProviderTree([Provider(ROOT, "host", None, host), *cards])


def counted(units: tuple[str, ...], places: dict[str, str]) -> dict[str, dict[str, int]]:
    """What a consumer with one VCPU and these units holds."""
    held: dict[str, dict[str, int]] = {ROOT: {"VCPU": 1}}
    for name, amount in Counter(places[unit] for unit in units).items():
        held.setdefault(UUID[name], {})[VF] = amount
    return held


def test_a_missing_unit_is_parked_where_its_provider_is_still_there() -> None:
    host, gone = Slot(ROOT, VF), Slot(CARD["a"], VF)
    located = {consumer(1): {host: Counter({None: 2}), gone: Counter({None: 1})}}
    (parked,) = with_missing((), located, ProviderTree([Provider(ROOT, "host")]))
    assert parked == MoveInstruction("host", {VF: 2}, "host", {consumer(1): {VF: 2}})


@pytest.mark.parametrize(
    ("bandwidth", "goes"), [(900, True), (1000, False)], ids=["divisible", "not divisible"]
)
def test_what_travels_with_the_units_of_a_claim_that_holds_nothing_is_divided_as_these_are(
    bandwidth: int, *, goes: bool
) -> None:
    rate, more = "NET_BW_EGR_KILOBIT_PER_SEC", {"VCPU": Inventory(64)}
    both = {VF: Inventory(4), rate: Inventory(1000)}
    cards = [Provider(CARD[name], name, ROOT, both) for name in "ab"]
    desired = ProviderTree([Provider(ROOT, "host", None, more), *cards])
    current = ProviderTree([Provider(ROOT, "host", None, {**more, **both})])
    moves = [MoveInstruction("host", {VF: 4, rate: 1000}, card.name) for card in cards]
    amounts = {VF: 3, rate: bandwidth, "VCPU": 1}
    request = ClaimRequest(consumer(1), (RequestGroup("", amounts),))
    claim = Claim(consumer(1), ClaimState.CLAIMED, request, {ROOT: amounts})
    places = {Slot(ROOT, VF): {Slot(CARD["a"], VF): 2, Slot(CARD["b"], VF): 1}}
    found = relocations_of_record(claim, places, resolve_instructions(moves, current, desired))
    expected = [(VF, 2, "a"), (VF, 1, "b"), *([(rate, 600, "a"), (rate, 300, "b")] if goes else [])]
    assert sorted(found) == sorted(
        (consumer(1), name, amount, ROOT, CARD[card], name) for name, amount, card in expected
    )


def exact_at(units: tuple[str, ...], places: dict[str, str]) -> dict[str, set[str]]:
    return {UUID[name]: {u for u in units if places[u] == name} for name in {places[u] for u in units}}


def claim_of(owner: str, units: tuple[str, ...], places: dict[str, str]) -> Claim:
    exact = {uuid: {VF: tuple(sorted(names))} for uuid, names in exact_at(units, places).items()}
    return Claim(owner, ClaimState.CLAIMED, ClaimRequest(owner, ()), counted(units, places), exact)


def instructions_of(case: Case) -> tuple[MoveInstruction, ...]:
    """Each card from each other place; the driver names a guest where it sees one, also while it moves."""
    guests: dict[str, dict[str, dict[str, int]]] = {}
    for owner in sorted(case.seen):
        for name, amount in Counter(case.after[unit] for unit in case.owners[owner]).items():
            guests.setdefault(name, {})[owner] = {VF: amount}
    moves = []
    for target in sorted(set(case.after.values())):
        for source in sorted(set(case.before.values()) - {target}):
            arrived = sum(case.before[unit] == source and case.after[unit] == target for unit in case.before)
            if arrived:
                moves.append(MoveInstruction(source, {VF: arrived}, target, guests.get(target, {})))
    return tuple(moves)


def records_of(case: Case) -> HostRecords:
    claims, moves = {}, {}
    for number, (owner, units) in enumerate(sorted(case.owners.items())):
        claim = claim_of(owner, units, case.before)
        if owner not in case.moving:
            claims[owner] = claim
            continue
        migration = consumer(100 + number)
        handed = claim.allocations
        moves[migration] = Move(
            migration, owner, MoveKind.UNKNOWN, MoveRole.SOURCE, MoveState.BEGUN, claim, None, handed, 0.0
        )
        claims |= claims_of(moves[migration])
    offered: dict[str, dict[str, tuple[str, ...]]] = {}
    for unit, name in sorted(case.after.items()):
        offered.setdefault(UUID[name], {}).setdefault(VF, ())
        offered[UUID[name]][VF] += (unit,)
    guests = [
        Guest(
            owner,
            "guest",
            GuestState.RUNNING,
            {},
            tuple(UsedUnit(VF, unit, case.after[unit]) for unit in case.owners[owner]),
        )
        for owner in sorted(case.seen)
    ]
    return HostRecords(claims, moves, ExactUnits(offered, guests))


def planned(case: Case, records: HostRecords) -> Reshape | None:
    """The reshape as the pass plans it, None where nothing is due."""
    current, desired = tree(case.before), tree(case.after)
    held = {owner: claim.allocations for owner, claim in records.claims.items()}
    moves = resolve_instructions(name_migrations(instructions_of(case), records.moves), current, desired)
    located = places_of_units(records, moves)
    on_provider: dict[str, dict[str, dict[str, int]]] = {}
    for owner, allocations in held.items():
        for uuid, amounts in allocations.items():
            on_provider.setdefault(uuid, {})[owner] = dict(amounts)
    due = due_instructions(without_claimed(moves, located), current, desired, on_provider, located)
    if not due:
        return None
    places = claimed_places(records, places_of_units(records, due), held, ())
    return plan_reshape(current, desired, due, held, claimed=places, may_grow=True)


@given(cases())
def test_every_unit_stays_with_its_owner_where_it_is_now(case: Case) -> None:
    records = records_of(case)
    reshape = planned(case, records)
    held = {
        owner: (reshape.allocations if reshape else {}).get(owner, claim.allocations)
        for owner, claim in records.claims.items()
    }
    relocated = relocate_records(
        reshape.relocations if reshape else (), records.claims, records.moves, records.exact
    )
    claims = {**records.claims, **{claim.consumer: claim for claim in relocated.claims}}
    moves = {**records.moves, **{move.migration: move for move in relocated.moves}}
    migrations = {move.instance: migration for migration, move in moves.items()}
    for owner, units in case.owners.items():
        bearer = migrations.get(owner, owner)
        assert held[bearer] == claims[bearer].allocations == counted(units, case.after)
        assert {u: set(c[VF]) for u, c in claims[bearer].units.items()} == exact_at(units, case.after)
        if owner in migrations:
            old = moves[bearer].old
            assert old.allocations == moves[bearer].handed == counted(units, case.after)
            assert {u: set(c[VF]) for u, c in old.units.items()} == exact_at(units, case.after)
    taken = [unit for claim in claims.values() for _, _, unit in claim.exact]
    assert len(taken) == len(set(taken)), "one owner"


UNITS_OF_TWO = ("0000:00:00.0", "0000:00:01.0")
"""Both are on the host, and then one on each of the cards a and b."""


def to_two_cards(owners: dict[str, tuple[str, ...]], moving: frozenset[str] = frozenset()) -> Case:
    after = dict(zip(UNITS_OF_TWO, "ab", strict=True))
    return Case(dict.fromkeys(UNITS_OF_TWO, "host"), after, owners, moving, frozenset())


def planned_from(
    case: Case, records: HostRecords, held: dict[str, Allocations], migrations: Collection[str] = ()
) -> Reshape:
    """The reshape of all that Placement holds, with instructions that name no consumer."""
    current, desired = tree(case.before), tree(case.after)
    moves = resolve_instructions(
        [MoveInstruction("host", {VF: 1}, name, {}) for name in sorted(set(case.after.values()))],
        current,
        desired,
    )
    places = claimed_places(records, places_of_units(records, moves), held, migrations)
    return plan_reshape(current, desired, moves, held, claimed=places)


def test_a_unit_that_is_nowhere_refuses() -> None:
    case = Case({"0000:00:00.0": "host"}, {"0000:00:01.0": "a"}, {}, frozenset(), frozenset())
    claim = claim_of(consumer(1), ("0000:00:00.0",), case.before)
    records = replace(records_of(case), claims={claim.consumer: claim})
    with pytest.raises(ReshapeRefused, match="are on no provider now"):
        planned_from(case, records, {claim.consumer: claim.allocations})


def test_what_a_migration_bears_without_a_record_follows_the_claim() -> None:
    """The source was down at the begin: the claim is the instance's, and the migration holds its part."""
    case, units = to_two_cards({}), UNITS_OF_TWO[1:]
    claim = claim_of(consumer(1), units, case.before)
    records = replace(records_of(case), claims={claim.consumer: claim})
    reshape = planned_from(case, records, {consumer(9): claim.allocations}, {consumer(9)})
    assert reshape.allocations == {consumer(9): counted(units, case.after)}
    relocations = (*reshape.relocations, *reshape.records)
    (followed,) = relocate_records(relocations, records.claims, {}, records.exact).claims
    assert followed.allocations == counted(units, case.after)
    assert followed.units == {CARD["b"]: {VF: units}}


def test_what_a_reverted_move_gave_back_follows_the_claim_of_its_migration() -> None:
    """Another host reverted the move, and this one has not learned of it: the claim is the migration's."""
    units = UNITS_OF_TWO[1:]
    case = to_two_cards({consumer(1): units}, frozenset({consumer(1)}))
    records = records_of(case)
    reshape = planned_from(case, records, {consumer(1): counted(units, case.before)})
    assert reshape.allocations == {consumer(1): counted(units, case.after)}
    relocations = (*reshape.relocations, *reshape.records)
    (move,) = relocate_records(relocations, records.claims, records.moves, records.exact).moves
    assert move.old.allocations == move.handed == counted(units, case.after)
    assert move.old.units == {CARD["b"]: {VF: units}}
    with pytest.raises(ReshapeRefused, match="no instruction says which units these are"):
        planned_from(case, records, {consumer(1): counted(UNITS_OF_TWO, case.before)})  # not just the same


@pytest.mark.parametrize(
    ("kind", "role", "units", "named"),
    [
        (MoveKind.RESIZE, MoveRole.SOURCE, (), consumer(9)),
        (MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, ("4", "5"), consumer(9)),
        (MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, ("6", "7"), consumer(1)),
        (MoveKind.SAME_HOST_RESIZE, MoveRole.BOTH, (), consumer(1)),
    ],
    ids=["it leaves", "it has the old units", "it has the new units", "nobody knows"],
)
def test_a_guest_is_named_by_the_consumer_that_has_its_units(
    kind: MoveKind, role: MoveRole, units: tuple[str, ...], named: str
) -> None:
    old, new = (
        Claim(
            consumer(1),
            ClaimState.CLAIMED,
            ClaimRequest(consumer(1), ()),
            {ROOT: {"PCPU": 2}},
            {ROOT: {"PCPU": cpus}},
        )
        for cpus in (("4", "5"), ("6", "7"))
    )
    move = Move(consumer(9), consumer(1), kind, role, MoveState.BEGUN, old, new, old.allocations, 0.0)
    guest = Guest(
        consumer(1),
        "guest",
        GuestState.RUNNING,
        {"PCPU": 2},
        tuple(UsedUnit("PCPU", unit, "host") for unit in units),
    )
    told = MoveInstruction("host", {"VCPU": 4}, "host", {consumer(1): {"VCPU": 2}}, {"VCPU": "PCPU"})
    (instruction,) = name_migrations([told], {consumer(9): move}, [guest])
    assert instruction.consumers == {named: {"VCPU": 2}}


PLACED = PlacedCell(0, 1, {0: 4, 1: 5}, frozenset({6}), 4, 2048, frozenset({2}))
PROVIDERS = (
    DescribedProvider("host", None, {}),
    DescribedProvider("cell0", "host", {}, cell=0),
    DescribedProvider("cell1", "host", {}, cell=1),
    DescribedProvider("gpu0", "host", {}),
)


def claim(*cells: PlacedCell) -> Claim:
    request = ClaimRequest(consumer(1), ())
    return Claim(consumer(1), ClaimState.CLAIMED, request, {ROOT: {"PCPU": 3}}, cells=cells)


def description(*moves: MoveInstruction) -> Description:
    return Description(PROVIDERS, moves)


def test_the_claim_is_named_on_its_cell_and_on_no_other() -> None:
    """The driver saw the guest on the other cell."""
    mistaken = {consumer(1): {"PCPU": 3}, consumer(2): {"PCPU": 1}}
    moves = (
        MoveInstruction("host", {"PCPU": 8, "MEMORY_MB": 4096}, "cell0", mistaken),
        MoveInstruction("host", {"PCPU": 8, "MEMORY_MB": 4096}, "cell1"),
    )
    to_cell0, to_cell1 = name_claimed_cells(description(*moves), {consumer(1): claim(PLACED)}, {}).moves
    assert to_cell0.consumers == {consumer(2): {"PCPU": 1}}
    assert to_cell1.consumers == {consumer(1): {"PCPU": 3, "MEMORY_MB": 2048}}


@pytest.mark.parametrize("claims_anew", [False, True])
def test_a_migration_is_named_on_the_cell_of_its_claim_instead_of_the_guest(*, claims_anew: bool) -> None:
    """Unless the instance has a claim of its own here, too: then that says nothing of its cells."""
    told = {consumer(2): {"VCPU": 1}, consumer(3): {"VCPU": 2}}
    moves = description(MoveInstruction("host", {"VCPU": 8}, "cell1", told))
    old = claim(PLACED)
    kind, role = MoveKind.COLD_MIGRATE, MoveRole.SOURCE
    move = Move(consumer(1), consumer(2), kind, role, MoveState.BEGUN, old, None, {}, 0.0)
    claims = {consumer(1): old, **({consumer(2): claim()} if claims_anew else {})}
    (named,) = name_claimed_cells(moves, claims, {consumer(1): move}).moves
    guest = {consumer(2): {"VCPU": 1}} if claims_anew else {}
    assert named.consumers == {consumer(1): {"VCPU": 1}, consumer(3): {"VCPU": 2}, **guest}


def test_other_moves_and_claims_without_cells_change_nothing() -> None:
    moves = description(
        MoveInstruction("host", {"VGPU": 1}, "gpu0"),
        MoveInstruction("cell0", {"VCPU": 2}, "cell1", becomes={"VCPU": "PCPU"}),
    )
    assert name_claimed_cells(moves, {consumer(1): claim(PLACED)}, {}).moves == moves.moves
    to_cell = description(MoveInstruction("host", {"PCPU": 8}, "cell0"))
    assert name_claimed_cells(to_cell, {consumer(1): claim()}, {}) == to_cell
