"""The agent's records after a reshape: the claims and the moves follow, with units that are there."""

from kits.reshape_trees import GPU, ROOT, consumer

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import Guest, GuestState, UsedUnit
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.reshape.claimed_units import ExactUnits
from agent.reshape.relocate import relocate_allocations, relocate_records
from agent.reshape.types import Relocation

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


def test_no_more_moves_than_the_source_has() -> None:
    assert relocate_allocations({ROOT: {"VGPU": 1}}, [to_gpu(1, 3)]) == {GPU[0]: {"VGPU": 1}}
    assert relocate_allocations({GPU[0]: {"VGPU": 1}}, [to_gpu(1, 3)]) == {GPU[0]: {"VGPU": 1}}
