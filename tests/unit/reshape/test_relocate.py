"""The agent's records after a reshape: the claims and the moves follow, with units that are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kits.reshape_trees import GPU, ROOT, consumer

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, MoveInstruction, UsedUnit
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, claims_of
from agent.providers.resolve import uuid_of_new
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.laws import Instruction, Relocation, Slot
from agent.reshape.receipt import Receipt
from agent.reshape.relocate import (
    claims_of_migrations,
    follow_inventory,
    follow_placement,
    leads_back,
    leads_of,
    passages,
    places_of_claims,
    relocate_allocations,
    relocate_records,
    unheld_claims,
    whereabouts,
)
from agent.shapes import Allocations
from agent.tree import Inventory, Provider, ProviderTree

OFFERED = {GPU[0]: {"VGPU": ("a", "b", "c", "d")}}


def claim(number: int, amount: int, *units: str) -> Claim:
    return Claim(
        consumer(number),
        ClaimState.CLAIMED,
        ClaimRequest(consumer(number), ()),
        {ROOT: {"VCPU": 1, "VGPU": amount}},
        {ROOT: {"VGPU": units}} if units else {},
    )


def to_gpu(number: int, amount: int) -> Relocation:
    return Relocation(consumer(number), "VGPU", amount, ROOT, GPU[0], "VGPU")


def guest(number: int, *units: str) -> Guest:
    used = tuple(UsedUnit("VGPU", unit, "pci:0000:00:00.0") for unit in units)
    return Guest(consumer(number), f"guest{number}", GuestState.RUNNING, {"VGPU": len(units)}, used)


def test_a_claim_follows_and_keeps_the_units_that_its_guest_uses() -> None:
    claims = {consumer(1): claim(1, 2, "b", "d"), consumer(2): claim(2, 1)}
    exact = ExactUnits(OFFERED, [guest(1, "c")])
    records = relocate_records([to_gpu(1, 2)], claims, {}, exact)
    (changed,) = records.claims
    assert changed.allocations == {ROOT: {"VCPU": 1}, GPU[0]: {"VGPU": 2}}
    assert changed.units == {GPU[0]: {"VGPU": ("c", "d")}}, "the guest's in place of one that it does not use"


def test_units_of_other_claims_and_guests_are_not_given_out() -> None:
    other = Claim(
        consumer(2),
        ClaimState.CLAIMED,
        ClaimRequest(consumer(2), ()),
        {GPU[0]: {"VGPU": 1}},
        {GPU[0]: {"VGPU": ("a",)}},
    )
    claims = {consumer(1): claim(1, 2), consumer(2): other}
    exact = ExactUnits(OFFERED, [guest(3, "b")])
    (changed,) = relocate_records([to_gpu(1, 2)], claims, {}, exact).claims
    assert changed.units == {GPU[0]: {"VGPU": ("c", "d")}}
    exact = ExactUnits(OFFERED, [guest(1, "d")])
    (changed,) = relocate_records([to_gpu(1, 2)], claims, {}, exact).claims
    assert changed.units == {GPU[0]: {"VGPU": ("d", "b")}}, "first what its own guest uses"


def test_a_move_under_way_follows_with_its_claim_and_an_ended_one_stays() -> None:
    old, new = claim(9, 1), claim(1, 1)
    move = Move(
        consumer(9),
        consumer(1),
        MoveKind.RESIZE,
        MoveRole.BOTH,
        MoveState.BEGUN,
        old,
        new,
        {ROOT: {"VGPU": 1}},
        0.0,
    )
    ended = Move(
        consumer(8),
        consumer(1),
        MoveKind.RESIZE,
        MoveRole.BOTH,
        MoveState.CONFIRMED,
        old,
        new,
        {},
        0.0,
    )
    claims = {consumer(1): new, consumer(9): old}
    moves = {consumer(9): move, consumer(8): ended}
    records = relocate_records([to_gpu(9, 1), to_gpu(1, 1)], claims, moves, ExactUnits(OFFERED, []))
    (followed,) = records.moves
    assert followed.handed == {GPU[0]: {"VGPU": 1}}
    assert followed.old.allocations == {ROOT: {"VCPU": 1}, GPU[0]: {"VGPU": 1}}
    assert followed.new is not None and followed.new in records.claims
    units = [claim.units[GPU[0]]["VGPU"] for claim in (followed.old, followed.new)]
    assert sorted(units) == [("a",), ("b",)], "no unit twice"


@pytest.mark.parametrize("kind", [MoveKind.SAME_HOST_RESIZE, MoveKind.COLD_MIGRATE])
def test_the_claims_of_a_move_are_those_that_its_record_has_also_where_a_class_changes(
    kind: MoveKind,
) -> None:
    """A migration's claim asks for what the migration holds: after this reshape, for dedicated CPUs."""
    old, new = claim(1, 1, "a"), claim(1, 1, "b")
    is_here = kind is MoveKind.SAME_HOST_RESIZE
    role = MoveRole.BOTH if is_here else MoveRole.SOURCE
    handed = {ROOT: {"VCPU": 1, "VGPU": 1}}
    move = Move(
        consumer(9), consumer(1), kind, role, MoveState.BEGUN, old, new if is_here else None, handed, 0.0
    )
    claims = claims_of(move)
    relocations = [Relocation(who, "VCPU", 1, ROOT, GPU[1], "PCPU") for who in sorted(claims)] + [
        to_gpu(number, 1) for number in (1, 9) if consumer(number) in claims
    ]
    exact = ExactUnits({**OFFERED, GPU[1]: {"PCPU": ("4", "5")}})
    records = relocate_records(relocations, claims, {consumer(9): move}, exact)
    (followed,) = records.moves
    assert {each.consumer: each for each in records.claims} == claims_of(followed)
    assert followed.handed == {GPU[0]: {"VGPU": 1}, GPU[1]: {"PCPU": 1}}
    (migration,) = (each for each in records.claims if each.consumer == consumer(9))
    assert migration.request.resources == {"PCPU": 1, "VGPU": 1}


