"""Audits of a whole agent: the pass and the audit agree on a guest that grew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import World, opened, request, told, world_of
from kits.numa import ask
from kits.placements import Placement, usual_placement
from kits.tracker import Crash

from agent.carving.carving import NeededUnit
from agent.carving.files import PLAN_NAME, write_plan_file
from agent.claims.claim import Claim
from agent.device_names import NO_MAC
from agent.driver import CarvedUnit, Guest, GuestState, UsedUnit
from agent.errors import DoesNotFit, DriverDataError, DriverError
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations
from drivers.fake.host import cell

CARDS = tuple(tuple(f"0000:{bus}:02.{number}" for number in range(8)) for bus in ("41", "81"))
PGPU = "0000:83:00.0"
MAC = "52:54:00:00:00:01"
TAGGED = f"{MAC} VLAN 7"
OFF = "5b2c0000-0000-4000-8000-000000000001"


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with world_of(told(tmp_path, placement)) as world:
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
    assert len(world.operations.audit(heal=True).healed) == 1
    world.agent.reconcile("healed")
    assert kinds(world) == []
    held = world.operations.tree()[1]
    assert sum(amounts.get("SRIOV_NET_VF", 0) for amounts in held.values()) == 8
    assert sum(amounts.get("PGPU", 0) for amounts in held.values()) == 1


@pytest.mark.parametrize(
    ("noted_for", "noted", "port", "asked", "reason"),
    [
        (
            "",
            TAGGED,
            NO_MAC,
            "",
            f"has {NO_MAC}, and the guest {TAGGED}. Set it on the card; [devices] restore",
        ),
        ("", MAC, NO_MAC, "", ""),  # it may be one that the guest chose
        ("", TAGGED, TAGGED, "", ""),
        ("", TAGGED, MAC, "", ""),  # another one is the operator's act, and is noted
        ("", TAGGED, "", "", ""),
        (OFF, TAGGED, NO_MAC, "", ""),
        (
            "",
            TAGGED,
            NO_MAC,
            f"{MAC} VLAN 8",
            f"has {NO_MAC}, and the guest {MAC} VLAN 8. Set it on the card; ",
        ),
    ],
)
def test_a_plain_device_whose_card_lost_what_it_had_for_it_is_told(
    world: World, tmp_path: Path, noted_for: str, noted: str, port: str, asked: str, reason: str
) -> None:
    """A <hostdev> does not tell its MAC address; what the agent noted for the same guest does."""
    claim = world.operations.claim(request(VCPU=2, MEMORY_MB=2048, SRIOV_NET_VF=1))
    (vf,) = (unit for _, name, unit in claim.exact if name == "SRIOV_NET_VF")
    card = f"{vf[:8]}00.0"
    unit = UsedUnit("SRIOV_NET_VF", vf, f"pci:{card}", asked_port=asked, port=port)
    resources = {"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 1}
    world.driver.add_guest(Guest(claim.consumer, "plain", GuestState.RUNNING, resources, (unit,)))
    world.agent.reconcile("it runs")
    need = NeededUnit(CarvedUnit(vf, card, vf, port=noted), f"instance {noted_for or claim.consumer}")
    write_plan_file(tmp_path, (need,))
    told = [each for each in world.operations.audit(heal=False).findings if each.kind == "another unit"]
    assert len(told) == bool(reason) and all(f"{vf} {reason}" in each.reason for each in told)
    assert not any(each.repair for each in told)
    (tmp_path / PLAN_NAME).write_text("garbage")
    told = [each for each in world.operations.audit(heal=False).findings if each.kind == "another unit"]
    assert len(told) == bool(asked), "what cannot be read is no note"


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


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_dedicated_cpu_that_is_offline_at_the_next_start_takes_nothing_else_away(
    tmp_path: Path, nested: bool, after: bool
) -> None:
    """Scenario N6: killed amid a claim with pinned CPUs, before or after Placement has its allocation."""
    sets = "[compute]\ncpu_shared_set = 0-1\ncpu_dedicated_set = 2-7\n"
    settings = told(tmp_path, usual_placement(tmp_path), sets)

    def pinned(cpus: int) -> Claim:
        return world.operations.claim(ask(cpus, 256, hw_cpu_policy="dedicated"))

    def start(*cpus: Iterable[int]) -> World:
        world = opened(settings)
        cells = tuple(cell(number, frozenset(ids), 8192) for number, ids in enumerate(cpus))
        world.driver.change(cells=cells, report_numa=nested, guests=guests)
        world.agent.reconcile("the start")
        assert world.operations.tracker.admission.closed_reason is None
        return world

    guests: tuple[Guest, ...] = ()
    world = start(range(4), range(4, 8))
    with closing(world):
        claims = [pinned(1), pinned(2)]
        setattr(world.wire, "after" if after else "before", _die)
        with pytest.raises(Crash):
            pinned(1)
    taken = {claim.consumer: {int(unit) for _, _, unit in claim.exact} for claim in claims}
    lost = min(taken[claims[0].consumer])
    guests = tuple(
        Guest(
            claim.consumer,
            "guest",
            GuestState.RUNNING,
            {"PCPU": len(taken[claim.consumer]), "MEMORY_MB": 256},
            tuple(UsedUnit("PCPU", str(cpu), f"numa:{cpu // 4}") for cpu in sorted(taken[claim.consumer])),
        )
        for claim in claims[1:]
    )
    with closing(start(*({*cpus} - {lost} for cpus in (range(4), range(4, 8))))) as world:
        (notice,) = world.driver.unmatched_options()
        assert f"CPU {lost}, not online" in notice
        findings = world.operations.audit(heal=False).findings
        assert [(finding.kind, finding.subject) for finding in findings] == [
            ("vanished unit", claims[0].consumer)
        ]
        world.operations.claim(request(VCPU=1, MEMORY_MB=256))
        rest = [pinned(1) for _ in range(3)]
        with pytest.raises(DoesNotFit):
            pinned(1)
        given = [int(unit) for claim in (*claims, *rest) for _, _, unit in claim.exact]
        assert sorted(given) == [2, 3, 4, 5, 6, 7], "no CPU twice, and none is lost"


@pytest.mark.parametrize("fault", ["description", "Placement"])
def test_a_host_that_is_not_known_is_not_compared(tmp_path: Path, fault: str) -> None:
    """At a start, and after a description that failed: neither "vanished" nor "nothing differs"."""
    settings = told(tmp_path, usual_placement(tmp_path))
    with world_of(settings) as world:
        world.operations.claim(request(VCPU=1, SRIOV_NET_VF=1))
    with opened(settings) as world:
        for why in ("the start", "an event"):
            if fault == "Placement":
                world.wire.cut = True
            else:
                world.driver.fail(
                    error=DriverDataError("[pci] device_spec: two entries contradict each other")
                )
            world.agent.reconcile(why)
            world.wire.cut = False  # it is back, and no pass has run since
            if fault == "Placement" and why == "an event":
                assert kinds(world) == [], "what this host has is known since"
                break
            for heal in (False, True):
                with pytest.raises(DriverError, match=r"nothing was compared: .*(Placement|contradict)"):
                    world.operations.audit(heal=heal)
            world.retry()
            assert kinds(world) == []
        assert len(world.agent.host_status.overview().instances) == 1


def _die(call: str) -> None:
    if call.startswith("PUT /allocations/"):
        raise Crash


def test_a_guest_that_a_new_state_directory_found_shut_off_is_a_finding(tmp_path: Path) -> None:
    """What it needs is reserved, so "nothing differs" would be wrong; one that is defined later is none."""
    off = Guest(OFF, "web1", GuestState.SHUTOFF, {"VCPU": 2, "MEMORY_MB": 4096})
    with opened(told(tmp_path, usual_placement(tmp_path))) as world:
        world.driver.add_guest(off)
        world.agent.reconcile("the start")
        world.driver.add_guest(replace(off, uuid=OFF.replace("5", "6")))
        world.agent.reconcile("another guest is defined")
        (finding,) = world.operations.audit(heal=False).findings
        assert (finding.kind, finding.subject) == ("unclaimed instance", OFF)
        assert world.operations.audit(heal=True).healed
        world.agent.reconcile("healed")
        assert kinds(world) == [] and list(world.agent.host_status.status().reasons) == []
        assert {claim.consumer for _, claim in world.agent.host_status.overview().instances if claim} == {OFF}


# A claim whose instance moved, and was released on its new host before this one looked


@pytest.fixture
def other(world: World, placement: Placement, tmp_path: Path) -> Iterator[World]:
    """Another host on the same Placement."""
    (tmp_path / "b").mkdir()
    settings = told(tmp_path / "b", placement)
    settings = replace(settings, host="node2", driver=replace(settings.driver, host="node2"))
    with closing(opened(settings, world.wire)) as other:
        other.agent.reconcile("the start")
        yield other


@pytest.fixture
def gone(world: World, other: World) -> Claim:
    """The claim with the host's GPU, of an instance that moved to the other host and was released there."""
    world.agent.run_audit()  # the first one after a start repairs nothing
    claim = world.operations.claim(request(PGPU=1, VCPU=1))
    move = other.operations.begin_move(MoveKind.COLD_MIGRATE, str(uuid4()), claim.request)
    other.operations.confirm_move(move.migration, None)
    assert other.operations.release(claim.consumer)
    world.audits_requested.clear()
    return claim


