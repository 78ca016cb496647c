"""What devices were before, and the moves that follow from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.libvirt_model import FACTS, model, moves
from kits.libvirt_node import DATA, domain, domain_uuid
from kits.recorded_cards import A100, M60, NIC0, NIC1, T4, cards

from agent.driver import (
    CarvedUnit,
    DescribedInventory,
    DescribedProvider,
    Guest,
    GuestState,
    HostSettings,
    MoveInstruction,
    UsedUnit,
)
from drivers.host.domain_xml import parse_domain
from drivers.host.providers import UnitLocation
from drivers.libvirt.describe.cards import Card, DeviceHistory, MdevSpec, UnitRecord, cards_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, GuestDomain
from drivers.libvirt.describe.history import (
    LostMdev,
    carved_units,
    former_cells,
    former_interfaces,
    lost_mdevs,
    missing_records,
    moves_of,
    record_cells,
    record_classes,
    record_interfaces,
    record_slots,
    removed_cells,
    restore_interfaces,
    unit_locations,
    update_records,
)
from drivers.libvirt.xml import (
    MediatedDevice,
    NetDevice,
    PciDevice,
)


def test_cells_are_remembered_once_there_are_others() -> None:
    """So that what was counted in those that are gone, or in larger ones, comes to those that there are."""

    def seen(known: DeviceHistory, *cells: int) -> DeviceHistory:
        described = [DescribedProvider(f"x{cell}", "node1", device=f"numa:{cell}") for cell in cells]
        return record_cells(known, [DescribedProvider("node1"), *described])

    two = seen({"pci:x": ("VGPU",)}, 0, 1)
    assert [former_cells(cell, two) for cell in (0, 1)] == [(), ()]
    assert seen(two, 0, 1) is seen(two) is two, "the same, or not reported: nothing new"
    one = seen(two, 0)
    assert (former_cells(0, one), removed_cells(one, {0})) == ((1,), (1,))
    assert seen(one, 0) == one
    many = seen(one, *range(12))
    assert former_cells(0, many) == tuple(range(1, 12)), "in the order of their numbers"
    assert (many["pci:x"], removed_cells(many, range(12))) == (("VGPU",), ())


ON_CELL_1 = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"


MEMORY_ON_1 = "<numatune><memory mode='strict' nodeset='1'/></numatune>"


def test_moves_between_the_host_and_its_cells() -> None:
    guests = (domain(1, vcpus=2, inside=ON_CELL_1), domain(2, inside=MEMORY_ON_1), domain(3))
    nested, flat = model("boot", *guests, numa=True), model("boot", *guests)
    for cell in nested.topology.cells:
        (there,) = moves(nested, "node1", f"node1_numa{cell.id}")
        (back,) = moves(flat, f"node1_numa{cell.id}", "node1")
        assert there.moved_resources == {"VCPU": len(cell.cpus), "MEMORY_MB": cell.memory_mb}
        assert (back.moved_resources, back.consumers) == (there.moved_resources, None)
        assert there.consumers == (
            {
                domain_uuid(1): {"VCPU": 2, "MEMORY_MB": 512},
                domain_uuid(2): {"VCPU": 1, "MEMORY_MB": 512},
            }
            if cell.id == 1
            else {}
        ), "what floats is not said to be anywhere"


def test_a_guest_of_both_cells_has_its_dedicated_cpus_where_they_are() -> None:
    pins = "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
    host = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}))
    found = model("boot", domain(1, vcpus=2, inside=pins), numa=True, host=host)
    assert [unit.device for unit in found.guests[0].units] == ["numa:0", "numa:1"]
    for cell in (0, 1):
        plain, renamed = sorted(
            moves(found, "node1", f"node1_numa{cell}"), key=lambda move: len(move.becomes)
        )
        assert plain.consumers == {domain_uuid(1): {"PCPU": 1}}
        assert (renamed.becomes, renamed.consumers) == (
            {"VCPU": "PCPU"},
            {domain_uuid(1): {"VCPU": 1}},
        )


def test_a_guest_that_could_not_be_read_in_full_is_not_said_to_have_anything_anywhere() -> None:
    dedicated = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 3}))
    guest = domain(1, vcpus=2, inside=ON_CELL_1)
    for numa in (False, True):
        found = model("boot", guest, host=dedicated, numa=numa, problem="libvirt does not answer for it")
        assert not any(move.consumers for move in found.description.moves)


def test_moves_of_pinned_guests_to_dedicated_cpus_and_back() -> None:
    dedicated = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 3}))
    guest = domain(1, vcpus=2, inside=ON_CELL_1)
    (move,) = moves(model("boot", guest, host=dedicated), "node1", "node1")
    assert (move.moved_resources, move.becomes) == ({"VCPU": 2}, {"VCPU": "PCPU"})
    assert move.consumers == {domain_uuid(1): {"VCPU": 2}}
    (back,) = moves(model("boot", guest), "node1", "node1")
    assert (back.becomes, back.consumers) == ({"PCPU": "VCPU"}, None)


A, B, GONE = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
MANY = tuple(map(str, range(16)))


def network_card(address: str, interface: str = "", class_id: int = 0x020000) -> Card:
    device = PciDevice(f"pci_{address}", address, "8086", "10c9", class_id)
    return Card(device, interface=NetDevice("n", device.name, interface) if interface else None)


def gpu(address: str, *mdevs: str, active: bool = True) -> Card:
    device = PciDevice(f"pci_{address}", address, "10de", "13f2", 0x030200)
    return Card(device, mdevs=tuple(MediatedDevice(f"m{u}", u, device.name, "t", active) for u in mdevs))


def of_card(device: str, *classes: str) -> DescribedProvider:
    return DescribedProvider(device, "h", device=device, units=dict.fromkeys(classes, ("u",)))


@pytest.mark.parametrize(
    ("known", "classes", "recorded"),
    [
        ((), ("PGPU",), ("PGPU",)),
        (("X",), ("Z", "Y"), ("X", "Y", "Z")),
        (("Y", "X"), ("Y",), ("X", "Y")),
        (MANY, ("now",), (*MANY[1:], "now")),
        (("X",), (), ("X",)),
    ],
)
def test_a_device_s_classes_are_remembered_the_newest_last(
    known: tuple[str, ...], classes: tuple[str, ...], recorded: tuple[str, ...]
) -> None:
    cell = DescribedProvider("c", "h", device="numa:0", units={"PCPU": ("1",)})
    described = [DescribedProvider("h"), cell, of_card("pci:a", *classes), of_card("pci:b", "LAST")]
    found = record_classes({"net:x": ("eth0",)} | ({"pci:a": known} if known else {}), described, ())
    assert found == {"net:x": ("eth0",), "pci:a": recorded, "pci:b": ("LAST",)}


@pytest.mark.parametrize(
    ("known", "now", "recorded"),
    [((), "X", ("VGPU", "X")), ((), "VGPU", ("VGPU",)), (("VGPU", "Y"), "X", ("VGPU", "Y", "X"))],
)
def test_a_card_with_mediated_devices_may_have_had_the_class_that_nova_gives_them(
    known: tuple[str, ...], now: str, recorded: tuple[str, ...]
) -> None:
    assert record_classes({"pci:a": known}, [of_card("pci:a", now)], {"pci:a"}) == {"pci:a": recorded}


@pytest.mark.parametrize(
    ("known", "cards", "recorded"),
    [
        ({}, [network_card(A, "eth0")], {A: ("eth0",)}),
        ({}, [network_card(A)], {A: ("",)}),
        ({}, [network_card(A, "eth0", 0x030200)], {}),
        ({A: ("",)}, [network_card(A, "eth0")], {A: ("", "eth0")}),
        ({A: ("eth0",)}, [network_card(A, "eth0")], {A: ("eth0",)}),
        ({A: ("eth0",)}, [network_card(A, "eth1")], {A: ("eth0", "eth1")}),
        ({A: ("eth0", "eth1")}, [network_card(A, "eth0")], {A: ("eth1", "eth0")}),
        ({A: ("eth0",)}, [network_card(A)], {A: ("eth0",)}),
        ({A: ("eth0",)}, [], {A: ("eth0",)}),
        ({A: ("eth0",)}, [network_card(A), network_card(B, "eth0")], {A: ("eth0", ""), B: ("eth0",)}),
        ({A: ("eth0",)}, [network_card(B, "eth0")], {A: ("eth0", ""), B: ("eth0",)}),
        ({A: ("eth0",)}, [network_card(A), network_card(B, "eth0", 0x030200)], {A: ("eth0",)}),
        ({A: MANY}, [network_card(A, "now")], {A: (*MANY[1:], "now")}),
    ],
)
def test_the_names_of_a_network_card_are_remembered_and_no_two_cards_have_one(
    known: dict[str, tuple[str, ...]], cards: list[Card], recorded: dict[str, tuple[str, ...]]
) -> None:
    others = {"pci:x": ("eth0",), "slot:y": ("eth0",)}
    found = record_interfaces(others | {f"net:{card}": names for card, names in known.items()}, cards)
    assert found == others | {f"net:{card}": names for card, names in recorded.items()}


@pytest.mark.parametrize(
    ("names", "card", "interface"),
    [
        (("eth0", "eth1"), network_card(A), "eth1"),
        (("eth0", ""), network_card(A), None),
        ((), network_card(A), None),
        (("eth0",), network_card(A, "eth1"), "eth1"),
        (("eth0",), network_card(A, class_id=0x030200), None),
        (("eth0",), network_card(B), None),
    ],
)
def test_a_card_that_a_guest_has_keeps_the_name_that_it_had(
    names: tuple[str, ...], card: Card, interface: str | None
) -> None:
    (found,) = restore_interfaces([card], {f"net:{A}": names})
    assert (found.interface and found.interface.interface) == interface
    assert found.device is card.device


@pytest.mark.parametrize(
    ("of_the_other", "with_units", "former"),
    [
        (("eth0",), {f"pci:{A}", f"pci:{B}"}, ("eth0", "eth1")),
        (("eth0",), {f"pci:{A}"}, ("eth1",)),
        (("eth0", "eth9"), {f"pci:{A}"}, ("eth0", "eth1")),
        (("eth0", ""), {f"pci:{A}"}, ("eth0", "eth1")),
        ((), {f"pci:{A}"}, ("eth0", "eth1")),
    ],
)
def test_a_name_that_a_card_without_units_has_now_is_that_card_s(
    of_the_other: tuple[str, ...], with_units: set[str], former: tuple[str, ...]
) -> None:
    history = {f"net:{A}": ("eth0", "eth1"), f"net:{B}": of_the_other, f"pci:{A}": ("X",), f"pci:{B}": ("X",)}
    assert former_interfaces(A, history, with_units) == former
    assert former_interfaces(GONE, history, with_units) == ()


def test_a_card_that_never_had_units_takes_no_name_from_another() -> None:
    history = {f"net:{A}": ("eth0", "eth1"), f"net:{B}": ("eth0",), f"pci:{A}": ("X",)}
    assert former_interfaces(A, history, {f"pci:{A}"}) == ("eth0", "eth1")


@pytest.mark.parametrize(
    ("known", "cards", "recorded"),
    [
        ({}, [gpu(A, "u")], {A: (GONE,)}),
        ({A: (B,)}, [gpu(A, "u")], {A: (B, GONE)}),
        ({A: (GONE,)}, [gpu(A, "u")], {A: (GONE,)}),
        ({A: (GONE,)}, [gpu(A, "new")], {A: (GONE,)}),
        ({A: (GONE, B)}, [gpu(A), gpu(GONE)], {A: (B,)}),
        ({}, [gpu(A, "u"), gpu(GONE)], {}),
        ({}, [gpu(A, "u", active=False)], {}),
        ({}, [gpu(A, "new")], {}),
        ({}, [gpu(B), gpu(A, "new", "u")], {A: (GONE,)}),
        ({A: MANY}, [gpu(A, "u")], {A: (*MANY[1:], GONE)}),
    ],
)
def test_a_mediated_device_tells_in_which_slot_its_card_was(
    known: dict[str, tuple[str, ...]], cards: list[Card], recorded: dict[str, tuple[str, ...]]
) -> None:
    others = {"pci:x": (GONE,)}
    history = others | {f"slot:{card}": slots for card, slots in known.items()}
    found = record_slots(history, cards, {"u": UnitRecord("u", GONE, "VGPU", GONE, "t", "boot-1")})
    assert found == others | {f"slot:{card}": slots for card, slots in recorded.items()}


def all_moves(
    card: DescribedProvider, history: DeviceHistory, *units: UsedUnit, problem: str | None = None
) -> list[MoveInstruction]:
    """The moves of a flat host with this card, and a guest that uses these units."""
    guest = Guest("g", "g", GuestState.RUNNING, {}, units=units, problem=problem)
    return list(
        moves_of(
            [DescribedProvider("h"), card], {}, [GuestDomain(guest, parse_domain(domain(1)))], (), history
        )
    )


def card_of(*classes: str) -> DescribedProvider:
    """Four units of each class on the card at A, whose interface is eth1."""
    return DescribedProvider(
        "h_net_eth1",
        "h",
        {name: DescribedInventory(4) for name in classes},
        device=f"pci:{A}",
        units=dict.fromkeys(classes, ("1", "2", "3", "4")),
    )


def test_what_is_on_a_card_may_be_on_the_host_and_where_the_card_was_before() -> None:
    history = {f"net:{A}": ("eth0", "eth1"), f"slot:{A}": (GONE,), f"slot:{B}": (GONE,)}
    uses = UsedUnit("X", "1", f"pci:{A}"), UsedUnit("X", "2", f"pci:{A}"), UsedUnit("X", "9", "pci:other")
    assert all_moves(card_of("X"), history, *uses) == [
        MoveInstruction(source, {"X": 4}, "h_net_eth1", {"g": {"X": 2}})
        for source in ("h", "h_net_eth0", f"h_pci_{GONE}")
    ]
    unreadable = all_moves(card_of("X"), history, *uses, problem="libvirt does not answer for it")
    assert [move.consumers for move in unreadable] == [{}] * 3


@pytest.mark.parametrize(
    ("classes", "before", "renamed"),
    [
        (("X",), ("OLD", "X"), [("h_net_eth1", "OLD", "X")]),
        (("X",), ("VGPU", "X"), [("h", "VGPU", "X"), ("h_net_eth1", "VGPU", "X")]),
        (("X", "Y"), ("OLD",), [("h_net_eth1", "OLD", "X"), ("h_net_eth1", "OLD", "Y")]),
        (("CUSTOM_VDPA", "X"), ("OLD",), [("h_net_eth1", "OLD", "X")]),
        (("X",), ("CUSTOM_VDPA", "X"), []),
        (("X",), ("X",), []),
    ],
)
def test_a_unit_may_be_counted_in_a_class_that_its_card_had(
    classes: tuple[str, ...], before: tuple[str, ...], renamed: list[tuple[str, str, str]]
) -> None:
    uses = (UsedUnit("X", "1", f"pci:{A}"),)
    found = [move for move in all_moves(card_of(*classes), {f"pci:{A}": before}, *uses) if move.becomes]
    assert found == [
        MoveInstruction(source, {old: 4}, "h_net_eth1", {"g": {old: 1}} if new == "X" else {}, {old: new})
        for source, old, new in renamed
    ]


def test_units_without_a_device_stay_on_the_host_that_counted_them() -> None:
    lost = [UsedUnit(name, unit, f"mdev:{unit}") for unit, name in (("a", "VGPU"), ("b", "VGPU"), ("c", "X"))]
    here = UsedUnit("VGPU", "1", f"pci:{A}")
    parked = [move for move in all_moves(card_of("VGPU"), {}, here, *lost) if move.stays]
    assert parked == [MoveInstruction("h", {"VGPU": 2}, "h", {"g": {"VGPU": 2}})]
    assert not any(move.stays for move in all_moves(card_of("VGPU"), {}, here))
    (vf,) = (move for move in all_moves(card_of("X"), {}, UsedUnit("SRIOV_NET_VF", "v", "x")) if move.stays)
    assert vf.moved_resources == {"SRIOV_NET_VF": 1}


@pytest.mark.parametrize(
    ("known", "present", "sources"),
    [
        ({}, (0, 1), {0: 10, 1: 10}),
        ({0: (), 1: ()}, (0, 1), {0: 10, 1: 10}),
        ({0: (), 1: ()}, (0,), {0: 10, 1: 10}),
        ({0: (0, 1), 1: (0, 1)}, (0, 1), {0: 20, 1: 20}),
        ({0: ()}, (0, 1), {0: 20, 1: 20}),
    ],
)
def test_after_cells_changed_each_may_have_had_all_of_the_host(
    known: dict[int, tuple[int, ...]], present: tuple[int, ...], sources: dict[int, int]
) -> None:
    history = {f"numa:{cell}": tuple(f"numa:{each}" for each in cells) for cell, cells in known.items()}
    totals = {cell: {"VCPU": 10} for cell in present} | {9: dict[str, int]()}
    totals = {cell: each for cell, each in totals.items() if each or known == {}}
    found = moves_of([DescribedProvider("h")], totals, (), (), history)
    assert {move.from_resource_provider: move.moved_resources for move in found} == {
        f"h_numa{cell}": {"VCPU": total} for cell, total in sources.items()
    }
    assert {move.to_resource_provider for move in found} == {"h"}


def test_a_cell_s_amounts_may_be_on_the_host_and_on_the_cells_that_it_was_part_of() -> None:
    history = {f"numa:{cell}": ("numa:0", "numa:1") for cell in (0, 1)}
    cell = DescribedProvider("h_numa0", "h", device="numa:0")
    found = moves_of([DescribedProvider("h"), cell], {0: {"VCPU": 10}}, (), (), history)
    assert [(move.from_resource_provider, move.to_resource_provider) for move in found] == [
        ("h", "h_numa0"),
        ("h_numa1", "h_numa0"),
    ]


def test_a_vcpu_counts_as_a_dedicated_cpu_where_its_pin_is_one_cpu_of_the_provider() -> None:
    pins = "".join(f"<vcpupin vcpu='{n}' cpuset='{cpus}'/>" for n, cpus in enumerate(("2", "2-3", "7", "3")))
    read = parse_domain(domain(1, vcpus=4, inside=f"<cputune>{pins}</cputune>"))
    units = tuple(UsedUnit("PCPU", str(cpu), "numa:0") for cpu in (2, 3))
    guest = Guest("g", "g", GuestState.RUNNING, {}, units=(*units, UsedUnit("X", "7", f"pci:{A}")))
    cell = DescribedProvider("h_numa0", "h", {"PCPU": DescribedInventory(4)}, device="numa:0")
    shared = DescribedProvider("h_numa1", "h", {"VCPU": DescribedInventory(8)}, device="numa:1")
    found = moves_of([DescribedProvider("h"), cell, shared], {}, [GuestDomain(guest, read)], (), {})
    assert found == (
        MoveInstruction("h", {"VCPU": 4}, "h_numa0", {"g": {"VCPU": 2}}, {"VCPU": "PCPU"}),
        MoveInstruction("h_numa0", {"VCPU": 4}, "h_numa0", {"g": {"VCPU": 2}}, {"VCPU": "PCPU"}),
        MoveInstruction("h_numa1", {"PCPU": 8}, "h_numa1", None, {"PCPU": "VCPU"}),
    )


# Units that domains name: located, recorded, missing, made again after a reboot, and carved


def owners_of(found: tuple[Card, ...]) -> dict[str, str]:
    """{unit: `Card.key`}, with a provider for each card and its functions."""
    described = [
        DescribedProvider(
            card.key,
            device=card.key,
            units={"PCI": (card.device.address, *(vf.address for vf in card.vfs))},
        )
        for card in found
    ]
    settings = DeviceSettings(mdevs=(MdevSpec("t"),))
    return {
        unit: place.device for unit, place in unit_locations(described, DeviceFacts(found), settings).items()
    }


def test_every_device_of_every_recorded_domain_has_its_card() -> None:
    owners = owners_of(tuple(cards("domains").values()))
    held = {}
    for name in ("vm-mdev", "vm-vf", "vm-gpu", "vm-both", "vm-off-inactive"):
        domain = parse_domain((DATA / "domains" / f"{name}.xml").read_text())
        held[name] = [owners[unit] for unit in (*domain.mdevs, *domain.pci_devices, *domain.interfaces)]
    assert held == {
        "vm-mdev": [f"pci:{M60}"],
        "vm-vf": [f"pci:{NIC0}"],
        "vm-gpu": [f"pci:{T4}"],
        "vm-both": [f"pci:{A100}", f"pci:{NIC0}"],
        "vm-off-inactive": ["pci:0000:82:00.0", f"pci:{NIC1}"],
    }


def test_the_active_one_of_two_devices_with_one_uuid_holds_it() -> None:
    uuid = "11111111-1111-4111-8111-111111111111"
    functions = [PciDevice(f"p{n}", f"0000:0{n}:00.0", "10de", "13f2", 0x030200) for n in (1, 2)]
    for active in ((True, False), (False, True)):
        mdevs = [MediatedDevice(f"m{n}", uuid, f"p{n}", "t", active[n - 1]) for n in (1, 2)]
        holder = "pci:0000:01:00.0" if active[0] else "pci:0000:02:00.0"
        assert owners_of(cards_of([*functions, *mdevs]))[uuid] == holder


PARENT = "pci_0000_42_00_0"
UUID = "11111111-1111-4111-8111-111111111111"
NAME = f"mdev_{UUID.replace('-', '_')}_0000_42_00_0"
UNIT = UnitRecord(UUID, M60, "VGPU", M60, "nvidia-11", "boot-1")


def after_a_reboot(*mdevs: MediatedDevice) -> DeviceFacts:
    cards = FACTS["boot"].cards
    return DeviceFacts(
        tuple(replace(card, mdevs=mdevs) if card.device.address == M60 else card for card in cards)
    )


def mdev(parent: str = PARENT, *, active: bool) -> MediatedDevice:
    return MediatedDevice(NAME, UUID, parent, "nvidia-11", active)


def lost(facts: DeviceFacts, missing: tuple[UnitRecord, ...] = (UNIT,)) -> list[LostMdev]:
    return lost_mdevs(missing, facts, "boot-2")


def test_a_transient_one_is_made_anew() -> None:
    assert lost(after_a_reboot()) == [LostMdev(UNIT, PARENT, None)]


def test_a_persistent_one_is_started_as_it_is_defined() -> None:
    assert lost(after_a_reboot(mdev(active=False))) == [LostMdev(UNIT, PARENT, NAME)]
    elsewhere = mdev("pci_0000_82_00_0", active=False)
    assert lost(after_a_reboot(elsewhere)) == [LostMdev(UNIT, PARENT, None)], (
        "that definition is of another card"
    )


@pytest.mark.parametrize(
    ("record", "boot"),
    [
        (replace(UNIT, boot="boot-2"), "boot-2"),
        (replace(UNIT, boot=""), "boot-2"),
        (UNIT, ""),
        (replace(UNIT, parent=NIC0), "boot-2"),
        (UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1"), "boot-2"),
    ],
)
def test_only_what_an_earlier_boot_had_is_made_again_on_a_parent_that_can_have_it(
    record: UnitRecord, boot: str
) -> None:
    assert lost_mdevs([record], after_a_reboot(), boot) == []


def test_a_unit_is_missing_while_its_card_is_there_and_it_is_not() -> None:
    settings = DeviceSettings(mdevs=(MdevSpec("nvidia-11", resource_class="CUSTOM_SMALL"),))
    vf = UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1")
    of_a_gone_card = UnitRecord("9", "0000:99:00.0", "VGPU", "0000:99:00.0", "t", "boot-1")
    known = {each.unit: each for each in (vf, of_a_gone_card)}
    defined = after_a_reboot(mdev(active=False))
    named = frozenset({UUID, *known, "0000:41:10.1"})
    as_defined = UnitRecord(UUID, M60, "CUSTOM_SMALL", M60, "nvidia-11")
    assert missing_records(named, defined, settings, known) == [vf, as_defined]
    assert missing_records(named, defined, settings, known | {UUID: UNIT}) == [vf, UNIT], "it existed once"
    assert missing_records(frozenset({UUID}), defined, settings, known) == [as_defined]
    assert missing_records(named, after_a_reboot(mdev(active=True)), settings, known | {UUID: UNIT}) == [vf]
    assert missing_records(named, FACTS["vfs"], settings, known) == [], "the function is back"


def test_a_missing_unit_is_where_it_was_in_the_class_of_its_type() -> None:
    m60, nic = (DescribedProvider(card, "h", device=f"pci:{card}") for card in (M60, NIC0))
    vf = UnitRecord("0000:41:10.0", NIC0, "SRIOV_NET_VF", boot="boot-1")
    unit, plain = replace(UNIT, resource_class="OLD"), DeviceSettings()
    enabled = DeviceSettings(mdevs=(MdevSpec("nvidia-11", resource_class="CUSTOM_SMALL"),))
    facts = after_a_reboot()
    assert unit_locations([m60, nic], facts, enabled, [unit, vf]) == {
        UUID: UnitLocation("CUSTOM_SMALL", m60.device)
    }
    assert unit_locations([m60, nic], facts, plain, [unit]) == {UUID: UnitLocation("OLD", m60.device)}
    assert unit_locations([nic], facts, enabled, [unit]) == {}, "a card that offers nothing"
    there = after_a_reboot(mdev(active=True))
    assert unit_locations([m60], there, enabled) == {UUID: UnitLocation("CUSTOM_SMALL", m60.device)}
    assert unit_locations([nic], there, enabled) == {}


def test_what_domains_name_is_recorded_as_it_is_now_and_dropped_when_none_names_it() -> None:
    facts, vf = FACTS["domains"], "0000:41:10.0"
    idle, gone = (UnitRecord(name, M60, "VGPU", M60, "t", "boot-1") for name in ("idle", "gone"))
    known = {"idle": idle, "gone": gone, UUID: replace(UNIT, resource_class="OLD")}
    named = frozenset({vf, UUID, "gone"})
    locations = {vf: UnitLocation("X", f"pci:{NIC0}"), UUID: UnitLocation("Y", f"pci:{M60}")}
    now = {
        vf: UnitRecord(vf, NIC0, "X", boot="boot-2"),
        UUID: replace(UNIT, resource_class="Y", boot="boot-2"),
    }
    all_read = update_records(named, facts, DeviceSettings(), locations, known, "boot-2", forget=True)
    assert all_read == {"gone": gone} | now
    in_part = update_records(named, facts, DeviceSettings(), locations, known, "boot-2", forget=False)
    assert in_part == known | now, "a domain that could not be read may name it"
    unlocated = update_records(named, facts, DeviceSettings(), {}, known, "boot-2", forget=True)
    assert unlocated == {"gone": gone, UUID: replace(UNIT, boot="boot-2")}


def test_one_with_autostart_is_there_and_left_alone() -> None:
    """The host started it; where it did not (a broken udev rule), it is as any persistent one."""
    assert lost(after_a_reboot(mdev(active=True)), missing=()) == []


SETTINGS = DeviceSettings(mdevs=(MdevSpec("nvidia-471", frozenset({"0000:84:00.0"})), MdevSpec("nvidia-11")))


def test_the_functions_and_mediated_devices_of_the_recorded_host() -> None:
    units = {unit.unit: unit for unit in carved_units(FACTS["mdevs"], (), SETTINGS)}
    assert units["0000:41:10.2"] == CarvedUnit("0000:41:10.2", "0000:41:00.0", "0000:41:10.2")
    mdevs = [unit for unit in units.values() if unit.unit != unit.parent]
    assert mdevs and all(unit.type_id for unit in mdevs)
    assert {(unit.card, unit.parent) for unit in mdevs} <= {
        ("0000:42:00.0", "0000:42:00.0"),
        ("0000:82:00.0", "0000:82:00.0"),
        *(("0000:84:00.0", f"0000:84:00.{number}") for number in range(1, 5)),
    }


def test_a_vgpu_type_is_that_of_the_options_and_none_is_not_known() -> None:
    types = {"0000:84:00.1": "471", "0000:84:00.2": "0"}
    facts = DeviceFacts(FACTS["vfs"].cards, vgpu_types=types)
    units = {unit.unit: unit.type_id for unit in carved_units(facts, (), SETTINGS)}
    assert units["0000:84:00.1"] == "nvidia-471"
    assert "0000:84:00.2" not in units, "what it was before the boot is in the plan file"


def test_a_vgpu_is_made_again_where_it_is_on_its_card() -> None:
    facts = DeviceFacts(
        FACTS["vfs"].cards, vgpu_types={"0000:84:00.1": "471"}, vgpu_places={"0000:84:00.1": 20}
    )
    units = {unit.unit: unit for unit in carved_units(facts, (), SETTINGS)}
    assert units["0000:84:00.1"] == CarvedUnit(
        "0000:84:00.1", "0000:84:00.0", "0000:84:00.1", "nvidia-471", placement=20
    )


def test_a_mediated_device_that_a_boot_took_away_is_known_by_its_record() -> None:
    record = UnitRecord("u-1", "0000:42:00.0", "VGPU", "0000:42:00.0", "nvidia-11", "boot-1")
    vf = UnitRecord("0000:41:10.0", "0000:41:00.0", "SRIOV_NET_VF", boot="boot-1")
    assert carved_units(DeviceFacts(), (record, vf), SETTINGS) == (
        CarvedUnit("u-1", "0000:42:00.0", "0000:42:00.0", "nvidia-11"),
    )


def test_a_function_is_carved_with_the_port_that_its_card_has_for_it() -> None:
    ports = {"0000:41:10.0": "52:54:00:00:00:01 VLAN 100", "0000:41:10.2": "00:00:00:00:00:00"}
    units = {unit.unit: unit.port for unit in carved_units(replace(FACTS["vfs"], ports=ports), (), SETTINGS)}
    assert units["0000:41:10.0"] == "52:54:00:00:00:01 VLAN 100"
    assert units["0000:41:10.2"] == units["0000:41:10.4"] == "", "the card has none"
