"""Hardware that is otherwise than it was, over a boot or under the agent: cards, names and slots, cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.libvirt_model import FACTS, hostdev, interface
from kits.libvirt_model import HOST as RECORDED
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
from agent.errors import DoesNotFit, ReshapeRefused
from drivers.libvirt.describe.cards import Card, MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.host import HostFacts


@pytest.fixture
def stage(any_placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, any_placement) as world:
        yield Stage(world)


def with_interface(name: str | None, moment: str = "domains") -> DeviceFacts:
    """The first network card's interface is called so now, or is not there."""
    facts = FACTS[moment]
    cards = tuple(
        replace(card, interface=replace(card.interface, interface=name) if name else None)
        if card.device.address == "0000:41:00.0" and card.interface is not None
        else card
        for card in facts.cards
    )
    return replace(facts, cards=cards)


def test_a_network_card_that_a_guest_has_whole_is_called_as_before(stage: Stage) -> None:
    """Its interface is gone while it is with the guest; its provider is named by that."""
    spec = '{"vendor_id": "8086", "product_id": "10c9", "resource_class": "CUSTOM_NIC"}'
    whole_card = "<hostdev mode='subsystem' type='pci'><source><address {}/></source></hostdev>"
    stage.show(facts=FACTS["boot"], devices=DeviceSettings(parse_device_specs((spec,))))
    address = "domain='0' bus='0x41' slot='0' function='0'"
    stage.driver.xml = (domain(1, devices=whole_card.format(address)),)
    stage.show()
    claim, before = stage.adopt(A, {NIC0: {"CUSTOM_NIC": 1}}), stage.state()
    assert stage.units(A) == {NIC0: {"CUSTOM_NIC": ("0000:41:00.0",)}}
    for facts in (with_interface(None, "boot"), FACTS["boot"]):
        stage.show(facts=facts)
        assert (stage.state(), stage.claim(A)) == (before, claim)
        assert not any("CUSTOM_NIC" in each for each in stage.world.again().problems)


@pytest.mark.parametrize("first", ["enp65s0", None])
def test_a_network_interface_that_is_called_otherwise(first: str | None, stage: Stage) -> None:
    """Renamed, or seen later than its card: who holds its functions goes along."""
    called = NIC0 if first else f"{HOST}_pci_0000:41:00.0"
    stage.driver.xml = (domain(1, devices=interface(VF0)),)
    stage.show(facts=with_interface(first))
    stage.adopt(A, {called: {"SRIOV_NET_VF": 1}})
    stage.show(facts=with_interface("ens1"))
    assert stage.world.placed(A) == {f"{HOST}_net_ens1": {"SRIOV_NET_VF": 1}}
    assert stage.units(A) == {f"{HOST}_net_ens1": {"SRIOV_NET_VF": (VF0,)}}
    assert called not in stage.world.totals()
    stage.undone_and_done_again()
    stage.show(facts=with_interface("enp65s0"))
    assert stage.units(A) == {NIC0: {"SRIOV_NET_VF": (VF0,)}}


def test_two_network_interfaces_that_change_names(stage: Stage) -> None:
    """Each provider is the other card's from then on; who holds a function stays with it."""
    stage.driver.xml = (domain(1, devices=interface(VF0)), domain(2, devices=interface(VF1)))
    stage.show()
    for who, card in ((A, NIC0), (B, NIC1)):
        stage.adopt(who, {card: {"SRIOV_NET_VF": 1}})
    before, recorded = stage.state(), FACTS["domains"]
    names = {"enp65s0": "enp129s0", "enp129s0": "enp65s0"}
    swapped = tuple(
        replace(card, interface=replace(card.interface, interface=names[card.interface.interface]))
        if card.interface is not None and card.interface.interface in names
        else card
        for card in recorded.cards
    )
    stage.show(facts=replace(recorded, cards=swapped))
    assert stage.units(A) == {NIC1: {"SRIOV_NET_VF": (VF0,)}}
    assert stage.units(B) == {NIC0: {"SRIOV_NET_VF": (VF1,)}}
    assert [stage.world.placed(who) for who in (A, B)] == [
        {NIC1: {"SRIOV_NET_VF": 1}},
        {NIC0: {"SRIOV_NET_VF": 1}},
    ]
    stage.show(facts=recorded)
    assert stage.state() == before