def test_a_claim_that_moved_and_was_released_there_is_settled_by_the_first_audit(
    world: World, gone: Claim
) -> None:
    with pytest.raises(DoesNotFit):
        world.operations.claim(request(PGPU=1))
    world.agent.verify()
    assert len(world.audits_requested) == 1, "the audit comes soon, and not at its interval"
    world.agent.run_audit()
    assert world.operations.tracker.claims() == {}
    world.agent.reconcile("a repair")
    assert world.operations.claim(request(PGPU=1)).units
    world.agent.verify()
    assert len(world.audits_requested) == 1


def test_two_audits_have_to_agree_on_a_leaked_claim_that_no_pass_has_seen(world: World, gone: Claim) -> None:
    world.agent.run_audit()
    assert gone.consumer in world.operations.tracker.claims(), "Placement may have been restored just now"
    world.agent.run_audit()
    assert world.operations.tracker.claims() == {}


def test_a_claim_is_kept_whose_place_another_consumer_may_hold(world: World, gone: Claim) -> None:
    held = ConsumerAllocations(str(uuid4()), gone.allocations, consumer_type="MIGRATION")
    world.operations.client.write_allocations(held)
    world.agent.verify()
    assert world.audits_requested == []
    world.agent.run_audit()
    assert gone.consumer in world.operations.tracker.claims()


