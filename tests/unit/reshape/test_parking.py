"""Parking, at random: nobody loses anything, nothing is offered twice, and what is done is done."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.due_instructions import due_instructions, known_instructions
from agent.reshape.parking import Parking, park_units
from agent.reshape.plan import plan_reshape
from agent.reshape.types import Instruction
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "00000000-0000-0000-0000-000000000001"
DESCRIBED = {"host": ("VCPU",)}
ByConsumer = dict[str, dict[str, dict[str, int]]]
"""{consumer: {provider: {class: amount}}}"""


def card(number: int) -> str:
    return f"00000000-0000-0000-0000-0000000000a{number}"


def consumer(number: int) -> str:
    return f"10000000-0000-0000-0000-{number:012d}"


def tree(vgpus: int, cards: list[int]) -> ProviderTree:
    """Cards of nothing are there, and offer nothing."""
    root = {"VCPU": Inventory(64)} | ({"VGPU": Inventory(vgpus)} if vgpus else {})
    children = [
        Provider(card(n), f"card{n}", ROOT, {"VGPU": Inventory(total)} if total else {})
        for n, total in enumerate(cards)
    ]
    return ProviderTree([Provider(ROOT, "host", None, root), *children])


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


@given(cases())
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
