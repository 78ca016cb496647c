"""A guest that starts gets a claim that covers its domain or is refused; when claims end; missed guests."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent import World, opened, told, world_of
from kits.api_client import serving
from kits.cli_process import plimsoll
from kits.gate import FAR, VGPU, GatedHost, claim_of, domain, guest, mdev, ours, pci, vf
from kits.pci_tree import PciTree
from kits.placements import Placement, usual_placement
from kits.status import fetch, listening
from kits.tracker import request

from agent.carving.cpus import CpuHold
from agent.carving.files import read_cpu_file
from agent.claims.claim import ClaimState
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.clock import HostClock
from agent.daemon.host_agent import AT_ONCE_S
from agent.doctor.examine import NEW_DIRECTORY
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import ClaimConflict, DoesNotFit, ExitCode, PlacementUnavailable, Refused
from agent.gate import gate, install
from agent.gate.decision import CpuOrder, GateVerdict, HookCall
from agent.gate.effect import GatePaths
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import Reply
from agent.status.overview import HostState
from drivers.fake.host import Gpu, cell


def test_a_claim_is_not_let_go_for_another_while_placement_is_away(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    before = host.held(uuid)

    def away(*_: object, **__: object) -> Reply:
        raise PlacementUnavailable("Placement does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(host.world.wire, "request", away)
        host.configure("unanswered = allow")
        host.allowed("prepare", "begin", domain(uuid, vcpus=3))
        host.configure()
        assert "did not decide" in host.refused("prepare", "begin", domain(uuid, vcpus=3))
        host.allowed("prepare", "begin", domain(uuid))
    assert claim_of(host, uuid) is ClaimState.CLAIMED
    host.world.agent.reconcile("placement is back")
    assert host.held(uuid) == before


def test_what_does_not_fit_does_not_start_and_is_told_why(host: GatedHost) -> None:
    uuid = str(uuid4())
    reason = host.refused("prepare", "begin", domain(uuid, memory_mb=100_000))
    assert "100000 MEMORY_MB asked" in reason and "node1" in reason
    host.allowed("stopped", "end", domain(uuid))
    host.allowed("release", "end", domain(uuid))
    assert host.held(uuid) == {}


def test_the_same_guest_again_is_the_same_claim(host: GatedHost) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    before = host.world.wire.requests
    host.allowed("prepare", "begin", domain(uuid))
    assert host.world.wire.requests == before + 1, "placement is only asked whether it moved away"
    host.world.wire.cut = True
    host.allowed("prepare", "begin", domain(uuid))


def test_a_claim_made_by_hand_is_used_and_never_released_by_the_gate(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    ours(host, vm.uuid, VCPU=4, MEMORY_MB=2048)
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 4, "MEMORY_MB": 2048}}


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_allocation_that_another_client_deleted_is_written_again_before_the_guest_starts(
    host: GatedHost, *, by_hand: bool
) -> None:
    vm = guest(str(uuid4()))
    if by_hand:
        ours(host, vm.uuid, VCPU=2, MEMORY_MB=1024)
    else:
        host.allowed("prepare", "begin", domain(vm.uuid))
    host.world.operations.client.delete_allocations(vm.uuid)
    host.allowed("prepare", "begin", domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_a_claim_made_by_hand_that_is_too_small_is_told(host: GatedHost) -> None:
    uuid = str(uuid4())
    ours(host, uuid, VCPU=1, MEMORY_MB=512)
    reason = host.refused("prepare", "begin", domain(uuid))
    assert "1 VCPU" in reason and "2 VCPU" in reason and "release the claim" in reason
    assert host.held(uuid) == {"node1": {"VCPU": 1, "MEMORY_MB": 512}}


def test_an_allocation_of_a_scheduler_is_adopted_and_stays_the_schedulers(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    root = host.world.operations.tree()[0].by_name("node1")
    assert root is not None
    written = ConsumerAllocations(vm.uuid, {root.uuid: {"VCPU": 2, "MEMORY_MB": 1024}}, None, "p", "nova")
    host.world.operations.client.write_allocations(written)
    host.starts(vm, domain(vm.uuid))
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None and claim.adopted
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_a_changed_domain_is_claimed_anew_or_keeps_what_it_had(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    host.refused("prepare", "begin", domain(vm.uuid, memory_mb=100_000))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    host.allowed("prepare", "begin", domain(vm.uuid, vcpus=3, memory_mb=2048))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 3, "MEMORY_MB": 2048}}


def test_a_claim_for_what_the_gate_claimed_is_answered_as_the_gates(host: GatedHost) -> None:
    """By the same amounts, also with the devices as groups; what differs is another request."""
    uuid = str(uuid4())
    xml = domain(uuid, devices=vf("0000:41:02.1") + pci("0000:83:00.0"))
    host.starts(guest(uuid), xml)
    made = host.world.agent._tracker.claim_of(uuid)
    assert made is not None
    amounts = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024})
    port, pgpu = RequestGroup("1", {"SRIOV_NET_VF": 1}), RequestGroup("2", {"PGPU": 1})
    flat = replace(amounts, resources={**amounts.resources, "SRIOV_NET_VF": 1, "PGPU": 1})
    before = host.world.wire.requests
    for groups in ((flat,), (amounts, port, pgpu)):
        for name in ("", "vm"):
            asked = ClaimRequest(uuid, groups, "none", name=name)
            assert host.world.operations.explain(asked).units == made.units
            assert host.world.operations.claim(asked) == made
    assert host.world.operations.claim_domain(xml, ClaimRequest("", ())).claim == made
    assert host.world.wire.requests == before + 5, "whether Placement still holds it"
    unmet = replace(pgpu, required=(frozenset({"CUSTOM_NO"}),))
    for asked in (
        ClaimRequest(uuid, (flat,), name="other"),
        ClaimRequest(uuid, (amounts,)),
        ClaimRequest(uuid, (amounts, port, unmet), "none"),
        ClaimRequest(uuid, (flat,), topology=TopologyRequest(cells=1)),
    ):
        with pytest.raises(ClaimConflict, match="with another request"):
            host.world.operations.claim(asked)
    host.ends(guest(uuid), domain(uuid))
    assert claim_of(host, uuid) is None, "it is the gate's still"


def test_what_the_refusal_of_another_request_advises_works_while_the_guest_runs(host: GatedHost) -> None:
    uuid = str(uuid4())
    host.starts(guest(uuid), domain(uuid))
    asked = ClaimRequest(uuid, (RequestGroup("", {"VCPU": 3, "MEMORY_MB": 1024}),), name="vm")
    with pytest.raises(ClaimConflict) as refused:
        host.world.operations.claim(asked)
    (command,) = re.findall(r"`plimsoll ([^`]+)`", refused.value.message)
    assert plimsoll(host.socket, "release", uuid).returncode == ExitCode.REFUSED
    assert plimsoll(host.socket, *command.split()).returncode == ExitCode.DONE
    assert host.world.operations.claim(asked).request == asked


# Devices


def test_the_very_devices_that_the_domain_names_are_claimed(host: GatedHost) -> None:
    uuid = str(uuid4())
    devices = vf("0000:81:02.1") + vf("0000:41:02.1") + pci("0000:83:00.0") + mdev(VGPU)
    host.allowed("prepare", "begin", domain(uuid, devices=devices))
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None
    units = sorted(
        (name, unit) for classes in claim.units.values() for name, each in classes.items() for unit in each
    )
    assert units == [
        ("PGPU", "0000:83:00.0"),
        ("SRIOV_NET_VF", "0000:41:02.1"),
        ("SRIOV_NET_VF", "0000:81:02.1"),
        ("VGPU", VGPU),
    ]
    assert host.held(uuid) == {
        "node1": {"VCPU": 2, "MEMORY_MB": 1024},
        "node1_net_enp65s0": {"SRIOV_NET_VF": 1},
        "node1_net_enp129s0": {"SRIOV_NET_VF": 1},
        "node1_pci_0000:42:00.0": {"VGPU": 1},
        "node1_pci_0000:83:00.0": {"PGPU": 1},
    }


def test_a_device_that_somebody_has_is_not_given_again(host: GatedHost) -> None:
    first, second = str(uuid4()), str(uuid4())
    host.allowed("prepare", "begin", domain(first, devices=vf("0000:41:02.0")))
    reason = host.refused("prepare", "begin", domain(second, devices=vf("0000:41:02.0")))
    assert "0000:41:02.0" in reason and first in reason
    assert host.held(second) == {}
    host.allowed("prepare", "begin", domain(second, devices=vf("0000:41:02.1")))


def test_a_device_in_the_hands_of_a_guest_without_a_claim_is_not_given(host: GatedHost) -> None:
    unit = UsedUnit("SRIOV_NET_VF", "0000:41:02.0", f"pci:{FAR}")
    runs = Guest(str(uuid4()), "runs", GuestState.RUNNING, {"VCPU": 1, "SRIOV_NET_VF": 1}, (unit,))
    host.driver.add_guest(runs)
    host.world.agent.reconcile("a guest")
    uuid = str(uuid4())
    assert runs.uuid in host.refused("prepare", "begin", domain(uuid, devices=vf("0000:41:02.0")))
    host.driver.add_guest(Guest(runs.uuid, "off", GuestState.SHUTOFF, runs.resources, (unit,)))
    host.world.agent.reconcile("it is off")
    host.allowed("prepare", "begin", domain(uuid, devices=vf("0000:41:02.0")))


def test_a_claim_made_by_hand_holds_for_its_own_devices_only(host: GatedHost) -> None:
    uuid = str(uuid4())
    ours(host, uuid, VCPU=2, MEMORY_MB=1024, SRIOV_NET_VF=1)
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None
    ((had,),) = (each["SRIOV_NET_VF"] for each in claim.units.values() if "SRIOV_NET_VF" in each)
    host.allowed("prepare", "begin", domain(uuid, devices=vf(had)))
    reason = host.refused("prepare", "begin", domain(uuid, devices=vf("0000:81:02.1")))
    assert had in reason and "0000:81:02.1" in reason


def test_a_changed_device_is_claimed_in_the_place_of_the_old_one(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid, devices=vf("0000:41:02.0")))
    host.ends(vm, domain(vm.uuid), defined=True)
    host.allowed("prepare", "begin", domain(vm.uuid, devices=vf("0000:41:02.1")))
    host.allowed("prepare", "begin", domain(str(uuid4()), devices=vf("0000:41:02.0")))
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None and ("0000:41:02.1",) in [c.get("SRIOV_NET_VF") for c in claim.units.values()]


def test_devices_that_are_not_managed_are_not_guarded_and_unknown_vgpus_wait(host: GatedHost) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid, devices=pci("0000:05:00.0")))
    assert host.held(uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    assert "try again" in host.refused("prepare", "begin", domain(str(uuid4()), devices=mdev(str(uuid4()))))


def test_a_vgpu_that_was_made_for_the_claim_just_now_is_let_in(host: GatedHost) -> None:
    """The driver has not seen it yet: its event is under way while the guest starts."""
    uuid = str(uuid4())
    ours(host, uuid, VCPU=2, MEMORY_MB=1024, VGPU=1)
    seen = host.driver.host.gpus
    host.driver.change(gpus=(replace(seen[0], units=()), *seen[1:]))
    host.allowed("prepare", "begin", domain(uuid, devices=mdev(VGPU)))
    other = domain(str(uuid4()), devices=mdev(VGPU))
    assert f"{VGPU} belongs to by hand" in host.refused("prepare", "begin", other)
    unknown = domain(str(uuid4()), devices=mdev(VGPU.replace("1111-4111", "2222-4111")))
    assert "try again" in host.refused("prepare", "begin", unknown)


# A changed domain, while Placement is slow or does not answer


class SlowWrite:
    """Keeps the host's next write back until it is told."""

    def __init__(self, host: GatedHost) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        host.world.wire.once("PUT", self._hold)

    def _hold(self) -> None:
        self.arrived.set()
        assert self.go.wait(30)