def test_each_of_several_units_goes_where_the_driver_has_it() -> None:
    """Whatever their order in the claim, and that of the cards in the reshape."""
    exact = ExactUnits({GPU[0]: {"VGPU": ("a", "b")}, GPU[1]: {"VGPU": ("c", "d")}})
    for units, on in ((("c", "a"), {0: ("a",), 1: ("c",)}), (("b", "d", "a"), {0: ("b", "a"), 1: ("d",)})):
        relocations = [
            Relocation(consumer(1), "VGPU", len(on[number]), ROOT, GPU[number], "VGPU") for number in (0, 1)
        ]
        for ordered in (relocations, relocations[::-1]):
            claims = {consumer(1): claim(1, len(units), *units)}
            (changed,) = relocate_records(ordered, claims, {}, exact).claims
            assert changed.units == {GPU[number]: {"VGPU": on[number]} for number in (0, 1)}


def test_a_unit_that_nobody_offers_any_more_goes_where_the_amount_has_none_yet() -> None:
    exact = ExactUnits({GPU[0]: {"VGPU": ("a", "b")}, GPU[1]: {"VGPU": ("c",)}})
    relocations = [Relocation(consumer(1), "VGPU", 1, ROOT, GPU[number], "VGPU") for number in (0, 1)]
    for units in (("a", "gone"), ("gone", "a")):
        (changed,) = relocate_records(relocations, {consumer(1): claim(1, 2, *units)}, {}, exact).claims
        assert changed.units == {GPU[0]: {"VGPU": ("a",)}, GPU[1]: {"VGPU": ("gone",)}}
    stays = ExactUnits({ROOT: {"VGPU": ("s",)}, **exact.offered})
    for units in (("s", "gone"), ("gone", "s")):
        (changed,) = relocate_records(relocations[:1], {consumer(1): claim(1, 2, *units)}, {}, stays).claims
        assert changed.units == {ROOT: {"VGPU": ("s",)}, GPU[0]: {"VGPU": ("gone",)}}


def test_no_more_units_stay_than_the_amount_that_stays() -> None:
    """Both are still offered at the source: one of them goes with the amount all the same."""
    still = ExactUnits({ROOT: {"VGPU": ("a", "b")}}, [])
    (changed,) = relocate_records([to_gpu(1, 1)], {consumer(1): claim(1, 2, "a", "b")}, {}, still).claims
    assert changed.units == {ROOT: {"VGPU": ("a",)}, GPU[0]: {"VGPU": ("b",)}}


def test_no_more_moves_than_the_source_has() -> None:
    assert relocate_allocations({ROOT: {"VGPU": 1}}, [to_gpu(1, 3)]) == {GPU[0]: {"VGPU": 1}}
    assert relocate_allocations({GPU[0]: {"VGPU": 1}}, [to_gpu(1, 3)]) == {GPU[0]: {"VGPU": 1}}


