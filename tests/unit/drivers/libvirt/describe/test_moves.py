"""What devices were before, and the moves that follow from it."""

import pytest
from kits.libvirt_model import model, moves
from kits.libvirt_node import domain, domain_uuid

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Guest,
    GuestState,
    HostSettings,
    MoveInstruction,
    UsedUnit,
)
from drivers.host.domain_xml import parse_domain
from drivers.libvirt.describe.cards import Card, DeviceHistory, UnitRecord
from drivers.libvirt.describe.devices import GuestDomain
from drivers.libvirt.describe.history import (
    former_cells,
    former_interfaces,
    moves_of,
    record_cells,
    record_classes,
    record_interfaces,
    record_slots,
    removed_cells,
    restore_interfaces,
)
from drivers.libvirt.xml import MediatedDevice, NetDevice, PciDevice


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
