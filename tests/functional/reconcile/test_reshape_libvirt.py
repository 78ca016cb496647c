"""The libvirt driver's reshapes, from recorded devices to the claims' exact units; each with its reverse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.libvirt_model import FACTS, hostdev, interface
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import (
    A100,
    BANDWIDTH,
    CELL0,
    CELL1,
    DEDICATED,
    DEFINED,
    M60,
    NIC0,
    NIC1,
    ON_A100,
    ON_M60,
    ON_M60_TOO,
    PINNED,
    SHARE,
    SHARED,
    VF0,
    VF1,
    A,
    B,
    C,
    Stage,
    devices,
)
from kits.reshape import HOST, ROOT, World, uuid_of
from kits.tracker import request

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Description,
    GuestState,
)
from drivers.libvirt.describe.cards import MdevSpec


@pytest.fixture
def stage(any_placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, any_placement) as world:
        yield Stage(world)


FLAT_DEVICES = {"VGPU": 37, "SRIOV_NET_VF": 6, **{name: 2 * n for name, n in BANDWIDTH.items()}}


def test_vgpus_and_virtual_functions_to_their_real_cards(stage: Stage) -> None:
    """Scenario 86: VGPU on the root in use, moved to the cards by real device: running and stopped guests,
    a guest that moves away, and one that the driver knows nothing of."""
    stage.flat(**FLAT_DEVICES)
    stage.hold(A, VGPU=1, VCPU=1)
    stage.hold(B, VGPU=1, SRIOV_NET_VF=1, **SHARE)
    stage.hold(C, VGPU=1)
    migration, untold = uuid_of("the migration"), uuid_of("untold")
    stage.hold(migration, "MIGRATION", SRIOV_NET_VF=2, **SHARE)
    stage.hold(untold, VGPU=2)
    stage.driver.xml = (
        domain(1, devices=hostdev(ON_M60)),
        domain(2, devices=hostdev(ON_A100) + interface(VF0)),
        domain(3, devices=hostdev(DEFINED)),
        domain(4, devices=interface(VF1) + interface("0000:81:10.2")),
    )
    stage.driver.states = {C: GuestState.SHUTOFF}
    stage.show()
    placed = stage.world.placed
    assert placed(A) == {HOST: {"VCPU": 1}, M60: {"VGPU": 1}}
    assert placed(B) == {A100: {"VGPU": 1}, NIC0: {"SRIOV_NET_VF": 1, **SHARE}}
    assert placed(C) == {A100: {"VGPU": 1}}, "stopped, its device is defined there"
    assert placed(migration) == {NIC1: {"SRIOV_NET_VF": 2, **SHARE}}
    assert stage.world.raw.allocations_of(migration).consumer_type == "MIGRATION"
    assert placed(untold) == {M60: {"VGPU": 2}}
    assert len(stage.world.journal.reshapes(done=True)) == 1, "one atomic step"
    stage.undone_and_done_again()


def test_a_claims_exact_units_are_those_in_its_guests_hands(stage: Stage) -> None:
    """Scenario 94: SRIOV_NET_VF and VGPU, root -> PF and pGPU: claims of the agent's own have their units."""
    stage.driver.xml = (
        domain(1, devices=hostdev(ON_M60_TOO) + hostdev(ON_A100)),
        domain(2, devices=interface(VF0)),
    )
    stage.flat(**FLAT_DEVICES)
    mine = stage.driver.describe()
    stage.world.see(host_of(mine, VGPU=37, SRIOV_NET_VF=6))
    for consumer, amounts in ((A, {"VGPU": 2}), (B, {"SRIOV_NET_VF": 1, "VCPU": 1})):
        assert stage.adopt(consumer, {HOST: amounts}).units == {}
    stage.show()
    there = {
        A: {M60: {"VGPU": (ON_M60_TOO,)}, A100: {"VGPU": (ON_A100,)}},
        B: {NIC0: {"SRIOV_NET_VF": (VF0,)}},
    }
    assert {who: stage.units(who) for who in there} == there
    (receipt,) = stage.world.journal.reshapes(done=True)
    stage.world.ask(receipt)
    assert stage.claim(B).allocations == {ROOT: {"SRIOV_NET_VF": 1, "VCPU": 1}}
    assert stage.units(B) == {HOST: {"SRIOV_NET_VF": (VF0,)}}
    assert set(stage.units(A)[HOST]["VGPU"]) == {ON_M60_TOO, ON_A100}, "a unit stays the same unit"
    stage.world.ask()
    assert {who: stage.units(who) for who in there} == there
    stage.world.check()