@pytest.mark.parametrize(
    ("away", "held", "unheld"),
    [
        ({}, {}, 3),
        ({}, {consumer(1): 3}, 0),
        ({}, {consumer(1): 1, consumer(9): 2}, 2),
        ({consumer(1): consumer(9)}, {consumer(9): 2}, 1),
        ({consumer(1): ""}, {}, 0),
    ],
    ids=["deleted", "held", "of another one", "in part its migration's", "perhaps a migration's"],
)
def test_what_neither_a_claims_consumer_nor_its_migration_holds_goes_along(
    away: dict[str, str], held: dict[str, int], unheld: int
) -> None:
    told = Instruction(MoveInstruction("host", {"VGPU": 4}, "gpu0"), ROOT, GPU[0])
    records = HostRecords({consumer(1): claim(1, 3)}, away=away)
    found = unheld_claims(records, {who: {ROOT: {"VGPU": amount}} for who, amount in held.items()}, [told])
    assert found == ({consumer(1): {ROOT: {"VGPU": unheld}}} if unheld else {})


@pytest.mark.parametrize(
    ("state", "runs", "goes"),
    [
        (ClaimState.CLAIMING, True, False),
        (ClaimState.RELEASING, True, True),
        (ClaimState.RELEASING, False, False),
    ],
)
def test_an_unheld_claim_that_is_released_goes_along_while_its_guest_is_here(
    state: ClaimState, *, runs: bool, goes: bool
) -> None:
    told = Instruction(MoveInstruction("host", {"VGPU": 4}, "gpu0"), ROOT, GPU[0])
    exact = ExactUnits(OFFERED, [guest(1)] if runs else [])
    records = HostRecords({consumer(1): replace(claim(1, 3), state=state)}, exact=exact)
    assert bool(unheld_claims(records, {}, [told])) is goes


@pytest.mark.parametrize(
    ("claims", "strangers", "away", "found"),
    [
        ({1: 2}, {9: 2}, {}, {9: 1}),
        ({1: 2, 2: 1}, {9: 2, 8: 1}, {}, {9: 1, 8: 2}),
        ({1: 2}, {9: 1}, {}, {}),
        ({1: 2}, {9: 2, 8: 2}, {}, {}),
        ({1: 2, 2: 2}, {9: 2}, {}, {}),
        ({1: 2, 2: 2}, {9: 2}, {2: 9}, {9: 2}),
    ],
    ids=["it alone", "each of two", "other amounts", "two holders", "two claims", "known to be away"],
)
def test_a_stranger_that_alone_holds_the_place_of_one_claim_is_its_migration(
    claims: dict[int, int], strangers: dict[int, int], away: dict[int, int], found: dict[int, int]
) -> None:
    told = Instruction(MoveInstruction("host", {"VGPU": 4}, "gpu0"), ROOT, GPU[0])
    records = HostRecords(
        {consumer(number): claim(number, amount) for number, amount in claims.items()},
        away={consumer(instance): consumer(who) for instance, who in away.items()},
    )
    held = {consumer(who): {ROOT: {"VGPU": amount}} for who, amount in strangers.items()}
    assert claims_of_migrations(records, held, [told], sorted(held)) == {
        consumer(who): records.claims[consumer(number)] for who, number in found.items()
    }


EXACT = ExactUnits({"nic": {"VF": ("vf0", "vf1")}})
PLACE = Claim(
    "web",
    ClaimState.CLAIMED,
    ClaimRequest("web", (RequestGroup("", {"VCPU": 2, "VF": 1}),)),
    {"root": {"VCPU": 2, "VF": 1}, "pool": {"DISK_GB": 10}},
    {"root": {"VF": ("vf1",)}},
)


def receipt(*moved: tuple[str, str, int, str, str], after: Allocations, consumer: str = "m") -> Receipt:
    """{(consumer, class, amount, source, target)} of one reshape, and what `consumer` had afterwards."""
    relocations = tuple(
        Relocation(who, name, amount, source, target, name) for who, name, amount, source, target in moved
    )
    return Receipt("r", 0.0, (), (), relocations, {}, {}, (), allocations={consumer: after})


TO_CELL = receipt(
    ("m", "VCPU", 2, "root", "cell0"),
    ("m", "VF", 1, "root", "nic"),
    after={"cell0": {"VCPU": 2}, "nic": {"VF": 1}},
)
BACK = receipt(("n", "VCPU", 2, "cell0", "root"), after={"root": {"VCPU": 2}, "nic": {"VF": 1}}, consumer="n")


def found(place: Claim, *receipts: Receipt) -> list[Allocations]:
    return [each.allocations for each in whereabouts(place, passages(receipts), {}, EXACT)]