def vfs_of(host: GatedHost, uuid: str) -> tuple[str, ...]:
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None and claim.state is ClaimState.CLAIMED
    return tuple(unit for _, name, unit in claim.exact if name == "SRIOV_NET_VF")


def test_the_domain_gets_another_device_while_the_first_call_is_in_flight(host: GatedHost) -> None:
    """The hook has given up on the first call; the claim has what the domain that runs has."""
    uuid, other = str(uuid4()), str(uuid4())
    slow = SlowWrite(host)
    host.configure("deadline = 0.5\nunanswered = allow\n")
    host.allowed("prepare", "begin", domain(uuid, devices=vf("0000:41:02.0")))
    assert slow.arrived.wait(10)
    host.configure()
    again = threading.Thread(
        target=host.allowed, args=("prepare", "begin", domain(uuid, devices=vf("0000:41:02.1")))
    )
    again.start()
    time.sleep(0.2)
    slow.go.set()
    again.join()
    assert vfs_of(host, uuid) == ("0000:41:02.1",)
    host.allowed("prepare", "begin", domain(other, devices=vf("0000:41:02.0")))
    assert vfs_of(host, other) == ("0000:41:02.0",)


def test_a_claim_is_replaced_in_one_write_that_frees_nothing_in_between(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid, devices=vf("0000:41:02.0")))
    host.ends(vm, domain(vm.uuid), defined=True)
    maker = host.world.operations.tracker.claims()[vm.uuid].maker
    asked = host.world.wire.requests
    host.allowed("prepare", "begin", domain(vm.uuid, vcpus=3, devices=vf("0000:81:02.1")))
    (write,) = (sent for sent in host.world.wire.asked[asked:] if sent.method != "GET")
    assert write.method == "PUT" and write.body["allocations"]
    assert host.held(vm.uuid) == {
        "node1": {"VCPU": 3, "MEMORY_MB": 1024},
        "node1_net_enp129s0": {"SRIOV_NET_VF": 1},
    }
    assert vfs_of(host, vm.uuid) == ("0000:81:02.1",)
    assert host.world.operations.tracker.claims()[vm.uuid].maker == maker is not None