def host_of(description: Description, **more: int) -> DescribedProvider:
    """The host itself, with that on its root."""
    root = description.providers[0]
    flat = {name: DescribedInventory(total, allocation_ratio=1.0) for name, total in more.items()}
    return replace(root, inventories={**root.inventories, **flat})


def test_pinned_guests_to_dedicated_cpus_and_back(stage: Stage) -> None:
    """Scenario 94: VCPU -> PCPU, and back again by the option."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED), domain(2))
    stage.show()
    for consumer, vcpus in ((A, 2), (B, 1)):
        stage.world.tracker.claim(request(consumer, VCPU=vcpus, MEMORY_MB=512))
    stage.show(host=DEDICATED)
    assert stage.world.placed(A) == {HOST: {"PCPU": 2, "MEMORY_MB": 512}}
    assert stage.world.placed(B) == {HOST: {"VCPU": 1, "MEMORY_MB": 512}}
    assert stage.units(A) == {HOST: {"PCPU": ("2", "3")}}
    stage.show(host=SHARED)
    assert stage.world.placed(A) == {HOST: {"VCPU": 2, "MEMORY_MB": 512}}
    assert stage.units(A) == {}
    stage.show(host=DEDICATED)
    assert stage.units(A) == {HOST: {"PCPU": ("2", "3")}}
    stage.undone_and_done_again()


def test_the_host_to_its_cells_and_back(stage: Stage) -> None:
    """Flat -> NUMA: CPUs and memory where the guest is; devices hang under their cell, untouched."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED, devices=hostdev(ON_A100)), domain(2))
    stage.show(host=DEDICATED)
    claim = stage.adopt(A, {HOST: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}})
    stage.adopt(B, {HOST: {"VCPU": 1, "MEMORY_MB": 512}})
    before = stage.state()
    stage.show(report_numa=True)
    assert stage.world.placed(A) == {CELL1: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}
    assert stage.units(A) == {CELL1: {"PCPU": ("2", "3")}, A100: {"VGPU": (ON_A100,)}}
    assert stage.world.placed(B) == {CELL0: {"VCPU": 1, "MEMORY_MB": 512}}
    tree = stage.world.tree()
    assert tree[stage.world.uuid(A100)].parent == stage.world.uuid(CELL1)
    assert tree[stage.world.uuid(M60)].parent == stage.world.uuid(CELL0)
    stage.undone_and_done_again()
    stage.show(report_numa=False)
    assert stage.state() == before
    assert stage.claim(A) == claim
    assert CELL0 not in stage.world.totals()


def test_a_cards_type_changed_while_old_devices_are_in_use_and_back(stage: Stage) -> None:
    """The old ones keep their unit and count with the new; nobody gets what is not there."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)), domain(2, devices=hostdev(ON_A100)))
    stage.show(devices=devices(MdevSpec("nvidia-11"), MdevSpec("nvidia-471")))
    claims = [stage.adopt(who, {card: {"VGPU": 1}}) for who, card in ((A, M60), (B, A100))]
    assert stage.units(A) == {M60: {"VGPU": (ON_M60,)}}
    before = stage.state()
    small = MdevSpec("nvidia-12", resource_class="CUSTOM_SMALL_GPU")
    stage.show(devices=devices(small, MdevSpec("nvidia-471")))
    assert stage.world.placed(A) == {M60: {"CUSTOM_SMALL_GPU": 1}}
    assert stage.units(A) == {M60: {"CUSTOM_SMALL_GPU": (ON_M60,)}}
    assert stage.world.placed(B) == {A100: {"VGPU": 1}} and stage.claim(B) == claims[1]
    assert "VGPU" not in stage.world.totals()[M60]
    stage.undone_and_done_again()
    stage.show(devices=devices(MdevSpec("nvidia-11"), MdevSpec("nvidia-471")))
    assert stage.state() == before
    assert stage.claim(A) == claims[0]
    stage.show(devices=devices(MdevSpec("nvidia-12"), MdevSpec("nvidia-471")))
    assert stage.units(A) == {M60: {"VGPU": (ON_M60,)}}, "the same class: nothing to move"


@pytest.mark.parametrize("name", ["CUSTOM_BIG_GPU", "CUSTOM_BIG_GPU CUSTOM_HUGE_GPU"])
def test_a_class_renamed_and_changed_back(name: str, stage: Stage) -> None:
    """mdev_class set, set to another, and taken out again; the units stay whose they are."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)),)
    plain = devices(MdevSpec("nvidia-11"), MdevSpec("nvidia-471"))
    stage.show(devices=plain)
    claim, before = stage.adopt(A, {M60: {"VGPU": 1}}), stage.state()
    for each in name.split():
        stage.show(devices=devices(MdevSpec("nvidia-11", resource_class=each), MdevSpec("nvidia-471")))
        assert stage.world.placed(A) == {M60: {each: 1}}
        assert stage.units(A) == {M60: {each: (ON_M60,)}}
        stage.undone_and_done_again()
    stage.show(devices=plain)
    assert (stage.state(), stage.claim(A)) == (before, claim)