def test_a_place_follows_the_migration_that_was_just_like_it_with_its_units() -> None:
    recorded, moved = whereabouts(PLACE, passages([TO_CELL]), {"web": PLACE}, EXACT)
    assert recorded == PLACE
    assert moved.allocations == {"cell0": {"VCPU": 2}, "nic": {"VF": 1}, "pool": {"DISK_GB": 10}}
    assert list(moved.exact) == [("nic", "VF", "vf1")]
    assert moved.consumer == "web"


def test_a_place_follows_two_reshapes_under_two_consumers() -> None:
    assert found(PLACE, TO_CELL, BACK)[-1] == {
        "root": {"VCPU": 2},
        "nic": {"VF": 1},
        "pool": {"DISK_GB": 10},
    }
    assert len(found(PLACE, BACK)) == 1, "nothing of it was on the cell"


def test_a_place_whose_unit_has_followed_already_follows_with_the_rest() -> None:
    partly = replace(
        PLACE,
        allocations={"root": {"VCPU": 2}, "nic": {"VF": 1}, "pool": {"DISK_GB": 10}},
        units={"nic": {"VF": ("vf1",)}},
    )
    assert found(partly, TO_CELL)[1:] == [
        {"cell0": {"VCPU": 2}, "nic": {"VF": 1}, "pool": {"DISK_GB": 10}},
    ]


def test_an_allocation_of_another_size_leads_nowhere() -> None:
    larger = receipt(
        ("m", "VCPU", 4, "root", "cell0"),
        ("m", "VF", 1, "root", "nic"),
        after={"cell0": {"VCPU": 4}, "nic": {"VF": 1}},
    )
    part = receipt(("m", "VF", 1, "root", "nic"), after={"root": {"VCPU": 1}, "nic": {"VF": 1}})
    assert found(PLACE, larger, part) == [PLACE.allocations]


def test_many_allocations_of_one_kind_are_one_passage() -> None:
    moved = [(f"m{number}", "VCPU", 2, "root", "cell0") for number in range(9)]
    many = receipt(*moved, after={})
    after = {f"m{number}": {"cell0": {"VCPU": 2}} for number in range(9)}
    assert len(passages([replace(many, allocations=after)])) == 1


VF, MEMORY = "SRIOV_NET_VF", "MEMORY_MB"
PLACES = ("host", "cell0", "cell1", "card0", "card1")
UUID = {"host": ROOT, **{name: uuid_of_new(ROOT, name) for name in PLACES[1:]}}
CELLS, CARDS = ("cell0", "cell1"), ("card0", "card1")


