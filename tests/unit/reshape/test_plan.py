"""The reshape arithmetic: what moves lands where it belongs, all of it, or nothing does."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.reshape_trees import GPU, PF, ROOT, consumer, flat, hosts, nested, plan_reshape, to_gpus

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused
from agent.reshape.laws import Slot, resolve_instructions
from agent.reshape.plan import moving_slots, staged_tree, touched_providers, without_sources
from agent.reshape.receipt import inverse_moves
from agent.tree import Inventory, Provider, ProviderTree


def test_only_the_touched_are_named() -> None:
    bystander = {ROOT: {"VCPU": 8}}
    held = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(2): bystander}
    desired = nested(1, 4, SRIOV_NET_VF=Inventory(8))
    reshape = plan_reshape(flat(4), desired, to_gpus(1, 4), held)
    assert set(reshape.allocations) == {consumer(1)}
    assert set(reshape.inventories) == {ROOT, GPU[0]}
    instructions = resolve_instructions(to_gpus(1, 4), flat(4), desired)
    assert touched_providers(instructions) == [ROOT, GPU[0]]


def test_untold_consumers_are_placed_whole_largest_first() -> None:
    held = {
        consumer(1): {ROOT: {"VGPU": 1}},
        consumer(2): {ROOT: {"VGPU": 1}},
        consumer(3): {ROOT: {"VGPU": 2}},
    }
    reshape = plan_reshape(flat(4), nested(2, 2), to_gpus(2, 2), held)
    assert reshape.allocations[consumer(3)] == {GPU[0]: {"VGPU": 2}}
    assert reshape.allocations[consumer(1)] == reshape.allocations[consumer(2)] == {GPU[1]: {"VGPU": 1}}


def test_of_untold_consumers_that_have_as_much_the_first_uuid_is_placed_first() -> None:
    """Whatever the order of Placement's answer, so that a plan that is made again is the same."""
    held = {consumer(number): {ROOT: {"VGPU": 2}} for number in (2, 1)}
    reshape = plan_reshape(flat(4), nested(2, 2), to_gpus(2, 2), held)
    assert reshape.allocations == {consumer(n): {GPU[n - 1]: {"VGPU": 2}} for n in (1, 2)}


def test_a_consumer_that_no_single_target_holds_stops_the_whole() -> None:
    held = {consumer(1): {ROOT: {"VGPU": 3}}, consumer(2): {ROOT: {"VGPU": 1}}}
    with pytest.raises(ReshapeRefused, match=f"consumer {consumer(1)} holds 3 VGPU of host.*gpu0: 2 VGPU"):
        plan_reshape(flat(4), nested(2, 2), to_gpus(2, 2), held)


def test_what_a_guest_uses_and_does_not_hold_is_no_room_for_others() -> None:
    """Unless a migration may hold it for the guest: then the agent cannot tell which units that has."""
    moves = [
        MoveInstruction("host", {"VGPU": 2}, "gpu0", {consumer(1): {"VGPU": 2}}),
        MoveInstruction("host", {"VGPU": 2}, "gpu1"),
    ]
    held = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(2): {ROOT: {"VGPU": 1}}}
    reshape = plan_reshape(flat(4), nested(2, 2), moves, held)
    assert reshape.allocations == {consumer(1): {GPU[0]: {"VGPU": 1}}, consumer(2): {GPU[1]: {"VGPU": 1}}}
    others = f"uses 2 VGPU of gpu0 but holds 1 VGPU on host, where consumer {consumer(2)} may hold it"
    with pytest.raises(ReshapeRefused, match=others):
        plan_reshape(flat(4), nested(2, 2), moves, held, strangers={consumer(2)})


def test_a_guest_that_has_its_share_at_the_target_already_needs_no_more_room() -> None:
    one, two = {"VGPU": Inventory(1)}, {"VGPU": Inventory(2)}
    current = ProviderTree([Provider(ROOT, "host", None, one), Provider(GPU[0], "gpu0", ROOT, one)])
    desired = ProviderTree([Provider(ROOT, "host"), Provider(GPU[0], "gpu0", ROOT, two)])
    moves = [MoveInstruction("host", {"VGPU": 1}, "gpu0", {consumer(1): {"VGPU": 1}})]
    held = {consumer(1): {GPU[0]: {"VGPU": 1}}, consumer(2): {ROOT: {"VGPU": 1}}}
    reshape = plan_reshape(current, desired, moves, held)
    assert reshape.allocations == {consumer(2): {GPU[0]: {"VGPU": 1}}}


