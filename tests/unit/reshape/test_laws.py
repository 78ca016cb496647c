"""The laws: a reshape that loses, doubles or misplaces units is refused, whatever planned it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.reshape_trees import GPU, ROOT, consumer, flat, hosts, nested, plan_reshape, to_gpus

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.laws import (
    Relocation,
    Reshape,
    Slot,
    allocations_of,
    breaches,
    inventory_at,
    name_of,
    new_custom_classes,
    resolve_instructions,
    slots_of,
    total_at,
)
from agent.tree import Inventory, Provider, ProviderTree


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


@pytest.mark.parametrize(
    ("amount", "limits", "held_there", "refused"),
    [
        (2, Inventory(8, max_unit=2), 0, False),
        (2, Inventory(8, max_unit=1), 0, True),
        (2, Inventory(8, min_unit=3), 0, True),
        (2, Inventory(8, min_unit=2), 0, False),
        (3, Inventory(8, step_size=2), 0, True),
        (4, Inventory(8, step_size=2), 0, False),
        (2, Inventory(8, max_unit=1), 2, False),
    ],
)
def test_a_consumer_gets_what_placement_would_give_it_in_one_piece(
    amount: int, limits: Inventory, held_there: int, *, refused: bool
) -> None:
    """What it holds there already, it keeps."""
    before = {consumer(1): {ROOT: {"VGPU": amount}} if not held_there else {GPU[0]: {"VGPU": held_there}}}
    card = nested(1, 8)[GPU[0]]
    desired = nested(1, 8).with_provider(replace(card, inventories={"VGPU": limits}))
    current = flat(8).with_provider(replace(card, inventories={"VGPU": Inventory(8)} if held_there else {}))
    told = resolve_instructions([MoveInstruction("host", {"VGPU": 8}, "gpu0")], current, desired)
    inventories = {ROOT: {"VCPU": Inventory(64)}, GPU[0]: {"VGPU": limits}}
    reshape = Reshape(inventories, {consumer(1): {GPU[0]: {"VGPU": amount}}}, ())
    said = [each for each in breaches(reshape, current, desired, told, before) if "in steps of" in each]
    limit = f"which gives {limits.min_unit} to {limits.max_unit} in steps of {limits.step_size}"
    name = f"consumer {consumer(1)} would hold {amount} VGPU of gpu0, {limit}"
    assert said == ([name] if refused else [])


def test_an_instruction_is_itself_where_there_is_nothing_to_leave_out() -> None:
    untold = MoveInstruction("host", {"VGPU": 4}, "gpu0")
    told = replace(untold, consumers={consumer(1): {"VGPU": 1}, consumer(2): {"VGPU": 2}})
    untold_one, told_one = resolve_instructions([untold, told], flat(8), nested(1, 4))
    assert untold_one.without_shares({(consumer(1), "VGPU")}) is untold_one
    assert told_one.without_shares(()) is told_one
    assert told_one.without_shares({(consumer(1), "VGPU")}).move.consumers == {consumer(2): {"VGPU": 2}}


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


def test_a_cell_whose_guests_the_driver_tells_as_staying_may_have_more() -> None:
    cell = Provider(GPU[0], "cell0", ROOT, {"VCPU": Inventory(8)})
    current = ProviderTree([Provider(ROOT, "host", None, {}), cell])
    desired = current.with_provider(replace(cell, inventories={"VCPU": Inventory(12)}))
    stays = [MoveInstruction("cell0", {"VCPU": 4}, "cell0")]
    assert plan_reshape(current, desired, stays, {}, may_grow=True).allocations == {}


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


@pytest.mark.parametrize(
    ("name", "more", "breaks"), [("MEMORY_MB", 100, 0), ("MEMORY_MB", 101, 1), ("VCPU", 1, 1)]
)
def test_a_boot_may_bring_a_32nd_of_the_memory_and_nothing_else(name: str, more: int, breaks: int) -> None:
    current = ProviderTree(
        [Provider(ROOT, "host", None, {name: Inventory(3200)}), Provider(GPU[0], "cell0", ROOT)]
    )
    host = replace(current[ROOT], inventories={name: Inventory(1600)})
    cell = replace(current[GPU[0]], inventories={name: Inventory(1600 + more)})
    move = MoveInstruction("host", {name: 1600 + more}, "cell0")
    told = resolve_instructions([move], current, current)
    nothing = Reshape({}, {}, ())
    assert len(list(breaches(nothing, current, ProviderTree([host, cell]), told, {}))) == breaks


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


def test_an_instruction_pairs_the_slots_that_exchange_units() -> None:
    move = MoveInstruction("host", {"VGPU": 4, "VCPU": 2}, "gpu0", becomes={"VCPU": "PCPU"})
    (instruction,) = resolve_instructions([move], flat(4), nested(1, 4))
    assert list(instruction.slot_pairs()) == [
        (Slot(ROOT, "VGPU"), Slot(GPU[0], "VGPU"), 4),
        (Slot(ROOT, "VCPU"), Slot(GPU[0], "PCPU"), 2),
    ]


def test_a_source_may_be_in_the_current_tree_alone_and_a_target_may_not() -> None:
    (instruction,) = resolve_instructions(
        [MoveInstruction("gpu0", {"VGPU": 4}, "host")], nested(1, 4), flat(4)
    )
    assert (instruction.source, instruction.target) == (GPU[0], ROOT)
    with pytest.raises(ReshapeRefused, match="names provider gpu0, which does not exist") as refusal:
        resolve_instructions([MoveInstruction("host", {"VGPU": 4}, "gpu0")], nested(1, 4), flat(4))
    assert refusal.value.details["reasons"] == ["unknown provider gpu0"]


def test_allocations_and_slots_are_the_same_thing() -> None:
    allocations = {ROOT: {"VCPU": 2, "VGPU": 1}, GPU[0]: {"VGPU": 3}}
    assert allocations_of(slots_of(allocations)) == allocations
    relocation = Relocation(consumer(1), "VCPU", 2, ROOT, GPU[0], "PCPU")
    assert relocation.slots == (Slot(ROOT, "VCPU"), Slot(GPU[0], "PCPU"))


def test_what_a_tree_has_in_a_slot() -> None:
    tree = nested(1, 4)
    assert total_at(tree, Slot(GPU[0], "VGPU")) == 4
    assert inventory_at(tree, Slot(ROOT, "VGPU")) is None and total_at(tree, Slot(ROOT, "VGPU")) == 0
    assert total_at(tree, Slot(GPU[1], "VGPU")) == 0
    assert name_of(GPU[0], flat(4), tree) == "gpu0" and name_of(GPU[1], tree) == GPU[1]


def test_only_custom_classes_that_the_tree_lacks_may_be_unknown() -> None:
    slots = [Slot(ROOT, "CUSTOM_B"), Slot(ROOT, "CUSTOM_A"), Slot(ROOT, "VGPU")]
    assert new_custom_classes(slots, flat(4)) == ["CUSTOM_A", "CUSTOM_B"]