@dataclass(frozen=True)
class Case:
    """Before and after by hand: {unit: place} and {consumer: {place: MB}}; `owners` {consumer: its units}."""

    flat_after: bool
    owners: Mapping[str, tuple[str, ...]]
    unit_on: Mapping[str, str]
    memory_on: Mapping[str, Mapping[str, int]]

    @property
    def moves(self) -> tuple[MoveInstruction, ...]:
        ends = [*((place, MEMORY) for place in CELLS), *((place, VF) for place in CARDS)]
        pairs = [("host", place, name) for place, name in ends]
        if self.flat_after:
            pairs = [(place, "host", name) for _, place, name in pairs]
        return tuple(MoveInstruction(source, {name: 1}, target) for source, target, name in pairs)

    def amounts(self, who: str, *, nested: bool) -> dict[str, dict[str, int]]:
        """The allocation of a consumer on the host that is nested, or flat."""
        slots: Counter[tuple[str, str]] = Counter()
        for unit in self.owners[who]:
            slots[self.unit_on[unit] if nested else "host", VF] += 1
        for place, amount in self.memory_on[who].items():
            slots[place if nested else "host", MEMORY] += amount
        found: dict[str, dict[str, int]] = {UUID["host"]: {"DISK_GB": 5}}
        for (place, name), amount in slots.items():
            found.setdefault(UUID[place], {})[name] = amount
        return found

    def claim(self, who: str, *, nested: bool) -> Claim:
        units: dict[str, dict[str, tuple[str, ...]]] = {}
        for unit in self.owners[who]:
            place = UUID[self.unit_on[unit] if nested else "host"]
            here = units.setdefault(place, {})
            here[VF] = (*here.get(VF, ()), unit)
        return Claim(who, ClaimState.CLAIMED, ClaimRequest(who, ()), self.amounts(who, nested=nested), units)

    @property
    def exact(self) -> ExactUnits:
        """What the driver offers now."""
        offered: dict[str, dict[str, tuple[str, ...]]] = {}
        for unit, place in self.unit_on.items():
            here = offered.setdefault(UUID["host" if self.flat_after else place], {})
            here[VF] = (*here.get(VF, ()), unit)
        return ExactUnits(offered)

    @property
    def tree(self) -> ProviderTree:
        """Placement's tree now."""
        parts = dict.fromkeys(CELLS, MEMORY) | dict.fromkeys(CARDS, VF)
        root = {"DISK_GB": Inventory(100)}
        if self.flat_after:
            return ProviderTree(
                [Provider(ROOT, "host", None, root | {MEMORY: Inventory(9999), VF: Inventory(99)})]
            )
        below = [Provider(UUID[place], place, ROOT, {name: Inventory(9999)}) for place, name in parts.items()]
        return ProviderTree([Provider(ROOT, "host", None, root), *below])

    def lagging(self) -> HostRecords:
        claims = {who: self.claim(who, nested=self.flat_after) for who in self.owners}
        return HostRecords(claims, {}, self.exact)

    def held(self) -> dict[str, dict[str, dict[str, int]]]:
        return {who: self.amounts(who, nested=not self.flat_after) for who in self.owners}

    def relocations(
        self, held: Mapping[str, Mapping[str, Mapping[str, int]]], records: HostRecords | None = None
    ) -> tuple[Relocation, ...]:
        return follow_placement(
            records or self.lagging(), held, leads_of(self.moves, ROOT, self.tree), self.tree
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    units = [f"0000:00:{number:02x}.0" for number in range(draw(st.integers(0, 8)))]
    unit_on = {unit: draw(st.sampled_from(CARDS)) for unit in units}
    who = [consumer(number) for number in range(draw(st.integers(1, 3)))]
    owner = {unit: draw(st.sampled_from([*who, ""])) for unit in units}
    owners = {name: tuple(unit for unit in units if owner[unit] == name) for name in who}
    memory = {name: {cell: draw(st.integers(0, 3)) for cell in CELLS} for name in who}
    memory = {name: {cell: mb for cell, mb in part.items() if mb} for name, part in memory.items()}
    return Case(draw(st.booleans()), owners, unit_on, memory)


@given(cases())
def test_each_claim_follows_to_what_placement_has_with_the_same_units(case: Case) -> None:
    records = case.lagging()
    relocated = relocate_records(case.relocations(case.held()), records.claims, {}, case.exact)
    now = {**records.claims, **{claim.consumer: claim for claim in relocated.claims}}
    for who in case.owners:
        assert now[who].allocations == case.held()[who]
        place_of = {unit: uuid for uuid, _, unit in now[who].exact}
        assert place_of == {
            unit: UUID["host" if case.flat_after else case.unit_on[unit]] for unit in case.owners[who]
        }
    assert case.relocations(case.held(), HostRecords(now, {}, case.exact)) == (), "and is up to date then"


@given(cases(), st.data())
def test_an_allocation_that_no_reshape_explains_is_left_to_the_audit(case: Case, data: st.DataObject) -> None:
    """Another amount, another class, an exact unit on another card than where the driver has it."""
    who = data.draw(st.sampled_from(sorted(case.owners)))
    held = case.held()
    slots = [(uuid, name) for uuid, amounts in held[who].items() for name in amounts]
    uuid, name = data.draw(st.sampled_from(slots))
    how = data.draw(st.sampled_from(["more", "less", "gone", "elsewhere"]))
    if how == "elsewhere":
        other = {UUID["card0"]: UUID["card1"], UUID["card1"]: UUID["card0"]}.get(uuid)
        assume(name == VF and other is not None)
        assert other is not None
        held[who][uuid][VF] -= 1
        held[who].setdefault(other, {})[VF] = held[who].get(other, {}).get(VF, 0) + 1
    else:
        held[who][uuid][name] = {"more": held[who][uuid][name] + 1, "less": held[who][uuid][name] - 1}.get(
            how, 0
        )
    held[who] = {
        place: {each: amount for each, amount in amounts.items() if amount}
        for place, amounts in held[who].items()
        if any(amounts.values())
    }
    assert all(each.consumer != who for each in case.relocations(held))


@given(cases(), st.data())
def test_a_claim_that_is_not_settled_follows_nothing(case: Case, data: st.DataObject) -> None:
    records = case.lagging()
    who = data.draw(st.sampled_from(sorted(case.owners)))
    state = data.draw(st.sampled_from([ClaimState.CLAIMING, ClaimState.RELEASING]))
    claims = {**records.claims, who: replace(records.claims[who], state=state)}
    found = case.relocations(case.held(), HostRecords(claims, {}, case.exact))
    assert all(each.consumer != who for each in found)


def one(**changes: object) -> Case:
    return replace(Case(False, {"web": ("vf0",)}, {"vf0": "card1"}, {"web": {"cell1": 2}}), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "follows"),
    [(MoveState.BEGUN, True), (MoveState.REVERTING, False), (MoveState.BEGINNING, False)],
)
def test_in_a_move_only_what_both_sides_agreed_on(state: MoveState, follows: bool) -> None:
    case = one()
    records = case.lagging()
    claim = records.claims["web"]
    move = Move(
        "m", "web", MoveKind.COLD_MIGRATE, MoveRole.SOURCE, state, claim, None, claim.allocations, 0.0
    )
    of_migration = replace(claim, consumer="m")
    moving = HostRecords({"m": of_migration}, {"m": move}, case.exact)
    found = case.relocations({"m": case.held()["web"]}, moving)
    assert bool(found) == follows
    if follows:
        relocated = relocate_records(found, {"m": of_migration}, {"m": move}, case.exact)
        assert [claim.allocations for claim in relocated.claims] == [case.held()["web"]]
        assert [each.handed for each in relocated.moves] == [case.held()["web"]]


