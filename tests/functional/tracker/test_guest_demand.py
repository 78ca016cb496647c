"""What a guest that starts needs is reserved while that is decided, and not longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.tracker import VFS, Kit, guest, request, uuid_of

from agent.claims.restriction import Restriction
from agent.errors import DoesNotFit
from agent.tracker.guest_demand import GuestDemand, reserved_for


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with Kit(tmp_path, placement=placement) as kit:
        yield kit


def demand_for(unit: str) -> GuestDemand:
    wanted = request(SRIOV_NET_VF=1)
    return GuestDemand(
        guest(wanted.consumer), wanted, Restriction({uuid_of("nic0"): {"SRIOV_NET_VF": (unit,)}})
    )


@pytest.mark.parametrize("unit", VFS)
def test_in_the_block_the_request_gets_exactly_its_unit(kit: Kit, unit: str) -> None:
    demand = demand_for(unit)
    with reserved_for(kit.tracker._register, demand):
        assert kit.tracker.fit(demand.request).units == demand.restriction.units
    first = kit.tracker.fit(request(demand.request.consumer, SRIOV_NET_VF=1)).units
    assert first == {uuid_of("nic0"): {"SRIOV_NET_VF": VFS[:1]}}


def test_a_unit_of_another_consumer_is_refused_with_its_name(kit: Kit) -> None:
    owner = kit.tracker.claim(request(SRIOV_NET_VF=1)).claim
    ((_, _, unit),) = owner.exact
    with (
        pytest.raises(DoesNotFit, match=f"{unit} belongs to {owner.consumer}"),
        reserved_for(kit.tracker._register, demand_for(unit)),
    ):
        pass
    assert kit.tracker.fit(request(str(uuid4()), SRIOV_NET_VF=1)).fits
