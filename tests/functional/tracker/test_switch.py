"""Bandwidth of bridges and packet rates of a switch, and the disk of cached images, on a whole host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.placements import Placement
from kits.recorded import Stage
from kits.reshape import HOST, World
from kits.tracker import request

from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest
from agent.errors import DoesNotFit
from drivers.libvirt.describe.bandwidth import parse_ovs

SETTINGS = parse_ovs(
    {
        "bridge_mappings": ["physnet0:br-ex", "physnet1:br-two"],
        "resource_provider_bandwidths": ["br-ex:1000:1000", "br-two:5000:5000"],
        "resource_provider_packet_processing_without_direction": [":100"],
    },
    HOST,
)


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        yield Stage(world)


def port(kilobits: int, network: str, packets: int) -> ClaimRequest:
    """A guest with a port as Neutron's request for it: one group for the network, one for the packets."""
    specs = {
        "resources_NET:NET_BW_EGR_KILOBIT_PER_SEC": str(kilobits),
        "trait_NET:CUSTOM_VNIC_TYPE_NORMAL": "required",
        f"trait_NET:CUSTOM_PHYSNET_{network}": "required",
        "resources_RATE:NET_PACKET_RATE_KILOPACKET_PER_SEC": str(packets),
        "group_policy": "none",
        "same_subtree": "_NET,_RATE",
    }
    flavor = {"vcpus": 1, "memory_mb": 128, "extra_specs": specs}
    return parse_claim({"consumer": str(uuid4()), "flavor": flavor})


def test_ports_share_a_bridge_and_the_switch(stage: Stage) -> None:
    stage.show(ovs=SETTINGS)
    tracker = stage.world.tracker
    first = tracker.claim(port(800, "PHYSNET0", 40)).claim
    placed = stage.world.placed(first.consumer)
    assert placed[f"{HOST}_ovs_br-ex"] == {"NET_BW_EGR_KILOBIT_PER_SEC": 800}
    assert placed[f"{HOST}_ovs"] == {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 40}
    with pytest.raises(DoesNotFit, match="NET_BW_EGR_KILOBIT_PER_SEC"):
        tracker.claim(port(201, "PHYSNET0", 1))
    tracker.claim(port(201, "PHYSNET1", 60))
    with pytest.raises(DoesNotFit, match="NET_PACKET_RATE"):
        tracker.claim(port(1, "PHYSNET1", 1))
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert stage.world.placed(first.consumer)[f"{HOST}_ovs"] == placed[f"{HOST}_ovs"]


def test_the_disk_of_cached_images_is_reserved(stage: Stage) -> None:
    stage.show()
    stage.driver.host = replace(stage.driver.host, image_cache_mb=5 * 1024)
    settings = replace(stage.driver.settings.host, reserved_host_disk_mb=1024)
    stage.show(host=settings)
    assert stage.world.totals()[HOST]["DISK_GB"] == 40
    with pytest.raises(DoesNotFit, match="DISK_GB"):
        stage.world.tracker.claim(request(DISK_GB=35))
    stage.world.tracker.claim(request(DISK_GB=34))