def test_an_amount_without_units_stays_where_its_slot_still_has_inventory() -> None:
    """A scheduler may have written the other slot; unless the driver names the consumer there."""
    case = one(owners={"web": ()}, unit_on={})
    root = replace(case.tree[ROOT], inventories={**case.tree[ROOT].inventories, MEMORY: Inventory(9)})
    tree = case.tree.with_provider(root)
    told = tuple(
        replace(move, consumers={"web": {MEMORY: 2}}) if move.to_resource_provider == "cell1" else move
        for move in case.moves
    )
    records, held = case.lagging(), case.held()
    assert follow_placement(records, held, leads_of(case.moves, ROOT, tree), tree) == ()
    assert len(follow_placement(records, held, leads_of(told, ROOT, tree), tree)) == 1


def test_what_became_another_class_on_the_way_follows_two_instructions() -> None:
    """VCPU of the host, on a cell, and dedicated there."""
    tree = ProviderTree(
        [Provider(ROOT, "host"), Provider(UUID["cell0"], "cell0", ROOT, {"PCPU": Inventory(8)})]
    )
    moves = (
        MoveInstruction("host", {"VCPU": 8}, "cell0"),
        MoveInstruction("cell0", {"VCPU": 8}, "cell0", None, {"VCPU": "PCPU"}),
    )
    claim = Claim("web", ClaimState.CLAIMED, ClaimRequest("web", ()), {ROOT: {"VCPU": 2}})
    found = follow_placement(
        HostRecords({"web": claim}),
        {"web": {UUID["cell0"]: {"PCPU": 2}}},
        leads_of(moves, ROOT, tree),
        tree,
    )
    assert found == (Relocation("web", "VCPU", 2, ROOT, UUID["cell0"], "PCPU"),)


@given(cases())
def test_in_front_of_a_reshape_the_places_are_those_of_the_claims_that_have_it_behind_them(
    case: Case,
) -> None:
    claims = {who: case.claim(who, nested=not case.flat_after) for who in case.owners}
    held = {who: case.amounts(who, nested=case.flat_after) for who in case.owners}
    found = places_of_claims(HostRecords(claims, {}, case.exact), held, leads_of(case.moves, ROOT, case.tree))
    for who in case.owners:
        left: Counter[Slot] = Counter()
        came: Counter[Slot] = Counter()
        for source, targets in found.get(who, {}).items():
            for target, amount in targets.items():
                assert target is not None
                left[source] += amount
                came[target] += amount
        slots = [
            Counter({Slot(uuid, name): n for uuid, amounts in each.items() for name, n in amounts.items()})
            for each in (held[who], claims[who].allocations)
        ]
        assert (slots[0] - left) + came == slots[1]


@given(cases())
def test_before_a_reshape_that_is_refused_claims_go_back_to_the_one_place_of_their_units(case: Case) -> None:
    """From the cards and cells to the host; not from there to the cards, since the driver names none now."""
    before = replace(case, flat_after=not case.flat_after).tree
    claims = {who: case.claim(who, nested=not case.flat_after) for who in case.owners}
    held = {who: case.amounts(who, nested=case.flat_after) for who in case.owners}
    leads = leads_back(leads_of(case.moves, ROOT, before))
    found = follow_placement(HostRecords(claims, {}, case.exact), held, leads, before)
    now = {each.consumer: each for each in relocate_records(found, claims, {}, case.exact).claims}
    for who, owned in case.owners.items():
        if case.flat_after or claims[who].allocations == held[who]:
            assert who not in now
        else:
            assert now[who].allocations == held[who]
            assert set(now[who].exact) == {(ROOT, VF, unit) for unit in owned}


