"""What a boot needs follows each claim and release of the agent, and is there for the next boot."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits.agent import opened, request, told
from kits.placements import Placement

from agent.carving.files import read_plan_file
from agent.driver import CarvedUnit
from drivers.fake import FakeDriver

CARDS = ("0000:41:02", "0000:81:02")
VFS = tuple(f"{card}.{number}" for card in CARDS for number in range(8))


def test_a_claim_is_in_the_plan_file_until_it_is_released(
    tmp_path: Path, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    carved = tuple(CarvedUnit(vf, f"{vf[:8]}00.0", vf) for vf in VFS)
    monkeypatch.setattr(FakeDriver, "carved_units", lambda self: carved)
    world = opened(told(tmp_path, placement))
    tmp_path.chmod(0o700)
    try:
        world.agent.write_needs()  # the guests are not known yet
        assert read_plan_file(tmp_path) == ()
        world.agent.reconcile("the start")
        claimed = world.operations.claim(request(SRIOV_NET_VF=2))
        assert world.carvings_requested, "the claim wakes what writes the file"
        world.agent.write_needs()
        needs = read_plan_file(tmp_path)
        assert len(needs) == 2 and all(need.unit in carved for need in needs)
        assert {need.holder for need in needs} == {f"instance {claimed.consumer}"}
        world.operations.release(claimed.consumer)
        world.agent.write_needs()
        assert read_plan_file(tmp_path) == ()
    finally:
        world.close()