FIRST, SECOND, ETH0, ETH1 = "0000:41:00.0", "0000:81:00.0", f"{HOST}_net_eth0", f"{HOST}_net_eth1"


def called(names: dict[str, str | None]) -> DeviceFacts:
    """{address: what the card's interface is called, None: it has none}"""
    told = {
        card.device.address: replace(card.interface, interface=name) if name else None
        for card in FACTS["domains"].cards
        if card.interface is not None and card.device.address in names
        for name in [names[card.device.address]]
    }
    cards = (
        replace(card, interface=told.get(card.device.address, card.interface))
        for card in FACTS["domains"].cards
    )
    return replace(FACTS["domains"], cards=tuple(cards))


def test_a_name_that_came_to_another_card_while_the_first_has_no_interface(stage: Stage) -> None:
    """A card is given away at boot, and the kernel counts from another one: two providers all the same."""
    stage.driver.xml = (domain(1, devices=interface(VF0)), domain(2, devices=interface(VF1)))
    stage.show(facts=called({FIRST: "eth0", SECOND: "eth1"}))
    for who, card in ((A, ETH0), (B, ETH1)):
        stage.adopt(who, {card: {"SRIOV_NET_VF": 1}})
    before = stage.state()
    for names in ({FIRST: None, SECOND: "eth0"}, {FIRST: None, SECOND: None}):
        stage.show(facts=called(names))
        assert stage.units(A) == {f"{HOST}_pci_{FIRST}": {"SRIOV_NET_VF": (VF0,)}}
        assert stage.units(B) == {ETH0: {"SRIOV_NET_VF": (VF1,)}}
    stage.show(facts=called({FIRST: "eth0", SECOND: "eth1"}))
    assert stage.state() == before


def without(facts: DeviceFacts, address: str) -> DeviceFacts:
    return replace(facts, cards=tuple(card for card in facts.cards if card.device.address != address))


@pytest.mark.parametrize("offered", [True, False])
def test_a_card_that_goes_after_it_changed_names_with_another(offered: bool, stage: Stage) -> None:
    """What is held of it is not the other's; a card that had nothing for guests never had a provider."""
    spec = '{"vendor_id": "8086", "product_id": "10ca"%s}'
    only = "" if offered else f', "address": "{FIRST[:-4]}*"'
    stage.show(
        facts=called({FIRST: "eth0", SECOND: "eth1"}),
        devices=DeviceSettings(parse_device_specs((spec % only,))),
    )
    stage.driver.xml = (domain(1, devices=interface(VF0)),)
    stage.show()
    stage.adopt(A, {ETH0: {"SRIOV_NET_VF": 1}})
    changed = called({FIRST: "eth1", SECOND: "eth0"})
    stage.show(facts=changed)
    assert stage.world.placed(A) == {ETH1: {"SRIOV_NET_VF": 1}}
    if offered:
        stage.hold_on(C, {ETH0: {"SRIOV_NET_VF": 1}})
        stage.show(facts=without(changed, SECOND))
        assert stage.world.placed(C) == {ETH0: {"SRIOV_NET_VF": 1}}
        (problem,) = (each for each in stage.world.again().problems if "SRIOV_NET_VF" in each)
        assert f"has no SRIOV_NET_VF on provider {ETH0} any more, but {C} still holds some" in problem


def divided(cells: int, more_mb: int = 0) -> HostFacts:
    """The recorded host, which has two cells of two CPUs, as its firmware may divide it as well.

    Each cell has `more_mb` more memory than it should.
    """
    found = _divided(cells)
    grown = tuple(replace(cell, memory_mb=cell.memory_mb + more_mb) for cell in found.capabilities.cells)
    return replace(found, capabilities=replace(found.capabilities, cells=grown))