def test_a_resource_class_of_functions_set_and_taken_out_again(stage: Stage) -> None:
    """[pci] device_spec's resource_class: virtual functions and nothing else change their class."""
    stage.driver.xml = (domain(1, devices=interface(VF0)),)
    stage.show(devices=devices())
    claim, before = stage.adopt(A, {NIC0: {"SRIOV_NET_VF": 1}}), stage.state()
    stage.show(devices=devices(vf=', "resource_class": "CUSTOM_FAST_VF"'))
    assert stage.world.placed(A) == {NIC0: {"CUSTOM_FAST_VF": 1}}
    assert stage.units(A) == {NIC0: {"CUSTOM_FAST_VF": (VF0,)}}
    stage.undone_and_done_again()
    stage.show(devices=devices())
    assert (stage.state(), stage.claim(A)) == (before, claim)


def test_a_device_moved_to_another_cell_and_back(stage: Stage) -> None:
    """Its provider goes under the other cell with all that is held on it; who holds it notices nothing."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_A100) + interface(VF0)),)
    stage.show(report_numa=True)
    claim = stage.adopt(A, {A100: {"VGPU": 1}, NIC0: {"SRIOV_NET_VF": 1}})
    before = stage.state()
    assert stage.units(A) == {A100: {"VGPU": (ON_A100,)}, NIC0: {"SRIOV_NET_VF": (VF0,)}}
    for cell, expected in ((0, CELL0), (1, CELL1)):
        cards = tuple(
            replace(card, device=replace(card.device, numa=cell))
            if card.device.address == "0000:84:00.0"
            else card
            for card in FACTS["domains"].cards
        )
        stage.show(facts=replace(FACTS["domains"], cards=cards))
        tree = stage.world.tree()
        assert tree[stage.world.uuid(A100)].parent == stage.world.uuid(expected)
        assert (stage.state(), stage.claim(A)) == (before, claim)


def test_a_unit_whose_card_is_gone_is_parked_and_a_type_not_enabled_keeps_what_is_in_use(
    stage: Stage,
) -> None:
    """Scenario 88: from the driver's own word: reported and parked, the rest moved."""
    stage.flat(VGPU=36 + 5)
    for consumer in (A, B, C):
        stage.hold(consumer, VGPU=1)
    stage.driver.xml = (
        domain(1, devices=hostdev(ON_M60)),
        domain(2, devices=hostdev(ON_A100)),
        domain(3, devices=hostdev("99999999-9999-4999-8999-999999999999")),
    )
    stage.driver.states = {C: GuestState.SHUTOFF}
    stage.show(devices=devices(MdevSpec("nvidia-11")))
    assert stage.world.placed(A) == {M60: {"VGPU": 1}}
    assert stage.world.placed(B) == {A100: {"VGPU": 1}}, "its type is not enabled"
    assert stage.world.placed(C) == {HOST: {"VGPU": 1}}, "no card has it"
    assert stage.world.totals()[A100] == {"VGPU": 1} and stage.world.totals()[HOST]["VGPU"] == 1
    problems = stage.world.again().problems
    assert any(C in each and "parked" in each for each in problems), problems
    stage.undone_and_done_again()
