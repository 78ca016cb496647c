"""`hw:pmem` against the namespaces of a host: exact, through claims, NUMA reshapes and a resize."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import A, Stage
from kits.reshape import HOST, World

from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest
from agent.errors import DoesNotFit
from agent.moves.states import MoveKind
from drivers.host.sysfs import PmemNamespace
from drivers.libvirt.describe.memory import parse_pmem_namespaces

LABELS = parse_pmem_namespaces(["6GB:ns0|ns1", "BIG:ns2"])
FOUND = tuple(PmemNamespace(f"ns{n}", f"/dev/dax{n}.0", 2**30, 2**21) for n in range(3))
SMALL, BIG = "CUSTOM_PMEM_NAMESPACE_6GB", "CUSTOM_PMEM_NAMESPACE_BIG"
NVDIMM = (
    "<memory model='nvdimm'><source><path>{}</path></source>"
    "<target><size unit='GiB'>1</size></target></memory>"
)


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        found = Stage(world)
        found.driver.host = replace(found.driver.host, pmem=FOUND)
        found.show(pmem=LABELS)
        yield found


def asked(labels: str, consumer: str = "") -> ClaimRequest:
    flavor = {"vcpus": 1, "memory_mb": 256, "extra_specs": {"hw:pmem": labels}}
    return parse_claim({"consumer": consumer or str(uuid4()), "flavor": flavor})


def held(stage: Stage, consumer: str) -> dict[str, tuple[str, ...]]:
    (units,) = stage.units(consumer).values()
    return units


def test_each_guest_has_its_own_namespaces_and_no_more_than_there_are(stage: Stage) -> None:
    tracker = stage.world.tracker
    both = tracker.claim(asked("6GB,BIG")).claim
    assert held(stage, both.consumer) == {SMALL: ("ns0",), BIG: ("ns2",)}
    other = tracker.claim(asked("6gb")).claim
    assert held(stage, other.consumer) == {SMALL: ("ns1",)}
    for labels in ("6GB", "BIG", "NONE"):
        with pytest.raises(DoesNotFit, match="CUSTOM_PMEM_NAMESPACE_"):
            tracker.claim(asked(labels))
    tracker.release(both.consumer)
    assert held(stage, tracker.claim(asked("6GB")).claim.consumer) == {SMALL: ("ns0",)}


def test_a_namespace_that_a_guest_uses_unclaimed_is_given_to_no_other(stage: Stage) -> None:
    stage.driver.xml = (domain(1, devices=NVDIMM.format("/dev/dax0.0")),)
    stage.show()
    claim = stage.world.tracker.claim(asked("6GB")).claim
    assert held(stage, claim.consumer) == {SMALL: ("ns1",)}
    with pytest.raises(DoesNotFit, match=SMALL):
        stage.world.tracker.claim(asked("6GB"))
    stage.adopt(A, {HOST: {"VCPU": 1, "MEMORY_MB": 256, SMALL: 1}})
    assert held(stage, A) == {SMALL: ("ns0",)}


def test_the_namespaces_stay_when_the_cells_are_reported_and_back(stage: Stage) -> None:
    claim = stage.world.tracker.claim(asked("6GB,6GB")).claim
    before = held(stage, claim.consumer)
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert stage.units(claim.consumer)[HOST] == before == {SMALL: ("ns0", "ns1")}
        assert stage.world.totals()[HOST][SMALL] == 2


def test_a_namespace_that_vanishes_is_not_given_and_not_taken_away(stage: Stage) -> None:
    claim = stage.world.tracker.claim(asked("6GB")).claim
    stage.driver.host = replace(stage.driver.host, pmem=FOUND[1:])
    stage.show()
    assert held(stage, claim.consumer) == {SMALL: ("ns0",)}
    assert held(stage, stage.world.tracker.claim(asked("6GB")).claim.consumer) == {SMALL: ("ns1",)}
    with pytest.raises(DoesNotFit, match=SMALL):
        stage.world.tracker.claim(asked("6GB"))


def test_a_resize_gets_other_namespaces_and_a_revert_the_former(stage: Stage) -> None:
    tracker, consumer, migration = stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(asked("6GB", consumer))
    tracker.begin_move(asked("6GB,BIG", consumer), MoveKind.RESIZE, migration)
    assert held(stage, consumer) == {SMALL: ("ns1",), BIG: ("ns2",)}
    with pytest.raises(DoesNotFit):
        tracker.claim(asked("6GB"))
    tracker.revert_move(migration)
    assert held(stage, consumer) == {SMALL: ("ns0",)}
    assert held(stage, tracker.claim(asked("BIG")).claim.consumer) == {BIG: ("ns2",)}