def test_what_both_the_old_and_the_new_claim_have_is_given_to_nobody_meanwhile(host: GatedHost) -> None:
    vm, other = guest(str(uuid4())), str(uuid4())
    host.starts(vm, domain(vm.uuid, devices=vf("0000:41:02.0")))
    host.ends(vm, domain(vm.uuid))
    host.starts(vm, domain(vm.uuid, devices=vf("0000:41:02.0")))
    host.ends(vm, domain(vm.uuid), defined=True)
    slow = SlowWrite(host)
    again = threading.Thread(
        target=host.allowed, args=("prepare", "begin", domain(vm.uuid, devices=vf("0000:81:02.1")))
    )
    again.start()
    assert slow.arrived.wait(10)
    for unit in ("0000:41:02.0", "0000:81:02.1"):
        assert vm.uuid in host.refused("prepare", "begin", domain(other, devices=vf(unit)))
    slow.go.set()
    again.join()
    host.allowed("prepare", "begin", domain(other, devices=vf("0000:41:02.0")))
    assert (vfs_of(host, vm.uuid), vfs_of(host, other)) == (("0000:81:02.1",), ("0000:41:02.0",))


def test_a_replacement_that_is_refused_leaves_the_claim_as_it_was(host: GatedHost) -> None:
    """Another client took what Placement had left, of which the agent does not know yet."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    before = host.world.agent._tracker.claim_of(vm.uuid)
    root = host.world.operations.tree()[0].by_name("node1")
    assert root is not None
    everything = ConsumerAllocations(str(uuid4()), {root.uuid: {"MEMORY_MB": 14_000}}, None, "p", "nova")
    host.world.operations.client.write_allocations(everything)
    assert "MEMORY_MB" in host.refused("prepare", "begin", domain(vm.uuid, memory_mb=4096))
    assert host.world.agent._tracker.claim_of(vm.uuid) == before
    host.allowed("prepare", "begin", domain(vm.uuid))


def test_a_replacement_whose_answer_is_lost_is_found_at_the_next_start(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    with host.world.wire.away(after=True, only="PUT"):
        host.refused("prepare", "begin", domain(vm.uuid, vcpus=3))
    host.world.retry()
    host.allowed("prepare", "begin", domain(vm.uuid, vcpus=3))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 3, "MEMORY_MB": 1024}}
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None and claim.request.resources["VCPU"] == 3


def test_a_guest_that_grew_starts_again_on_what_it_grew_to(host: GatedHost) -> None:
    """Also while Placement is away: its claim is what the changed domain needs."""
    settings = host.world.agent.settings
    host.world.agent.apply_settings(replace(settings, claims_grow=True), None)
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    unit = UsedUnit("SRIOV_NET_VF", "0000:41:02.1", f"pci:{FAR}")
    grown = replace(vm, resources={"VCPU": 4, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1}, units=(unit,))
    host.driver.add_guest(grown)
    host.world.agent.reconcile("something was plugged in")
    held = {"node1": {"VCPU": 4, "MEMORY_MB": 1024}, "node1_net_enp65s0": {"SRIOV_NET_VF": 1}}
    assert host.held(vm.uuid) == held
    changed = domain(vm.uuid, vcpus=4, devices=vf("0000:41:02.1"))
    host.ends(grown, changed, defined=True)
    host.world.wire.cut = True
    host.allowed("prepare", "begin", changed)
    host.world.wire.cut = False
    host.allowed("prepare", "begin", domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
Open = Callable[..., World]


@pytest.fixture
def open_world(tmp_path: Path, placement: Placement) -> Iterator[Open]:
    worlds: list[World] = []
    paths = GatePaths(tmp_path / "hook", tmp_path / "gate.conf", tmp_path)
    (tmp_path / "gate.conf").write_text(f"socket = {tmp_path / 's'}\n")

    def open_it(*, gate: bool = True, more: str = "") -> World:
        if gate:
            paths.hook.write_text(install.hook_script())
            paths.hook.chmod(0o755)
        settings = told(tmp_path, placement, f"[api]\nsocket = {tmp_path / 's'}\n{more}")
        worlds.append(opened(settings, gate_paths=paths))
        return worlds[-1]

    yield open_it
    for world in worlds:
        world.close()


def web(state: GuestState = GuestState.RUNNING, **used: int) -> Guest:
    return Guest(UUID, "web1", state, used or {"VCPU": 2, "MEMORY_MB": 1024})


def claims(world: World) -> set[str]:
    return {claim.consumer for claim in world.operations.tracker.claims().values()}


def test_it_is_claimed_at_the_next_pass_and_the_commands_show_it(open_world: Open, tmp_path: Path) -> None:
    world = open_world()
    world.driver.add_guest(web())
    world.agent.reconcile("the start")
    with serving(world.operations, tmp_path / "s"):
        shown = plimsoll(tmp_path / "s", "instances").stdout
        assert "web1" in shown and "claimed" in shown and "UNCLAIMED" not in shown
        looked = plimsoll(tmp_path / "s", "look")
        assert (looked.returncode, looked.stderr) == (ExitCode.DONE, "")
        assert "grant" in plimsoll(tmp_path / "s", "history", "--consumer", "web1").stdout
        assert "unclaimed" not in plimsoll(tmp_path / "s", "tree").stdout


def test_also_one_that_starts_past_the_hook_while_the_agent_runs(open_world: Open) -> None:
    world = open_world()
    world.agent.reconcile("the start")
    world.driver.add_guest(web())
    world.agent.reconcile("an event")
    assert claims(world) == {UUID}


def test_one_that_does_not_fit_is_a_finding_and_is_claimed_once_it_fits(
    open_world: Open, tmp_path: Path
) -> None:
    world = open_world()
    world.driver.add_guest(web(VCPU=100_000))
    world.agent.reconcile("the start")
    assert claims(world) == set()
    with serving(world.operations, tmp_path / "s"):
        found = plimsoll(tmp_path / "s", "look")
        assert found.returncode == ExitCode.DRIFT_FOUND
        assert "unclaimed instance" in found.stdout and "does not fit" in found.stdout
        assert "gate_refused" in plimsoll(tmp_path / "s", "history").stdout
    world.driver.remove_guest(UUID)
    world.driver.add_guest(web())
    world.agent.reconcile("an event")
    assert claims(world) == {UUID}


@pytest.mark.parametrize(
    ("gate", "more"), [(False, ""), (True, "[gate]\nclaim_missed = false\n")], ids=["no gate", "switched off"]
)
def test_nothing_is_claimed_where_that_is_not_wanted(open_world: Open, gate: bool, more: str) -> None:
    world = open_world(gate=gate, more=more)
    world.driver.add_guest(web())
    world.agent.reconcile("the start")
    assert claims(world) == set()


def test_a_domain_that_is_shut_off_is_not_claimed(open_world: Open) -> None:
    world = open_world()
    world.driver.add_guest(web(GuestState.SHUTOFF))
    world.agent.reconcile("the start")
    assert claims(world) == set()


def test_a_running_guest_whose_claim_was_released_by_force_is_left_alone(open_world: Open) -> None:
    world = open_world()
    world.driver.add_guest(web())
    world.agent.reconcile("the start")
    world.operations.release(UUID)
    world.agent.reconcile("its interval")
    assert claims(world) == set()


def test_tree_top_and_page_draw_unclaimed_use_on_its_own(open_world: Open, tmp_path: Path) -> None:
    world = open_world(gate=False)
    world.agent.reconcile("the start")
    world.driver.add_guest(web(VCPU=2, MEMORY_MB=131_072))
    world.agent.reconcile("an event")
    with serving(world.operations, tmp_path / "s"):
        for command in (("tree",), ("top", "--once")):
            shown = plimsoll(tmp_path / "s", *command).stdout
            (memory,) = [line for line in shown.splitlines() if "MEMORY_MB  " in line and "/" in line]
            assert "▒▒▒▒▒▒▒▒▒▒░░░░░░░░░░  " in memory and "(131072 unclaimed, total" in memory
        with listening(world.agent.host_status) as url:
            page = fetch(url + "/")[2].decode()
        assert '<rect class="unclaimed" x="0.0" width="50.1"' in page and "131072 unclaimed" in page
        assert '"MEMORY_MB": 131072' in plimsoll(tmp_path / "s", "tree", "-o", "json").stdout


def test_a_guest_that_was_off_before_the_state_directory_was_there_is_claimed_when_asked(
    open_world: Open, tmp_path: Path
) -> None:
    """One that is defined later, and is off, holds nothing: its start asks the gate."""
    world = open_world()
    world.driver.add_guest(web(GuestState.SHUTOFF))
    world.agent.reconcile("the start")
    world.driver.add_guest(Guest(UUID.replace("5b2c", "6b2c"), "web2", GuestState.SHUTOFF, {"VCPU": 1}))
    world.agent.reconcile("another guest is defined")
    reasons = world.agent.host_status.status().reasons
    assert any(each.startswith(NEW_DIRECTORY) and "1 of the guests was here" in each for each in reasons)
    assert not claims(world)
    world.retries.clear()
    with serving(world.operations, tmp_path / "s"):
        world.retries.clear()
        done = plimsoll(tmp_path / "s", "gate", "claim-running")
        assert (done.returncode, done.stderr) == (ExitCode.DONE, "") and "web1" in done.stdout
        assert world.retries == [AT_ONCE_S], "the pass that takes the reasons back"
    assert claims(world) == {UUID}
    assert world.retries, "a pass is requested at once, which has status say so"
    world.agent.reconcile("its claim")
    assert not any(each.startswith(NEW_DIRECTORY) for each in world.agent.host_status.status().reasons)


def test_a_running_guest_is_claimed_beside_a_definition_that_names_its_device(open_world: Open) -> None:
    """Several definitions may name one card, to run in turn; none of them is claimed in a new directory."""
    world = open_world(gate=False)
    card = next(each for each in world.driver.describe().providers if "PGPU" in each.units)
    unit = UsedUnit("PGPU", card.units["PGPU"][0], card.device)
    off = UUID.replace("5b2c", "6b2c")
    world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 2, "PGPU": 1}, (unit,)))
    world.driver.add_guest(Guest(off, "web2", GuestState.SHUTOFF, {"VCPU": 1, "PGPU": 1}, (unit,)))
    world.agent.reconcile("the start")
    verdicts = {each.uuid: verdict for each, verdict in world.operations.claim_running()}
    assert claims(world) == {UUID}, verdicts
    assert isinstance(refused := verdicts[off], Refused) and "belongs to web1" in refused.message


def test_a_guest_that_starts_is_claimed_for_and_released_when_it_is_gone(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {} and claim_of(host, vm.uuid) is None


def test_a_defined_guest_keeps_its_claim_until_it_is_undefined(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid), defined=True)
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    host.world.agent.reconcile("its interval")
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.driver.remove_guest(vm.uuid)
    host.world.agent.reconcile("undefined")
    assert claim_of(host, vm.uuid) is None


def test_who_did_not_come_is_released_after_a_while(host: GatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    host.world.agent.reconcile("its interval")
    assert claim_of(host, uuid) is ClaimState.CLAIMED
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    host.world.agent.reconcile("its interval, later")
    assert claim_of(host, uuid) is None


def test_the_grace_period_is_by_the_clock_of_the_host(tmp_path: Path) -> None:
    """Of the claim, of the guest that is expected and of the look: one clock has stamped all three."""
    now = [1000.0]
    with opened(
        told(tmp_path, usual_placement(tmp_path)), clock=HostClock(lambda: now[0], lambda: now[0])
    ) as world:
        world.agent.reconcile("the start")
        uuid = str(uuid4())
        now[0] += 100
        world.operations.gate(HookCall("prepare", "begin", domain(uuid)))
        for waited_s, expected in ((gate.GRACE_S, True), (1.5, False)):
            now[0] += waited_s
            world.agent.reconcile("its interval")
            assert (uuid in world.agent._tracker.claims()) is expected
            assert world.agent._gate._expected.is_let_in(uuid) is expected


def test_once_placement_asks_to_be_left_alone_what_is_over_waits_for_the_next_look(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, uuids = host.world, [str(uuid4()) for _ in range(4)]
    for uuid in uuids:
        host.allowed("prepare", "begin", domain(uuid))
    busy = Reply(503, None, {"retry-after": "120"})
    world.wire.answer = lambda sent: None if sent.method == "GET" else busy
    asked = world.wire.requests
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    for _ in range(3):
        world.agent.reconcile("its interval")
        world.agent.deliver()
    writes = [sent for sent in world.wire.asked[asked:] if sent.method != "GET"]
    assert len(writes) == 1 and world.agent.condition.state is HostState.DEGRADED
    assert world.retries[-1] > 100
    world.wire.answer = None
    world.retry()
    assert world.agent.condition.state is HostState.READY
    assert [claim_of(host, uuid) for uuid in uuids] == [None] * 4
    assert not any(host.held(uuid) for uuid in uuids)


def test_who_came_after_a_look_had_begun_keeps_the_claim_that_let_it_in(host: GatedHost) -> None:
    """A guest that nobody defined is destroyed, and created again by an old claim of its own."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    at = time.time()
    host.allowed("prepare", "begin", domain(vm.uuid))
    host.world.agent._gate.settle((), at + gate.GRACE_S)
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    assert claim_of(host, vm.uuid) is None


