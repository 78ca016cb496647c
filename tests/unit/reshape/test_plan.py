"""The reshape arithmetic: what moves lands where it belongs, all of it, or nothing does."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape import plan
from agent.reshape.due_instructions import due_instructions, known_instructions, with_stand_ins
from agent.reshape.laws import breaches
from agent.reshape.receipt import inverse_moves
from agent.reshape.staged_tree import staged_tree
from agent.reshape.types import Reshape, resolve_instructions
from agent.shapes import Allocations, Held
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "00000000-0000-0000-0000-000000000001"
GPU = [f"00000000-0000-0000-0000-0000000000a{n}" for n in range(8)]
PF = "00000000-0000-0000-0000-0000000000b0"


def consumer(number: int) -> str:
    return f"10000000-0000-0000-0000-{number:012d}"


def flat(vgpus: int, **more: Inventory) -> ProviderTree:
    return ProviderTree(
        [Provider(ROOT, "host", None, {"VCPU": Inventory(64), "VGPU": Inventory(vgpus), **more})]
    )


def nested(gpus: int, each: int, **inventories: Inventory) -> ProviderTree:
    children = [Provider(GPU[n], f"gpu{n}", ROOT, {"VGPU": Inventory(each)}) for n in range(gpus)]
    pf = [Provider(PF, "pf", ROOT, inventories)] if inventories else []
    return ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(64)}), *children, *pf])


def to_gpus(gpus: int, each: int) -> list[MoveInstruction]:
    return [MoveInstruction("host", {"VGPU": each}, f"gpu{n}") for n in range(gpus)]


def plan_reshape(
    current: ProviderTree,
    desired: ProviderTree,
    moves: Sequence[MoveInstruction],
    held: Mapping[str, Allocations],
    *,
    may_grow: bool = False,
) -> Reshape:
    instructions = resolve_instructions(moves, current, desired)
    return plan.plan_reshape(current, desired, instructions, held, may_grow=may_grow)


def due_moves(
    moves: Sequence[MoveInstruction], current: ProviderTree, desired: ProviderTree, held: Held
) -> tuple[MoveInstruction, ...]:
    instructions = known_instructions(moves, current, desired)
    return tuple(due.move for due in due_instructions(instructions, current, desired, held))


def test_told_consumers_land_on_the_device_their_guest_holds() -> None:
    held = {consumer(1): {ROOT: {"VCPU": 2, "VGPU": 1}}, consumer(2): {ROOT: {"VCPU": 1, "VGPU": 2}}}
    moves = [
        MoveInstruction("host", {"VGPU": 4}, "gpu0", {consumer(2): {"VGPU": 2}}),
        MoveInstruction("host", {"VGPU": 4}, "gpu1", {consumer(1): {"VGPU": 1}}),
    ]
    reshape = plan_reshape(flat(8), nested(2, 4), moves, held)
    assert reshape.allocations == {
        consumer(1): {ROOT: {"VCPU": 2}, GPU[1]: {"VGPU": 1}},
        consumer(2): {ROOT: {"VCPU": 1}, GPU[0]: {"VGPU": 2}},
    }


def test_only_the_touched_are_named() -> None:
    bystander = {ROOT: {"VCPU": 8}}
    held = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(2): bystander}
    desired = nested(1, 4, SRIOV_NET_VF=Inventory(8))
    reshape = plan_reshape(flat(4), desired, to_gpus(1, 4), held)
    assert set(reshape.allocations) == {consumer(1)}
    assert set(reshape.inventories) == {ROOT, GPU[0]}


def test_untold_consumers_are_placed_whole_largest_first() -> None:
    held = {
        consumer(1): {ROOT: {"VGPU": 1}},
        consumer(2): {ROOT: {"VGPU": 1}},
        consumer(3): {ROOT: {"VGPU": 2}},
    }
    reshape = plan_reshape(flat(4), nested(2, 2), to_gpus(2, 2), held)
    assert reshape.allocations[consumer(3)] == {GPU[0]: {"VGPU": 2}}
    assert reshape.allocations[consumer(1)] == reshape.allocations[consumer(2)] == {GPU[1]: {"VGPU": 1}}


def test_a_consumer_that_no_single_target_holds_stops_the_whole() -> None:
    held = {consumer(1): {ROOT: {"VGPU": 3}}, consumer(2): {ROOT: {"VGPU": 1}}}
    with pytest.raises(ReshapeRefused, match=f"consumer {consumer(1)} holds 3 VGPU of host.*gpu0: 2 VGPU"):
        plan_reshape(flat(4), nested(2, 2), to_gpus(2, 2), held)


def test_the_driver_cannot_tell_more_than_is_held() -> None:
    moves = [MoveInstruction("host", {"VGPU": 4}, "gpu0", {consumer(1): {"VGPU": 2}})]
    with pytest.raises(ReshapeRefused, match="uses 2 VGPU of gpu0 but holds 1 on host"):
        plan_reshape(flat(4), nested(1, 4), moves, {consumer(1): {ROOT: {"VGPU": 1}}})


def test_a_target_that_is_too_small_is_refused_even_where_ownership_is_told() -> None:
    moves = [
        MoveInstruction("host", {"VGPU": 1}, "gpu0", {consumer(1): {"VGPU": 1}, consumer(2): {"VGPU": 1}})
    ]
    held = {consumer(n): {ROOT: {"VGPU": 1}} for n in (1, 2)}
    with pytest.raises(ReshapeRefused, match="gpu0 would hold 2 VGPU and has room for 1"):
        plan_reshape(flat(4), nested(1, 1), moves, held)


def test_classes_of_one_instruction_travel_together() -> None:
    more = {"SRIOV_NET_VF": Inventory(4), "NET_BW_EGR_KILOBIT_PER_SEC": Inventory(1000)}
    desired = nested(0, 0, **more)
    moves = [MoveInstruction("host", {"SRIOV_NET_VF": 4, "NET_BW_EGR_KILOBIT_PER_SEC": 1000}, "pf")]
    held = {consumer(1): {ROOT: {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 600, "VCPU": 1}}}
    current = ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(64), **more})])
    reshape = plan_reshape(current, desired, moves, held)
    assert reshape.allocations[consumer(1)] == {
        ROOT: {"VCPU": 1},
        PF: {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 600},
    }


def test_inventory_that_goes_away_without_an_instruction_loses_nobody() -> None:
    current = flat(4, SRIOV_NET_VF=Inventory(4))
    held = {consumer(1): {ROOT: {"SRIOV_NET_VF": 1}}}
    with pytest.raises(ReshapeRefused, match="holds 1 SRIOV_NET_VF of host, which no longer has any"):
        plan_reshape(current, nested(1, 4), to_gpus(1, 4), held)


def test_an_unknown_provider_in_an_instruction_is_named() -> None:
    with pytest.raises(ReshapeRefused, match="names provider gpu7"):
        plan_reshape(flat(4), nested(1, 4), [MoveInstruction("host", {"VGPU": 4}, "gpu7")], {})


def test_while_pending_the_sources_are_reserved() -> None:
    instructions = resolve_instructions(to_gpus(2, 2), flat(4), nested(2, 2))
    reserved = staged_tree(flat(4), nested(2, 2), instructions, reserve=True)
    assert reserved[ROOT].inventories["VGPU"].capacity == 0
    assert reserved[ROOT].inventories["VCPU"].capacity == 64


@st.composite
def hosts(draw: st.DrawFn) -> tuple[int, int, list[MoveInstruction], dict[str, dict[str, dict[str, int]]]]:
    """A flat host in use, the nested one it becomes, and instructions that tell some of the owners."""
    gpus, each = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    held: dict[str, dict[str, dict[str, int]]] = {}
    told: list[dict[str, dict[str, int]]] = [{} for _ in range(gpus)]
    for number in range(draw(st.integers(0, 10))):
        amount = draw(st.integers(1, 3))
        held[consumer(number)] = {ROOT: {"VCPU": 1, "VGPU": amount}}
        if draw(st.booleans()):
            told[draw(st.integers(0, gpus - 1))][consumer(number)] = {"VGPU": amount}
    moves = [MoveInstruction("host", {"VGPU": each}, f"gpu{n}", told[n]) for n in range(gpus)]
    return gpus, each, moves, held


def amounts(allocations: dict[str, dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for resources in allocations.values():
        total.update(resources)
    return total


@given(hosts(), st.integers(0, 3))
def test_sums_are_conserved_or_nothing_happens(
    case: tuple[int, int, list[MoveInstruction], dict[str, dict[str, dict[str, int]]]], more: int
) -> None:
    """`more` than the cards have was counted on the host."""
    gpus, each, moves, held = case
    current, desired = flat(gpus * each + more), nested(gpus, each)
    try:
        reshape = plan_reshape(current, desired, moves, held)
    except ReshapeRefused as refusal:
        assert refusal.details["reasons"]
        return
    after = {**held, **reshape.allocations}
    used: Counter[str] = Counter()
    for uuid, allocations in after.items():
        assert amounts(allocations) == amounts(held[uuid])
        assert "VGPU" not in allocations.get(ROOT, {})
        for provider, resources in allocations.items():
            used[provider] += resources.get("VGPU", 0)
    assert all(used[GPU[n]] <= each for n in range(gpus))
    for move in moves:
        for uuid, shares in (move.consumers or {}).items():
            assert after[uuid][desired.by_name(move.to_resource_provider).uuid] == shares

    back = plan_reshape(desired, current, inverse_moves(moves, reshape, current, desired), after)
    assert {**after, **back.allocations} == held


@given(hosts(), st.integers(0, 9), st.integers(-1, 1).filter(bool))
def test_a_tampered_reshape_breaks_a_law(
    case: tuple[int, int, list[MoveInstruction], dict[str, dict[str, dict[str, int]]]],
    number: int,
    change: int,
) -> None:
    gpus, each, moves, held = case
    try:
        reshape = plan_reshape(flat(gpus * each), nested(gpus, each), moves, held)
    except ReshapeRefused:
        return
    victim = consumer(number)
    if victim not in reshape.allocations:
        return
    tampered = {p: {c: a + change for c, a in r.items()} for p, r in reshape.allocations[victim].items()}
    broken = replace(reshape, allocations={**reshape.allocations, victim: tampered})
    told = resolve_instructions(moves, flat(gpus * each), nested(gpus, each))
    assert list(breaches(broken, flat(gpus * each), nested(gpus, each), told, held))


def four_of_eight(total: int, *, child: int | None = None, moved: int = 4) -> list[str]:
    """What is wrong with a reshape of 8 VGPU, 4 of which one consumer uses, to these totals."""
    held = {consumer(1): {ROOT: {"VGPU": 4}}}
    children = [] if child is None else [Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(child)})]
    root = {"VGPU": Inventory(total)} if total else {}
    desired = ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(64), **root}), *children])
    moves = (
        [MoveInstruction("host", {"VGPU": moved}, "gpu0")]
        if child is not None
        else [MoveInstruction("host", {"VGPU": 0}, "host")]
    )
    try:
        plan_reshape(flat(8), desired, moves, held)
    except ReshapeRefused as refusal:
        return list(refusal.details["reasons"])
    return []


def test_the_four_breaches_that_placement_accepts_are_refused() -> None:
    """Shrinking below use, a newcomer in a consumer's room, a consumer cut short, units listed twice."""
    assert "has room for 2" in four_of_eight(2)[0]
    held = {consumer(1): {ROOT: {"VGPU": 4}}}
    told = resolve_instructions([MoveInstruction("host", {"VGPU": 4}, "gpu0")], flat(8), nested(1, 4))
    inventories = {ROOT: {"VCPU": Inventory(64)}, GPU[0]: {"VGPU": Inventory(4)}}
    newcomer = Reshape(
        inventories, {consumer(1): {GPU[0]: {"VGPU": 1}}, consumer(2): {GPU[0]: {"VGPU": 3}}}, ()
    )
    said = list(breaches(newcomer, flat(8), nested(1, 4), told, held))
    assert any(f"consumer {consumer(2)} holds nothing here" in each for each in said)
    cut = Reshape(inventories, {consumer(1): {GPU[0]: {"VGPU": 1}}}, ())
    (sentence,) = breaches(cut, flat(8), nested(1, 4), told, held)
    assert "would hold {'VGPU': 1} where it held {'VGPU': 4}" in sentence
    assert any("offered twice: 16 where there were 8" in each for each in four_of_eight(8, child=8, moved=8))
    assert any("would offer 8 VGPU, but it had 0 and 4 moved" in each for each in four_of_eight(0, child=8))
    assert four_of_eight(4, child=4) == four_of_eight(0, child=4) == []