def _divided(cells: int) -> HostFacts:
    capabilities = RECORDED.capabilities
    first, second = capabilities.cells
    if cells == 2:
        return RECORDED
    if cells == 1:
        whole = replace(
            first,
            cpus=first.cpus | second.cpus,
            memory_mb=first.memory_mb + second.memory_mb,
            siblings=(*first.siblings, *second.siblings),
        )
        return replace(RECORDED, capabilities=replace(capabilities, cells=(whole,)))
    quarters = tuple(
        replace(cell, id=cpu, cpus=frozenset({cpu}), memory_mb=cell.memory_mb // 2, siblings=())
        for cell in (first, second)
        for cpu in sorted(cell.cpus)
    )
    return replace(RECORDED, capabilities=replace(capabilities, cells=quarters))


def test_a_host_that_is_divided_into_other_cells(stage: Stage) -> None:
    """By its firmware, over a boot: what is held goes where its guest is, and nothing is offered twice."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED, devices=hostdev(ON_A100)), domain(2))
    stage.show(host=DEDICATED, report_numa=True)
    stage.adopt(A, {CELL1: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}})
    stage.adopt(B, {CELL0: {"VCPU": 1, "MEMORY_MB": 512}})
    before = stage.state()
    sums = whole(stage)
    cell2, cell3 = f"{HOST}_numa2", f"{HOST}_numa3"
    for cells, expected in (
        (1, {CELL0: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}),
        (2, {CELL1: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}),
        (4, {CELL1: {"MEMORY_MB": 512}, cell2: {"PCPU": 1}, cell3: {"PCPU": 1}, A100: {"VGPU": 1}}),
        (2, {CELL1: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}),
    ):
        stage.driver.host = divided(cells)
        stage.show()
        assert stage.world.placed(A) == expected
        assert stage.world.placed(B) == {CELL0: {"VCPU": 1, "MEMORY_MB": 512}}
        assert whole(stage) == sums
        assert (
            sum(name.startswith(f"{HOST}_numa") and "pages" not in name for name in stage.world.totals())
            == cells
        )
    assert stage.state() == before
    stage.driver.host = divided(1)
    stage.show(report_numa=False)
    assert stage.world.placed(A) == {HOST: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}
    assert whole(stage) == sums
    stage.undone_and_done_again()


@pytest.mark.parametrize(("cells", "more_mb"), [(4, 5), (4, -5), (1, 5), (1, -5)])
def test_cells_whose_memory_is_not_quite_what_it_was(cells: int, more_mb: int, stage: Stage) -> None:
    """No two boots find the same; what is held follows there and back."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED), domain(2))
    stage.show(host=DEDICATED, report_numa=True)
    stage.adopt(A, {CELL1: {"PCPU": 2, "MEMORY_MB": 512}})
    stage.adopt(B, {CELL0: {"VCPU": 1, "MEMORY_MB": 512}})
    before = stage.state()
    for host in (divided(cells, more_mb), divided(2)):
        stage.driver.host = host
        stage.show()
        total = sum(cell.memory_mb for cell in host.capabilities.cells)
        assert whole(stage)["MEMORY_MB"] == total
    assert stage.state() == before


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1), (1, 2)])
@pytest.mark.parametrize("more_mb", [400, 4000, -100])
def test_memory_built_in_or_taken_out_at_the_boot_that_divides_the_host_anew(
    before: int, after: int, more_mb: int, stage: Stage
) -> None:
    """What cells have more of together is new."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED), domain(2)) if before < 4 else (domain(2),)
    stage.driver.host = divided(before)
    stage.show(host=DEDICATED, report_numa=True)
    if before < 4:
        stage.adopt(A, {CELL0 if before == 1 else CELL1: {"PCPU": 2, "MEMORY_MB": 512}})
    stage.adopt(B, {CELL0: {"VCPU": 1, "MEMORY_MB": 512}})
    then = whole(stage)
    stage.driver.host = divided(after, more_mb)
    stage.show()
    assert whole(stage) == then | {"MEMORY_MB": then["MEMORY_MB"] + after * more_mb}


def test_who_floats_goes_to_another_cell_where_the_first_one_has_become_too_small(stage: Stage) -> None:
    """One cell became four, and who is pinned to what is left of it stays."""
    pinned = "<cputune><vcpupin vcpu='0' cpuset='0'/></cputune>"
    stage.driver.xml = (domain(1, inside=pinned), domain(2), domain(3))
    stage.driver.host = divided(1)
    cpus = replace(DEDICATED, cpu_shared_set=frozenset({1, 2, 3}), cpu_dedicated_set=frozenset({0}))
    stage.show(host=cpus, report_numa=True)
    stage.adopt(A, {CELL0: {"PCPU": 1, "MEMORY_MB": 512}})
    for who in (B, C):
        stage.adopt(who, {CELL0: {"VCPU": 1, "MEMORY_MB": 512}})
    before = stage.state()
    stage.driver.host = divided(4)
    stage.show()
    assert stage.world.placed(A) == {CELL0: {"PCPU": 1, "MEMORY_MB": 512}}
    placed = [stage.world.placed(who) for who in (B, C)]
    assert [[*each.values()] for each in placed] == [[{"VCPU": 1, "MEMORY_MB": 512}]] * 2, "whole"
    assert len({CELL0, *placed[0], *placed[1]}) == 3, "each on a cell of its own"
    stage.driver.host = divided(1)
    stage.show()
    assert stage.state() == before


@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, 1), (1, 2), (1, 4)])
def test_cells_that_are_others_and_no_longer_reported_at_once(before: int, after: int, stage: Stage) -> None:
    """The firmware and the configuration were changed together; nobody knows what each cell had."""
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED), domain(2))
    stage.driver.host = divided(before)
    stage.show(host=DEDICATED, report_numa=True)
    pinned = {"PCPU": 2, "MEMORY_MB": 512}
    stage.adopt(A, {CELL0 if before == 1 else CELL1: pinned})
    stage.adopt(B, {CELL0: {"VCPU": 1, "MEMORY_MB": 512}})
    stage.driver.host = divided(after, 300)
    stage.show(report_numa=False)
    assert stage.world.placed(A) == {HOST: pinned}
    assert stage.world.placed(B) == {HOST: {"VCPU": 1, "MEMORY_MB": 512}}
    stage.undone_and_done_again()
    stage.show(report_numa=True)


@pytest.mark.parametrize("pages", [10, 96])
@pytest.mark.parametrize("cells", [1, 4])
def test_large_pages_hold_up_no_other_division_of_the_host(cells: int, pages: int, stage: Stage) -> None:
    """Who holds some keeps them, and where their cell is no more, nobody else gets them and that is told."""
    name, below = "CUSTOM_HUGEPAGES_2048KIB", f"{CELL1}_pages_2048"
    stage.driver.xml = (domain(1, vcpus=2, inside=PINNED),)
    stage.show(host=DEDICATED, report_numa=True)
    stage.adopt(A, {CELL1: {"PCPU": 2, "MEMORY_MB": 512}, below: {name: 7}})
    before = stage.state()
    host = divided(cells)
    found = tuple(replace(cell, pages={2048: pages}) for cell in host.capabilities.cells)
    stage.driver.host = replace(host, capabilities=replace(host.capabilities, cells=found))
    stage.show()
    assert stage.world.placed(A)[below] == {name: 7}
    left = stage.world.tree()[stage.world.uuid(below)].inventories[name]
    assert left.capacity == (7 if cells == 1 else pages)
    assert len(stage.world.again().problems) == (1 if cells == 1 else 0)
    stage.driver.host = divided(2)
    stage.show()
    assert stage.state() == before


def test_cells_that_grow_and_shrink_long_after_they_were_others(stage: Stage) -> None:
    """Nothing moved: one has less, another has more than that."""
    stage.show(report_numa=True)
    for host in (divided(4), divided(2)):
        stage.driver.host = host
        stage.show()
    first, second = RECORDED.capabilities.cells
    cells = (replace(first, memory_mb=first.memory_mb - 3), replace(second, memory_mb=second.memory_mb + 700))
    stage.driver.host = replace(RECORDED, capabilities=replace(RECORDED.capabilities, cells=cells))
    stage.show()
    assert [stage.world.totals()[each]["MEMORY_MB"] for each in (CELL0, CELL1)] == [
        cell.memory_mb for cell in cells
    ]


def whole(stage: Stage) -> dict[str, int]:
    """{class: what the host offers of it in all}, of CPUs and memory."""
    names = ("VCPU", "PCPU", "MEMORY_MB")
    return {name: sum(each.get(name, 0) for each in stage.world.totals().values()) for name in names}


def at(address: str, card: Card, *, with_mdevs: bool) -> Card:
    """The same card in another slot."""
    device = replace(card.device, address=address, name=f"pci_{address}")
    mdevs = tuple(replace(mdev, parent=device.name) for mdev in card.mdevs) if with_mdevs else ()
    return replace(card, device=device, mdevs=mdevs)


def test_a_card_in_another_slot_is_another_card_until_its_devices_are_made_there(stage: Stage) -> None:
    """Until then what is held of the one that was there stays, nobody else gets it, and that is told."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)),)
    stage.show()
    claim, before = stage.adopt(A, {M60: {"VGPU": 1}}), stage.state()
    recorded, there = FACTS["domains"], f"{HOST}_pci_0000:45:00.0"
    with_card = {
        with_mdevs: tuple(
            at("0000:45:00.0", card, with_mdevs=with_mdevs) if card.device.address == "0000:42:00.0" else card
            for card in recorded.cards
        )
        for with_mdevs in (False, True)
    }
    stage.show(facts=replace(recorded, cards=with_card[False]))
    assert (stage.world.placed(A), stage.claim(A)) == ({M60: {"VGPU": 1}}, claim)
    old = stage.world.tree()[stage.world.uuid(M60)].inventories["VGPU"]
    assert old.capacity == 1, "what is held, no more"
    (problem,) = (each for each in stage.world.again().problems if "VGPU" in each)
    assert f"has no VGPU on provider {M60} any more, but guest-1 ({A}) still holds some" in problem
    stage.world.tracker.claim(request(B, VGPU=14))
    ((new, units),) = stage.units(B).items()
    assert new == there and ON_M60 not in units["VGPU"]
    with pytest.raises(DoesNotFit):
        stage.world.tracker.claim(request(C, VGPU=5))
    stage.world.tracker.release(B)
    stage.show(facts=replace(recorded, cards=with_card[True]))
    assert stage.units(A) == {there: {"VGPU": (ON_M60,)}}
    assert M60 not in stage.world.totals()
    assert not any("VGPU" in each for each in stage.world.again().problems)
    (receipt,) = stage.world.journal.reshapes(done=True)
    with pytest.raises(ReshapeRefused, match="the same units would be offered twice"):
        stage.world.ask(receipt)
    assert stage.units(A) == {there: {"VGPU": (ON_M60,)}}
    stage.show(facts=recorded)
    assert (stage.state(), stage.claim(A)) == (before, claim)
    assert not any("VGPU" in each for each in stage.world.again().problems)


def test_a_slot_that_has_another_card_by_now_is_that_ones(stage: Stage) -> None:
    """What is held of the second card there does not go after the first."""
    recorded, there = FACTS["domains"], f"{HOST}_pci_0000:45:00.0"
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)),)
    stage.show()
    stage.adopt(A, {M60: {"VGPU": 1}})
    (card,) = (each for each in recorded.cards if each.device.address == "0000:42:00.0")
    others = without(recorded, "0000:42:00.0").cards
    alone = replace(recorded, cards=(*others, at("0000:45:00.0", card, with_mdevs=True)))
    stage.show(facts=alone)
    assert stage.world.placed(A) == {there: {"VGPU": 1}}
    stage.show(facts=replace(alone, cards=(*alone.cards, replace(card, mdevs=()))))
    stage.hold_on(C, {M60: {"VGPU": 1}})
    stage.show(facts=alone)
    assert (stage.world.placed(A), stage.world.placed(C)) == ({there: {"VGPU": 1}}, {M60: {"VGPU": 1}})


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