def test_who_is_claimed_for_while_it_runs_has_not_ended_for_a_look_that_missed_it(host: GatedHost) -> None:
    """The hook told the end of its run before; the next one began while libvirt asked no hook."""
    vm = guest(str(uuid4()))
    host.allowed("release", "end", domain(vm.uuid))
    at = time.time()
    host.driver.add_guest(vm)
    host.world.operations.claim_running()
    host.world.agent._gate.settle((), at)
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED


def test_held_is_never_followed_by_a_release(host: GatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest starts on its old claim just as the agent has found that it is gone."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    tracker = host.world.agent._tracker
    release, outcomes = tracker.release, []

    def release_late(consumer: str, **how: Any) -> bool:
        host.allowed("prepare", "begin", domain(vm.uuid))
        outcomes.append(claim_of(host, consumer))
        return release(consumer, **how)

    monkeypatch.setattr(tracker, "release", release_late)
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    assert outcomes == [ClaimState.CLAIMED] and claim_of(host, vm.uuid) is ClaimState.CLAIMED
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_a_guest_that_starts_while_its_claim_is_released_is_claimed_for(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook comes while the release is in flight: it waits, and the claim that it gets is not released."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    host.driver.remove_guest(vm.uuid)
    start = threading.Thread(target=host.allowed, args=("prepare", "begin", domain(vm.uuid)))

    def starts() -> None:
        start.start()
        time.sleep(0.3)

    host.world.wire.once("PUT /allocations", starts)
    host.world.agent._gate.settle((), time.time() + gate.GRACE_S + 1)
    start.join()
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_the_end_of_a_guest_does_not_release_a_claim_that_was_made_since(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pass has released the gate's claim, and an operator has claimed, before this pass does."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    tracker = host.world.agent._tracker
    release = tracker.release

    def late(consumer: str, **options: Any) -> bool:
        monkeypatch.setattr(tracker, "release", release)
        assert release(consumer)
        tracker.claim(request(consumer, VCPU=1))
        return release(consumer, **options)

    monkeypatch.setattr(tracker, "release", late)
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 1}}
    assert claim_of(host, vm.uuid) is ClaimState.CLAIMED


GPU, VF, SOUND = "0000:83:00.0", "0000:41:02.0", "0000:83:00.1"


@pytest.fixture
def tree(host: GatedHost, tmp_path: Path) -> PciTree:
    tree = PciTree(tmp_path / "root")
    tree.add(GPU, "nouveau", 1, class_="0x030000", reset_method="bus")
    tree.add("0000:41:00.0", "igb", 2)
    tree.add(VF, "igbvf", 3, pf="0000:41:00.0")
    host.driver.change(root_path=str(tree.root))
    return tree


def managed(text: str) -> str:
    return text.replace("type='pci'", "type='pci' managed='yes'").replace(
        "type='hostdev'", "type='hostdev' managed='yes'"
    )


def test_a_guest_whose_devices_are_ready_starts(host: GatedHost, tree: PciTree) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid, devices=managed(pci(GPU) + vf(VF))))
    assert claim_of(host, uuid) is ClaimState.CLAIMED
    tree.bind(GPU, "vfio-pci")
    host.allowed("prepare", "begin", domain(str(uuid4())))