def test_no_claim_goes_back_through_a_change_of_its_class() -> None:
    """Its dedicated CPUs were shared ones, which cannot be told apart."""
    tree = ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(8)})])
    leads = leads_of((MoveInstruction("host", {"VCPU": 8}, "cell0", None, {"VCPU": "PCPU"}),), ROOT, tree)
    cell = leads[0].target
    place = {cell: {"PCPU": 2}}
    web = Claim("web", ClaimState.CLAIMED, ClaimRequest("web", ()), place, {cell: {"PCPU": ("4", "5")}})
    records = HostRecords({"web": web}, {}, ExactUnits({cell: {"PCPU": ("4", "5")}}))
    assert follow_placement(records, {"web": {ROOT: {"VCPU": 2}}}, leads_back(leads), tree) == ()


# The claims that a reshape left behind go where the driver's move instructions lead

TREE = ProviderTree(
    [
        Provider("root", "root", None, {"DISK_GB": Inventory(100)}),
        *(
            Provider(
                cell,
                cell,
                "root",
                {"VCPU": Inventory(8), "PCPU": Inventory(4), "MEMORY_MB": Inventory(1000)},
            )
            for cell in ("cell0", "cell1")
        ),
    ]
)


def lead(source: str, target: str, **amounts: int) -> Instruction:
    return Instruction(MoveInstruction(source, amounts, target), source, target)


LEADS = tuple(lead("root", cell, VCPU=8, PCPU=4, MEMORY_MB=1000) for cell in ("cell0", "cell1"))
NO_UNITS = ExactUnits({"cell0": {"PCPU": ("0", "1", "2", "3")}, "cell1": {"PCPU": ("4", "5", "6", "7")}})


def claimed(consumer: str, amounts: Mapping[str, int], *units: str) -> Claim:
    exact = {"root": {"PCPU": units}} if units else {}
    return Claim(
        consumer,
        ClaimState.CLAIMED,
        ClaimRequest(consumer, ()),
        {"root": {"DISK_GB": 5, **amounts}},
        exact,
    )


def followed(*claims: Claim, held: Mapping[str, Allocations] | None = None) -> dict[str, Allocations]:
    records = {each.consumer: each for each in claims}
    relocations = follow_inventory(HostRecords(records, {}, NO_UNITS), held or {}, LEADS, TREE)
    changed = relocate_records(relocations, records, {}, NO_UNITS).claims
    return {each.consumer: each.allocations for each in changed}


def test_what_has_no_units_goes_along_with_what_has() -> None:
    web = claimed("web", {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 500}, "4", "5")
    there = {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 500}}
    assert followed(web) == {"web": there}


@pytest.mark.parametrize("holds", [True, False])
def test_a_claim_goes_as_a_whole_to_a_target_with_room(holds: bool) -> None:
    """Beside what Placement holds there, and beside what other claims have there."""
    there = {"cell0": {"MEMORY_MB": 600}}
    other = replace(claimed("other", {}), allocations={} if holds else there)
    found = followed(
        claimed("web", {"VCPU": 1, "MEMORY_MB": 500}), other, held={"other": there} if holds else {}
    )
    assert found == {"web": {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 1, "MEMORY_MB": 500}}}


def test_without_room_it_goes_where_the_least_is_missing() -> None:
    held = {"a": {"cell0": {"MEMORY_MB": 900}}, "b": {"cell1": {"MEMORY_MB": 700}}}
    found = followed(claimed("web", {"MEMORY_MB": 500}), held=held)
    assert found == {"web": {"root": {"DISK_GB": 5}, "cell1": {"MEMORY_MB": 500}}}


@pytest.mark.parametrize("held", [400, 500])
def test_a_claim_goes_where_placement_holds_what_is_left_of_it(held: int) -> None:
    """Another client took the rest. It goes along as a whole, also where another target has more room."""
    web = claimed("web", {"VCPU": 2, "MEMORY_MB": 500})
    there = {"web": {"cell1": {"MEMORY_MB": held}}, "other": {"cell1": {"VCPU": 8}}}
    place = {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 2, "MEMORY_MB": 500}}
    assert followed(web, held=there) == {"web": place}