def test_a_claim_is_kept_whose_guest_is_here_or_that_came_back_before_the_audit(
    world: World, gone: Claim
) -> None:
    guest = Guest(gone.consumer, "web1", GuestState.RUNNING, gone.request.resources)
    world.driver.add_guest(guest)
    world.agent.verify()
    assert world.audits_requested == []
    world.driver.remove_guest(gone.consumer)
    world.agent.verify()
    assert len(world.audits_requested) == 1
    (root,) = (uuid for uuid, amounts in gone.allocations.items() if "VCPU" in amounts)
    world.operations.client.write_allocations(ConsumerAllocations(gone.consumer, {root: {"VCPU": 1}}))
    world.agent.run_audit()
    assert world.operations.tracker.claim_of(gone.consumer) == gone


def test_where_the_agent_repairs_nothing_the_audit_is_asked_for_once(world: World, gone: Claim) -> None:
    world.agent.apply_settings(replace(world.agent.settings, audit_heal_own=False), None)
    world.audits_requested.clear()
    for _ in range(3):
        world.agent.verify()
    assert len(world.audits_requested) == 1
    world.agent.run_audit()
    (finding,) = world.operations.host_status.overview().findings
    assert (finding.kind, finding.subject) == ("leaked claim", gone.consumer)
    assert gone.consumer in world.operations.tracker.claims()