def test_a_device_that_libvirt_may_not_bind_is_refused_with_the_remedy(
    host: GatedHost, tree: PciTree
) -> None:
    uuid = str(uuid4())
    reason = host.refused("prepare", "begin", domain(uuid, devices=pci(GPU)))
    assert GPU in reason and "nouveau" in reason and "managed='yes'" in reason
    assert claim_of(host, uuid) is None and host.held(uuid) == {}
    tree.bind(GPU, "vfio-pci")
    host.allowed("prepare", "begin", domain(uuid, devices=pci(GPU)))


@pytest.mark.parametrize(
    ("inside", "driver", "asks"),
    [
        ("", "<driver iommufd='yes'/>", True),
        ("<iommufd enabled='yes' fdgroup='iommu'/>", "", True),
        ("<iommufd enabled='yes'/>", "<driver iommufd='no'/>", False),
        ("<iommufd enabled='no'/>", "<driver name='vfio'/>", False),
    ],
)
def test_a_domain_that_wants_iommufd_of_a_kernel_without_it_is_refused(
    host: GatedHost, tree: PciTree, inside: str, driver: str, asks: bool
) -> None:
    """Not while the device is bound to no driver of VFIO, with which the kernel loads iommufd."""
    device = managed(pci(GPU)).replace("<source>", f"{driver}<source>")
    start = ("prepare", "begin", domain(str(uuid4()), devices=device, inside=inside))
    host.allowed(*start)
    tree.bind(GPU, "vfio-pci")
    for lack, made in (
        ("it has no /dev/iommu", "class/misc/iommu"),
        ("its VFIO has no file", "vfio-dev/vfio3"),
    ):
        if asks:
            assert f"over iommufd, and this kernel cannot do that: {lack}" in host.refused(*start)
        folder = tree.devices / GPU / made if "vfio" in made else tree.sys / made
        folder.mkdir(parents=True)
    host.allowed(*start)


