"""What the audit reads of a host on a real placement, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from kits.audit import DEVICES, running
from kits.placements import Placement
from kits.tracker import CARD, ELSEWHERE, HOST, UNITS, Kit, request, uuid_of

from agent.audit.reader import AuditReader
from agent.driver import Guest
from agent.errors import PlacementConflict
from agent.placement.client import PlacementClient


def reader_of(kit: Kit, *guests: Guest) -> AuditReader:
    devices = {uuid: device for device, uuid in DEVICES.items()}
    return AuditReader(
        kit.tracker,
        PlacementClient(kit.tap),
        uuid_of("host"),
        lambda: guests,
        lambda: devices,
        lambda: None,
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
        assert observation.cells == kit.tracker.host_and_cells()[1]
        assert 0 <= observation.ages[held.consumer] < 60


def test_what_lost_claims_have_on_other_hosts_is_read_where_another_consumer_may_have_their_place(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, (*HOST, ELSEWHERE), placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        gone = kit.tracker.claim(request(VCPU=1)).claim
        kit.raw.delete_allocations(gone.consumer)
        kit.schedule(held.consumer, elsewhere={"VCPU": 2})
        assert reader_of(kit).observe().elsewhere == {}
        kit.schedule(str(uuid4()), host={"VCPU": 2})
        assert reader_of(kit).observe().elsewhere == {held.consumer: {ELSEWHERE.uuid: {"VCPU": 2}}}


def test_a_row_is_not_judged_while_an_operation_on_it_is_under_way(
    tmp_path: Path, placement: Placement
) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        held = kit.tracker.claim(request(VCPU=2)).claim
        reader = reader_of(kit, running(held.consumer, VCPU=3))
        observation = reader.observe()
        assert [finding.kind for finding in reader.judge_row(observation, held.consumer)] == ["uses more"]
        kit.tracker._context.turns.wait_s = 0.0
        with kit.tracker.turn(held.consumer):
            assert reader.judge_row(observation, held.consumer) == ()


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


@pytest.mark.parametrize("always", [False, True])
def test_a_provider_that_is_deleted_between_its_list_and_its_read_is_no_error(
    tmp_path: Path, placement: Placement, always: bool
) -> None:
    """As by a reshape of this agent. Where that goes on, the audit ends with a conflict."""
    with Kit(tmp_path, (*HOST, CARD), placement=placement) as kit:
        asked = f"GET /resource_providers/{CARD.uuid}/allocations"

        def delete_it(call: str) -> None:
            if call == asked:
                kit.raw.delete_provider(CARD.uuid)

        def make_it_again(call: str) -> None:
            if call == asked and always:
                kit.raw.create_provider(CARD)
                kit.raw.put_inventories(CARD.uuid, 0, CARD.inventories)

        kit.tap.before, kit.tap.after = delete_it, make_it_again
        if always:
            with pytest.raises(PlacementConflict, match="deleted the provider since it was listed"):
                reader_of(kit).observe()
            assert kit.tap.calls.count(asked) == 3
        else:
            assert CARD.uuid not in reader_of(kit).observe().host.tree
