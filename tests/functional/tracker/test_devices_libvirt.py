"""Recorded devices as the libvirt driver tells of them, through placement, claims and a reboot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_model import FACTS, hostdev
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import A100, M60, ON_A100, ON_M60, A, B, Stage, devices
from kits.reshape import World
from kits.tracker import request

from agent.errors import DoesNotFit, DriverDataError
from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.history import lost_mdevs


@pytest.fixture
def stage(any_placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, any_placement) as world:
        yield Stage(world)


def test_each_guests_mediated_device_is_its_own_over_a_reboot(stage: Stage) -> None:
    """Scenario 97: made again with its uuid on its parent as soon as that is there; else it is named."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)), domain(2, devices=hostdev(ON_A100)))
    stage.driver.boot = "the first"
    stage.show()
    claims = [stage.adopt(who, {card: {"VGPU": 1}}) for who, card in ((A, M60), (B, A100))]

    def to_make() -> dict[str, str]:
        assert stage.driver.memory is not None
        missing, facts = stage.driver.memory.missing, stage.driver.memory.devices
        return {each.record.unit: each.parent for each in lost_mdevs(missing, facts, stage.driver.boot)}

    stage.driver.boot = "the second"
    stage.show(facts=FACTS["boot"])
    assert to_make() == {ON_M60: "pci_0000_42_00_0"}
    assert [stage.claim(who) for who in (A, B)] == claims
    assert stage.world.totals()[A100] == {"VGPU": 1}, "what is in use, no more"
    facts = FACTS["boot"]
    rest = tuple(card for card in facts.cards if card.device.address != "0000:84:00.0")
    stage.show(facts=replace(facts, cards=rest))
    assert to_make() == {ON_M60: "pci_0000_42_00_0"}
    (problem,) = (said for said in stage.world.again().problems if A100 in said)
    assert B in problem, "a card that did not come back, and whose device was on it"
    assert stage.world.placed(B) == {A100: {"VGPU": 1}}
    stage.show(facts=FACTS["vfs"])
    assert to_make() == {ON_M60: "pci_0000_42_00_0", ON_A100: "pci_0000_84_00_1"}
    stage.show(facts=FACTS["domains"])
    assert to_make() == {}
    assert [stage.claim(who) for who in (A, B)] == claims


def test_a_card_gives_as_many_as_it_may_and_none_in_use_vanishes(stage: Stage) -> None:
    """Scenario 100: a largest number of instances caps exactly, raised or lowered while they are in use."""
    tracker = stage.world.tracker

    def capped(most: int) -> int:
        spec = MdevSpec("nvidia-11", frozenset({"0000:42:00.0"}), "VGPU", most)
        stage.show(facts=FACTS["vfs"], devices=devices(spec))
        return stage.world.totals()[M60]["VGPU"]

    assert capped(2) == 2
    taken = [tracker.claim(request(str(uuid4()), VGPU=1)).claim for _ in range(2)]
    with pytest.raises(DoesNotFit):
        tracker.claim(request(str(uuid4()), VGPU=1))
    assert capped(3) == 3
    taken.append(tracker.claim(request(str(uuid4()), VGPU=1)).claim)
    for most, told in ((1, "3 VGPU are in use of 1"), (0, "still hold some of it")):
        capped(most)
        assert any(told in each for each in stage.world.again().problems)
        with pytest.raises(DoesNotFit):
            tracker.claim(request(str(uuid4()), VGPU=1))
        assert [tracker.claim_of(each.consumer) for each in taken] == taken
        assert all(stage.world.placed(each.consumer) == {M60: {"VGPU": 1}} for each in taken)


def test_functions_of_one_card_that_contradict_each_other_change_nothing(stage: Stage) -> None:
    """Scenario 104: the host is not described so, the addresses are told, and what is claimed stays."""
    stage.show(devices=devices())
    held = stage.world.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1)).claim
    before = stage.world.everything()
    one = '{"address": "0000:41:10.2", "traits": "gold"}'
    specs = parse_device_specs((one, '{"vendor_id": "8086", "product_id": "10ca"}'))
    stage.driver.settings = replace(stage.driver.settings, devices=DeviceSettings(specs))
    stage.world.reconciler.replace_driver(stage.driver)
    report = stage.world.again()
    assert isinstance(report.error, DriverDataError)
    assert "0000:41:10.0 and 0000:41:10.2, virtual functions of one" in report.error.message
    assert stage.world.everything() == before
    assert stage.world.tracker.claim_of(held.consumer) == held
