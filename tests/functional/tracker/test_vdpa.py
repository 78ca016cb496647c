"""Functions over vDPA through claims, guests, a resize and a reshape: exact, and never a plain function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_model import FACTS
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import NIC0, A, Stage
from kits.recorded_cards import NIC0 as ADDRESS
from kits.reshape import World
from kits.tracker import request

from agent.errors import DoesNotFit
from agent.moves.states import MoveKind
from drivers.libvirt.describe.devices import DeviceFacts

CARDS = {card.device.address: card for card in FACTS["vfs"].cards}
VFS = [vf.address for vf in CARDS[ADDRESS].vfs]
PATHS = {address: f"/dev/vhost-vdpa-{number}" for number, address in enumerate(VFS[:2])}


def facts(paths: dict[str, str]) -> DeviceFacts:
    card = replace(CARDS[ADDRESS], vdpa=paths)
    return replace(FACTS["vfs"], cards=tuple({**CARDS, ADDRESS: card}.values()))


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        found = Stage(world)
        found.show(facts=facts(PATHS))
        yield found


def given(stage: Stage, consumer: str) -> tuple[str, ...]:
    return stage.units(consumer)[NIC0]["CUSTOM_VDPA"]


def test_each_claim_has_its_own_function_and_plain_claims_have_none_of_them(stage: Stage) -> None:
    tracker = stage.world.tracker
    claims = [tracker.claim(request(VCPU=1, CUSTOM_VDPA=1)).claim for _ in range(2)]
    assert [given(stage, claim.consumer) for claim in claims] == [(VFS[0],), (VFS[1],)]
    with pytest.raises(DoesNotFit, match="CUSTOM_VDPA"):
        tracker.claim(request(VCPU=1, CUSTOM_VDPA=1))
    plain = tracker.claim(request(SRIOV_NET_VF=2)).claim
    exact = {unit for classes in plain.units.values() for units in classes.values() for unit in units}
    assert not exact & set(PATHS)


def test_a_guests_interface_is_its_function(stage: Stage) -> None:
    stage.driver.xml = (
        domain(1, devices=f"<interface type='vdpa'><source dev='{PATHS[VFS[0]]}'/></interface>"),
    )
    stage.show()
    assert given(stage, stage.world.tracker.claim(request(CUSTOM_VDPA=1)).claim.consumer) == (VFS[1],)
    stage.adopt(A, {NIC0: {"CUSTOM_VDPA": 1}})
    assert given(stage, A) == (VFS[0],), "the one that its guest uses"


def test_a_resize_has_another_and_a_revert_the_former(stage: Stage) -> None:
    tracker, consumer, migration = stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(replace(request(VCPU=1, CUSTOM_VDPA=1), consumer=consumer))
    tracker.begin_move(replace(request(VCPU=2, CUSTOM_VDPA=1), consumer=consumer), MoveKind.RESIZE, migration)
    assert given(stage, consumer) == (VFS[1],)
    tracker.revert_move(migration)
    assert given(stage, consumer) == (VFS[0],)


def test_the_functions_stay_when_the_cells_are_reported(stage: Stage) -> None:
    claim = stage.world.tracker.claim(request(CUSTOM_VDPA=1)).claim
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert given(stage, claim.consumer) == (VFS[0],)


def test_a_function_whose_device_is_away_after_a_boot_is_given_to_no_other(stage: Stage) -> None:
    """Its vDPA device comes back later than the function itself, which is a plain one until then."""
    tracker = stage.world.tracker
    claim = tracker.claim(request(CUSTOM_VDPA=1)).claim
    stage.show(facts=facts({}))
    assert given(stage, claim.consumer) == (VFS[0],)
    plain = [tracker.claim(request(SRIOV_NET_VF=1)).claim for _ in range(2)]
    assert all(NIC0 not in stage.units(each.consumer) for each in plain), "the other card has two"
    with pytest.raises(DoesNotFit, match="while its CUSTOM_VDPA is in use"):
        tracker.claim(request(SRIOV_NET_VF=1))
    for each in plain:
        tracker.release(each.consumer)
    stage.show(facts=facts(PATHS))
    assert given(stage, claim.consumer) == (VFS[0],)
    assert given(stage, tracker.claim(request(CUSTOM_VDPA=1)).claim.consumer) == (VFS[1],)
