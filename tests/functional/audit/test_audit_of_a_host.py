"""Audits of a whole agent: the pass and the audit agree on a guest that grew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Placement

from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import DoesNotFit

CARDS = tuple(tuple(f"0000:{bus}:02.{number}" for number in range(8)) for bus in ("41", "81"))
PGPU = "0000:83:00.0"


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with closing(opened(told(tmp_path, placement))) as world:
        world.agent.reconcile("the start")
        yield world


def kinds(world: World) -> list[str]:
    return [finding.kind for finding in world.operations.audit(heal=False).findings]


def test_what_a_guest_grew_by_is_offered_to_nobody_and_becomes_its_own(world: World) -> None:
    """It has a whole card and a GPU, which the pass reserves until the claim has them."""
    asked = request(VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)
    claim = world.operations.claim(asked)
    (given,) = (unit for _, name, unit in claim.exact if name == "SRIOV_NET_VF")
    card = next(functions for functions in CARDS if given in functions)
    device = f"pci:{given[:8]}00.0"
    units = (
        *(UsedUnit("SRIOV_NET_VF", vf, device) for vf in card),
        UsedUnit("PGPU", PGPU, f"pci:{PGPU}"),
    )
    resources = {"VCPU": 8, "MEMORY_MB": 16384, "SRIOV_NET_VF": 8, "PGPU": 1}
    world.driver.add_guest(Guest(asked.consumer, "grown", GuestState.RUNNING, resources, units))
    world.agent.reconcile("it grew")
    for more in (request(PGPU=1), request(SRIOV_NET_VF=9)):
        assert not world.operations.explain(more).fits
    assert kinds(world) == ["uses more"]
    for _ in range(2):  # the first claims; the pass then lifts the reservation, which Placement refused for
        world.operations.audit(heal=True)
        world.agent.reconcile("healed")
    assert kinds(world) == []
    held = world.operations.tree()[1]
    assert sum(amounts.get("SRIOV_NET_VF", 0) for amounts in held.values()) == 8
    assert sum(amounts.get("PGPU", 0) for amounts in held.values()) == 1


def test_what_the_audit_sees_in_a_guest_is_given_to_no_later_claim(world: World) -> None:
    """No pass has run since the guest grew; the audit requests one, which reserves that in Placement."""
    asked = request(VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1)
    claim = world.operations.claim(asked)
    world.agent.reconcile("claimed")
    (given,) = (unit for _, name, unit in claim.exact if name == "SRIOV_NET_VF")
    own, other = (given, next(vf for vf in CARDS[0] + CARDS[1] if vf != given))
    units = (
        *(UsedUnit("SRIOV_NET_VF", vf, f"pci:{vf[:8]}00.0") for vf in (own, other)),
        UsedUnit("PGPU", PGPU, f"pci:{PGPU}"),
    )
    resources = {"VCPU": 8, "MEMORY_MB": 16384, "SRIOV_NET_VF": 2, "PGPU": 1}
    free_mb = max(
        mb for mb in range(1024, 2**20, 1024) if world.operations.explain(request(MEMORY_MB=mb)).fits
    )
    world.driver.add_guest(Guest(asked.consumer, "grown", GuestState.RUNNING, resources, units))
    world.retries.clear()
    assert kinds(world) == ["uses more"]
    assert world.retries
    for more in (request(PGPU=1), request(MEMORY_MB=free_mb)):
        with pytest.raises(DoesNotFit):
            world.operations.claim(more)
    others = [world.operations.claim(request(SRIOV_NET_VF=1)) for _ in range(14)]
    assert other not in {unit for each in others for _, _, unit in each.exact}
    with pytest.raises(DoesNotFit):
        world.operations.claim(request(SRIOV_NET_VF=1))