def test_a_group_that_is_not_viable_is_refused(host: GatedHost, tree: PciTree) -> None:
    tree.add(SOUND, "snd_hda_intel", 1, class_="0x040300")
    xml = domain(str(uuid4()), devices=managed(pci(GPU)))
    reason = host.refused("prepare", "begin", xml)
    assert "not viable" in reason and SOUND in reason
    assert "not viable" in host.refused("migrate", "begin", xml)
    tree.bind(SOUND, "vfio-pci")
    host.allowed("prepare", "begin", xml)


def test_the_hosts_own_display_is_refused(host: GatedHost, tree: PciTree) -> None:
    (tree.devices / GPU / "boot_vga").write_text("1\n")
    reason = host.refused("prepare", "begin", domain(str(uuid4()), devices=managed(pci(GPU))))
    assert "display" in reason


def test_another_guest_in_the_group_is_named(host: GatedHost, tree: PciTree) -> None:
    """The other device is on no provider, so no claim guards it."""
    tree.add(SOUND, "vfio-pci", 1, class_="0x040300")
    other = replace(guest(str(uuid4())), units=(UsedUnit("PCI_DEVICE", SOUND, f"pci:{SOUND}"),))
    host.driver.add_guest(other)
    host.world.agent.reconcile("a guest without a claim")
    reason = host.refused("prepare", "begin", domain(str(uuid4()), devices=managed(pci(GPU))))
    assert other.uuid in reason and SOUND in reason


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_definitions_that_name_one_device_the_first_to_start_gets_it(
    host: GatedHost, order: int
) -> None:
    """Beside a new state directory, too: no second one starts, and it is told who has the device."""
    card = "0000:83:00.0"
    used = (UsedUnit("PGPU", card, f"pci:{card}"),)
    needs = {"VCPU": 2, "MEMORY_MB": 1024, "PGPU": 1}
    uuids = sorted(str(uuid4()) for _ in range(2))[::order]
    one, other = (
        Guest(uuid, name, GuestState.SHUTOFF, needs, used)
        for uuid, name in zip(uuids, ("web1", "web2"), strict=True)
    )
    host.world.agent._tracker._register._finds_all = True
    host.driver.change(guests=(one, other))
    host.world.agent.reconcile("a new directory")
    with pytest.raises(
        DoesNotFit, match=f"{card} of its domain belongs to web1 .{one.uuid}. as well: take it"
    ):
        host.world.operations.claim(request(other.uuid, **needs))
    host.starts(one, domain(one.uuid, devices=pci(card)))
    reason = host.refused("prepare", "begin", domain(other.uuid, devices=pci(card)))
    assert f"{card} belongs to" in reason and one.uuid in reason
    reserved = {
        name: inventory.reserved
        for provider in host.world.operations.tree()[0]
        for name, inventory in provider.inventories.items()
    }
    assert reserved["PGPU"] == 0, "the claim of web1 holds it in Placement"


