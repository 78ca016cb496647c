"""A guest that starts gets a claim that covers its domain, with the devices that it names, or is refused."""

import threading
import time
from dataclasses import replace
from uuid import uuid4

import pytest
from kits.gate import FAR, VGPU, GatedHost, claim_of, domain, guest, mdev, ours, pci, vf

from agent.claims.claim import ClaimState
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import PlacementUnavailable
from agent.placement.client import ConsumerAllocations
from agent.placement.transport import Reply


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
        host.allowed("prepare", "begin", domain(uuid, vcpus=3))  # unanswered = allow
        host.configure("unanswered = refuse")
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
    host.configure("unanswered = refuse\n")
    host.allowed("prepare", "begin", domain(uuid))


def test_a_claim_made_by_hand_is_used_and_never_released_by_the_gate(host: GatedHost) -> None:
    vm = guest(str(uuid4()))
    ours(host, vm.uuid, VCPU=4, MEMORY_MB=2048)
    host.starts(vm, domain(vm.uuid))
    host.ends(vm, domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 4, "MEMORY_MB": 2048}}


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
    assert "try again" in host.refused("prepare", "begin", other)


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
    host.configure("deadline = 0.5")
    host.allowed("prepare", "begin", domain(uuid, devices=vf("0000:41:02.0")))  # unanswered = allow
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
    asked = host.world.wire.requests
    host.allowed("prepare", "begin", domain(vm.uuid, vcpus=3, devices=vf("0000:81:02.1")))
    (write,) = (sent for sent in host.world.wire.asked[asked:] if sent.method != "GET")
    assert write.method == "PUT" and write.body["allocations"]
    assert host.held(vm.uuid) == {
        "node1": {"VCPU": 3, "MEMORY_MB": 1024},
        "node1_net_enp129s0": {"SRIOV_NET_VF": 1},
    }
    assert vfs_of(host, vm.uuid) == ("0000:81:02.1",)


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
    host.configure("unanswered = refuse")
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
    host.configure("unanswered = refuse\n")
    host.allowed("prepare", "begin", changed)
    host.world.wire.cut = False
    host.allowed("prepare", "begin", domain(vm.uuid))
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
