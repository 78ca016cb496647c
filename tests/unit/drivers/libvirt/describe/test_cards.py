from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_node import DATA
from kits.recorded_cards import A100, M60, NIC0, NIC1, T4, cards

from agent.driver import DescribedProvider
from agent.errors import DriverDataError
from drivers.host.domain_xml import parse_domain
from drivers.libvirt.describe.cards import Card, cards_of, mdev_total, mdev_types
from drivers.libvirt.describe.device_spec import MdevSpec
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.unit_records import unit_locations
from drivers.libvirt.xml.nodedevs import (
    MdevType,
    MediatedDevice,
    NetDevice,
    PciDevice,
    parse_node_device,
)

MOMENTS = ("boot", "vfs", "mdevs", "domains", "vendor-vfio", "migrated-in")


def test_a_pci_device_as_recorded() -> None:
    device = cards("vfs")[A100].vfs[0]
    assert (device.address, device.vendor_id, device.product_id, device.class_id) == (
        "0000:84:00.1",
        "10de",
        "20f1",
        0x030200,
    )
    assert (device.driver, device.numa, device.physical_function) == ("nvidia", 1, A100)
    assert device.iommu_devices == ("0000:84:00.1",)
    assert device.mdev_types["nvidia-471"] == MdevType("nvidia-471", "GRID A100-10C", 1)


def test_virtual_functions_belong_to_their_card() -> None:
    at_boot, with_vfs = cards("boot"), cards("vfs")
    assert at_boot.keys() == with_vfs.keys(), "virtual functions are no cards"
    assert [vf.address for vf in with_vfs[NIC0].vfs] == list(with_vfs[NIC0].device.vfs)
    assert [len(with_vfs[address].vfs) for address in (NIC0, NIC1, A100, M60)] == [4, 2, 4, 0]
    assert at_boot[NIC0].vfs == ()
    assert (at_boot[NIC0].device.vfs_max, at_boot[T4].device.vfs_max) == (7, None)


def test_a_cards_interface_is_the_physical_functions() -> None:
    card = cards("vfs")[NIC0]
    assert card.interface is not None
    assert (card.interface.interface, card.is_network, card.numa) == ("enp65s0", True, 0)
    assert cards("vfs")[M60].interface is None


def test_mediated_devices_belong_to_the_card_through_its_virtual_functions() -> None:
    found = cards("mdevs")
    assert [mdev.uuid[:8] for mdev in found[M60].mdevs] == ["11111111", "22222222"]
    assert [(mdev.uuid[:8], mdev.active) for mdev in found[A100].mdevs] == [
        ("33333333", True),
        ("55555555", False),
    ]
    assert mdev_types(found[T4]) == frozenset()
    assert "nvidia-471" in mdev_types(found[A100])


@pytest.mark.parametrize("moment", ["boot", "vfs", "mdevs", "domains"])
def test_a_total_stays_as_it_is_while_devices_are_made(moment: str) -> None:
    """An 8 GiB card is good for 16 of 512 MiB, before and after two were made, of two types of that size."""
    assert mdev_total(cards(moment)[M60], "nvidia-11") == 16


def test_a_type_that_is_excluded_by_those_that_are_there_counts_what_is_there() -> None:
    card = cards("mdevs")[M60]
    assert card.device.mdev_types["nvidia-22"].available == 0
    assert mdev_total(card, "nvidia-22") == 2, "a device in use never vanishes"
    assert mdev_total(cards("boot")[M60], "nvidia-22") == 1


@pytest.mark.parametrize(
    ("moment", "type_id", "most", "total"),
    [
        ("vfs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", 1, 1),
        ("mdevs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", None, 1),
        ("mdevs", "nvidia-471", None, 2),
        ("boot", "nvidia-471", 4, 0),
    ],
)
def test_the_functions_of_a_card_offer_the_same_room_again(
    moment: str, type_id: str, most: int | None, total: int
) -> None:
    """Four functions each offer one A100-40C; the card holds one."""
    assert mdev_total(cards(moment)[A100], type_id, most) == total


@pytest.mark.parametrize(("cap", "total"), [(None, 16), (5, 5), (2, 2), (1, 2), (0, 2), (99, 16)])
def test_a_cap_caps_exactly_and_takes_nothing_away(cap: int | None, total: int) -> None:
    """Scenario 100."""
    assert mdev_total(cards("mdevs")[M60], "nvidia-11", max_instances=cap) == total


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


def test_devices_that_are_half_gone_are_left_for_the_next_look() -> None:
    """libvirtd learns of a card's functions one by one."""
    orphan = PciDevice("vf", "0000:41:10.0", "8086", "10ca", 0x020000, physical_function=NIC0)
    mdev = MediatedDevice("m", "11111111-1111-4111-8111-111111111111", "gone", "t")
    net = NetDevice("n", "gone", "eth0")
    assert cards_of([orphan, mdev, net]) == ()


MDEV = "<device><name>{name}</name><parent>p</parent><capability type='mdev'>{inside}</capability></device>"


def test_an_old_libvirt_has_the_uuid_in_the_name_only() -> None:
    name = "mdev_11111111_1111_4111_8111_111111111111"
    device = parse_node_device(MDEV.format(name=name, inside="<type id='nvidia-11'/>"))
    assert device == MediatedDevice(name, "11111111-1111-4111-8111-111111111111", "p", "nvidia-11")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<device/>", "d: <name> is missing or empty"),
        (MDEV.format(name="x", inside="<type id='t'/>"), "d: '' is not a uuid"),
        (MDEV.format(name="x", inside=""), "d: the mediated device has no type"),
        ("<device><name>x</name><capability type='pci'/></device>", "d: PCI domain: '' is not a number"),
        ("<device><name>x</name><capability type='net'/></device>", "d: <interface> is missing or empty"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=message):
        parse_node_device(text, "d")


def test_kinds_that_are_of_no_interest() -> None:
    assert parse_node_device("<device><name>x</name><capability type='storage'/></device>") is None


@pytest.mark.parametrize("moment", MOMENTS)
def test_everything_recorded_is_understood(moment: str) -> None:
    found = cards(moment)
    assert {M60, A100, NIC0} <= found.keys() or moment == "migrated-in"
    assert all(card.numa in (0, 1) for address, card in found.items() if address[5:7] != "00")


@given(st.data())
def test_recorded_devices_with_bytes_damaged(data: st.DataObject) -> None:
    root = ElementTree.parse(DATA / "devices" / "mdevs.xml").getroot()
    text = ElementTree.tostring(data.draw(st.sampled_from(root.findall(".//device"))), encoding="unicode")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 9)) :]
    try:
        device = parse_node_device(text)
    except DriverDataError as error:
        assert error.message.startswith("a node device: ")
    else:
        assert device is None or cards_of([device]) is not None