def test_a_driver_that_reads_no_devices_refuses_nothing(host: GatedHost) -> None:
    host.allowed("prepare", "begin", domain(str(uuid4()), devices=pci(GPU)))


OPTIONS = """[compute]
cpu_shared_set = 0-3
cpu_dedicated_set = 4-7
cpu_power_management = true
"""


@pytest.fixture
def world(tmp_path: Path, placement: Placement) -> Iterator[World]:
    cells = (cell(0, frozenset(range(8)), 16384),)
    with world_of(told(tmp_path, placement, OPTIONS), cells=cells, disk_gb=100, guests=()) as found:
        yield found


def call(world: World, operation: str, uuid: str, *cpus: int) -> CpuOrder | None:
    pins = "".join(f"<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>" for vcpu, cpu in enumerate(cpus))
    xml = (
        f"<domain type='kvm'><name>vm</name><uuid>{uuid}</uuid><memory unit='MiB'>512</memory>"
        f"<vcpu>{len(cpus) or 1}</vcpu><cputune>{pins}</cputune></domain>"
    )
    where = "begin" if operation == "prepare" else "end"
    return world.operations.gate(HookCall(operation, where, xml)).cpu_power


def test_the_gate_has_the_cpus_of_a_guest_powered_up_and_down(world: World) -> None:
    one, other = str(uuid4()), str(uuid4())
    assert call(world, "prepare", one, 4, 5) == CpuOrder((4, 5), "online")
    assert call(world, "prepare", other) is None, "it has shared CPUs"
    assert call(world, "release", one, 4, 5) == CpuOrder((4, 5), "offline")