def test_what_is_left_of_a_claim_may_have_another_class() -> None:
    """The copy's driver counts CPUs as shared that this host's claimed has as dedicated ones."""
    becomes = MoveInstruction("root", {"PCPU": 4}, "cell1", becomes={"PCPU": "VCPU"})
    leads = (*LEADS, Instruction(becomes, "root", "cell1"))
    web = claimed("web", {"PCPU": 2, "MEMORY_MB": 500})
    held = {"web": {"cell1": {"VCPU": 2}}}
    found = follow_inventory(HostRecords({"web": web}), held, leads, TREE)
    assert set(found) == {
        Relocation("web", "PCPU", 2, "root", "cell1", "VCPU"),
        Relocation("web", "MEMORY_MB", 500, "root", "cell1", "MEMORY_MB"),
    }


def test_a_class_of_which_nothing_is_left_goes_along_as_it_is() -> None:
    """Although it could become one of which something is left."""
    becomes = MoveInstruction("root", {"PCPU": 4}, "cell1", becomes={"PCPU": "VCPU"})
    leads = (*LEADS, Instruction(becomes, "root", "cell1"))
    web = claimed("web", {"VCPU": 1, "PCPU": 2}, "4", "5")
    found = follow_inventory(
        HostRecords({"web": web}, {}, NO_UNITS), {"web": {"cell1": {"VCPU": 1}}}, leads, TREE
    )
    assert set(found) == {
        Relocation("web", "PCPU", 2, "root", "cell1", "PCPU"),
        Relocation("web", "VCPU", 1, "root", "cell1", "VCPU"),
    }


def test_what_is_left_of_a_claim_counts_once() -> None:
    """There is room for both beside each other, and none on the other cell."""
    webs = (claimed("web1", {"MEMORY_MB": 500}), claimed("web2", {"MEMORY_MB": 500}))
    held = {"web1": {"cell0": {"MEMORY_MB": 500}}, "other": {"cell1": {"MEMORY_MB": 600}}}
    place = {"root": {"DISK_GB": 5}, "cell0": {"MEMORY_MB": 500}}
    assert followed(*webs, held=held) == {"web1": place, "web2": place}


@pytest.mark.parametrize("held", [{"MEMORY_MB": 600}, {"MEMORY_MB": 500, "VCPU": 1}])
def test_a_consumer_that_holds_something_else_does_not_follow(held: dict[str, int]) -> None:
    """Where it went is Placement's to say."""
    assert followed(claimed("web", {"MEMORY_MB": 500}), held={"web": {"cell0": held}}) == {}


def test_claims_stay_where_a_migration_may_hold_their_place() -> None:
    web = claimed("web", {"MEMORY_MB": 500})
    move = Move(
        "m", "web", MoveKind.RESIZE, MoveRole.SOURCE, MoveState.BEGUN, web, None, web.allocations, 0.0
    )
    for records in (
        HostRecords({"web": web}, {"m": move}),
        HostRecords({"web": web}, {}, NO_UNITS, {"web": ""}),
        HostRecords({"web": replace(web, state=ClaimState.RELEASING)}),
    ):
        assert follow_inventory(records, {}, LEADS, TREE) == ()


def test_without_a_target_a_claim_stays() -> None:
    assert followed(claimed("web", {"CUSTOM_GONE": 1})) == {}


def test_a_claim_goes_back_from_providers_that_are_gone() -> None:
    tree = ProviderTree([Provider("root", "root", None, {"MEMORY_MB": Inventory(1000)})])
    leads = (lead("cell0", "root", MEMORY_MB=1000),)
    web = replace(claimed("web", {}), allocations={"cell0": {"MEMORY_MB": 500}})
    found = follow_inventory(HostRecords({"web": web}), {}, leads, tree)
    assert found == (Relocation("web", "MEMORY_MB", 500, "cell0", "root", "MEMORY_MB"),)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"VCPU": st.integers(1, 9), "PCPU": st.integers(1, 3), "MEMORY_MB": st.integers(1, 900)}
        ),
        max_size=4,
    )
)
def test_nothing_is_lost_or_added_on_the_way_and_all_of_it_has_an_inventory(
    many: list[dict[str, int]],
) -> None:
    found = followed(*(claimed(f"web{number}", amounts) for number, amounts in enumerate(many)))
    assert len(found) == len(many)
    for number, amounts in enumerate(many):
        there: Counter[str] = Counter()
        for uuid, part in found[f"web{number}"].items():
            assert part.keys() <= TREE[uuid].inventories.keys()
            there.update(part)
        assert there == {"DISK_GB": 5, **amounts}