@pytest.mark.parametrize(
    ("name", "source", "may_grow", "grows"),
    [
        ("MEMORY_MB", GPU[0], True, True),
        ("VCPU", GPU[0], True, True),
        ("MEMORY_MB", GPU[0], False, False),
        ("MEMORY_MB", ROOT, True, False),
        ("VGPU", GPU[0], True, False),
    ],
)
def test_more_is_new_only_among_cells_by_the_drivers_word(
    name: str, source: str, may_grow: bool, grows: bool
) -> None:
    """From a host to its cell it is the same units, of devices likewise, and where something is undone."""
    root = {name: Inventory(8)} if source == ROOT else {}
    cells = [Provider(each, f"cell{n}", ROOT) for n, each in enumerate(GPU[:2])]
    first = replace(cells[0], inventories={} if source == ROOT else {name: Inventory(8)})
    current = ProviderTree([Provider(ROOT, "host", None, root), first, cells[1]])
    desired = current.with_provider(replace(cells[1], inventories={name: Inventory(8)}))
    moves = [MoveInstruction("host" if source == ROOT else "cell0", {name: 8}, "cell1")]
    try:
        plan_reshape(current, desired, moves, {}, may_grow=may_grow)
    except ReshapeRefused as refusal:
        assert not grows and "offered twice: 16 where there were 8" in refusal.message
    else:
        assert grows