def test_a_late_end_of_a_guest_leaves_the_cpus_up_that_another_has_claimed(world: World) -> None:
    """The driver shows the other guest only once it runs; its CPUs are powered up already."""
    one, other = str(uuid4()), str(uuid4())
    assert call(world, "prepare", other, 4, 5) == CpuOrder((4, 5), "online")
    assert call(world, "release", one, 5, 6) == CpuOrder((6,), "offline")


def test_a_claim_asks_for_its_cpus_until_its_guest_runs(world: World, tmp_path: Path) -> None:
    """What a process of root reads: it brings up what is awaited."""
    world.agent.write_needs()
    assert read_cpu_file(tmp_path) == {}
    flavor = {"vcpus": 2, "memory_mb": 512, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    claimed = world.operations.claim(parse_claim({"consumer": (one := str(uuid4())), "flavor": flavor}))
    assert world.carvings_requested, "the agent writes soon"
    world.agent.write_needs()
    cpus = frozenset(int(unit) for _, name, unit in claimed.exact if name == "PCPU")
    assert len(cpus) == 2 and read_cpu_file(tmp_path) == {one: CpuHold(cpus, awaited=True)}
    used = tuple(UsedUnit("PCPU", str(cpu), "node1") for cpu in sorted(cpus))
    world.driver.change(guests=(Guest(one, "vm1", GuestState.RUNNING, {"PCPU": 2, "MEMORY_MB": 512}, used),))
    world.agent.reconcile("the guest runs")
    world.agent.write_needs()
    assert read_cpu_file(tmp_path) == {one: CpuHold(cpus)}


def test_a_reload_changes_how(world: World) -> None:
    settings = world.agent.settings
    host = replace(settings.driver.host_settings, cpu_power_management_strategy="governor")
    world.agent.apply_settings(replace(settings, driver=replace(settings.driver, host_settings=host)), None)
    assert call(world, "prepare", str(uuid4()), 6) == CpuOrder((6,), "performance")


def on_cells(world: World) -> None:
    cells = tuple(
        cell(number, frozenset((2 * number, 2 * number + 1, 4 + number, 6 + number)), 8192)
        for number in (0, 1)
    )
    world.driver.change(cells=cells, report_numa=True)
    world.agent.reconcile("cells are reported")


def pinned(cpu: str, device: str = "host") -> Guest:
    amounts = {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 512}
    return Guest(str(uuid4()), "vm", GuestState.RUNNING, amounts, (UsedUnit("PCPU", cpu, device),))


@pytest.mark.parametrize("heals", [False, True])
def test_a_running_guest_is_claimed_with_its_cpu_wherever_a_reshape_took_it(
    world: World, heals: bool
) -> None:
    on_cells(world)
    vm = pinned("7")
    world.driver.add_guest(vm)
    world.agent.reconcile("a guest without a claim")
    if heals:
        (finding,) = world.operations.audit(heal=True).findings
        assert "on no provider" not in finding.reason
    else:
        ((_, verdict),) = world.operations.claim_running()
        assert isinstance(verdict, GateVerdict), verdict
    claim = world.operations.tracker.claims()[vm.uuid]
    assert [unit for _, name, unit in claim.exact if name == "PCPU"] == ["7"]
    assert not world.operations.audit(heal=False).findings


def test_a_running_guest_with_a_cpu_that_the_host_does_not_offer_gets_no_other_one(world: World) -> None:
    vm = pinned("9")
    world.driver.add_guest(vm)
    world.agent.reconcile("a guest without a claim")
    ((_, verdict),) = world.operations.claim_running()
    assert isinstance(verdict, Refused)
    assert "PCPU 9 of vm" in verdict.message and "is on no provider of this host" in verdict.message
    unclaimed, unknown = world.operations.audit(heal=False).findings
    assert unknown.kind == "unknown device"
    assert "its PCPU 9 is on no provider of this host" in unclaimed.reason and not unclaimed.repair


TYPES = Gpu("0000:84:00.0", "VGPU", 0, types={"CUSTOM_VA": 4, "CUSTOM_VB": 2})


def test_a_guest_that_names_one_unit_under_two_classes_is_told_that_they_exclude_each_other(
    world: World,
) -> None:
    world.driver.change(gpus=(TYPES,))
    world.agent.reconcile("a card")
    with pytest.raises(DoesNotFit, match="CUSTOM_VA and CUSTOM_VB exclude each other there"):
        world.operations.claim(request(CUSTOM_VA=1, CUSTOM_VB=1))
    amounts = {"VCPU": 1, "CUSTOM_VA": 1, "CUSTOM_VB": 1}
    units = tuple(
        UsedUnit(name, f"{TYPES.address}/0", f"pci:{TYPES.address}") for name in sorted(TYPES.types)
    )
    world.driver.add_guest(Guest(str(uuid4()), "vm", GuestState.RUNNING, amounts, units))
    world.agent.reconcile("a guest without a claim")
    ((_, verdict),) = world.operations.claim_running()
    assert isinstance(verdict, Refused)
    assert "CUSTOM_VA and CUSTOM_VB exclude each other there" in verdict.message
