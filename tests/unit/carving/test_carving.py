"""A carving: what operators and guests need of cards, and the units of the plan file."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.carving.carving import (
    NAME,
    NUMBER,
    Carving,
    Mdev,
    NeededUnit,
    Seen,
    SeenFunction,
    VgpuType,
    join,
    needed_units,
    needs_to_json,
    read_needs,
)
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.device_names import DASHED_UUID, PCI_ADDRESS
from agent.driver import CarvedUnit, DeclaredCarving, Guest, GuestState, UsedUnit
from agent.errors import UsageError


@pytest.mark.parametrize("text", ["..", ".", "../x", "a/b", "", "a\n", "a b", "/", "\x00"])
def test_what_leads_elsewhere_is_no_name(text: str) -> None:
    assert not any(pattern.fullmatch(text) for pattern in (PCI_ADDRESS, NAME, NUMBER, DASHED_UUID))


def test_the_names_of_real_hosts_are_names() -> None:
    assert PCI_ADDRESS.fullmatch("0000:41:10.2") and PCI_ADDRESS.fullmatch("10000:e1:00.0")
    for name in ("vfio-pci", "mlx5_vfio_pci", "nvidia-471", "i915-GVTg_V5_4"):
        assert NAME.fullmatch(name)


CARD, VF, OTHER = "0000:84:00.0", "0000:84:00.1", "0000:85:00.1"
MDEV = "00000000-0000-0000-0000-000000000001"
SEEN = Seen({CARD: SeenFunction(CARD, vfs_max=4, vf_addresses=(VF, "0000:84:00.2"))})
DECLARED = DeclaredCarving({CARD: 2}, mdev_types={"nvidia-471": frozenset({CARD})})


def joined(unit: CarvedUnit, declared: DeclaredCarving = DECLARED) -> tuple[Carving, tuple[str, ...]]:
    return join(declared, [NeededUnit(unit, "instance gpu1")], SEEN)


def test_a_mediated_device_of_an_enabled_type_on_a_named_card_is_needed_with_its_holder() -> None:
    carving, problems = joined(CarvedUnit(MDEV, CARD, VF, "nvidia-471"))
    assert problems == ()
    assert carving == Carving(
        {CARD: 2}, mdevs={MDEV: Mdev(VF, "nvidia-471")}, holders={MDEV: "instance gpu1"}
    )


def test_what_the_operator_did_not_name_is_left_out_and_told() -> None:
    for unit in (
        CarvedUnit(MDEV, CARD, VF, "nvidia-472"),  # a type that is not enabled
        CarvedUnit(MDEV, CARD, OTHER, "nvidia-471"),  # a function of another card, as the kernel shows
        CarvedUnit(OTHER, CARD, OTHER, "nvidia-471"),
    ):
        carving, (problem,) = joined(unit)
        assert (carving.mdevs, carving.types) == ({}, {})
        assert problem.startswith(f"instance gpu1 has {unit.unit} of type {unit.type_id} on {unit.parent}")


def test_a_vgpu_type_that_a_guest_has_counts_before_the_one_that_the_operator_declared() -> None:
    declared = DeclaredCarving(
        {CARD: 2}, vgpu_types={VF: "nvidia-468"}, mdev_types={"nvidia-471": frozenset()}
    )
    assert joined(CarvedUnit(VF, CARD, VF), declared)[0].types == {VF: VgpuType("468")}
    carving, problems = joined(CarvedUnit(VF, CARD, VF, "nvidia-471", 12), declared)
    assert (carving.types, problems) == ({VF: VgpuType("471", 12)}, ())


def test_the_types_of_a_card_in_mixed_size_mode_are_those_that_claims_need_alone() -> None:
    declared = DeclaredCarving(
        {CARD: 2},
        vgpu_types={VF: "nvidia-468"},
        mdev_types={"nvidia-471": frozenset()},
        mixed=frozenset({CARD}),
    )
    carving, (problem,) = joined(CarvedUnit("0000:84:00.2", CARD, "0000:84:00.2", "nvidia-471", 0), declared)
    assert carving.mixed == {CARD} and carving.types == {"0000:84:00.2": VgpuType("471", 0)}
    assert "mixed_size_cards" in problem and VF in problem


def test_a_function_that_nobody_makes_is_told_with_the_option() -> None:
    carving, (problem,) = joined(CarvedUnit(OTHER, "0000:85:00.0", OTHER))
    assert carving.vfs == {CARD: 2} and carving.holders == {OTHER: "instance gpu1"}
    assert problem == (
        f"instance gpu1 has {OTHER}, which is not there, and [devices] sriov_vfs does not say how many "
        "virtual functions 0000:85:00.0 is to have."
    )
    assert joined(CarvedUnit(VF, CARD, VF))[1] == ()


ADDRESSES = st.builds("0000:{:02x}:{:02x}.{}".format, *(st.integers(0, most) for most in (255, 31, 7)))
UNITS = st.builds(
    CarvedUnit,
    ADDRESSES | st.builds(str, st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1))),
    ADDRESSES,
    ADDRESSES,
    st.sampled_from(["", "nvidia-471", "i915-GVTg_V5_4"]),
    st.none() | st.integers(0, 100),
    st.sampled_from(["", "52:54:00:00:00:01", "52:54:00:00:00:01 VLAN 100"]),
)
CARVED = CarvedUnit(MDEV, CARD, VF, "nvidia-471")


def guest(*units: str) -> Guest:
    used = tuple(UsedUnit("VGPU", unit, f"pci:{CARD}") for unit in units)
    return Guest(str(uuid.UUID(int=7)), "gpu1", GuestState.SHUTOFF, {}, used)


@given(st.lists(st.builds(NeededUnit, UNITS, st.just("instance gpu1"))))
def test_the_units_come_back_as_they_were(needs: list[NeededUnit]) -> None:
    assert read_needs(json.loads(json.dumps(needs_to_json(needs)))) == tuple(needs)


def test_a_domain_needs_what_it_names_also_while_it_is_shut_off() -> None:
    (need,) = needed_units([], [guest(MDEV, "7")], [CARVED, CarvedUnit(VF, CARD, VF)], [])
    assert need == NeededUnit(CARVED, f"instance gpu1 ({uuid.UUID(int=7)})")


def test_a_unit_that_a_boot_took_away_is_needed_as_long_as_somebody_has_it() -> None:
    former = needed_units([], [guest(MDEV)], [CARVED], [])
    assert needed_units([], [guest(MDEV)], [], former) == former
    assert needed_units([], [guest()], [], former) == ()


PORT = "52:54:00:00:00:01 VLAN 100"


def test_a_function_keeps_its_mac_and_vlan_as_long_as_the_same_guest_has_it() -> None:
    with_port, bare = (CarvedUnit(VF, CARD, VF, port=port) for port in (PORT, ""))
    former = needed_units([], [guest(VF)], [with_port], [])
    assert [need.unit.port for need in former] == [PORT]
    assert needed_units([], [guest(VF)], [bare], former) == former, "the boot took it"
    other = replace(guest(VF), uuid=str(uuid.UUID(int=9)))
    assert [need.unit.port for need in needed_units([], [other], [bare], former)] == [""]
    newer = CarvedUnit(VF, CARD, VF, port="52:54:00:00:00:02")
    assert [need.unit for need in needed_units([], [guest(VF)], [newer], former)] == [newer]


def test_a_plan_file_of_before_has_no_ports_and_one_that_is_none_is_refused() -> None:
    data = needs_to_json([NeededUnit(CarvedUnit(VF, CARD, VF, port=PORT), "instance gpu1")])
    del data["units"][0]["port"]
    assert [need.unit.port for need in read_needs(data)] == [""]
    for text in ("52:54:00:00:00:01 VLAN 100\n", "52:54:00", "52:54:00:00:00:01; VLAN 1"):
        data["units"][0]["port"] = text
        with pytest.raises(UsageError, match=r"units\[0\].port"):
            read_needs(data)


@pytest.mark.parametrize(
    ("ports", "card", "wanted"), [(True, CARD, {VF: PORT}), (False, CARD, {}), (True, VF, {})]
)
def test_ports_are_given_where_the_operator_says_so_on_cards_that_are_named(
    ports: bool, card: str, wanted: dict[str, str]
) -> None:
    declared = replace(DECLARED, ports=ports)
    assert joined(CarvedUnit(VF, card, VF, port=PORT), declared)[0].ports == wanted


def test_a_claim_needs_what_is_still_to_be_made_for_it() -> None:
    making = {MDEV: {"parent": VF, "type": "nvidia-471"}}
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (MDEV,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    (need,) = needed_units([claim], [], [], [])
    assert (need.unit.parent, need.unit.type_id) == (VF, "nvidia-471")
    assert need.holder == f"instance gpu2 ({uuid.UUID(int=8)})"


def test_the_vgpu_of_a_claim_is_needed_on_its_function_in_its_place() -> None:
    unit = f"{VF}/nvidia-471@20"
    making = {unit: {"parent": VF, "type": "nvidia-471", "placement": "20"}}
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
    units = {"p": {"VGPU": (unit,)}}
    claim = Claim(request.consumer, ClaimState.CLAIMED, request, {"p": {"VGPU": 1}}, units, makings=making)
    needed = needed_units([claim], [], [], [])
    assert [need.unit for need in needed] == [CarvedUnit(VF, VF, VF, "nvidia-471", 20)]
    made = [CarvedUnit(VF, CARD, VF, "nvidia-471", 20)]
    assert [need.unit for need in needed_units([claim], [guest(unit)], made, needed)] == made
    elsewhere = [CarvedUnit(VF, CARD, VF, "nvidia-471", 0)]
    assert [need.unit.placement for need in needed_units([claim], [], elsewhere, [])] == [20]


def test_where_a_claim_has_its_vgpu_counts_and_not_where_its_guest_has_it() -> None:
    request = ClaimRequest(str(uuid.UUID(int=8)), (RequestGroup(resources={"VGPU": 1}),), name="gpu2")
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