def test_what_others_hold_elsewhere_is_not_judged() -> None:
    """A slot that was over-full before and does not move does not stop a reshape."""
    crowded = ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(2), "VGPU": Inventory(4)})])
    desired = ProviderTree(
        [
            Provider(ROOT, "host", None, {"VCPU": Inventory(2)}),
            Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(4)}),
        ]
    )
    held = {consumer(1): {ROOT: {"VCPU": 4}}, consumer(2): {ROOT: {"VGPU": 1}}}
    assert plan_reshape(crowded, desired, to_gpus(1, 4), held).allocations == {
        consumer(2): {GPU[0]: {"VGPU": 1}}
    }


def test_an_untold_consumer_leaves_a_source_only_where_that_has_no_room() -> None:
    """Part of the inventory moves: the largest go until the rest fits; nobody changes class untold."""
    held = {consumer(n): {ROOT: {"VGPU": n}} for n in (1, 2, 3)}
    desired = ProviderTree(
        [
            Provider(ROOT, "host", None, {"VCPU": Inventory(64), "VGPU": Inventory(4)}),
            Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(4)}),
        ]
    )
    reshape = plan_reshape(flat(8), desired, to_gpus(1, 4), held)
    assert reshape.allocations == {consumer(3): {GPU[0]: {"VGPU": 3}}}


