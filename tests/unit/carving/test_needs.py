"""What a boot needs: the units of claims and guests, and their form in the plan file."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.carving.carving import NeededUnit
from agent.carving.needs import needed_units, needs_to_json, read_needs
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import CarvedUnit, Guest, GuestState, UsedUnit
from agent.errors import UsageError

ADDRESSES = st.builds("0000:{:02x}:{:02x}.{}".format, *(st.integers(0, most) for most in (255, 31, 7)))
UNITS = st.builds(
    CarvedUnit,
    ADDRESSES | st.builds(str, st.builds(UUID, int=st.integers(0, 2**128 - 1))),
    ADDRESSES,
    ADDRESSES,
    st.sampled_from(["", "nvidia-471", "i915-GVTg_V5_4"]),
    st.none() | st.integers(0, 100),
)
CARD, VF = "0000:84:00.0", "0000:84:00.1"
MDEV = "00000000-0000-0000-0000-000000000001"
CARVED = CarvedUnit(MDEV, CARD, VF, "nvidia-471")


def guest(*units: str) -> Guest:
    used = tuple(UsedUnit("VGPU", unit, f"pci:{CARD}") for unit in units)
    return Guest(str(UUID(int=7)), "gpu1", GuestState.SHUTOFF, {}, used)


@given(st.lists(st.builds(NeededUnit, UNITS, st.just("instance gpu1"))))
def test_the_units_come_back_as_they_were(needs: list[NeededUnit]) -> None:
    assert read_needs(json.loads(json.dumps(needs_to_json(needs)))) == tuple(needs)


def test_a_domain_needs_what_it_names_also_while_it_is_shut_off() -> None:
    (need,) = needed_units([], [guest(MDEV, "7")], [CARVED, CarvedUnit(VF, CARD, VF)], [])
    assert need == NeededUnit(CARVED, f"instance gpu1 ({UUID(int=7)})")


def test_a_unit_that_a_boot_took_away_is_needed_as_long_as_somebody_has_it() -> None:
    former = needed_units([], [guest(MDEV)], [CARVED], [])
    assert needed_units([], [guest(MDEV)], [], former) == former
    assert needed_units([], [guest()], [], former) == ()


def test_a_claim_needs_what_is_still_to_be_made_for_it() -> None:
    making = {MDEV: {"parent": VF, "type": "nvidia-471"}}
    request = ClaimRequest(str(UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (MDEV,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    (need,) = needed_units([claim], [], [], [])
    assert (need.unit.parent, need.unit.type_id) == (VF, "nvidia-471")
    assert need.holder == f"instance gpu2 ({UUID(int=8)})"


def test_the_vgpu_of_a_claim_is_needed_on_its_function_in_its_place() -> None:
    unit = f"{VF}/nvidia-471@20"
    making = {unit: {"parent": VF, "type": "nvidia-471", "placement": "20"}}
    request = ClaimRequest(str(UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (unit,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    needed = needed_units([claim], [], [], [])
    assert [need.unit for need in needed] == [CarvedUnit(VF, VF, VF, "nvidia-471", 20)]
    made = [CarvedUnit(VF, CARD, VF, "nvidia-471", 20)]
    assert [need.unit for need in needed_units([claim], [guest(unit)], made, needed)] == made
    elsewhere = [CarvedUnit(VF, CARD, VF, "nvidia-471", 0)]
    assert [need.unit.placement for need in needed_units([claim], [], elsewhere, [])] == [20]


def test_where_a_claim_has_its_vgpu_counts_and_not_where_its_guest_has_it() -> None:
    request = ClaimRequest(str(UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    for claimed, found in ((0, 20), (20, 0)):
        unit, making = f"{VF}/nvidia-471@{claimed}", {"parent": VF, "type": "nvidia-471"}
        claim = Claim(
            request.consumer,
            ClaimState.CLAIMED,
            request,
            {"p": {"VGPU": 1}},
            {"p": {"VGPU": (unit,)}},
            makings={unit: {**making, "placement": str(claimed)}},
        )
        seen = CarvedUnit(VF, CARD, VF, "nvidia-471", found)
        needed = needed_units([claim], [guest(f"{VF}/nvidia-471@{found}")], [seen], [])
        assert [need.unit.placement for need in needed] == [claimed]


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "../../x"},
        {"parent": "0000:84:00.1/../.."},
        {"card": "eth0"},
        {"type_id": "../create"},
        {"type_id": ".."},
        {"placement": -1},
        {"placement": True},
        {"holder": "a\nb"},
        {"path": "/etc/shadow"},
    ],
)
def test_whatever_could_be_more_than_a_name_is_refused(change: dict[str, object]) -> None:
    data = needs_to_json([NeededUnit(CARVED, "instance gpu1")])
    data["units"][0] |= change
    with pytest.raises(UsageError, match=r"units\[0\]"):
        read_needs(data)


@pytest.mark.parametrize("data", [None, [], {}, {"version": 2, "units": []}, {"version": 1, "units": {}}])
def test_another_file_is_refused(data: object) -> None:
    with pytest.raises(UsageError):
        read_needs(data)