def test_a_claim_that_placement_does_not_hold_goes_along_and_is_reserved() -> None:
    """Together with what is held of it, and only as a record."""
    held = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(2): {ROOT: {"VGPU": 2}}}
    unheld = {consumer(1): {ROOT: {"VGPU": 1}}, consumer(3): {ROOT: {"VGPU": 1}}}
    reshape = plan_reshape(flat(6), nested(2, 3), to_gpus(2, 3), held, unheld=unheld)
    assert reshape.allocations == {consumer(1): {GPU[0]: {"VGPU": 1}}, consumer(2): {GPU[1]: {"VGPU": 2}}}
    records = {(each.consumer, each.amount, each.source, each.target) for each in reshape.records}
    assert records == {(consumer(1), 1, ROOT, GPU[0]), (consumer(3), 1, ROOT, GPU[0])}
    assert [reshape.inventories[uuid]["VGPU"].reserved for uuid in GPU[:2]] == [2, 0]


def test_claims_that_placement_does_not_hold_need_room_as_others_do() -> None:
    held = {consumer(1): {ROOT: {"VGPU": 2}}}
    for amount, refused in ((2, 3), (4, 2)):
        unheld = {consumer(number): {ROOT: {"VGPU": amount}} for number in (2, 3)}
        with pytest.raises(
            ReshapeRefused, match=f"consumer {consumer(refused)} .* no single target has room"
        ):
            plan_reshape(flat(6), nested(2, 3), to_gpus(2, 3), held, unheld=unheld)


def test_a_target_that_is_too_small_is_refused_even_where_ownership_is_told() -> None:
    moves = [
        MoveInstruction("host", {"VGPU": 1}, "gpu0", {consumer(1): {"VGPU": 1}, consumer(2): {"VGPU": 1}})
    ]
    held = {consumer(n): {ROOT: {"VGPU": 1}} for n in (1, 2)}
    with pytest.raises(ReshapeRefused, match="gpu0 would hold 2 VGPU and has room for 1"):
        plan_reshape(flat(4), nested(1, 1), moves, held)


@pytest.mark.parametrize(
    ("amounts", "unheld", "sentence"),
    [
        ({1: 2, 2: 3}, {}, "hold 5 VGPU and has room for 4: 3 of consumer 2, 2 of consumer 1"),
        (
            {1: 2},
            {2: 3},
            "hold 2 VGPU and has room for 1: 3 of consumer 2 that Placement does not hold, 2 of consumer 1",
        ),
        (
            {number: 1 + (number == 4) for number in range(1, 8)},
            {},
            "hold 8 VGPU and has room for 4: 2 of consumer 4, 1 of consumer 1, 1 of consumer 2, "
            "1 of consumer 3, 1 of consumer 5 and 2 more",
        ),
    ],
)
def test_a_target_that_is_too_small_names_who_would_have_it_the_largest_first_and_what_to_do(
    amounts: dict[int, int], unheld: dict[int, int], sentence: str
) -> None:
    shares = {consumer(number): {"VGPU": amount} for number, amount in (amounts | unheld).items()}
    moves = [MoveInstruction("host", {"VGPU": 4}, "gpu0", shares)]
    with pytest.raises(ReshapeRefused) as refused:
        plan_reshape(
            flat(8),
            nested(1, 4),
            moves,
            {consumer(number): {ROOT: {"VGPU": amount}} for number, amount in amounts.items()},
            unheld={consumer(number): {ROOT: {"VGPU": amount}} for number, amount in unheld.items()},
        )
    (reason,) = refused.value.details["reasons"]
    for number in range(1, 8):
        reason = reason.replace(consumer(number), str(number))
    assert reason == (
        f"gpu0 would {sentence}. Release one of them (`plimsoll release CONSUMER --force` where its guest "
        "runs), or move it away"
    )


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


def test_what_travels_with_units_of_two_cards_is_divided_as_these_are() -> None:
    bandwidth = "NET_BW_EGR_KILOBIT_PER_SEC"
    desired = nested(2, 2)
    for uuid in GPU[:2]:
        card = desired[uuid]
        with_bandwidth = replace(card, inventories={**card.inventories, bandwidth: Inventory(600)})
        desired = desired.with_provider(with_bandwidth)
    moves = [
        MoveInstruction("host", {"VGPU": 2, bandwidth: 600}, name, {consumer(1): {"VGPU": units}})
        for name, units in (("gpu0", 2), ("gpu1", 1))
    ]
    held = {consumer(1): {ROOT: {"VGPU": 3, bandwidth: 900}}}
    reshape = plan_reshape(flat(4, **{bandwidth: Inventory(1200)}), desired, moves, held)
    assert reshape.allocations == {
        consumer(1): {GPU[0]: {"VGPU": 2, bandwidth: 600}, GPU[1]: {"VGPU": 1, bandwidth: 300}}
    }


