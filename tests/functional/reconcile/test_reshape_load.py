"""A reshape while others claim on the same root: what moves is reserved, all else can be claimed."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
from kits.placements import Placement
from kits.reshape import FLAT, HOST, NESTED, ROOT, World, host, to_gpus, uuid_of
from kits.reshape_load import Delayed, Load, loaded, reshaped
from kits.tracker import request

from agent.claims.claim import Claim
from agent.errors import DoesNotFit, PlacementFull, PlacementUnavailable
from agent.placement.client import WriteGate


@pytest.fixture
def world(world: World) -> World:
    world.see(*FLAT)
    return world


def test_while_the_request_is_unanswered_only_what_moves_cannot_be_claimed(world: World) -> None:
    world.client.gate = WriteGate(0.05)
    world.hold("a", node1={"VGPU": 1})
    claims: list[Claim] = []

    def silent(call: str) -> None:
        if call == "POST /reshaper":
            with pytest.raises(PlacementFull):
                world.hold("foreign", node1={"VGPU": 1})
            world.hold("unrelated", node1={"VCPU": 1})
            with pytest.raises(DoesNotFit):
                world.tracker.claim(request(VGPU=1))
            claims.append(world.tracker.claim(request(VCPU=1)).claim)
        if (
            call.startswith(("POST /reshaper", "PUT /resource_providers"))
            or call == "GET /resource_providers"
        ):
            raise PlacementUnavailable("placement does not answer, as it was told")

    posted = world.tap.calls
    world.tap.before = lambda call: silent(call) if "POST /reshaper" in posted else None
    report = world.see(*NESTED, moves=to_gpus())
    assert isinstance(report.error, PlacementUnavailable)
    assert len(claims) == 1
    world.tap.before = lambda _: None
    with pytest.raises(PlacementFull):
        world.hold("foreign", node1={"VGPU": 1})
    assert world.again().pending is None
    assert world.placed("a") == {"gpu0": {"VGPU": 1}}
    world.hold("foreign", gpu1={"VGPU": 4})
    world.check()


def test_a_claim_of_the_agents_own_waits_for_the_moment_of_the_request(world: World) -> None:
    world.hold("a", node1={"VGPU": 1})
    claims = [threading.Thread(target=world.tracker.claim, args=(request(VCPU=1),)) for _ in range(4)]

    def claim(call: str) -> None:
        if call == "POST /reshaper":
            world.tap.before = lambda _: None
            for each in claims:
                each.start()
            time.sleep(0.2)

    world.tap.before = claim
    world.tap.calls.clear()
    report = world.see(*NESTED, moves=to_gpus())
    for each in claims:
        each.join()
    assert (report.error, report.pending) == (None, None)
    assert world.tap.calls.count("POST /reshaper") == 1, "no conflict with the agent itself"
    assert world.raw.provider_usages(ROOT)["VCPU"] == 4


@pytest.mark.parametrize("own", [True, False], ids=["own claims", "foreign claims"])
def test_it_gets_through_in_a_few_attempts_under_load(
    placement: Placement, tmp_path: Path, own: bool
) -> None:
    """benchmarks/reshape_load.py has the times of an idle machine.

    Against claims of others the agent needs the more attempts the slower Placement is, so time bounds them.
    """
    with loaded(tmp_path, 24, placement, own=own) as world, Load(world, 10, own=own) as load:
        while load.done < 2:
            time.sleep(0.01)
        done = reshaped(world, 24)
        assert done.asked <= 3 if own else done.seconds < 10
        reads = [call for call in world.tap.calls if call.startswith("GET /allocations/")]
        assert len(reads) <= 24 * 4, "not each consumer for each conflict"
        assert load.refused == [], "what does not move can be claimed all the while"


@pytest.mark.parametrize("own", [True, False], ids=["own claims", "foreign claims"])
def test_it_gets_through_where_placement_is_slow(any_placement: Placement, tmp_path: Path, own: bool) -> None:
    """One request takes longer than the time between two claims: each attempt would meet one."""
    slow = Delayed(any_placement, 2, only="POST /reshaper")
    with loaded(tmp_path, 24, slow, own=own) as world:
        with Load(world, 10 if own else 2, own=own) as load:
            while load.done < 2:
                time.sleep(0.01)
            done = reshaped(world, 24)
        assert done.seconds < 60
        assert world.tree()[ROOT].inventories["VCPU"].reserved == 0
        world.check()
        if own:
            assert done.asked == 1, "its own claims wait for as long as the request is out"
            assert load.refused == [] and load.slowest_s > 1
            waited = [event for event in world.journal.history() if event.event == "waited"]
            assert waited and all("a reshape" in event.detail and event.consumer for event in waited)
        else:
            assert all("free" in each or "capacity" in each for each in load.refused), "no room"


def test_a_claim_that_waited_in_vain_says_what_for(world: World) -> None:
    def silent(call: str) -> None:
        if call.startswith("PUT /allocations/"):
            raise PlacementUnavailable("placement does not answer, as it was told")

    world.tap.before = silent
    told: list[str] = []

    def claim() -> None:
        with pytest.raises(PlacementUnavailable) as failure:
            world.tracker.claim(request(VCPU=1))
        told.append(failure.value.message)

    claiming = threading.Thread(target=claim)
    with world.client.gate.held({ROOT}, "Placement is sent a reshape"):
        claiming.start()
        time.sleep(1.2)
    claiming.join()
    assert re.search(r"as it was told; .* waited 1\.\d s: Placement is sent a reshape", told[0])


def test_it_is_told_whose_writes_were_in_the_way(world: World) -> None:
    """Here a hold of the agent's own writes ends long before the request does."""
    world.client.gate = WriteGate(0.01)
    own = [world.tracker.claim(request(uuid_of(f"own {number}"), VCPU=1)) for number in range(60)]
    threads: list[threading.Thread] = []

    def release(call: str) -> None:
        if call == "POST /reshaper":
            threads.append(threading.Thread(target=world.tracker.release, args=(own.pop().claim.consumer,)))
            threads[-1].start()
            threads[-1].join()

    world.tap.before = release
    report = world.see(*NESTED, moves=to_gpus())
    assert report.pending is not None
    assert (
        f"were written {len(threads)} times by the agent's own claims and releases; "
        in report.pending.message
    )


def test_a_pass_beside_claims_meets_no_conflict_that_closes_the_host(world: World) -> None:
    """Each write of inventories and traits of the root meets a claim of the agent's own in between."""
    claims = iter([uuid_of(f"own {number}") for number in range(40)])
    threads: list[threading.Thread] = []

    def claim(call: str) -> None:
        if call.startswith(f"PUT /resource_providers/{ROOT}") and threading.current_thread() not in threads:
            threads.append(
                threading.Thread(target=world.tracker.claim, args=(request(next(claims), VCPU=1),))
            )
            threads[-1].start()
            threads[-1].join(0.1)

    world.tap.before = claim
    report = world.see(host(VGPU=4, DISK_GB=10))
    for each in threads:
        each.join()
    assert report.error is None
    assert world.totals()[HOST] == {"VCPU": 64, "VGPU": 4, "DISK_GB": 10}
    assert len(threads) <= 3, "the second attempt holds the agent's own claims back"
