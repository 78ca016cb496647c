"""What the audit reads of a host on a real placement, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

from kits.audit import DEVICES, running
from kits.placements import Placement
from kits.tracker import UNITS, Kit, request, uuid_of

from agent.audit.reader import AuditReader
from agent.driver import Guest
from agent.placement.client import PlacementClient


def reader_of(kit: Kit, *guests: Guest) -> AuditReader:
    devices = {uuid: device for device, uuid in DEVICES.items()}
    return AuditReader(
        kit.tracker, PlacementClient(kit.tap), uuid_of("host"), lambda: guests, lambda: devices, lambda: None
    )


def test_an_observation_has_all_three_sources_and_writes_nothing(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2, DISK_GB=10)).claim
        kit.tap.calls.clear()
        observation = reader_of(kit, running(held.consumer, VCPU=2)).observe()
        assert not [call for call in kit.tap.calls if not call.startswith("GET ")]
        assert observation.guests.keys() == observation.claims.keys() == {held.consumer}
        assert observation.claims[held.consumer] == held
        assert observation.allocations_here(held.consumer) == observation.own_part(held.allocations)
        assert observation.offered == UNITS and observation.devices == DEVICES


def test_a_consumer_with_an_operation_under_way_is_not_judged(tmp_path: Path, placement: Placement) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        kit.raw.delete_allocations(held.consumer)
        reader = reader_of(kit)
        observation = reader.observe()
        finding = reader.judge_consumer(observation, held.consumer)
        assert finding is not None and finding.kind == "leaked claim"
        kit.tracker._context.turns.wait_s = 0.0
        with kit.tracker.turn(held.consumer):
            assert reader.judge_consumer(observation, held.consumer) is None
            assert reader.judge_consumer_alone(observation, held.consumer) == finding
