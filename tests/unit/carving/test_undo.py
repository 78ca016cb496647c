"""The next run undoes what a killed run did, unless the carving names it or a guest has it."""

from __future__ import annotations

import pytest

from agent.carving.carving import Carving, VgpuType
from agent.carving.seen import Mdev, Seen, SeenFunction
from agent.carving.steps import Step, StepKind
from agent.carving.undo import undo

CARD, VF = "0000:84:00.0", "0000:84:00.1"
UUID = "00000000-0000-0000-0000-000000000001"
SEEN = Seen(
    {
        CARD: SeenFunction(CARD, "pf", vfs_max=4, vfs_number=1, vfs=(VF,), autoprobe=False),
        VF: SeenFunction(VF, "", "vfio-pci", CARD, vgpu_type="471"),
    },
    {UUID: Mdev(CARD, "t-1")},
)
TAKEN = (
    Step(StepKind.AUTOPROBE, CARD, CARD, "0"),
    Step(StepKind.VFS, CARD, CARD, "1"),
    Step(StepKind.UNBIND, CARD, VF, "vf"),
    Step(StepKind.OVERRIDE, CARD, VF, "vfio-pci"),
    Step(StepKind.VGPU_TYPE, CARD, VF, "471", "12"),
    Step(StepKind.CREATE_MDEV, CARD, CARD, "t-1", UUID),
)
WANTED = Carving(
    {CARD: 1}, {VF: "vfio-pci"}, {CARD: "vfio-pci"}, {VF: VgpuType("471")}, {UUID: Mdev(CARD, "t-1")}
)


def test_all_that_is_not_wanted_is_undone_the_last_first() -> None:
    assert undo(TAKEN, Carving(), SEEN) == (
        Step(StepKind.REMOVE_MDEV, CARD, CARD, "t-1", UUID),
        Step(StepKind.VGPU_TYPE, CARD, VF, "0"),
        Step(StepKind.OVERRIDE, CARD, VF, ""),
        Step(StepKind.BIND, CARD, VF, ""),
        Step(StepKind.VFS, CARD, CARD, "0"),
        Step(StepKind.AUTOPROBE, CARD, CARD, "1"),
    )


def test_what_is_wanted_is_left_for_the_plan_to_finish() -> None:
    assert undo(TAKEN, WANTED, SEEN) == ()


def test_what_the_run_did_not_do_is_left_alone() -> None:
    assert undo((), Carving(), SEEN) == ()
    function = SeenFunction(VF, "x", "mlx5_vfio_pci", CARD, vgpu_type="468")
    others = Seen({VF: function}, {UUID: Mdev(CARD, "t-2")})
    assert undo(TAKEN, Carving(), others) == ()


@pytest.mark.parametrize("holders", [{VF: "vm1"}, {UUID: "vm1"}])
def test_what_somebody_has_is_not_undone(holders: dict[str, str]) -> None:
    (held,) = holders
    kinds = {step.kind for step in undo(TAKEN, Carving(holders=holders), SEEN)}
    assert StepKind.VFS not in kinds if held == VF else StepKind.REMOVE_MDEV not in kinds