def test_what_the_card_of_a_unit_has_no_room_for_goes_to_one_that_has() -> None:
    bandwidth = "NET_BW_EGR_KILOBIT_PER_SEC"
    desired, rates = nested(2, 2), {"gpu0": 400, "gpu1": 600}
    for card, rate in zip((desired[uuid] for uuid in GPU[:2]), rates.values(), strict=True):
        more = {**card.inventories, bandwidth: Inventory(rate)}
        desired = desired.with_provider(replace(card, inventories=more))
    moves = [
        MoveInstruction("host", {"VGPU": 2, bandwidth: rate}, name, {consumer(1): {"VGPU": units}})
        for (name, rate), units in zip(rates.items(), (1, 0), strict=True)
    ]
    held = {consumer(1): {ROOT: {"VGPU": 1, bandwidth: 500}}}
    reshape = plan_reshape(flat(4, **{bandwidth: Inventory(1000)}), desired, moves, held)
    assert reshape.allocations == {consumer(1): {GPU[0]: {"VGPU": 1}, GPU[1]: {bandwidth: 500}}}


def test_inventory_that_goes_away_without_an_instruction_loses_nobody() -> None:
    current = flat(4, SRIOV_NET_VF=Inventory(4))
    held = {consumer(1): {ROOT: {"SRIOV_NET_VF": 1}}}
    with pytest.raises(ReshapeRefused, match="holds 1 SRIOV_NET_VF of host, which no longer has any"):
        plan_reshape(current, nested(1, 4), to_gpus(1, 4), held)


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


@pytest.mark.parametrize("name_there", ["SRIOV_NET_VF", "CUSTOM_VF"])
def test_what_need_not_leave_goes_along_only_where_its_class_stays_the_same(name_there: str) -> None:
    current = flat(4, SRIOV_NET_VF=Inventory(4))
    desired = ProviderTree(
        [
            Provider(ROOT, "host", None, {"VCPU": Inventory(64), "SRIOV_NET_VF": Inventory(2)}),
            Provider(GPU[0], "gpu0", ROOT, {"VGPU": Inventory(4), name_there: Inventory(2)}),
        ]
    )
    becomes = {"SRIOV_NET_VF": name_there} if name_there != "SRIOV_NET_VF" else {}
    moves = [MoveInstruction("host", {"VGPU": 4, "SRIOV_NET_VF": 2}, "gpu0", becomes=becomes)]
    held = {consumer(1): {ROOT: {"VGPU": 1, "SRIOV_NET_VF": 1}}}
    reshape = plan_reshape(current, desired, moves, held)
    assert reshape.allocations[consumer(1)] == (
        {ROOT: {"SRIOV_NET_VF": 1}, GPU[0]: {"VGPU": 1}}
        if becomes
        else {GPU[0]: {"VGPU": 1, "SRIOV_NET_VF": 1}}
    )


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


def test_while_pending_the_sources_are_reserved() -> None:
    instructions = resolve_instructions(to_gpus(2, 2), flat(4), nested(2, 2))
    reserved = staged_tree(flat(4), nested(2, 2), instructions, reserve=True)
    assert reserved[ROOT].inventories["VGPU"].capacity == 0
    assert reserved[ROOT].inventories["VCPU"].capacity == 64


def test_while_pending_a_target_that_is_there_is_reserved_as_is_desired_and_no_more_than_it_has() -> None:
    card = nested(1, 4)[GPU[0]]
    current = flat(4).with_provider(card)
    for wanted, reserved in ((1, 1), (6, 4)):
        more = replace(card, inventories={"VGPU": Inventory(6, reserved=wanted)})
        desired = nested(1, 4).with_provider(more)
        instructions = resolve_instructions(to_gpus(1, 2), current, desired)
        staged = staged_tree(current, desired, instructions, reserve=True)
        assert staged[GPU[0]].inventories["VGPU"] == Inventory(4, reserved=reserved)


def test_the_staged_tree_has_the_new_providers_without_what_moves() -> None:
    instructions = resolve_instructions(to_gpus(2, 2), flat(4), nested(2, 2))
    staged = staged_tree(flat(4), nested(2, 2), instructions, reserve=False)
    assert staged[ROOT].inventories == flat(4)[ROOT].inventories
    assert [dict(staged[uuid].inventories) for uuid in GPU[:2]] == [{}, {}]
    assert moving_slots(instructions) == (
        {Slot(ROOT, "VGPU")},
        {Slot(GPU[0], "VGPU"), Slot(GPU[1], "VGPU")},
    )


def test_a_source_that_goes_stays_under_its_ancestors_until_then() -> None:
    """The units leave a child that the desired tree no longer has."""
    instructions = resolve_instructions([MoveInstruction("gpu0", {"VGPU": 4}, "host")], nested(1, 4), flat(4))
    staged = staged_tree(nested(1, 4), flat(4), instructions, reserve=False)
    assert staged[GPU[0]].parent == ROOT and staged[GPU[0]].inventories["VGPU"].total == 4
    assert "VGPU" not in staged[ROOT].inventories


def test_a_class_that_moved_away_is_not_kept_for_others() -> None:
    moves = to_gpus(1, 4)
    assert "VGPU" not in without_sources(flat(4), {"host": ["VCPU"]}, moves)[ROOT].inventories
    assert "VGPU" in without_sources(flat(4), {"host": ["VCPU", "VGPU"]}, moves)[ROOT].inventories
