"""Which instructions are due, and which units are parked: nothing moves twice, nobody loses anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from kits.reshape_trees import GPU, ROOT, consumer, flat, nested, to_gpus

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.due_instructions import (
    Parking,
    due_instructions,
    known_instructions,
    park_units,
    still_held,
    with_stand_ins,
    without_claimed_changes,
)
from agent.reshape.laws import Instruction, resolve_instructions
from agent.reshape.plan import plan_reshape
from agent.shapes import Held
from agent.tree import Inventory, Provider, ProviderTree


def due_moves(
    moves: Sequence[MoveInstruction], current: ProviderTree, desired: ProviderTree, held: Held
) -> tuple[MoveInstruction, ...]:
    instructions = known_instructions(moves, current, desired)
    return tuple(due.move for due in due_instructions(instructions, current, desired, held))


def test_instructions_that_are_done_are_not_due() -> None:
    done = nested(2, 4)
    assert due_moves(to_gpus(2, 4), done, done, {}) == ()
    assert len(due_moves(to_gpus(2, 4), flat(8), done, {})) == 2
    assert due_moves([MoveInstruction("gone", {"VGPU": 4}, "gpu0")], done, done, {}) == ()
    told = [MoveInstruction("gpu0", {"VGPU": 4}, "gpu1", {consumer(1): {"VGPU": 1}})]
    assert due_moves(told, done, done, {GPU[0]: {}, GPU[1]: {consumer(1): {"VGPU": 1}}}) == ()
    assert due_moves(told, done, done, {GPU[0]: {consumer(1): {"VGPU": 1}}, GPU[1]: {}}) == tuple(told)


def test_an_undone_instruction_names_those_that_still_have_all_of_their_share() -> None:
    shares = {consumer(1): {"VGPU": 1}, consumer(2): {"VGPU": 2}, consumer(3): {"VGPU": 1}}
    told = resolve_instructions([MoveInstruction("host", {"VGPU": 4}, "gpu0", shares)], flat(8), nested(1, 4))
    (left,) = still_held(told, {consumer(2): {ROOT: {"VGPU": 1}}, consumer(3): {ROOT: {"VGPU": 1}}})
    assert left.move.consumers == {consumer(3): {"VGPU": 1}}


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
    (instruction,) = with_stand_ins(told, held, {consumer(8), consumer(9)}, {})
    assert instruction.move.consumers == {consumer(9): {"VGPU": 2}, consumer(2): {"VGPU": 1}}
    by_name = [replace(moves[0], consumers={**moves[0].consumers, consumer(9): {"VGPU": 2}})]
    named = resolve_instructions(by_name, flat(8), nested(1, 4))
    assert with_stand_ins(named, held, {consumer(8), consumer(9)}, {}) == named, (
        "the driver tells of it itself"
    )
    elsewhere = {consumer(3): [consumer(9)]}
    assert with_stand_ins(told, held, {consumer(8), consumer(9)}, elsewhere) == told
    both = elsewhere | {consumer(1): [consumer(9)]}
    assert with_stand_ins(told, held, {consumer(8), consumer(9)}, both) == (instruction,)


def claimed(owner: str, amounts: dict[str, int], *cpus: str) -> Claim:
    """A claim on the host, with these dedicated CPUs."""
    request = ClaimRequest(owner, (RequestGroup("", amounts),))
    units = {ROOT: {"PCPU": cpus}} if cpus else {}
    return Claim(owner, ClaimState.CLAIMED, request, {ROOT: amounts}, units)


def test_a_claim_changes_its_class_only_with_the_inventory() -> None:
    none, four, six = flat(1), flat(1, PCPU=Inventory(4)), flat(1, PCPU=Inventory(6))
    uses = {consumer(1): {"VCPU": 2}, consumer(2): {"VCPU": 1}}
    told = [MoveInstruction("host", {"VCPU": 4}, "host", uses, {"VCPU": "PCPU"})]
    for current, desired, named in (
        (none, four, uses),
        (four, six, uses),
        (four, four, {consumer(2): {"VCPU": 1}}),
    ):
        instructions = resolve_instructions(told, current, desired)
        claims = {consumer(1): claimed(consumer(1), {"VCPU": 2})}
        (instruction,) = without_claimed_changes(instructions, claims, current, desired)
        assert instruction.move.consumers == named


def test_a_claim_that_has_dedicated_cpus_gets_no_others_for_its_guest_that_uses_them() -> None:
    """Its guest uses two dedicated CPUs, and three shared ones that stay shared."""
    none, four = flat(1), flat(1, PCPU=Inventory(4))
    uses = {consumer(1): {"VCPU": 2}}
    told = [MoveInstruction("host", {"VCPU": 4}, "host", uses, {"VCPU": "PCPU"})]
    instructions = resolve_instructions(told, none, four)
    for cpus, named in ((("4", "5"), {}), (("4",), uses)):
        claims = {consumer(1): claimed(consumer(1), {"VCPU": 3, "PCPU": 2}, *cpus)}
        (instruction,) = without_claimed_changes(instructions, claims, none, four)
        assert instruction.move.consumers == named


DESCRIBED = {"host": ("VCPU",)}
ByConsumer = dict[str, dict[str, dict[str, int]]]
"""{consumer: {provider: {class: amount}}}"""


def card(number: int) -> str:
    return f"00000000-0000-0000-0000-0000000000a{number}"


def tree(vgpus: int, cards: list[int]) -> ProviderTree:
    """Cards of nothing are there, and offer nothing."""
    root = {"VCPU": Inventory(64)} | ({"VGPU": Inventory(vgpus)} if vgpus else {})
    children = [
        Provider(card(n), f"card{n}", ROOT, {"VGPU": Inventory(total)} if total else {})
        for n, total in enumerate(cards)
    ]
    return ProviderTree([Provider(ROOT, "host", None, root), *children])


@pytest.mark.parametrize(("grown", "is_due"), [(2, False), (4, True), (5, False)])
def test_what_shrinks_has_given_its_units_away_where_the_others_grow_by_no_more(
    grown: int, is_due: bool
) -> None:
    """Where all of them together grow, the units are new: the card only lost some."""
    move = MoveInstruction("card0", {"VGPU": 2}, "card1")
    assert due_moves([move], tree(0, [4, 2]), tree(0, [2, grown]), {}) == (move,) * is_due


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, list[int], list[MoveInstruction], ByConsumer]:
    """A flat host that counted some more than its cards have, its cards, the moves, and who holds what."""
    cards = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    counted = sum(cards) + draw(st.integers(0, 4))
    told: list[dict[str, dict[str, int]]] = [{} for _ in cards]
    gone: dict[str, dict[str, int]] = {}
    held: ByConsumer = {}
    left = counted
    for number in range(draw(st.integers(0, 6))):
        amount = draw(st.integers(1, 3))
        if amount > left:
            break
        left -= amount
        held[consumer(number)] = {ROOT: {"VGPU": amount, "VCPU": 1}}
        where = draw(st.sampled_from(["told", "gone", "unknown"]))
        if where == "told":
            draw(st.sampled_from(told))[consumer(number)] = {"VGPU": amount}
        elif where == "gone":
            gone[consumer(number)] = {"VGPU": draw(st.integers(1, amount))}
    moves = [MoveInstruction("host", {"VGPU": total}, f"card{n}", told[n]) for n, total in enumerate(cards)]
    if gone:
        moves.append(MoveInstruction("host", {"VGPU": 1}, "host", gone))
    return counted, cards, moves, held


def by_provider(held: ByConsumer) -> ByConsumer:
    found: ByConsumer = {}
    for who, places in held.items():
        for uuid, amounts in places.items():
            found.setdefault(uuid, {})[who] = amounts
    return found


def goal(current: ProviderTree, cards: list[int], moves: list[MoveInstruction], held: ByConsumer) -> Parking:
    return park_units(moves, DESCRIBED, current, tree(0, cards), by_provider(held))


def due_of(wanted: Parking, current: ProviderTree, held: ByConsumer) -> tuple[Instruction, ...]:
    instructions = known_instructions(wanted.moves, current, wanted.tree)
    return due_instructions(instructions, current, wanted.tree, by_provider(held))


@pytest.mark.parametrize("on_card", [0, 1])
def test_what_travels_with_a_unit_is_parked_with_it_unless_another_unit_of_its_consumer_moves(
    on_card: int,
) -> None:
    rate, who = "NET_BW_EGR_KILOBIT_PER_SEC", consumer(1)
    both = {"VGPU": Inventory(2), rate: Inventory(100)}
    root = Provider(ROOT, "host", None, {"VCPU": Inventory(64)})
    desired = ProviderTree([root, Provider(card(0), "card0", ROOT, both)])
    counted = {**both, **root.inventories, "VGPU": Inventory(3)}
    current = ProviderTree([replace(root, inventories=counted), Provider(card(0), "card0", ROOT)])
    named = {who: {"VGPU": on_card}} if on_card else {}
    moves = [
        MoveInstruction("host", {"VGPU": 2, rate: 100}, "card0", named),
        MoveInstruction("host", {"VGPU": 1}, "host", {who: {"VGPU": 1}}),
    ]
    held = {ROOT: {who: {"VGPU": 1 + on_card, rate: 50}}}
    parking = park_units(moves, DESCRIBED, current, desired, held)
    parked = {
        name: amount for move in parking.moves if move.stays for name, amount in move.moved_resources.items()
    }
    assert parked == ({"VGPU": 1} if on_card else {"VGPU": 1, rate: 50})


BOTH_GONE = {consumer(number): {"VGPU": 1} for number in range(2)}


@given(cases())
@example(  # one unit more was counted than the card has, and two say that theirs is gone
    (
        3,
        [2],
        [
            MoveInstruction("host", {"VGPU": 2}, "card0", {}),
            MoveInstruction("host", {"VGPU": 1}, "host", BOTH_GONE),
        ],
        {who: {ROOT: {"VGPU": 1, "VCPU": 1}} for who in BOTH_GONE},
    )
)
def test_what_is_parked_stays_and_nothing_is_due_afterwards(
    case: tuple[int, list[int], list[MoveInstruction], ByConsumer],
) -> None:
    counted, cards, moves, held = case
    current = tree(counted, [0] * len(cards))
    wanted = goal(current, cards, moves, held)
    due = due_of(wanted, current, held)
    try:
        reshape = plan_reshape(current, wanted.tree, due, held)
    except ReshapeRefused:
        event("refused")
        return
    after: ByConsumer = {
        who: {uuid: dict(amounts) for uuid, amounts in places.items()}
        for who, places in {**held, **reshape.allocations}.items()
    }
    total = {each.uuid: each.inventories.get("VGPU", Inventory(0)).total for each in wanted.tree}
    used: Counter[str] = Counter()
    stays = {
        who: amounts["VGPU"]
        for move in wanted.moves
        if move.stays
        for who, amounts in (move.consumers or {}).items()
    }
    event("parked" if stays else "none parked")
    for who, places in after.items():
        assert sum(each.get("VGPU", 0) for each in places.values()) == held[who][ROOT]["VGPU"]
        assert places.get(ROOT, {}).get("VGPU", 0) == stays.get(who, 0), "parked, and nothing else"
        for uuid, amounts in places.items():
            used[uuid] += amounts.get("VGPU", 0)
    assert sum(total.values()) <= counted, "no unit is offered that was not counted"
    assert total[ROOT] == used[ROOT] and all(used[uuid] <= total[uuid] for uuid in total)
    done = ProviderTree(
        replace(each, inventories=reshape.inventories.get(each.uuid, each.inventories)) for each in current
    )
    again = goal(done, cards, moves, after)
    assert again.tree == wanted.tree and again.notices == wanted.notices
    assert due_of(again, done, after) == ()
