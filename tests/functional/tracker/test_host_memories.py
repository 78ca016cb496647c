"""Memory for enclaves and memory in files, through claims and a NUMA reshape of a whole host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import Stage
from kits.reshape import HOST, World
from kits.tracker import request

from agent.claims.parse_request import parse_claim
from agent.errors import DoesNotFit
from drivers.libvirt.xml import DomainCapabilities

EPC = "CUSTOM_SGX_EPC_MB"
CELLS = [f"{HOST}_numa{cell}_sgx_epc" for cell in range(2)]
DEVICE = "<memory model='sgx-epc'><target><size unit='MiB'>{}</size></target></memory>"


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        yield Stage(world)


def test_enclaves_have_memory_of_one_cell_through_a_reshape(stage: Stage) -> None:
    guests = DomainCapabilities("kvm", epc={0: 64 * 2**20, 1: 32 * 2**20})
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.show()
    tracker = stage.world.tracker
    asked = {"consumer": str(uuid4()), "groups": [{"suffix": "1", "resources": {EPC: 48}}]}
    claim = tracker.claim(parse_claim(asked)).claim
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert stage.world.placed(claim.consumer) == {CELLS[0]: {EPC: 48}}
    with pytest.raises(DoesNotFit, match=EPC):
        tracker.claim(parse_claim({**asked, "consumer": str(uuid4())}))
    tracker.claim(request(**{EPC: 32}))
    with pytest.raises(DoesNotFit, match=EPC):
        tracker.claim(request(**{EPC: 17}))


def test_what_a_guest_has_for_enclaves_unclaimed_is_given_to_no_other(stage: Stage) -> None:
    guests = DomainCapabilities("kvm", epc={0: 64 * 2**20})
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.driver.xml = (domain(1, devices=DEVICE.format(60)),)
    stage.show()
    with pytest.raises(DoesNotFit, match="4"):
        stage.world.tracker.claim(request(**{EPC: 5}))
    stage.world.tracker.claim(request(**{EPC: 4}))


def test_memory_in_files_is_the_hosts_memory(stage: Stage) -> None:
    stage.show(file_backed_mb=100_000)
    assert stage.world.totals()[HOST]["MEMORY_MB"] == 100_000
    (root,) = (each for each in stage.world.tree() if each.name == HOST)
    assert "COMPUTE_MEM_BACKING_FILE" in root.traits
    claim = stage.world.tracker.claim(request(MEMORY_MB=60_000)).claim
    with pytest.raises(DoesNotFit, match="MEMORY_MB"):
        stage.world.tracker.claim(request(MEMORY_MB=40_001))
    flavor = {"vcpus": 1, "memory_mb": 512, "extra_specs": {"hw:mem_page_size": "2MB"}}
    with pytest.raises(DoesNotFit):
        stage.world.tracker.claim(parse_claim({"consumer": str(uuid4()), "flavor": flavor}))
    stage.world.tracker.release(claim.consumer)
    stage.show(file_backed_mb=0)
    (root,) = (each for each in stage.world.tree() if each.name == HOST)
    assert "COMPUTE_MEM_BACKING_FILE" not in root.traits
