"""Where a place may be after reshapes that moved an allocation like it."""

from __future__ import annotations

from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.reshape.claimed_units import ExactUnits
from agent.reshape.receipt import Receipt
from agent.reshape.types import Relocation
from agent.reshape.whereabouts import passages, whereabouts
from agent.shapes import Allocations

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
