"""The libvirt driver's reshapes, from recorded devices to the claims' exact units; each with its reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from libvirt_model import FACTS, hostdev, interface
from libvirt_model import HOST as RECORDED
from libvirt_node import domain, domain_uuid
from placements import Placement
from reshapekit import HOST, ROOT, World, uuid_of
from trackerkit import request

from agent.claims.claim import Claim
from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Description,
    Driver,
    DriverSettings,
    Guest,
    GuestState,
    HostSettings,
    Topology,
)
from agent.errors import DoesNotFit
from agent.placement.client import ConsumerAllocations
from agent.tree import Inventory, Provider
from drivers.libvirt.cards import Card
from drivers.libvirt.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.devicespec import MdevSpec, parse_device_specs
from drivers.libvirt.domains import guest_of, parse_domain
from drivers.libvirt.host import HostFacts
from drivers.libvirt.model import Model, ModelSettings, make_model
from drivers.libvirt.moves import Tenant

M60, A100 = (f"{HOST}_pci_0000:{bus}:00.0" for bus in ("42", "84"))
NIC0, NIC1 = f"{HOST}_net_enp65s0", f"{HOST}_net_enp129s0"
CELL0, CELL1 = f"{HOST}_numa0", f"{HOST}_numa1"
ON_M60, ON_M60_TOO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
ON_A100, DEFINED = "33333333-3333-4333-8333-333333333333", "55555555-5555-4555-8555-555555555555"
VF0, VF1 = "0000:41:10.2", "0000:81:10.0"
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000}
SHARE = {name: amount // 4 for name, amount in BANDWIDTH.items()}
SPEC = '{"vendor_id": "8086", "product_id": "10ca"%s}'
A, B, C, D, E = (domain_uuid(number) for number in range(1, 6))
PINNED = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
SHARED = HostSettings(reserved_host_memory_mb=0)
DEDICATED = replace(SHARED, cpu_shared_set=frozenset({0, 1}), cpu_dedicated_set=frozenset({2, 3}))


def devices(*types: MdevSpec, vf: str = "") -> DeviceSettings:
    wanted = types or (MdevSpec("nvidia-11"), MdevSpec("nvidia-471"))
    bandwidth = tuple(BANDWIDTH.values())
    return DeviceSettings(
        parse_device_specs((SPEC % vf,)), wanted, {"enp65s0": bandwidth, "enp129s0": bandwidth}
    )


class Recorded(Driver):
    """The libvirt driver's model without libvirt: a recorded host, with these domains. It remembers."""

    def __init__(self, xml: tuple[str, ...] = ()) -> None:
        self.host = RECORDED
        self.facts = FACTS["domains"]
        self.xml = xml
        self.states: dict[str, GuestState] = {}
        self.settings = ModelSettings(HOST, SHARED, devices())
        self.memory: Model | None = None
        self.boot = "boot"

    @classmethod
    def create(cls, settings: DriverSettings) -> Recorded:
        raise NotImplementedError

    def _model(self) -> Model:
        dedicated = self.settings.host.cpu_dedicated_set or frozenset()
        parsed = [parse_domain(text) for text in self.xml]
        states = [self.states.get(each.uuid, GuestState.RUNNING) for each in parsed]
        self.memory = make_model(
            self.host,
            self.facts,
            [
                Tenant(guest_of(each, state, 0, dedicated), each)
                for each, state in zip(parsed, states, strict=True)
            ],
            self.memory.units if self.memory else {},
            self.boot,
            self.settings,
            self.memory.classes if self.memory else None,
        )
        return self.memory

    def describe(self) -> Description:
        return self._model().description

    def guests(self) -> tuple[Guest, ...]:
        return self._model().guests

    def topology(self) -> Topology:
        return self._model().topology

    def watch(self, changed: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.driver = Recorded()

    def show(self, *, facts: DeviceFacts | None = None, **settings: object) -> None:
        """The driver is told so; a pass, and a second one that has nothing to do."""
        self.driver.facts = facts or self.driver.facts
        self.driver.settings = replace(self.driver.settings, **settings)
        self.world.reporter.use(self.driver)
        report = self.world.again()
        assert (report.error, report.pending) == (None, None), (report.error, report.pending)
        self.world.check()
        assert self.world.again().operations == 0, "the second pass does nothing"

    def undone_and_done_again(self) -> None:
        """The last receipt, and then all is as it was before and after it."""
        there = self.state()
        (*_, receipt) = self.world.journal.reshapes(done=True)
        (undone,) = self.world.ask(receipt)
        assert undone.undoes == receipt
        self.world.check()
        assert self.state() != there
        self.world.ask()
        self.world.check()
        assert self.state() == there

    def state(self) -> object:
        return self.world.totals(), {who: self.world.placed(who) for who in (A, B, C, D, E)}

    def claim(self, consumer: str) -> Claim:
        found = self.world.tracker.get(consumer)
        assert found is not None
        return found

    def units(self, consumer: str) -> dict[str, dict[str, tuple[str, ...]]]:
        """{provider name: {class: units}} of its claim."""
        names = {each.uuid: each.name for each in self.world.tree()}
        return {
            names[uuid]: {name: tuple(units) for name, units in classes.items()}
            for uuid, classes in self.claim(consumer).units.items()
        }

    def flat(self, **devices: int) -> None:
        """As another agent reported the host: all on its root."""
        raw = self.world.raw
        generation = raw.create_provider(Provider(ROOT, HOST))
        totals = {"VCPU": 4, "MEMORY_MB": 2916, "DISK_GB": 40, **devices}
        raw.put_inventories(ROOT, generation, {name: Inventory(n, max_unit=n) for name, n in totals.items()})

    def hold(self, consumer: str, kind: str = "INSTANCE", **amounts: int) -> None:
        """As a scheduler wrote it, on the root."""
        self.hold_on(consumer, {HOST: amounts}, kind)

    def hold_on(self, consumer: str, placed: dict[str, dict[str, int]], kind: str = "INSTANCE") -> None:
        allocations = {self.world.uuid(name): amounts for name, amounts in placed.items()}
        self.world.raw.write_allocations(
            ConsumerAllocations(consumer, allocations, None, "demo", "admin", kind)
        )

    def adopt(self, consumer: str, placed: dict[str, dict[str, int]]) -> Claim:
        """The claim of what a scheduler wrote, whose guest runs: with the units in its hands."""
        self.hold_on(consumer, placed)
        wanted: dict[str, int] = {}
        for amounts in placed.values():
            wanted |= {name: wanted.get(name, 0) + amount for name, amount in amounts.items()}
        return self.world.tracker.claim(request(consumer, **wanted)).claim


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
    assert stage.units(A) == stage.units(B) == {}
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
        assert stage.world.again().problems == ()


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


def divided(cells: int) -> HostFacts:
    """The recorded host, which has two cells of two CPUs, as its firmware may divide it as well."""
    capabilities = RECORDED.capabilities
    first, second = capabilities.cells
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
        stage.driver.host = RECORDED if cells == 2 else divided(cells)
        stage.show()
        assert stage.world.placed(A) == expected
        assert stage.world.placed(B) == {CELL0: {"VCPU": 1, "MEMORY_MB": 512}}
        assert whole(stage) == sums
        assert sum(name.startswith(f"{HOST}_numa") for name in stage.world.totals()) == cells
    assert stage.state() == before
    stage.driver.host = divided(1)
    stage.show(report_numa=False)
    assert stage.world.placed(A) == {HOST: {"PCPU": 2, "MEMORY_MB": 512}, A100: {"VGPU": 1}}
    assert whole(stage) == sums
    stage.undone_and_done_again()


def whole(stage: Stage) -> dict[str, int]:
    """{class: what the host offers of it in all}, of CPUs and memory."""
    names = ("VCPU", "PCPU", "MEMORY_MB")
    return {name: sum(each.get(name, 0) for each in stage.world.totals().values()) for name in names}


def at(address: str, card: Card, *, with_mdevs: bool) -> Card:
    """The same card in another slot."""
    device = replace(card.device, address=address, name=f"pci_{address}")
    mdevs = tuple(replace(mdev, parent=device.name) for mdev in card.mdevs) if with_mdevs else ()
    return replace(card, device=device, mdevs=mdevs)


@pytest.mark.parametrize("with_mdevs", [False, True])
def test_a_card_in_another_slot_is_another_card_until_it_is_back(with_mdevs: bool, stage: Stage) -> None:
    """What is held of the one that was there stays, nobody else gets it, and that is told."""
    stage.driver.xml = (domain(1, devices=hostdev(ON_M60)),)
    stage.show()
    claim, before = stage.adopt(A, {M60: {"VGPU": 1}}), stage.state()
    recorded = FACTS["domains"]
    moved = tuple(
        at("0000:45:00.0", card, with_mdevs=with_mdevs) if card.device.address == "0000:42:00.0" else card
        for card in recorded.cards
    )
    stage.show(facts=replace(recorded, cards=moved))
    assert (stage.world.placed(A), stage.claim(A)) == ({M60: {"VGPU": 1}}, claim)
    old = stage.world.tree()[stage.world.uuid(M60)].inventories["VGPU"]
    assert old.capacity == 1, "what is held, no more"
    (problem,) = stage.world.again().problems
    assert f"has no VGPU on provider {M60} any more, but {A} still holds some" in problem
    stage.world.tracker.claim(request(B, VGPU=14))
    ((there, units),) = stage.units(B).items()
    assert there == f"{HOST}_pci_0000:45:00.0" and ON_M60 not in units["VGPU"]
    with pytest.raises(DoesNotFit):
        stage.world.tracker.claim(request(C, VGPU=5))
    stage.world.tracker.release(B)
    stage.show(facts=recorded)
    assert (stage.state(), stage.claim(A)) == (before, claim)
    assert stage.world.again().problems == ()


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
