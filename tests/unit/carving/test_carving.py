"""A carving takes from the agent's file only what the operator's options allow."""

from __future__ import annotations

from agent.carving.carving import Carving, NeededUnit, VgpuType, join
from agent.carving.seen import Mdev, Seen, SeenFunction
from agent.driver import CarvedUnit, DeclaredCarving

CARD, VF, OTHER = "0000:84:00.0", "0000:84:00.1", "0000:85:00.1"
UUID = "00000000-0000-0000-0000-000000000001"
SEEN = Seen({CARD: SeenFunction(CARD, vfs_max=4, vf_addresses=(VF, "0000:84:00.2"))})
DECLARED = DeclaredCarving({CARD: 2}, mdev_types={"nvidia-471": frozenset({CARD})})


def joined(unit: CarvedUnit, declared: DeclaredCarving = DECLARED) -> tuple[Carving, tuple[str, ...]]:
    return join(declared, [NeededUnit(unit, "instance gpu1")], SEEN)


def test_a_mediated_device_of_an_enabled_type_on_a_named_card_is_needed_with_its_holder() -> None:
    carving, problems = joined(CarvedUnit(UUID, CARD, VF, "nvidia-471"))
    assert problems == ()
    assert carving == Carving(
        {CARD: 2}, mdevs={UUID: Mdev(VF, "nvidia-471")}, holders={UUID: "instance gpu1"}
    )


def test_what_the_operator_did_not_name_is_left_out_and_told() -> None:
    for unit in (
        CarvedUnit(UUID, CARD, VF, "nvidia-472"),  # a type that is not enabled
        CarvedUnit(UUID, CARD, OTHER, "nvidia-471"),  # a function of another card, as the kernel shows
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
