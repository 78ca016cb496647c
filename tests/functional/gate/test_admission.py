"""A guest that starts gets a claim that covers its domain, with the devices that it names, or is refused."""

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
    host.world.operations._client.write_allocations(written)
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