def test_instructions_that_are_done_are_not_due() -> None:
    done = nested(2, 4)
    assert due_moves(to_gpus(2, 4), done, done, {}) == ()
    assert len(due_moves(to_gpus(2, 4), flat(8), done, {})) == 2
    assert due_moves([MoveInstruction("gone", {"VGPU": 4}, "gpu0")], done, done, {}) == ()
    told = [MoveInstruction("gpu0", {"VGPU": 4}, "gpu1", {consumer(1): {"VGPU": 1}})]
    assert due_moves(told, done, done, {GPU[0]: {}, GPU[1]: {consumer(1): {"VGPU": 1}}}) == ()
    assert due_moves(told, done, done, {GPU[0]: {consumer(1): {"VGPU": 1}}, GPU[1]: {}}) == tuple(told)


def test_a_migration_stands_in_for_its_guest_where_they_hold_the_same() -> None:
    moves = [
        MoveInstruction("host", {"VGPU": 4}, "gpu0", {consumer(1): {"VGPU": 2}, consumer(2): {"VGPU": 1}})
    ]
    told = resolve_instructions(moves, flat(8), nested(1, 4))
    held = {
        consumer(2): {ROOT: {"VGPU": 1}},
        consumer(8): {ROOT: {"VGPU": 1}},
        consumer(9): {ROOT: {"VGPU": 2}},
    }
    (instruction,) = with_stand_ins(told, held, {consumer(8), consumer(9)})
    assert instruction.move.consumers == {consumer(9): {"VGPU": 2}, consumer(2): {"VGPU": 1}}


def test_who_is_told_to_use_a_target_is_not_sent_on_from_there() -> None:
    """It holds a unit of the target's already, which goes; the one that it was told of stays."""
    current = ProviderTree(
        [
            Provider(ROOT, "host", None, {"VGPU": Inventory(2)}),
            Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(2)}),
            Provider(GPU[1], "gpu1", ROOT, {}),
        ]
    )
    desired = ProviderTree(
        [
            Provider(ROOT, "host", None, {"VGPU": Inventory(1)}),
            Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(1)}),
            Provider(GPU[1], "gpu1", ROOT, {"VGPU": Inventory(2)}),
        ]
    )
    moves = [
        MoveInstruction("gpu0", {"VGPU": 2}, "gpu1"),
        MoveInstruction("host", {"VGPU": 1}, "gpu0", {consumer(1): {"VGPU": 1}}),
    ]
    held = {consumer(1): {ROOT: {"VGPU": 1}, GPU[0]: {"VGPU": 1}}}
    reshape = plan_reshape(current, desired, moves, held)
    assert reshape.allocations == {consumer(1): {GPU[0]: {"VGPU": 1}, GPU[1]: {"VGPU": 1}}}
